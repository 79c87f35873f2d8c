// CPU kernels of sigmoid_ext, axpy_ext and lltm_cell, compiled once for each CPU capability; in one file because most
// of its compilation is that of headers.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/AxpyExt.h>
#include <ATen/native/LltmCell.h>
#include <ATen/native/SigmoidExt.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/VectorLoops.h>
#include <c10/core/Scalar.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace at::native {
namespace {

// --- sigmoid_ext ---------------------------------------------------------------------------------
//
// 1 / (1 + exp(-x)) with an exp of its own: at::vec's is a call for each vector, into another library,
// that every constant and every register has to be saved across. exp(-x) = 2^n · exp(r) overflows for
// large negative x, where the result still is a small number: it is 2^(m - n) / (1 + 2^m · exp(r)) with
// m = min(n, kScaled), because beside 2^kScaled the 1 is lost. No branch: how a lane is computed depends
// on no other, and a NaN stays one, multiplied and added to. 16-bit types compute in float.

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

// --- axpy_ext ------------------------------------------------------------------------------------
//
// Integers, complex numbers and strided floats are plain loops that the compiler makes vectors of: one
// function says what an element's arithmetic is, with a fused multiply-add where the capability has
// one, so that the vector body and the loop's rest round alike. Contiguous floats, and the 16-bit types,
// whose conversions compilers do not vectorise and which compute in float, go through at::vec.

template <typename T>
T multiply_add(T a, T b, T c) {
#ifdef __FMA__
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// A complex factor. One whose real or imaginary part is 0 leaves two terms to an element, which are
// one fused operation; of three terms the products are summed first, as complex numbers are
// multiplied elsewhere, because a sum that begins with c rounds what may be far larger than they.
template <typename T, bool kTwoTerms>
struct ComplexFactor {
  c10::complex<T> value;
};

template <typename T, bool kTwoTerms>
c10::complex<T> multiply_add(
    ComplexFactor<T, kTwoTerms> factor,
    c10::complex<T> b,
    c10::complex<T> c) {
  const T real = factor.value.real();
  const T imag = factor.value.imag();
  if constexpr (kTwoTerms) {
    return {
        multiply_add(real, b.real(), multiply_add(-imag, b.imag(), c.real())),
        multiply_add(real, b.imag(), multiply_add(imag, b.real(), c.imag()))};
  } else {
    return {
        multiply_add(real, b.real(), -(imag * b.imag())) + c.real(),
        multiply_add(real, b.imag(), imag * b.real()) + c.imag()};
  }
}

// Integers of one width share their arithmetic, which is modulo 2^bits. 32 bits at least, because a
// product of two promoted uint16_t would overflow int.
inline uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  return a * b + c;
}
inline uint64_t multiply_add(uint64_t a, uint64_t b, uint64_t c) {
  return a * b + c;
}

// alpha · self + other, rounded once where the capability has a fused multiply-add.
template <typename T>
struct VectorAxpy {
  using Vec = vec::Vectorized<T>;
  explicit VectorAxpy(T alpha) : alpha_(alpha) {}
  Vec operator()(const Vec& self, const Vec& other) const {
    return vec::fmadd(alpha_, self, other);
  }

 private:
  Vec alpha_;
};

// One run: in[k] are self and other, `wide_t` is what a storage_t computes in.
template <typename storage_t, typename wide_t, typename factor_t>
void axpy_run(char** data, const int64_t* strides, int64_t n, factor_t alpha) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(storage_t));
  const auto value = [alpha](storage_t self, storage_t other) {
    return static_cast<storage_t>(
        multiply_add(alpha, static_cast<wide_t>(self), static_cast<wide_t>(other)));
  };
  auto* out = reinterpret_cast<storage_t*>(data[0]);
  const auto* self = reinterpret_cast<const storage_t*>(data[1]);
  const auto* other = reinterpret_cast<const storage_t*>(data[2]);
  // An output that is one of the inputs overlaps it exactly (TensorIterator refuses anything else),
  // so no iteration depends on another.
