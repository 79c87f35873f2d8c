// Small square windows of depthwise_conv2d_ext's forward and grad_input over rows of planes as they are, with
// strides and dilations of 1.
//
// A tile is 14 rows of results by one vector. For each column of the window its weights are broadcast, and
// each line of the source, once loaded, is multiplied into all of the results that it meets: of k7, 98
// multiply-adds for 20 lines, where 7 rows by two vectors take 26. Lines are what limits, as nearly all are
// parts of two cache lines: 98 multiply-adds with none, 20 and 26 of them take 51, 60 and 65 cycles, with 20
// whose lanes are masked 68, as masks are applied on the ports of the multiply-adds.
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtTileWork.h>
#include <utility>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

// Rows of results, of which planes of 14, 28, 56 and 112 have a whole number.
constexpr int kTallTileRows = 14;

// A tile that meets so many lines before and behind the image. All indices are constants from the start: of
// loops over arrays GCC 12 keeps the sums in memory (192@28 k7 153 us, 130 so).
template <typename acc_t, int kSide, int kBefore, int kAfter>
class TallTile {
  using Vec = Vectorized<acc_t>;
  template <int kCount>
  using Numbers = std::make_integer_sequence<int, kCount>;
  using Rows = Numbers<kTallTileRows>;
  using Side = Numbers<kSide>;
  using Lines = Numbers<kTallTileRows + kSide - 1 - kBefore - kAfter>;
  using Kept = acc_t[kTallTileRows][Vec::size()];
  static constexpr LaneBits kAllLanes = (LaneBits(1) << Vec::size()) - 1;

 public:
  // The results from row `first` on. `lanes` are those that each column of the window meets inside.
  C10_ALWAYS_INLINE TallTile(
      const Tiles<acc_t>& t,
      int64_t first,
      int64_t lane,
      const LaneBits* lanes)
      : TallTile(t, first, lane, lanes, Rows()) {}

  // By halves of the columns, as in known_taps; the first half's sums wait in memory.
  C10_ALWAYS_INLINE void run() {
    alignas(kCacheLine) Kept kept;
    int column = 0;
    for (const int end : {kSide / 2, kSide}) {
      for (; column < end; ++column) {
        if (lanes_[column] == kAllLanes) {
          add_column<true>(column, Side(), Lines());
        } else {
          add_column<false>(column, Side(), Lines());
        }
      }
      if (end < kSide) {
        keep(kept, Rows());
        asm("" : "+m"(kept)); // else they would stay in registers that there are not
      }
    }
    store(kept, Rows());
  }

 private:
  // Sums begin as something, as those of a March.
  template <int... r>
  C10_ALWAYS_INLINE TallTile(
      const Tiles<acc_t>& t,
      int64_t first,
      int64_t lane,
      const LaneBits* lanes,
      std::integer_sequence<int, r...> /*rows*/)
      : t_(t),
        line_(t.source + t.groups[0].line + (first + kBefore) * t.line_step + lane),
        target_(t.target + first * t.target_step + lane),
        lanes_(lanes),
        sums_{(void(r), Vec(*t.start))...} {}

  template <bool kWhole, int... i, int... j>
  C10_ALWAYS_INLINE void add_column(
      int column,
      std::integer_sequence<int, i...> /*side*/,
      std::integer_sequence<int, j...> /*lines*/) {
    const CrossTap& tap = t_.cross[column];
    const TileGroup& group = t_.groups[0];
    const acc_t* const weights = t_.weights + group.weight + tap.weight;
    const Vec scales[] = {held_in_register(Vec(weights[i * group.weight_step]))...};
    const acc_t* line = line_ + tap.source;
    (add_line<kBefore + j, kWhole>(line, lanes_[column], scales, Side()), ...);
  }

  template <int kLine, bool kWhole, int... i>
  C10_ALWAYS_INLINE void add_line(
      const acc_t*& line,
      LaneBits lanes,
      const Vec* scales,
      std::integer_sequence<int, i...> /*side*/) {
    const Vec values = held_in_register(kWhole ? Vec::loadu(line) : load_chosen(line, lanes));
    line = held_in_register(line + t_.line_step);
    (multiply<kLine - i>(values, scales[i]), ...);
  }

  template <int kRow>
  C10_ALWAYS_INLINE void multiply(const Vec& values, const Vec& scale) {
    if constexpr (kRow >= 0 && kRow < kTallTileRows) {
      sums_[kRow] = vec::fmadd(values, scale, sums_[kRow]);
    }
  }

  template <int... r>
  C10_ALWAYS_INLINE void keep(Kept& kept, std::integer_sequence<int, r...> /*rows*/) {
    (sums_[r].store(kept[r]), ...);
    ((sums_[r] = Vec(acc_t(0))), ...);
  }
  template <int... r>
  C10_ALWAYS_INLINE void store(const Kept& kept, std::integer_sequence<int, r...> /*rows*/) {
    (store_chosen(Vec::loadu(kept[r]) + sums_[r], target_ + r * t_.target_step, t_.row[0]), ...);
  }

  const Tiles<acc_t>& t_;
  const acc_t* line_; // the first that is inside
  acc_t* target_;
  const LaneBits* lanes_;
  Vec sums_[kTallTileRows];
};

template <typename acc_t, int kSide, int kBefore, int kAfter>
void tall_tile(const Tiles<acc_t>& t, int64_t first, int64_t lane, const LaneBits* lanes) {
  TallTile<acc_t, kSide, kBefore, kAfter>(t, first, lane, lanes).run();
}

// Whether the first tile and the last of planes padded by half a window are all that meet lines outside.
inline bool are_rows_of_tall_tiles(int64_t rows, int64_t side) {
  return rows == kTallTileRows || rows >= kTallTileRows + side / 2;
}

// The first lane of a tile of whole vectors, but for rows of less than one.
template <typename acc_t>
int64_t first_lane_of_tile(int64_t lane, int64_t lanes) {
  return std::max<int64_t>(std::min(lane, lanes - Vectorized<acc_t>::size()), 0);
}

// A plane. Rather than parts of tiles, some rows and lanes are done twice.
template <typename acc_t, int kSide>
void tall_tiles(const Tiles<acc_t>& t) {
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  constexpr int kHalf = kSide / 2;
  const int64_t last = t.results - kTallTileRows;
  const int64_t tiles = ceil_div(t.results, kTallTileRows) * ceil_div(t.last_lane, kLanes);
  AheadParts ahead = AheadParts::of(t.ahead, tiles);
  AheadParts written = AheadParts::of(t.written, tiles);
  for (int64_t row = 0; row < t.results; row += kTallTileRows) {
    int64_t first = std::min(row, last - kHalf);
    auto tile = &tall_tile<acc_t, kSide, 0, 0>;
    if (last == 0) {
      first = 0;
      tile = &tall_tile<acc_t, kSide, kHalf, kHalf>;
    } else if (row == 0) {
      tile = &tall_tile<acc_t, kSide, kHalf, 0>;
    } else if (row >= last) {
      first = last;
      tile = &tall_tile<acc_t, kSide, 0, kHalf>;
    }
    const LaneBits* lanes = t.cross_lanes;
    for (int64_t lane = 0; lane < t.last_lane; lane += kLanes, lanes += kSide) {
      // The next plane's lines are read from where they are: 2 % faster than from the second-level cache.
      ahead.ask_for_part();
      written.ask_for_part<Ask::kToWrite>();
      tile(t, first, first_lane_of_tile<acc_t>(lane, t.last_lane), lanes);
    }
  }
}

#endif

} // namespace
} // namespace at::native
