// What the host code of depthwise_conv2d_ext and its CPU and CUDA kernels share.
#pragma once

#include <ATen/native/DepthwiseConv2dExtParams.h>
#include <ATen/native/DispatchStub.h>

namespace at {
class TensorBase;
} // namespace at

namespace at::native {

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
