// CPU kernels of depthwise_conv2d_ext, compiled once for each CPU capability.
//
// Each output channel is a convolution of its own plane, so a tap (kh, kw) adds a shifted, scaled
// copy of the input to the output. DepthwiseConv2dExtTiles.h has the loops of the forward pass and of
// grad_input, DepthwiseConv2dExtProducts.h those of grad_weight, both for planes ([N, C, H, W]) and
// for channels last; the passes around them bring either order into their form.
//
// 16-bit values are converted to float before any arithmetic and rounded once at the end. Every sum
// is computed by one thread in an order that does not depend on the number of threads. Padding
// cannot turn an infinity of the other operand into a NaN of the result.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGradWeightKernel.h>
#include <ATen/native/cpu/DepthwiseConv2dExtPixels.h>
#include <ATen/native/cpu/DepthwiseConv2dExtPlanes.h>
#include <ATen/native/cpu/DepthwiseConv2dExtSevenPlanes.h>
#include <ATen/native/cpu/DepthwiseConv2dExtSmallPlanes.h>
#include <ATen/native/cpu/DepthwiseConv2dExtUnpackedPlanes.h>

namespace at::native {

namespace {

template <typename scalar_t>
void run_pass(const Pass& pass) {
  if (pass.result.numel() == 0) {
    return;
  }
  const Params& p = pass.params;
  if (p.channels_last) {
    pixel_pass<scalar_t>(pass);
    return;
  }
#if defined(CPU_CAPABILITY_AVX512)
  if (are_seven_planes(p)) {
    seven_plane_pass<scalar_t>(pass);
    return;
  }
  if (are_unpacked_planes<opmath_type<scalar_t>>(p)) {
    UnpackedPlanePass<scalar_t>(pass).run();
    return;
  }
#endif
  if (are_small_planes<opmath_type<scalar_t>>(p)) {
    small_plane_pass<scalar_t>(pass);
  } else {
    PlanePass<scalar_t>(pass).run();
  }
}

void forward_kernel(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& p) {
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
    const Params& p) {
  if (grad_input.defined()) {
    const TensorBase none;
    AT_DISPATCH_FLOATING_TYPES_AND2(
        kHalf, kBFloat16, input.scalar_type(), "depthwise_conv2d_ext_backward", [&] {
          run_pass<scalar_t>({grad_input, grad_output, weight, none, p, Direction::kGradInput});
        });
  }
  if (grad_weight.defined() || grad_bias.defined()) {
    depthwise_conv2d_ext_grad_weight(grad_weight, grad_bias, grad_output, input, p);
  }
}

} // namespace

// The ALSO form registers for the capability being compiled, whichever it is; plain
// REGISTER_DISPATCH would leave the AVX-512 build of these kernels out.
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_stub, &forward_kernel)
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_backward_stub, &backward_kernel)

} // namespace at::native
