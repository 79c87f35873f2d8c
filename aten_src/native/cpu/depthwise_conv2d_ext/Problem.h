// Which taps of a depthwise convolution meet which positions, along one dimension.
//
// Forward and grad_input are the same kind of sum, result[r] = sum over k of weight[k] * source[s]:
// forward has s = r * stride + k * dilation - padding, grad_input s = (r + padding - k * dilation) /
// stride where that divides. With any stride and dilation, both fall apart into phases of results
// and groups of taps within which the sum is a dense correlation: result q of a phase and tap i of
// a group read source position q + i, in units of one step. The kernels are written for that form
// alone, so that a row of the source that is in a register serves as many results as it has taps.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace at::native {
inline namespace CPU_CAPABILITY {

using Params = DepthwiseConv2dExtParams;

enum class Direction { kForward, kGradInput };

// The same call with height and width exchanged.
inline Params transposed(Params p) {
  std::swap(p.input_height, p.input_width);
  std::swap(p.output_height, p.output_width);
  std::swap(p.kernel_height, p.kernel_width);
  std::swap(p.stride_height, p.stride_width);
  std::swap(p.padding_height, p.padding_width);
  std::swap(p.dilation_height, p.dilation_width);
  return p;
}

// Images and windows of one column lie in memory as those of one row do, whose neighbours are lanes or tiles.
inline Params as_rows(const Params& p) {
  const bool is_column = p.input_width == 1 && p.output_width == 1 && p.kernel_width == 1;
  return is_column && p.padding_width == 0 ? transposed(p) : p;
}

// A sum of that kind: of a forward the result is the output and the source the input, of grad_input the
// result is grad_input and the source grad_output, without a bias.
struct Pass {
  const TensorBase& result;
  const TensorBase& source;
  const TensorBase& weight;
  const TensorBase& bias; // may be undefined
  const Params& params;
  Direction direction;
};

// The gradients of weight and bias, of which one may be undefined.
struct GradWeightPass {
  const TensorBase& grad_weight;
  const TensorBase& grad_bias;
  const TensorBase& grad_output;
  const TensorBase& input;
  const Params& params;
};

} // namespace CPU_CAPABILITY

namespace {

// The quotient rounded down and what is left of it, for a positive divisor.
inline int64_t floor_div(int64_t value, int64_t divisor) {
  return value >= 0 ? value / divisor : -((-value + divisor - 1) / divisor);
}
inline int64_t floor_mod(int64_t value, int64_t divisor) {
  return value - floor_div(value, divisor) * divisor;
}
inline int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
inline int64_t round_up(int64_t value, int64_t unit) {
  return ceil_div(value, unit) * unit;
}

struct Range {
  int64_t begin;
  int64_t end;
  int64_t size() const {
    return end - begin;
  }
};

// Tap i of the group is tap first + i * step of the kernel; result q of the phase meets it at
// source position source + (q + i) * source_step.
struct TapGroup {
  int64_t first;
  int64_t step;
  int64_t count; // may be 0
  int64_t source;
};

struct Dimension {
  Direction direction;
  int64_t results; // positions of the output (forward) or of grad_input
  int64_t sources;
  int64_t kernel;
  int64_t stride;
  int64_t padding;
  int64_t dilation;

