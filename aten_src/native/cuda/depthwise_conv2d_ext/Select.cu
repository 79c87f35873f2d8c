// CUDA entries of depthwise_conv2d_ext: which of the kernels takes a call. What the specialised ones do not,
// double, other strides and windows, sizes beyond 32 bits, is for those of Generic*.cu.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <array>
#include <memory>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>
#endif

namespace at::native {

namespace {

namespace fast = depthwise_conv2d_ext_cuda;
using Params = DepthwiseConv2dExtParams;
using fast::BackwardEntry;
using fast::BackwardPass;
using fast::ForwardEntry;
using fast::ForwardPass;
using fast::GradInputEntry;
using fast::GradWeightEntry;
using fast::Operand;
using fast::Type;

TensorOptions options_of(Type type) {
  return at::device(at::Device(kCUDA, fast::device().index))
      .dtype(
          type == Type::kDouble      ? kDouble
              : type == Type::kHalf  ? kHalf
              : type == Type::kFloat ? kFloat
                                     : kBFloat16);
}

Tensor as_tensor(const Operand& operand, bool channels_last) {
  const auto& sizes = operand.sizes();
  const int64_t plane = sizes[2] * sizes[3];
  const auto strides = channels_last
      ? std::array<int64_t, 4>{sizes[1] * plane, 1, sizes[1] * sizes[3], sizes[1]}
      : std::array<int64_t, 4>{sizes[1] * plane, plane, sizes[3], 1};
  return at::from_blob(operand.mutable_data_ptr(), sizes, strides, options_of(operand.type()));
}

// The kernels, in the order in which they are asked: the first that takes a call has it. So those
// of few shapes stand before those of many, which would take theirs as well and be slower.
constexpr ForwardEntry* kForward[] = {
    // In plane order at stride 1.
    fast::columns_forward,
    fast::strips_forward,
    fast::flat_planes_forward,
    fast::batch_march_forward,
    fast::batch_forward,
    // Those at stride 2 among them.
    fast::bands_forward,
    fast::lanes_strided_forward,
    fast::strips_strided_forward,
    fast::patches_forward,
    // In channels-last order.
    fast::few_pixels_forward,
    fast::pixel_batch_forward,
    fast::boxes_forward,
    fast::boxes_strided_forward,
    fast::pixel_rows_forward,
    // In either order, whatever is left of windows of fixed sizes.
    fast::march_forward,
    // Large windows in plane order.
    fast::lanes_forward,
    fast::large_forward,
    // All others.
    fast::generic_forward,
};

// At stride 2, of whichever gradients are wanted.
constexpr BackwardEntry* kStrided[] = {
    fast::lanes_strided_backward,
    fast::strips_strided_backward,
    fast::boxes_strided_backward,
};

// Of few elements at stride 1, with or without grad_input. They stand before the kernels of more elements,
// which take some of their calls too.
constexpr BackwardEntry* kFew[] = {
    fast::few_pixels_backward,
};

bool grad_input_by_pixel_batch(const BackwardPass& pass, const Params& p);

// All gradients in one pass over the tensors, but for the first two.
constexpr BackwardEntry* kAllGradients[] = {
    grad_input_by_pixel_batch,
    fast::boxes_backward,
    fast::pixel_rows_backward,
    fast::strips_backward,
    fast::flat_planes_backward,
    fast::batch_march_backward,
    fast::batch_backward,
    fast::patches_backward,
};

bool grad_input_apart(const ForwardPass& pass, const Params& p);

// grad_input in a pass of its own.
constexpr GradInputEntry* kGradInput[] = {
    fast::strips_grad_input,
    fast::flat_planes_grad_input,
    fast::batch_march_grad_input,
    fast::batch_grad_input,
    fast::few_pixels_grad_input,
    fast::pixel_batch_grad_input,
    fast::pixel_rows_grad_input,
    fast::bands_grad_input,
    fast::patches_grad_input,
    fast::boxes_grad_input,
    fast::march_grad_input,
    fast::lanes_grad_input,
    fast::large_grad_input,
    grad_input_apart,
    fast::generic_grad_input,
};

// The gradients of weight and bias in a pass of their own, some by the kernels of all gradients.
constexpr GradWeightEntry* kGradWeight[] = {
    fast::pixel_batch_grad_weight,
    fast::boxes_backward,
    fast::pixel_rows_backward,
    fast::strips_backward,
    fast::flat_planes_backward,
    fast::batch_march_backward,
    fast::batch_backward,
    fast::bands_grad_weight,
    fast::lanes_grad_weight,
    fast::patches_backward,
    fast::march_grad_weight,
    fast::large_grad_weight,
    fast::generic_grad_weight,
};

// Whether one of the entries took the call.
template <typename Entry, size_t kEntries, typename Pass>
bool takes(Entry* const (&entries)[kEntries], const Pass& pass, const Params& p) {
  return std::any_of(entries, entries + kEntries, [&](Entry* entry) { return entry(pass, p); });
}

void forward_in_order(const ForwardPass& pass, const Params& p) {
  takes(kForward, pass, p);
}

void backward(const BackwardPass& pass, const Params& p);

ForwardPass of_input(const BackwardPass& pass) {
  static const Operand none;
  return {pass.grad_input, pass.grad_output, pass.weight, none};
}

BackwardPass of_weight(const BackwardPass& pass) {
  static const Operand none;
  return {none, pass.grad_weight, pass.grad_bias, pass.grad_output, pass.input, pass.weight};
}

// All gradients in two passes on the tensor cores, where that is faster than one by boxes.
bool grad_input_by_pixel_batch(const BackwardPass& pass, const Params& p) {
  // Microseconds in half by boxes and so: 192@28 k7 of 8 images 24.4, 24.5, of 64 81, 43; 768@7 k7 of 8
  // images 18.3, 20.8, of 64 31, 25.
  constexpr int64_t kLeastElements = 1024 * 1024;
  // 96@56 k5 of 16 images 26.2, 26.8, of 64 70, 60; 1152@7 k5 of 128 39, 43. Of fewer images the weight's
  // gradient is by boxes: 96@56 k7 of four 24.7, 27.5.
  constexpr int64_t kLeastElsewhere = 8 * kLeastElements;
  constexpr int64_t kLeastImages = 8;
  const bool batched = p.kernel_height > 5 && p.batch >= kLeastImages;
  const int64_t least = batched ? kLeastElements : kLeastElsewhere;
  return pass.grad_input.numel() >= least && fast::pixel_batch_grad_input(of_input(pass), p) &&
      takes(kGradWeight, of_weight(pass), p);
}

// One pass for all that is wanted if there is a kernel for that, else grad_input and the others apart.
void backward_in_order(const BackwardPass& pass, const Params& p) {
  const bool data = pass.grad_input.defined();
  const bool asks_weight = pass.asks_weight();
  if (takes(kStrided, pass, p) || (asks_weight && takes(kFew, pass, p)) ||
      fast::columns_backward(pass, p) || (data && asks_weight && takes(kAllGradients, pass, p))) {
    return;
  }
  if (data) {
    takes(kGradInput, of_input(pass), p);
  }
  if (asks_weight) {
    takes(kGradWeight, of_weight(pass), p);
  }
}

// Whether there are kernels for windows of this very size, stride and dilation.
bool has_window(const Params& p) {
  return fast::with_window(p, [](auto) { return true; });
}

bool has_unit_strides(const Params& p) {
  return p.stride_height == 1 && p.stride_width == 1;
}

bool has_unit_dilations(const Params& p) {
  return p.dilation_height == 1 && p.dilation_width == 1;
}

bool has_unit_steps(const Params& p) {
  return has_unit_strides(p) && has_unit_dilations(p);
}

// Several outputs of a channel, as if each were of a channel of its own; what reaches the channel is then
// added up. It moves more memory than the generic kernel, and in plane order pays only where other kernels
// take the window (64 images of 32@56 with two outputs, 3 x 3 at stride 2 55 us and 67, but 2 x 3 119 and
// 75, 9 x 9 at stride 2 232 and 186) and have more than a few taps (4 x 4 272 and 140). In 16 bit what is
// added up would be rounded first.
bool grad_input_apart(const ForwardPass& pass, const Params& p) {
  constexpr int64_t kLeastElements = 1 << 16; // with fewer, three kernels are no faster than one
  constexpr int64_t kFewTaps = 29; // up to which the generic kernel has them
  const bool large = has_unit_steps(p) && p.kernel_size() > kFewTaps;
  if (p.multiplier == 1 || pass.dst.type() != Type::kFloat || pass.dst.numel() < kLeastElements ||
      (!p.channels_last && !has_window(p) && !large)) {
    return false;
  }
  Params apart = p;
  apart.channels = p.output_channels();
  apart.multiplier = 1;
  const Operand each =
      fast::empty({p.batch, apart.channels, p.input_height, p.input_width}, pass.dst.type());
  const Operand none;
  const Operand& input = each; // which is not read
  backward({each, none, none, pass.src, input, pass.weight}, apart);
  Tensor sum = as_tensor(pass.dst, p.channels_last);
  at::sum_out(
      sum,
      as_tensor(each, p.channels_last)
          .view({p.batch, p.channels, p.multiplier, p.input_height, p.input_width}),
      {2});
  return true;
}

// Calls in channels-last order whose kernels are in plane order, between copies: large windows, and several
// outputs of a channel, of which only boxes and rows of pixels take some in that order. What those kernels refuse is
// not worth the copies. `weight`: of the weight's gradient, which is by planes wherever the others are.
bool by_planes(const Params& p, Type type, bool weight) {
  constexpr int64_t kMostStride = 2; // of bands
  // Taps from which large windows are worth the copies: the kernels that gather need none (64 images of 64@56
  // in float, forward by 4 x 4 278 us with the copies and 84, 6 x 8 283 and 199, 7 x 9 359 and 215). In 16
  // bit kernels on tensor cores take most of odd size (7 x 9 59 and 220), and many of the others that are
  // larger (2 x 31 63 and 258, but 6 x 8 244 and 196).
  constexpr int64_t kLeastTaps = 64;
  constexpr int64_t kLeastTapsOf16Bits = 56;
  constexpr int64_t kLeastOddTapsOf16Bits = 16;
  // The weight's gradient of smaller planes (16 images of 128@28 by 4 x 4 54 and 45, 4 x 6 53 and 59, 6 x 8
  // 54 and 102, but 64 of 64@56 by 6 x 8 405 and 232).
  constexpr int64_t kSmallPlane = 40 * 40;
  constexpr int64_t kLeastTapsOfWeight = 24;
  const bool has_16_bits = fast::is_16_bit(type);
  const int64_t least_taps = has_16_bits && fast::keeps_size(p)   ? kLeastOddTapsOf16Bits
      : weight && p.output_height * p.output_width <= kSmallPlane ? kLeastTapsOfWeight
      : has_16_bits                                               ? kLeastTapsOf16Bits
                                                                  : kLeastTaps;
  const bool large = type != Type::kDouble && !has_window(p) && has_unit_steps(p) &&
      p.kernel_size() >= least_taps && p.output_channels() <= fast::kMostGridRows;
  const bool bands = has_16_bits && p.kernel_height >= fast::kLargeWindow &&
      p.stride_width <= kMostStride && (has_unit_strides(p) || has_unit_dilations(p));
  return p.channels_last && fast::march_fits_32_bits(p) && (p.multiplier > 1 || large || bands);
}

Params planes_of(const Params& p) {
  Params planes = p;
  planes.channels_last = false;
  return planes;
}

// In plane order what is in channels-last order.
Operand planes_like(const Operand& like) {
  return fast::empty(like.sizes(), like.type());
}

Operand in_planes(const Operand& pixels) {
  const Operand planes = planes_like(pixels);
  if (pixels.numel() > 0) {
    fast::transpose(
        planes, pixels, pixels.size(2) * pixels.size(3), pixels.size(1), pixels.size(0));
  }
  return planes;
}

void copy_planes(const Operand& pixels, const Operand& planes) {
  if (pixels.numel() > 0) {
    fast::transpose(
        pixels, planes, pixels.size(1), pixels.size(2) * pixels.size(3), pixels.size(0));
  }
}

void forward(const ForwardPass& pass, const Params& p) {
  if (!by_planes(p, pass.src.type(), false)) {
    forward_in_order(pass, p);
  } else if (!fast::boxes_forward(pass, p) && !fast::pixel_rows_forward(pass, p)) {
    const Operand dst = planes_like(pass.dst);
    const Operand src = in_planes(pass.src);
    forward_in_order({dst, src, pass.weight, pass.bias}, planes_of(p));
    copy_planes(pass.dst, dst);
  }
}

void backward(const BackwardPass& pass, const Params& p) {
  const auto type = pass.input.type();
  const bool input_by_planes = pass.grad_input.defined() && by_planes(p, type, false);
  const bool weight_by_planes = pass.asks_weight() && by_planes(p, type, true);
  if (!input_by_planes && !weight_by_planes) {
    backward_in_order(pass, p);
    return;
  }
  // What boxes take of several outputs of a channel, in one pass.
  if (pass.asks_weight() && p.multiplier > 1 && fast::boxes_backward(pass, p)) {
    return;
  }
  const Operand none;
  if (pass.grad_input.defined() && !input_by_planes) {
    takes(kGradInput, of_input(pass), p);
  }
  const bool wants_input = input_by_planes && !fast::boxes_grad_input(of_input(pass), p) &&
      !fast::pixel_rows_grad_input(of_input(pass), p) && !grad_input_apart(of_input(pass), p);
  const bool wants_weight = weight_by_planes && !fast::pixel_rows_backward(of_weight(pass), p);
  if (!wants_input && !wants_weight) {
    return;
  }
  const Operand written = wants_input ? planes_like(pass.grad_input) : none;
  const Operand grads = in_planes(pass.grad_output);
  // Of grad_input alone the input is not read.
  const Operand inputs = wants_weight ? in_planes(pass.input) : written;
  backward_in_order(
      {written,
       wants_weight ? pass.grad_weight : none,
       wants_weight ? pass.grad_bias : none,
       grads,
       inputs,
       pass.weight},
      planes_of(p));
  if (wants_input) {
    copy_planes(pass.grad_input, written);
  }
}

Operand operand(const TensorBase& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  const auto type = tensor.scalar_type();
  std::array<int64_t, 4> sizes{1, 1, 1, 1};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), sizes.begin());
  return {
      tensor.data_ptr(),
      type == kDouble      ? Type::kDouble
          : type == kHalf  ? Type::kHalf
          : type == kFloat ? Type::kFloat
                           : Type::kBFloat16,
      sizes};
}

void forward_cuda(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& p) {
  const Operand dst = operand(output);
  const Operand src = operand(input);
  const Operand taps = operand(weight);
  const Operand biases = operand(bias);
  forward({dst, src, taps, biases}, p);
}

void backward_cuda(
    const TensorBase& grad_input,
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const TensorBase& weight,
    const Params& p) {
  const std::array<Operand, 6> of{
      operand(grad_input),
      operand(grad_weight),
      operand(grad_bias),
      operand(grad_output),
      operand(input),
      operand(weight)};
  backward({of[0], of[1], of[2], of[3], of[4], of[5]}, p);
}

} // namespace

namespace depthwise_conv2d_ext_cuda {

Operand empty(const std::array<int64_t, 4>& sizes, Type type) {
  auto tensor = std::make_shared<Tensor>(at::empty(sizes, options_of(type)));
  return {tensor->data_ptr(), type, sizes, tensor};
}

} // namespace depthwise_conv2d_ext_cuda

REGISTER_DISPATCH(depthwise_conv2d_ext_stub, &forward_cuda)
REGISTER_DISPATCH(depthwise_conv2d_ext_backward_stub, &backward_cuda)

} // namespace at::native
