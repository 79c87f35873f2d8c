// What depthwise_conv2d_ext's kernels know of a call. Without ATen's headers, which nvcc would parse for each of them.
#pragma once

#include <c10/macros/Macros.h>
#include <cstdint>

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

} // namespace at::native
