// Symbolic shapes for structured operators over TensorIterator.
//
// TensorIterator works on integers, so a structured operator's Meta kernel, which the code generator
// makes of its meta function, cannot run on the symbolic sizes of dynamic torch.compile. Upstream
// overrides each of its own with a Python function. Here the meta function does both: it calls one of
// these first and returns when that has made, or checked, the output.
#pragma once

#include <ATen/core/Tensor.h>
#include <initializer_list>

namespace at::native {

// Whether a tensor's sizes or strides are symbolic: never outside of tracing, and cheap to ask.
inline bool is_symbolic(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// Gives `output`, a structured kernel's maybe_get_output(), the broadcast shape of the operands,
// TensorIterator's strides and `dtype`: an undefined one is made, a defined one (in-place or out
// variant) is checked and, where its size differs, resized.
void set_symbolic_output(
    const char* op,
    const Tensor& output,
    std::initializer_list<Tensor> operands,
    ScalarType dtype);

// The dtype of a result that takes every operand's type, and for which integers become the default
// floating point type if `integers_to_float`.
ScalarType elementwise_dtype(std::initializer_list<Tensor> operands, bool integers_to_float);

} // namespace at::native
