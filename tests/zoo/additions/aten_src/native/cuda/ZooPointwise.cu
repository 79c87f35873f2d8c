// The CUDA halves of the pointwise kinds.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/ZooPointwise.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/cuda/Loops.cuh>
#include <c10/core/Scalar.h>

namespace at::native {
namespace {

void softclip_kernel_cuda(TensorIteratorBase& iter, const Scalar& limit_scalar) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.common_dtype(), "zoo_softclip_cuda", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    const auto limit = limit_scalar.to<opmath_t>();
    gpu_kernel(iter, [limit] GPU_LAMBDA(scalar_t x) -> scalar_t {
      return limit * ::tanh(static_cast<opmath_t>(x) / limit);
    });
  });
}

void blend_kernel_cuda(TensorIteratorBase& iter, const Scalar& alpha_scalar) {
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "zoo_blend_cuda", [&] {
        const auto alpha = alpha_scalar.to<scalar_t>();
        gpu_kernel(
            iter, [alpha] GPU_LAMBDA(scalar_t a, scalar_t b) -> scalar_t { return alpha * a * b; });
      });
}

void muladd_kernel_cuda(TensorIteratorBase& iter) {
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "zoo_muladd_cuda", [&] {
        gpu_kernel(iter, [] GPU_LAMBDA(scalar_t a, scalar_t b, scalar_t c) -> scalar_t {
          return a * b + c;
        });
      });
}

} // namespace

REGISTER_DISPATCH(zoo_softclip_stub, &softclip_kernel_cuda)
REGISTER_DISPATCH(zoo_blend_stub, &blend_kernel_cuda)
REGISTER_DISPATCH(zoo_muladd_stub, &muladd_kernel_cuda)

} // namespace at::native
