// Values of depthwise_conv2d_ext between memory and vectors of the arithmetic type (float for 16-bit
// tensors), and rows of them between tensors and scratch.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/irange.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>

namespace at::native {
namespace {

using at::vec::Vectorized;

// Whether vectors are arrays that a compiler without AVX2 is to keep in registers. It does not, however
// small and well unrolled the loops are, but takes its time: 287 s for the two files instead of 54. So
// there every tile is the general one, which is as fast.
#if defined(CPU_CAPABILITY_DEFAULT) && defined(__x86_64__)
constexpr bool kVectorsAreArrays = true;
#else
constexpr bool kVectorsAreArrays = false;
#endif

// Before a loop of few turns, a number known to the compiler, over arrays that are to be registers.
// Neither are those of AddressSanitizer, which looks at each access of each turn.
#if (defined(CPU_CAPABILITY_DEFAULT) && defined(__x86_64__)) || defined(__SANITIZE_ADDRESS__)
#define DEPTHWISE_UNROLL
#else
#define DEPTHWISE_UNROLL _Pragma("GCC unroll 32")
#endif

constexpr int64_t kCacheLine = 64;

// Multiply-adds that are worth handing to another thread.
constexpr int64_t kGrainOperations = 32768;

inline int64_t grain_of(int64_t operations_per_item) {
  return std::max<int64_t>(1, kGrainOperations / std::max<int64_t>(1, operations_per_item));
}

// at::parallel_for from 0 to `count`, as a function of which there is one.
C10_NOINLINE inline void in_parallel(
    int64_t count,
    int64_t grain,
    c10::function_ref<void(int64_t, int64_t)> work) {
  at::parallel_for(0, count, grain, work);
}

// Memory at a cache line's begin, zeroed unless all of it will be written; std::bad_alloc where there is none, which the operator
// answers with its name and sizes.
template <typename T>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t count, bool zeroed = true)
      : memory_(
            static_cast<T*>(
                ::operator new(std::max<int64_t>(count, 1) * sizeof(T), kLine, std::nothrow))) {
    if (!memory_) { // AddressSanitizer would end the process where new is to throw
      throw std::bad_alloc();
    }
    std::fill_n(data(), zeroed ? count : 0, T(0));
  }
  T* data() const {
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kLine{kCacheLine};
  struct Free {
    void operator()(T* memory) const {
      ::operator delete(memory, kLine);
    }
  };
  std::unique_ptr<T, Free> memory_;
};

// One vector of the arithmetic type.
template <typename scalar_t>
C10_ALWAYS_INLINE Vectorized<opmath_type<scalar_t>> load_lanes(const scalar_t* source) {
  if constexpr (std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    return Vectorized<scalar_t>::loadu(source);
  } else {
    Vectorized<float> values;
    vec::load_to_float<scalar_t>(source, values);
    return values;
  }
}

// The first `count` values as they are stored, zeros behind them. Of 16-bit values the loadu of PyTorch
// 2.6 leaves there, with AVX2, what was on the stack.
template <typename scalar_t>
C10_ALWAYS_INLINE Vectorized<scalar_t> load_stored(const scalar_t* source, int64_t count) {
  using Stored = Vectorized<scalar_t>;
#if defined(CPU_CAPABILITY_AVX2)
  if constexpr (sizeof(scalar_t) == 2) {
    std::array<scalar_t, Stored::size()> values{};
    std::copy_n(source, count, values.begin());
    return Stored::loadu(values.data());
  }
#endif
  return Stored::loadu(source, static_cast<int>(count));
}

// The first `count` lanes, zeros in the others.
template <typename scalar_t>
C10_ALWAYS_INLINE Vectorized<opmath_type<scalar_t>> load_lanes(
    const scalar_t* source,
    int64_t count) {
  const auto stored = load_stored(source, count);
  if constexpr (std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    return stored;
  } else {
    return std::get<0>(vec::convert_to_float<scalar_t>(stored));
  }
}

template <typename scalar_t>
bool all_finite(const scalar_t* values, int64_t count) {
  using Vec = Vectorized<opmath_type<scalar_t>>;
  // A sum of magnitudes would overflow; 0 * x is NaN for what is not finite, and sums stay NaN.
  Vec sum(0);
  Vec other(0);
  int64_t i = 0;
  for (; i + 2 * Vec::size() <= count; i += 2 * Vec::size()) {
    sum = vec::fmadd(load_lanes(values + i), Vec(0), sum);
    other = vec::fmadd(load_lanes(values + i + Vec::size()), Vec(0), other);
  }
  for (; i < count; i += Vec::size()) {
    sum =
        vec::fmadd(load_lanes(values + i, std::min<int64_t>(count - i, Vec::size())), Vec(0), sum);
  }
  sum = sum + other;
  return sum.zero_mask() == (1 << Vec::size()) - 1;
}

template <typename scalar_t>
C10_ALWAYS_INLINE void store_lanes(
    const Vectorized<opmath_type<scalar_t>>& values,
    scalar_t* target,
    int64_t count = Vectorized<opmath_type<scalar_t>>::size()) {
  if constexpr (std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    values.store(target, static_cast<int>(count));
  } else {
    vec::convert_from_float<scalar_t>(values, values).store(target, static_cast<int>(count));
  }
}

// Whether two vectors of channels that are worked on together are the even and the odd ones instead of the
// first and the last. A bfloat16 is the upper half of a float: even ones are shifted and odd ones masked,
// an instruction each on the ports that the multiply-adds need, where widening in order takes two, and
// two instead of five make one vector of them again. Forward, one thread, in order and so: 32@112 k3 N=16
// 2,310 and 1,920 us, 96@56 k7 358 and 306, 240@28 k5 N=16 2,300 and 2,060.
#if defined(CPU_CAPABILITY_AVX512)
template <typename scalar_t>
constexpr bool kEvenAndOdd = std::is_same_v<scalar_t, c10::BFloat16>;
#else
template <typename scalar_t>
constexpr bool kEvenAndOdd = false;
#endif

#if defined(CPU_CAPABILITY_AVX512)
// Not by a predicate, which GCC 12 sets again for each vector: k5 would be slower than in order.
C10_ALWAYS_INLINE __m512i upper_halves(__m512i bits) {
  return _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

// Rounded to nearest, ties to even, in the upper halves. A NaN is of values that were 16-bit ones: its lower
// half is zero, so that nothing is carried into the upper one.
C10_ALWAYS_INLINE __m512i round_to_upper_half(const Vectorized<float>& values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i below_half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  return _mm512_mask_add_epi32(below_half, odd, below_half, _mm512_set1_epi32(1));
}

C10_ALWAYS_INLINE __m512i even_and_odd(const Vectorized<float>* values) {
  return _mm512_or_si512(
      _mm512_srli_epi32(round_to_upper_half(values[0]), 16),
      upper_halves(round_to_upper_half(values[1])));
}
#endif

// Vector `v` of two that are worked on together and begin `step` lanes apart, or as kEvenAndOdd says.
template <typename scalar_t>
C10_ALWAYS_INLINE Vectorized<opmath_type<scalar_t>> load_of_two(
    const scalar_t* source,
    int v,
    int64_t step) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (kEvenAndOdd<scalar_t>) {
    const __m512i both = _mm512_loadu_si512(source);
    return _mm512_castsi512_ps(v == 0 ? _mm512_slli_epi32(both, 16) : upper_halves(both));
  }
#endif
  return load_lanes(source + v * step);
}

// One vector, or two that begin `step` lanes apart, a vector at most, or as kEvenAndOdd says.
template <int kCount, typename scalar_t>
C10_ALWAYS_INLINE void store_vectors(
    const Vectorized<opmath_type<scalar_t>>* values,
    scalar_t* target,
    int64_t step = Vectorized<opmath_type<scalar_t>>::size()) {
  static_assert(kCount == 1 || kCount == 2);
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (kCount == 2 && kEvenAndOdd<scalar_t>) {
    _mm512_storeu_si512(target, even_and_odd(values));
    return;
  }
#endif
  if constexpr (kCount == 2 && !std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    if (step == Vectorized<opmath_type<scalar_t>>::size()) {
      vec::convert_from_float<scalar_t>(values[0], values[1]).store(target);
      return;
    }
  }
  DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
    store_lanes(values[v], target + v * step);
  }
}

