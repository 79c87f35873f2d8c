// Register tiles: the innermost loops of forward and grad_input, for both memory orders.
//
// A tile is some neighbouring results along one dimension by one or two vectors of lanes, whose sums stay in
// registers. Along that dimension the taps of a group meet neighbouring sources (Problem.h), so that a
// vector, once loaded, is multiplied into every result that it has a tap for. The taps of the other
// dimension, "cross", follow one after the other.
//
//   planes:        results are rows,   lanes are columns,  cross taps are a kernel row's
//   channels last: results are pixels, lanes are channels, cross taps are a kernel column's
//
// In planes all lanes have the same weight, in channels last each its own. Lines outside the image are
// passed over, never multiplied. There is a loop for each number of taps in TapCounts; other numbers are
// split into these. The sums of a tile that several loops add to are in memory between them.
#pragma once

#include <ATen/native/cpu/depthwise_conv2d_ext/Problem.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Vectors.h>
#include <array>
#include <type_traits>
#include <utility>

namespace at::native {
namespace {

enum class Weights { kOfPlane, kOfLane };

// The results of a tile and its vectors of lanes.
struct TileShape {
  int rows;
  int vectors;
};
// 7 rows fill images of 7, 14, 28, 56 and 112. 7 x 2 sums, up to 7 weights and a line are 24 of AVX-512's
// registers; of AVX2's 16 they leave one, so that each lane's own weights are operands in memory.
#if defined(CPU_CAPABILITY_AVX2)
constexpr bool kReadsWeights = true;
constexpr TileShape kPlaneTile{4, 2};
constexpr TileShape kPixelTile{7, 2};
#else
constexpr bool kReadsWeights = false;
constexpr TileShape kPlaneTile = kVectorsAreArrays ? TileShape{4, 1} : TileShape{7, 2};
constexpr TileShape kPixelTile = kPlaneTile;
#endif

// Numbers of taps that there are loops for.
using TapCounts = std::conditional_t<
    kVectorsAreArrays,
    std::integer_sequence<int, 1, 3>,
    std::integer_sequence<int, 1, 2, 3, 5, 7>>;
constexpr int kMostTaps = 7;

// A tap of the other dimension: what it adds to the position in the source and in the weights.
struct CrossTap {
  int64_t source;
  int64_t weight;
};

// Where `count` values are.
template <typename scalar_t>
Range addresses_of(const scalar_t* values, int64_t count) {
  return {reinterpret_cast<int64_t>(values), reinterpret_cast<int64_t>(values + count)};
}

// What memory is asked for; it goes to the first-level cache either way.
enum class Ask { kToRead, kToWrite };

// Addresses asked for, some at a time: all at once they occupy the core's buffers for lines on their way, for
// which what comes from the second-level cache then waits.
struct AheadParts {
  Range left{0, 0};
  int64_t step = 0;
  static AheadParts of(Range addresses, int64_t parts) {
    return {addresses, round_up(ceil_div(addresses.size(), parts), kCacheLine)};
  }
  // The next part, itself in so many parts.
  C10_ALWAYS_INLINE AheadParts take(int64_t parts) {
    const Range taken{left.begin, std::min(left.end, left.begin + step)};
    left.begin = taken.end;
    return parts == 1 ? AheadParts{taken, step} : of(taken, parts);
  }
  template <Ask kAsk = Ask::kToRead>
  C10_ALWAYS_INLINE void ask_for_part() {
    const int64_t end = std::min(left.end, left.begin + step);
    for (; left.begin < end; left.begin += kCacheLine) {
      constexpr int kFirstLevel = 3;
      __builtin_prefetch(
          reinterpret_cast<const void*>(left.begin), kAsk == Ask::kToWrite, kFirstLevel);
    }
  }
};

// Neighbouring taps: tap i of result r meets line r + i, which begins at source + (r + i) * line_step. Its
// weight is at weights + weight + cross.weight + i * weight_step. Tiles has what is not named here; a
// group is the same for every image or plane. Of pixels, `weight_step` is a vector's lanes.
struct TileGroup {
  int64_t source;
  Range lines; // that are inside the image
  int64_t weight;
  int64_t weight_step;
  int64_t taps;
  int64_t together; // groups that are taken at once: this one and those behind it
};

// All results of one phase of a line by some lanes: several tiles, so that what is known of them all is looked
// up once.
template <typename scalar_t>
struct Tiles {
  using acc_t = opmath_type<scalar_t>;
  TileShape shape;
  const scalar_t* source;
  scalar_t* target; // of the first result, lane 0
  int64_t target_step; // between results
  int64_t first_result; // in a phase
  int64_t results;
  int64_t first_lane; // of the sources, and of the weights where each lane has its own
  int64_t last_lane;
  int64_t line_step; // values
  const CrossTap* cross;
  int64_t cross_count;
  const TileGroup* groups;
  int64_t group_count;
  const acc_t* weights;
  int64_t block_step; // from a vector of lanes' weights to the next one's
  const acc_t* start; // what sums begin with; of lanes with their own weights by whole vectors
  Range
      ahead; // addresses of what later lines will read: asked for meanwhile, a part with each tile
  bool stream; // results past the caches; whole cache lines of them
};

// One of the tiles: the results from `first` on, the lanes from `lane` on.
struct TilePlace {
  int64_t first;
  int64_t lane;
  int64_t vector_step; // of two that overlap
  int64_t weights; // where those of its lanes begin
  AheadParts ahead; // its part of what is asked for
  bool begins = true; // sums begin with what results do, else with those in memory
  bool ends = true; // sums are results, else go to memory
};

// What sums begin with lies by whole vectors, as the weights do; the last may overlap the one before.
template <typename acc_t>
C10_ALWAYS_INLINE int64_t start_of(const TilePlace& at) {
  return round_up(at.lane, Vectorized<acc_t>::size());
}

// What is in registers. All indices are constants from the start: of arrays that loops go through, under a
// condition for each line, GCC 12 keeps a part in memory and notes which were written.
template <typename scalar_t, Weights kWeights, int kRows, int kVectors>
class TileSums {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  template <int kCount>
  using Numbers = std::make_integer_sequence<int, kCount>;
  static constexpr bool kOwnWeights = kWeights == Weights::kOfLane;
  static constexpr int kScales = kOwnWeights ? kVectors : 1; // of a tap
  static constexpr bool kFromMemory = kReadsWeights && kOwnWeights && kVectors == 2;
  // Where GCC 12 would otherwise load a vector anew for some of the products that it is an operand of, and
  // keep the addresses of all lines (96@56 k7 320 us, 261 so). Channels last of bfloat16, whose two vectors
  // are from one load, would be slower by 5 to 14 %.
  static constexpr bool kHolds = !(kOwnWeights && kVectors == 2 && kEvenAndOdd<scalar_t>);
  using Sums = Numbers<kRows * kVectors>; // [rows][vectors]

