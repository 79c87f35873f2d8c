#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/Mix.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/cpu/Loops.h>
#include <c10/core/Scalar.h>

#include <algorithm>

namespace at::native {
namespace {

void mix_scalar_kernel(TensorIteratorBase& iter, const Scalar& weight_scalar) {
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "mix_scalar_cpu", [&] {
        using opmath_t = at::opmath_type<scalar_t>;
        const auto weight = weight_scalar.to<opmath_t>();
        cpu_kernel(iter, [weight](scalar_t self, scalar_t other) -> scalar_t {
          return weight * static_cast<opmath_t>(self) +
              (opmath_t(1) - weight) * static_cast<opmath_t>(other);
        });
      });
}

void mix_tensor_kernel(TensorIteratorBase& iter) {
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "mix_tensor_cpu", [&] {
        using opmath_t = at::opmath_type<scalar_t>;
        cpu_kernel(iter, [](scalar_t self, scalar_t other, scalar_t weight) -> scalar_t {
          const auto w = static_cast<opmath_t>(weight);
          return w * static_cast<opmath_t>(self) + (opmath_t(1) - w) * static_cast<opmath_t>(other);
        });
      });
}

void smoothstep_kernel(TensorIteratorBase& iter) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.common_dtype(), "smoothstep_cpu", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    cpu_kernel(iter, [](scalar_t self) -> scalar_t {
      const auto x = std::clamp(static_cast<opmath_t>(self), opmath_t(0), opmath_t(1));
      return x * x * (opmath_t(3) - opmath_t(2) * x);
    });
  });
}

} // namespace

REGISTER_DISPATCH(mix_scalar_stub, &mix_scalar_kernel)
REGISTER_DISPATCH(mix_tensor_stub, &mix_tensor_kernel)
REGISTER_DISPATCH(smoothstep_stub, &smoothstep_kernel)

} // namespace at::native
