#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/Mix.h>

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/decay_native.h>
#include <ATen/ops/mix_native.h>
#include <ATen/ops/smoothstep_native.h>
#endif

#include <cmath>

namespace at::meta {

TORCH_META_FUNC(smoothstep)(const Tensor& self) {
  TORCH_CHECK(!self.is_complex(), "smoothstep: self must be real, got ", self.scalar_type());
  build_borrowing_unary_float_op(maybe_get_output(), self);
}

TORCH_META_FUNC2(mix, Tensor)(const Tensor& self, const Tensor& other, const Tensor& weight) {
  TORCH_CHECK(
      self.dtype() == other.dtype() && self.dtype() == weight.dtype(),
      "mix: self, other and weight must have one dtype, got ",
      self.dtype(),
      ", ",
      other.dtype(),
      " and ",
      weight.dtype());
  build(
      at::TensorIteratorConfig()
          .add_output(maybe_get_output())
          .add_const_input(self)
          .add_const_input(other)
          .add_const_input(weight));
}

TORCH_META_FUNC2(mix, Scalar)(const Tensor& self, const Tensor& other, const Scalar& weight) {
  TORCH_CHECK(
      self.dtype() == other.dtype(),
      "mix: self and other must have one dtype, got ",
      self.dtype(),
      " and ",
      other.dtype());
  build_borrowing_binary_op(maybe_get_output(), self, other);
}

} // namespace at::meta

namespace at::native {

DEFINE_DISPATCH(mix_scalar_stub);
DEFINE_DISPATCH(mix_tensor_stub);
DEFINE_DISPATCH(smoothstep_stub);

TORCH_IMPL_FUNC(smoothstep_out)(const Tensor& self, const Tensor& out) {
  smoothstep_stub(device_type(), *this);
}

TORCH_IMPL_FUNC(mix_Tensor_out)
(const Tensor& self, const Tensor& other, const Tensor& weight, const Tensor& out) {
  mix_tensor_stub(device_type(), *this);
}

TORCH_IMPL_FUNC(mix_Scalar_out)
(const Tensor& self, const Tensor& other, const Scalar& weight, const Tensor& out) {
  mix_scalar_stub(device_type(), *this, weight);
}

Tensor& decay_(Tensor& self, const Scalar& rate) {
  return self.mul_(std::exp(-rate.toDouble()));
}

} // namespace at::native
