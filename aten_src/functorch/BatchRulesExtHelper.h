// What the batch rules of the additions have in common.
//
// A physical tensor has one dimension more than the logical one that vmap's function sees, where it
// is batched; `dim` says which. Sizes are symbolic under torch.compile: nothing here fixes one.
//
// Upstream's BatchRulesHelper.h has most of this too, and with it every operator that there is: a file
// that includes it takes four times as long to compile. So the step from a dispatched call to a
// rule, which upstream generates for each operator, is a template here.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/DimVector.h>
#include <torch/library.h>

#include <initializer_list>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace at::functorch {

using BatchDim = std::optional<int64_t>;
// A batch dimension of no value goes with an undefined tensor, or one that all of the batch share.
using BatchedResult = std::tuple<Tensor, BatchDim>;

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

inline int64_t logical_rank(const Tensor& tensor, BatchDim dim) {
  return tensor.dim() - (dim.has_value() ? 1 : 0);
}

inline Tensor batch_dim_first(const Tensor& tensor, BatchDim dim) {
  return dim.value_or(0) == 0 ? tensor : tensor.movedim(*dim, 0);
}

// The batch dimension first; without one, the tensor seen `batch` times, without a copy.
inline Tensor with_batch(const Tensor& tensor, BatchDim dim, const c10::SymInt& batch) {
  if (dim.has_value()) {
    return batch_dim_first(tensor, dim);
  }
  SymDimVector sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
  sizes.insert(sizes.begin(), batch);
  return tensor.expand_symint(sizes);
}

// The sizes that vmap's function sees.
inline SymDimVector logical_sizes(const Tensor& tensor, BatchDim dim) {
  SymDimVector sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
  if (dim.has_value()) {
    sizes.erase(sizes.begin() + *dim);
  }
  return sizes;
}

// What the operator would check, had it the logical sizes: a batch hides a dimension that is missing.
inline void check_logical(
    bool fits,
    const char* op,
    const char* name,
    const char* expected,
    const Tensor& tensor,
    BatchDim dim) {
  const auto sizes = logical_sizes(tensor, dim);
  TORCH_CHECK(
      fits,
      op,
      "(): expected ",
      name,
      " to ",
      expected,
      ", but got ",
      name,
      " of size ",
      c10::SymIntArrayRef(sizes));
}

// A tensor of the logical size for an operator that will not read its values.
inline Tensor logical_stand_in(const Tensor& tensor, BatchDim dim) {
  return dim.has_value() ? tensor.new_empty_symint(logical_sizes(tensor, dim)) : tensor;
}

namespace plumbing {

template <typename T>
bool is_batched(const T& argument, int64_t level) {
  if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, std::optional<Tensor>>) {
    return isBatchedAtLevel(argument, level);
  } else {
    return false;
  }
}

// An argument as a rule takes it: a tensor with its batch dimension, anything else as it is.
template <typename T>
auto unwrapped(const T& argument, int64_t level) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return unwrapTensorAtLevel(argument, level);
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    if (!argument.has_value()) {
      return std::tuple<T, BatchDim>();
    }
    auto [tensor, dim] = unwrapTensorAtLevel(*argument, level);
    return std::tuple<T, BatchDim>(std::move(tensor), dim);
  } else {
    return std::tuple<T>(argument);
  }
}

// A rule's result, tensor and dimension in turn, as the operator's.
template <size_t... k, typename... Results>
auto wrapped(std::tuple<Results...> results, int64_t level, std::index_sequence<k...> /*places*/) {
  return std::make_tuple(
      makeBatched(std::get<2 * k>(results), std::get<2 * k + 1>(results), level)...);
}

template <typename Op, auto rule, typename Schema = typename Op::schema>
struct Kernel;

template <typename Op, auto rule, typename Return, typename... Arguments>
struct Kernel<Op, rule, Return(Arguments...)> {
  static Return call(Arguments... arguments) {
    const c10::impl::ExcludeDispatchKeyGuard guard(DispatchKey::FuncTorchBatched);
    const auto layer = maybeCurrentDynamicLayer();
    vmap_check_escaped(layer, Op::name);
    const auto level = layer->layerId();
    if (!(is_batched(arguments, level) || ...)) {
      return Op::call(arguments...);
    }
    auto operands = std::tuple_cat(unwrapped(arguments, level)...);
    if constexpr (std::is_same_v<Return, Tensor&>) { // in place: the rule has written to self
      std::apply(rule, operands);
      return std::get<0>(std::tie(arguments...));
    } else {
      auto results = std::apply(rule, operands);
      constexpr auto count = std::tuple_size_v<decltype(results)> / 2;
      auto tensors = wrapped(std::move(results), level, std::make_index_sequence<count>());
      if constexpr (std::is_same_v<Return, Tensor>) {
        return std::get<0>(std::move(tensors));
      } else {
        return tensors;
      }
    }
  }
};

} // namespace plumbing

// The kernel of FuncTorchBatched for at::_ops::Op. `rule` takes the operator's arguments, each
// tensor followed by its batch dimension, and returns a tuple of tensors and batch dimensions;
// nothing, where the operator works in place.
template <typename Op, auto rule>
constexpr auto batched_kernel() {
  return TORCH_FN((plumbing::Kernel<Op, rule>::call));
}

} // namespace at::functorch
