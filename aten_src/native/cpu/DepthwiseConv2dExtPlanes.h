// Forward and grad_input of depthwise_conv2d_ext over planes, [N, C, H, W].
//
// A task is one input plane with the output planes made from it. Its source rows are packed into
// scratch: converted to the arithmetic type, zeros on both sides, and for a strided forward the
// columns of each residue by themselves. After that every pass with any stride and dilation is the
// same loop without borders or steps (DepthwiseConv2dExtTiles.h), and the packed rows are in the
// first- or second-level cache while each is read once for every column tap. Large planes are
// packed in bands of rows.
//
// Zeros beside a row meet finite taps only: a filter with an infinity or a NaN goes through
// exact_plane, which visits nothing but positions inside the image.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/DepthwiseConv2dExtColumns.h>
#include <ATen/native/cpu/DepthwiseConv2dExtExact.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGeometry.h>
#include <ATen/native/cpu/DepthwiseConv2dExtTiles.h>

namespace at::native {
namespace {

template <typename scalar_t>
class PlanePass {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();

 public:
  PlanePass(
      const TensorBase& result,
      const TensorBase& source,
      const TensorBase& weight,
      const TensorBase& bias,
      const Params& p,
      Direction direction)
      : params_(p),
        direction_(direction),
        result_(result.mutable_data_ptr<scalar_t>()),
        source_(source.const_data_ptr<scalar_t>()),
        weight_(weight.const_data_ptr<scalar_t>()),
        bias_(bias.defined() ? bias.const_data_ptr<scalar_t>() : nullptr),
        height_(height_of(p, direction)),
        columns_(columns_of(p, direction, kLanes)),
        result_planes_(direction == Direction::kForward ? p.multiplier : 1),
        source_planes_(direction == Direction::kForward ? 1 : p.multiplier),
        band_(band_results()),
        source_rows_(std::min(height_.sources, source_reach(band_))),
        table_rows_(source_reach(band_ + kTileRows * height_.result_step())) {}

  void run() {
    const auto grain = grain_of(
        params_.multiplier * params_.output_height * params_.output_width * params_.kernel_size());
    at::parallel_for(0, params_.batch * params_.channels, grain, [&](int64_t begin, int64_t end) {
      Scratch scratch(*this);
      for (const auto task : c10::irange(begin, end)) {
        run_task(task, scratch);
      }
    });
  }

 private:
  // One thread's memory: the packed rows and pointers to them, the filters, results to be stored.
  struct Scratch {
    explicit Scratch(const PlanePass& pass)
        : packed(pass.source_planes_ * pass.source_rows_ * pass.columns_.pitch()),
          filter(pass.source_planes_ * pass.params_.kernel_size()),
          stage(kTileRows * pass.stage_pitch() + 2 * kLanes),
          row(pass.columns_.sources + 2 * kLanes),
          table(pass.source_planes_ * pass.table_rows_, nullptr) {}

    AlignedBuffer<acc_t> packed;
    AlignedBuffer<acc_t> filter;
    AlignedBuffer<acc_t> stage; // [kTileRows][phases][results of a phase]
    AlignedBuffer<acc_t> row;
    std::vector<const acc_t*> table;
    std::vector<TileGroup<acc_t>> groups; // [phases of columns][groups]
  };

  int64_t phase_pitch() const {
    return round_up(columns_.results_of(0), 2 * kLanes);
  }
  int64_t stage_pitch() const {
    return columns_.phases() * phase_pitch();
  }

  // Source rows between the first and the last that `count` neighbouring results meet.
  int64_t source_reach(int64_t count) const {
    const int64_t window = (params_.kernel_height - 1) * params_.dilation_height;
    return direction_ == Direction::kForward ? (count - 1) * params_.stride_height + window + 1
                                             : (count - 1 + window) / params_.stride_height + 2;
  }

