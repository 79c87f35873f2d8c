// The innermost loops of depthwise_conv2d_ext's forward and grad_input.
//
// Both memory orders are worked on in the same way. A tile is some neighbouring results along one
// dimension (tile_rows), by one or two vectors of lanes, or kManyTapsRows of them by one; its sums stay
// in registers. Along that dimension the taps of a group meet neighbouring sources
// (DepthwiseConv2dExtGeometry.h), so that a vector, once loaded, is multiplied into every result that it
// has a tap for. The taps of the other dimension follow one after the other.
//
//   planes:        results are rows,   lanes are columns,  the other taps are a kernel row's
//   channels last: results are pixels, lanes are channels, the other taps are a kernel column's
//
// In planes all lanes have the same weight, in channels last each its own. Of planes, lines outside the
// image that a tile meets are zeros in memory.
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtMarch.h>
#include <ATen/native/cpu/DepthwiseConv2dExtPixelMarch.h>
#include <utility>

namespace at::native {
namespace {

// Lines that a tile meets before and behind the image, if that is known when it is compiled.
template <bool kIsKnown, int kLinesBefore = 0, int kLinesAfter = 0>
struct TileBorder {
  static constexpr bool kKnown = kIsKnown;
  static constexpr bool kAtEnds = false;
  static constexpr int kBefore = kLinesBefore;
  static constexpr int kAfter = kLinesAfter;
};
// Only lines that not all results meet are outside, which of them is found out.
struct BorderAtEnds : TileBorder<false> {
  static constexpr bool kAtEnds = true;
};
// Those of planes are zeros in memory.
template <Weights kWeights>
using UsualBorder = TileBorder<kWeights == Weights::kOfPlane>;

template <typename scalar_t, Weights kWeights, int kVectors, int kRows = kTileRows>
struct TileSums {
  static constexpr Weights kWeightsOf = kWeights;
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int kCount = kVectors == kPartOfVector ? 1 : std::min(kVectors, 2);
  static constexpr int kScales = kWeights == Weights::kOfPlane ? 1 : kCount; // of a tap
  Vec sums[kRows][kCount];

  // Known to the compiler where it is a whole vector: k7 on 56 columns 284 us, by a variable 315.
  static C10_ALWAYS_INLINE int64_t vector_step(TilePlace at) {
    return kVectors == kTwoOverlapping ? at.vector_step : Vec::size();
  }

  static C10_ALWAYS_INLINE Vec
  load(const scalar_t* source, int v, const Tiles<scalar_t>& t, TilePlace at) {
    if constexpr (kCount == 2) {
      return load_of_two(source, v, vector_step(at));
    }
    return kVectors == kPartOfVector ? load_lanes(source, t.last_lane - t.first_lane)
                                     : load_lanes(source);
  }

  static C10_ALWAYS_INLINE Vec weight(const acc_t* weights, int v, const Tiles<scalar_t>& t) {
    return kWeights == Weights::kOfLane ? Vec::loadu(weights + v * t.block_step) : Vec(*weights);
  }

  C10_ALWAYS_INLINE void start(const Tiles<scalar_t>& t, TilePlace at) {
    DEPTHWISE_UNROLL for (int r = 0; r < kRows; ++r) {
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        sums[r][v] = kWeights == Weights::kOfLane
            ? Vec::loadu(t.start + start_of<acc_t>(at) + v * Vec::size())
            : Vec(*t.start);
      }
    }
  }

  C10_ALWAYS_INLINE void store(const Tiles<scalar_t>& t, TilePlace at) const {
    scalar_t* target = t.target + at.first * t.target_step + at.lane;
    DEPTHWISE_UNROLL for (int r = 0; r < kRows; ++r) {
      if (at.first + r >= t.results) {
        break;
      }
      if constexpr (kVectors == kPartOfVector) {
        store_lanes(sums[r][0], target, t.last_lane - t.first_lane);
      } else if (t.stream) {
        stream_vectors<kCount>(sums[r], target);
      } else {
        store_vectors<kCount>(sums[r], target, vector_step(at));
      }
      target += t.target_step;
    }
  }

