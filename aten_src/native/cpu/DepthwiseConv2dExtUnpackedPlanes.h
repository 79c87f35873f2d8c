// Forward and grad_input of depthwise_conv2d_ext with small square windows over planes whose rows are more
// than half a vector of AVX-512, or of 3 x 3 any shorter ones, with strides and dilations of 1.
//
// A vector of a row, or in each half of a vector a row of one of two planes, is loaded for every tap of a
// kernel row with the lanes masked that this tap meets outside the image, so that nothing is transposed, and
// one plane's rows not even packed. Tall tiles (DepthwiseConv2dExtTallTiles.h) or, of rows of no more than a
// vector, a march (DepthwiseConv2dExtMarch.h) go through a plane at a time. 16-bit planes are converted
// some at a time.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/native/cpu/DepthwiseConv2dExtColumns.h>
#include <ATen/native/cpu/DepthwiseConv2dExtExact.h>
#include <ATen/native/cpu/DepthwiseConv2dExtPixels.h>
#include <ATen/native/cpu/DepthwiseConv2dExtTallTiles.h>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

// Bytes of packed or converted planes that are worked on at once: beside as many of results, in
// first-level cache.
constexpr int64_t kUnpackedBytes = 12 << 10;
// Results larger than this, and of marches their sources too, are asked for a plane ahead, unless
// they go past the caches. fp32, one thread, Zen 5, with 1 MB of second-level cache, by tiles alone
// and from 1 MB on, and so: 384@14 k3 N=4 250 us and 83, N=16 1,100 and 335, 240@28 k5 109 and 89,
// 192@28 k7 121 and 104; where results are in that cache, within 4 %. On a Xeon with 2 MB of it
// 144@56 k3 174 us became 154 when asked for, but k7 below 1 MB and marches took 1 to 2 % longer.
constexpr size_t kUnaskedBytes = 128 << 10;
// The same of planes that are converted, some at a time, by tiles alone: asked for from 128 KB on, and
// by marches, bfloat16 was .90 to .97 of the speed.
constexpr size_t kUnaskedConvertedBytes = 1 << 20;
// The largest of the windows, which are 3, 5 and 7 wide; with AddressSanitizer, which takes long to compile
// marches, 3 x 3 alone.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kMostUnpackedTaps = 3;
#else
constexpr int64_t kMostUnpackedTaps = 7;
#endif

inline bool is_small_square(const Params& p) {
  const int64_t side = p.kernel_height;
  return p.multiplier == 1 && p.stride_height == 1 && p.stride_width == 1 &&
      p.dilation_height == 1 && p.dilation_width == 1 && p.kernel_width == side &&
      (side == 3 || side == 5 || side == 7) && side <= kMostUnpackedTaps;
}

// Against rows packed or, of 14 x 14, planes transposed, fp32, one thread: 192@28 k7 172 us became 130, N=16
// 2,860 and 2,060, 240@28 k5 142 and 105, 384@14 k7 81 and 66, 96@56 k7 291 and 251, 32@112 k3 161 and 130.
// But 16 x 16, 28 rows so, k5 75 and 107, and 384@14 k3, by a march, 25 and 30.
template <typename acc_t>
bool are_planes_of_tall_tiles(const Params& p) {
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const int64_t side = p.kernel_height;
  const int64_t rows = p.output_height;
  const int64_t columns = std::min(p.input_width, p.output_width);
  const bool pays =
      columns > kLanes || (side > 3 && columns > kLanes / 2 && rows % kTallTileRows == 0);
  return is_small_square(p) && p.padding_height == side / 2 && are_rows_of_tall_tiles(rows, side) &&
      pays && p.input_height * p.input_width <= kBandBytes / static_cast<int64_t>(sizeof(acc_t));
}

// Against planes transposed, fp32, one thread: 384@14 k3 52 us became 28, N=16 973 and 474, k7 107 and 89;
// two planes a vector, 960@7 k3 40 and 31, but 1152@7 k5 59 and 70, 768@7 k7 53 and 75, whose weights are
// two for each tap. Since pixels of 14 columns are taken by tiles of 7, k7 transposed is 80 and 88 by rows.
template <typename acc_t>
bool are_marched_planes(const Params& p) {
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const int64_t side = p.kernel_height;
  const int64_t columns = std::max(p.input_width, p.output_width);
  return is_small_square(p) && columns <= kLanes &&
      (side == 3 ||
       (columns > kLanes / 2 &&
        !(is_taken_by_rows<acc_t>(side) && columns % kRowTileResults == 0)));
}