// The same, but for the compiler something that it cannot find again. Otherwise GCC 12 loads a vector anew
// for some of the products that it is an operand of, and keeps the addresses of all lines of a tile
// (96@56 k7 320 us, 261 so).
template <typename acc_t>
C10_ALWAYS_INLINE Vectorized<acc_t> held_in_register(const Vectorized<acc_t>& values) {
#if defined(CPU_CAPABILITY_AVX512)
  auto held = values.values;
  asm("" : "+v"(held));
  return held;
#else
  return values;
#endif
}
C10_ALWAYS_INLINE uint32_t held_in_register(uint32_t bits) {
#if defined(__GNUC__)
  asm("" : "+r"(bits));
#endif
  return bits;
}
template <typename T>
C10_ALWAYS_INLINE const T* held_in_register(const T* pointer) {
#if defined(CPU_CAPABILITY_AVX512)
  asm("" : "+r"(pointer));
#endif
  return pointer;
}

// Some lanes of a vector of the arithmetic type, a bit each.
using LaneBits = uint32_t;

#if defined(CPU_CAPABILITY_AVX512)
// Only these lanes are read or written; the others are zeros.
C10_ALWAYS_INLINE Vectorized<float> load_chosen(const float* source, LaneBits lanes) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), source);
}
C10_ALWAYS_INLINE void store_chosen(
    const Vectorized<float>& values,
    float* target,
    LaneBits lanes) {
  _mm512_mask_storeu_ps(target, static_cast<__mmask16>(lanes), values);
}
#endif