  C10_ALWAYS_INLINE void add(const TileSums& other) {
    DEPTHWISE_UNROLL for (int r = 0; r < kRows; ++r) {
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        sums[r][v] = sums[r][v] + other.sums[r][v];
      }
    }
  }

  C10_ALWAYS_INLINE void clear() {
    DEPTHWISE_UNROLL for (int r = 0; r < kRows; ++r) {
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        sums[r][v] = Vec(acc_t(0));
      }
    }
  }

  // Whether a group meets lines inside the image at all.
  static C10_ALWAYS_INLINE bool meets(
      const TileGroup& group,
      const Tiles<scalar_t>& t,
      TilePlace at) {
    const int64_t line = line_of(group, t, at);
    return line < t.lines_end && line + (kRows + group.taps - 2) * t.line_step >= 0;
  }

  // Whether all results of a tile are there, and its lines as BorderAtEnds has them.
  template <int kTaps>
  static C10_ALWAYS_INLINE bool is_outside_at_ends(
      const TileGroup& group,
      const Tiles<scalar_t>& t,
      TilePlace at) {
    const int64_t line = line_of(group, t, at);
    return at.first + kRows <= t.results && line + (kTaps - 1) * t.line_step >= 0 &&
        line + (kRows - 1) * t.line_step < t.lines_end;
  }

  // As held_in_register, where that is not slower: channels last of bfloat16, whose two vectors are from one
  // load, was by 5 to 14 %, large windows in channels last by 5 %.
  static constexpr bool kHolds =
      kWeights == Weights::kOfPlane || (kCount == 2 && !kEvenAndOdd<scalar_t>);
  // Not of tiles of 4, by which k5 and k7 are as fast so, groups of 4 taps .91.
  static constexpr bool kReadsWeights = kRowTilesReadWeights && kWeights == Weights::kOfLane &&
      kCount == 2 && kRows == kRowTileResults;
  template <typename T>
  static C10_ALWAYS_INLINE T held(T value) {
    if constexpr (kHolds) {
      return held_in_register(value);
    } else {
      return value;
    }
  }

  // Where tap 0 of the tile's first result meets the source.
  static C10_ALWAYS_INLINE int64_t
  line_of(const TileGroup& group, const Tiles<scalar_t>& t, TilePlace at) {
    return t.first_line + group.line + at.first * t.line_step;
  }

  // One tap of the other dimension with those of a group.
  template <int kTaps, typename Border>
  C10_ALWAYS_INLINE void add_tap(
      const CrossTap& tap,
      const TileGroup& group,
      const Tiles<scalar_t>& t,
      TilePlace at) {
    static_assert(Border::kKnown || !kReadsWeights);
    constexpr int kLines = kRows + kTaps - 1;
    const int64_t first_line = line_of(group, t, at);
    const scalar_t* const source = t.source + group.source + tap.source + at.lane;
    const acc_t* weights = t.weights + at.weights + group.weight + tap.weight;
    const int64_t weight_step = kReadsWeights ? int64_t(Vec::size()) : group.weight_step;
    Vec scale[kReadsWeights ? 1 : kTaps][kScales];
    DEPTHWISE_UNROLL for (int i = 0; !kReadsWeights && i < kTaps; ++i) {
      DEPTHWISE_UNROLL for (int v = 0; v < kScales; ++v) {
        scale[i][v] = held(weight(weights, v, t));
      }
      weights = held(weights + weight_step);
    }
    const acc_t* read[] = {weights, weights + t.block_step};
    const scalar_t* next = source + first_line + Border::kBefore * t.line_step;
    DEPTHWISE_UNROLL for (int j = Border::kBefore; j < kLines - Border::kAfter; ++j) {
      const int64_t line = first_line + j * t.line_step;
      const scalar_t* const values_at = kHolds ? next : source + line;
      if constexpr (!kReadsWeights) {
        next = held(next + t.line_step);
      }
      const bool before = (!Border::kAtEnds || j < kTaps - 1) && line < 0;
      const bool behind = (!Border::kAtEnds || j >= kRows) && line >= t.lines_end;
      if (!Border::kKnown && (before || behind)) {
        continue;
      }
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        const Vec values = held(load(values_at, v, t, at));
        if constexpr (kReadsWeights) { // again, where GCC 12 would store what it has read elsewhere
          read[v] = unknown_address(read[v]);
        }
        DEPTHWISE_UNROLL for (int i = 0; i < kTaps; ++i) {
          const int r = j - i;
          if (r >= 0 && r < kRows) {
            const Vec by = kReadsWeights ? Vec::loadu(read[v] + i * weight_step)
                                         : scale[kReadsWeights ? 0 : i][v % kScales];
            sums[r][v] = vec::fmadd(values, by, sums[r][v]);
          }
        }
      }
      if constexpr (kReadsWeights) {
        next = unknown_address(next + t.line_step);
      }
    }
  }

  // The taps [first, last) of the other dimension with those of one group or two.
  template <typename Border, int kFirst, int kSecond = 0>
  C10_ALWAYS_INLINE void add_taps(
      const TileGroup* groups,
      int64_t first,
      int64_t last,
      const Tiles<scalar_t>& t,
      TilePlace& at) {
    for (int64_t tap = first; tap < last; ++tap) {
      if constexpr (Border::kAtEnds) {
        at.ahead.ask_for_part();
      }
      add_tap<kFirst, Border>(t.cross[tap], groups[0], t, at);
      if constexpr (kSecond > 0) {
        add_tap<kSecond, Border>(t.cross[tap], groups[1], t, at);
      }
    }
  }
};

