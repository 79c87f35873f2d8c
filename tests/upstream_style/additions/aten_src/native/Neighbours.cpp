// Reductions, views and lists, with the private headers that upstream's own files of these include.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/ReduceOpsUtils.h>

#include <ATen/FunctionalInverses.h>
#include <ATen/TensorMeta.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/add.h>
#include <ATen/ops/adjacent_sum_native.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cat_scaled_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/every_other_native.h>
#include <ATen/ops/extent_native.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/rms_native.h>
#include <ATen/ops/runner_up_native.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/slice_scatter.h>
#endif

#include <cmath>

namespace at::meta {

TORCH_PRECOMPUTE_META_FUNC(adjacent_sum)(const Tensor& self, int64_t dim) {
  const auto wrapped = maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(
      self.dim() > 0 && self.size(wrapped) > 0,
      "adjacent_sum: dimension ",
      dim,
      " must have elements, got a tensor of sizes ",
      self.sizes());
  auto sizes = self.sizes().vec();
  sizes[wrapped] -= 1;
  set_output_raw_strided(0, sizes, {}, self.options());
  return TORCH_PRECOMPUTE_STRUCT(adjacent_sum)().set_dim(wrapped);
}

} // namespace at::meta

namespace at::native {

TORCH_IMPL_FUNC(adjacent_sum_out)(const Tensor& self, int64_t dim, const Tensor& out) {
  const auto length = self.size(dim) - 1;
  at::add_out(const_cast<Tensor&>(out), self.narrow(dim, 0, length), self.narrow(dim, 1, length));
}

Tensor extent(const Tensor& self, IntArrayRef dim, bool keepdim) {
  return at::amax(self, dim, keepdim) - at::amin(self, dim, keepdim);
}

Tensor rms(const Tensor& self, OptionalIntArrayRef dim, bool keepdim) {
  const auto norm = at::linalg_vector_norm(self, 2, dim, keepdim);
  return norm * std::sqrt(static_cast<double>(norm.numel()) / static_cast<double>(self.numel()));
}

namespace {

// Sizes of the results of runner_up, for a dimension that has been wrapped.
DimVector runner_up_sizes(const Tensor& self, int64_t dim, bool keepdim) {
  zero_numel_check_dims(self, dim, "runner_up()");
  TORCH_CHECK(
      ensure_nonempty_size(self, dim) > 1,
      "runner_up: dimension ",
      dim,
      " must have two elements or more, got a tensor of sizes ",
      self.sizes());
  DimVector sizes(self.sizes());
  if (keepdim) {
    sizes[dim] = 1;
  } else {
    sizes.erase(sizes.begin() + dim);
  }
  return sizes;
}

} // namespace

std::tuple<Tensor, Tensor> runner_up_cpu(const Tensor& self, int64_t dim, bool keepdim) {
  const auto wrapped = maybe_wrap_dim(dim, self.dim());
  runner_up_sizes(self, wrapped, keepdim);
  return self.kthvalue(self.size(wrapped) - 1, wrapped, keepdim);
}

std::tuple<Tensor, Tensor> runner_up_meta(const Tensor& self, int64_t dim, bool keepdim) {
  const auto sizes = runner_up_sizes(self, maybe_wrap_dim(dim, self.dim()), keepdim);
  return {at::empty(sizes, self.options()), at::empty(sizes, self.options().dtype(kLong))};
}

Tensor every_other(const Tensor& self, int64_t dim) {
  return self.slice(dim, 0, std::nullopt, 2);
}

Tensor cat_scaled(TensorList tensors, int64_t dim, const Scalar& alpha) {
  return at::cat(tensors, dim).mul(alpha);
}

} // namespace at::native

namespace at::functionalization {

Tensor FunctionalInverses::every_other_inverse(
    const Tensor& base,
    const Tensor& mutated_view,
    InverseReturnMode inverse_return_mode,
    int64_t dim) {
  TORCH_CHECK(
      inverse_return_mode != InverseReturnMode::AlwaysView,
      "every_other: a view of a view cannot be undone as a view");
  return at::slice_scatter_symint(base, mutated_view, dim, 0, std::nullopt, 2);
}

} // namespace at::functionalization
