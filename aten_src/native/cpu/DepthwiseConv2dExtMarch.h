// Small square windows of depthwise_conv2d_ext's forward and grad_input, where there are registers for
// more than a tile (DepthwiseConv2dExtTiles.h).
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtTileWork.h>
#include <utility>

namespace at::native {
namespace {

// Windows of 3 x 3 are marched through instead of taken by tiles. fp32, one thread, AVX-512, tiles of 4 and
// marches: NCHW 144@56 258 and 199 us, 128@80 475 and 380, 384@14 54 and 49. Of planes, marches need more
// registers than AVX2 has. k5 in NCHW, tiles of 7, 119 and 136. Pixels: DepthwiseConv2dExtPixelMarch.h.
template <Weights kWeights>
constexpr bool is_marched(int taps) {
#if defined(CPU_CAPABILITY_AVX512)
  return taps == 3;
#else
  return kWeights == Weights::kOfLane && !kVectorsAreArrays && taps == 3;
#endif
}
// Results of a march: rows of a strip of planes, pixels.
constexpr int64_t kMarchResults = 16;
// Of 16-bit values and of results stored past the caches: rows of pixels of most images, as a march begins
// with some 50 cycles for nothing. Not of others, of which more lines are in use at once than caches like
// (fp32, one thread, of 16 and of 128 results 728@65 dilated 1,235 us and 1,549, 128@80 254 and 264).
constexpr int64_t kLongMarchResults = 128;

// Windows of kSide x kSide without tiles: line by line, each, once loaded for each of the other taps,
// multiplied into the kSide results that it meets. Weights of 3 x 3 stay in registers. All indices are
// constants from the start: those of loops are too late for GCC 12, which then keeps a part of what is to
// be registers in memory. Of 3 x 3 a sum stays where it is, and which result is whose is known of three
// lines that follow each other.
template <typename scalar_t, Weights kWeights, int kKind, int kSide>
class March {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  template <int kCount>
  using Numbers = std::make_integer_sequence<int, kCount>;
  using Side = Numbers<kSide>;
  static constexpr int kVectors = vectors_of(kKind);
  static constexpr bool kHold = kSide == 3;
  // Lines after which sums are the same results' again. Of 1, they are moved on from line to line.
  static constexpr int kPhases = kHold ? kSide : 1;
  static constexpr int kScales = kWeights == Weights::kOfLane ? kVectors : 1;
  // Sums of each result, each of some of the other taps: additions wait less for each other, and err
  // less. Two where three of them and the weights are more than there are registers.
  static constexpr int kChains = kHold && kScales == 1 ? 3 : 2;
  static constexpr int kTaps = kSide * kSide;
  static constexpr int kSums = kChains * kSide * kVectors;
  using Sums = Numbers<kSums>;

 public:
  C10_ALWAYS_INLINE March(const Tiles<scalar_t>& t, TilePlace at, Range results)
      : March(
            t,
            at,
            results,
            Numbers<kScales>(),
            Numbers<kHold ? kTaps * kScales : 1>(),
            Sums(),
            Side()) {}

