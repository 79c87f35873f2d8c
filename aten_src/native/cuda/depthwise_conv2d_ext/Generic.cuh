// What the generic kernels share: a call's dimensions and vectors of channels.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

// After those that it needs.
#include <ATen/cuda/detail/IntegerDivider.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kThreads = 256;
// Loops stride over the grid, so that this bounds launches without bounding sizes.
constexpr int64_t kMaxBlocks = 1 << 20;

// Channels that travel together in channels-last order.
template <typename scalar_t>
constexpr int kVectorOf = sizeof(scalar_t) == 8 ? 2 : 4;

// Whether 32 bits hold every offset and step here, with room for one step over the grid.
inline bool has_short_steps(const Params& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  static_assert(kMaxBlocks * kThreads < kLimit);
  const int64_t most_step = std::max(
      std::lcm(p.stride_height, p.dilation_height), std::lcm(p.stride_width, p.dilation_width));
  return fits_32_bits(p) && p.output_channels() * (p.kernel_size() + 1) < kLimit &&
      most_step < kLimit / 16;
}

// One dimension of a call: input = output * stride - padding + tap * dilation.
template <typename index_t>
struct Side {
  index_t input;
  index_t output;
  index_t taps;
  index_t stride;
  index_t padding;
  index_t dilation;
};

template <typename index_t>
Side<index_t> side_of(const Params& p, bool height) {
  const auto of = [&](int64_t tall, int64_t wide) {
    return static_cast<index_t>(height ? tall : wide);
  };
  return {
      of(p.input_height, p.input_width),
      of(p.output_height, p.output_width),
      of(p.kernel_height, p.kernel_width),
      of(p.stride_height, p.stride_width),
      of(p.padding_height, p.padding_width),
      of(p.dilation_height, p.dilation_width)};
}

template <typename index_t>
using Divider = at::cuda::detail::IntDivider<std::make_unsigned_t<index_t>>;

template <typename index_t>
Divider<index_t> divider(int64_t by) {
  return Divider<index_t>(std::max<int64_t>(1, by));
}

// From one element of a dense tensor to its neighbours.
template <typename index_t>
struct ElementSteps {
  index_t image;
  index_t channel;
  index_t row;
  index_t column;
};

template <typename index_t>
ElementSteps<index_t> steps_of(
    bool channels_last,
    int64_t channels,
    int64_t height,
    int64_t width) {
  ElementSteps<index_t> steps;
  steps.image = channels * height * width;
  steps.channel = channels_last ? 1 : height * width;
  steps.row = channels_last ? width * channels : width;
  steps.column = channels_last ? channels : 1;
  return steps;
}

// 0 <= at < size.
template <typename index_t>
__device__ __forceinline__ bool is_within(index_t at, index_t size) {
  using unsigned_t = std::make_unsigned_t<index_t>;
  return static_cast<unsigned_t>(at) < static_cast<unsigned_t>(size);
}

template <typename scalar_t, int kVector>
struct alignas(sizeof(scalar_t) * kVector) Elements {
  scalar_t values[kVector];
};

template <typename scalar_t>
bool takes_vectors(const Params& p, const Operand& a, const Operand& b) {
  constexpr int kVector = kVectorOf<scalar_t>;
  constexpr size_t kBytes = sizeof(scalar_t) * kVector;
  return p.channels_last && p.multiplier == 1 && p.channels % kVector == 0 &&
      is_aligned(a.const_data_ptr(), kBytes) && is_aligned(b.const_data_ptr(), kBytes);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
