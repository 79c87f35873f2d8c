#pragma once

// Helpers of the derivative formulas, as upstream's FunctionsManual.h is for its own.

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace torch::autograd::generated::details {

/// grad as a gradient of a tensor of the given type: its real part where that tensor is real.
at::Tensor zoo_match_type(const at::Tensor& grad, at::ScalarType type);

/// i * self
at::Tensor zoo_times_i(const at::Tensor& self);

/// Gradient of alpha * self * other for self, which has the given type.
at::Tensor zoo_blend_backward(
    const at::Tensor& grad,
    const at::Tensor& other,
    const at::Scalar& alpha,
    at::ScalarType type);

at::Tensor zoo_scale_shift_jvp(
    const at::Tensor& self_p,
    const at::Tensor& self_t,
    const at::Tensor& scale_p,
    const at::Tensor& scale_t,
    const at::Tensor& shift_t);

at::Tensor zoo_halves_backward(
    at::TensorList grads,
    c10::SymIntArrayRef sizes,
    int64_t dim,
    const at::TensorOptions& options);

std::vector<at::Tensor> zoo_stack_mean_backward(
    const at::Tensor& grad,
    at::ArrayRef<at::ScalarType> types);
at::Tensor zoo_stack_mean_jvp(at::TensorList tensors);

at::Tensor zoo_powers_backward(at::TensorList grads, const at::Tensor& self);
std::vector<at::Tensor> zoo_powers_jvp(
    const at::Tensor& self_p,
    const at::Tensor& self_t,
    int64_t count);

/// grad_sum + sign * grad_diff, either of them possibly undefined.
at::Tensor zoo_sum_diff_backward(
    const at::Tensor& grad_sum,
    const at::Tensor& grad_diff,
    int64_t sign);

at::Tensor zoo_moments_backward(
    const at::Tensor& grad_mean,
    const at::Tensor& grad_second,
    const at::Tensor& self,
    int64_t dim,
    bool keepdim);

std::tuple<at::Tensor, at::Tensor, at::Tensor> zoo_gram_double_backward(
    const at::Tensor& ggrad_self,
    const at::Tensor& ggrad_other,
    const at::Tensor& grad_output,
    const at::Tensor& self,
    const at::Tensor& other,
    std::array<bool, 3> mask);

at::Tensor zoo_pool_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& result,
    c10::string_view mode);
at::Tensor zoo_pool_jvp(
    const at::Tensor& self_p,
    const at::Tensor& self_t,
    const at::Tensor& result,
    c10::string_view mode);

} // namespace torch::autograd::generated::details
