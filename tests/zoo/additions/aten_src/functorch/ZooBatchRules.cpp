// Batch rules as upstream writes them, with what BatchRulesHelper.h declares. libtorch keeps most of
// it to itself.
#include <ATen/functorch/BatchRulesHelper.h>

#include <tuple>
#include <utility>

namespace at::functorch {

namespace {

using Result = std::tuple<Tensor, std::optional<int64_t>>;

Result zoo_blend_batch_rule(
    const Tensor& self,
    std::optional<int64_t> self_bdim,
    const Tensor& other,
    std::optional<int64_t> other_bdim,
    const Scalar& alpha) {
  const auto [left, right] = _binary_pointwise_helper(self, self_bdim, other, other_bdim);
  return {at::zoo_blend(left, right, alpha), 0};
}

void zoo_blend_in_place_batch_rule(
    Tensor& self,
    std::optional<int64_t> self_bdim,
    const Tensor& other,
    std::optional<int64_t> other_bdim,
    const Scalar& alpha) {
  if (!self_bdim.has_value()) {
    vmapIncompatibleInplaceError("zoo_blend_");
  }
  auto [left, right] =
      _binary_pointwise_helper(self, self_bdim, other, other_bdim, /*do_type_promotion=*/false);
  left.zoo_blend_(right, alpha);
}

Result zoo_window_sum_batch_rule(
    const Tensor& self,
    std::optional<int64_t> self_bdim,
    int64_t size,
    int64_t dim) {
  const auto front = moveBatchDimToFront(self, self_bdim);
  return {
      at::zoo_window_sum(front, size, getPhysicalDim(front, self_bdim.has_value(), dim)),
      valIfNonempty(self_bdim, 0)};
}

std::tuple<Tensor, std::optional<int64_t>, Tensor, std::optional<int64_t>> zoo_moments_batch_rule(
    const Tensor& self,
    std::optional<int64_t> self_bdim,
    int64_t dim,
    bool keepdim) {
  const auto front = moveBatchDimToFront(self, self_bdim);
  const auto dims = getPhysicalDims(front, self_bdim.has_value(), {dim});
  auto [mean, second] = at::zoo_moments(front, dims[0], keepdim);
  return {std::move(mean), 0, std::move(second), 0};
}

Result zoo_total_batch_rule(
    const Tensor& self,
    std::optional<int64_t> self_bdim,
    std::optional<ScalarType> dtype) {
  const auto rows = moveBatchDimToFront(self, self_bdim)
                        .reshape({self.size(*self_bdim), numelWithoutBatchDim(self, self_bdim)});
  return {rows.sum(1, /*keepdim=*/false, dtype), 0};
}

Result zoo_dither_batch_rule(
    const Tensor& self,
    std::optional<int64_t> self_bdim,
    double amount,
    std::optional<Generator> generator) {
  check_randomness(maybeCurrentDynamicLayer()->randomness(), self_bdim.has_value());
  return {at::zoo_dither(moveBatchDimToFront(self, self_bdim), amount, std::move(generator)), 0};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  VARIADIC_BDIMS(zoo_softclip);
  POINTWISE_BOXED(zoo_softclip_);
  POINTWISE_BOXED(zoo_muladd);
  VMAP_SUPPORT(zoo_blend, zoo_blend_batch_rule);
  VMAP_SUPPORT(zoo_blend_, zoo_blend_in_place_batch_rule);
  VMAP_SUPPORT(zoo_window_sum, zoo_window_sum_batch_rule);
  VMAP_SUPPORT(zoo_moments, zoo_moments_batch_rule);
  VMAP_SUPPORT(zoo_total, zoo_total_batch_rule);
  VMAP_SUPPORT(zoo_dither, zoo_dither_batch_rule);
}

} // namespace at::functorch
