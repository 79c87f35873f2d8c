// Planes of rows of more than half a vector of AVX-512, by windows of 3 x 3, 5 x 5 and 7 x 7 with strides and
// dilations of 1, from where they are: nothing is packed.
//
// A tile is 14 rows of results by one vector. For each column of the window its weights are broadcast, and
// each line of the source, once loaded, is multiplied into all of the results that it meets: of k7, 98
// multiply-adds for 20 lines, where 7 rows by two vectors take 26. Lines are what limits, as nearly all are
// parts of two cache lines: 98 multiply-adds with none, 20 and 26 of them take 51, 60 and 65 cycles. The
// lanes that a column of the window meets outside the image are masked, lines outside are passed over. 16-bit
// planes are converted some at a time.
#pragma once

#include <ATen/native/cpu/depthwise_conv2d_ext/Pixels.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Planes.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Problem.h>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

// Rows of results, of which planes of 14, 28, 56 and 112 have a whole number.
constexpr int kTallTileRows = 14;
// Bytes of converted planes that are worked on at once: beside as many of results, in first-level cache.
constexpr int64_t kConvertedBytes = 12 << 10;
// Results larger than this are asked for a plane ahead, unless they go past the caches: fp32, 384@14 k3 N=4
// 250 us and 83, 240@28 k5 109 and 89; where they are in a second-level cache of 1 MB, within 4 %.
constexpr size_t kUnaskedBytes = 128 << 10;
constexpr size_t kUnaskedConvertedBytes = 1 << 20;

// Against rows packed or, of 14 x 14, planes transposed, fp32, one thread: 192@28 k7 172 us became 130, N=16
// 2,860 and 2,060, 384@14 k7 81 and 66, 32@112 k3 161 and 130. But 16 x 16, 28 rows so, k5 75 and 107.
inline bool are_planes_of_tall_tiles(const Params& p) {
  constexpr int64_t kLanes = Vectorized<float>::size();
  const int64_t side = p.kernel_height;
  const int64_t rows = std::min(p.input_height, p.output_height);
  const int64_t columns = std::min(p.input_width, p.output_width);
  const bool fits = p.multiplier == 1 && p.stride_height == 1 && p.stride_width == 1 &&
      p.dilation_height == 1 && p.dilation_width == 1 && p.kernel_width == side &&
      (side == 3 || side == 5 || side == 7) &&
      p.input_height * p.input_width <= kBandBytes / static_cast<int64_t>(sizeof(float));
  return fits && rows >= kTallTileRows &&
      (columns > kLanes || (columns > kLanes / 2 && rows % kTallTileRows == 0));
}

// One plane.
struct TallPlane {
  const float* source;
  float* target;
  int64_t source_width; // values from line to line
  int64_t target_width;
  Range lines; // that are inside: line r + i for tap i of row r
  int64_t rows; // of results
  const float* weights; // of the first tap that row 0 meets
  int64_t tap_step; // to the next row's
  const CrossTap* columns; // of the window
  const LaneBits* lanes; // [vectors of a row][columns] that are inside
  float start;
};

// All indices are constants from the start: of loops over arrays GCC 12 keeps the sums in memory (192@28 k7
// 153 us, 130 so).
template <int kSide>
class TallTile {
  using Vec = Vectorized<float>;
  template <int kCount>
  using Numbers = std::make_integer_sequence<int, kCount>;
  using Rows = Numbers<kTallTileRows>;
  using Side = Numbers<kSide>;
  using Lines = Numbers<kTallTileRows + kSide - 1>;
  using Kept = float[kTallTileRows][Vec::size()];
  static constexpr LaneBits kAllLanes = (LaneBits(1) << Vec::size()) - 1;

 public:
  // The results from row `first` on. `lanes` are those that each column of the window meets inside.
  static C10_NOINLINE void run(
      const TallPlane& plane,
      int64_t first,
      int64_t lane,
      LaneBits stored,
      const LaneBits* lanes) {
    TallTile(plane, first, lane, lanes, Rows()).run(stored);
  }

