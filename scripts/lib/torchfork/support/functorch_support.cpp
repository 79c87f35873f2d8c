// Stands in for what batch rules call and libtorch_cpu.so keeps to itself.
//
// ATen/functorch/{PlumbingHelper,BatchRulesHelper}.h declare these functions, the code generator's
// plumbing calls one of them for every rule, and no library exports them. They are small, and their
// contracts are their declarations; these are definitions of our own, hidden in the grafted
// library. BatchRulesHelper.h itself is not included: the signature of moveBatchDimToFront varies
// by release, and both are defined here.

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/LegacyVmapTransforms.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace at::functorch {

namespace {

using BatchDim = std::optional<int64_t>;

Tensor batch_first(const Tensor& tensor, BatchDim batch_dim) {
  return batch_dim.value_or(0) == 0 ? tensor : tensor.movedim(*batch_dim, 0);
}

} // namespace

// Where a tensor of a vmap that has ended meets an operator, there is no layer any more.
void vmap_check_escaped(const std::optional<DynamicLayer>& layer, const char* what) {
  TORCH_CHECK(
      layer.has_value(),
      what,
      ": a tensor of torch.vmap is used outside of the function that was given to vmap: it may "
      "have "
      "escaped, say into a global or a list, instead of being returned");
}

Tensor moveBatchDimToFront(Tensor tensor, BatchDim batch_dim) {
  return batch_first(tensor, batch_dim);
}

Tensor moveBatchDimToFront(const Tensor& tensor, BatchDim batch_dim) {
  return batch_first(tensor, batch_dim);
}

int64_t rankWithoutBatchDim(const Tensor& tensor, BatchDim batch_dim) {
  return tensor.dim() - (batch_dim.has_value() ? 1 : 0);
}

int64_t numelWithoutBatchDim(const Tensor& tensor, BatchDim batch_dim) {
  int64_t numel = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    numel *= batch_dim == d ? 1 : tensor.size(d);
  }
  return numel;
}

BatchDim valIfNonempty(BatchDim maybe_empty, int64_t new_val) {
  return maybe_empty.has_value() ? BatchDim(new_val) : std::nullopt;
}

// The batch dimension, if any, is the first one.
int64_t getPhysicalDim(const Tensor& tensor, bool has_batch_dim, int64_t logical_dim) {
  const int64_t before = has_batch_dim ? 1 : 0;
  return maybe_wrap_dim(logical_dim, tensor.dim() - before) + before;
}

VmapDimVector getPhysicalDims(const Tensor& tensor, bool has_batch_dim, IntArrayRef logical_dims) {
  VmapDimVector physical;
  for (const auto dim : logical_dims) {
    physical.push_back(getPhysicalDim(tensor, has_batch_dim, dim));
  }
  return physical;
}

void vmapIncompatibleInplaceError(const char* schema_name) {
  TORCH_CHECK(
      false,
      "vmap: ",
      schema_name,
      "() cannot write in place: an argument is vmapped over and self is not, so that one self "
      "would "
      "have to hold a result for each element of the batch; use the variant that is not in place");
}

// Ones after the batch dimension, so that tensors broadcast as they do without one.
Tensor maybePadToLogicalRank(const Tensor& tensor, BatchDim batch_dim, int64_t logical_rank) {
  const auto rank = rankWithoutBatchDim(tensor, batch_dim);
  if (!batch_dim.has_value() || rank >= logical_rank) {
    return tensor;
  }
  c10::SymDimVector sizes{tensor.sym_size(0)};
  sizes.resize(1 + logical_rank - rank, c10::SymInt(1));
  sizes.append(tensor.sym_sizes().begin() + 1, tensor.sym_sizes().end());
  return tensor.view_symint(sizes);
}

void check_randomness(RandomnessType randomness, bool any_tensor_batched) {
  TORCH_CHECK(
      randomness != RandomnessType::Error,
      "vmap: a random operator is called where randomness is an error; choose randomness='same' or "
      "'different' for torch.vmap, or call the operator outside");
  TORCH_CHECK(
      randomness != RandomnessType::Same || !any_tensor_batched,
      "vmap: randomness='same' has no meaning for a random operator of a tensor that is vmapped "
      "over");
}

void check_randomness(RandomnessType randomness) {
  check_randomness(randomness, false);
}

// Both operands ready to broadcast. A number that is vmapped over has a dimension here, and would
// weigh more in type promotion than a number does: it gets the dtype that it would have led to.
std::tuple<Tensor, Tensor> _binary_pointwise_helper(
    const Tensor& tensor,
    BatchDim tensor_batch_dim,
    const Tensor& other,
    BatchDim other_batch_dim,
    bool do_type_promotion) {
  const auto left_rank = rankWithoutBatchDim(tensor, tensor_batch_dim);
  const auto right_rank = rankWithoutBatchDim(other, other_batch_dim);
  auto left = batch_first(tensor, tensor_batch_dim);
  auto right = batch_first(other, other_batch_dim);

  const bool left_is_number = tensor_batch_dim.has_value() && left_rank == 0;
  const bool right_is_number = other_batch_dim.has_value() && right_rank == 0;
  if (do_type_promotion && left_is_number != right_is_number) {
    native::ResultTypeState state;
    state.zeroResult = (left_is_number ? left : right).scalar_type();
    const auto& rest = left_is_number ? right : left;
    if (rest.dim() == 0 && !rest.unsafeGetTensorImpl()->is_wrapped_number()) {
      state.zeroResult = promoteTypes(state.zeroResult, rest.scalar_type());
    } else {
      state = native::update_result_type_state(rest, state);
    }
    const auto dtype = native::result_type(state);
    left = left.to(dtype);
    right = right.to(dtype);
  }
  const auto rank = std::max(left_rank, right_rank);
  return {
      maybePadToLogicalRank(left, tensor_batch_dim, rank),
      maybePadToLogicalRank(right, other_batch_dim, rank)};
}

} // namespace at::functorch
