// What the innermost loops of depthwise_conv2d_ext's forward and grad_input are given
// (DepthwiseConv2dExtTiles.h says what for).
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtGeometry.h>
#include <ATen/native/cpu/DepthwiseConv2dExtLanes.h>
#include <limits>

namespace at::native {
namespace {

enum class Weights { kOfPlane, kOfLane };

// 4 results by 2 vectors, their halves (known_taps) and up to 7 taps are 24 to 31 of AVX-512's
// 32 registers. Rows of 7, 14, 28 and 56 fill 4 better than 6 (28 % of 14 would be computed in vain, and
// 14 %). Of channels last, 8 pixels by one vector were slower wherever memory is far (.83 instead of
// 1.02 of conv2d's speed in the mean, fp32 forward): two vectors are two neighbouring cache lines.
constexpr int kTileRows = 4;
// Of planes with AVX-512, where all lanes have the same weights: 14 sums, up to 8 weights and a line's
// vectors. Against 4 rows with a condition for each line, fp32, one thread: 96@56 k7 333 us became 261,
// 240@28 k5 148 (a march) 119, 128@56 k31 6,670 5,200, 96@56 51x5 1,440 1,160.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kPlaneTileRows = 7;
#else
constexpr int kPlaneTileRows = kTileRows;
#endif
constexpr int tile_rows(Weights weights) {
  return weights == Weights::kOfPlane ? kPlaneTileRows : kTileRows;
}

// Rows of pixels of some tiles of this many by two vectors, as images of 224 pixels have, are taken so by
// windows of 5 or 7 taps padded by half of them: which lines are outside is then known before, and weights
// serve 7 results, not 4. fp32, one thread, channels last: 96@56 k7 284 us became 230, 384@14 k7 77 57,
// 240@28 k5 105 87, N=16 of 1152@7 k5 523 416 and of 768@7 k7 529 432.
constexpr int kRowTileResults = 7;
// Taps that meet all of such a tile that is a whole row: the same, by one vector. 1024@7 k13 channels last
// 140 us became 101, NCHW 143 and 105. Not where two vectors are even and odd channels.
constexpr int kRowWindow = 2 * kRowTileResults - 1;
#if defined(CPU_CAPABILITY_AVX512)
template <typename scalar_t>
constexpr bool is_taken_by_rows(int taps) {
  return (taps == 3 || taps == 5 || taps == 7 || (taps == kRowWindow && !kEvenAndOdd<scalar_t>)) &&
      !std::is_same_v<scalar_t, double>;
}
#elif defined(CPU_CAPABILITY_AVX2)
// fp32, one thread, tiles of 4 and of 7 results: 240@28 k5 188 us and 156, 1152@7 k5 66 and 52, N=16 904 and
// 677, 96@56 k7 507 and 435, 768@7 k7 71 and 52, N=16 950 and 650, grad_input of 672@14 k5s2, whose phases have
// 3 and 2 taps, 61 and 54.
template <typename scalar_t>
constexpr bool is_taken_by_rows(int taps) {
  return (taps == 2 || taps == 3 || taps == 5 || taps == 7) && !std::is_same_v<scalar_t, double>;
}
#else
template <typename scalar_t>
constexpr bool is_taken_by_rows(int /*taps*/) {
  return false;
}
#endif

// Whether weights of these tiles are operands in memory, as sums and a pixel are all of AVX2's 16 registers.
#if defined(CPU_CAPABILITY_AVX2)
constexpr bool kRowTilesReadWeights = true;
#else
constexpr bool kRowTilesReadWeights = false;
#endif

// Windows of 5 taps at a stride of 2 as well, of any width that this is true for: such a tile takes as long as
// one and a half of 4 results. Of 8, 15 and 16 results it would be .85 to .95 as fast. One thread,
// channels last: fp32 672@14 34 us became 29, N=16 577 502, 144@56 N=16 1,855 1,675 (where memory is asked
// for at once instead of in parts 660 and 2,040 for 630 and 1,950), bf16 672@14 N=16 450 400, 144@56 97 88.
// Not with weights in memory: AVX2, 144@56 147 us, 170 so.
inline bool fill_row_tiles(int64_t results) {
  return results >= kRowTileResults &&
      3 * ceil_div(results, kRowTileResults) <= 2 * ceil_div(results, kTileRows);
}

// Taps of a group that a tile takes at once; more are split.
constexpr int kMaxTaps = 8;

// Where each lane has its own weights and they are many, they come from the second-level cache for each
// tile: then, with AVX-512, a tile is this many results by one vector (14 sums and 8 weights), so that each
// weight is multiplied that often. fp32, one thread, 4 by two, 8 and 14 by one: 128@56 k31 7,690, 6,740
// and 5,650 us, 256@28 k29 2,720, 2,620 and 2,040, 512@14 k27 897, 854 and 701, 96@56 51x5 1,530, 1,420
// and 1,230. 256@14 k11 133 and 99, but 128@56 k9 868 and 931. Rows of 7 have no use for it.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kManyTapsRows = 14;
constexpr int64_t kManyTaps = 112;
#else
constexpr int kManyTapsRows = kTileRows;
constexpr int64_t kManyTaps = std::numeric_limits<int64_t>::max(); // never
#endif

// A tap of the other dimension: what it adds to the position in the source and in the weights.
struct CrossTap {
  int64_t source;
  int64_t weight;
};

// Neighbouring taps: tap i of result r meets the line that begins at first_line + line + (r + i) * line_step
// from `source` on. Its weight is at weights + weight + cross.weight + i * weight_step. Tiles has what
// is not named here; a group is the same for every image or plane. Of pixels, `weight_step` is a vector's lanes.
struct TileGroup {
  int64_t source;
  int64_t line;
  int64_t weight;
  int64_t weight_step;
  int64_t taps;
};

// All results of one phase of a line by some lanes: several tiles, so that what is known of them all
// is looked up once. With 32 channels, or planes of 56 columns, a tile is no more than some 40 cycles.
template <typename scalar_t>
struct Tiles {
  using acc_t = opmath_type<scalar_t>;
  const scalar_t* source;
  scalar_t* target; // of result 0, lane 0
  int64_t target_step; // between results
  int64_t results;
  int64_t first_lane; // of the sources, and of the weights where each lane has its own
  int64_t last_lane; // less than a vector of lanes is for tiles of parts only
  int64_t first_line;
  int64_t line_step;
  int64_t lines_end; // lines that begin before 0 or from here on are outside the image
  const CrossTap* cross;
  int64_t cross_count;
  const TileGroup* groups;
  int64_t group_count;
  const acc_t* weights;
  int64_t block_step; // from a vector of lanes' weights to the next one's
  const acc_t* start; // what sums begin with; of lanes with their own weights as start_of says
  // Addresses of what later lines will read: asked for while these are computed, a part with each tile.
  Range ahead;
  Range written; // the same of results, by tall tiles
  bool stream; // results past the caches; whole cache lines of them, but for parts of a vector
  // Where a vector is lanes of a plane's row, or a row of a plane in each half: the lanes that each tap of
  // the other dimension meets inside the image, for each vector of a row, and those that are stored of the
  // first and of the second plane.
  const LaneBits* cross_lanes;
  LaneBits row[2];
  // Of two rows at once: how far from the first one's lane 0 the second one's would be.
  int64_t second_row;
};

// Where `count` values are.
template <typename scalar_t>
Range addresses_of(const scalar_t* values, int64_t count) {
  return {reinterpret_cast<int64_t>(values), reinterpret_cast<int64_t>(values + count)};
}

// What memory is asked for. It goes to the first-level cache either way. Channels last, fp32, N=16, Zen 5, to
// the second level and so: 672@14 k5s2 1,092 and 800 us, 96@112 k3s2 4,500 and 3,800, others 1.0 to 1.1.
enum class Ask { kToRead, kToWrite };

// Addresses asked for, some at a time: all at once they occupy the core's buffers for lines on their way, for
// which what comes from the second-level cache then waits.
struct AheadParts {
  Range left{0, 0};
  int64_t step = 0;
  static AheadParts of(Range addresses, int64_t parts) {
    return {addresses, round_up(ceil_div(addresses.size(), parts), kCacheLine)};
  }
  // The next `size` bytes, in parts as these.
  C10_ALWAYS_INLINE AheadParts take(int64_t size) {
    const Range taken{left.begin, std::min(left.end, left.begin + size)};
    left.begin = taken.end;
    return {taken, step};
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

// One of the tiles: the results from `first` on, the lanes from `lane` on.
struct TilePlace {
  int64_t first;
  int64_t lane;
  int64_t vector_step; // of two that overlap
  int64_t weights; // where those of its lanes begin
  AheadParts ahead{}; // its part of what is asked for
};

// What sums begin with lies by whole vectors, as the weights do; the last may overlap the one before.
template <typename acc_t>
C10_ALWAYS_INLINE int64_t start_of(TilePlace at) {
  return round_up(at.lane, Vectorized<acc_t>::size());
}

// Beside one vector or two: what kVectors may be.
constexpr int kPartOfVector = 0;
constexpr int kTwoOverlapping = 3;
constexpr int kRowOfPlanes = 4;

constexpr int vectors_of(int kind) {
  return kind == 2 || kind == kTwoOverlapping ? 2 : 1;
}

} // namespace
} // namespace at::native
