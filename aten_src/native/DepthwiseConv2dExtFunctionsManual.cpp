#include <ATen/TensorOperators.h>
#include <ATen/native/DepthwiseConv2dExtFunctionsManual.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/depthwise_conv2d_ext.h>
#include <ATen/ops/depthwise_conv2d_ext_backward.h>
#endif

namespace torch::autograd::generated::details {

namespace {

using at::Tensor;

std::optional<Tensor> optional_tensor(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

} // namespace

Tensor depthwise_conv2d_ext_jvp(
    const Tensor& input_p,
    const Tensor& input_t,
    const Tensor& weight_p,
    const Tensor& weight_t,
    const Tensor& bias_t,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation) {
  const auto of_input = at::depthwise_conv2d_ext_symint(
      input_t, weight_p, optional_tensor(bias_t), stride, padding, dilation);
  const auto of_weight =
      at::depthwise_conv2d_ext_symint(input_p, weight_t, std::nullopt, stride, padding, dilation);
  return of_input + of_weight;
}

// With y = conv(x, w) + b, the backward computes
//   grad_x = convᵀ(grad_y, w), grad_w = corr(grad_y, x), grad_b = Σ grad_y,
// each bilinear, so that pairing the results with (gg_x, gg_w, gg_b) and transposing gives
//   for grad_y: conv(gg_x, w) + conv(x, gg_w) + gg_b
//   for x:      convᵀ(grad_y, gg_w)
//   for w:      corr(grad_y, gg_x)
std::tuple<Tensor, Tensor, Tensor> depthwise_conv2d_ext_double_backward(
    const Tensor& grad_grad_input,
    const Tensor& grad_grad_weight,
    const Tensor& grad_grad_bias,
    const Tensor& grad_output,
    const Tensor& input,
    const Tensor& weight,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    std::array<bool, 3> output_mask) {
  Tensor of_grad_output;
  Tensor of_input;
  Tensor of_weight;

  if (output_mask[0]) {
    // gg_b is the bias of whichever convolution runs first, and stands alone when none does.
    auto bias = optional_tensor(grad_grad_bias);
    if (grad_grad_input.defined()) {
      of_grad_output =
          at::depthwise_conv2d_ext_symint(grad_grad_input, weight, bias, stride, padding, dilation);
      bias = std::nullopt;
    }
    if (grad_grad_weight.defined()) {
      const auto term =
          at::depthwise_conv2d_ext_symint(input, grad_grad_weight, bias, stride, padding, dilation);
      bias = std::nullopt;
      of_grad_output = of_grad_output.defined() ? of_grad_output + term : term;
    }
    if (bias.has_value()) {
      of_grad_output = bias->view({-1, 1, 1}).expand_symint(grad_output.sym_sizes());
    }
  }
  if (output_mask[1] && grad_grad_weight.defined()) {
    of_input = std::get<0>(at::depthwise_conv2d_ext_backward_symint(
        grad_output, input, grad_grad_weight, stride, padding, dilation, {true, false, false}));
  }
  if (output_mask[2] && grad_grad_input.defined()) {
    of_weight = std::get<1>(at::depthwise_conv2d_ext_backward_symint(
        grad_output, grad_grad_input, weight, stride, padding, dilation, {false, true, false}));
  }
  return {of_grad_output, of_input, of_weight};
}

} // namespace torch::autograd::generated::details
