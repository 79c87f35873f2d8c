// Windows of one dimension: the choice for both memory orders, and contiguous lines in float and half precision. See
// Sequence.cuh.
#include <ATen/native/cuda/depthwise_conv2d_ext/Sequence.cuh>
#include <limits>
#include <utility>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// Whether the window is along a dimension whose other dimension it leaves alone.
bool is_along(int64_t kernel, int64_t padding, int64_t stride, int64_t size) {
  return kernel == 1 && padding == 0 && (stride == 1 || size == 1);
}

// The forward of a call.
Sequence sequence_of(const Params& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 4;
  Sequence s{};
  const bool by_width =
      is_along(p.kernel_height, p.padding_height, p.stride_height, p.input_height);
  const bool by_height = is_along(p.kernel_width, p.padding_width, p.stride_width, p.input_width);
  const int64_t taps = p.kernel_size();
  const int64_t stride = by_width ? p.stride_width : p.stride_height;
  const int64_t padding = by_width ? p.padding_width : p.padding_height;
  const int64_t dilation = by_width ? p.dilation_width : p.dilation_height;
  const int64_t src = by_width ? p.input_width : p.input_height;
  const int64_t dst = by_width ? p.output_width : p.output_height;
  // Columns of planes are lines of neither kind.
  const bool has_lines = p.channels_last || by_width || p.input_width == 1;
  // Tiles are counted in 32 bits.
  const int64_t lines =
      p.batch * (by_width ? p.input_height : 1) * (p.channels_last ? 1 : p.channels);
  const int64_t length = std::max(src, dst) + padding + kTapGroup * dilation;
  if (by_width == by_height || !has_lines || p.multiplier != 1 || taps < 2 || taps > kMostTaps ||
      stride != 1 || padding > dilation * (taps - 1) || dst == 0 || lines == 0 || p.channels == 0 ||
      lines > kLimit || length > kLimit || lines * length / 2 > kLimit ||
      dilation > kLimit / kMostTaps ||
      // Nearly all of such a window is outside; in channels-last order that costs no more than the rest.
      (!p.channels_last && dilation > 1 && dilation * (taps - 1) >= src)) {
    return s;
  }
  s.taps = static_cast<int32_t>(taps);
  s.dilation = static_cast<int32_t>(dilation);
  s.padding = static_cast<int32_t>(padding);
  s.src_length = static_cast<int32_t>(src);
  s.dst_length = static_cast<int32_t>(dst);
  s.positions = s.dst_length;
  s.channels = static_cast<int32_t>(p.channels);
  s.images = p.batch;
  s.rows = by_width ? p.input_height : 1;
  s.inner = p.channels * (by_width ? 1 : p.input_width);
  return s;
}

// grad_input as a pass over grad_output, with sums as far as the last tap meets it. Its length says how far that is:
// padding need not be the same on both sides once Select.cpp has left out taps.
Sequence reversed(const Sequence& s, bool sums) {
  Sequence r = s;
  r.padding = s.dilation * (s.taps - 1) - s.padding;
  std::swap(r.src_length, r.dst_length);
  r.positions = sums ? std::max(r.dst_length, r.padding + r.src_length) : r.dst_length;
  r.flip = true;
  return r;
}

// In channels-last order four channels travel together.
bool has_vectors(const Params& p, const Operand& operand) {
  return !operand.defined() || !p.channels_last ||
      (p.channels % 4 == 0 && is_aligned(operand.const_data_ptr(), 4 * operand.element_size()));
}

bool run(const SequencePass& pass, const Sequence& s, const Params& p) {
  return p.channels_last ? run_channels(pass, s, p)
                         : with_scalar_type(pass.src.type(), [&](auto scalar) {
                             run_planes<decltype(scalar)>(pass, s, p);
                             return true;
                           });
}

} // namespace

bool sequence_forward(const ForwardPass& pass, const Params& p) {
  const Sequence s = sequence_of(p);
  if (s.taps == 0 || !has_vectors(p, pass.dst) || !has_vectors(p, pass.src)) {
    return false;
  }
  const Operand none;
  return run(
      {pass.dst, pass.src, pass.weight, pass.bias, none, none, none},
      pass.grad_input ? reversed(s, false) : s,
      p);
}

bool sequence_backward(const BackwardPass& pass, const Params& p) {
  const Sequence s = sequence_of(p);
  // Both at once: windows of one group of taps, and lines that both begin a vector where one does. In
  // channels-last order of half a group, since two passes are faster beyond.
  const bool fits_both = p.channels_last ? s.taps <= kTapGroup / 2
                                         : s.taps <= kTapGroup && s.dilation == 1 &&
          is_aligned(pass.grad_input.const_data_ptr(), 16) &&
          is_aligned(pass.input.const_data_ptr(), 16);
  if (s.taps == 0 || (pass.grad_input.defined() && !fits_both) ||
      !has_vectors(p, pass.grad_input) || !has_vectors(p, pass.grad_output) ||
      !has_vectors(p, pass.input)) {
    return false;
  }
  const Operand none;
  return run(
      {pass.grad_input,
       pass.grad_output,
       pass.weight,
       none,
       pass.input,
       pass.grad_weight,
       pass.grad_bias},
      reversed(s, true),
      p);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
