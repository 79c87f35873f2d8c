// Helpers of the derivative formulas of depthwise_conv2d_ext (derivatives_additions.yaml).
#pragma once

#include <ATen/core/Tensor.h>
#include <array>
#include <tuple>

namespace torch::autograd::generated::details {

// Tangent of depthwise_conv2d_ext: the operator is bilinear in (input, weight) and linear in bias.
// bias_t is undefined when there is no bias. [N, C·m, OH, OW], or unbatched as the input is.
at::Tensor depthwise_conv2d_ext_jvp(
    const at::Tensor& input_p,
    const at::Tensor& input_t,
    const at::Tensor& weight_p,
    const at::Tensor& weight_t,
    const at::Tensor& bias_t,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation);

// Gradients of depthwise_conv2d_ext_backward with respect to (grad_output, input, weight), those
// that output_mask asks for. grad_grad_input, grad_grad_weight and grad_grad_bias are the gradients
// that arrive for its three results; an undefined one stands for zero.
std::tuple<at::Tensor, at::Tensor, at::Tensor> depthwise_conv2d_ext_double_backward(
    const at::Tensor& grad_grad_input,
    const at::Tensor& grad_grad_weight,
    const at::Tensor& grad_grad_bias,
    const at::Tensor& grad_output,
    const at::Tensor& input,
    const at::Tensor& weight,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    std::array<bool, 3> output_mask);

} // namespace torch::autograd::generated::details