 private:
  // By halves of the columns, as in add_groups; the first half's sums wait in memory.
  C10_ALWAYS_INLINE void run(LaneBits stored) {
    alignas(kCacheLine) Kept kept;
    add_columns(0, kSide / 2);
    keep(kept, Rows());
    asm("" : "+m"(kept)); // else they would stay in registers that there are not
    add_columns(kSide / 2, kSide);
    add(kept, Rows());
    store(stored, Rows());
  }

  C10_ALWAYS_INLINE void add_columns(int first, int last) {
    for (int column = first; column < last; ++column) {
      if (lanes_[column] == kAllLanes) {
        add_column<true>(column, Side(), Lines());
      } else {
        add_column<false>(column, Side(), Lines());
      }
    }
  }

  // Members that begin as something: arrays of vectors without a value are zeroed by a loop, and GCC 12 keeps
  // in memory what a loop goes through.
  template <int... r>
  C10_ALWAYS_INLINE TallTile(
      const TallPlane& plane,
      int64_t first,
      int64_t lane,
      const LaneBits* lanes,
      std::integer_sequence<int, r...> /*rows*/)
      : p_(plane),
        line_(plane.source + first * plane.source_width + lane),
        target_(plane.target + first * plane.target_width + lane),
        lanes_(lanes),
        inside_(bits_below(plane.lines.end - first) & ~bits_below(plane.lines.begin - first)),
        sums_{(void(r), Vec(plane.start))...} {}

  static C10_ALWAYS_INLINE uint32_t bits_below(int64_t line) {
    return (uint32_t(1) << std::clamp<int64_t>(line, 0, kTallTileRows + kSide - 1)) - 1;
  }

  template <bool kWhole, int... i, int... j>
  C10_ALWAYS_INLINE void add_column(
      int column,
      std::integer_sequence<int, i...> /*side*/,
      std::integer_sequence<int, j...> /*lines*/) {
    const CrossTap& tap = p_.columns[column];
    const float* const weights = p_.weights + tap.weight;
    const Vec scales[] = {held_in_register(Vec(weights[i * p_.tap_step]))...};
    const float* line = line_ + tap.source;
    (add_line<j, kWhole>(line, lanes_[column], scales, Side()), ...);
  }

  template <int kLine, bool kWhole, int... i>
  C10_ALWAYS_INLINE void add_line(
      const float*& line,
      LaneBits lanes,
      const Vec* scales,
      std::integer_sequence<int, i...> /*side*/) {
    if (C10_LIKELY(inside_ >> kLine & 1)) {
      const Vec values = held_in_register(kWhole ? Vec::loadu(line) : load_chosen(line, lanes));
      (multiply<kLine - i>(values, scales[i]), ...);
    }
    line = held_in_register(line + p_.source_width);
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
    ((sums_[r] = Vec(0)), ...);
  }
  template <int... r>
  C10_ALWAYS_INLINE void add(const Kept& kept, std::integer_sequence<int, r...> /*rows*/) {
    ((sums_[r] = Vec::loadu(kept[r]) + sums_[r]), ...);
  }
  // What a row that is shorter than a vector stores of the next one is overwritten by that.
  template <int... r>
  C10_ALWAYS_INLINE void store(LaneBits stored, std::integer_sequence<int, r...> /*rows*/) {
    (store_row<r>(target_ + r * p_.target_width, stored), ...);
  }
  template <int r>
  C10_ALWAYS_INLINE void store_row(float* target, LaneBits stored) {
    if constexpr (r + 1 < kTallTileRows) {
      sums_[r].store(target);
    } else {
      store_chosen(sums_[r], target, stored);
    }
  }

  const TallPlane& p_;
  const float* line_;
  float* target_;
  const LaneBits* lanes_;
  uint32_t inside_; // lines
  Vec sums_[kTallTileRows];
};

