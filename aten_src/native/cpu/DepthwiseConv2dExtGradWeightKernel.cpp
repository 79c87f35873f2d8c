// The CPU kernel of depthwise_conv2d_ext's gradients of weight and bias, compiled once for each CPU
// capability: a file of its own so that it is compiled beside DepthwiseConv2dExtKernel.cpp.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGradWeightKernel.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGradWeightLines.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGradWeightPixels.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGradWeightPlanes.h>

namespace at::native {
inline namespace CPU_CAPABILITY {

void depthwise_conv2d_ext_grad_weight(
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const DepthwiseConv2dExtParams& p) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, input.scalar_type(), "depthwise_conv2d_ext_backward", [&] {
        const GradWeightCall<scalar_t> call{
            p,
            grad_weight.defined() ? grad_weight.mutable_data_ptr<scalar_t>() : nullptr,
            grad_bias.defined() ? grad_bias.mutable_data_ptr<scalar_t>() : nullptr,
            grad_output.const_data_ptr<scalar_t>(),
            input.const_data_ptr<scalar_t>()};
        if (are_lines<scalar_t>(p)) {
          LineGradWeight<scalar_t>(call).run();
        } else if (p.channels_last) {
          PixelGradWeight<scalar_t>(call).run_pixels();
        } else if (are_small_planes<opmath_type<scalar_t>>(p)) {
          PixelGradWeight<scalar_t>(call).run_small_planes();
        } else {
          PlaneGradWeight<scalar_t>(call).run();
        }
      });
}

} // namespace CPU_CAPABILITY
} // namespace at::native
