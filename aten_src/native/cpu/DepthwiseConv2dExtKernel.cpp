// CPU kernels of depthwise_conv2d_ext, compiled once for each CPU capability: the dispatch on types, and
// forward and grad_input of all but double. depthwise_conv2d_ext/Choice.h says how a call becomes a loop.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Choice.h>

namespace at::native {

namespace {

void forward_kernel(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& params) {
  const Params p = as_rows(params);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, input.scalar_type(), "depthwise_conv2d_ext", [&] {
        run_pass<scalar_t>({output, input, weight, bias, p, Direction::kForward});
      });
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
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, input.scalar_type(), "depthwise_conv2d_ext_backward", [&] {
        if (grad_input.defined()) {
          run_pass<scalar_t>({grad_input, grad_output, weight, none, p, Direction::kGradInput});
        }
        if (grad_weight.defined() || grad_bias.defined()) {
          run_grad_weight<scalar_t>({grad_weight, grad_bias, grad_output, input, p});
        }
      });
}

} // namespace

// The ALSO form registers for the capability being compiled, whichever it is; plain
// REGISTER_DISPATCH would leave the AVX-512 build of these kernels out.
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_stub, &forward_kernel)
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_backward_stub, &backward_kernel)

} // namespace at::native
