#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/SymbolicElementwise.h>

#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <algorithm>
#include <utility>
#include <vector>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty_strided.h>
#endif

namespace at::native {

namespace {

using Sizes = std::vector<SymInt>;

Sizes broadcast_sizes(std::initializer_list<Tensor> operands) {
  Sizes sizes;
  for (const auto& operand : operands) {
    const auto merged = infer_size_symdimvector(sizes, operand.sym_sizes());
    sizes.assign(merged.begin(), merged.end());
  }
  return sizes;
}

// The operand's strides along the dimensions of the result; 0 where it is broadcast.
Sizes strides_along(const Tensor& operand, const Sizes& sizes) {
  Sizes strides(sizes.size(), SymInt(0));
  const auto offset = static_cast<int64_t>(sizes.size()) - operand.dim();
  for (int64_t d = 0; d < operand.dim(); ++d) {
    if (operand.sym_size(d) == sizes[offset + d]) {
      strides[offset + d] = operand.sym_stride(d);
    }
  }
  return strides;
}

// Whether dimension `inner` ought to lie outside `outer`, by the first operand that tells: 1 yes,
// -1 no, 0 not known.
int should_swap(const std::vector<Sizes>& strides, const Sizes& sizes, size_t inner, size_t outer) {
  for (const auto& stride : strides) {
    if (stride[inner] == 0 || stride[outer] == 0) {
      continue;
    }
    if (stride[inner] != stride[outer]) {
      return stride[inner] > stride[outer] ? 1 : -1;
    }
    if (sizes[inner] > sizes[outer]) {
      return 1;
    }
  }
  return 0;
}

// The dimensions from the innermost to the outermost, as TensorIteratorBase::reorder_dimensions
// orders them: an insertion sort in which some pairs do not compare.
std::vector<size_t> memory_order(const std::vector<Sizes>& strides, const Sizes& sizes) {
  std::vector<size_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = order.size() - 1 - i;
  }
  for (size_t i = 1; i < order.size(); ++i) {
    auto moving = i;
    for (auto below = i; below-- > 0;) {
      const auto comparison = should_swap(strides, sizes, order[below], order[moving]);
      if (comparison < 0) {
        break;
      }
      if (comparison > 0) {
        std::swap(order[below], order[moving]);
        moving = below;
      }
    }
  }
  return order;
}

// Strides of a dense tensor whose dimensions lie in the given order.
Sizes dense_strides(const Sizes& sizes, const std::vector<size_t>& order) {
  Sizes strides(sizes.size());
  SymInt step(1);
  for (const auto dimension : order) {
    strides[dimension] = step;
    step = step * sizes[dimension].max(SymInt(1));
  }
  return strides;
}

bool same_sizes(SymIntArrayRef left, SymIntArrayRef right) {
  return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin());
}

Sizes contiguous_strides(const Sizes& sizes) {
  return dense_strides(sizes, memory_order({}, sizes));
}

// TensorIterator's short cuts for operands of one shape come before its general rule; they differ
// from it in the strides of dimensions of size 1.
Sizes result_strides(std::initializer_list<Tensor> operands, const Sizes& sizes) {
  const auto& first = *operands.begin();
  const auto all = [&](const auto& holds) {
    return std::all_of(operands.begin(), operands.end(), holds);
  };
  if (all([&](const Tensor& t) { return same_sizes(t.sym_sizes(), sizes); })) {
    if (all([](const Tensor& t) { return t.is_contiguous(); })) {
      return contiguous_strides(sizes);
    }
    if (sizes.size() == 4 &&
        all([](const Tensor& t) { return t.is_contiguous(MemoryFormat::ChannelsLast); })) {
      return dense_strides(sizes, {1, 3, 2, 0});
    }
    if (all([&](const Tensor& t) {
          return t.is_non_overlapping_and_dense() &&
              same_sizes(t.sym_strides(), first.sym_strides());
        })) {
      return first.sym_strides().vec();
    }
  }
  std::vector<Sizes> strides;
  for (const auto& operand : operands) {
    strides.push_back(strides_along(operand, sizes));
  }
  return dense_strides(sizes, memory_order(strides, sizes));
}

} // namespace

ScalarType elementwise_dtype(std::initializer_list<Tensor> operands, bool integers_to_float) {
  ResultTypeState state;
  for (const auto& operand : operands) {
    state = update_result_type_state(operand, state);
  }
  const auto dtype = result_type(state);
  return integers_to_float && isIntegralType(dtype, /*includeBool=*/true)
      ? typeMetaToScalarType(get_default_dtype())
      : dtype;
}

void set_symbolic_output(
    const char* op,
    const Tensor& output,
    std::initializer_list<Tensor> operands,
    ScalarType dtype) {
  const auto sizes = broadcast_sizes(operands);
  if (!output.defined()) {
    // The kernel object owns its outputs and is not const; only the accessor's type is.
    const_cast<Tensor&>(output) = at::empty_strided_symint(
        sizes, result_strides(operands, sizes), operands.begin()->options().dtype(dtype));
    return;
  }
  TORCH_CHECK(
      canCast(dtype, output.scalar_type()),
      op,
      "(): result type ",
      dtype,
      " can't be cast to the desired output type ",
      output.scalar_type());
  if (!same_sizes(output.sym_sizes(), sizes)) {
    const bool in_place = std::any_of(
        operands.begin(), operands.end(), [&](const Tensor& t) { return t.is_same(output); });
    TORCH_CHECK(
        !in_place,
        op,
        "(): output with shape ",
        output.sym_sizes(),
        " doesn't match the broadcast shape ",
        SymIntArrayRef(sizes));
    output.resize__symint(sizes);
  }
}

} // namespace at::native
