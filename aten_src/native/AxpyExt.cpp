// axpy_ext: checks and dispatch. The kernels are in cpu/AxpyExtKernel.cpp and cuda/AxpyExt.cu.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/AxpyExt.h>

#include <ATen/TensorIterator.h>
#include <ATen/core/Formatting.h>
#include <cmath>
#include <limits>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/axpy_ext_native.h>
#endif

namespace at::meta {

namespace {

bool has_kernel(ScalarType dtype) {
  switch (dtype) {
    case kBool:
    case kByte:
    case kChar:
    case kShort:
    case kInt:
    case kLong:
    case kHalf:
    case kBFloat16:
    case kFloat:
    case kDouble:
    case kComplexHalf:
    case kComplexFloat:
    case kComplexDouble:
      return true;
    default:
      return false;
  }
}

// Whether an integer alpha has a value modulo 2^bits that dtype's arithmetic can stand for: a
// negative one wraps for an unsigned dtype, as for torch.add.
bool fits_integer(int64_t alpha, ScalarType dtype) {
  switch (dtype) {
    case kByte:
      return -255 <= alpha && alpha <= 255;
    case kChar:
      return -128 <= alpha && alpha <= 127;
    case kShort:
      return alpha == static_cast<int16_t>(alpha);
    case kInt:
      return alpha == static_cast<int32_t>(alpha);
    default:
      return true;
  }
}

bool fits_float(double alpha) {
  return !std::isfinite(alpha) || std::abs(alpha) <= std::numeric_limits<float>::max();
}

// Kind and range of alpha, as torch.add checks them; here, so that CPU, CUDA and Meta agree.
void check_alpha(const Scalar& alpha, ScalarType dtype) {
  TORCH_CHECK(
      !alpha.isBoolean() || dtype == kBool,
      "axpy_ext(): expected alpha not to be a bool unless the result is bool, but got alpha ",
      alpha,
      " for a result of dtype ",
      dtype);
  TORCH_CHECK(
      !isIntegralType(dtype, /*includeBool=*/true) || alpha.isIntegral(/*includeBool=*/true),
      "axpy_ext(): expected alpha to be an integer for a result of integer dtype, but got alpha ",
      alpha,
      " for a result of dtype ",
      dtype);
  TORCH_CHECK(
      isComplexType(dtype) || !alpha.isComplex(),
      "axpy_ext(): expected alpha to be real for a result of real dtype, but got alpha ",
      alpha,
      " for a result of dtype ",
      dtype);
  bool fits = true;
  if (alpha.isSymbolic() || dtype == kBool || dtype == kDouble || dtype == kComplexDouble) {
    fits = true;
  } else if (isIntegralType(dtype, /*includeBool=*/false)) {
    fits = fits_integer(alpha.toLong(), dtype);
  } else {
    const auto value = alpha.toComplexDouble();
    fits = fits_float(value.real()) && fits_float(value.imag());
  }
  TORCH_CHECK(
      fits,
      "axpy_ext(): expected alpha to be in the range of the result's dtype, but got alpha ",
      alpha,
      " for a result of dtype ",
      dtype);
}

} // namespace

TORCH_META_FUNC(axpy_ext)(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  build_borrowing_binary_op(maybe_get_output(), self, other);
  TORCH_CHECK(
      has_kernel(common_dtype()),
      "axpy_ext(): expected self and other to be floating point, complex, integer or bool, but got "
      "self of dtype ",
      self.scalar_type(),
      " and other of dtype ",
      other.scalar_type(),
      "; there is no kernel for the result's dtype ",
      common_dtype());
  check_alpha(alpha, common_dtype());
}

} // namespace at::meta

namespace at::native {

DEFINE_DISPATCH(axpy_ext_stub);

TORCH_IMPL_FUNC(axpy_ext_out)
(const Tensor& self, const Tensor& other, const Scalar& alpha, const Tensor& out) {
  axpy_ext_stub(device_type(), *this, alpha);
}

} // namespace at::native