 public:
  struct Kept {
    alignas(kCacheLine) acc_t sums[kRows * kVectors * Vec::size()];
  };
  C10_ALWAYS_INLINE TileSums(const Tiles<scalar_t>& t, const TilePlace& at, const acc_t* in_memory)
      : TileSums(Sums()) {
    if (at.begins) {
      begin(t, at, Sums());
    } else {
      load_sums(in_memory, Sums());
    }
  }
  // Moves the sums to memory; they begin anew.
  C10_ALWAYS_INLINE void keep(Kept& kept) {
    store_sums(kept.sums, Sums());
    clear(Sums());
  }
  C10_ALWAYS_INLINE void add(const Kept& kept) {
    add(kept.sums, Sums());
  }
  C10_ALWAYS_INLINE void end(const Tiles<scalar_t>& t, const TilePlace& at, acc_t* in_memory)
      const {
    if (at.ends) {
      scalar_t* target = t.target + at.first * t.target_step + at.lane;
      store_results(t, at, target, t.results - at.first, Numbers<kRows>());
    } else {
      store_sums(in_memory, Sums());
    }
  }

  // The lines that a tile's results meet inside the image, a bit each.
  template <int kTaps>
  static C10_ALWAYS_INLINE uint32_t
  lines_inside(const TileGroup& group, const Tiles<scalar_t>& t, const TilePlace& at) {
    constexpr int64_t kLines = kRows + kTaps - 1;
    static_assert(kLines < 32);
    const int64_t first = t.first_result + at.first;
    const int64_t met = std::min(kLines, t.results - at.first + kTaps - 1);
    const int64_t begin = std::clamp<int64_t>(group.lines.begin - first, 0, met);
    const int64_t end = std::clamp<int64_t>(group.lines.end - first, begin, met);
    return (uint32_t(1) << end) - (uint32_t(1) << begin);
  }

