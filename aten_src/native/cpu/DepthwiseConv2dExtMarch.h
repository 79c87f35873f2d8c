// Small square windows of depthwise_conv2d_ext's forward and grad_input, where there are registers for
// more than a tile (DepthwiseConv2dExtTiles.h).
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtTileWork.h>
#include <utility>

namespace at::native {
namespace {

// Windows of 3 x 3 are marched through instead of taken by tiles. fp32, one thread, AVX-512, tiles of 4 and
// marches: NCHW 144@56 258 and 199 us, 128@80 475 and 380, 384@14 54 and 49; channels last 144@56 191 and
// 166, 384@14 29 and 23, bf16 34 and 28. Marches need more registers than AVX2 has. k5 in channels last,
// where each lane has its own 25 weights, 124 and 139; in NCHW, tiles of 7, 119 and 136.
#if defined(CPU_CAPABILITY_AVX512)
constexpr bool is_marched(int taps) {
  return taps == 3;
}
#else
constexpr bool is_marched(int /*taps*/) {
  return false;
}
#endif
// Results of a march: longer ones come back too late to the lines that the next lanes share with these
// (channels last 32@112 N=16, 16 results 2.3 ms, all 112 2.8; 8 are 5 % slower elsewhere).
constexpr int64_t kMarchResults = 16;

// Windows of kSide x kSide without tiles: line by line, each, once loaded for each of the other taps,
// multiplied into the kSide results that it meets, whose sums move on with it. Weights of 3 x 3 stay in
// registers. All indices are constants from the start: those of loops are too late for GCC 12, which
// then keeps a part of what is to be registers in memory.
template <typename scalar_t, Weights kWeights, int kKind, int kSide>
class March {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  template <int kCount>
  using Numbers = std::make_integer_sequence<int, kCount>;
  using Side = Numbers<kSide>;
  static constexpr int kVectors = vectors_of(kKind);
  static constexpr bool kHold = kSide == 3;
  static constexpr int kScales = kWeights == Weights::kOfLane ? kVectors : 1;
  // Sums of each result, each of some of the other taps: additions wait less for each other, and err
  // less. Two where three of them and the weights are more than there are registers.
  static constexpr int kChains = kHold && kScales == 1 ? 3 : 2;
  static constexpr int kTaps = kSide * kSide;
  static constexpr int kSums = kChains * kSide * kVectors;

 public:
  C10_ALWAYS_INLINE March(const Tiles<scalar_t>& t, TilePlace at, Range results)
      : March(
            t,
            at,
            results,
            Numbers<kScales>(),
            Numbers<kHold ? kTaps * kScales : 1>(),
            Numbers<kSums>(),
            Side()) {}

  C10_ALWAYS_INLINE void run() {
    const int64_t lines = results_ + kSide - 1;
    const int64_t step = t_.line_step;
    // The lines that are inside, found without divisions, which are as much as a line of a small plane.
    int64_t begin = 0;
    while (begin < lines && first_line_ + begin * step < 0) {
      ++begin;
    }
    int64_t end = lines;
    while (end > begin && first_line_ + (end - 1) * step >= t_.lines_end) {
      --end;
    }
    int64_t j = 0;
    for (; j < begin; ++j) {
      finish(j);
    }
    for (; j < std::min<int64_t>(end, kSide - 1); ++j) {
      add(source_ + j * step, Side());
      move();
    }
    for (; j < end; ++j) {
      add(source_ + j * step, Side());
      finish(j);
    }
    for (; j < lines; ++j) {
      finish(j);
    }
  }

 private:
  // Members begin as something: arrays of vectors without a value are zeroed by a loop, and GCC 12 keeps
  // in memory what a loop goes through.
  template <int... v, int... h, int... s, int... c>
  C10_ALWAYS_INLINE March(
      const Tiles<scalar_t>& t,
      TilePlace at,
      Range results,
      std::integer_sequence<int, v...> /*scales*/,
      std::integer_sequence<int, h...> /*held*/,
      std::integer_sequence<int, s...> /*sums*/,
      std::integer_sequence<int, c...> /*side*/)
      : t_(t),
        at_(at),
        results_(results.size()),
        first_line_(t.first_line + t.groups[0].line + results.begin * t.line_step),
        source_(t.source + t.groups[0].source + at.lane + first_line_),
        target_(t.target + results.begin * t.target_step + at.lane),
        scales_(t.weights + t.groups[0].weight + (kWeights == Weights::kOfLane ? at.weights : 0)),
        start_{
            (kWeights == Weights::kOfLane
                 ? Vec::loadu(t.start + start_of<acc_t>(at) + v * Vec::size())
                 : Vec(*t.start))...},
        held_{
            (kHold ? scale_at(h / kScales / kSide, h / kScales % kSide, h % kScales)
                   : Vec(acc_t(0)))...},
        sums_{(void(s), Vec(acc_t(0)))...},
        lanes_{(kKind == kRowOfPlanes ? t.cross_lanes[c] : 0)...} {}

