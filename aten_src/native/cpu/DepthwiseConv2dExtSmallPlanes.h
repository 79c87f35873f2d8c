// Forward and grad_input of depthwise_conv2d_ext over planes with rows of a vector or two.
//
// A row of 7 columns would leave most of a vector of 16 idle. Instead, as many planes as a vector
// has lanes are transposed, so that each is a lane: they are then pixels of that many channels, in
// first-level cache, and worked on as such (DepthwiseConv2dExtPixels.h). The results are transposed
// back. Some planes need none of that (DepthwiseConv2dExtUnpackedPlanes.h), those of 7 x 7 have
// loops of their own between (DepthwiseConv2dExtSevenPlanes.h).
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtPixels.h>

namespace at::native {
namespace {

// Which planes are transposed: those of which one has rows of less than this, a vector of AVX-512 and two
// of AVX2, while both fit into the first-level cache. Against rows, fp32, one image: in AVX-512 960 planes of
// 7 x 7, k = 3, 101 us became 78; 384 of 14 x 14, 126 became 102, and k = 7 212 became 168. In AVX2 384 of
// 14 x 14, k = 3, 195 became 146 and its wgrad 202 124; 672 of 14 x 14, k5s2, 266 became 116, its
// grad_input 445 149.
constexpr int64_t kSmallRowBytes = 64;

template <typename acc_t>
bool are_small_planes(const Params& p) {
  constexpr int64_t kColumns = kSmallRowBytes / sizeof(acc_t);
  return p.multiplier == 1 && std::min(p.input_width, p.output_width) < kColumns &&
      std::max(p.input_width, p.output_width) <= kColumns &&
      std::max(p.input_height, p.output_height) <= 2 * kColumns;
}

// Planes of some channels, as pixels: [size][lanes].
template <typename scalar_t>
class TransposedPlanes {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();

 public:
  TransposedPlanes(int64_t size, int64_t lanes)
      : size_(size), lanes_(lanes), planes_(lanes * size + 2 * kLanes), pixels_(lanes * size) {}

  acc_t* pixels() const {
    return pixels_.data();
  }
  void read(const scalar_t* planes, int64_t count) const {
    const acc_t* values = planes_.data();
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      values = planes;
    } else {
      convert_row(planes, count * size_, planes_.data());
    }
    transpose(values, count, size_, size_, pixels_.data(), lanes_);
  }
  void write(scalar_t* planes, int64_t count) const {
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      transpose(pixels_.data(), size_, count, lanes_, planes, size_);
    } else {
      transpose(pixels_.data(), size_, count, lanes_, planes_.data(), size_);
      unpack_row(planes_.data(), 0, 1, planes, count * size_);
    }
  }

 private:
  int64_t size_; // values of a plane
  int64_t lanes_; // whole vectors
  AlignedBuffer<acc_t> planes_; // where 16-bit values are converted
  AlignedBuffer<acc_t> pixels_;
};

// Calls make_work() once a thread, and what it returns as work(pixels, results, channel, count,
// ahead, written) for `count` planes of one image from `channel` on, as pixels of `lanes` lanes
// each. Two ranges of addresses are to be asked for meanwhile: those that the next task reads and
// those that this one writes, for which the core's buffer for stores would wait: N=16 of 1152@7 k5
// 659 us became 550, of 768@7 k7 544 and 461.
template <typename scalar_t, typename MakeWork>
void for_planes_as_lanes(
    const PixelOperands<scalar_t>& of,
    const Params& p,
    int64_t lanes,
    const MakeWork& make_work) {
  const int64_t source_size = of.height.sources * of.width.sources;
  const int64_t result_size = of.height.results * of.width.results;
  const int64_t parts = ceil_div(p.channels, lanes);
  const auto grain = grain_of(lanes * p.output_height * p.output_width * p.kernel_size());
  at::parallel_for(0, p.batch * parts, grain, [&](int64_t begin, int64_t end) {
    const TransposedPlanes<scalar_t> from(source_size, lanes);
    const TransposedPlanes<scalar_t> to(result_size, lanes);
    auto work = make_work();
    for (const auto task : c10::irange(begin, end)) {
      const int64_t channel = task % parts * lanes;
      const int64_t plane = task / parts * p.channels + channel;
      const int64_t count = std::min(lanes, p.channels - channel);
      from.read(of.sources + plane * source_size, count);
      const int64_t next = plane + count;
      const int64_t next_count = std::min(count, p.batch * p.channels - next);
      const Range ahead = addresses_of(of.sources + next * source_size, next_count * source_size);
      const Range written = addresses_of(of.results + plane * result_size, count * result_size);
      work(from.pixels(), to.pixels(), channel, count, ahead, written);
      to.write(of.results + plane * result_size, count);
    }
  });
}

// A task is one or two vectors of channels of one image.
template <typename scalar_t>
void small_plane_pass(const Pass& pass) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const Params& p = pass.params;
  const PixelOperands<scalar_t> of(pass, LastVector::kPadded);
  const int64_t lanes = p.channels > kLanes ? 2 * kLanes : kLanes;
  for_planes_as_lanes(of, p, lanes, [&] {
    return [&, rows = PixelRows<acc_t>(p, pass.direction, of.weights, lanes)](
               const acc_t* pixels,
               acc_t* results,
               int64_t channel,
               int64_t count,
               Range ahead,
               Range written) mutable {
      const int64_t height = of.height.results;
      AheadParts written_parts = AheadParts::of(written, height);
      for (const auto row : c10::irange(height)) {
        written_parts.ask_for_part<Ask::kToWrite>();
        rows.run(
            pixels,
            results + row * of.width.results * lanes,
            row,
            {0, round_up(count, kLanes)},
            channel,
            {ahead.begin + ahead.size() * row / height,
             ahead.begin + ahead.size() * (row + 1) / height});
      }
    };
  });
}

} // namespace
} // namespace at::native
