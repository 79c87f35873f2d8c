// The innermost loops of depthwise_conv2d_ext's forward and grad_input.
//
// Both memory orders are worked on in the same way. A tile is kTileRows neighbouring results along
// one dimension, by one or two vectors of lanes; its sums stay in registers. Along that dimension
// the taps of a group meet neighbouring sources (DepthwiseConv2dExtGeometry.h), so that a vector,
// once loaded, is multiplied into every result that it has a tap for. The taps of the other
// dimension follow one after the other.
//
//   planes:        results are rows,   lanes are columns,  the other taps are a kernel row's
//   channels last: results are pixels, lanes are channels, the other taps are a kernel column's
//
// In planes all lanes have the same weight, in channels last each its own.
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtLanes.h>
#include <array>
#include <utility>

namespace at::native {
namespace {

enum class Weights { kOfPlane, kOfLane };

// 4 results by 2 vectors, their halves (tile_of_known_taps) and up to 7 taps are 24 to 31 of AVX-512's
// 32 registers. Rows of 7, 14, 28 and 56 fill 4 better than 6 (28 % of 14 would be computed in vain, and
// 14 %). Of channels last, 8 pixels by one vector were slower wherever memory is far (.83 instead of
// 1.02 of conv2d's speed in the mean, fp32 forward): two vectors are two neighbouring cache lines.
constexpr int kTileRows = 4;
// Taps of a group that a tile takes at once; more are split.
constexpr int kMaxTaps = 8;

// A tap of the other dimension: what it adds to the position in the source and in the weights.
struct CrossTap {
  int64_t source;
  int64_t weight;
};

// Neighbouring taps: lines[(r + i) * line_step] is what tap i of result r meets, null outside the
// image. Its weight is at weights + cross.weight + i * weight_step.
template <typename scalar_t>
struct TileGroup {
  const scalar_t* const* lines;
  const opmath_type<scalar_t>* weights;
  int64_t weight_step;
  int64_t taps;
};

template <typename scalar_t>
struct Tile {
  using acc_t = opmath_type<scalar_t>;
  scalar_t* const* targets; // kTileRows of them, null for results that nobody wants
  int64_t target_lane;
  int64_t lane; // of the sources, and of the weights where each lane has its own
  int64_t lanes; // how many there are, where there are fewer than a vector
  int64_t line_step;
  const CrossTap* cross;
  int64_t cross_count;
  const TileGroup<scalar_t>* groups;
  int64_t group_count;
  const acc_t* start; // what sums begin with, by lane where each has its own weights
};

// kVectors of 0 stands for a part of a vector.
template <typename scalar_t, Weights kWeights, int kVectors>
struct TileSums {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int kCount = kVectors == 0 ? 1 : kVectors;
  Vec sums[kTileRows][kCount];

  static C10_ALWAYS_INLINE Vec load(const scalar_t* source, int v, const Tile<scalar_t>& t) {
    return kVectors == 0 ? load_lanes(source, t.lanes) : load_lanes(source + v * Vec::size());
  }

  static C10_ALWAYS_INLINE Vec lane_weight(const acc_t* weight, int v, const Tile<scalar_t>& t) {
    return kWeights == Weights::kOfLane ? Vec::loadu(weight + t.lane + v * Vec::size())
                                        : Vec(*weight);
  }

  C10_ALWAYS_INLINE void start(const Tile<scalar_t>& t) {
    DEPTHWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        sums[r][v] = lane_weight(t.start, v, t);
      }
    }
  }

  C10_ALWAYS_INLINE void store(const Tile<scalar_t>& t) const {
    DEPTHWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      if (t.targets[r] == nullptr) {
        continue;
      }
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        scalar_t* const target = t.targets[r] + t.target_lane + v * Vec::size();
        store_lanes(sums[r][v], target, kVectors == 0 ? t.lanes : Vec::size());
      }
    }
  }

  C10_ALWAYS_INLINE void add(const TileSums& other) {
    DEPTHWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        sums[r][v] = sums[r][v] + other.sums[r][v];
      }
    }
  }

  C10_ALWAYS_INLINE void clear() {
    DEPTHWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
        sums[r][v] = Vec(acc_t(0));
      }
    }
  }

  // The taps [first, last) of the other dimension with those of the group.
  template <int kTaps>
  C10_ALWAYS_INLINE void add_taps(
      const TileGroup<scalar_t>& group,
      int64_t first,
      int64_t last,
      const Tile<scalar_t>& t) {
    constexpr int kLines = kTileRows + kTaps - 1;
    for (int64_t tap = first; tap < last; ++tap) {
      const int64_t offset = t.cross[tap].source + t.lane;
      const acc_t* const weights = group.weights + t.cross[tap].weight;
      Vec scale[kTaps][kCount];
      DEPTHWISE_UNROLL for (int i = 0; i < kTaps; ++i) {
        DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
          scale[i][v] = lane_weight(weights + i * group.weight_step, v, t);
        }
      }
      DEPTHWISE_UNROLL for (int j = 0; j < kLines; ++j) {
        const scalar_t* const line = group.lines[j * t.line_step];
        if (line == nullptr) {
          continue;
        }
        DEPTHWISE_UNROLL for (int v = 0; v < kCount; ++v) {
          const Vec values = load(line + offset, v, t);
          DEPTHWISE_UNROLL for (int i = 0; i < kTaps; ++i) {
            const int r = j - i;
            if (r >= 0 && r < kTileRows) {
              sums[r][v] = vec::fmadd(values, scale[i][v], sums[r][v]);
            }
          }
        }
      }
    }
  }
};