// One vector past the caches where the capability has such stores; `target` is a multiple of its bytes.
template <typename stored_t>
C10_ALWAYS_INLINE void stream_vector(const Vectorized<stored_t>& values, stored_t* target) {
#if defined(CPU_CAPABILITY_AVX512)
  __m512i bits;
  std::memcpy(&bits, &values, sizeof(bits));
  _mm512_stream_si512(reinterpret_cast<__m512i*>(target), bits);
#elif defined(CPU_CAPABILITY_AVX2)
  __m256i bits;
  std::memcpy(&bits, &values, sizeof(bits));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(target), bits);
#else
  values.store(target);
#endif
}

// store_vectors past the caches: a tensor larger than they are would push out what is to be read, and
// be read itself before it is overwritten.
template <int kCount, typename scalar_t>
C10_ALWAYS_INLINE void stream_vectors(
    const Vectorized<opmath_type<scalar_t>>* values,
    scalar_t* target) {
  if constexpr (std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
      stream_vector(values[v], target + v * Vectorized<scalar_t>::size());
    }
#if defined(CPU_CAPABILITY_AVX512)
  } else if constexpr (kCount == 2 && kEvenAndOdd<scalar_t>) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target), even_and_odd(values));
#endif
  } else if constexpr (kCount == 2) {
    stream_vector(vec::convert_from_float<scalar_t>(values[0], values[1]), target);
  } else {
    store_vectors<kCount>(values, target);
  }
}

// Before another thread may read what was streamed.
inline void finish_stream() {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  _mm_sfence();
#endif
}

// Values that follow each other in memory, written past the caches some at a time: whole vectors where
// vectors are aligned, what is before the first and after the last of them by ordinary stores.
template <typename T>
class StreamedRun {
  using Vec = Vectorized<T>;

 public:
  // Of up to `most` values at a time.
  explicit StreamedRun(int64_t most) : buffer_(most + 2 * Vec::size()) {}