// The first lane of a tile of whole vectors, but for rows of less than one.
inline int64_t first_lane_of_tile(int64_t lane, int64_t lanes) {
  return std::max<int64_t>(std::min(lane, lanes - Vectorized<float>::size()), 0);
}

// A plane. Rather than parts of tiles, some rows and lanes are done twice. What is read next and what is
// written are asked for meanwhile.
template <int kSide>
void tall_tiles(const TallPlane& plane, Range ahead, Range written) {
  constexpr int64_t kLanes = Vectorized<float>::size();
  const int64_t width = plane.target_width;
  const int64_t tiles = ceil_div(plane.rows, kTallTileRows) * ceil_div(width, kLanes);
  const LaneBits stored = (LaneBits(1) << std::min(width, kLanes)) - 1;
  AheadParts ahead_parts = AheadParts::of(ahead, tiles);
  AheadParts written_parts = AheadParts::of(written, tiles);
  for (int64_t row = 0; row < plane.rows; row += kTallTileRows) {
    const LaneBits* lanes = plane.lanes;
    for (int64_t lane = 0; lane < width; lane += kLanes, lanes += kSide) {
      ahead_parts.ask_for_part();
      written_parts.ask_for_part<Ask::kToWrite>();
      TallTile<kSide>::run(
          plane,
          std::min(row, plane.rows - kTallTileRows),
          first_lane_of_tile(lane, width),
          stored,
          lanes);
    }
  }
}

template <typename scalar_t>
class TallTilePass {
  static constexpr int64_t kLanes = Vectorized<float>::size();
  static constexpr bool kConverts = !std::is_same_v<scalar_t, float>;

 public:
  explicit TallTilePass(const Pass& pass)
      : params_(pass.params),
        direction_(pass.direction),
        result_(pass.result.mutable_data_ptr<scalar_t>()),
        source_(pass.source.const_data_ptr<scalar_t>()),
        weight_(pass.weight.const_data_ptr<scalar_t>()),
        bias_(pass.bias.defined() ? pass.bias.const_data_ptr<scalar_t>() : nullptr),
        filters_(pass.weight),
        finite_(all_finite(weight_, pass.params.channels * pass.params.kernel_size())),
        height_(height_of(pass.params, pass.direction)),
        width_(width_of(pass.params, pass.direction)),
        rows_(height_.group(0, 0)),
        stream_(pass.result.nbytes() > kStreamBytes),
        asks_for_results_(
            !stream_ &&
            pass.result.nbytes() > (kConverts ? kUnaskedConvertedBytes : kUnaskedBytes)) {
    const TapGroup columns = width_.group(0, 0);
    for (const auto i : c10::irange(columns.count)) {
      columns_.push_back({columns.source + i, columns.first + i * columns.step});
    }
    for (int64_t lane = 0; lane < width_.results; lane += kLanes) {
      const int64_t first = first_lane_of_tile(lane, width_.results);
      for (const CrossTap& column : columns_) {
        lanes_.push_back(met_lanes(column.source + first));
      }
    }
  }

  void run() const {
    const int64_t source_size = height_.sources * width_.sources;
    const int64_t result_size = height_.results * width_.results;
    const int64_t most =
        std::max<int64_t>(kConvertedBytes / (source_size * int64_t(sizeof(float))), 1);
    const auto grain =
        grain_of(params_.output_height * params_.output_width * params_.kernel_size());
    const int64_t planes = params_.batch * params_.channels;
    in_parallel(planes, grain, [&](int64_t begin, int64_t end) {
      const AlignedBuffer<float> converted(kConverts ? most * source_size + 2 * kLanes : 0);
      const AlignedBuffer<float> rounded(kConverts ? most * result_size + 2 * kLanes : 0);
      StreamedRun<scalar_t> streamed(stream_ ? most * result_size : 0);
      for (int64_t first = begin; first < end; first += most) {
        const int64_t count = std::min(most, end - first);
        const scalar_t* const sources = source_ + first * source_size;
        scalar_t* results = result_ + first * result_size;
        if (stream_) {
          streamed.go_to(results);
          results = streamed.place();
        }
        if constexpr (kConverts) {
          convert_row(sources, count * source_size, converted.data());
          run_planes(converted.data(), rounded.data(), first, count);
          unpack_row(rounded.data(), 0, 1, results, count * result_size);
        } else {
          run_planes(sources, results, first, count);
        }
        for (int64_t i = 0; !finite_ && i < count; ++i) {
          mend(results + i * result_size, sources + i * source_size, first + i);
        }
        if (stream_) {
          streamed.add(count * result_size);
        }
      }
      if (stream_) {
        streamed.finish();
      }
    });
  }

