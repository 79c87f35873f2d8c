// CUDA kernels of axpy_ext, by the loop of cuda/PointwiseExt.cuh.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/AxpyExt.h>

#include <ATen/native/cuda/PointwiseExt.cuh>

namespace at::native {
namespace {

template <typename T>
struct Axpy {
  using opmath_t = T;
  static constexpr int kInputs = 2;
  opmath_t alpha;
  __device__ opmath_t operator()(opmath_t self, opmath_t other) const {
    if constexpr (std::is_same_v<T, bool>) {
      return (alpha && self) || other;
    } else if constexpr (std::is_same_v<T, int64_t>) {
      // Modulo 2^64, of which narrower integers of either sign keep what fits.
      return static_cast<int64_t>(
          static_cast<uint64_t>(alpha) * static_cast<uint64_t>(self) +
          static_cast<uint64_t>(other));
    } else {
      return alpha * self + other;
    }
  }
};

template <typename scalar_t, typename opmath_t = scalar_t>
void axpy(TensorIteratorBase& iter, const Scalar& alpha) {
  pointwise_ext::run<scalar_t>(iter, Axpy<opmath_t>{pointwise_ext::value_of<opmath_t>(alpha)});
}

void axpy_ext_kernel_cuda(TensorIteratorBase& iter, const Scalar& alpha) {
  switch (const auto dtype = pointwise_ext::common_type(iter)) {
    case kBool:
      return axpy<bool>(iter, alpha);
    case kByte:
    case kChar:
      return axpy<uint8_t, int64_t>(iter, alpha);
    case kShort:
      return axpy<uint16_t, int64_t>(iter, alpha);
    case kInt:
      return axpy<uint32_t, int64_t>(iter, alpha);
    case kLong:
      return axpy<int64_t>(iter, alpha);
    case kHalf:
      return axpy<Half, float>(iter, alpha);
    case kBFloat16:
      return axpy<BFloat16, float>(iter, alpha);
    case kFloat:
      return axpy<float>(iter, alpha);
    case kDouble:
      return axpy<double>(iter, alpha);
    case kComplexHalf:
      return axpy<c10::complex<Half>, c10::complex<float>>(iter, alpha);
    case kComplexFloat:
      return axpy<c10::complex<float>>(iter, alpha);
    case kComplexDouble:
      return axpy<c10::complex<double>>(iter, alpha);
    default:
      TORCH_CHECK(false, "axpy_ext(): there is no kernel for the result's dtype ", dtype);
  }
}

} // namespace

REGISTER_DISPATCH(axpy_ext_stub, &axpy_ext_kernel_cuda)

} // namespace at::native
