// sigmoid_ext and its backward: checks and dispatch. The kernels are in cpu/SigmoidExtKernel.cpp and
// cuda/SigmoidExt.cu.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/SigmoidExt.h>

#include <ATen/TensorIterator.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/sigmoid_ext_backward_native.h>
#include <ATen/ops/sigmoid_ext_native.h>
#endif

namespace at::meta {

namespace {

bool has_kernel(ScalarType dtype) {
  return dtype == kFloat || dtype == kDouble || dtype == kHalf || dtype == kBFloat16;
}

void check_gradient_dtype(const char* name, const Tensor& tensor) {
  TORCH_CHECK(
      has_kernel(tensor.scalar_type()),
      "sigmoid_ext_backward(): expected ",
      name,
      " to be float, double, half or bfloat16, but got ",
      name,
      " of dtype ",
      tensor.scalar_type());
}

} // namespace

TORCH_META_FUNC(sigmoid_ext)(const Tensor& self) {
  const auto dtype = self.scalar_type();
  TORCH_CHECK(
      has_kernel(dtype) ||
          (isIntegralType(dtype, /*includeBool=*/true) && !isBarebonesUnsignedType(dtype)),
      "sigmoid_ext(): expected self to be float, double, half, bfloat16, integer or bool, but got "
      "self of dtype ",
      dtype);
  build_borrowing_unary_float_op(maybe_get_output(), self);
}

TORCH_META_FUNC(sigmoid_ext_backward)(const Tensor& grad_output, const Tensor& output) {
  check_gradient_dtype("grad_output", grad_output);
  check_gradient_dtype("output", output);
  build_borrowing_binary_op(maybe_get_output(), grad_output, output);
}

} // namespace at::meta

namespace at::native {

DEFINE_DISPATCH(sigmoid_ext_stub);
DEFINE_DISPATCH(sigmoid_ext_backward_stub);

TORCH_IMPL_FUNC(sigmoid_ext_out)(const Tensor& self, const Tensor& out) {
  sigmoid_ext_stub(device_type(), *this);
}

TORCH_IMPL_FUNC(sigmoid_ext_backward_out)
(const Tensor& grad_output, const Tensor& output, const Tensor& grad_input) {
  sigmoid_ext_backward_stub(device_type(), *this);
}

} // namespace at::native
