// Forward and grad_input of depthwise_conv2d_ext over pixels, [N, H, W, C], multiplier 1.
//
// A tile (Tiles.h) is some pixels of a row by one or two vectors of channels: a source pixel is loaded once a
// kernel row for all of the results that it meets. Channels follow each other innermost, so that memory is
// read in the order in which it lies; the weights, tap by tap for each vector of channels, are then read once
// a tile. Windows of 3 x 3 have a loop of their own. Pixels outside the image are passed over, never
// multiplied. 16-bit values are converted as they are loaded and stored.
#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Problem.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Tiles.h>
#include <c10/util/SmallVector.h>
#include <array>
#include <utility>

namespace at::native {
namespace {

// Results of a march. Of 16-bit values and of results stored past the caches they are the rows of most images,
// as a march begins with some 50 cycles for nothing; not of others, of which more lines would be in use at
// once than caches like (fp32, 728@65 dilated 1,235 us by 16 and 1,549 by 128).
constexpr int64_t kMarchResults = 16;
constexpr int64_t kLongMarchResults = 128;

// A march along a row of results, column by column of the three rows of pixels that they meet: each pixel,
// once loaded, is multiplied into all results that have a tap for it. A result is three columns' sums, those
// of the first two one chain of additions that begins with the bias, that of the last another. So there are
// but two sums between columns. Of two vectors they, the weights of two taps across and what a column needs
// for itself are in registers; the other weights are operands in memory. None of the sums may be: their stores
// would wait in the core's buffer behind those of results, which wait for memory (384@14 N=16 517 us with ten
// such stores a column, 369 without).
//
// All indices are constants from the start: those of loops are too late for GCC 12, which then keeps sums in
// memory.
template <typename scalar_t, int kVectors>
class PixelMarch {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int kLanes = Vec::size();
  static constexpr int kSide = 3;
  template <int kCount>
  using Numbers = std::make_integer_sequence<int, kCount>;
  using Vectors = Numbers<kVectors>;
  static constexpr int kHeld = kSide * (kSide - 1) * kVectors;
  // In each column: [taps down, and what sums begin with][vectors][lanes].
  using Read = std::array<acc_t, (kSide + 1) * kVectors * kLanes>;

 public:
  static C10_NOINLINE void run(const Tiles<scalar_t>& t, TilePlace at, Range results) {
    alignas(kCacheLine) Read read;
    const acc_t* const scales = t.weights + at.weights + t.groups[0].weight;
    DEPTHWISE_UNROLL for (int v = 0; v < kVectors; ++v) {
      DEPTHWISE_UNROLL for (int c = 0; c < kSide; ++c) {
        Vec::loadu(scales + t.cross[c].weight + 2 * t.groups[0].weight_step + v * t.block_step)
            .store(&read[(c * kVectors + v) * kLanes]);
      }
      Vec::loadu(t.start + start_of<acc_t>(at) + v * kLanes)
          .store(&read[(kSide * kVectors + v) * kLanes]);
    }
    PixelMarch(t, at, results, read.data(), Numbers<kHeld>(), Vectors()).march();
  }

 private:
  template <int... h, int... v>
  C10_ALWAYS_INLINE PixelMarch(
      const Tiles<scalar_t>& t,
      TilePlace at,
      Range results,
      const acc_t* read,
      std::integer_sequence<int, h...> /*held*/,
      std::integer_sequence<int, v...> /*vectors*/)
      : ahead_(at.ahead),
        stream_(t.stream),
        read_(read),
        columns_(results.size() + kSide - 1),
        inside_{t.groups[0].lines.begin - results.begin, t.groups[0].lines.end - results.begin},
        line_step_(t.line_step),
        pixel_(t.source + t.groups[0].source + at.lane + results.begin * t.line_step),
        rows_{t.cross[0].source, t.cross[1].source, t.cross[2].source},
        target_(t.target + results.begin * t.target_step + at.lane),
        target_step_(t.target_step),
        held_{held_in_register(
            Vec::loadu(
                t.weights + at.weights + t.groups[0].weight +
                t.cross[h / kVectors / (kSide - 1)].weight +
                h / kVectors % (kSide - 1) * t.groups[0].weight_step +
                h % kVectors * t.block_step))...},
        older_{start(v)...},
        newer_{start(v)...},
        last_{start(v)...},
        begun_{start(v)...} {}