#if defined(__GNUC__) && !defined(__clang__)
#define AXPY_EXT_INDEPENDENT _Pragma("GCC ivdep")
#else
#define AXPY_EXT_INDEPENDENT
#endif
  const bool contiguous = strides[0] == kSize && strides[1] == kSize && strides[2] == kSize;
  if constexpr (std::is_floating_point_v<storage_t>) {
    if (contiguous) {
      // Two vectors at a time, which GCC's own loop is not: 100,000 floats 11.9 us, 11.0 like this.
      vector_run<storage_t>(
          data, strides, n, VectorAxpy<storage_t>(alpha), std::make_index_sequence<2>());
      return;
    }
  }
  if (contiguous) {
    AXPY_EXT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      out[i] = value(self[i], other[i]);
    }
  } else if (strides[0] == kSize && strides[1] == kSize && strides[2] == 0) {
    const auto repeated = *other;
    AXPY_EXT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      out[i] = value(self[i], repeated);
    }
  } else if (strides[0] == kSize && strides[1] == 0 && strides[2] == kSize) {
    const auto repeated = *self;
    AXPY_EXT_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) {
      out[i] = value(repeated, other[i]);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      *reinterpret_cast<storage_t*>(data[0] + i * strides[0]) = value(
          *reinterpret_cast<const storage_t*>(data[1] + i * strides[1]),
          *reinterpret_cast<const storage_t*>(data[2] + i * strides[2]));
    }
  }
#undef AXPY_EXT_INDEPENDENT
}

template <typename storage_t, typename wide_t = storage_t, typename factor_t = wide_t>
void axpy_kernel(TensorIteratorBase& iter, factor_t alpha) {
  iter.for_each([alpha](char** data, const int64_t* strides, int64_t n) {
    axpy_run<storage_t, wide_t>(data, strides, n, alpha);
  });
  iter.cast_outputs();
}

template <typename storage_t, typename T>
void axpy_complex_kernel(TensorIteratorBase& iter, c10::complex<T> alpha) {
  if (alpha.real() == T(0) || alpha.imag() == T(0)) {
    axpy_kernel<storage_t, c10::complex<T>>(iter, ComplexFactor<T, true>{alpha});
  } else {
    axpy_kernel<storage_t, c10::complex<T>>(iter, ComplexFactor<T, false>{alpha});
  }
}

template <typename scalar_t>
void axpy_reduced_kernel(TensorIteratorBase& iter, float alpha) {
  using Vec = vec::Vectorized<scalar_t>;
  vector_kernel<scalar_t, 2>(iter, [axpy = VectorAxpy(alpha)](const Vec& self, const Vec& other) {
    return in_opmath<scalar_t>(axpy, self, other);
  });
}

// alpha modulo 2^64; its low bits are alpha for every narrower type.
uint64_t bits_of(const Scalar& alpha) {
  return static_cast<uint64_t>(alpha.toLong());
}

void axpy_ext_kernel(TensorIteratorBase& iter, const Scalar& alpha) {
  switch (const auto dtype = iter.common_dtype()) {
    case kBool:
      // Storage of 0 and 1: alpha is one of them too.
      iter.for_each([factor = alpha.toBool()](char** data, const int64_t* strides, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          *reinterpret_cast<bool*>(data[0] + i * strides[0]) =
              (factor && *reinterpret_cast<const bool*>(data[1] + i * strides[1])) ||
              *reinterpret_cast<const bool*>(data[2] + i * strides[2]);
        }
      });
      iter.cast_outputs();
      return;
    case kByte:
    case kChar:
      return axpy_kernel<uint8_t, uint32_t>(iter, static_cast<uint32_t>(bits_of(alpha)));
    case kShort:
      return axpy_kernel<uint16_t, uint32_t>(iter, static_cast<uint32_t>(bits_of(alpha)));
    case kInt:
      return axpy_kernel<uint32_t>(iter, static_cast<uint32_t>(bits_of(alpha)));
    case kLong:
      return axpy_kernel<uint64_t>(iter, bits_of(alpha));
    case kFloat:
      return axpy_kernel<float>(iter, alpha.toFloat());
    case kDouble:
      return axpy_kernel<double>(iter, alpha.toDouble());
    case kComplexHalf:
      return axpy_complex_kernel<c10::complex<Half>>(iter, alpha.toComplexFloat());
    case kComplexFloat:
      return axpy_complex_kernel<c10::complex<float>>(iter, alpha.toComplexFloat());
    case kComplexDouble:
      return axpy_complex_kernel<c10::complex<double>>(iter, alpha.toComplexDouble());
    case kHalf:
      return axpy_reduced_kernel<Half>(iter, alpha.toFloat());
    case kBFloat16:
      return axpy_reduced_kernel<BFloat16>(iter, alpha.toFloat());
    default:
      TORCH_CHECK(false, "axpy_ext(): there is no kernel for the result's dtype ", dtype);
  }
}

