// Helpers of the derivative formulas of lltm_cell (derivatives_additions.yaml).
#pragma once

#include <ATen/core/Tensor.h>
#include <array>
#include <tuple>

namespace torch::autograd::generated::details {

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