 private:
  // The results of a vector for which a tap that meets source column `position` at the first is inside the
  // image.
  LaneBits met_lanes(int64_t position) const {
    LaneBits lanes = 0;
    for (const auto lane : c10::irange(std::min(width_.results, kLanes))) {
      const int64_t column = position + lane;
      lanes |= column >= 0 && column < width_.sources ? LaneBits(1) << lane : 0;
    }
    return lanes;
  }

  void run_planes(const float* sources, float* results, int64_t first, int64_t count) const {
    const int64_t source_size = height_.sources * width_.sources;
    const int64_t result_size = height_.results * width_.results;
    const int64_t side = params_.kernel_width;
    const int64_t ahead = kConverts ? count : 1; // planes
    TallPlane plane{};
    plane.source_width = width_.sources;
    plane.target_width = width_.results;
    plane.lines = height_.inside(rows_.source);
    plane.rows = height_.results;
    plane.tap_step = rows_.step * side;
    plane.columns = columns_.data();
    plane.lanes = lanes_.data();
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t channel = i % params_.channels;
      plane.source = sources + (i - first) * source_size + rows_.source * width_.sources;
      plane.target = results + (i - first) * result_size;
      plane.weights = filters_.data() + channel * params_.kernel_size() + rows_.first * side;
      plane.start = bias_ ? float(bias_[channel]) : float(0);
      const auto tiles = side == 3 ? &tall_tiles<3> : side == 5 ? &tall_tiles<5> : &tall_tiles<7>;
      tiles(
          plane,
          plane_at(source_, source_size, i + ahead),
          asks_for_results_ ? plane_at(result_, result_size, i + 1) : Range{0, 0});
    }
  }
  // The addresses of a plane, if it exists.
  Range plane_at(const scalar_t* planes, int64_t size, int64_t plane) const {
    return addresses_of(planes + plane * size, plane < params_.batch * params_.channels ? size : 0);
  }

  // A filter that is not finite has met the zeros beside the plane.
  void mend(scalar_t* result, const scalar_t* source, int64_t plane) const {
    const int64_t channel = plane % params_.channels;
    const scalar_t* const filter = weight_ + channel * params_.kernel_size();
    if (!all_finite(filter, params_.kernel_size())) {
      exact_plane(result, source, filter, bias_ ? bias_ + channel : nullptr, params_, direction_);
    }
  }

  Params params_;
  Direction direction_;
  scalar_t* result_;
  const scalar_t* source_;
  const scalar_t* weight_;
  const scalar_t* bias_;
  ArithmeticValues<scalar_t> filters_;
  bool finite_; // all filters
  Dimension height_;
  Dimension width_;
  TapGroup rows_;
  bool stream_; // results past the caches
  bool asks_for_results_;
  c10::SmallVector<CrossTap, 8> columns_;
  c10::SmallVector<LaneBits, 64> lanes_; // [vectors of a row][columns] that are inside the image
};

template <typename scalar_t>
void tall_tile_pass(const Pass& pass) {
  TallTilePass<scalar_t>(pass).run();
}

#endif

} // namespace
} // namespace at::native
