// Forward and grad_input of depthwise_conv2d_ext over pixels, [N, H, W, C], multiplier 1.
//
// A tile is kTileRows pixels of a row by one or two vectors of channels (DepthwiseConv2dExtTiles.h):
// a source pixel is loaded once a kernel row for all of the results that it meets. Channels follow each
// other innermost, so that memory is read in the order in which it lies; the weights, as
// [kH][kW][C], are then read once a tile. Pixels outside the image are passed over, never
// multiplied. 16-bit values are converted as they are loaded and stored.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGeometry.h>
#include <ATen/native/cpu/DepthwiseConv2dExtTiles.h>
#include <c10/util/SmallVector.h>

namespace at::native {
namespace {

// Bytes of weights that are gone through for each tile: what stays in a first-level cache beside the
// pixels. Of more channels than these are, a part is done for the whole row before the next.
constexpr int64_t kWeightBytes = 16 << 10;

// [rows][padded] in the arithmetic type from [columns][rows], zeros in the columns that pad: the
// weight tap by tap (rows = taps, columns = channels). Without a source all is zero.
template <typename scalar_t>
AlignedBuffer<opmath_type<scalar_t>> transpose_padded(
    const scalar_t* source,
    int64_t rows,
    int64_t columns,
    int64_t padded) {
  using acc_t = opmath_type<scalar_t>;
  AlignedBuffer<acc_t> result(rows * padded);
  if (source == nullptr) {
    return result;
  }
  if constexpr (std::is_same_v<scalar_t, acc_t>) {
    transpose(source, columns, rows, rows, result.data(), padded);
  } else {
    const AlignedBuffer<acc_t> converted(rows * columns + Vectorized<scalar_t>::size());
    convert_row(source, rows * columns, converted.data());
    transpose(converted.data(), columns, rows, rows, result.data(), padded);
  }
  return result;
}

// Weight and bias of all channels, padded to whole vectors.
template <typename acc_t>
struct LaneWeights {
  template <typename scalar_t>
  static LaneWeights of(const TensorBase& weight, const TensorBase& bias, const Params& p) {
    const scalar_t* const first = bias.defined() ? bias.const_data_ptr<scalar_t>() : nullptr;
    const int64_t padded = round_up(p.channels, Vectorized<acc_t>::size());
    return {
        padded,
        transpose_padded(weight.const_data_ptr<scalar_t>(), p.kernel_size(), p.channels, padded),
        transpose_padded(first, 1, p.channels, padded)};
  }

  int64_t padded;
  AlignedBuffer<acc_t> taps; // [kH][kW][padded]
  AlignedBuffer<acc_t> start; // [padded]
};

// One thread's work on rows of pixels, `pitch` values apart.
template <typename scalar_t>
class PixelRows {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();

 public:
  PixelRows(const Params& p, Direction direction, const LaneWeights<acc_t>& weights, int64_t pitch)
      : kernel_width_(p.kernel_width),
        height_(height_of(p, direction)),
        width_(width_of(p, direction)),
        weights_(weights),
        pitch_(pitch) {}

  // One row of results of an image, `channels` of them. Channel 0 of a pixel has the weights of
  // channel `first_weight`.
  void run(
      const scalar_t* image,
      scalar_t* result,
      int64_t row,
      Range channels,
      int64_t first_weight) {
    find_kernel_rows(row);
    for (const auto phase : c10::irange(width_.phases())) {
      for (int64_t q = 0; q < width_.results_of(phase); q += kTileRows) {
        find_pixels(image, phase, q, first_weight);
        run_tiles(result, phase, q, channels, first_weight);
      }
    }
  }

 private:
  using Lines = std::array<const scalar_t*, kTileRows + kMaxTaps - 1>;

  // The taps of a kernel column that meet the image, by source row and weight row.
  void find_kernel_rows(int64_t row) {
    cross_.clear();
    const int64_t phase = row % height_.result_step();
    const int64_t q = row / height_.result_step();
    for (const auto g : c10::irange(height_.groups())) {
      const TapGroup group = height_.group(phase, g);
      for (const auto i : c10::irange(group.count)) {
        const int64_t source = group.source + (q + i) * height_.source_step();
        const int64_t tap = group.first + i * group.step;
        if (source >= 0 && source < height_.sources) {
          cross_.push_back(
              {source * width_.sources * pitch_, tap * kernel_width_ * weights_.padded});
        }
      }
    }
  }

