// The innermost loop of depthwise_conv2d_ext's gradient of the weight.
//
// grad_weight[tap] is a sum of products of grad_output and the input over all positions. As in
// DepthwiseConv2dExtTiles.h, both memory orders are marched through along one dimension (rows of
// planes, pixels of channels last), along which the taps of a group meet neighbouring positions. At
// each step one vector of the input for every tap of the other dimension meets the vectors of
// grad_output of the last positions, one for every tap of the group: 1 + kCross loads for
// kTaps * kCross multiply-adds, whose sums stay in registers.
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtLanes.h>
#include <array>

namespace at::native {
namespace {

// Taps of a group that are taken at once with 1, 2, 3 ... of the other dimension: their sums, their
// vectors of grad_output and one of the input are to be registers. 5 x 5 take 31 of AVX-512's 32. Of the
// 16 of AVX2, 3 x 3 take 13 and 5 x 2 all; 3 x 5 and 4 x 7 are for pixels that are far (below). 6 are
// never taken.
// AddressSanitizer looks at each access to any of them: two taps, or it takes three times as long to compile.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kFewRegisters = true;
constexpr std::array<int, 7> kTapsAtOnce = {2, 2, 2, 2, 2, 1, 2};
#elif defined(__x86_64__) && !defined(CPU_CAPABILITY_AVX512)
constexpr bool kFewRegisters = true;
constexpr std::array<int, 7> kTapsAtOnce = {7, 5, 3, 3, 3, 1, 4};
#else
constexpr bool kFewRegisters = false;
constexpr std::array<int, 7> kTapsAtOnce = {4, 4, 4, 4, 5, 1, 4};
#endif
constexpr int kMaxProductCross = kTapsAtOnce.size();

// What is gone through for the sums: some rows in the first-level cache, or a tensor as it is.
enum class Lines { kNear, kFar };

// What later products read, asked for along the way: two cache lines with each step, in bytes from the
// first ones. They go to the second-level cache; the first one has no room (240@28 k5 N=16 2.5 ms, and
// 2.0 this way).
struct Ahead {
  const void* first;
  int64_t step;
  int64_t repeat_step;
};

template <typename scalar_t>
struct Products {
  using acc_t = opmath_type<scalar_t>;
  // Vectors in two neighbouring cache lines, which memory delivers twice as fast together as every other
  // line alone (25 GB/s instead of 12).
  static constexpr int64_t kPairVectors =
      2 * kCacheLine / (Vectorized<acc_t>::size() * static_cast<int64_t>(sizeof(scalar_t)));
  acc_t* sums; // one vector for each pair of taps
  int64_t tap_step; // of sums, between taps of the group
  int64_t cross_step; // of sums, between taps of the other dimension
  const scalar_t* input; // what tap 0 of the group meets at position 0
  int64_t input_step; // between positions
  const int64_t* offsets; // of `input`, for each tap of the other dimension
  const scalar_t* grad; // of position 0
  int64_t grad_step;
  int64_t positions;
  // Tap i meets step j of the input at position j - i. The steps that are inside the image:
  int64_t first;
  int64_t last;
  int64_t repeats; // lines of the same form, one after the other
  int64_t input_repeat_step;
  int64_t grad_repeat_step;
  int64_t lanes; // in use
  // Neighbouring vectors of lanes, one after the other, and from one's sums to the next one's.
  int64_t vectors = 1;
  int64_t vector_sums = 0;
  std::array<Ahead, kPairVectors> ahead; // by each of a pair of cache lines; of null, nothing
  Ahead also_ahead; // by the first of them
};

// Whole vectors, or a part of one.
enum class Lanes { kAll, kSome };

// What is in registers. Lambdas that refer to it would have GCC 12 keep it in memory, loops a part.
template <typename scalar_t, Lanes kLanes, int kTaps, int kCross>
struct ProductSums {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  using Taps = std::make_integer_sequence<int, kTaps>;
  using Cross = std::make_integer_sequence<int, kCross>;
  using Sums = std::make_integer_sequence<int, kTaps * kCross>;
  Vec sums[kTaps * kCross];
  Vec grads[kTaps]; // of the positions j, j - 1, ...: each is loaded once and moved on

