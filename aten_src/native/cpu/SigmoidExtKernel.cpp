// CPU kernels of sigmoid_ext; compiled once for each CPU capability.
//
// 1 / (1 + exp(-x)) with an exp of its own: at::vec's is a call for each vector, into another library,
// that every constant and every register has to be saved across. exp(-x) = 2^n · exp(r) overflows for
// large negative x, where the result still is a small number: it is 2^(m - n) / (1 + 2^m · exp(r)) with
// m = min(n, kScaled), because beside 2^kScaled the 1 is lost. No branch: how a lane is computed depends
// on no other, and a NaN stays one, multiplied and added to. 16-bit types compute in float.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/SigmoidExt.h>

#include <ATen/Dispatch.h>
#include <ATen/native/cpu/VectorLoops.h>
#include <array>
#include <cstdint>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)

// exp(r) = 1 + r + r² · q(r) for |r| <= ln 2 / 2; q is the minimax polynomial of the relative error,
// found by Lawson's iteration. ln 2 is two numbers, the first so short that n times it is exact.
template <typename T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using bits_t = int32_t;
  static constexpr bits_t kMantissaBits = 23;
  static constexpr float kRounder = 12582912; // 1.5 · 2^23: adding it rounds to an integer
  static constexpr float kInverseOfLn2 = 1.44269504F;
  static constexpr float kLn2High = 0.693145752F;
  static constexpr float kLn2Low = 1.42860677e-6F;
  static constexpr float kLowest = -87; // 1 + exp(kLowest) is 1
  static constexpr float kHighest = 104; // 1 / exp(kHighest) is 0
  static constexpr float kScaled = 64;
  static constexpr std::array<float, 5> kQ =
      {0.499999934F, 0.166665206F, 0.0416683881F, 0.00836871709F, 0.00138145964F}; // 3.1e-9
};

template <>
struct ExpConstants<double> {
  using bits_t = int64_t;
  static constexpr bits_t kMantissaBits = 52;
  static constexpr double kRounder = 6755399441055744; // 1.5 · 2^52
  static constexpr double kInverseOfLn2 = 1.4426950408889634;
  static constexpr double kLn2High = 0.6931471805598903;
  static constexpr double kLn2Low = 5.497923018708371e-14;
  static constexpr double kLowest = -708;
  static constexpr double kHighest = 746;
  static constexpr double kScaled = 512;
  static constexpr std::array<double, 10> kQ = {
      0.5000000000000011,
      0.16666666666666413,
      0.04166666666653015,
      0.008333333333494465,
      0.0013888888943631803,
      0.00019841269506578428,
      2.4801493097261263e-05,
      2.7557586370338387e-06,
      2.763024893189953e-07,
      2.5000063549257597e-08}; // 3.7e-18
};

#if defined(CPU_CAPABILITY_AVX512)

// value · 2^n, n an integer.
C10_ALWAYS_INLINE vec::Vectorized<float> times_power_of_2(
    const vec::Vectorized<float>& value,
    const vec::Vectorized<float>& n) {
  return _mm512_scalef_ps(value, n);
}
C10_ALWAYS_INLINE vec::Vectorized<double> times_power_of_2(
    const vec::Vectorized<double>& value,
    const vec::Vectorized<double>& n) {
  return _mm512_scalef_pd(value, n);
}

// 1 / value for a value that is neither tiny nor huge. A division of a whole vector takes as long as all the
// rest of the function: instead, steps of Newton's iteration from the processor's estimate of 14 bits,
// each of which doubles them; the last rounds nearly as a division does.
C10_ALWAYS_INLINE vec::Vectorized<float> inverse(const vec::Vectorized<float>& value) {
  const __m512 estimate = _mm512_rcp14_ps(value);
  const __m512 error = _mm512_fnmadd_ps(value, estimate, _mm512_set1_ps(1));
  return _mm512_fmadd_ps(estimate, error, estimate);
}
C10_ALWAYS_INLINE vec::Vectorized<double> inverse(const vec::Vectorized<double>& value) {
  __m512d estimate = _mm512_rcp14_pd(value);
  for (int step = 0; step < 2; ++step) {
    const __m512d error = _mm512_fnmadd_pd(value, estimate, _mm512_set1_pd(1));
    estimate = _mm512_fmadd_pd(estimate, error, estimate);
  }
  return estimate;
}

#else

// value · 2^n for an integer n of which 2^n is a normal number.
template <typename T>
C10_ALWAYS_INLINE vec::Vectorized<T> times_power_of_2(
    const vec::Vectorized<T>& value,
    const vec::Vectorized<T>& n) {
  using Vec = vec::Vectorized<T>;
  using bits_t = typename ExpConstants<T>::bits_t;
  // An integer in the low bits of a number's representation, shifted into the exponent's place.
  const auto exponent = vec::cast<bits_t>(n + Vec(ExpConstants<T>::kRounder))
      << vec::Vectorized<bits_t>(ExpConstants<T>::kMantissaBits);
  return value * vec::cast<T>(vec::cast<bits_t>(Vec(1)) + exponent);
}

template <typename T>
C10_ALWAYS_INLINE vec::Vectorized<T> inverse(const vec::Vectorized<T>& value) {
  return vec::Vectorized<T>(1) / value;
}

#endif

struct Sigmoid {
  template <typename T>
  C10_ALWAYS_INLINE vec::Vectorized<T> operator()(const vec::Vectorized<T>& x) const {
    using Vec = vec::Vectorized<T>;
    using Constants = ExpConstants<T>;
    constexpr auto& kQ = Constants::kQ;
    const Vec one(1), rounder(Constants::kRounder);

    const auto z = vec::clamp(x.neg(), Vec(Constants::kLowest), Vec(Constants::kHighest));
    const auto n = vec::fmadd(z, Vec(Constants::kInverseOfLn2), rounder) - rounder;
    const auto r =
        vec::fmadd(n, Vec(-Constants::kLn2Low), vec::fmadd(n, Vec(-Constants::kLn2High), z));
    auto q = Vec(kQ.back());
    for (size_t i = kQ.size() - 1; i-- > 0;) {
      q = vec::fmadd(q, r, Vec(kQ[i]));
    }
    const auto exp_of_r_minus_1 = vec::fmadd(q * r, r, r);
    const auto m = vec::clamp_max(n, Vec(Constants::kScaled));
    const auto power = times_power_of_2(one, m);
    // 1 + power is exact where the fraction matters most: one rounding.
    const auto denominator = vec::fmadd(exp_of_r_minus_1, power, one + power);
    return times_power_of_2(inverse(denominator), m - n);
  }
};

#else

// exp(-x) overflows for large negative x and makes the result 0, where it still is a small number:
// exp(x), because 1 + exp(x) is 1 there.
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

#endif

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
