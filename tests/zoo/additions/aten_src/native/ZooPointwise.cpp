// Pointwise kinds: two structured operators and one unstructured, all three over TensorIterator with
// a DispatchStub, and one that has a CPU kernel and nothing else.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/ZooPointwise.h>

#include <ATen/Dispatch.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zoo_blend_native.h>
#include <ATen/ops/zoo_cpu_only_native.h>
#include <ATen/ops/zoo_muladd_native.h>
#include <ATen/ops/zoo_softclip_native.h>
#endif

#include <cmath>

namespace at::meta {

TORCH_META_FUNC(zoo_softclip)(const Tensor& self, const Scalar& limit) {
  TORCH_CHECK(!self.is_complex(), "zoo_softclip: self must be real, got ", self.scalar_type());
  TORCH_CHECK(limit.toDouble() > 0, "zoo_softclip: limit must be positive, got ", limit.toDouble());
  build_borrowing_unary_float_op(maybe_get_output(), self);
}

TORCH_META_FUNC(zoo_blend)(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  build_borrowing_binary_op(maybe_get_output(), self, other);
  TORCH_CHECK(
      isFloatingType(dtype()) || isComplexType(dtype()) || alpha.isIntegral(/*includeBool=*/true),
      "zoo_blend: alpha must be an integer for integer tensors, got ",
      alpha);
  TORCH_CHECK(
      isComplexType(dtype()) || !alpha.isComplex(),
      "zoo_blend: alpha must be real for tensors of type ",
      dtype());
}

} // namespace at::meta

namespace at::native {

DEFINE_DISPATCH(zoo_softclip_stub);
DEFINE_DISPATCH(zoo_blend_stub);
DEFINE_DISPATCH(zoo_muladd_stub);

TORCH_IMPL_FUNC(zoo_softclip_out)(const Tensor& self, const Scalar& limit, const Tensor& out) {
  zoo_softclip_stub(device_type(), *this, limit);
}

TORCH_IMPL_FUNC(zoo_blend_out)
(const Tensor& self, const Tensor& other, const Scalar& alpha, const Tensor& out) {
  zoo_blend_stub(device_type(), *this, alpha);
}

namespace {

TensorIterator muladd_iterator(
    Tensor& result,
    const Tensor& self,
    const Tensor& other,
    const Tensor& third) {
  return TensorIteratorConfig()
      .add_output(result)
      .add_const_input(self)
      .add_const_input(other)
      .add_const_input(third)
      .allow_cpu_scalars(true)
      .promote_inputs_to_common_dtype(true)
      .cast_common_dtype_to_outputs(true)
      .enforce_safe_casting_to_output(true)
      .build();
}

} // namespace

Tensor zoo_muladd(const Tensor& self, const Tensor& other, const Tensor& third) {
  Tensor result;
  auto iter = muladd_iterator(result, self, other, third);
  zoo_muladd_stub(iter.device_type(), iter);
  return iter.output();
}

// Shapes, strides and the result's type come from the same iterator as the real kernel's.
Tensor zoo_muladd_meta(const Tensor& self, const Tensor& other, const Tensor& third) {
  Tensor result;
  return muladd_iterator(result, self, other, third).output();
}

// The fractional part, on the CPU and nowhere else.
Tensor zoo_cpu_only(const Tensor& self) {
  const auto input = self.contiguous();
  auto result = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "zoo_cpu_only", [&] {
    const auto* in = input.const_data_ptr<scalar_t>();
    auto* out = result.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < input.numel(); ++i) {
      out[i] = in[i] - std::trunc(in[i]);
    }
  });
  return result;
}

} // namespace at::native
