// What the batch rules of the additions have in common, beside upstream's BatchRulesHelper.h.
//
// A physical tensor has one dimension more than the logical one that vmap's function sees, where it
// is batched; `dim` says which. Sizes are symbolic under torch.compile: nothing here fixes one.
#pragma once

#include <ATen/functorch/BatchRulesHelper.h>

#include <initializer_list>
#include <optional>
#include <utility>

namespace at::functorch {

using BatchDim = std::optional<int64_t>;

// The size of the batch, of the first tensor that has one.
inline c10::SymInt batch_size_of(
    std::initializer_list<std::pair<const Tensor*, BatchDim>> tensors) {
  for (const auto& [tensor, dim] : tensors) {
    if (dim.has_value()) {
      return tensor->sym_size(*dim);
    }
  }
  TORCH_INTERNAL_ASSERT(false, "a batch rule without a batched tensor");
}

// Known to be zero. A symbolic size is taken not to be.
inline bool is_zero(const c10::SymInt& size) {
  return size.maybe_as_int() == 0;
}

// The batch dimension first; without one, the tensor seen `batch` times, without a copy.
inline Tensor with_batch(const Tensor& tensor, BatchDim dim, const c10::SymInt& batch) {
  return ensure_has_bdim(moveBatchDimToFront(tensor, dim), dim.has_value(), batch);
}

// The sizes that vmap's function sees.
inline SymDimVector logical_sizes(const Tensor& tensor, BatchDim dim) {
  SymDimVector sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
  if (dim.has_value()) {
    sizes.erase(sizes.begin() + *dim);
  }
  return sizes;
}

// A tensor of the logical size for an operator that will not read its values.
inline Tensor logical_stand_in(const Tensor& tensor, BatchDim dim) {
  return dim.has_value() ? tensor.new_empty_symint(logical_sizes(tensor, dim)) : tensor;
}

} // namespace at::functorch
