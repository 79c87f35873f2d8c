// What the CPU and CUDA kernels of sigmoid_ext and sigmoid_ext_backward have in common.
#pragma once

#include <ATen/native/DispatchStub.h>

namespace at {
struct TensorIteratorBase;
}

namespace at::native {

// out = 1 / (1 + exp(-self)); operands (out, self).
using sigmoid_ext_fn = void (*)(TensorIteratorBase&);
// grad_input = grad_output · output · (1 - output); operands (grad_input, grad_output, output).
using sigmoid_ext_backward_fn = void (*)(TensorIteratorBase&);

DECLARE_DISPATCH(sigmoid_ext_fn, sigmoid_ext_stub)
DECLARE_DISPATCH(sigmoid_ext_backward_fn, sigmoid_ext_backward_stub)

} // namespace at::native