// --- lltm_cell -----------------------------------------------------------------------------------
//
// Work is cut into segments: kSegment neighbouring hidden units of one row. A segment's operands are
// brought into small arrays of the accumulation type (float for 16-bit types), whatever their strides
// and dtype, and all arithmetic is done there by at::vec over whole vectors. No element is computed
// by other code than its neighbours, so no bit depends on where threads divide the work.

// A multiple of every vector length; ten arrays of it stay in the first-level cache.
constexpr int64_t kSegment = 128;
// Transcendentals of a segment cost about as much as this many elements of a plain loop.
constexpr int64_t kSegmentsPerTask = 8;
constexpr int64_t kBiasElementsPerTask = 32768;
// Bias gradients are summed in two steps: the error of a sum grows with the number of its terms.
constexpr int64_t kRowsPerSum = 8;
static_assert(kLltmRowsPerPartial % kRowsPerSum == 0);

template <typename T>
struct alignas(64) Buffer {
  static_assert(kSegment % vec::Vectorized<T>::size() == 0);

  std::array<T, kSegment> data;

  vec::Vectorized<T> load(int64_t i) const {
    return vec::Vectorized<T>::loadu(data.data() + i);
  }
  void store(int64_t i, const vec::Vectorized<T>& value) {
    value.store(data.data() + i);
  }

  // n elements at the given stride; zeros after them, and zeros for no tensor.
  template <typename scalar_t>
  void read(const scalar_t* from, int64_t stride, int64_t n) {
    if (from == nullptr) {
      n = 0;
    } else if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) {
        data[i] = static_cast<T>(from[i]);
      }
    } else {
      for (int64_t i = 0; i < n; ++i) {
        data[i] = static_cast<T>(from[i * stride]);
      }
    }
    std::fill(data.begin() + n, data.end(), T(0));
  }

  template <typename scalar_t>
  void write(scalar_t* to, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<scalar_t>(data[i]);
    }
  }
};

// A [B, S] operand of any strides, or none.
template <typename scalar_t>
struct Rows {
  const scalar_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t stride = 0;

  explicit Rows(const TensorBase& tensor) {
    if (tensor.defined()) {
      data = tensor.const_data_ptr<scalar_t>();
      row_stride = tensor.stride(0);
      stride = tensor.stride(1);
    }
  }
  const scalar_t* at(int64_t row, int64_t column) const {
    return data == nullptr ? nullptr : data + row * row_stride + column * stride;
  }
};

// exp(-|x|) never overflows.
template <typename Vec>
Vec sigmoid(const Vec& x) {
  const Vec one(1);
  const auto e = exp_of(x.abs().neg());
  return Vec::blendv(e, one, x >= Vec(0)) / (one + e);
}

template <typename Vec>
Vec elu(const Vec& x) {
  return Vec::blendv(x.expm1(), x, x > Vec(0));
}

template <typename scalar_t>
void lltm_forward(
    const TensorBase& new_h_tensor,
    const TensorBase& new_cell_tensor,
    const TensorBase& gates_tensor,
    const TensorBase& old_cell_tensor) {
  using T = opmath_type<scalar_t>;
  using Vec = vec::Vectorized<T>;
  const auto state = new_h_tensor.size(1);
  const auto segments = (state + kSegment - 1) / kSegment;
  auto* new_h = new_h_tensor.mutable_data_ptr<scalar_t>();
  auto* new_cell = new_cell_tensor.mutable_data_ptr<scalar_t>();
  const auto* gates = gates_tensor.const_data_ptr<scalar_t>();
  const Rows<scalar_t> old_cell(old_cell_tensor);

  const auto work = [&](int64_t begin, int64_t end) {
    Buffer<T> i_gate, o_gate, candidate, cell;
    for (int64_t task = begin; task < end; ++task) {
      const auto row = task / segments;
      const auto first = task % segments * kSegment;
      const auto n = std::min(kSegment, state - first);
      const auto* row_gates = gates + row * 3 * state + first;
      i_gate.read(row_gates, 1, n);
      o_gate.read(row_gates + state, 1, n);
      candidate.read(row_gates + 2 * state, 1, n);
      cell.read(old_cell.at(row, first), old_cell.stride, n);
      for (int64_t k = 0; k < n; k += Vec::size()) {
        const auto c = vec::fmadd(elu(candidate.load(k)), sigmoid(i_gate.load(k)), cell.load(k));
        cell.store(k, c);
        o_gate.store(k, c.tanh() * sigmoid(o_gate.load(k)));
      }
      cell.write(new_cell + row * state + first, n);
      o_gate.write(new_h + row * state + first, n);
    }
  };
  at::parallel_for(0, new_h_tensor.size(0) * segments, kSegmentsPerTask, work);
}

