// Forward and grad_input of depthwise_conv2d_ext over planes with rows of a vector or two.
//
// A row of 7 columns would leave most of a vector of 16 idle. Instead, as many planes as a vector has
// lanes are transposed, so that each is a lane: they are then pixels of that many channels, in
// first-level cache, and worked on as such (DepthwiseConv2dExtPixels.h). The results are transposed
// back. Some planes need none of that (DepthwiseConv2dExtUnpackedPlanes.h).
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

// A task is one or two vectors of channels of one image.
template <typename scalar_t>
void small_plane_pass(
    const TensorBase& result,
    const TensorBase& source,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& p,
    Direction direction) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const PixelOperands<scalar_t> of(result, source, weight, bias, p, direction, LastVector::kPadded);
  const Dimension& height = of.height;
  const Dimension& width = of.width;
  const int64_t source_size = height.sources * width.sources;
  const int64_t result_size = height.results * width.results;
  const int64_t lanes = p.channels > kLanes ? 2 * kLanes : kLanes;
  const int64_t parts = ceil_div(p.channels, lanes);
  const auto grain = grain_of(lanes * p.output_height * p.output_width * p.kernel_size());
  at::parallel_for(0, p.batch * parts, grain, [&](int64_t begin, int64_t end) {
    const TransposedPlanes<scalar_t> from(source_size, lanes);
    const TransposedPlanes<scalar_t> to(result_size, lanes);
    PixelRows<acc_t> rows(p, direction, of.weights, lanes);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t channel = task % parts * lanes;
      const int64_t plane = task / parts * p.channels + channel;
      const int64_t count = std::min(lanes, p.channels - channel);
      from.read(of.sources + plane * source_size, count);
      // The planes of the next task follow: asked for while these are worked on.
      const scalar_t* const next = of.sources + (plane + count) * source_size;
      const int64_t next_size = std::min(count, p.batch * p.channels - plane - count) * source_size;
      // And so are those of the results, which the core's buffer for stores would wait for: N=16 of 1152@7 k5
      // 659 us became 550, of 768@7 k7 544 and 461.
      const auto written = reinterpret_cast<int64_t>(of.results + plane * result_size);
      const int64_t bytes = count * result_size * static_cast<int64_t>(sizeof(scalar_t));
      AheadParts results = AheadParts::of({written, written + bytes}, height.results);
      for (const auto row : c10::irange(height.results)) {
        results.ask_for_part<Ask::kToWrite>();
        rows.run(
            from.pixels(),
            to.pixels() + row * width.results * lanes,
            row,
            {0, round_up(count, kLanes)},
            channel,
            {reinterpret_cast<int64_t>(next + next_size * row / height.results),
             reinterpret_cast<int64_t>(next + next_size * (row + 1) / height.results)});
      }
      to.write(of.results + plane * result_size, count);
    }
  });
}

} // namespace
} // namespace at::native
