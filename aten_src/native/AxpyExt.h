// What the CPU and CUDA kernels of axpy_ext have in common.
#pragma once

#include <ATen/native/DispatchStub.h>

namespace c10 {
class Scalar;
}

namespace at {
struct TensorIteratorBase;
}

namespace at::native {

// out = alpha · self + other; operands (out, self, other). For bool, (alpha and self) or other.
using axpy_ext_fn = void (*)(TensorIteratorBase&, const c10::Scalar& alpha);

DECLARE_DISPATCH(axpy_ext_fn, axpy_ext_stub)

} // namespace at::native
