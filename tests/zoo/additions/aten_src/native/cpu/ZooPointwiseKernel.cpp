// The CPU halves of the pointwise kinds; compiled once for each CPU capability.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/ZooPointwise.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/cpu/Loops.h>
#include <c10/core/Scalar.h>

#include <cmath>

namespace at::native {
namespace {

void softclip_kernel(TensorIteratorBase& iter, const Scalar& limit_scalar) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.common_dtype(), "zoo_softclip_cpu", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    const auto limit = limit_scalar.to<opmath_t>();
    cpu_kernel(iter, [limit](scalar_t x) -> scalar_t {
      return limit * std::tanh(static_cast<opmath_t>(x) / limit);
    });
  });
}

void blend_kernel(TensorIteratorBase& iter, const Scalar& alpha_scalar) {
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "zoo_blend_cpu", [&] {
        const auto alpha = alpha_scalar.to<scalar_t>();
        const auto alpha_vec = vec::Vectorized<scalar_t>(alpha);
        cpu_kernel_vec(
            iter,
            [=](scalar_t a, scalar_t b) -> scalar_t { return alpha * a * b; },
            [=](vec::Vectorized<scalar_t> a, vec::Vectorized<scalar_t> b) {
              return alpha_vec * a * b;
            });
      });
}

void muladd_kernel(TensorIteratorBase& iter) {
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "zoo_muladd_cpu", [&] {
        cpu_kernel_vec(
            iter,
            [](scalar_t a, scalar_t b, scalar_t c) -> scalar_t { return a * b + c; },
            [](vec::Vectorized<scalar_t> a,
               vec::Vectorized<scalar_t> b,
               vec::Vectorized<scalar_t> c) { return a * b + c; });
      });
}

} // namespace

// One registration without an AVX-512 kernel and two with: both are how upstream does it.
REGISTER_DISPATCH(zoo_softclip_stub, &softclip_kernel)
ALSO_REGISTER_AVX512_DISPATCH(zoo_blend_stub, &blend_kernel)
ALSO_REGISTER_AVX512_DISPATCH(zoo_muladd_stub, &muladd_kernel)

} // namespace at::native
