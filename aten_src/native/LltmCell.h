// What the CPU and CUDA kernels of lltm_cell have in common: the pointwise halves of the cell.
//
// With S hidden units, a row of `gates` is [input gate | output gate | candidate], S each, before
// their activations:
//   i = sigmoid(gates[0:S]), o = sigmoid(gates[S:2S]), c = elu(gates[2S:3S])
//   new_cell = old_cell + c · i, new_h = tanh(new_cell) · o
// The matrix products around them are LltmCell.cpp's.
#pragma once

#include <ATen/native/DispatchStub.h>

#include <cstdint>

namespace at {
class TensorBase;
}

namespace at::native {

// What the operator and its batch rule refuse: an input of another type than they have kernels for,
// an operand of another type than the input's.
void check_lltm_dtype(const char* op, const TensorBase& input);
void check_lltm_operand_dtype(
    const char* op,
    const char* name,
    const TensorBase& tensor,
    const TensorBase& input);

// Rows of the batch whose bias gradients one partial sum holds. A number of the problem and not of
// the machine: the order of summation, and so each bit of the result, is the same for any number of
// threads or multiprocessors.
constexpr int64_t kLltmRowsPerPartial = 64;

// new_h, new_cell [B, S] and gates [B, 3·S] are contiguous; old_cell has any strides.
using lltm_cell_fn = void (*)(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& old_cell);

// The whole forward in one kernel, products included: gates = [old_h, input] · weightᵀ + bias, and of
// them, before they are rounded, new_cell and new_h. For problems so small that the launches of a
// general product would take longer than its arithmetic (lltm_cell_is_small()). The results are
// contiguous, the operands have any strides. CUDA alone has one.
using lltm_cell_small_fn = void (*)(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const TensorBase& old_h,
    const TensorBase& old_cell);

// The most multiply-adds of one gate, B · S · (F + S), that the one kernel takes.
constexpr int64_t kLltmSmallProduct = int64_t{1} << 22;
inline bool lltm_cell_is_small(int64_t batch, int64_t features, int64_t state) {
  // As a quotient, so that no product of sizes can overflow.
  return batch <= kLltmSmallProduct / (state + 1) / (features + state + 1);
}

// grad_of_gates [B, 3·S], grad_old_cell [B, S] and bias_partials [⌈B / kLltmRowsPerPartial⌉, 3·S] are
// contiguous and written; bias_partials is undefined where no bias gradient is asked for, and of
// the accumulation type. The incoming gradients have any strides and may be undefined: zero.
using lltm_cell_backward_fn = void (*)(
    const TensorBase& grad_of_gates,
    const TensorBase& grad_old_cell,
    const TensorBase& bias_partials,
    const TensorBase& grad_new_h,
    const TensorBase& grad_new_cell,
    const TensorBase& grad_gates,
    const TensorBase& new_cell,
    const TensorBase& gates);

// grad_bias[j] = sum over rows of bias_partials[:, j], in the order of the rows.
using lltm_cell_bias_fn = void (*)(const TensorBase& grad_bias, const TensorBase& bias_partials);

DECLARE_DISPATCH(lltm_cell_fn, lltm_cell_stub)
DECLARE_DISPATCH(lltm_cell_small_fn, lltm_cell_small_stub)
DECLARE_DISPATCH(lltm_cell_backward_fn, lltm_cell_backward_stub)
DECLARE_DISPATCH(lltm_cell_bias_fn, lltm_cell_bias_stub)

} // namespace at::native