  C10_ALWAYS_INLINE void march() {
    const int64_t begin = std::clamp<int64_t>(inside_.begin, 0, columns_);
    const int64_t end = std::clamp<int64_t>(inside_.end, begin, columns_);
    pass(begin);
    pixel_ += begin * line_step_;
    while (column_ < std::min<int64_t>(end, kSide - 1)) {
      add<false>(Vectors());
    }
    while (column_ < end) {
      add<true>(Vectors());
    }
    pass(columns_);
  }

  C10_ALWAYS_INLINE Vec start(int v) const {
    return Vec::loadu(read_ + (kSide * kVectors + v) * kLanes);
  }

  // The columns up to `end` are outside.
  C10_ALWAYS_INLINE void pass(int64_t end) {
    for (; column_ < end; ++column_) {
      if (column_ >= kSide - 1) {
        store(older_);
      }
      move_on(Vectors());
    }
  }
  template <int... v>
  C10_ALWAYS_INLINE void move_on(std::integer_sequence<int, v...> /*vectors*/) {
    ((older_[v] = newer_[v]), ...);
    ((newer_[v] = start(v)), ...);
  }

  // The next column, which is inside, and which results begin with or end too.
  template <bool kEnds, int... v>
  C10_ALWAYS_INLINE void add(std::integer_sequence<int, v...> /*vectors*/) {
    ahead_.ask_for_part();
    read_ = held_in_register(read_); // no more registers than there are
    (add_vector<kEnds, v>(Numbers<kSide>()), ...);
    pixel_ += line_step_;
    if constexpr (kEnds) {
      store(last_);
    }
    ++column_;
  }

  template <bool kEnds, int v, int... c>
  C10_ALWAYS_INLINE void add_vector(std::integer_sequence<int, c...> /*rows*/) {
    (add_pixel<kEnds, v, c>(), ...);
    if constexpr (kEnds) {
      last_[v] = older_[v] + last_[v];
    }
    older_[v] = newer_[v];
    newer_[v] = begun_[v];
  }

  template <bool kEnds, int v, int c>
  C10_ALWAYS_INLINE void add_pixel() {
    const Vec values = held_in_register(load<v>(pixel_ + rows_[c]));
    if constexpr (kEnds) {
      const Vec weight = Vec::loadu(read_ + (c * kVectors + v) * kLanes);
      last_[v] = c == 0 ? values * weight : vec::fmadd(values, weight, last_[v]);
    }
    newer_[v] = vec::fmadd(values, held_[(c * (kSide - 1) + 1) * kVectors + v], newer_[v]);
    begun_[v] =
        vec::fmadd(values, held_[c * (kSide - 1) * kVectors + v], c == 0 ? start(v) : begun_[v]);
  }

  template <int v>
  static C10_ALWAYS_INLINE Vec load(const scalar_t* pixel) {
    if constexpr (kVectors == 2) {
      return load_of_two(pixel, v, kLanes);
    } else {
      return load_lanes(pixel);
    }
  }

  C10_ALWAYS_INLINE void store(const Vec* sums) {
    stream_ ? stream_vectors<kVectors>(sums, target_) : store_vectors<kVectors>(sums, target_);
    target_ += target_step_;
  }

  AheadParts ahead_;
  bool stream_;
  const acc_t* read_; // in each column
  int64_t columns_;
  Range inside_; // the columns that are
  int64_t line_step_;
  const scalar_t* pixel_; // of the next column
  std::array<int64_t, kSide> rows_; // where they begin
  scalar_t* target_; // of the next result
  int64_t target_step_;
  int64_t column_ = 0;
  Vec held_[kHeld]; // [taps down][first taps across][vectors]
  Vec older_[kVectors]; // of results that want one more column
  Vec newer_[kVectors]; // two
  Vec last_[kVectors];
  Vec begun_[kVectors];
};

// Whether a line's results are those of a window of three by three.
template <typename scalar_t>
bool is_marched(const Tiles<scalar_t>& t) {
  return !kVectorsAreArrays && t.shape.vectors == 2 && t.cross_count == 3 && t.group_count == 1 &&
      t.groups[0].taps == 3;
}

template <typename scalar_t>
void march_of_pixels(const Tiles<scalar_t>& t) {
  if constexpr (!kVectorsAreArrays) {
    const bool is_long = sizeof(scalar_t) == 2 || t.stream;
    const int64_t length = std::min(is_long ? kLongMarchResults : kMarchResults, t.results);
    const TileShape shape{static_cast<int>(length), 2};
    for_each_tile(t, shape, false, length, [&](const TilePlace& at, int vectors) {
      const Range results{at.first, std::min(at.first + length, t.results)};
      vectors == 2 ? PixelMarch<scalar_t, 2>::run(t, at, results)
                   : PixelMarch<scalar_t, 1>::run(t, at, results);
    });
  }
}

// Bytes of weights that are gone through for each tile: what stays in a first-level cache beside the
// pixels. Of more channels than these are, a part is done for the whole row before the next.
constexpr int64_t kWeightBytes = 16 << 10;
// Bytes of the source that a row of results meets, likewise, where the source is in a second-level cache: of
// more channels than these a part is done for all rows, if it is so many bytes of each pixel. fp32, one thread:
// 1152@7 k5 44 us and 38, 768@7 k7 60 and 56, 384@14 k3 24 and 20; 144@56 k3 by 128 bytes 214 and 269.
constexpr int64_t kSourceBytes = 24 << 10;
constexpr size_t kPartBytes = 256;

// What the last vector of weights is of, where the channels are no whole number of vectors.
enum class LastVector {
  kOfLast, // the last channels there are, some of which the vector before has too
  kPadded, // what is left, and zeros
};

// A tensor's values in the arithmetic type: where they are, or converted; null of an undefined one.
template <typename scalar_t>
class ArithmeticValues {
  using acc_t = opmath_type<scalar_t>;
  static constexpr bool kSame = std::is_same_v<scalar_t, acc_t>;