// One segment of one row backward, in place: gates become their gradients, cell becomes the old
// cell's.
//   g = ∂cell + ∂h · o · (1 - tanh²(cell)): the gradient of new_cell and of old_cell
//   ∂i = g · c · i · (1 - i), ∂o = ∂h · tanh(cell) · o · (1 - o), ∂c = g · i · elu'
// and the gradients that arrive for the gates themselves are added.
template <typename T>
struct BackwardSegment {
  using Vec = vec::Vectorized<T>;

  Buffer<T> i_gate, o_gate, candidate, cell, grad_h, grad_cell;
  std::array<Buffer<T>, 3> grad_gates;

  void compute(int64_t n) {
    const Vec one(1), zero(0);
    for (int64_t k = 0; k < n; k += Vec::size()) {
      const auto x = candidate.load(k);
      const auto i = sigmoid(i_gate.load(k));
      const auto o = sigmoid(o_gate.load(k));
      const auto t = cell.load(k).tanh();
      const auto slope = Vec::blendv(exp_of(x), one, x > zero);
      const auto dh = grad_h.load(k);
      const auto g = vec::fmadd(dh * o, one - t * t, grad_cell.load(k));
      cell.store(k, g);
      i_gate.store(k, g * elu(x) * i * (one - i) + grad_gates[0].load(k));
      o_gate.store(k, dh * t * o * (one - o) + grad_gates[1].load(k));
      candidate.store(k, g * i * slope + grad_gates[2].load(k));
    }
  }
};

template <typename scalar_t>
void lltm_backward(
    const TensorBase& grad_of_gates_tensor,
    const TensorBase& grad_old_cell_tensor,
    const TensorBase& partials_tensor,
    const TensorBase& grad_h_tensor,
    const TensorBase& grad_cell_tensor,
    const TensorBase& grad_gates_tensor,
    const TensorBase& new_cell_tensor,
    const TensorBase& gates_tensor) {
  using T = opmath_type<scalar_t>;
  using Vec = vec::Vectorized<T>;
  const auto batch = new_cell_tensor.size(0);
  const auto state = new_cell_tensor.size(1);
  const auto segments = (state + kSegment - 1) / kSegment;
  const auto row_blocks = (batch + kLltmRowsPerPartial - 1) / kLltmRowsPerPartial;
  auto* grad_of_gates = grad_of_gates_tensor.mutable_data_ptr<scalar_t>();
  auto* grad_old_cell = grad_old_cell_tensor.mutable_data_ptr<scalar_t>();
  auto* partials = partials_tensor.defined() ? partials_tensor.mutable_data_ptr<T>() : nullptr;
  const auto* gates = gates_tensor.const_data_ptr<scalar_t>();
  const auto* new_cell = new_cell_tensor.const_data_ptr<scalar_t>();
  const Rows<scalar_t> grad_h(grad_h_tensor), grad_cell(grad_cell_tensor);
  const Rows<scalar_t> grad_gates(grad_gates_tensor);

  // A task is a segment of the columns for one block of rows, whose bias gradients it sums.
  const auto work = [&](int64_t begin, int64_t end) {
    BackwardSegment<T> segment;
    std::array<Buffer<T>, 3> sums, few;
    const auto add = [](Buffer<T>& sum, const Buffer<T>& terms, int64_t n) {
      for (int64_t k = 0; k < n; k += Vec::size()) {
        sum.store(k, sum.load(k) + terms.load(k));
      }
    };
    for (int64_t task = begin; task < end; ++task) {
      const auto block = task / segments;
      const auto first = task % segments * kSegment;
      const auto n = std::min(kSegment, state - first);
      const auto end_row = std::min(batch, (block + 1) * kLltmRowsPerPartial);
      for (int64_t part = 0; part < 3; ++part) {
        sums[part].data.fill(T(0));
        few[part].data.fill(T(0));
      }
      for (int64_t row = block * kLltmRowsPerPartial; row < end_row; ++row) {
        const std::array<Buffer<T>*, 3> parts = {
            &segment.i_gate, &segment.o_gate, &segment.candidate};
        for (int64_t part = 0; part < 3; ++part) {
          const auto column = part * state + first;
          parts[part]->read(gates + row * 3 * state + column, 1, n);
          segment.grad_gates[part].read(grad_gates.at(row, column), grad_gates.stride, n);
        }
        segment.cell.read(new_cell + row * state + first, 1, n);
        segment.grad_h.read(grad_h.at(row, first), grad_h.stride, n);
        segment.grad_cell.read(grad_cell.at(row, first), grad_cell.stride, n);
        segment.compute(n);
        segment.cell.write(grad_old_cell + row * state + first, n);
        for (int64_t part = 0; part < 3; ++part) {
          parts[part]->write(grad_of_gates + row * 3 * state + part * state + first, n);
          add(few[part], *parts[part], n);
          if ((row + 1) % kRowsPerSum == 0 || row + 1 == end_row) {
            add(sums[part], few[part], n);
            few[part].data.fill(T(0));
          }
        }
      }
      if (partials != nullptr) {
        for (int64_t part = 0; part < 3; ++part) {
          sums[part].write(partials + (block * 3 + part) * state + first, n);
        }
      }
    }
  };
  at::parallel_for(0, row_blocks * segments, 1, work);
}

