#pragma once

#include <ATen/native/DispatchStub.h>

namespace c10 {
class Scalar;
}

namespace at {
struct TensorIteratorBase;
}

namespace at::native {

using mix_scalar_fn = void (*)(TensorIteratorBase&, const c10::Scalar&);
using mix_tensor_fn = void (*)(TensorIteratorBase&);
using smoothstep_fn = void (*)(TensorIteratorBase&);

DECLARE_DISPATCH(mix_scalar_fn, mix_scalar_stub)
DECLARE_DISPATCH(mix_tensor_fn, mix_tensor_stub)
DECLARE_DISPATCH(smoothstep_fn, smoothstep_stub)

} // namespace at::native
