// What the host code of depthwise_conv2d_ext and its CPU and CUDA kernels share.
#pragma once

#include <ATen/native/DispatchStub.h>
#include <c10/macros/Macros.h>
#include <cstdint>

namespace at {
class TensorBase;
} // namespace at

namespace at::native {

// One call's geometry, checked. Lengths are in elements; every one of the two-dimensional
// quantities is below 2^31, so that coordinates along one dimension fit into 32 bits and their
// arithmetic cannot overflow 64. Offsets into a tensor need 64 bits.
struct DepthwiseConv2dExtParams {
  int64_t batch;
  int64_t channels; // of the input
  int64_t multiplier; // output channels of each input channel
  int64_t input_height;
  int64_t input_width;
  int64_t output_height;
  int64_t output_width;
  int64_t kernel_height;
  int64_t kernel_width;
  int64_t stride_height;
  int64_t stride_width;
  int64_t padding_height;
  int64_t padding_width;
  int64_t dilation_height;
  int64_t dilation_width;
  // The memory order of the tensors given to a kernel: [N, H, W, C] when true, else [N, C, H, W].
  bool channels_last;

  C10_HOST_DEVICE int64_t output_channels() const {
    return channels * multiplier;
  }
  C10_HOST_DEVICE int64_t kernel_size() const {
    return kernel_height * kernel_width;
  }
};

// Kernels get dense 4-d tensors in the memory order that `channels_last` says, the weight as
// [C·m][kH][kW] and the bias as [C·m], all of one floating dtype. An undefined tensor stands for
// "no bias" or "this gradient is not wanted". Results are allocated and not initialised; a kernel
// writes every element of them. Sizes may be zero.
using depthwise_conv2d_ext_fn = void (*)(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const DepthwiseConv2dExtParams& params);
// All gradients in one entry, so that a kernel may compute them in one pass over the tensors.
using depthwise_conv2d_ext_backward_fn = void (*)(
    const TensorBase& grad_input,
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const TensorBase& weight,
    const DepthwiseConv2dExtParams& params);

DECLARE_DISPATCH(depthwise_conv2d_ext_fn, depthwise_conv2d_ext_stub)
DECLARE_DISPATCH(depthwise_conv2d_ext_backward_fn, depthwise_conv2d_ext_backward_stub)

} // namespace at::native