 public:
  explicit ArithmeticValues(const TensorBase& tensor)
      : source_(tensor.defined() ? tensor.const_data_ptr<scalar_t>() : nullptr),
        converted_(kSame || !source_ ? 0 : tensor.numel() + Vectorized<scalar_t>::size()) {
    if constexpr (!kSame) {
      convert_row(source_, source_ ? tensor.numel() : 0, converted_.data());
    }
  }
  const acc_t* data() const {
    if constexpr (kSame) {
      return source_;
    } else {
      return source_ ? converted_.data() : nullptr;
    }
  }

 private:
  const scalar_t* source_;
  AlignedBuffer<acc_t> converted_;
};

// The places of a kernel row's taps: those of a group follow each other, as their sources do.
inline c10::SmallVector<int64_t, 32> tap_order(const Dimension& width) {
  c10::SmallVector<int64_t, 32> places(width.kernel);
  int64_t place = 0;
  for (const auto g : c10::irange(width.groups())) {
    const int64_t count = ceil_div(width.kernel - g, width.tap_step());
    for (const auto i : c10::irange(count)) {
      const int64_t index = width.direction == Direction::kForward ? i : count - 1 - i;
      places[g + index * width.tap_step()] = place++;
    }
  }
  return places;
}

// Weight and bias of all channels. The weights of a vector of channels follow each other tap by tap: as
// [kH][kW][C] they would lie a multiple of some hundred bytes apart, which for 384, 768 or 1,024 channels
// are a few places of a first-level cache alone.
template <typename acc_t>
struct LaneWeights {
  AlignedBuffer<acc_t> taps; // [vectors of channels][kH][kW as tap_order says][lanes]
  AlignedBuffer<acc_t> start; // [vectors of channels][lanes]
};

template <typename acc_t>
LaneWeights<acc_t> lane_weights(
    const acc_t* weight,
    const acc_t* bias, // or null
    const Params& p,
    const Dimension& width,
    LastVector last,
    bool even_and_odd,
    bool down) {
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const int64_t size = p.kernel_size();
  const int64_t vectors = ceil_div(p.channels, kLanes);
  LaneWeights<acc_t> result{
      AlignedBuffer<acc_t>(vectors * size * kLanes, p.channels < vectors * kLanes),
      AlignedBuffer<acc_t>(vectors * kLanes)};
  const auto order = tap_order(width);
  c10::SmallVector<int64_t, 64> places;
  for (const auto tap : c10::irange(size)) { // as the window lies in memory
    const int64_t across = down ? p.kernel_height : p.kernel_width;
    const int64_t row = down ? tap % across : tap / across;
    const int64_t column = down ? tap / across : tap % across;
    places.push_back((row * p.kernel_width + order[column]) * kLanes);
  }
  for (const auto i : c10::irange(vectors)) {
    int64_t first = i * kLanes;
    int64_t step = 1; // from lane to lane
    const int64_t pair = i / 2 * 2;
    if (even_and_odd && (pair + 2) * kLanes <= p.channels) {
      first = pair * kLanes + i - pair;
      step = 2;
    } else if (last == LastVector::kOfLast) {
      first = std::clamp<int64_t>(p.channels - kLanes, 0, first);
    }
    const int64_t count = std::min(kLanes, p.channels - first);
    acc_t* const taps = result.taps.data() + i * size * kLanes;
    transpose_to(
        weight + first * size, count, size, step * size, [taps, to = places.data()](int64_t tap) {
          return taps + to[tap];
        });
    for (int64_t lane = 0; bias && lane < count; ++lane) {
      result.start.data()[i * kLanes + lane] = bias[first + lane * step];
    }
  }
  return result;
}

// Whether tiles go down an image instead of along its rows: where these are short, or the window has more to share
// downwards. What a result costs: its share of tiles that are not full, a product, and its share of loads.
template <typename acc_t>
bool go_down(const Params& p, Direction direction) {
  const auto cost = [](const Dimension& along) {
    constexpr int64_t kRows = kPixelTile.rows;
    const double taps = static_cast<double>(along.most_taps());
    const double full = static_cast<double>(along.phases() * round_up(along.results_of(0), kRows));
    return full / static_cast<double>(along.results) * (1 + (kRows - 1 + taps) / (kRows * taps));
  };
  constexpr double kWorthIt = 0.8; // memory is then read in another order than it lies
  return cost(height_of(p, direction)) < kWorthIt * cost(width_of(p, direction));
}

// Values between neighbouring pixels along tiles, and from row to row of them.
struct PixelSteps {
  PixelSteps(int64_t along, int64_t rows, int64_t pitch, bool down)
      : pixel(down ? rows * pitch : pitch), row(down ? pitch : along * pitch) {}
  int64_t pixel;
  int64_t row;
};

// What is known of rows of pixels `pitch` values apart, or of columns, which are rows of `p` then. Of pixels of less
// than a vector of channels, `lanes`, whole vectors are read.
class PixelRowPlan {
 public:
  PixelRowPlan(const Params& p, Direction direction, int64_t pitch, int64_t lanes, bool down)
      : height_(height_of(p, direction)),
        width_(width_of(p, direction)),
        taps_(p.kernel_size()),
        row_weights_(p.kernel_width * lanes),
        sources_(width_.sources, height_.sources, pitch, down),
        results_(width_.results, height_.results, pitch, down),
        by_row_(pitch < lanes),
        target_pixel_(by_row_ ? lanes : results_.pixel),
        result_step_(height_.result_step()),
        source_step_(height_.source_step()),
        target_step_(width_.result_step() * target_pixel_),
        line_step_(width_.source_step() * sources_.pixel),
        kernel_rows_(height_) {
    const TapGroups taps(width_);
    const auto order = tap_order(width_);
    for (const auto phase : c10::irange(width_.phases())) {
      const auto first = static_cast<int64_t>(groups_.size());
      add_tile_groups(
          taps.of_phase(phase),
          width_,
          line_step_,
          groups_,
          [&](const TapGroup& group) -> TileGroup {
            return {group.source * sources_.pixel, {}, order[group.first] * lanes, lanes, 0, 1};
          });
      phases_.push_back(
          {width_.results_of(phase), first, static_cast<int64_t>(groups_.size()) - first});
    }
  }

