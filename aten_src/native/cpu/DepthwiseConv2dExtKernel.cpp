// CPU kernels of depthwise_conv2d_ext, compiled once for each CPU capability.
// depthwise_conv2d_ext/Choice.h says how a call becomes a loop.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Choice.h>
#include <new>

namespace at::native {

namespace {

// Calls run(a value of the type), of the types that there are loops for.
template <typename Run>
void with_type(ScalarType dtype, const Run& run) {
  if (dtype == kDouble) {
    run(double());
  } else if (dtype == kFloat) {
    run(float());
  } else if constexpr (!kVectorsAreArrays) {
    dtype == kHalf ? run(c10::Half()) : run(c10::BFloat16());
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
  with_type(result.scalar_type(), [&](auto type) {
    run_pass<decltype(type)>({result, source, filters, start, p, Direction::kForward});
  });
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
  with_type(grad.scalar_type(), [&](auto type) {
    if (grad_input.defined()) {
      run_pass<decltype(type)>({results[0], grad, filters, none, p, Direction::kGradInput});
    }
    if (grad_weight.defined() || grad_bias.defined()) {
      run_grad_weight<decltype(type)>({results[1], results[2], grad, source, p});
    }
  });
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
