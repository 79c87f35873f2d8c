// A backport: left out of the releases that have the operator (its entry's range).
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_matrix_sqrth_native.h>
#endif

namespace at::native {

Tensor linalg_matrix_sqrth(const Tensor& self) {
  const auto [values, vectors] = at::linalg_eigh(self);
  return (vectors * values.sqrt().unsqueeze(-2)).matmul(vectors.mH());
}

} // namespace at::native
