// Windows of one dimension, 1 x k and k x 1 with k of 2 to 64, at stride 1: sequences, and the lines of images.
//
// All passes are one loop over lines: dst[i] = sum over k of src[i + k dilation - padding] tap[k] writes the output
// from the input, and grad_input from grad_output with the taps in reverse; and with `values`, the input, beside dst
// the sums over i of values[i] src[i + k dilation - padding] are the weight's gradient, with the taps in reverse
// too. So one pass over the tensors gives all gradients. Windows of more than kTapGroup taps go group by group, and
// blocks beside each other sum a group each.
//
// Sequence.cu has lines that are contiguous (NCHW), SequenceChannels.cu those whose positions are `inner` elements apart
// (channels-last).
//
// Sums are in float, in an order that the shapes and the device alone determine. Only positions inside a line count:
// those outside are zeros, which is the same while the other factor is finite. Where taps are not, results whose
// window leaves the line are computed again (redo_output), and where a block's sum is not, that sum (product).
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <cstdint>

// After those that it needs.
#include <ATen/cuda/detail/IntegerDivider.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kMostTaps = 64;
constexpr int kTapGroup = 8; // taps that a kernel has at a time; half of it for windows of no more
constexpr int kSequenceThreads = 128;

// Lines are images x channels x rows, or in channels-last order images x rows of `inner` elements at each position,
// of which element i is of channel i % channels.
struct Sequence {
  int32_t taps; // 0: there is no kernel for the call
  int32_t dilation;
  int32_t padding; // of the first position of src; less than zero: that no window meets
  int32_t src_length;
  int32_t dst_length;
  int32_t positions; // of dst that windows are at: with sums until the first tap has met all of src
  int32_t channels;
  int64_t images;
  int64_t rows;
  int64_t inner;
  bool flip; // taps in reverse
};

// `dst` is written, and the products with `values` are summed, where they are defined.
struct SequencePass {
  const Operand& dst;
  const Operand& src;
  const Operand& weight;
  const Operand& bias;
  const Operand& values;
  const Operand& grad_weight;
  const Operand& grad_bias;
};

// A pass in channels-last order.
template <typename scalar_t>
bool run_channels(const SequencePass& pass, const Sequence& s, const Params& p);

// The tiles of lines that a block shares with others.
struct Tiles {
  uint32_t count;
  at::cuda::detail::IntDivider<unsigned int> per_line;
};

inline Tiles tiles_of(int64_t lines, int64_t per_line) {
  return {
      static_cast<uint32_t>(lines * per_line),
      at::cuda::detail::IntDivider<unsigned int>(static_cast<unsigned int>(per_line))};
}

// So many of at most `most` shares of each of `blocks` that every multiprocessor has some blocks.
inline int64_t shares_of(int64_t blocks, int64_t most) {
  constexpr int64_t kBlocks = 16;
  const int64_t wanted = multiprocessors() * kBlocks;
  return std::clamp<int64_t>(divide_up(wanted, blocks), 1, std::min(most, kMostGridRows));
}

// What a line of src gives one position of dst, of positions inside the line alone. Its elements are `step`
// apart, and its taps `tap_step`.
template <typename scalar_t>
__device__ __noinline__ float redo_output(
    const scalar_t* line,
    int64_t step,
    const float* taps,
    int tap_step,
    const Sequence& s,
    int position) {
  float sum = 0.0f;
  for (int k = 0; k < s.taps; ++k) {
    const int at = position + k * s.dilation - s.padding;
    if (at >= 0 && at < s.src_length) {
      sum += static_cast<float>(line[at * step]) * taps[k * tap_step];
    }
  }
  return sum;
}

// values[position] by what tap k meets there, if both are inside.
template <typename scalar_t>
__device__ __forceinline__ float product(
    const scalar_t* values,
    const scalar_t* line,
    int64_t step,
    const Sequence& s,
    int position,
    int k) {
  const int at = position + k * s.dilation - s.padding;
  const bool inside = position >= 0 && position < s.dst_length && at >= 0 && at < s.src_length;
  return inside ? static_cast<float>(values[position * step]) * static_cast<float>(line[at * step])
                : 0.0f;
}

// Adds to a bias; infinite once infinite, where compensation alone would end with NaN.
template <typename scalar_t>
__device__ __forceinline__ void add_to_sequence_bias(float& sum, float& excess, float value) {
  add_to_bias<sizeof(scalar_t) == sizeof(float)>(sum, excess, value);
  excess = is_finite(excess) ? excess : 0.0f;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