// One or two groups of known sizes: the sums never leave the registers. They are taken by halves of
// the taps: one chain of additions has errors above those of upstream's convolution (5.3e-5 against
// 5.2e-5 in test_error_is_not_larger_than_upstreams), two shorter ones are below.
template <
    typename scalar_t,
    Weights kWeights,
    int kVectors,
    int kFirst,
    int kSecond,
    int kRows,
    typename Border = UsualBorder<kWeights>>
C10_ALWAYS_INLINE void known_taps(const Tiles<scalar_t>& t, TilePlace at) {
  TileSums<scalar_t, kWeights, kVectors, kRows> sums;
  TileSums<scalar_t, kWeights, kVectors, kRows> half;
  const int64_t middle = t.cross_count / 2;
  sums.start(t, at);
  sums.template add_taps<Border, kFirst, kSecond>(t.groups, 0, middle, t, at);
  half.clear();
  half.template add_taps<Border, kFirst, kSecond>(t.groups, middle, t.cross_count, t, at);
  sums.add(half);
  sums.store(t, at);
}

// What for_each_tile is told of a kind of tiles, each kResults results.
template <Weights kWeights>
struct TileKind {
  static constexpr bool kPairs = !kVectorsAreArrays; // of vectors
  static constexpr bool kOverlaps = kWeights == Weights::kOfPlane;
  // Whether memory is asked for by the tile itself, in this many parts, or before it.
  static constexpr bool kAsksInParts = false;
  template <typename scalar_t>
  static int64_t ahead_parts(const Tiles<scalar_t>& /*t*/) {
    return 1;
  }
};

