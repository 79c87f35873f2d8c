// Non-maximum suppression, as an operator whose result's size depends on the data.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/box_keep_native.h>
#include <ATen/ops/empty.h>
#endif

#include <algorithm>
#include <vector>

namespace at::native {
namespace {

template <typename scalar_t>
struct Box {
  scalar_t left, top, right, bottom;

  scalar_t area() const {
    return std::max(right - left, scalar_t(0)) * std::max(bottom - top, scalar_t(0));
  }

  Box overlap(const Box& other) const {
    return {
        std::max(left, other.left),
        std::max(top, other.top),
        std::min(right, other.right),
        std::min(bottom, other.bottom)};
  }
};

// Indices of the boxes, best first, that no better one covers by more than the threshold.
template <typename scalar_t>
std::vector<int64_t> keep(const Tensor& boxes, const Tensor& order, double threshold) {
  const auto corners = boxes.accessor<const scalar_t, 2>();
  const auto box = [&](int64_t i) {
    return Box<scalar_t>{corners[i][0], corners[i][1], corners[i][2], corners[i][3]};
  };
  std::vector<int64_t> kept;
  for (int64_t n = 0; n < order.numel(); ++n) {
    const auto candidate = order.const_data_ptr<int64_t>()[n];
    const auto covered = [&](int64_t better) {
      const auto shared = box(better).overlap(box(candidate)).area();
      return shared > threshold * (box(better).area() + box(candidate).area() - shared);
    };
    if (std::none_of(kept.begin(), kept.end(), covered)) {
      kept.push_back(candidate);
    }
  }
  return kept;
}

} // namespace

Tensor box_keep_cpu(const Tensor& boxes, const Tensor& scores, double threshold) {
  TORCH_CHECK(
      boxes.dim() == 2 && boxes.size(1) == 4 && scores.dim() == 1 &&
          scores.size(0) == boxes.size(0),
      "box_keep: boxes must be N x 4 and scores N, got ",
      boxes.sizes(),
      " and ",
      scores.sizes());
  const auto order = scores.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true).contiguous();
  std::vector<int64_t> kept;
  AT_DISPATCH_FLOATING_TYPES(
      boxes.scalar_type(), "box_keep_cpu", [&] { kept = keep<scalar_t>(boxes, order, threshold); });
  auto result = at::empty({static_cast<int64_t>(kept.size())}, order.options());
  std::copy(kept.begin(), kept.end(), result.mutable_data_ptr<int64_t>());
  return result;
}

} // namespace at::native