// One or two groups of known sizes: the sums never leave the registers. They are taken by halves of
// the taps: one chain of additions has errors above those of upstream's convolution (5.3e-5 against
// 5.2e-5 in test_error_is_not_larger_than_upstreams), two shorter ones are below.
template <typename scalar_t, Weights kWeights, int kVectors, int kFirst, int kSecond>
void tile_of_known_taps(const Tile<scalar_t>& t) {
  TileSums<scalar_t, kWeights, kVectors> sums;
  TileSums<scalar_t, kWeights, kVectors> half;
  const int64_t middle = t.cross_count / 2;
  sums.start(t);
  sums.template add_taps<kFirst>(t.groups[0], 0, middle, t);
  half.clear();
  half.template add_taps<kFirst>(t.groups[0], middle, t.cross_count, t);
  if constexpr (kSecond > 0) {
    sums.template add_taps<kSecond>(t.groups[1], 0, middle, t);
    half.template add_taps<kSecond>(t.groups[1], middle, t.cross_count, t);
  }
  sums.add(half);
  sums.store(t);
}

// By halves, as above.
template <int kTaps, typename Sums, typename scalar_t>
C10_NOINLINE void add_group(Sums& sums, const TileGroup<scalar_t>& group, const Tile<scalar_t>& t) {
  const int64_t middle = t.cross_count / 2;
  for (const auto& [first, last] : {std::pair(int64_t(0), middle), {middle, t.cross_count}}) {
    Sums local;
    local.clear();
    local.template add_taps<kTaps>(group, first, last, t);
    sums.add(local);
  }
}

template <int kTaps, typename Sums, typename scalar_t>
void add_group_of(Sums& sums, const TileGroup<scalar_t>& group, const Tile<scalar_t>& t) {
  if (group.taps == kTaps) {
    add_group<kTaps>(sums, group, t);
  } else if constexpr (kTaps < kMaxTaps) {
    add_group_of<kTaps + 1>(sums, group, t);
  }
}

template <typename scalar_t>
bool all_outside(const TileGroup<scalar_t>& group, int64_t lines, int64_t line_step) {
  for (const auto j : c10::irange(lines)) {
    if (group.lines[j * line_step] != nullptr) {
      return false;
    }
  }
  return true;
}

// Any number of groups of up to kMaxTaps taps. Those that only meet positions outside the image are
// passed over, which is most of a kernel that is larger than the image.
template <typename scalar_t, Weights kWeights, int kVectors>
void tile_of_any_taps(const Tile<scalar_t>& t) {
  TileSums<scalar_t, kWeights, kVectors> sums;
  sums.start(t);
  for (const auto index : c10::irange(t.group_count)) {
    const TileGroup<scalar_t>& group = t.groups[index];
    if (all_outside(group, kTileRows + group.taps - 1, t.line_step)) {
      continue;
    }
    add_group_of<1>(sums, group, t);
  }
  sums.store(t);
}

template <typename scalar_t>
using TileFunction = void (*)(const Tile<scalar_t>&);

// Sizes of the groups of kernels of 3, 5 and 7 taps: whole (stride 1), or the odd and the even ones
// (stride 2), which meet the same results in the forward pass and different ones in grad_input.
template <int kFirst, int kSecond = 0>
struct KnownTaps {};

template <typename scalar_t, Weights kWeights, int kVectors, int... kFirst, int... kSecond>
TileFunction<scalar_t> choose_tile(
    const TileGroup<scalar_t>* groups,
    int64_t count,
    KnownTaps<kFirst, kSecond>... /*known*/) {
  TileFunction<scalar_t> chosen = &tile_of_any_taps<scalar_t, kWeights, kVectors>;
  const auto matches = [&](int first, int second) {
    return count == (second > 0 ? 2 : 1) && groups[0].taps == first &&
        (second == 0 || groups[1].taps == second);
  };
  ((matches(kFirst, kSecond)
        ? void(chosen = &tile_of_known_taps<scalar_t, kWeights, kVectors, kFirst, kSecond>)
        : void()),
   ...);
  return chosen;
}

template <typename scalar_t, Weights kWeights, int kVectors>
TileFunction<scalar_t> tile_function(const TileGroup<scalar_t>* groups, int64_t count) {
  if constexpr (kVectors == 0) {
    return &tile_of_any_taps<scalar_t, kWeights, kVectors>;
  } else {
    return choose_tile<scalar_t, kWeights, kVectors>(
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
}

} // namespace
} // namespace at::native
