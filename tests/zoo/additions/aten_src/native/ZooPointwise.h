#pragma once

#include <ATen/native/DispatchStub.h>

namespace c10 {
class Scalar;
}

namespace at {
struct TensorIteratorBase;
}

namespace at::native {

using zoo_unary_scalar_fn = void (*)(TensorIteratorBase&, const c10::Scalar&);
using zoo_binary_scalar_fn = void (*)(TensorIteratorBase&, const c10::Scalar&);
using zoo_ternary_fn = void (*)(TensorIteratorBase&);

DECLARE_DISPATCH(zoo_unary_scalar_fn, zoo_softclip_stub)
DECLARE_DISPATCH(zoo_binary_scalar_fn, zoo_blend_stub)
DECLARE_DISPATCH(zoo_ternary_fn, zoo_muladd_stub)

} // namespace at::native
