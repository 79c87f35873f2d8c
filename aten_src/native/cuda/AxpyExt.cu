// CUDA kernels of axpy_ext: gpu_kernel's loops, as cuda/SigmoidExt.cu explains.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/AxpyExt.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/native/TensorIterator.h>
#include <c10/core/Scalar.h>
#include <ATen/native/cuda/Loops.cuh>

namespace at::native {
namespace {

template <typename scalar_t>
void axpy_kernel(TensorIteratorBase& iter, const Scalar& alpha_scalar) {
  using opmath_t = opmath_type<scalar_t>;
  const auto alpha = alpha_scalar.to<opmath_t>();
  // A 0-d CPU tensor as operand becomes an argument of the kernel.
  opmath_gpu_kernel_with_scalars<scalar_t>(
      iter, [alpha] GPU_LAMBDA(opmath_t self, opmath_t other) -> opmath_t {
        return alpha * self + other;
      });
}

void axpy_ext_kernel_cuda(TensorIteratorBase& iter, const Scalar& alpha_scalar) {
  if (iter.common_dtype() == kBool) {
    const bool alpha = alpha_scalar.toBool();
    opmath_gpu_kernel_with_scalars<bool>(iter, [alpha] GPU_LAMBDA(bool self, bool other) -> bool {
      return (alpha && self) || other;
    });
    return;
  }
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(
      kHalf, kBFloat16, kComplexHalf, iter.common_dtype(), "axpy_ext_cuda", [&] {
        axpy_kernel<scalar_t>(iter, alpha_scalar);
      });
}

} // namespace

REGISTER_DISPATCH(axpy_ext_stub, &axpy_ext_kernel_cuda)

} // namespace at::native