// The tiles of one kind, two vectors each and one where no more are left. Rather than a part of a vector,
// some lanes are done twice. Where there are less than two vectors, these overlap in one tile: the
// sums of one after the other would wait for each other (28 columns, k5: 190 us became 141). Not so where
// each lane has its own weights, whose vectors begin at whole numbers of vectors and at the last one.
template <typename Kind, typename scalar_t>
C10_ALWAYS_INLINE void for_each_tile(const Tiles<scalar_t>& t) {
  constexpr int64_t kLanes = Vectorized<opmath_type<scalar_t>>::size();
  const int64_t lanes = t.last_lane - t.first_lane;
  const int64_t tiles = ceil_div(t.results, Kind::kResults) * ceil_div(lanes, 2 * kLanes);
  const int64_t ahead_of_tile = round_up(ceil_div(t.ahead.size(), tiles), kCacheLine);
  AheadParts ahead{t.ahead, round_up(ceil_div(ahead_of_tile, Kind::ahead_parts(t)), kCacheLine)};
  for (int64_t first = 0; first < t.results; first += Kind::kResults) {
    for (int64_t lane = t.first_lane; lane < t.last_lane;) {
      AheadParts parts = ahead.take(ahead_of_tile);
      if constexpr (!Kind::kAsksInParts) {
        parts.ask_for_part();
      }
      const int64_t left = t.last_lane - lane;
      const int64_t weights = ceil_div(lane, kLanes) * t.block_step;
      if constexpr (Kind::kPairs) {
        if (left >= 2 * kLanes || (Kind::kOverlaps && left > kLanes && lanes >= 2 * kLanes)) {
          Kind::template run<2>(
              t, {first, std::min(lane, t.last_lane - 2 * kLanes), 0, weights, parts});
          lane += 2 * kLanes;
          continue;
        }
      }
      if constexpr (Kind::kPairs && Kind::kOverlaps) {
        if (left > kLanes) {
          Kind::template run<kTwoOverlapping>(t, {first, lane, left - kLanes, weights});
          break;
        }
      }
      Kind::template run<1>(t, {first, std::min(lane, t.last_lane - kLanes), 0, weights, parts});
      lane += kLanes;
    }
  }
}

template <typename scalar_t, Weights kWeights, int kSide>
struct MarchOfSide : TileKind<kWeights> {
  static constexpr int64_t kResults = kMarchResults;
  template <int kVectors>
  static C10_ALWAYS_INLINE void run(const Tiles<scalar_t>& t, TilePlace at) {
    March<scalar_t, kWeights, kVectors, kSide>(
        t, at, {at.first, std::min(at.first + kResults, t.results)})
        .run();
  }
};

template <typename scalar_t, int64_t kLength, int kRows, int kFirstRow, int kLastRow>
struct MarchOfPixels : TileKind<Weights::kOfLane> {
  static constexpr bool kAsksInParts = true;
  static constexpr int64_t kResults = kLength;
  static int64_t ahead_parts(const Tiles<scalar_t>& t) {
    return std::min(kResults, t.results);
  }
  template <int kVectors>
  static C10_ALWAYS_INLINE void run(const Tiles<scalar_t>& t, TilePlace at) {
    PixelMarch<scalar_t, kVectors, kRows, kFirstRow, kLastRow>::run(
        t, at, {at.first, std::min(at.first + kResults, t.results)});
  }
};

template <typename scalar_t, int kRows, int kFirstRow, int kLastRow>
void march_of_pixels(const Tiles<scalar_t>& t) {
  if (sizeof(scalar_t) == 2 || t.stream) {
    for_each_tile<MarchOfPixels<scalar_t, kLongMarchResults, kRows, kFirstRow, kLastRow>>(t);
  } else {
    for_each_tile<MarchOfPixels<scalar_t, kMarchResults, kRows, kFirstRow, kLastRow>>(t);
  }
}

// How many groups of as many taps a tile takes before its sums go through memory. One at a time, those of 51x5
// would after 2 or 3 of the other taps (NCHW 1,225 us, 1,133 so). AVX2 has no registers for what more loops
// need (51x5 1,810 us, 1,960 so).
#if defined(CPU_CAPABILITY_AVX512)
constexpr size_t kGroupsAtOnce = std::numeric_limits<size_t>::max();
#else
constexpr size_t kGroupsAtOnce = 1;
#endif

// Groups of kTaps each, by halves as above.
template <int kTaps, typename Sums, typename scalar_t>
C10_NOINLINE void add_groups(
    Sums& sums,
    ArrayRef<TileGroup> groups,
    const Tiles<scalar_t>& t,
    TilePlace at) {
  const int64_t all = static_cast<int64_t>(groups.size()) * t.cross_count;
  for (const auto& [begin, end] : {std::pair(int64_t(0), all / 2), {all / 2, all}}) {
    Sums local;
    local.clear();
    for (int64_t i = begin; i < end;) {
      const int64_t group = kGroupsAtOnce > 1 ? i / t.cross_count : 0;
      const int64_t first = i - group * t.cross_count;
      const int64_t last = kGroupsAtOnce > 1 ? std::min(t.cross_count, first + end - i) : end;
      local.template add_taps<UsualBorder<Sums::kWeightsOf>, kTaps>(
          &groups[group], first, last, t, at);
      i += last - first;
    }
    sums.add(local);
  }
}

