// What the two files of generic kernels of depthwise_conv2d_ext share: steps between elements of either
// memory order, what fits 32 bits, and vectors of channels. Any window, stride, dilation, number of outputs
// of a channel, type, memory order and size: they take what no family of kernels does.
//
// 16-bit values are converted to float before any arithmetic and rounded once at the end. Only positions
// inside the image are read or multiplied. Without atomics: the same bits on every run.
//
// On an H200, L2 cold, 64 images of 64@56 in float, 4 x 4 at stride 2 (with a thread an element and a block a
// tap; now; conv2d), us: forward 65, 47, 87, grad_input 475, 75, 271, weight and bias 164, 86, 116; in
// channels-last order 112, 38, 266, then 314, 38, 337, then 338, 75, 447.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <limits>

// After those that it needs.
#include <ATen/cuda/detail/IntegerDivider.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
// Loops stride over the grid, so that this bounds launches without bounding sizes.
constexpr int64_t kMaxBlocks = 1 << 20;
// Results of a thread of a gather.
constexpr int kRows = 4;

// What values are added up in.
template <typename scalar_t>
using opmath_type = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

// Channels that travel together in channels-last order.
template <typename scalar_t>
constexpr int kVectorOf = sizeof(scalar_t) == 8 ? 2 : 4;

// Whether 32 bits hold every offset and every coordinate, with room for one step over the grid and
// for one more dilated tap.
inline bool fits_32_bits(const Params& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  static_assert(kMaxBlocks * kThreads < kLimit);
  return p.batch * p.channels * p.input_height * p.input_width < kLimit &&
      p.batch * p.output_channels() * p.output_height * p.output_width < kLimit &&
      p.output_channels() * (p.kernel_size() + 1) < kLimit &&
      p.input_height + 2 * p.padding_height + p.dilation_height < kLimit &&
      p.input_width + 2 * p.padding_width + p.dilation_width < kLimit &&
      p.stride_height < kLimit / kRows && p.stride_width < kLimit / kRows;
}

template <typename index_t>
using Divider = at::cuda::detail::IntDivider<std::make_unsigned_t<index_t>>;

template <typename index_t>
Divider<index_t> divider(int64_t by) {
  return Divider<index_t>(std::max<int64_t>(1, by));
}

// From one element of a dense tensor to its neighbours.
template <typename index_t>
struct Steps {
  index_t image;
  index_t channel;
  index_t row;
  index_t column;
};

template <typename index_t>
Steps<index_t> steps_of(bool channels_last, int64_t channels, int64_t height, int64_t width) {
  Steps<index_t> steps;
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

inline unsigned int blocks_for(int64_t items, int64_t items_per_block) {
  return static_cast<unsigned int>(std::min(kMaxBlocks, divide_up(items, items_per_block)));
}

template <typename scalar_t>
bool takes_vectors(const Params& p, const Operand& a, const Operand& b) {
  constexpr int kVector = kVectorOf<scalar_t>;
  constexpr size_t kBytes = sizeof(scalar_t) * kVector;
  return p.channels_last && p.multiplier == 1 && p.channels % kVector == 0 &&
      is_aligned(a.const_data_ptr(), kBytes) && is_aligned(b.const_data_ptr(), kBytes);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