  template <int kTaps>
  C10_ALWAYS_INLINE void add_taps(
      Range cross,
      const TileGroup* groups,
      const uint32_t* inside,
      const Tiles<scalar_t>& t,
      const TilePlace& at) {
    for (int64_t tap = cross.begin; tap < cross.end; ++tap) {
      const CrossTap& here = t.cross[tap];
      for (int64_t g = 0; g < groups->together; ++g) {
        if (inside[g] != 0) {
          add_tap(
              here, groups[g], inside[g], t, at, Numbers<kTaps>(), Numbers<kRows + kTaps - 1>());
        }
      }
    }
  }

 private:
  template <int... n>
  explicit C10_ALWAYS_INLINE TileSums(std::integer_sequence<int, n...> /*sums*/)
      : sums_{(void(n), Vec(acc_t(0)))...} {}

  template <typename T>
  static C10_ALWAYS_INLINE T held(T value) {
    if constexpr (kHolds) {
      return held_in_register(value);
    } else {
      return value;
    }
  }
  // Known to the compiler where it is a whole vector.
  static C10_ALWAYS_INLINE int64_t vector_step(const TilePlace& at) {
    return kOwnWeights ? int64_t(Vec::size()) : at.vector_step;
  }
  template <int v>
  static C10_ALWAYS_INLINE Vec
  load(const scalar_t* source, const Tiles<scalar_t>& t, const TilePlace& at) {
    if constexpr (kVectors == 2) {
      return load_of_two(source, v, vector_step(at));
    } else {
      return load_lanes(source);
    }
  }
  static C10_ALWAYS_INLINE Vec weight(const acc_t* weights, int v, const Tiles<scalar_t>& t) {
    return kOwnWeights ? Vec::loadu(weights + v * t.block_step) : Vec(*weights);
  }
  static C10_ALWAYS_INLINE Vec start(const Tiles<scalar_t>& t, const TilePlace& at, int v) {
    return kOwnWeights ? Vec::loadu(t.start + start_of<acc_t>(at) + v * Vec::size())
                       : Vec(*t.start);
  }

  template <int... n>
  C10_ALWAYS_INLINE void begin(
      const Tiles<scalar_t>& t,
      const TilePlace& at,
      std::integer_sequence<int, n...> /*sums*/) {
    const Vec starts[] = {start(t, at, 0), start(t, at, kScales - 1)};
    ((sums_[n] = starts[n % kVectors]), ...);
  }
  template <int... n>
  C10_ALWAYS_INLINE void load_sums(const acc_t* from, std::integer_sequence<int, n...> /*sums*/) {
    ((sums_[n] = Vec::loadu(from + n * Vec::size())), ...);
  }
  template <int... n>
  C10_ALWAYS_INLINE void store_sums(acc_t* to, std::integer_sequence<int, n...> /*sums*/) const {
    (sums_[n].store(to + n * Vec::size()), ...);
  }
  template <int... n>
  C10_ALWAYS_INLINE void clear(std::integer_sequence<int, n...> /*sums*/) {
    ((sums_[n] = Vec(acc_t(0))), ...);
  }
  template <int... n>
  C10_ALWAYS_INLINE void add(const acc_t* kept, std::integer_sequence<int, n...> /*sums*/) {
    ((sums_[n] = Vec::loadu(kept + n * Vec::size()) + sums_[n]), ...);
  }
  template <int... r>
  C10_ALWAYS_INLINE void store_results(
      const Tiles<scalar_t>& t,
      const TilePlace& at,
      scalar_t* target,
      int64_t count,
      std::integer_sequence<int, r...> /*rows*/) const {
    (void)((r < count && (store_result<r>(t, at, target), true)) && ...);
  }
  template <int r>
  C10_ALWAYS_INLINE void store_result(
      const Tiles<scalar_t>& t,
      const TilePlace& at,
      scalar_t*& target) const {
    const Vec* const result = sums_ + r * kVectors;
    if (t.stream) {
      stream_vectors<kVectors>(result, target);
    } else {
      store_vectors<kVectors>(result, target, vector_step(at));
    }
    target += t.target_step;
  }