template <int kTaps, typename Sums, typename scalar_t>
void add_groups_of(Sums& sums, ArrayRef<TileGroup> groups, const Tiles<scalar_t>& t, TilePlace at) {
  if (groups.front().taps == kTaps) {
    add_groups<kTaps>(sums, groups, t, at);
  } else if constexpr (kTaps < kMaxTaps) {
    add_groups_of<kTaps + 1>(sums, groups, t, at);
  }
}

// Any number of groups of up to kMaxTaps taps; also for the rows of an image that a tile of known taps
// would not fill. Groups that only meet positions outside the image are passed over, which is most of a
// kernel that is larger than the image.
template <typename scalar_t, Weights kWeights, int kVectors, int kRows = kTileRows>
C10_NOINLINE void any_taps(const Tiles<scalar_t>& t, TilePlace at) {
  TileSums<scalar_t, kWeights, kVectors, kRows> sums;
  sums.start(t, at);
  const ArrayRef<TileGroup> groups(t.groups, t.group_count);
  for (size_t first = 0; first < groups.size();) {
    size_t last = first;
    while (last < groups.size() && last - first < kGroupsAtOnce &&
           groups[last].taps == groups[first].taps && sums.meets(groups[last], t, at)) {
      ++last;
    }
    if (last > first) {
      add_groups_of<1>(sums, groups.slice(first, last - first), t, at);
    }
    first = std::max(last, first + 1);
  }
  sums.store(t, at);
}

template <typename scalar_t, Weights kWeights>
struct TileOfAnyTaps : TileKind<kWeights> {
  static constexpr int64_t kResults = tile_rows(kWeights);
  template <int kVectors>
  static void run(const Tiles<scalar_t>& t, TilePlace at) {
    if (kResults > kTileRows && t.results - at.first > kTileRows) {
      any_taps<scalar_t, kWeights, kVectors, kResults>(t, at);
    } else {
      any_taps<scalar_t, kWeights, kVectors>(t, at);
    }
  }
};

template <typename scalar_t, Weights kWeights, int kFirst, int kSecond>
struct TileOfKnownTaps : TileKind<kWeights> {
  static constexpr int64_t kResults = tile_rows(kWeights);
  template <int kVectors>
  static C10_ALWAYS_INLINE void run(const Tiles<scalar_t>& t, TilePlace at) {
    using Sums = TileSums<scalar_t, kWeights, kVectors, kResults>;
    const bool known = kWeights == Weights::kOfLane ||
        (Sums::meets(t.groups[0], t, at) && (kSecond == 0 || Sums::meets(t.groups[1], t, at)) &&
         (kResults == kTileRows || t.results - at.first > kTileRows));
    if (known) {
      known_taps<scalar_t, kWeights, kVectors, kFirst, kSecond, kResults>(t, at);
    } else {
      TileOfAnyTaps<scalar_t, kWeights>::template run<kVectors>(t, at);
    }
  }
};

// Rows of pixels in tiles of kRowTileResults, of which the first and the last meet half of a window outside
// the image, and no lines are asked where they are.
template <typename scalar_t, int kTaps>
struct TileOfRow : TileKind<Weights::kOfLane> {
  static constexpr bool kPairs = kTaps <= kMaxTaps; // more leave registers for one vector
  static constexpr int64_t kResults = kRowTileResults;
  template <int kVectors>
  static C10_ALWAYS_INLINE void run(const Tiles<scalar_t>& t, TilePlace at) {
    constexpr int kBefore = (kTaps - 1) / 2;
    constexpr int kAfter = kTaps / 2;
    const bool first = at.first == 0;
    const bool last = at.first + kResults == t.results;
    if (first && last) {
      run_in<kVectors, TileBorder<true, kBefore, kAfter>>(t, at);
    } else if (first) {
      run_in<kVectors, TileBorder<true, kBefore, 0>>(t, at);
    } else if (last) {
      run_in<kVectors, TileBorder<true, 0, kAfter>>(t, at);
    } else {
      run_in<kVectors, TileBorder<true, 0, 0>>(t, at);
    }
  }

