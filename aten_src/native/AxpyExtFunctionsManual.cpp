#include <ATen/TensorOperators.h>
#include <ATen/native/AxpyExtFunctionsManual.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/real.h>
#endif

namespace torch::autograd::generated::details {

at::Tensor axpy_ext_backward(
    const at::Tensor& grad,
    const at::Scalar& factor,
    at::ScalarType operand_dtype) {
  const bool is_one = !factor.isComplex() && factor.equal(1);
  const auto scaled = is_one ? grad : grad * factor.conj();
  return scaled.is_complex() && !at::isComplexType(operand_dtype) ? at::real(scaled) : scaled;
}

} // namespace torch::autograd::generated::details
