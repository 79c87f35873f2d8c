// Forward and grad_input of depthwise_conv2d_ext over planes with short rows.
//
// A row of 7 columns would leave most of a vector of 16 idle. Instead, as many planes as a vector
// has lanes are transposed, so that each is a lane: they are then pixels of that many channels, in
// first-level cache, and worked on as such (Pixels.h). The results are transposed
// back. Planes of 7 x 7 have loops of their own between.
#pragma once

#include <ATen/native/cpu/depthwise_conv2d_ext/Pixels.h>

namespace at::native {
namespace {

// Which planes are transposed: those of which one has rows of less than this, a vector of AVX-512 and two
// of AVX2, while they fit into the second-level cache, lanes of no channel too. Against rows, fp32, one image:
// in AVX-512 960 planes of 7 x 7, k = 3, 101 us became 78; 384 of 14 x 14, 126 became 102, and k = 7 212 became
// 168. In AVX2 384 of 14 x 14, k = 3, 195 became 146 and its wgrad 202 124; 672 of 14 x 14, k5s2, 266 became
// 116, its grad_input 445 149. Of planes drawn at random those of more than 512 pixels, or with more than 16
// columns in the other plane, take 1 / 2.7 to 1 / 4.9 of the time, wgrad 1 / 3.9 to 1 / 7.9.
constexpr int64_t kSmallRowBytes = 64;

inline bool are_small_planes(const Params& p) {
  constexpr int64_t kColumns = kSmallRowBytes / sizeof(float);
  const int64_t columns = std::min(p.input_width, p.output_width);
  const int64_t size = std::max(p.input_height * p.input_width, p.output_height * p.output_width);
  return p.multiplier == 1 && columns < kColumns &&
      size * ceil_div(kColumns, std::max<int64_t>(p.channels, 1)) <= 8 * kColumns * kColumns;
}

// Planes of some channels, as pixels: [size][lanes].
template <typename scalar_t>
class TransposedPlanes {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();

