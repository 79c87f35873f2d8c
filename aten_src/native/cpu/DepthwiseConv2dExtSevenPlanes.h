// Forward and grad_input of depthwise_conv2d_ext over planes of 7 x 7 with windows of 3 x 3, 5 x 5
// or 7 x 7 and strides and dilations of 1.
//
// As many planes as a vector has lanes, transposed so that each is one
// (DepthwiseConv2dExtSmallPlanes.h), are 49 vectors, which stay in first-level cache with their
// weights and results. A row of results is 7 pixels by two sums each, of the even and of the odd
// taps across, so that additions wait less for each other, and err less. A line of the source is
// loaded once for each row of results that it meets, and every weight of that kernel row multiplied
// into the pixels for which it is inside: of k7 37 multiply-adds for 14 loads. Nothing outside the
// image is multiplied.
#pragma once

#include <ATen/native/cpu/DepthwiseConv2dExtSmallPlanes.h>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

constexpr int kSevenPixels = 7; // a side

// Against PixelRows and, of 3 x 3, marches of two planes a vector, fp32, one thread, Zen 5, with
// what the transposing saves: 960@7 k3 20 us became 11, N=16 930 and 275, 1152@7 k5 32 and 19, N=16
// 580 and 360, 768@7 k7 29 and 19, N=16 430 and 294.
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

// Planes and their weights by lanes. Kernel rows, `row_step` values apart, and the taps across
// follow each other as the sources that a result meets do.
template <typename acc_t>
struct SevenPlane {
  const acc_t* pixels; // [rows][columns][lanes]
  const acc_t* weights; // of the first kernel row
  int64_t row_step;
  const acc_t* start; // what sums begin with
  acc_t* results;
};

template <typename acc_t, int kSide>
C10_ALWAYS_INLINE void row_of_seven_plane(const SevenPlane<acc_t>& plane, int row) {
  using Vec = Vectorized<acc_t>;
  constexpr int kHalf = kSide / 2;
  constexpr int64_t kLine = kSevenPixels * Vec::size();
  const Vec start = Vec::loadu(plane.start);
  Vec even[kSevenPixels];
  Vec odd[kSevenPixels];
  DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
    even[c] = start;
    odd[c] = Vec(acc_t(0));
  }
  const int first = std::max(row - kHalf, 0);
  const int last = std::min(row + kHalf, kSevenPixels - 1);
  const acc_t* line = plane.pixels + first * kLine;
  const acc_t* weights = plane.weights + (first - row + kHalf) * plane.row_step;
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
    weights += plane.row_step;
  }
  acc_t* const results = plane.results + row * kLine;
  DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
    (even[c] + odd[c]).store(results + c * Vec::size());
  }
}

template <typename acc_t, int kSide>
void take_seven_plane(const SevenPlane<acc_t>& plane, Range ahead, Range written) {
  AheadParts ahead_parts = AheadParts::of(ahead, kSevenPixels);
  AheadParts written_parts = AheadParts::of(written, kSevenPixels);
  for (const auto row : c10::irange(kSevenPixels)) {
    // From the second-level cache N=16 would take 1.04 to 1.2 of the time.
    ahead_parts.ask_for_part();
    written_parts.ask_for_part<Ask::kToWrite>();
    row_of_seven_plane<acc_t, kSide>(plane, row);
  }
}

// A task is a vector of channels of one image. With the same channels of all images one after the
// other, whose weights would stay in first-level cache, N=16 of 768@7 k7 takes 1.15 of the time, of
// 960@7 k3 1.34.
template <typename scalar_t>
void seven_plane_pass(const Pass& pass) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const Params& p = pass.params;
  const PixelOperands<scalar_t> of(pass, LastVector::kPadded);
  const int64_t side = p.kernel_width;
  auto take = &take_seven_plane<acc_t, 3>;
  if (side == 5) {
    take = &take_seven_plane<acc_t, 5>;
  } else if (side == 7) {
    take = &take_seven_plane<acc_t, 7>;
  }
  const TapGroup rows = of.height.group(0, 0);
  const int64_t row_weights = side * kLanes;
  for_planes_as_lanes(of, p, kLanes, [&] {
    return [&](const acc_t* pixels,
               acc_t* results,
               int64_t channel,
               int64_t /*count*/,
               Range ahead,
               Range written) {
      const acc_t* const weights = of.weights.taps.data() + channel * p.kernel_size();
      take(
          {pixels,
           weights + rows.first * row_weights,
           rows.step * row_weights,
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
