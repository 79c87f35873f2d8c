// Helpers of the derivative formulas (derivatives_additions.yaml), as upstream's FunctionsManual.h has them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <array>
#include <tuple>

namespace torch::autograd::generated::details {

// Gradient of an operand that enters the result times `factor`: grad * conj(factor), its real part
// when the operand's dtype is real and the result was complex. The shape is grad's; the autograd
// engine sums over broadcast dimensions.
at::Tensor axpy_ext_backward(
    const at::Tensor& grad,
    const at::Scalar& factor,
    at::ScalarType operand_dtype);

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

// Tangents of lltm_cell's results (new_h, new_cell, gates). _p are the primals and _t the tangents
// of the arguments; new_cell and gates are the results themselves.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lltm_cell_jvp(
    const at::Tensor& input_p,
    const at::Tensor& input_t,
    const at::Tensor& weight_p,
    const at::Tensor& weight_t,
    const at::Tensor& bias_t,
    const at::Tensor& old_h_p,
    const at::Tensor& old_h_t,
    const at::Tensor& old_cell_t,
    const at::Tensor& new_cell,
    const at::Tensor& gates);

// Gradients of lltm_cell_backward with respect to its eight tensor arguments, in their order, those
// that output_mask asks for. The first five arguments are the gradients that arrive for its five
// results. Any of these, and of the three grads of the cell's results, may be undefined: zero.
std::tuple<
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor>
lltm_cell_double_backward(
    const at::Tensor& grad_grad_input,
    const at::Tensor& grad_grad_weight,
    const at::Tensor& grad_grad_bias,
    const at::Tensor& grad_grad_old_h,
    const at::Tensor& grad_grad_old_cell,
    const at::Tensor& grad_new_h,
    const at::Tensor& grad_new_cell,
    const at::Tensor& grad_gates,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& old_h,
    const at::Tensor& new_cell,
    const at::Tensor& gates,
    std::array<bool, 8> output_mask);

// Tangents of lltm_cell_backward's results, those that output_mask asks for. The grads of the
// cell's results may be undefined, primal and tangent both.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> lltm_cell_backward_jvp(
    const at::Tensor& grad_new_h_p,
    const at::Tensor& grad_new_h_t,
    const at::Tensor& grad_new_cell_p,
    const at::Tensor& grad_new_cell_t,
    const at::Tensor& grad_gates_p,
    const at::Tensor& grad_gates_t,
    const at::Tensor& input_p,
    const at::Tensor& input_t,
    const at::Tensor& weight_p,
    const at::Tensor& weight_t,
    const at::Tensor& old_h_p,
    const at::Tensor& old_h_t,
    const at::Tensor& new_cell_p,
    const at::Tensor& new_cell_t,
    const at::Tensor& gates_p,
    const at::Tensor& gates_t,
    std::array<bool, 5> output_mask);

} // namespace torch::autograd::generated::details