  // For each group of taps, the pixels that the results from q on meet; null outside the row.
  void find_pixels(const scalar_t* image, int64_t phase, int64_t q, int64_t first_weight) {
    lines_.clear();
    groups_.clear();
    for (const auto g : c10::irange(width_.groups())) {
      const TapGroup group = width_.group(phase, g);
      for (int64_t done = 0; done < group.count; done += kMaxTaps) {
        const int64_t taps = std::min<int64_t>(kMaxTaps, group.count - done);
        Lines& lines = lines_.emplace_back();
        const int64_t step = width_.source_step();
        int64_t pixel = group.source + (q + done) * step;
        for (int64_t j = 0; j < kTileRows + taps - 1; ++j, pixel += step) {
          const bool inside = pixel >= 0 && pixel < width_.sources;
          lines[j] = inside ? image + pixel * pitch_ : nullptr;
        }
        const acc_t* const first =
            weights_.taps.data() + (group.first + done * group.step) * weights_.padded;
        groups_.push_back({nullptr, first + first_weight, group.step * weights_.padded, taps});
      }
    }
    for (const auto g : c10::irange(groups_.size())) {
      groups_[g].lines = lines_[g].data();
    }
  }

  // kTileRows pixels from result q of the phase on, all channels.
  void run_tiles(scalar_t* result, int64_t phase, int64_t q, Range channels, int64_t first_weight) {
    std::array<scalar_t*, kTileRows> targets{};
    const int64_t count = std::min<int64_t>(kTileRows, width_.results_of(phase) - q);
    for (const auto r : c10::irange(count)) {
      targets[r] = result + (phase + (q + r) * width_.result_step()) * pitch_;
    }
    const auto group_count = static_cast<int64_t>(groups_.size());
    Tile<scalar_t> tile{};
    tile.targets = targets.data();
    tile.line_step = 1;
    tile.cross = cross_.data();
    tile.cross_count = static_cast<int64_t>(cross_.size());
    tile.groups = groups_.data();
    tile.group_count = group_count;
    tile.start = weights_.start.data() + first_weight;
    if (q == 0) { // the groups of a phase have the same sizes everywhere
      wide_ = tile_function<scalar_t, Weights::kOfLane, 2>(tile.groups, group_count);
      narrow_ = tile_function<scalar_t, Weights::kOfLane, 1>(tile.groups, group_count);
    }
    const auto run_at = [&](int64_t lane, TileFunction<scalar_t> function) {
      tile.lane = tile.target_lane = lane;
      function(tile);
    };
    int64_t lane = channels.begin;
    for (; lane + 2 * kLanes <= channels.end; lane += 2 * kLanes) {
      run_at(lane, wide_);
    }
    for (; lane + kLanes <= channels.end; lane += kLanes) {
      run_at(lane, narrow_);
    }
    if (lane < channels.end && channels.end >= kLanes) {
      run_at(channels.end - kLanes, narrow_); // some channels once more
    } else if (lane < channels.end) {
      tile.lanes = channels.end;
      run_at(lane, tile_function<scalar_t, Weights::kOfLane, 0>(tile.groups, group_count));
    }
  }

  int64_t kernel_width_;
  Dimension height_;
  Dimension width_;
  const LaneWeights<acc_t>& weights_;
  int64_t pitch_;
  // Of the row and tile at work:
  c10::SmallVector<CrossTap, 32> cross_;
  c10::SmallVector<Lines, 4> lines_; // of each group of taps
  c10::SmallVector<TileGroup<scalar_t>, 4> groups_;
  TileFunction<scalar_t> wide_ = nullptr; // for two vectors of channels
  TileFunction<scalar_t> narrow_ = nullptr; // for one
};

// A task is one row of results.
template <typename scalar_t>
void pixel_pass(
    const TensorBase& result,
    const TensorBase& source,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& p,
    Direction direction) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  auto* const results = result.mutable_data_ptr<scalar_t>();
  const auto* const sources = source.const_data_ptr<scalar_t>();
  const auto weights = LaneWeights<acc_t>::template of<scalar_t>(weight, bias, p);
  const Dimension height = height_of(p, direction);
  const Dimension width = width_of(p, direction);
  const int64_t channel_bytes = p.kernel_size() * static_cast<int64_t>(sizeof(acc_t));
  const int64_t part =
      std::max(kWeightBytes / channel_bytes / (2 * kLanes), int64_t(1)) * 2 * kLanes;
  const auto grain = grain_of(p.output_width * p.channels * p.kernel_size());
  at::parallel_for(0, p.batch * height.results, grain, [&](int64_t begin, int64_t end) {
    PixelRows<scalar_t> rows(p, direction, weights, p.channels);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t image = task / height.results * height.sources * width.sources * p.channels;
      for (int64_t channel = 0; channel < p.channels; channel += part) {
        rows.run(
            sources + image,
            results + task * width.results * p.channels,
            task % height.results,
            {channel, std::min(p.channels, channel + part)},
            0);
      }
    }
  });
}

} // namespace
} // namespace at::native