  // One tap of the other dimension with those of a group.
  template <int... i, int... j>
  C10_ALWAYS_INLINE void add_tap(
      const CrossTap& tap,
      const TileGroup& group,
      uint32_t inside,
      const Tiles<scalar_t>& t,
      const TilePlace& at,
      std::integer_sequence<int, i...> taps,
      std::integer_sequence<int, j...> /*lines*/) {
    const acc_t* weights = t.weights + at.weights + group.weight + tap.weight;
    const scalar_t* line =
        t.source + group.source + tap.source + at.lane + (t.first_result + at.first) * t.line_step;
    inside = held_in_register(inside); // else each of its bits is found before and kept
    if constexpr (kFromMemory) {
      const acc_t* const read[] = {weights, weights + t.block_step};
      (add_line<j>(line, inside, read, t, at, taps), ...);
    } else {
      const Scales scales[] = {next_scales<i>(weights, group, t)...};
      (add_line<j>(line, inside, scales, t, at, taps), ...);
    }
  }

  struct Scales {
    Vec of[kScales];
  };
  template <int i>
  static C10_ALWAYS_INLINE Scales
  next_scales(const acc_t*& weights, const TileGroup& group, const Tiles<scalar_t>& t) {
    const acc_t* const here = weights;
    weights = held(weights + group.weight_step);
    if constexpr (kScales == 2) {
      return {{held(weight(here, 0, t)), held(weight(here, 1, t))}};
    } else {
      return {{held(weight(here, 0, t))}};
    }
  }
  template <int i, int v>
  static C10_ALWAYS_INLINE Vec scale(const Scales* scales) {
    return scales[i].of[v % kScales];
  }
  template <int i, int v>
  static C10_ALWAYS_INLINE Vec scale(const acc_t* const* read) {
    return Vec::loadu(read[v] + i * Vec::size());
  }

  template <int j, typename By, int... i>
  C10_ALWAYS_INLINE void add_line(
      const scalar_t*& line,
      uint32_t inside,
      const By& by,
      const Tiles<scalar_t>& t,
      const TilePlace& at,
      std::integer_sequence<int, i...> taps) {
    if (C10_LIKELY(inside >> j & 1)) {
      add_vector<j, 0>(line, by, t, at, taps);
      if constexpr (kVectors == 2) {
        add_vector<j, 1>(line, by, t, at, taps);
      }
    }
    line = held(line + t.line_step);
  }
  template <int j, int v, typename By, int... i>
  C10_ALWAYS_INLINE void add_vector(
      const scalar_t* line,
      const By& by,
      const Tiles<scalar_t>& t,
      const TilePlace& at,
      std::integer_sequence<int, i...> /*taps*/) {
    const Vec values = held(load<v>(line, t, at));
    (multiply<j - i, i, v>(values, by), ...);
  }
  template <int r, int i, int v, typename By>
  C10_ALWAYS_INLINE void multiply(const Vec& values, const By& by) {
    if constexpr (r >= 0 && r < kRows) {
      Vec& sum = sums_[r * kVectors + v];
      sum = vec::fmadd(values, scale<i, v>(by), sum);
    }
  }

