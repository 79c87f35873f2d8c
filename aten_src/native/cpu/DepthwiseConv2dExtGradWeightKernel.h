// What the two files of CPU kernels of depthwise_conv2d_ext share, once for each CPU capability.
#pragma once

#include <ATen/native/DepthwiseConv2dExt.h>

namespace at::native {
inline namespace CPU_CAPABILITY {

// grad_weight or grad_bias may be undefined.
void depthwise_conv2d_ext_grad_weight(
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const DepthwiseConv2dExtParams& p);

} // namespace CPU_CAPABILITY
} // namespace at::native
