// CPU kernels of sigmoid_ext; compiled once for each CPU capability.
//
// exp(-x) overflows for large negative x and makes the result 0, where it still is a small number:
// exp(x), because 1 + exp(x) is 1 there. Lanes that came out as 0 are rare and get that; asking for
// them is one comparison a vector. 16-bit types compute in float.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/SigmoidExt.h>

#include <ATen/Dispatch.h>
#include <ATen/native/cpu/VectorLoops.h>

namespace at::native {
namespace {

struct Sigmoid {
  template <typename T>
  vec::Vectorized<T> operator()(const vec::Vectorized<T>& x) const {
    using Vec = vec::Vectorized<T>;
    const Vec one(T(1));
    const auto y = one / (one + exp_of(x.neg()));
    if (C10_LIKELY(y.zero_mask() == 0)) {
      return y;
    }
    return Vec::blendv(y, exp_of(x), y == Vec(T(0)));
  }
};

struct SigmoidBackward {
  template <typename T>
  vec::Vectorized<T> operator()(const vec::Vectorized<T>& grad, const vec::Vectorized<T>& y) const {
    return grad * y * (vec::Vectorized<T>(T(1)) - y);
  }
};

void sigmoid_ext_kernel(TensorIteratorBase& iter) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.common_dtype(), "sigmoid_ext_cpu", [&] {
    using Vec = vec::Vectorized<scalar_t>;
    vector_kernel<scalar_t, 1>(
        iter, [](const Vec& x) { return in_opmath<scalar_t>(Sigmoid(), x); });
  });
}

void sigmoid_ext_backward_kernel(TensorIteratorBase& iter) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, iter.common_dtype(), "sigmoid_ext_backward_cpu", [&] {
        using Vec = vec::Vectorized<scalar_t>;
        vector_kernel<scalar_t, 2>(iter, [](const Vec& grad, const Vec& y) {
          return in_opmath<scalar_t>(SigmoidBackward(), grad, y);
        });
      });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(sigmoid_ext_stub, &sigmoid_ext_kernel)
ALSO_REGISTER_AVX512_DISPATCH(sigmoid_ext_backward_stub, &sigmoid_ext_backward_kernel)

} // namespace at::native
