// CPU kernels of depthwise_conv2d_ext but for the gradients of weight and bias, compiled once for each CPU
// capability. depthwise_conv2d_ext/Choice.h says how a call becomes a loop.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Choice.h>
#include <new>

namespace at::native {

namespace {

// Forward or grad_input.
void run_pass(const Pass& pass) {
  if (pass.result.numel() > 0) {
    with_type(pass.result.scalar_type(), [&](auto type) {
      run_first(kPasses<decltype(type)>, pass, pass.params);
    });
  }
}

void copy_to(const TensorBase& target, const TensorBase& values) {
  if (!values.is_same(target)) {
    Tensor(target).copy_(Tensor(values));
  }
}

// The tensor, or one for its values in a type that there are loops for: with vectors that are arrays those of other
// types would take as long to compile as all others. std::bad_alloc, as of AlignedBuffer, where there is no memory.
Tensor as_result(const TensorBase& tensor) {
  if (!kVectorsAreArrays || !tensor.defined() || !isReducedFloatingType(tensor.scalar_type())) {
    return Tensor(tensor);
  }
  try {
    return Tensor(tensor).new_empty_strided(tensor.sizes(), tensor.strides(), kFloat);
  } catch (const c10::Error&) {
    throw std::bad_alloc();
  }
}
Tensor as_operand(const TensorBase& tensor) {
  Tensor operand = as_result(tensor);
  copy_to(operand, tensor);
  return operand;
}

void forward_kernel(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& params) {
  const Params p = as_rows(params);
  const Tensor result = as_result(output);
  const Tensor source = as_operand(input);
  const Tensor filters = as_operand(weight);
  const Tensor start = as_operand(bias);
  run_pass({result, source, filters, start, p, Direction::kForward});
  copy_to(output, result);
}

void backward_kernel(
    const TensorBase& grad_input,
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const TensorBase& weight,
    const Params& params) {
  const Params p = as_rows(params);
  const TensorBase none;
  const Tensor results[] = {as_result(grad_input), as_result(grad_weight), as_result(grad_bias)};
  const Tensor grad = as_operand(grad_output);
  const Tensor source = as_operand(input);
  const Tensor filters = as_operand(weight);
  if (grad_input.defined()) {
    run_pass({results[0], grad, filters, none, p, Direction::kGradInput});
  }
  if (grad_weight.defined() || grad_bias.defined()) {
    run_grad_weight({results[1], results[2], grad, source, p});
  }
  copy_to(grad_input, results[0]);
  copy_to(grad_weight, results[1]);
  copy_to(grad_bias, results[2]);
}

} // namespace

// The ALSO form registers for the capability being compiled, whichever it is; plain
// REGISTER_DISPATCH would leave the AVX-512 build of these kernels out.
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_stub, &forward_kernel)
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_backward_stub, &backward_kernel)

} // namespace at::native