  // The next values belong here.
  void go_to(T* target) {
    if (target != target_ + end_) {
      finish();
      begin_ = end_ = reinterpret_cast<uintptr_t>(target) % sizeof(Vec) / sizeof(T);
      target_ = target - begin_;
    }
  }
  // Where they are to be put for now.
  T* place() const {
    return buffer_.data() + end_;
  }
  void add(int64_t count) {
    end_ += count;
    if (end_ < Vec::size()) {
      return;
    }
    int64_t i = 0;
    if (begin_ > 0) {
      std::copy(buffer_.data() + begin_, buffer_.data() + Vec::size(), target_ + begin_);
      i = Vec::size();
      begin_ = 0;
    }
    for (; i + Vec::size() <= end_; i += Vec::size()) {
      stream_vector(Vec::loadu(buffer_.data() + i), target_ + i);
    }
    Vec::loadu(buffer_.data() + i).store(buffer_.data());
    target_ += i;
    end_ -= i;
  }
  void finish() {
    std::copy(buffer_.data() + begin_, buffer_.data() + end_, target_ + begin_);
    target_ += end_;
    begin_ = end_ = 0;
    finish_stream();
  }

 private:
  AlignedBuffer<T> buffer_; // what belongs at target_, aligned, and behind it
  T* target_ = nullptr;
  int64_t begin_ = 0; // of the values that are held
  int64_t end_ = 0;
};

// By halves, so that the error does not grow with the number of lanes.
template <typename acc_t>
acc_t sum_lanes(const Vectorized<acc_t>& lanes) {
  std::array<acc_t, Vectorized<acc_t>::size()> values;
  lanes.store(values.data());
  for (size_t half = values.size() / 2; half > 0; half /= 2) {
    for (const auto i : c10::irange(half)) {
      values[i] += values[i + half];
    }
  }
  return values[0];
}

// target[i] = source[i]. Up to a vector of zeros may be written behind the end.
template <typename scalar_t>
void convert_row(const scalar_t* source, int64_t count, opmath_type<scalar_t>* target) {
  using acc_t = opmath_type<scalar_t>;
  using Stored = Vectorized<scalar_t>;
  using Vec = Vectorized<acc_t>;
  for (int64_t i = 0; i < count; i += Stored::size()) {
    const Stored values = i + Stored::size() <= count ? Stored::loadu(source + i)
                                                      : load_stored(source + i, count - i);
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      values.store(target + i);
    } else {
      const auto [low, high] = vec::convert_to_float<scalar_t>(values);
      low.store(target + i);
      high.store(target + i + Vec::size());
    }
  }
}

// Column i goes to target[i % classes * pitch + i / classes]. `buffer` holds a row. Up to two vectors of
// zeros may be written behind each end.
template <typename scalar_t>
C10_NOINLINE void pack_row(
    const scalar_t* source,
    int64_t count,
    int64_t classes,
    opmath_type<scalar_t>* target,
    int64_t pitch,
    opmath_type<scalar_t>* buffer) {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  if (classes == 1) {
    convert_row(source, count, target);
    return;
  }
  const acc_t* values = buffer;
  if constexpr (std::is_same_v<scalar_t, acc_t>) {
    values = source;
  } else {
    convert_row(source, count, buffer);
  }
  const auto load = [&](int64_t from) {
    const int64_t left = std::clamp<int64_t>(count - from, 0, Vec::size());
    return left == Vec::size() ? Vec::loadu(values + from) : load_lanes(values + from, left);
  };
  const auto load_two = [&](int64_t from) {
    return vec::deinterleave2(load(from), load(from + Vec::size()));
  };
  const auto store = [&](const auto& two, int64_t first_class, int64_t i) {
    two.first.store(target + first_class * pitch + i / classes);
    two.second.store(target + (first_class + classes / 2) * pitch + i / classes);
  };
  if (classes == 2) {
    for (int64_t i = 0; i < count; i += 2 * Vec::size()) {
      store(load_two(i), 0, i);
    }
  } else if (classes == 4) {
    for (int64_t i = 0; i < count; i += 4 * Vec::size()) {
      const auto first = load_two(i);
      const auto second = load_two(i + 2 * Vec::size());
      store(vec::deinterleave2(first.first, second.first), 0, i);
      store(vec::deinterleave2(first.second, second.second), 1, i);
    }
  } else {
    for (const auto c : c10::irange(std::min(classes, count))) {
      acc_t* to = target + c * pitch;
      for (int64_t i = c; i < count; i += classes) {
        *to++ = values[i];
      }
    }
  }
}