  // Result rows that are computed from one packing: whole phases, several tiles, and at least as
  // many as make the rows that two bands share less than half of a band.
  int64_t band_results() const {
    const int64_t unit = height_.result_step() * kTileRows;
    const int64_t row_bytes =
        source_planes_ * columns_.pitch() * static_cast<int64_t>(sizeof(acc_t));
    const int64_t fitting = kBandBytes / row_bytes;
    const int64_t shared = source_reach(1);
    const int64_t sources = std::max(fitting - shared, shared);
    const int64_t results = direction_ == Direction::kForward ? sources / params_.stride_height
                                                              : sources * params_.stride_height;
    return std::min(round_up(std::max<int64_t>(results, 1), unit), round_up(height_.results, unit));
  }

  // The lowest source position that result `first` or a later one meets.
  int64_t first_source(int64_t first) const {
    return direction_ == Direction::kForward
        ? first * params_.stride_height - params_.padding_height
        : floor_div(
              first + params_.padding_height -
                  (params_.kernel_height - 1) * params_.dilation_height,
              params_.stride_height);
  }

  void run_task(int64_t task, Scratch& scratch) {
    const int64_t channel = task % params_.channels * params_.multiplier;
    const scalar_t* const filters = weight_ + channel * params_.kernel_size();
    const int64_t result_size = height_.results * columns_.results;
    const int64_t source_size = height_.sources * columns_.sources;
    scalar_t* const results = result_ + task * result_planes_ * result_size;
    const scalar_t* const sources = source_ + task * source_planes_ * source_size;
    if (!all_finite(filters, params_.multiplier * params_.kernel_size())) {
      for (const auto r : c10::irange(result_planes_)) {
        exact_plane(
            results + r * result_size,
            sources,
            filters + r * params_.kernel_size(),
            bias_ ? bias_ + channel + r : nullptr,
            params_,
            direction_);
      }
      return;
    }
    for (int64_t first = 0; first < height_.results; first += band_) {
      pack(sources, first, scratch);
      for (const auto r : c10::irange(result_planes_)) {
        const acc_t start = bias_ ? acc_t(bias_[channel + r]) : acc_t(0);
        for (const auto phase : c10::irange(height_.phases())) {
          run_phase(
              results + r * result_size,
              filters + r * params_.kernel_size(),
              start,
              first,
              phase,
              scratch);
        }
      }
    }
  }

  // Packs the rows inside the image that the band meets; the table has null for the others.
  void pack(const scalar_t* sources, int64_t first_result, Scratch& scratch) const {
    const int64_t lowest = first_source(first_result);
    for (const auto plane : c10::irange(source_planes_)) {
      acc_t* packed = scratch.packed.data() + plane * source_rows_ * columns_.pitch();
      const scalar_t* source = sources + plane * height_.sources * columns_.sources;
      const int64_t needed = lowest + source_reach(band_);
      for (const auto i : c10::irange(table_rows_)) {
        const int64_t row = lowest + i;
        const bool inside = row >= 0 && row < height_.sources && row < needed;
        scratch.table[plane * table_rows_ + i] = inside ? packed : nullptr;
        if (inside) {
          pack_row(
              source + row * columns_.sources,
              columns_.sources,
              columns_.classes,
              packed + columns_.lead,
              columns_.class_pitch,
              scratch.row.data());
          packed += columns_.pitch();
        }
      }
    }
  }

  // Results first + phase, first + phase + result_step, ... of the band.
  void run_phase(
      scalar_t* result,
      const scalar_t* filters,
      acc_t start,
      int64_t first,
      int64_t phase,
      Scratch& scratch) const {
    const int64_t step = height_.result_step();
    const int64_t begin = first / step;
    const int64_t end = std::min(height_.results_of(phase), begin + band_ / step);
    const int64_t lowest = first_source(first);
    auto& groups = scratch.groups;
    groups.clear();
    acc_t* filter = scratch.filter.data();
    for (const auto column_phase : c10::irange(columns_.phases())) {
      const int64_t taps_begin = columns_.phase_begin[column_phase];
      const int64_t taps_end = columns_.phase_begin[column_phase + 1];
      for_each_group(phase, [&](int64_t plane, const TapGroup& group) {
        const int64_t line = group.source + begin * height_.source_step() - lowest;
        groups.push_back(
            {scratch.table.data() + plane * table_rows_ + line,
             filter,
             taps_end - taps_begin,
             group.count});
        for (const auto i : c10::irange(group.count)) {
          const int64_t row = plane * params_.kernel_height + group.first + i * group.step;
          for (const auto t : c10::irange(taps_begin, taps_end)) {
            *filter++ = acc_t(filters[row * params_.kernel_width + columns_.taps[t]]);
          }
        }
      });
    }
    const int64_t group_count = static_cast<int64_t>(groups.size()) / columns_.phases();
    for (int64_t q = begin; q < end; q += kTileRows) {
      scalar_t* const rows = result + (q * step + phase) * columns_.results;
      run_strip(rows, std::min<int64_t>(kTileRows, end - q), start, group_count, scratch);
      for (auto& group : groups) {
        group.lines += kTileRows * height_.source_step();
      }
    }
  }