template <typename acc_t>
bool are_unpacked_planes(const Params& p) {
  return are_planes_of_tall_tiles<acc_t>(p) || are_marched_planes<acc_t>(p);
}

// The march through a plane, or two, with windows of kSide. What it asks for it asks for at once.
template <typename acc_t, Weights kWeights, int kSide>
void march_plane(const Tiles<acc_t>& t) {
  AheadParts::of(t.ahead, 1).ask_for_part();
  AheadParts::of(t.written, 1).template ask_for_part<Ask::kToWrite>();
  March<acc_t, kWeights, kRowOfPlanes, kSide>(t, {0, 0, 0, 0}, {0, t.results}).run();
}

// A plane's, by its marches or tiles.
template <typename acc_t>
TilesFunction<acc_t> plane_function(int64_t side, bool tall) {
  if constexpr (kMostUnpackedTaps > 3) {
    if (side == 5) {
      return tall ? &tall_tiles<acc_t, 5> : &march_plane<acc_t, Weights::kOfPlane, 5>;
    }
    if (side == 7) {
      return tall ? &tall_tiles<acc_t, 7> : &march_plane<acc_t, Weights::kOfPlane, 7>;
    }
  }
  return tall ? &tall_tiles<acc_t, 3> : &march_plane<acc_t, Weights::kOfPlane, 3>;
}

template <typename scalar_t>
class UnpackedPlanePass {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();
  static constexpr bool kConverts = !std::is_same_v<scalar_t, acc_t>;

 public:
  explicit UnpackedPlanePass(const Pass& pass)
      : params_(pass.params),
        direction_(pass.direction),
        result_(pass.result.mutable_data_ptr<scalar_t>()),
        source_(pass.source.const_data_ptr<scalar_t>()),
        weight_(pass.weight.const_data_ptr<scalar_t>()),
        bias_(pass.bias.defined() ? pass.bias.const_data_ptr<scalar_t>() : nullptr),
        filters_(weight_, pass.params.channels * pass.params.kernel_size()),
        finite_(all_finite(weight_, pass.params.channels * pass.params.kernel_size())),
        height_(height_of(pass.params, pass.direction)),
        width_(width_of(pass.params, pass.direction)),
        pairs_(std::max(width_.results, width_.sources) <= kLanes / 2),
        tall_(are_planes_of_tall_tiles<acc_t>(pass.params)),
        stream_(tall_ && pass.result.nbytes() > kStreamBytes),
        asks_for_results_(is_worth_asking(pass.result.nbytes())),
        function_(
            pairs_ ? &march_plane<acc_t, Weights::kOfLane, 3>
                   : plane_function<acc_t>(pass.params.kernel_width, tall_)) {
    const int64_t weight_step = pairs_ ? kLanes : 1;
    const TapGroup rows = height_.group(0, 0);
    group_ = {
        0,
        rows.source * source_pitch(),
        rows.first * pass.params.kernel_width * weight_step,
        rows.step * pass.params.kernel_width * weight_step,
        rows.count};
    const TapGroup columns = width_.group(0, 0);
    for (const auto i : c10::irange(columns.count)) {
      const int64_t position = columns.source + i;
      columns_.push_back({position, (columns.first + i * columns.step) * weight_step});
    }
    for (int64_t lane = 0; lane < width_.results; lane += kLanes) {
      for (const CrossTap& column : columns_) {
        const int64_t first = first_lane_of_tile<acc_t>(lane, width_.results);
        lanes_.push_back(met_lanes(column.source + first));
      }
    }
  }