  Vec sums_[kRows * kVectors];
};

// Of more other taps than these, sums are taken by halves of them: one chain of additions would have errors
// above those of upstream's convolution (5.3e-5 against 5.2e-5 in test_error_is_not_larger_than_upstreams), two
// shorter ones are below.
constexpr int64_t kMostOneChain = 2;

// Groups that are taken at once.
constexpr int64_t kMostTogether = 32;

// A tile's results from some groups of as many taps.
template <typename scalar_t, Weights kWeights, int kRows, int kVectors, int kTaps>
C10_NOINLINE void add_groups(
    const Tiles<scalar_t>& t,
    const TilePlace& at,
    const TileGroup* groups,
    opmath_type<scalar_t>* in_memory) {
  using Sums = TileSums<scalar_t, kWeights, kRows, kVectors>;
  uint32_t inside[kMostTogether];
  for (int64_t g = 0; g < groups->together; ++g) {
    inside[g] = Sums::template lines_inside<kTaps>(groups[g], t, at);
  }
  // A loop over both halves: written twice they would double the code of all tiles.
  typename Sums::Kept first_half;
  Sums sums(t, at, in_memory);
  Range half{0, t.cross_count > kMostOneChain ? ceil_div(t.cross_count, 2) : t.cross_count};
  while (true) {
    sums.template add_taps<kTaps>(half, groups, inside, t, at);
    if (half.end == t.cross_count) {
      break;
    }
    sums.keep(first_half);
    half = {half.end, t.cross_count};
  }
  if (half.begin > 0) {
    sums.add(first_half);
  }
  sums.end(t, at, in_memory);
}

// How many of `taps` taps to take next: such that all parts are as large as each other, or most of the taps.
template <int... kTaps>
int64_t next_taps(int64_t taps, std::integer_sequence<int, kTaps...> /*counts*/) {
  int64_t chosen = 1;
  for (const int64_t count : {kTaps...}) {
    const bool is_even = taps % count == 0;
    chosen = count <= taps && (is_even || taps % chosen != 0 || chosen == 1) ? count : chosen;
  }
  return chosen;
}

// Adds a phase's groups of taps to `groups`, split as tiles take them. `place` says where the first tap of one
// has its source and weight.
template <typename Place>
void add_tile_groups(
    ArrayRef<TapGroup> taps,
    const Dimension& dimension,
    int64_t line_step,
    c10::SmallVectorImpl<TileGroup>& groups,
    const Place& place) {
  const size_t first = groups.size();
  for (const TapGroup& group : taps) {
    TileGroup part = place(group);
    part.lines = dimension.inside(group.source);
    part.together = 1;
    for (int64_t left = group.count; left > 0; left -= part.taps) {
      part.taps = next_taps(left, TapCounts());
      groups.push_back(part);
      part.source += part.taps * line_step;
      part.lines = {part.lines.begin - part.taps, part.lines.end - part.taps};
      part.weight += part.taps * part.weight_step;
    }
  }
  if (taps.empty()) { // results are what sums begin with
    TileGroup none{};
    none.together = none.taps = 1;
    groups.push_back(none);
    return;
  }
  for (size_t last = groups.size(); last-- > first + 1;) {
    auto& before = groups[last - 1];
    const bool joins = before.taps == groups[last].taps && groups[last].together < kMostTogether;
    before.together = joins ? groups[last].together + 1 : 1;
  }
}

// add_groups by the number of taps; null where there is none.
template <typename scalar_t, Weights kWeights, int kVectors, int... kTaps>
constexpr auto tile_functions(std::integer_sequence<int, kTaps...> /*counts*/) {
  constexpr int kRows = kWeights == Weights::kOfPlane ? kPlaneTile.rows : kPixelTile.rows;
  std::array<decltype(&add_groups<scalar_t, kWeights, kRows, kVectors, 1>), kMostTaps + 1> found{};
  ((found[kTaps] = &add_groups<scalar_t, kWeights, kRows, kVectors, kTaps>), ...);
  return found;
}

template <typename scalar_t, Weights kWeights>
void take_groups(
    const Tiles<scalar_t>& t,
    const TilePlace& at,
    int vectors,
    const TileGroup* groups,
    opmath_type<scalar_t>* in_memory) {
  constexpr int kVectors = kWeights == Weights::kOfPlane ? kPlaneTile.vectors : kPixelTile.vectors;
  static constexpr auto kOne = tile_functions<scalar_t, kWeights, 1>(TapCounts());
  static constexpr auto kAll = tile_functions<scalar_t, kWeights, kVectors>(TapCounts());
  (vectors == 1 ? kOne : kAll)[groups->taps](t, at, groups, in_memory);
}

// A tile by all groups; those that only meet lines outside the image are passed over, which is most of a
// kernel that is larger than the image.
template <typename scalar_t, Weights kWeights>
void run_tile(const Tiles<scalar_t>& t, TilePlace& at, int vectors) {
  using acc_t = opmath_type<scalar_t>;
  alignas(kCacheLine) acc_t sums[kPixelTile.rows * kPixelTile.vectors * Vectorized<acc_t>::size()];
  const auto is_met = [&](const TileGroup& group) {
    const int64_t first = t.first_result + at.first;
    return group.together > 1 ||
        (first < group.lines.end && first + t.shape.rows + group.taps - 1 > group.lines.begin);
  };
  const TileGroup* const end = t.groups + t.group_count;
  const TileGroup* last = t.groups;
  for (const TileGroup* group = t.groups; group < end; group += group->together) {
    last = is_met(*group) ? group : last;
  }
  for (const TileGroup* group = t.groups; group <= last; group += group->together) {
    at.ends = group == last;
    if (at.ends || is_met(*group)) {
      take_groups<scalar_t, kWeights>(t, at, vectors, group, sums);
      at.begins = false;
    }
  }
}

// Calls run(place, vectors) for the tiles, two vectors each and one where no more are left. Rather than a part
// of a vector, some lanes are done twice. Where there are less than two vectors, these may overlap in one
// tile: the sums of one after the other would wait for each other. Not so where each lane has its own
// weights, whose vectors begin at whole numbers of vectors and at the last one. Each tile asks for its part
// of what is ahead in `parts`.
template <typename scalar_t, typename Run>
C10_ALWAYS_INLINE void for_each_tile(
    const Tiles<scalar_t>& t,
    TileShape shape,
    bool overlaps,
    int64_t parts,
    const Run& run) {
  constexpr int64_t kLanes = Vectorized<opmath_type<scalar_t>>::size();
  const int64_t lanes = t.last_lane - t.first_lane;
  auto ahead =
      AheadParts::of(t.ahead, ceil_div(t.results, shape.rows) * ceil_div(lanes, 2 * kLanes));
  for (int64_t first = 0; first < t.results; first += shape.rows) {
    for (int64_t lane = t.first_lane; lane < t.last_lane;) {
      TilePlace at{first, lane, kLanes, ceil_div(lane, kLanes) * t.block_step, ahead.take(parts)};
      const int64_t left = t.last_lane - lane;
      const bool both = shape.vectors == 2 && (left >= 2 * kLanes || (overlaps && left > kLanes));
      if (both) {
        at.lane = std::max(std::min(lane, t.last_lane - 2 * kLanes), t.first_lane);
        at.vector_step = std::min(kLanes, t.last_lane - at.lane - kLanes);
      } else {
        at.lane = std::min(lane, t.last_lane - kLanes);
      }
      run(at, both ? 2 : 1);
      lane += both ? 2 * kLanes : kLanes;
    }
  }
}

template <typename scalar_t, Weights kWeights>
void run_tiles(const Tiles<scalar_t>& t) {
  for_each_tile(t, t.shape, kWeights == Weights::kOfPlane, 1, [&](TilePlace& at, int vectors) {
    at.ahead.ask_for_part();
    if (t.group_count == t.groups->together) {
      take_groups<scalar_t, kWeights>(t, at, vectors, t.groups, nullptr);
    } else {
      run_tile<scalar_t, kWeights>(t, at, vectors);
    }
  });
}

} // namespace
} // namespace at::native