  explicit C10_ALWAYS_INLINE ProductSums(const Products<scalar_t>& p, const acc_t* values)
      : ProductSums(p, values, Sums(), Taps()) {}

  static C10_ALWAYS_INLINE Vec load(const scalar_t* source, const Products<scalar_t>& p) {
    return kLanes == Lanes::kAll ? load_lanes(source) : load_lanes(source, p.lanes);
  }

  static C10_ALWAYS_INLINE int64_t sum_at(const Products<scalar_t>& p, int n) {
    return n / kCross * p.tap_step + n % kCross * p.cross_step;
  }

  // Members that begin as something: arrays of vectors without a value are zeroed by a loop, and GCC 12
  // keeps in memory what a loop goes through.
  template <int... n, int... i>
  C10_ALWAYS_INLINE ProductSums(
      const Products<scalar_t>& p,
      const acc_t* values,
      std::integer_sequence<int, n...> /*sums*/,
      std::integer_sequence<int, i...> /*taps*/)
      : sums{Vec::loadu(values + sum_at(p, n))...}, grads{(void(i), Vec(acc_t(0)))...} {}

  template <int... n>
  C10_ALWAYS_INLINE void store_sums(
      const Products<scalar_t>& p,
      acc_t* values,
      std::integer_sequence<int, n...> /*sums*/) const {
    (sums[n].store(values + sum_at(p, n)), ...);
  }

  // The gradient at a position; no position, no gradient.
  static C10_ALWAYS_INLINE Vec
  grad_at(const scalar_t* grad, int64_t position, const Products<scalar_t>& p) {
    const bool inside = position >= 0 && position < p.positions;
    return inside ? load(grad + position * p.grad_step, p) : Vec(acc_t(0));
  }

  // The gradients before step p.first.
  template <int... i>
  C10_ALWAYS_INLINE void load_grads(
      const scalar_t* grad,
      const Products<scalar_t>& p,
      std::integer_sequence<int, i...> /*taps*/) {
    ((grads[i] = grad_at(grad, p.first - 1 - i, p)), ...);
  }

  // As a loop, k3 on 144@56 took 97 us instead of 88.
  template <int kLast>
  C10_ALWAYS_INLINE void move_grads() {
    if constexpr (kLast > 0) {
      grads[kLast] = grads[kLast - 1];
      move_grads<kLast - 1>();
    }
  }

  template <int b, int... i>
  C10_ALWAYS_INLINE void multiply(const Vec& values, std::integer_sequence<int, i...> /*taps*/) {
    ((sums[i * kCross + b] = vec::fmadd(values, grads[i], sums[i * kCross + b])), ...);
  }