 private:
  template <int kVectors, typename Border>
  static C10_NOINLINE void run_in(const Tiles<scalar_t>& t, TilePlace at) {
    known_taps<scalar_t, Weights::kOfLane, kVectors, kTaps, 0, kRowTileResults, Border>(t, at);
  }
};

// Whether a row of pixels is those tiles and nothing else.
template <int kTaps, typename scalar_t>
bool are_tiles_of_row(const Tiles<scalar_t>& t) {
  return t.results % kRowTileResults == 0 && t.lines_end == t.results * t.line_step &&
      t.groups[0].line == -((kTaps - 1) / 2) * t.line_step;
}

// Rows of pixels at a stride in tiles of as many, of any padding. The last begins before the one before it
// ends. Memory is asked for in parts, one with each tap of the other dimension.
template <typename scalar_t, int kFirst, int kSecond>
struct TileOfStridedRow : TileKind<Weights::kOfLane> {
  static constexpr bool kAsksInParts = true;
  static int64_t ahead_parts(const Tiles<scalar_t>& t) {
    return t.cross_count;
  }
  static constexpr int64_t kResults = kRowTileResults;
  template <int kVectors>
  static C10_ALWAYS_INLINE void run(const Tiles<scalar_t>& t, TilePlace at) {
    using Sums = TileSums<scalar_t, Weights::kOfLane, kVectors, kRowTileResults>;
    at.first = std::min(at.first, t.results - kResults);
    if (Sums::template is_outside_at_ends<kFirst>(t.groups[0], t, at) &&
        Sums::template is_outside_at_ends<kSecond>(t.groups[1], t, at)) {
      known_taps<
          scalar_t,
          Weights::kOfLane,
          kVectors,
          kFirst,
          kSecond,
          kRowTileResults,
          BorderAtEnds>(t, at);
      return;
    }
    for (const int64_t end = at.first + kResults; at.first < end; at.first += kTileRows) {
      any_taps<scalar_t, Weights::kOfLane, kVectors>(t, at);
    }
  }
};

template <typename scalar_t>
struct TileOfManyTaps : TileKind<Weights::kOfLane> {
  static constexpr bool kPairs = false;
  static constexpr int64_t kResults = kManyTapsRows;
  template <int kVectors>
  static void run(const Tiles<scalar_t>& t, TilePlace at) {
    any_taps<scalar_t, Weights::kOfLane, kVectors, kManyTapsRows>(t, at);
  }
};

template <typename scalar_t, Weights kWeights, int kFirst, int kSecond>
void tiles_of_known_taps(const Tiles<scalar_t>& t) {
  if constexpr (
      kWeights == Weights::kOfLane && kSecond == 0 && is_taken_by_rows<scalar_t>(kFirst)) {
    // Of windows that are marched through, rows of one tile, for which a march would do little but begin
    // (960@7 k3 18.5 us, 16.0 so), and those that not all of the other taps meet, but for results stored past
    // the caches (grad_input of 144@56 k5s2 N=16, phases of 2 x 3 taps, 1,960 us, 2,166 so).
    const bool pays = !is_marched<kWeights>(kFirst) || t.results == kRowTileResults ||
        (t.cross_count < kFirst && !t.stream);
    if (pays && are_tiles_of_row<kFirst>(t)) {
      for_each_tile<TileOfRow<scalar_t, kFirst>>(t);
      return;
    }
  }
  if constexpr (kSecond == 0 && is_marched<kWeights>(kFirst)) {
    if (t.cross_count == kFirst) {
      if constexpr (kWeights == Weights::kOfLane) {
        march_of_pixels<scalar_t, 1, 0, 2>(t);
      } else {
        for_each_tile<MarchOfSide<scalar_t, kWeights, kFirst>>(t);
      }
      return;
    }
  }
  if constexpr (
      kWeights == Weights::kOfLane && kFirst == 3 && kSecond == 2 &&
      is_taken_by_rows<scalar_t>(5) && !kRowTilesReadWeights) {
    if (t.cross_count > 0 && fill_row_tiles(t.results)) {
      for_each_tile<TileOfStridedRow<scalar_t, kFirst, kSecond>>(t);
      return;
    }
  }
  for_each_tile<TileOfKnownTaps<scalar_t, kWeights, kFirst, kSecond>>(t);
}