  void run() const {
    const int64_t source_size = height_.sources * width_.sources;
    const int64_t result_size = height_.results * width_.results;
    const int64_t at_once = pairs_ ? 2 : 1;
    const int64_t bytes_at_once =
        height_.sources * std::max(width_.sources, kLanes) * int64_t(sizeof(acc_t));
    // Of several a multiple of 4, which are whole vectors of planes of even sides.
    const int64_t fitting = std::max<int64_t>(kUnpackedBytes / bytes_at_once, 1) * at_once;
    const int64_t most = fitting >= 4 ? fitting / 4 * 4 : fitting;
    const auto grain =
        grain_of(params_.output_height * params_.output_width * params_.kernel_size());
    const int64_t planes = params_.batch * params_.channels;
    at::parallel_for(0, planes, grain, [&](int64_t begin, int64_t end) {
      Scratch scratch(*this, most);
      for (int64_t first = begin; first < end; first += most) {
        const int64_t count = std::min(most, end - first);
        const scalar_t* const sources = source_ + first * source_size;
        scalar_t* results = result_ + first * result_size;
        if (stream_) {
          scratch.run.go_to(results);
          results = scratch.run.place();
        }
        if constexpr (kConverts) {
          convert_row(sources, count * source_size, scratch.sources.data());
          run_planes(scratch.sources.data(), scratch.results.data(), first, count, scratch);
          unpack_row(scratch.results.data(), 0, 1, results, count * result_size);
        } else {
          run_planes(sources, results, first, count, scratch);
        }
        for (int64_t i = 0; !finite_ && i < count; ++i) {
          mend(results + i * result_size, sources + i * source_size, first + i);
        }
        if (stream_) {
          scratch.run.add(count * result_size);
        }
      }
      if (stream_) {
        scratch.run.finish();
      }
    });
  }

 private:
  // One thread's memory for some planes: as values of the arithmetic type, pairs of them as rows of vectors
  // with their weights, results on their way past the caches.
  struct Scratch {
    Scratch(const UnpackedPlanePass& pass, int64_t planes)
        : sources(kConverts ? planes * pass.height_.sources * pass.width_.sources + 2 * kLanes : 0),
          results(kConverts ? planes * pass.height_.results * pass.width_.results + 2 * kLanes : 0),
          pairs(pass.pairs_ ? planes / 2 * pass.height_.sources * kLanes + kLanes : 0),
          weights(pass.pairs_ ? pass.params_.kernel_size() * kLanes : 0),
          run(pass.stream_ ? planes * pass.height_.results * pass.width_.results : 0) {}

    AlignedBuffer<acc_t> sources;
    AlignedBuffer<acc_t> results;
    AlignedBuffer<acc_t> pairs; // [pairs of planes][rows][two rows in a vector]
    AlignedBuffer<acc_t> weights;
    StreamedRun<scalar_t> run;
  };

  bool is_worth_asking(size_t result_bytes) const {
    const bool pays =
        kConverts ? tall_ && result_bytes > kUnaskedConvertedBytes : result_bytes > kUnaskedBytes;
    return pays && !stream_;
  }

  int64_t source_pitch() const {
    return pairs_ ? kLanes : width_.sources;
  }
  static LaneBits first_lanes(int64_t count) {
    return (LaneBits(1) << count) - 1;
  }
  LaneBits in_all_planes(LaneBits lanes) const {
    return pairs_ ? lanes | lanes << kLanes / 2 : lanes;
  }

  // The results of a vector for which a tap that meets source column `position` at the first is inside the
  // image.
  LaneBits met_lanes(int64_t position) const {
    LaneBits lanes = 0;
    for (const auto lane : c10::irange(std::min(width_.results, kLanes))) {
      const int64_t column = position + lane;
      lanes |= column >= 0 && column < width_.sources ? LaneBits(1) << lane : 0;
    }
    return in_all_planes(lanes);
  }

  void run_planes(
      const acc_t* sources,
      acc_t* results,
      int64_t first,
      int64_t count,
      const Scratch& scratch) const {
    const int64_t source_size = height_.sources * width_.sources;
    const int64_t result_size = height_.results * width_.results;
    Tiles<acc_t> tiles{};
    tiles.results = height_.results;
    tiles.line_step = source_pitch();
    tiles.lines_end = height_.sources * source_pitch();
    tiles.cross = columns_.data();
    tiles.cross_count = static_cast<int64_t>(columns_.size());
    tiles.cross_lanes = lanes_.data();
    tiles.groups = &group_;
    tiles.group_count = 1;
    tiles.target_step = width_.results;
    tiles.last_lane = width_.results;
    tiles.row[0] = first_lanes(std::min(width_.results, kLanes));
    tiles.row[1] = tiles.row[0] << kLanes / 2;
    if (pairs_) {
      run_pairs(sources, results, first, count, tiles, scratch);
      return;
    }
    int64_t channel = first % params_.channels;
    for (const auto i : c10::irange(count)) {
      const acc_t start = bias_of(channel);
      tiles.start = &start;
      tiles.weights = filters_.data() + channel * params_.kernel_size();
      tiles.source = sources + i * source_size;
      tiles.target = results + i * result_size;
      ask_for_planes(tiles, first + i, 1, kConverts ? count : 1);
      function_(tiles);
      channel = next(channel);
    }
  }