  // Values from one row of results to the next.
  int64_t result_row() const {
    return results_.row;
  }

 protected:
  // Results of which the same taps have neighbouring sources.
  struct Phase {
    int64_t results;
    int64_t first_group;
    int64_t group_count;
  };

  // The taps of a kernel column that meet the image, by source row and weight row.
  void find_kernel_rows(int64_t row) {
    cross_.clear();
    const int64_t q = result_step_ == 1 ? row : row / result_step_;
    for (const TapGroup& group : kernel_rows_.of_phase(row - q * result_step_)) {
      for (const auto i : c10::irange(group.count)) {
        const int64_t source = group.source + (q + i) * source_step_;
        if (source >= 0 && source < height_.sources) {
          const int64_t tap = group.first + i * group.step;
          cross_.push_back({source * sources_.row, tap * row_weights_});
        }
      }
    }
  }

  Dimension height_;
  Dimension width_;
  int64_t taps_;
  int64_t row_weights_; // from one kernel row's to the next
  PixelSteps sources_;
  PixelSteps results_;
  bool by_row_; // results are copied from a row of them by whole vectors
  int64_t target_pixel_; // between neighbouring pixels where tiles store them
  // Found once, as each takes a division or more, which are a tenth of a row of 7 pixels.
  int64_t result_step_; // of rows
  int64_t source_step_;
  int64_t target_step_; // of a row's pixels, in values
  int64_t line_step_;
  TapGroups kernel_rows_;
  c10::SmallVector<Phase, 4> phases_; // of a row's results
  c10::SmallVector<TileGroup, 4> groups_;
  c10::SmallVector<CrossTap, 32> cross_; // of the row at work
};

// The work on them.
template <typename scalar_t>
class PixelRows : public PixelRowPlan {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();