  // Taps that are this far apart meet positions a whole number of strides apart.
  int64_t tap_step() const {
    return stride / std::gcd(stride, dilation);
  }
  // Result q of phase e is e + q * result_step().
  int64_t result_step() const {
    return direction == Direction::kForward ? dilation / std::gcd(stride, dilation)
                                            : tap_step() * dilation;
  }
  int64_t phases() const {
    return std::min(result_step(), results);
  }
  int64_t results_of(int64_t phase) const {
    return ceil_div(results - phase, result_step());
  }
  int64_t source_step() const {
    return direction == Direction::kForward ? tap_step() * dilation
                                            : dilation / std::gcd(stride, dilation);
  }
  // The lowest source position that result `first` or a later one meets; it may be outside.
  int64_t first_source(int64_t first) const {
    return direction == Direction::kForward
        ? first * stride - padding
        : floor_div(first + padding - (kernel - 1) * dilation, stride);
  }
  // The q + i for which source + (q + i) * source_step() is inside.
  Range inside(int64_t source) const {
    return {-floor_div(source, source_step()), -floor_div(source - sources, source_step())};
  }
  // Source positions between the first and the last that `count` neighbouring results meet.
  int64_t source_reach(int64_t count) const {
    const int64_t window = (kernel - 1) * dilation;
    return direction == Direction::kForward ? (count - 1) * stride + window + 1
                                            : (count - 1 + window) / stride + 2;
  }
  int64_t groups() const {
    return std::min(tap_step(), kernel);
  }
  // Of a group.
  int64_t most_taps() const {
    return ceil_div(kernel, tap_step());
  }
  TapGroup group(int64_t phase, int64_t index) const {
    const int64_t step = tap_step();
    const int64_t count = ceil_div(kernel - index, step);
    if (direction == Direction::kForward) {
      return {index, step, count, phase * stride + index * dilation - padding};
    }
    const int64_t distance = phase + padding - index * dilation;
    if (floor_mod(distance, stride) != 0) {
      return {0, 0, 0, 0};
    }
    // Later taps read earlier sources: counted from the last one.
    return {
        index + (count - 1) * step,
        -step,
        count,
        floor_div(distance, stride) - (count - 1) * source_step()};
  }
};

// The groups of all phases of a dimension, without taps that no result meets inside the image, of which windows
// larger than it have most. Found once for a pass: they take a dozen divisions each, as long as several tiles.
class TapGroups {
 public:
  explicit TapGroups(const Dimension& dimension) {
    begin_.push_back(0);
    for (const auto phase : c10::irange(dimension.phases())) {
      for (const auto g : c10::irange(dimension.groups())) {
        TapGroup group = dimension.group(phase, g);
        const Range inside = dimension.inside(group.source);
        const int64_t first = std::max<int64_t>(inside.begin - dimension.results_of(phase) + 1, 0);
        group.count = std::min(group.count, inside.end) - first;
        group.first += first * group.step;
        group.source += first * dimension.source_step();
        if (group.count > 0) {
          groups_.push_back(group);
        }
      }
      begin_.push_back(static_cast<int64_t>(groups_.size()));
    }
  }

  ArrayRef<TapGroup> of_phase(int64_t phase) const {
    return ArrayRef<TapGroup>(groups_).slice(
        begin_[phase], static_cast<size_t>(begin_[phase + 1] - begin_[phase]));
  }

 private:
  c10::SmallVector<TapGroup, 4> groups_;
  c10::SmallVector<int64_t, 4> begin_; // of each phase's
};

inline Dimension width_of(const Params& p, Direction direction) {
  const bool forward = direction == Direction::kForward;
  return {
      direction,
      forward ? p.output_width : p.input_width,
      forward ? p.input_width : p.output_width,
      p.kernel_width,
      p.stride_width,
      p.padding_width,
      p.dilation_width};
}
inline Dimension height_of(const Params& p, Direction direction) {
  return width_of(transposed(p), direction);
}

// The input rows inside the image that some output rows meet.
inline Range input_rows(const Params& p, Range rows) {
  const int64_t top = rows.begin * p.stride_height - p.padding_height;
  const int64_t window = (p.kernel_height - 1) * p.dilation_height + 1;
  const int64_t end = (rows.end - 1) * p.stride_height - p.padding_height + window;
  const int64_t first = std::clamp<int64_t>(top, 0, p.input_height);
  return {first, std::clamp<int64_t>(end, first, p.input_height)};
}

// Position by position, for operands that are not finite: kernels that multiply the zeros beside an image make
// a NaN of zero times infinity. These loops visit positions inside the image alone.

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

// One filter's gradient, in either memory order.
template <typename scalar_t>
void exact_grad_weight(
    scalar_t* grad_weight,
    const scalar_t* grad_output,
    const scalar_t* input,
    int64_t filter,
    const Params& p) {
  std::vector<double> sums(p.kernel_size(), 0);
  const auto value_at = [&](const scalar_t* tensor, int64_t image, int64_t pixel, bool of_input) {
    const int64_t channels = of_input ? p.channels : p.output_channels();
    const int64_t channel = of_input ? filter / p.multiplier : filter;
    const int64_t pixels =
        of_input ? p.input_height * p.input_width : p.output_height * p.output_width;
    const int64_t place = p.channels_last ? pixel * channels + channel : channel * pixels + pixel;
    return static_cast<double>(tensor[image * channels * pixels + place]);
  };
  for (const auto n : c10::irange(p.batch)) {
    for_each_tap(p, [&](int64_t oh, int64_t ow, int64_t ih, int64_t iw, int64_t tap) {
      sums[tap] += value_at(grad_output, n, oh * p.output_width + ow, false) *
          value_at(input, n, ih * p.input_width + iw, true);
    });
  }
  for (const auto tap : c10::irange(p.kernel_size())) {
    grad_weight[tap] = static_cast<scalar_t>(sums[tap]);
  }
}

} // namespace
} // namespace at::native