// The other way round: target[i] from source[i % phases * pitch + i / phases], rounded.
template <typename scalar_t>
C10_NOINLINE void unpack_row(
    const opmath_type<scalar_t>* source,
    int64_t pitch,
    int64_t phases,
    scalar_t* target,
    int64_t count) {
  using Vec = Vectorized<opmath_type<scalar_t>>;
  using Stored = Vectorized<scalar_t>;
  constexpr int64_t kPair = 2 * Vec::size();
  if (phases <= 2) {
    for (int64_t i = 0; i < count; i += kPair) {
      Vec low = Vec::loadu(source + i / phases);
      Vec high = Vec::loadu(phases == 1 ? source + i + Vec::size() : source + pitch + i / phases);
      if (phases == 2) {
        std::tie(low, high) = vec::interleave2(low, high);
      }
      const int64_t here = std::min(kPair, count - i);
      if constexpr (std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
        store_lanes(low, target + i, std::min<int64_t>(here, Vec::size()));
        if (here > Vec::size()) {
          store_lanes(high, target + i + Vec::size(), here - Vec::size());
        }
      } else {
        static_assert(Stored::size() == kPair);
        vec::convert_from_float<scalar_t>(low, high).store(target + i, static_cast<int>(here));
      }
    }
    return;
  }
  for (const auto phase : c10::irange(std::min(phases, count))) {
    const opmath_type<scalar_t>* from = source + phase * pitch;
    for (int64_t i = phase; i < count; i += phases) {
      target[i] = static_cast<scalar_t>(*from++);
    }
  }
}

// A vector of the compiler's own, whose shuffles it chooses itself.
template <typename acc_t>
struct NativeVector {
  typedef acc_t Lanes __attribute__((vector_size(sizeof(acc_t) * Vectorized<acc_t>::size())));
  using Index = std::conditional_t<sizeof(acc_t) == 4, int32_t, int64_t>;
  typedef Index Indices __attribute__((vector_size(sizeof(Lanes))));
};

// Of each span of lanes of both vectors every second unit of kUnit lanes, the first one's before the second's.
template <int kUnit, int kSpan, bool kOdd, typename acc_t, int... i>
C10_ALWAYS_INLINE auto every_second_unit(
    const typename NativeVector<acc_t>::Lanes& first,
    const typename NativeVector<acc_t>::Lanes& second,
    std::integer_sequence<int, i...> /*lanes*/) {
  constexpr auto from = [](int lane) {
    const int in_half = lane % (kSpan / 2);
    const int unit = 2 * (in_half / kUnit) + kOdd;
    const bool of_second = lane % kSpan >= kSpan / 2;
    return lane / kSpan * kSpan + unit * kUnit + in_half % kUnit +
        (of_second ? int(sizeof...(i)) : 0);
  };
#if defined(__clang__)
  return __builtin_shufflevector(first, second, from(i)...);
#else
  return __builtin_shuffle(first, second, typename NativeVector<acc_t>::Indices{from(i)...});
#endif
}

// Exchanges units of lanes and vectors that are kUnit apart, for each bit of their numbers within a span.
template <int kUnit, int kSpan, typename acc_t, int kLanes>
C10_ALWAYS_INLINE void exchange_units(typename NativeVector<acc_t>::Lanes (&rows)[kLanes]) {
  constexpr std::make_integer_sequence<int, kLanes> lanes;
  constexpr int kPairs = kSpan / kUnit / 2;
  DEPTHWISE_UNROLL for (int bit = 1; bit <= kPairs; bit *= 2) {
    typename NativeVector<acc_t>::Lanes mixed[kLanes];
    DEPTHWISE_UNROLL for (int n = 0; n < kLanes / 2; ++n) {
      const int pair = n / kUnit % kPairs;
      const int begin = n / (kSpan / 2) * kSpan + n % kUnit;
      const auto& first = rows[begin + 2 * pair * kUnit];
      const auto& second = rows[begin + (2 * pair + 1) * kUnit];
      mixed[begin + pair * kUnit] =
          every_second_unit<kUnit, kSpan, false, acc_t>(first, second, lanes);
      mixed[begin + (pair + kPairs) * kUnit] =
          every_second_unit<kUnit, kSpan, true, acc_t>(first, second, lanes);
    }
    DEPTHWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
      rows[i] = mixed[i];
    }
  }
}