  // Calls visit(source plane, taps) for the taps of kernel rows that a phase meets, kMaxTaps at most.
  template <typename Visit>
  void for_each_group(int64_t phase, const Visit& visit) const {
    for (const auto plane : c10::irange(source_planes_)) {
      for (const auto g : c10::irange(height_.groups())) {
        const TapGroup all = height_.group(phase, g);
        for (int64_t done = 0; done < all.count; done += kMaxTaps) {
          visit(
              plane,
              TapGroup{
                  all.first + done * all.step,
                  all.step,
                  std::min<int64_t>(kMaxTaps, all.count - done),
                  all.source + done * height_.source_step()});
        }
      }
    }
  }

  // kTileRows rows of results, of which `count` are stored.
  void run_strip(scalar_t* rows, int64_t count, acc_t start, int64_t group_count, Scratch& scratch)
      const {
    const int64_t row_pitch = height_.result_step() * columns_.results;
    std::array<acc_t*, kTileRows> targets{};
    // Whole vectors of rows of floats or doubles are stored where they belong.
    bool direct = false;
    for (const auto r : c10::irange(count)) {
      targets[r] = scratch.stage.data() + r * stage_pitch();
      if constexpr (std::is_same_v<scalar_t, acc_t>) {
        direct = columns_.result_step == 1 && columns_.results >= kLanes;
        targets[r] = direct ? rows + r * row_pitch : targets[r];
      }
    }
    for (const auto phase : c10::irange(columns_.phases())) {
      const TileGroup<acc_t>* groups = scratch.groups.data() + phase * group_count;
      const auto wide = tile_function<acc_t, Weights::kOfPlane, 2>(groups, group_count);
      const auto narrow = tile_function<acc_t, Weights::kOfPlane, 1>(groups, group_count);
      Tile<acc_t> tile{};
      tile.targets = targets.data();
      tile.line_step = height_.source_step();
      tile.groups = groups;
      tile.group_count = group_count;
      tile.start = &start;
      const int64_t results = columns_.results_of(phase);
      for (int64_t lane = 0; lane < results;) {
        const bool two = results - lane > kLanes && (!direct || results >= 2 * kLanes);
        const int64_t width = two ? 2 * kLanes : kLanes;
        // In place, the last tile computes some columns once more rather than store beyond the row.
        tile.lane = direct ? std::min(lane, results - width) : lane;
        tile.target_lane = tile.lane + phase * phase_pitch();
        const Range live = columns_.live_taps(phase, tile.lane, width);
        tile.cross = columns_.cross.data() + live.begin;
        tile.cross_count = live.size();
        (two ? wide : narrow)(tile);
        lane += width;
      }
    }
    for (int64_t r = 0; !direct && r < count; ++r) {
      unpack_row(
          targets[r], phase_pitch(), columns_.result_step, rows + r * row_pitch, columns_.results);
    }
  }

  Params params_;
  Direction direction_;
  scalar_t* result_;
  const scalar_t* source_;
  const scalar_t* weight_;
  const scalar_t* bias_;
  Dimension height_;
  Columns columns_;
  int64_t result_planes_; // of a task
  int64_t source_planes_;
  int64_t band_; // result rows
  int64_t source_rows_; // packed rows of a band and plane
  int64_t table_rows_;
};

} // namespace
} // namespace at::native
