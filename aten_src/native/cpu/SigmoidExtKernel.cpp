// CPU kernels of sigmoid_ext; compiled once for each CPU capability.
//
// 1 / (1 + exp(-x)) overflows in exp for large negative x, where the result is still a normal or
// subnormal number. With e = exp(-|x|), which is never above 1, the function is 1 / (1 + e) for
// x >= 0 and e / (1 + e) below: exact to the last places at both ends. 16-bit types compute in
// float.
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
    const auto e = exp_of(x.abs().neg());
    return Vec::blendv(e, one, x >= Vec(T(0))) / (one + e);
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