 public:
  PixelRows(
      const Params& p,
      Direction direction,
      const LaneWeights<acc_t>& weights,
      int64_t pitch,
      bool down,
      bool stream = false)
      : PixelRowPlan(p, direction, pitch, kLanes, down),
        weights_(weights),
        stream_(stream),
        row_(by_row_ ? width_.results * kLanes : 0) {}

  // One row of results of an image. Channel 0 of a pixel has the weights of channel `first_weight`, a
  // whole number of vectors.
  // `ahead` are addresses that later rows will read.
  void run(
      const scalar_t* image,
      scalar_t* result,
      int64_t row,
      Range channels,
      int64_t first_weight,
      Range ahead = {0, 0}) {
    find_kernel_rows(row);
    Tiles<scalar_t> tiles{};
    tiles.shape = kPixelTile;
    tiles.source = image;
    tiles.target_step = target_step_;
    tiles.first_lane = channels.begin;
    tiles.last_lane = std::max(channels.end, kLanes);
    tiles.line_step = line_step_;
    tiles.stream = stream_;
    tiles.cross = cross_.data();
    tiles.cross_count = static_cast<int64_t>(cross_.size());
    tiles.weights = weights_.taps.data() + first_weight * taps_;
    tiles.block_step = taps_ * kLanes;
    tiles.start = weights_.start.data() + first_weight;
    scalar_t* const targets = by_row_ ? row_.data() : result;
    for (const auto phase : c10::irange(phases_.size())) {
      tiles.target = targets + static_cast<int64_t>(phase) * target_pixel_;
      tiles.results = phases_[phase].results;
      tiles.groups = groups_.data() + phases_[phase].first_group;
      tiles.group_count = phases_[phase].group_count;
      tiles.ahead = std::exchange(ahead, Range{0, 0});
      const bool marches = is_marched(tiles) && tiles.results > tiles.shape.rows;
      marches ? march_of_pixels(tiles) : run_tiles<scalar_t, Weights::kOfLane>(tiles);
    }
    for (int64_t i = 0; by_row_ && i < width_.results; ++i) {
      std::copy_n(targets + i * kLanes, channels.size(), result + i * results_.pixel);
    }
  }

 private:
  const LaneWeights<acc_t>& weights_;
  bool stream_; // results past the caches; they and the pixels begin with cache lines
  AlignedBuffer<scalar_t> row_;
};

// What a pass over pixels begins with.
template <typename scalar_t>
struct PixelOperands {
  PixelOperands(const Pass& pass, LastVector last)
      : results(pass.result.mutable_data_ptr<scalar_t>()),
        sources(pass.source.const_data_ptr<scalar_t>()),
        down(go_down<opmath_type<scalar_t>>(pass.params, pass.direction)),
        params(down ? transposed(pass.params) : pass.params),
        height(height_of(params, pass.direction)),
        width(width_of(params, pass.direction)),
        weights(lane_weights(
            ArithmeticValues<scalar_t>(pass.weight).data(),
            ArithmeticValues<scalar_t>(pass.bias).data(),
            params,
            width,
            last,
            kEvenAndOdd<scalar_t> && last == LastVector::kOfLast,
            down)) {}

