// Helper of the derivative formulas of axpy_ext (derivatives_additions.yaml).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace torch::autograd::generated::details {

// Gradient of an operand that enters the result times `factor`: grad * conj(factor), its real part
// when the operand's dtype is real and the result was complex. The shape is grad's; the autograd
// engine sums over broadcast dimensions.
at::Tensor axpy_ext_backward(
    const at::Tensor& grad,
    const at::Scalar& factor,
    at::ScalarType operand_dtype);

} // namespace torch::autograd::generated::details
