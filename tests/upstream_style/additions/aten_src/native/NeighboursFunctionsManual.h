#pragma once

#include <ATen/core/Tensor.h>

namespace torch::autograd::generated::details {

at::Tensor extent_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    at::IntArrayRef dim,
    bool keepdim);

/// Undefined where no tensor of the list has a tangent.
at::Tensor cat_scaled_jvp(at::TensorList tensors, int64_t dim, const at::Scalar& alpha);

/// What a Euclidean norm is multiplied with to be a root mean square.
at::Scalar rms_scale(const at::Tensor& self, at::OptionalIntArrayRef dim);

at::Tensor rms_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& result,
    at::OptionalIntArrayRef dim,
    bool keepdim);

} // namespace torch::autograd::generated::details