  scalar_t* results;
  const scalar_t* sources;
  bool down; // rows are the images' columns
  Params params;
  Dimension height;
  Dimension width;
  LaneWeights<opmath_type<scalar_t>> weights;
};

// Rows of a source that is larger than this, two second-level caches, are asked for one row of results
// before they are needed: a tile reads few lines each from many rows, which no processor foresees.
// fp32, one thread, without and with it: 240@28 k5 N=16 2,943 and 1,637 us, 144@56 k5s2 N=16 5,691 and
// 3,024, 96@112 k3s2 N=1 160 and 151; from a third-level cache that holds all of that last one 103 and 117.
constexpr size_t kDistantBytes = 2 << 20;
// Results larger than this, half of a usual third-level cache, are stored past it: 144@56 k3 N=16 (29 MB)
// 2,488 -> 1,909 us. Planes, 29 MB 5,165 -> 3,940 us, 77 MB of grad_input 15,160 -> 8,250; of those from 4
// MB on, 7 MB 2,910 -> 3,500 and 12 MB 2,990 -> 3,850.
constexpr size_t kStreamBytes = 16 << 20;

// Source rows above the first that no result before `row` meets.
inline int64_t rows_met_before(int64_t row, const Params& p, Direction direction) {
  return direction == Direction::kForward
      ? (row - 1) * p.stride_height - p.padding_height + (p.kernel_height - 1) * p.dilation_height +
          1
      : floor_div(row - 1 + p.padding_height, p.stride_height) + 1;
}

// Pixels of which whole vectors may be read: where those have less channels, a copy with room behind it.
template <typename scalar_t>
class WholeVectors {
  static constexpr int64_t kLanes = Vectorized<opmath_type<scalar_t>>::size();

 public:
  WholeVectors(const scalar_t* pixels, int64_t count, int64_t channels)
      : pixels_(pixels), copy_(channels < kLanes ? count * channels + kLanes : 0) {
    if (channels < kLanes) {
      std::copy_n(pixels, count * channels, copy_.data());
      pixels_ = copy_.data();
    }
  }
  const scalar_t* data() const {
    return pixels_;
  }

 private:
  const scalar_t* pixels_;
  AlignedBuffer<scalar_t> copy_;
};

// A task is one row of results.
template <typename scalar_t>
void pixel_pass(const Pass& pass) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const PixelOperands<scalar_t> of(pass, LastVector::kOfLast);
  const Params& p = of.params;
  const Dimension& height = of.height;
  const Dimension& width = of.width;
  const WholeVectors<scalar_t> pixels(
      of.sources, p.batch * height.sources * width.sources, p.channels);
  const bool distant = pass.source.nbytes() > kDistantBytes && !of.down;
  const int64_t weight_bytes = p.kernel_size() * static_cast<int64_t>(sizeof(acc_t));
  const int64_t source_bytes =
      height.source_reach(1) * width.sources * static_cast<int64_t>(sizeof(scalar_t));
  const int64_t fitting = kSourceBytes / source_bytes;
  const bool by_parts = !distant && fitting * sizeof(scalar_t) >= kPartBytes;
  const int64_t most = by_parts ? fitting : p.channels;
  const int64_t part =
      std::max(std::min(kWeightBytes / weight_bytes, most) / (2 * kLanes), int64_t(1)) * 2 * kLanes;
  const bool stream = pass.result.nbytes() > kStreamBytes &&
      p.channels * sizeof(scalar_t) % kCacheLine == 0 &&
      reinterpret_cast<uintptr_t>(of.results) % kCacheLine == 0;
  // Rows follow each other from image to image.
  const auto source_row = [&](int64_t image, int64_t row) {
    const int64_t met = rows_met_before(row, p, pass.direction);
    const int64_t index =
        std::clamp<int64_t>(image * height.sources + met, 0, p.batch * height.sources);
    return reinterpret_cast<int64_t>(pixels.data() + index * width.sources * p.channels);
  };
  const auto grain = grain_of(p.output_width * p.channels * p.kernel_size());
  in_parallel(p.batch * height.results, grain, [&](int64_t begin, int64_t end) {
    PixelRows<scalar_t> rows(p, pass.direction, of.weights, p.channels, of.down, stream);
    for (int64_t task = begin; task < end;) {
      const int64_t image = task / height.results;
      const int64_t first = task % height.results;
      const int64_t last = distant ? first + 1 : std::min(height.results, first + end - task);
      const scalar_t* const sources =
          pixels.data() + image * height.sources * width.sources * p.channels;
      scalar_t* const results = of.results + image * height.results * width.results * p.channels;
      Range ahead{0, 0};
      if (distant) {
        ahead = {source_row(image, last), source_row(image, last + 1)};
      }
      for (int64_t channel = 0; channel < p.channels; channel += part) {
        const Range channels{channel, std::min(p.channels, channel + part)};
        const Range ahead_of_part{
            ahead.begin + ahead.size() * channels.begin / p.channels,
            ahead.begin + ahead.size() * channels.end / p.channels};
        for (const auto row : c10::irange(first, last)) {
          rows.run(sources, results + row * rows.result_row(), row, channels, 0, ahead_of_part);
        }
      }
      task += last - first;
    }
    if (stream) {
      finish_stream();
    }
  });
}

} // namespace
} // namespace at::native