template <typename scalar_t, Weights kWeights>
void tiles_of_any_taps(const Tiles<scalar_t>& t) {
  if constexpr (kWeights == Weights::kOfLane && is_taken_by_rows<scalar_t>(kRowWindow)) {
    // Its taps are split into two groups, the second where the first ends.
    const bool split = t.group_count == 2 && t.groups[0].taps == kMaxTaps &&
        t.groups[1].taps == kRowWindow - kMaxTaps;
    if (split && t.results == kRowTileResults && are_tiles_of_row<kRowWindow>(t)) {
      for_each_tile<TileOfRow<scalar_t, kRowWindow>>(t);
      return;
    }
  }
  for_each_tile<TileOfAnyTaps<scalar_t, kWeights>>(t);
}

// For windows of kManyTaps and more.
template <typename scalar_t>
void tiles_of_many_taps(const Tiles<scalar_t>& t) {
  for_each_tile<TileOfManyTaps<scalar_t>>(t);
}

// Less than a vector of lanes.
template <typename scalar_t, Weights kWeights>
void tiles_of_few_lanes(const Tiles<scalar_t>& t) {
  for (int64_t first = 0; first < t.results; first += kTileRows) {
    any_taps<scalar_t, kWeights, kPartOfVector>(t, {first, t.first_lane, 0, 0});
  }
}

template <typename scalar_t>
using TilesFunction = void (*)(const Tiles<scalar_t>&);

// Two rows of results that meet four rows of pixels by 3 x 3 taps. The first and the last of these may be
// outside the image.
template <typename scalar_t>
void tiles_of_row_pair(const Tiles<scalar_t>& t, bool has_first, bool has_last) {
  if constexpr (is_marched<Weights::kOfLane>(3)) {
    if (has_first) {
      has_last ? march_of_pixels<scalar_t, 2, 0, 3>(t) : march_of_pixels<scalar_t, 2, 0, 2>(t);
    } else {
      has_last ? march_of_pixels<scalar_t, 2, 1, 3>(t) : march_of_pixels<scalar_t, 2, 1, 2>(t);
    }
  }
}

// Sizes of the groups of kernels of 3, 5 and 7 taps: whole (stride 1), or the odd and the even ones
// (stride 2), which meet the same results in the forward pass and different ones in grad_input.
template <int kFirst, int kSecond = 0>
struct KnownTaps {};

template <typename scalar_t, Weights kWeights, int... kFirst, int... kSecond>
TilesFunction<scalar_t> choose_tiles(
    const TileGroup* groups,
    int64_t count,
    KnownTaps<kFirst, kSecond>... /*known*/) {
  TilesFunction<scalar_t> chosen = &tiles_of_any_taps<scalar_t, kWeights>;
  const auto matches = [&](int first, int second) {
    return count == (second > 0 ? 2 : 1) && groups[0].taps == first &&
        (second == 0 || groups[1].taps == second);
  };
  ((matches(kFirst, kSecond)
        ? void(chosen = &tiles_of_known_taps<scalar_t, kWeights, kFirst, kSecond>)
        : void()),
   ...);
  return chosen;
}

// For one vector of lanes at least.
template <typename scalar_t, Weights kWeights>
TilesFunction<scalar_t> tiles_function(const TileGroup* groups, int64_t count) {
  if constexpr (kVectorsAreArrays) {
    return &tiles_of_any_taps<scalar_t, kWeights>;
  }
  return choose_tiles<scalar_t, kWeights>(
      groups,
      count,
      KnownTaps<1>(),
      KnownTaps<2>(),
      KnownTaps<3>(),
      KnownTaps<4>(),
      KnownTaps<5>(),
      KnownTaps<7>(),
      KnownTaps<2, 1>(),
      KnownTaps<3, 2>(),
      KnownTaps<4, 3>());
}

} // namespace
} // namespace at::native