  template <int... b>
  C10_ALWAYS_INLINE void step(
      const scalar_t* input,
      const Vec& grad,
      const Products<scalar_t>& p,
      std::integer_sequence<int, b...> /*cross*/) {
    move_grads<kTaps - 1>();
    grads[0] = grad;
    (multiply<b>(load(input + p.offsets[b], p), Taps()), ...);
  }
};

inline const char* first_ahead(const Ahead& ahead, int64_t repeat) {
  return static_cast<const char*>(ahead.first) + repeat * ahead.repeat_step;
}
C10_ALWAYS_INLINE void ask_for(const char* lines) {
  __builtin_prefetch(lines, 0, 2);
  __builtin_prefetch(lines + kCacheLine, 0, 2);
}

template <typename scalar_t, Lanes kLanes, int kTaps, int kCross>
void add_products(const Products<scalar_t>& p) {
  using Vec = Vectorized<opmath_type<scalar_t>>;
  constexpr int64_t kPair = Products<scalar_t>::kPairVectors;
  const int64_t positions_end = std::min(p.positions, p.last);
  for (int64_t v = 0; v < p.vectors; ++v) {
    const int64_t lane = v * Vec::size();
    const Ahead of_vector = p.ahead[v % kPair];
    const bool also = v % kPair == 0 && p.also_ahead.first;
    const int64_t pair = v / kPair * 2 * kCacheLine;
    auto* const values = p.sums + v * p.vector_sums;
    ProductSums<scalar_t, kLanes, kTaps, kCross> sums(p, values);
    for (int64_t repeat = 0; repeat < p.repeats; ++repeat) {
      const scalar_t* const input = p.input + lane + repeat * p.input_repeat_step;
      const scalar_t* const grad = p.grad + lane + repeat * p.grad_repeat_step;
      const char* const ahead = first_ahead(of_vector, repeat) + pair;
      const char* const also_ahead = first_ahead(p.also_ahead, repeat) + pair;
      sums.load_grads(grad, p, typename decltype(sums)::Taps());
      int64_t j = p.first;
      for (; j < positions_end; ++j) {
        if (of_vector.first) {
          ask_for(ahead + j * of_vector.step);
        }
        if (also) {
          ask_for(also_ahead + j * p.also_ahead.step);
        }
        sums.step(
            input + j * p.input_step,
            sums.load(grad + j * p.grad_step, p),
            p,
            typename decltype(sums)::Cross());
      }
      for (; j < p.last; ++j) {
        sums.step(
            input + j * p.input_step,
            Vectorized<opmath_type<scalar_t>>(0),
            p,
            typename decltype(sums)::Cross());
      }
    }
    sums.store_sums(p, values, typename decltype(sums)::Sums());
  }
}

template <typename scalar_t>
using ProductFunction = void (*)(const Products<scalar_t>&);

// How many taps of the other dimension to take at once with groups of `group_taps`: 3, 5 and 7 whole, else
// by four. With few registers, 7 are whole where lines are far and 5 where groups are small: each pass
// less over what is far outweighs sums in memory (AVX2, channels last, 96@56 k7 N=16 18.2 ms instead of
// 21.9, 144@56 k5s2 167 us instead of 181), which cost more than passes over what is near
// (NCHW 240@28 k5 453 us instead of 319, 384@14 k7 296 instead of 262).
inline int64_t cross_taps_at_once(int64_t taps, int64_t group_taps, Lines lines) {
  if (taps == 5) {
    return kFewRegisters && group_taps > kTapsAtOnce[taps - 1] ? 2 : taps;
  }
  const bool whole = taps == kMaxProductCross && (!kFewRegisters || lines == Lines::kFar);
  return whole ? taps : std::min<int64_t>(taps, 4);
}
inline int64_t group_taps_at_once(int64_t taps, int64_t cross) {
  return std::min<int64_t>(taps, kTapsAtOnce[cross - 1]);
}

template <typename scalar_t, Lanes kLanes, int kCross, int... kTapsLessOne>
ProductFunction<scalar_t> choose_taps(
    int64_t taps,
    std::integer_sequence<int, kTapsLessOne...> /*unused*/) {
  static constexpr std::array<ProductFunction<scalar_t>, sizeof...(kTapsLessOne)> kFunctions = {
      &add_products<scalar_t, kLanes, kTapsLessOne + 1, kCross>...};
  return kFunctions[taps - 1];
}

template <typename scalar_t, Lanes kLanes, int kCross = kMaxProductCross>
ProductFunction<scalar_t> product_function(int64_t taps, int64_t cross) {
  if constexpr (kCross > 1) {
    if (cross < kCross) {
      return product_function<scalar_t, kLanes, kCross - 1>(taps, cross);
    }
  }
  return choose_taps<scalar_t, kLanes, kCross>(
      taps, std::make_integer_sequence<int, kTapsAtOnce[kCross - 1]>());
}

} // namespace
} // namespace at::native
