// vmap of gdh, gdh_copy, sigmoid_ext, sigmoid_ext_backward and axpy_ext, in one file because most of its
// compilation is that of headers.
//
// gdh and gdh_copy are compositions of operators that have batch rules. A composite operator is not
// taken apart for vmap on its own: upstream lists each of its own (OP_DECOMPOSE in
// BatchRulesDecompositions.cpp), and without an entry vmap refuses a view operator and runs gdh_copy
// in a loop.
// sigmoid_ext, sigmoid_ext_backward and axpy_ext: the operator itself on the physical tensors, once
// they broadcast and promote as the logical ones do.
#include <ATen/functorch/BatchRulesExtHelper.h>
#include <ATen/native/TypeProperties.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#else
#include <ATen/ops/axpy_ext_ops.h>
#include <ATen/ops/gdh_native.h>
#include <ATen/ops/sigmoid_ext_backward_ops.h>
#include <ATen/ops/sigmoid_ext_ops.h>
#endif

#include <algorithm>
#include <tuple>
#include <utility>

namespace at::functorch {

namespace {

Tensor gdh_copy_decomposition(const Tensor& input) {
  return input.clone(at::MemoryFormat::Contiguous).view(-1);
}

struct Operand {
  Tensor tensor; // batch dimension first
  BatchDim dim;
  int64_t rank; // logical

  Operand(const Tensor& given, BatchDim given_dim)
      : tensor(batch_dim_first(given, given_dim)),
        dim(given_dim),
        rank(logical_rank(given, given_dim)) {}

  // Logically 0-d, which counts for less in type promotion, and physically not.
  bool is_number() const {
    return dim.has_value() && rank == 0;
  }

  // With dimensions of size one behind the batch, as broadcasting puts them in front.
  Tensor padded(int64_t to_rank) const {
    if (!dim.has_value() || rank >= to_rank) {
      return tensor;
    }
    SymDimVector sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
    sizes.insert(sizes.begin() + 1, to_rank - rank, c10::SymInt(1));
    return tensor.view_symint(sizes);
  }
};

// The common dtype of the logical operands.
ScalarType logical_dtype(const Operand& number, const Operand& other) {
  native::ResultTypeState state;
  state.zeroResult = number.tensor.scalar_type();
  const auto& tensor = other.tensor;
  if (tensor.dim() == 0 && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    state.zeroResult = promoteTypes(state.zeroResult, tensor.scalar_type());
  } else {
    state = native::update_result_type_state(tensor, state);
  }
  return native::result_type(state);
}

// Both operands as they broadcast and promote without the batch. A single number with the dtype
// that it leads to leads to the same one with any number of dimensions.
std::pair<Tensor, Tensor> aligned(Operand left, Operand right) {
  if (left.is_number() != right.is_number()) {
    auto& number = left.is_number() ? left : right;
    const auto& other = left.is_number() ? right : left;
    number.tensor = number.tensor.to(logical_dtype(number, other));
  }
  const auto rank = std::max(left.rank, right.rank);
  return {left.padded(rank), right.padded(rank)};
}

// The same for `self op= other`, where self's dtype stays: other gets the common dtype, and with it
// a dimension, so that the arithmetic is done in that dtype.
std::pair<Tensor, Tensor> aligned_in_place(const Operand& self, Operand other) {
  if (self.is_number() != other.is_number()) {
    const auto dtype = self.is_number() ? logical_dtype(self, other) : logical_dtype(other, self);
    other.tensor = other.tensor.to(dtype);
    if (other.tensor.dim() == 0) {
      other.tensor = other.tensor.unsqueeze(0);
    }
  }
  const auto rank = std::max(self.rank, other.rank);
  return {self.padded(rank), other.padded(rank)};
}

std::tuple<Tensor, BatchDim> sigmoid_ext_batch_rule(const Tensor& self, BatchDim self_bdim) {
  return {at::_ops::sigmoid_ext::call(self), self_bdim};
}

void sigmoid_ext_in_place_batch_rule(Tensor& self, BatchDim /*self_bdim*/) {
  at::_ops::sigmoid_ext_::call(self);
}

std::tuple<Tensor, BatchDim> sigmoid_ext_backward_batch_rule(
    const Tensor& grad_output,
    BatchDim grad_output_bdim,
    const Tensor& output,
    BatchDim output_bdim) {
  const auto [left, right] = aligned({grad_output, grad_output_bdim}, {output, output_bdim});
  return {at::_ops::sigmoid_ext_backward::call(left, right), 0};
}

std::tuple<Tensor, BatchDim> axpy_ext_batch_rule(
    const Tensor& self,
    BatchDim self_bdim,
    const Tensor& other,
    BatchDim other_bdim,
    const Scalar& alpha) {
  const auto [left, right] = aligned({self, self_bdim}, {other, other_bdim});
  return {at::_ops::axpy_ext::call(left, right, alpha), 0};
}

void axpy_ext_in_place_batch_rule(
    Tensor& self,
    BatchDim self_bdim,
    const Tensor& other,
    BatchDim other_bdim,
    const Scalar& alpha) {
  TORCH_CHECK(
      self_bdim.has_value(),
      "axpy_ext_(): other differs between the elements of vmap's batch, but self, which is written "
      "to, is shared by all of them; use axpy_ext");
  auto [left, right] = aligned_in_place({self, self_bdim}, {other, other_bdim});
  at::_ops::axpy_ext_::call(left, right, alpha);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  // Under the runtime key: torch 2.6 does not look at the alias key that upstream uses
  // (FuncTorchBatchedDecomposition) for an operator that is declared after libtorch is loaded.
  m.impl("gdh", TORCH_FN(at::native::gdh));
  m.impl("gdh_copy", TORCH_FN(gdh_copy_decomposition));
  m.impl("sigmoid_ext", batched_kernel<at::_ops::sigmoid_ext, sigmoid_ext_batch_rule>());
  m.impl("sigmoid_ext_", batched_kernel<at::_ops::sigmoid_ext_, sigmoid_ext_in_place_batch_rule>());
  m.impl(
      "sigmoid_ext_backward",
      batched_kernel<at::_ops::sigmoid_ext_backward, sigmoid_ext_backward_batch_rule>());
  m.impl("axpy_ext", batched_kernel<at::_ops::axpy_ext, axpy_ext_batch_rule>());
  m.impl("axpy_ext_", batched_kernel<at::_ops::axpy_ext_, axpy_ext_in_place_batch_rule>());
}

} // namespace at::functorch