  C10_ALWAYS_INLINE void run() {
    // The lines that are inside, found without divisions, which are as much as a line of a small plane.
    int64_t begin = 0;
    while (begin < lines_ && first_line_ + begin * line_step_ < 0) {
      ++begin;
    }
    end_ = lines_;
    while (end_ > begin && first_line_ + (end_ - 1) * line_step_ >= t_.lines_end) {
      --end_;
    }
    for (; j_ < begin; ++j_) {
      finish<0>();
    }
    line_ += begin * line_step_;
    while (go_on(Numbers<kPhases>())) {
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
        lines_(results.size() + kSide - 1),
        first_line_(t.first_line + t.groups[0].line + results.begin * t.line_step),
        line_step_(t.line_step),
        line_(t.source + t.groups[0].source + at.lane + first_line_),
        target_(t.target + results.begin * t.target_step + at.lane),
        target_step_(t.target_step),
        scales_(t.weights + t.groups[0].weight + (kWeights == Weights::kOfLane ? at.weights : 0)),
        cross_{t.cross[c].source...},
        start_{
            (kWeights == Weights::kOfLane
                 ? Vec::loadu(t.start + start_of<acc_t>(at) + v * Vec::size())
                 : Vec(*t.start))...},
        held_{
            (kHold ? scale_at(h / kScales / kSide, h / kScales % kSide, h % kScales)
                   : Vec(acc_t(0)))...},
        sums_{first_sum(s)...},
        lanes_{(kKind == kRowOfPlanes ? t.cross_lanes[c] : 0)...} {}

  // Known to the compiler where it is a whole vector.
  C10_ALWAYS_INLINE int64_t vector_step() const {
    return kKind == kTwoOverlapping ? at_.vector_step : Vec::size();
  }

  // What sums begin with: those of the first chain with what the result does.
  C10_ALWAYS_INLINE Vec first_sum(int i) const {
    return i < kSide * kVectors ? start_[kScales > 1 ? i % kVectors : 0] : Vec(acc_t(0));
  }

  static constexpr int chain_of(int cross) {
    return kChains == kSide ? cross : (cross < kSide / 2 ? 0 : 1);
  }
  // That of the result that tap `tap` of line j meets, the phase being the lines from the first one inside to
  // this one, modulo kPhases.
  static constexpr int sum_index(int chain, int phase, int tap, int v) {
    return (chain * kSide + (phase - tap + kSide) % kSide) * kVectors + v;
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
      return held_[held_index(kCross, kTap, kScales > 1 ? v : 0)];
    } else {
      return scale_at(kCross, kTap, kScales > 1 ? v : 0);
    }
  }

  // Tap 0 is the first that a result meets, and begins its sums.
  template <int kPhase, int kCross, int kTap, int v>
  C10_ALWAYS_INLINE void multiply(const Vec& values) {
    constexpr int kSum = sum_index(chain_of(kCross), kPhase, kTap, v);
    const Vec weight = scale<kCross, kTap, v>();
    if constexpr (kTap == 0 && kCross == 0) {
      sums_[kSum] = vec::fmadd(values, weight, start_[kScales > 1 ? v : 0]);
    } else if constexpr (kTap == 0 && chain_of(kCross) != chain_of(kCross - 1)) {
      sums_[kSum] = values * weight;
    } else {
      sums_[kSum] = vec::fmadd(values, weight, sums_[kSum]);
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

  template <int kPhase, int kCross, int... kTap>
  C10_ALWAYS_INLINE void add_cross(std::integer_sequence<int, kTap...> /*taps*/) {
    const scalar_t* const source = line_ + cross_[kCross];
    const Vec first = held_in_register(load<kCross>(source));
    (multiply<kPhase, kCross, kTap, 0>(first), ...);
    if constexpr (kVectors == 2) {
      const Vec second = held_in_register(load_of_two(source, 1, vector_step()));
      (multiply<kPhase, kCross, kTap, 1>(second), ...);
    }
  }

  template <int kPhase, int... kCross>
  C10_ALWAYS_INLINE void add(std::integer_sequence<int, kCross...> side) {
    (add_cross<kPhase, kCross>(side), ...);
  }

  template <int kPhase, int v>
  C10_ALWAYS_INLINE Vec result() const {
    const Vec first = sums_[sum_index(0, kPhase, kSide - 1, v)];
    const Vec second = sums_[sum_index(1, kPhase, kSide - 1, v)];
    if constexpr (kChains == 2) {
      return first + second;
    } else {
      return first + (second + sums_[sum_index(2, kPhase, kSide - 1, v)]);
    }
  }

  // Result j - (kSide - 1) has met all of its lines.
  template <int kPhase>
  C10_ALWAYS_INLINE void finish() {
    if (j_ < kSide - 1) {
      return;
    }
    const Vec results[] = {result<kPhase, 0>(), result<kPhase, kVectors - 1>()};
    if constexpr (kKind == kRowOfPlanes) {
      store_chosen(results[0], target_, t_.row[0]);
      if constexpr (kWeights == Weights::kOfLane) {
        store_chosen(results[0], target_ + t_.second_row, t_.row[1]);
      }
    } else if (t_.stream) {
      stream_vectors<kVectors>(results, target_);
    } else {
      store_vectors<kVectors>(results, target_, vector_step());
    }
    target_ += target_step_;
  }

  // Line j, or if no more are inside the results that are left, and then nothing is.
  template <int kPhase>
  C10_ALWAYS_INLINE bool take_line() {
    if (j_ == end_) {
      finish_rest<kPhase>(Numbers<kPhases>());
      return false;
    }
    add<kPhase>(Side());
    finish<kPhase>();
    move_on(Sums());
    line_ += line_step_;
    ++j_;
    return true;
  }
  template <int... kPhase>
  C10_ALWAYS_INLINE bool go_on(std::integer_sequence<int, kPhase...> /*side*/) {
    return (take_line<kPhase>() && ...);
  }

  // Where sums are moved on, that of tap 1 of this line becomes that of tap 2 of the next, and so on.
  template <int i>
  C10_ALWAYS_INLINE void move_one() {
    constexpr int kTap = kSide - 1 - i / kVectors % kSide;
    constexpr int kChain = i / kVectors / kSide;
    if constexpr (kTap > 0) {
      sums_[sum_index(kChain, 0, kTap, i % kVectors)] =
          sums_[sum_index(kChain, 0, kTap - 1, i % kVectors)];
    }
  }
  template <int... i>
  C10_ALWAYS_INLINE void move_on(std::integer_sequence<int, i...> /*sums*/) {
    if constexpr (kPhases == 1) {
      (move_one<i>(), ...);
    }
  }

  // Another line, of those outside. The result that it begins takes the place of one that is there.
  template <int kPhase>
  C10_ALWAYS_INLINE void pass_line() {
    if (j_ < lines_) {
      begin<kPhase>(Numbers<kChains * kVectors>());
      finish<kPhase>();
      move_on(Sums());
      ++j_;
    }
  }
  template <int kPhase, int... i>
  C10_ALWAYS_INLINE void begin(std::integer_sequence<int, i...> /*sums*/) {
    ((sums_[sum_index(i / kVectors, kPhase, 0, i % kVectors)] =
          first_sum(i / kVectors * kSide * kVectors + i % kVectors)),
     ...);
  }
  template <int kPhase, int... i>
  C10_ALWAYS_INLINE void finish_rest(std::integer_sequence<int, i...> /*phases*/) {
    while (j_ < lines_) {
      (pass_line<(kPhase + i) % kPhases>(), ...);
    }
  }

  const Tiles<scalar_t>& t_;
  TilePlace at_;
  int64_t lines_;
  int64_t first_line_;
  int64_t line_step_;
  const scalar_t* line_; // line j
  scalar_t* target_; // of the next result
  int64_t target_step_;
  const acc_t* scales_;
  int64_t cross_[kSide];
  int64_t j_ = 0;
  int64_t end_ = 0; // lines from here on are outside
  Vec start_[kScales];
  Vec held_[kHold ? kTaps * kScales : 1];
  Vec sums_[kSums]; // [chains][results modulo kSide][vectors]
  LaneBits lanes_[kSide];
};

} // namespace
} // namespace at::native