 public:
  TransposedPlanes(int64_t size, int64_t lanes)
      : size_(size),
        lanes_(lanes),
        planes_(std::is_same_v<scalar_t, acc_t> ? 0 : lanes * size + 2 * kLanes),
        pixels_(lanes * size) {}

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
  in_parallel(p.batch * parts, grain, [&](int64_t begin, int64_t end) {
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
  const PixelOperands<scalar_t> of(pass, LastVector::kPadded);
  const Params& p = of.params;
  const int64_t lanes = p.channels > kLanes ? 2 * kLanes : kLanes;
  for_planes_as_lanes(of, p, lanes, [&] {
    return [&, rows = PixelRows<acc_t>(p, pass.direction, of.weights, lanes, of.down)](
               const acc_t* pixels,
               acc_t* results,
               int64_t channel,
               int64_t count,
               Range ahead,
               Range written) mutable {
      const int64_t height = of.height.results;
      AheadParts ahead_parts = AheadParts::of(ahead, height);
      AheadParts written_parts = AheadParts::of(written, height);
      for (const auto row : c10::irange(height)) {
        written_parts.ask_for_part<Ask::kToWrite>();
        acc_t* const target = results + row * rows.result_row();
        const Range channels{0, round_up(count, kLanes)};
        const Range part = ahead_parts.take(1).left;
        rows.run(pixels, target, row, channels, channel, part);
      }
    };
  });
}

#if defined(CPU_CAPABILITY_AVX512)

// Planes of 7 x 7 with windows of 3 x 3, 5 x 5 or 7 x 7 and strides and dilations of 1.
//
// As many planes as a vector has lanes, transposed, are 49 vectors, which stay in first-level cache with
// their weights and results. A row of results is 7 pixels by two sums each, of the even and of the odd taps
// across, so that additions wait less for each other, and err less. A line of the source is loaded once for
// each row of results that it meets, and every weight of that kernel row multiplied into the pixels for
// which it is inside: of k7 37 multiply-adds for 14 loads. Nothing outside the image is multiplied.
//
// Against PixelRows, fp32, one thread, Zen 5: 960@7 k3 20 us became 11, N=16 930 and 275, 1152@7 k5 32 and
// 19, N=16 580 and 360, 768@7 k7 29 and 19, N=16 430 and 294.
constexpr int kSevenPixels = 7; // a side

inline bool are_seven_planes(const Params& p) {
  const auto is_seven = [](int64_t height, int64_t width) {
    return height == kSevenPixels && width == kSevenPixels;
  };
  const int64_t side = p.kernel_height;
  return p.multiplier == 1 && is_seven(p.input_height, p.input_width) &&
      is_seven(p.output_height, p.output_width) && p.kernel_width == side &&
      (side == 3 || side == 5 || side == 7) && p.stride_height == 1 && p.stride_width == 1 &&
      p.dilation_height == 1 && p.dilation_width == 1;
}

// Planes and their weights by lanes.
struct SevenPlane {
  const float* pixels; // [rows][columns][lanes]
  const float* weights; // of the first row that results meet: [taps across][lanes]
  int64_t weight_row; // to the next row's
  const float* start; // what sums begin with
  float* results;
};

template <int kSide>
C10_ALWAYS_INLINE void row_of_seven_plane(const SevenPlane& plane, int row) {
  using Vec = Vectorized<float>;
  constexpr int kHalf = kSide / 2;
  constexpr int64_t kLine = kSevenPixels * Vec::size();
  const Vec start = Vec::loadu(plane.start);
  Vec even[kSevenPixels];
  Vec odd[kSevenPixels];
  DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
    even[c] = start;
    odd[c] = Vec(0);
  }
  const int first = std::max(row - kHalf, 0);
  const int last = std::min(row + kHalf, kSevenPixels - 1);
  const float* line = plane.pixels + first * kLine;
  const float* weights = plane.weights + (first - row + kHalf) * plane.weight_row;
  for (int j = first; j <= last; ++j) {
    Vec sources[kSevenPixels];
    DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
      sources[c] = held_in_register(Vec::loadu(line + c * Vec::size()));
    }
    DEPTHWISE_UNROLL for (int i = 0; i < kSide; ++i) {
      const Vec weight = held_in_register(Vec::loadu(weights + i * Vec::size()));
      Vec* const sums = i % 2 == 0 ? even : odd;
      DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
        const int source = c + i - kHalf;
        if (source >= 0 && source < kSevenPixels) {
          sums[c] = vec::fmadd(sources[source], weight, sums[c]);
        }
      }
    }
    line += kLine;
    weights += plane.weight_row;
  }
  float* const results = plane.results + row * kLine;
  DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
    (even[c] + odd[c]).store(results + c * Vec::size());
  }
}

template <int kSide>
void take_seven_plane(const SevenPlane& plane, Range ahead, Range written) {
  AheadParts ahead_parts = AheadParts::of(ahead, kSevenPixels);
  AheadParts written_parts = AheadParts::of(written, kSevenPixels);
  for (const auto row : c10::irange(kSevenPixels)) {
    // From the second-level cache N=16 would take 1.04 to 1.2 of the time.
    ahead_parts.ask_for_part();
    written_parts.ask_for_part<Ask::kToWrite>();
    row_of_seven_plane<kSide>(plane, row);
  }
}

template <typename scalar_t>
void seven_plane_pass(const Pass& pass) {
  constexpr int64_t kLanes = Vectorized<float>::size();
  const Params& p = pass.params;
  const PixelOperands<scalar_t> of(pass, LastVector::kPadded);
  const int64_t row = p.kernel_width * kLanes;
  const bool forward = pass.direction == Direction::kForward;
  const auto take_plane = p.kernel_width == 3 ? &take_seven_plane<3>
      : p.kernel_width == 5                   ? &take_seven_plane<5>
                                              : &take_seven_plane<7>;
  for_planes_as_lanes(of, p, kLanes, [&] {
    return [&](const float* pixels,
               float* results,
               int64_t channel,
               int64_t /*count*/,
               Range ahead,
               Range written) {
      const float* const weights = of.weights.taps.data() + channel * p.kernel_size();
      take_plane(
          {pixels,
           forward ? weights : weights + (p.kernel_height - 1) * row,
           forward ? row : -row,
           of.weights.start.data() + channel,
           results},
          ahead,
          written);
    };
  });
}

#endif

} // namespace
} // namespace at::native