template <typename scalar_t>
void lltm_bias(const TensorBase& grad_bias_tensor, const TensorBase& partials_tensor) {
  using T = opmath_type<scalar_t>;
  const auto columns = grad_bias_tensor.size(0);
  const auto blocks = partials_tensor.size(0);
  const auto* partials = partials_tensor.const_data_ptr<T>();
  auto* grad_bias = grad_bias_tensor.mutable_data_ptr<scalar_t>();
  const auto work = [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kSegment) {
      const auto n = std::min(kSegment, end - first);
      Buffer<T> sum;
      sum.data.fill(T(0));
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t k = 0; k < n; ++k) {
          sum.data[k] += partials[block * columns + first + k];
        }
      }
      sum.write(grad_bias + first, n);
    }
  };
  const auto elements_a_column = std::max<int64_t>(blocks, 1);
  at::parallel_for(
      0, columns, std::max<int64_t>(kBiasElementsPerTask / elements_a_column, kSegment), work);
}

void lltm_cell_kernel(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& old_cell) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_cpu", [&] {
    lltm_forward<scalar_t>(new_h, new_cell, gates, old_cell);
  });
}

void lltm_cell_backward_kernel(
    const TensorBase& grad_of_gates,
    const TensorBase& grad_old_cell,
    const TensorBase& bias_partials,
    const TensorBase& grad_new_h,
    const TensorBase& grad_new_cell,
    const TensorBase& grad_gates,
    const TensorBase& new_cell,
    const TensorBase& gates) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_backward_cpu", [&] {
        lltm_backward<scalar_t>(
            grad_of_gates,
            grad_old_cell,
            bias_partials,
            grad_new_h,
            grad_new_cell,
            grad_gates,
            new_cell,
            gates);
      });
}

void lltm_cell_bias_kernel(const TensorBase& grad_bias, const TensorBase& bias_partials) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, grad_bias.scalar_type(), "lltm_cell_backward_cpu", [&] {
        lltm_bias<scalar_t>(grad_bias, bias_partials);
      });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(sigmoid_ext_stub, &sigmoid_ext_kernel)
ALSO_REGISTER_AVX512_DISPATCH(sigmoid_ext_backward_stub, &sigmoid_ext_backward_kernel)
ALSO_REGISTER_AVX512_DISPATCH(axpy_ext_stub, &axpy_ext_kernel)
ALSO_REGISTER_AVX512_DISPATCH(lltm_cell_stub, &lltm_cell_kernel)
ALSO_REGISTER_AVX512_DISPATCH(lltm_cell_backward_stub, &lltm_cell_backward_kernel)
ALSO_REGISTER_AVX512_DISPATCH(lltm_cell_bias_stub, &lltm_cell_bias_kernel)

} // namespace at::native
