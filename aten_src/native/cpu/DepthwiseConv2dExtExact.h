// Depthwise convolution of one plane tap by tap, for operands that are not finite.
//
// The fast kernels multiply the zeros beside an image too, and zero times infinity is NaN. These
// loops visit positions inside the image alone, and are only used where a NaN is at stake.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGeometry.h>
#include <c10/util/irange.h>
#include <vector>

namespace at::native {
namespace {

// Calls visit(oh, ow, ih, iw, tap) for all pairs of an output and an input position of a plane.
template <typename Visit>
void for_each_tap(const Params& p, const Visit& visit) {
  for (const auto oh : c10::irange(p.output_height)) {
    for (const auto kh : c10::irange(p.kernel_height)) {
      const int64_t ih = oh * p.stride_height - p.padding_height + kh * p.dilation_height;
      if (ih < 0 || ih >= p.input_height) {
        continue;
      }
      for (const auto ow : c10::irange(p.output_width)) {
        for (const auto kw : c10::irange(p.kernel_width)) {
          const int64_t iw = ow * p.stride_width - p.padding_width + kw * p.dilation_width;
          if (iw >= 0 && iw < p.input_width) {
            visit(oh, ow, ih, iw, kh * p.kernel_width + kw);
          }
        }
      }
    }
  }
}

// A plane of the output from one of the input, or of grad_input from `multiplier` planes of
// grad_output.
template <typename scalar_t>
void exact_plane(
    scalar_t* result,
    const scalar_t* source,
    const scalar_t* filters,
    const scalar_t* bias,
    const Params& p,
    Direction direction) {
  using acc_t = opmath_type<scalar_t>;
  const int64_t output_size = p.output_height * p.output_width;
  const bool forward = direction == Direction::kForward;
  std::vector<acc_t> sums(
      forward ? output_size : p.input_height * p.input_width, bias ? acc_t(*bias) : acc_t(0));
  for (const auto j : c10::irange(forward ? 1 : p.multiplier)) {
    for_each_tap(p, [&](int64_t oh, int64_t ow, int64_t ih, int64_t iw, int64_t tap) {
      const int64_t output = oh * p.output_width + ow;
      const int64_t input = ih * p.input_width + iw;
      const acc_t weight = acc_t(filters[j * p.kernel_size() + tap]);
      if (forward) {
        sums[output] += acc_t(source[input]) * weight;
      } else {
        sums[input] += acc_t(source[j * output_size + output]) * weight;
      }
    });
  }
  std::copy(sums.begin(), sums.end(), result);
}

// The pixels of one channel in either memory order.
template <typename scalar_t>
struct ChannelView {
  const scalar_t* first;
  int64_t image_step;
  int64_t pixel_step;
};

// One filter's gradient.
template <typename scalar_t>
void exact_grad_weight(
    scalar_t* grad_weight,
    const ChannelView<scalar_t>& grad_output,
    const ChannelView<scalar_t>& input,
    const Params& p) {
  std::vector<double> sums(p.kernel_size(), 0);
  for (const auto n : c10::irange(p.batch)) {
    for_each_tap(p, [&](int64_t oh, int64_t ow, int64_t ih, int64_t iw, int64_t tap) {
      const int64_t output = (oh * p.output_width + ow) * grad_output.pixel_step;
      const int64_t pixel = (ih * p.input_width + iw) * input.pixel_step;
      sums[tap] += static_cast<double>(grad_output.first[n * grad_output.image_step + output]) *
          static_cast<double>(input.first[n * input.image_step + pixel]);
    });
  }
  for (const auto tap : c10::irange(p.kernel_size())) {
    grad_weight[tap] = static_cast<scalar_t>(sums[tap]);
  }
}

} // namespace
} // namespace at::native