  // While `count` planes from `plane` on are worked on: the sources of as many `sources_ahead`
  // planes later, the results of as many that follow.
  void ask_for_planes(Tiles<acc_t>& tiles, int64_t plane, int64_t count, int64_t sources_ahead)
      const {
    if (tall_ || asks_for_results_) {
      const int64_t size = height_.sources * width_.sources;
      tiles.ahead = planes_at(source_, size, plane + sources_ahead, count);
    }
    if (asks_for_results_) {
      const int64_t size = height_.results * width_.results;
      tiles.written = planes_at(result_, size, plane + count, count);
    }
  }
  // The addresses of planes from this one on, of those that there are.
  Range planes_at(const scalar_t* planes, int64_t size, int64_t plane, int64_t count) const {
    const int64_t end = params_.batch * params_.channels;
    const int64_t first = std::min(plane, end);
    return addresses_of(planes + first * size, std::min(count, end - first) * size);
  }

  void run_pairs(
      const acc_t* sources,
      acc_t* results,
      int64_t first,
      int64_t count,
      Tiles<acc_t>& tiles,
      const Scratch& scratch) const {
    const int64_t source_size = height_.sources * width_.sources;
    const int64_t result_size = height_.results * width_.results;
    const int64_t pair_size = height_.sources * kLanes;
    // All before the first is read: a load that spans two stores waits for both.
    for (int64_t i = 0; i < count; i += 2) {
      const acc_t* const pair = sources + i * source_size;
      // A plane that is left over is done twice.
      pack_pair(pair, i + 1 < count ? source_size : 0, scratch.pairs.data() + i / 2 * pair_size);
    }
    alignas(kCacheLine) acc_t start[kLanes];
    tiles.start = start;
    tiles.weights = scratch.weights.data();
    int64_t channel = first % params_.channels;
    for (int64_t i = 0; i < count; i += 2) {
      const bool whole = i + 1 < count;
      const int64_t second = whole ? next(channel) : channel;
      pack_weights(channel, second, scratch.weights.data());
      halves_of(bias_of(channel), bias_of(second)).store(start);
      tiles.source = scratch.pairs.data() + i / 2 * pair_size;
      tiles.target = results + i * result_size;
      tiles.second_row = (whole ? result_size : 0) - kLanes / 2;
      ask_for_planes(tiles, first + i, 2, count);
      function_(tiles);
      channel = next(second);
    }
  }

  int64_t next(int64_t channel) const {
    return channel + 1 < params_.channels ? channel + 1 : 0;
  }
  acc_t bias_of(int64_t channel) const {
    return bias_ ? acc_t(bias_[channel]) : acc_t(0);
  }

  void pack_pair(const acc_t* first, int64_t to_second, acc_t* target) const {
    const int64_t columns = width_.sources;
    const acc_t* const second = first + to_second - kLanes / 2;
    const LaneBits lanes = first_lanes(columns);
    const LaneBits others = lanes << kLanes / 2;
    for (const auto row : c10::irange(height_.sources)) {
      load_chosen(second + row * columns, others, load_chosen(first + row * columns, lanes))
          .store(target + row * kLanes);
    }
  }
  void pack_weights(int64_t first, int64_t second, acc_t* target) const {
    const int64_t taps = params_.kernel_size();
    const acc_t* const low = filters_.data() + first * taps;
    const acc_t* const high = filters_.data() + second * taps;
    for (const auto tap : c10::irange(taps)) {
      halves_of(low[tap], high[tap]).store(target + tap * kLanes);
    }
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
  bool pairs_; // two planes a vector
  bool tall_; // tiles, not marches
  bool stream_; // results past the caches, of tiles, as of rows packed
  bool asks_for_results_; // and marches for sources too
  TilesFunction<acc_t> function_;
  TileGroup group_;
  c10::SmallVector<CrossTap, 8> columns_;
  // By vectors of a row, those that each of them meets inside the image.
  c10::SmallVector<LaneBits, 256> lanes_; // of k7 36 vectors, else memory of its own
};

#endif

} // namespace
} // namespace at::native