// A square of as many vectors as a vector has lanes: within quarters of 16 bytes, whose shuffles take a cycle,
// then the quarters.
template <typename acc_t, typename RowAt>
C10_ALWAYS_INLINE void transpose_square(
    const acc_t* from,
    int64_t from_pitch,
    const RowAt& row_at) {
  constexpr int kLanes = Vectorized<acc_t>::size();
  constexpr int kQuarter = 16 / sizeof(acc_t);
  typename NativeVector<acc_t>::Lanes rows[kLanes];
  DEPTHWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
    std::memcpy(&rows[i], from + i * from_pitch, sizeof(rows[i]));
  }
  exchange_units<1, kQuarter, acc_t>(rows);
  exchange_units<kQuarter, kLanes, acc_t>(rows);
  DEPTHWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
    std::memcpy(row_at(i), &rows[i], sizeof(rows[i]));
  }
}

template <typename acc_t>
C10_ALWAYS_INLINE void transpose_square(
    const acc_t* from,
    int64_t from_pitch,
    acc_t* to,
    int64_t to_pitch) {
  transpose_square(from, from_pitch, [=](int64_t i) { return to + i * to_pitch; });
}

// Rows or columns beyond whole squares: up to this many value by value, 10 to 17 cycles each on Zen
// 5, a third of a square, which would overlap the one before. Of the pixels of 7 x 7 it would be a
// quarter of all squares.
constexpr int64_t kMostSingleLines = 1;

// to_column(column)[row] from from[row][column]; the pitch is in values. What the function knows it has by value,
// or it would be read again after each store.
template <typename acc_t, typename ToColumn>
void transpose_to(
    const acc_t* from,
    int64_t rows,
    int64_t columns,
    int64_t from_pitch,
    const ToColumn& to_column) {
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const auto by_values = [=](int64_t first_row, int64_t first_column) {
    for (int64_t column = first_column; column < columns; ++column) {
      for (int64_t row = first_row; row < rows; ++row) {
        to_column(column)[row] = from[row * from_pitch + column];
      }
    }
  };
  if (rows < kLanes || columns < kLanes / 2) {
    by_values(0, 0);
    return;
  }
  if (columns < kLanes) { // as the weights of 3 x 3
    alignas(kCacheLine) acc_t square[kLanes][kLanes];
    alignas(kCacheLine) acc_t unused[kLanes];
    for (int64_t i = 0; i < rows; i += kLanes) {
      const int64_t row = std::min(i, rows - kLanes);
      for (const auto k : c10::irange(kLanes)) {
        load_lanes(from + (row + k) * from_pitch, columns).store(square[k]);
      }
      transpose_square(square[0], kLanes, [=, to = unused](int64_t column) {
        return column < columns ? to_column(column) + row : to;
      });
    }
    return;
  }
  const auto in_squares = [](int64_t lines) {
    const int64_t left = lines % kLanes;
    return left <= kMostSingleLines ? lines - left : lines;
  };
  const int64_t square_rows = in_squares(rows);
  const int64_t square_columns = in_squares(columns);
  // These first: a vector that is read soon after values of it were written waits for them.
  if (square_columns < columns) {
    by_values(0, square_columns);
  }
  if (square_rows < rows) {
    by_values(square_rows, 0);
  }
  // The last squares overlap those before.
  for (int64_t i = 0; i < square_rows; i += kLanes) {
    const int64_t row = std::min(i, square_rows - kLanes);
    for (int64_t k = 0; k < square_columns; k += kLanes) {
      const int64_t column = std::min(k, square_columns - kLanes);
      transpose_square(from + row * from_pitch + column, from_pitch, [=](int64_t i) {
        return to_column(column + i) + row;
      });
    }
  }
}
template <typename acc_t>
void transpose(
    const acc_t* from,
    int64_t rows,
    int64_t columns,
    int64_t from_pitch,
    acc_t* to,
    int64_t to_pitch) {
  transpose_to(
      from, rows, columns, from_pitch, [=](int64_t column) { return to + column * to_pitch; });
}

} // namespace
} // namespace at::native
