// CPU kernels of axpy_ext; compiled once for each CPU capability.
//
// Integers, complex numbers and strided floats are plain loops that the compiler makes vectors of: one
// function says what an element's arithmetic is, with a fused multiply-add where the capability has
// one, so that the vector body and the loop's rest round alike. Contiguous floats, and the 16-bit types,
// whose conversions compilers do not vectorise and which compute in float, go through at::vec.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/AxpyExt.h>

#include <ATen/Dispatch.h>
#include <ATen/native/cpu/VectorLoops.h>
#include <c10/core/Scalar.h>
#include <cmath>

namespace at::native {
namespace {

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

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(axpy_ext_stub, &axpy_ext_kernel)

} // namespace at::native
