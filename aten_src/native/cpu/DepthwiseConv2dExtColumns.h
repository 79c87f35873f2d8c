// How the rows of planes are packed for the kernels of depthwise_conv2d_ext, and which of their columns
// the taps of a kernel row read.
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtGeometry.h>
#include <ATen/native/cpu/DepthwiseConv2dExtTiles.h>
#include <c10/util/SmallVector.h>

namespace at::native {
namespace {

// Bytes of packed rows that a band should not exceed, half of a second-level cache.
constexpr int64_t kBandBytes = 256 << 10;

// Result rows that are computed from one packing of rows of `row_bytes`: a multiple of `unit`, and at
// least as many as make the sources that two bands share less than half of a band's.
inline int64_t band_results(const Dimension& height, int64_t row_bytes, int64_t unit) {
  const int64_t shared = height.source_reach(1);
  const int64_t sources = std::max(kBandBytes / row_bytes - shared, shared);
  const int64_t results =
      height.direction == Direction::kForward ? sources / height.stride : sources * height.stride;
  return std::min(round_up(std::max<int64_t>(results, 1), unit), round_up(height.results, unit));
}

// The columns of one pass. Neighbouring lanes of a vector are neighbouring results of one phase:
// all results of a forward, whose sources are `classes` packed sub-rows; for grad_input every
// stride-th result, from sources as they are.
struct Columns {
  int64_t results;
  int64_t result_step; // between results of a phase, and the number of phases
  int64_t sources;
  int64_t classes;
  int64_t lead; // zeros before a sub-row
  int64_t class_pitch;
  // By phase: a kernel row's taps, the column of its sub-row that each meets at the first result,
  // and the same as an offset in a packed row.
  c10::SmallVector<int64_t, 32> taps;
  c10::SmallVector<int64_t, 32> positions;
  c10::SmallVector<CrossTap, 32> cross;
  c10::SmallVector<int64_t, 4> phase_begin; // into these

  int64_t phases() const {
    return static_cast<int64_t>(phase_begin.size()) - 1;
  }
  int64_t results_of(int64_t phase) const {
    return ceil_div(results - phase, result_step);
  }
  int64_t pitch() const {
    return classes * class_pitch;
  }

  // The taps [begin, end) that meet the image at some of `count` results, but for those between.
  Range live_taps(int64_t phase, int64_t first, int64_t count) const {
    const int64_t length = ceil_div(sources, classes);
    const auto outside = [&](int64_t tap) {
      return positions[tap] + first >= length || positions[tap] + first + count <= 0;
    };
    Range live{phase_begin[phase], phase_begin[phase + 1]};
    while (live.begin < live.end && outside(live.begin)) {
      ++live.begin;
    }
    while (live.begin < live.end && outside(live.end - 1)) {
      --live.end;
    }
    return live;
  }
};

inline Columns columns_of(const Params& p, Direction direction, int64_t lanes) {
  const Dimension width = width_of(p, direction);
  const bool forward = direction == Direction::kForward;
  Columns c;
  c.results = width.results;
  c.sources = width.sources;
  c.result_step = forward ? 1 : width.stride;
  c.classes = forward ? width.stride : 1;
  c.phase_begin.push_back(0);
  c10::SmallVector<int64_t, 32> classes;
  int64_t lowest = 0;
  int64_t highest = 0;
  for (const auto phase : c10::irange(std::min(c.result_step, c.results))) {
    for (const auto tap : c10::irange(width.kernel)) {
      const int64_t position = forward ? tap * width.dilation - width.padding
                                       : phase + width.padding - tap * width.dilation;
      if (!forward && floor_mod(position, width.stride) != 0) {
        continue;
      }
      c.taps.push_back(tap);
      classes.push_back(forward ? floor_mod(position, width.stride) : 0);
      c.positions.push_back(floor_div(position, width.stride));
      lowest = std::min(lowest, c.positions.back());
      highest = std::max(highest, c.positions.back());
    }
    c.phase_begin.push_back(static_cast<int64_t>(c.taps.size()));
  }
  c.lead = round_up(-lowest, lanes);
  const int64_t read = highest + round_up(c.results_of(0), 2 * lanes);
  const int64_t written = round_up(ceil_div(c.sources, c.classes), 2 * lanes);
  c.class_pitch = c.lead + round_up(std::max(read, written), lanes);
  for (const auto phase : c10::irange(c.phases())) {
    for (const auto i : c10::irange(c.phase_begin[phase], c.phase_begin[phase + 1])) {
      const int64_t offset = c.positions[i] + c.lead + classes[i] * c.class_pitch;
      c.cross.push_back({offset, i - c.phase_begin[phase]});
    }
  }
  return c;
}

} // namespace
} // namespace at::native
