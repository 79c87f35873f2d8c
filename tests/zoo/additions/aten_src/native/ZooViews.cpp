// View operators, what undoes them under functionalization, and the backward of one.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/FunctionalInverses.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/slice_scatter.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zoo_columns_native.h>
#include <ATen/ops/zoo_halves_native.h>
#include <ATen/ops/zoo_skip_backward_native.h>
#include <ATen/ops/zoo_skip_native.h>
#endif

namespace at::native {
namespace {

// Where the first half ends; of an odd number, it has one more than the second.
c10::SymInt middle(const Tensor& self, int64_t dim) {
  return (self.sym_size(dim) + 1) / 2;
}

} // namespace

Tensor zoo_skip(const Tensor& self, int64_t step) {
  TORCH_CHECK(self.dim() > 0, "zoo_skip: self must have at least one dimension");
  TORCH_CHECK(step > 0, "zoo_skip: step must be positive, got ", step);
  return self.slice_symint(-1, std::nullopt, std::nullopt, step);
}

Tensor& zoo_skip_(Tensor& self, int64_t step) {
  const auto view = at::native::zoo_skip(self, step);
  self.as_strided__symint(view.sym_sizes(), view.sym_strides(), view.sym_storage_offset());
  return self;
}

Tensor zoo_skip_backward_symint(
    const Tensor& grad_output,
    c10::SymIntArrayRef input_sizes,
    int64_t step) {
  auto grad_input = at::zeros_symint(input_sizes, grad_output.options());
  grad_input.slice_symint(-1, std::nullopt, std::nullopt, step).copy_(grad_output);
  return grad_input;
}

std::vector<Tensor> zoo_halves(const Tensor& self, int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "zoo_halves: self must have at least one dimension");
  const auto half = middle(self, dim);
  return {self.slice_symint(dim, 0, half), self.slice_symint(dim, half)};
}

Tensor zoo_columns(const Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "zoo_columns: self must have two dimensions, got ", self.dim());
  return self.transpose(-2, -1);
}

} // namespace at::native

namespace at::functionalization {
namespace {

// The base, seen through a view that shares its storage.
Tensor base_of(const Tensor& base, const Tensor& mutated_view) {
  return mutated_view.as_strided_symint(
      base.sym_sizes(), base.sym_strides(), base.sym_storage_offset());
}

} // namespace

Tensor FunctionalInverses::zoo_skip_inverse(
    const Tensor& base,
    const Tensor& mutated_view,
    InverseReturnMode inverse_return_mode,
    int64_t step) {
  if (inverse_return_mode == InverseReturnMode::AlwaysView) {
    return base_of(base, mutated_view);
  }
  return at::slice_scatter_symint(base, mutated_view, -1, std::nullopt, std::nullopt, step);
}

Tensor FunctionalInverses::zoo_halves_inverse(
    const Tensor& base,
    const Tensor& mutated_view,
    InverseReturnMode inverse_return_mode,
    int64_t out_index,
    int64_t dim) {
  if (inverse_return_mode == InverseReturnMode::AlwaysView) {
    return base_of(base, mutated_view);
  }
  const auto half = (base.sym_size(dim) + 1) / 2;
  return out_index == 0 ? at::slice_scatter_symint(base, mutated_view, dim, 0, half)
                        : at::slice_scatter_symint(base, mutated_view, dim, half, std::nullopt);
}

} // namespace at::functionalization