  // Known to the compiler where it is a whole vector.
  C10_ALWAYS_INLINE int64_t vector_step() const {
    return kKind == kTwoOverlapping ? at_.vector_step : Vec::size();
  }

  static constexpr int chain_of(int cross) {
    return kChains == kSide ? cross : (cross < kSide / 2 ? 0 : 1);
  }
  // Result 0 of the sums is the one that has met the most lines.
  static constexpr int sum_index(int chain, int result, int v) {
    return (chain * kSide + result) * kVectors + v;
  }
  static constexpr int held_index(int cross, int tap, int v) {
    return (cross * kSide + tap) * kScales + v;
  }

  C10_ALWAYS_INLINE Vec scale_at(int cross, int tap, int v) const {
    const acc_t* const weights = scales_ + t_.cross[cross].weight + tap * t_.groups[0].weight_step;
    return kWeights == Weights::kOfLane ? Vec::loadu(weights + v * t_.block_step) : Vec(*weights);
  }
  template <int kCross, int kTap, int v>
  C10_ALWAYS_INLINE Vec scale() const {
    if constexpr (kHold) {
      return held_[held_index(kCross, kTap, v)];
    } else {
      return scale_at(kCross, kTap, v);
    }
  }

  template <int kCross, int kTap>
  C10_ALWAYS_INLINE void multiply(const Vec& first, const Vec& second) {
    constexpr int kSum = sum_index(chain_of(kCross), kSide - 1 - kTap, 0);
    const Vec scale_of_first = scale<kCross, kTap, 0>();
    sums_[kSum] = vec::fmadd(first, scale_of_first, sums_[kSum]);
    if constexpr (kVectors == 2 && kScales == 1) {
      sums_[kSum + 1] = vec::fmadd(second, scale_of_first, sums_[kSum + 1]);
    } else if constexpr (kVectors == 2) {
      sums_[kSum + 1] = vec::fmadd(second, scale<kCross, kTap, 1>(), sums_[kSum + 1]);
    }
  }

  template <int kCross>
  C10_ALWAYS_INLINE Vec load(const scalar_t* source) const {
    if constexpr (kKind == kRowOfPlanes) {
      return load_chosen(source, lanes_[kCross]);
    } else if constexpr (kVectors > 1) {
      return load_of_two(source, 0, 0);
    } else {
      return load_lanes(source);
    }
  }

  template <int kCross, int... kTap>
  C10_ALWAYS_INLINE void add_cross(
      const scalar_t* source,
      std::integer_sequence<int, kTap...> /*taps*/) {
    const Vec first = load<kCross>(source);
    const Vec second = kVectors > 1 ? load_of_two(source, 1, vector_step()) : first;
    (multiply<kCross, kTap>(first, second), ...);
  }

  template <int... kCross>
  C10_ALWAYS_INLINE void add(const scalar_t* line, std::integer_sequence<int, kCross...> side) {
    (add_cross<kCross>(line + t_.cross[kCross].source, side), ...);
  }

  template <int v>
  C10_ALWAYS_INLINE Vec result() const {
    const Vec first = sums_[sum_index(0, 0, v)] + start_[kScales > 1 ? v : 0];
    const Vec second = sums_[sum_index(1, 0, v)];
    if constexpr (kChains == 2) {
      return first + second;
    } else {
      return first + (second + sums_[sum_index(2, 0, v)]);
    }
  }

  // Result j - (kSide - 1) has met all of its lines.
  C10_ALWAYS_INLINE void finish(int64_t j) {
    if (j >= kSide - 1) {
      const Vec results[] = {result<0>(), result<kVectors - 1>()};
      scalar_t* const target = target_ + (j - (kSide - 1)) * t_.target_step;
      if constexpr (kKind == kRowOfPlanes) {
        store_chosen(results[0], target, t_.row[0]);
        if constexpr (kWeights == Weights::kOfLane) {
          store_chosen(results[0], target + t_.second_row, t_.row[1]);
        }
      } else if (t_.stream) {
        stream_vectors<kVectors>(results, target);
      } else {
        store_vectors<kVectors>(results, target, vector_step());
      }
    }
    move();
  }

  // Sum i becomes that of the result before.
  template <int i>
  C10_ALWAYS_INLINE void move_one() {
    if constexpr (i / kVectors % kSide < kSide - 1) {
      sums_[i] = sums_[i + kVectors];
    } else {
      sums_[i] = Vec(acc_t(0));
    }
  }
  template <int... i>
  C10_ALWAYS_INLINE void move_all(std::integer_sequence<int, i...> /*all*/) {
    (move_one<i>(), ...);
  }
  C10_ALWAYS_INLINE void move() {
    move_all(Numbers<kSums>());
  }

  const Tiles<scalar_t>& t_;
  TilePlace at_;
  int64_t results_;
  int64_t first_line_;
  const scalar_t* source_;
  scalar_t* target_;
  const acc_t* scales_;
  Vec start_[kScales];
  Vec held_[kHold ? kTaps * kScales : 1];
  Vec sums_[kSums]; // [chains][results j - (kSide - 1) to j][vectors]
  LaneBits lanes_[kSide];
};

} // namespace
} // namespace at::native
