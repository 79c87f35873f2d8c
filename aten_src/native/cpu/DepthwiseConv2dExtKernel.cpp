// CPU kernels of depthwise_conv2d_ext, compiled once for each CPU capability.
//
// Each output channel is a convolution of its own plane, so a tap (kh, kw) adds a shifted, scaled
// copy of the input to the output. Planes ([N, C, H, W]) are worked on row by row with vectors
// along W; channels-last tensors pixel by pixel with vectors along C. Only positions inside the
// input are visited: padding is never multiplied, so it cannot turn a NaN or infinity of the other
// operand into a NaN of the result.
//
// 16-bit values are converted to float before any arithmetic and rounded once at the end. The taps
// of each kernel row are summed by themselves first, which keeps the error of large kernels small
// (k = 7, fp32: 1.4e-7 of the largest result instead of 3.0e-7). The sums over a whole tensor (weight and bias gradients) are taken row by row in the arithmetic type and
// then in double. Every sum is computed by one thread in an order that does not depend on the
// number of threads.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <c10/util/irange.h>
#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

namespace at::native {

namespace {

using Params = DepthwiseConv2dExtParams;
using at::vec::Vectorized;

// Multiply-adds that are worth handing to another thread.
constexpr int64_t kGrainOperations = 32768;

int64_t grain_of(int64_t operations_per_item) {
  return std::max<int64_t>(1, kGrainOperations / std::max<int64_t>(1, operations_per_item));
}

struct Range {
  int64_t begin;
  int64_t end;
  int64_t size() const {
    return end - begin;
  }
};

// The i in [0, count) with 0 <= offset + i * step < size: the taps of one output position that
// read inside the input, or the output positions at which one tap does.
Range inside(int64_t offset, int64_t step, int64_t size, int64_t count) {
  const int64_t first = offset >= 0 ? 0 : (-offset + step - 1) / step;
  const int64_t last = size - 1 - offset;
  const int64_t end = last < 0 ? 0 : std::min(count, last / step + 1);
  return {std::min(first, end), end};
}

// For each horizontal tap, the output columns at which it reads inside the input.
std::vector<Range> columns_of_taps(const Params& p) {
  std::vector<Range> columns(p.kernel_width);
  for (const auto kw : c10::irange(p.kernel_width)) {
    columns[kw] = inside(
        kw * p.dilation_width - p.padding_width, p.stride_width, p.input_width, p.output_width);
  }
  return columns;
}

template <typename scalar_t>
const opmath_type<scalar_t>* as_opmath(
    const scalar_t* source,
    int64_t count,
    std::vector<opmath_type<scalar_t>>& buffer) {
  if constexpr (std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    return source;
  } else {
    buffer.resize(count);
    vec::convert(source, buffer.data(), count);
    return buffer.data();
  }
}

// Where to compute results: in place, or in a buffer that store_result rounds.
template <typename scalar_t>
opmath_type<scalar_t>* result_area(
    scalar_t* target,
    int64_t count,
    std::vector<opmath_type<scalar_t>>& buffer) {
  if constexpr (std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    return target;
  } else {
    buffer.resize(count);
    return buffer.data();
  }
}

template <typename scalar_t>
void store_result(scalar_t* target, const opmath_type<scalar_t>* computed, int64_t count) {
  if constexpr (!std::is_same_v<scalar_t, opmath_type<scalar_t>>) {
    vec::convert(computed, target, count);
  }
}

// target[i * target_step] += weight * source[i * source_step]; one of the steps is 1.
template <typename acc_t>
void add_scaled(
    acc_t* target,
    int64_t target_step,
    const acc_t* source,
    int64_t source_step,
    acc_t weight,
    int64_t count) {
  if (target_step != 1 || source_step != 1) {
    for (const auto i : c10::irange(count)) {
      target[i * target_step] += weight * source[i * source_step];
    }
    return;
  }
  using Vec = Vectorized<acc_t>;
  const Vec scale(weight);
  int64_t i = 0;
  for (; i + Vec::size() <= count; i += Vec::size()) {
    vec::fmadd(Vec::loadu(source + i), scale, Vec::loadu(target + i)).store(target + i);
  }
  if (i < count) {
    const int64_t rest = count - i;
    vec::fmadd(Vec::loadu(source + i, rest), scale, Vec::loadu(target + i, rest))
        .store(target + i, rest);
  }
}

// By halves, so that the error does not grow with the number of lanes.
template <typename acc_t>
acc_t sum_lanes(const Vectorized<acc_t>& lanes) {
  std::array<acc_t, Vectorized<acc_t>::size()> values;
  lanes.store(values.data());
  for (size_t half = values.size() / 2; half > 0; half /= 2) {
    for (const auto i : c10::irange(half)) {
      values[i] += values[i + half];
    }
  }
  return values[0];
}

template <typename acc_t>
acc_t dot(const acc_t* left, const acc_t* right, int64_t right_step, int64_t count) {
  if (right_step != 1) {
    acc_t sum = 0;
    for (const auto i : c10::irange(count)) {
      sum += left[i] * right[i * right_step];
    }
    return sum;
  }
  using Vec = Vectorized<acc_t>;
  Vec lanes(acc_t(0));
  int64_t i = 0;
  for (; i + Vec::size() <= count; i += Vec::size()) {
    lanes = vec::fmadd(Vec::loadu(left + i), Vec::loadu(right + i), lanes);
  }
  if (i < count) {
    lanes = vec::fmadd(Vec::loadu(left + i, count - i), Vec::loadu(right + i, count - i), lanes);
  }
  return sum_lanes(lanes);
}

template <typename acc_t>
acc_t sum(const acc_t* values, int64_t count) {
  using Vec = Vectorized<acc_t>;
  Vec lanes(acc_t(0));
  int64_t i = 0;
  for (; i + Vec::size() <= count; i += Vec::size()) {
    lanes = lanes + Vec::loadu(values + i);
  }
  if (i < count) {
    lanes = lanes + Vec::loadu(values + i, count - i);
  }
  return sum_lanes(lanes);
}

// A tap and the position along one dimension that it connects the current one with.
struct Connection {
  int64_t tap;
  int64_t position;
};

// The taps through which input position `position` reaches an output, and which output.
void connections_to_outputs(
    std::vector<Connection>& connections,
    int64_t position,
    int64_t kernel,
    int64_t stride,
    int64_t padding,
    int64_t dilation,
    int64_t output) {
  connections.clear();
  for (const auto tap : c10::irange(kernel)) {
    const int64_t distance = position + padding - tap * dilation;
    if (distance >= 0 && distance % stride == 0 && distance / stride < output) {
      connections.push_back({tap, distance / stride});
    }
  }
}

template <typename scalar_t>
const scalar_t* pointer_or_null(const TensorBase& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<scalar_t>() : nullptr;
}

// --- planes: [N, C, H, W] ----------------------------------------------------------------------

// A task is one input plane and the `multiplier` output planes made from it.
template <typename scalar_t>
void forward_planes(
    const TensorBase& output_,
    const TensorBase& input_,
    const TensorBase& weight_,
    const TensorBase& bias_,
    const Params& p) {
  using acc_t = opmath_type<scalar_t>;
  auto* const output = output_.mutable_data_ptr<scalar_t>();
  const auto* const input = input_.const_data_ptr<scalar_t>();
  const auto* const weight = weight_.const_data_ptr<scalar_t>();
  const auto* const bias = pointer_or_null<scalar_t>(bias_);
  const int64_t input_plane = p.input_height * p.input_width;
  const int64_t output_plane = p.output_height * p.output_width;
  const auto columns = columns_of_taps(p);
  const auto grain = grain_of(p.multiplier * output_plane * p.kernel_size());

  at::parallel_for(0, p.batch * p.channels, grain, [&](int64_t begin, int64_t end) {
    std::vector<acc_t> plane_buffer;
    std::vector<acc_t> row_buffer;
    std::vector<acc_t> partial(p.output_width);
    for (const auto task : c10::irange(begin, end)) {
      const acc_t* plane = as_opmath(input + task * input_plane, input_plane, plane_buffer);
      for (const auto j : c10::irange(p.multiplier)) {
        const int64_t channel = task % p.channels * p.multiplier + j;
        const scalar_t* taps = weight + channel * p.kernel_size();
        for (const auto oh : c10::irange(p.output_height)) {
          scalar_t* target =
              output + (task * p.multiplier + j) * output_plane + oh * p.output_width;
          acc_t* row = result_area(target, p.output_width, row_buffer);
          std::fill_n(row, p.output_width, bias ? acc_t(bias[channel]) : acc_t(0));
          const int64_t top = oh * p.stride_height - p.padding_height;
          const auto rows = inside(top, p.dilation_height, p.input_height, p.kernel_height);
          for (const auto kh : c10::irange(rows.begin, rows.end)) {
            const acc_t* source = plane + (top + kh * p.dilation_height) * p.input_width;
            std::fill(partial.begin(), partial.end(), acc_t(0));
            for (const auto kw : c10::irange(p.kernel_width)) {
              const auto [first, last] = columns[kw];
              const int64_t left = first * p.stride_width - p.padding_width + kw * p.dilation_width;
              add_scaled(
                  partial.data() + first,
                  1,
                  source + left,
                  p.stride_width,
                  acc_t(taps[kh * p.kernel_width + kw]),
                  last - first);
            }
            add_scaled(row, 1, partial.data(), 1, acc_t(1), p.output_width);
          }
          store_result(target, row, p.output_width);
        }
      }
    }
  });
}

// A task is one plane of grad_input, worked on row by row: each row gathers the output rows that
// it reached.
template <typename scalar_t>
void grad_input_planes(
    const TensorBase& grad_input_,
    const TensorBase& grad_output_,
    const TensorBase& weight_,
    const Params& p) {
  using acc_t = opmath_type<scalar_t>;
  auto* const grad_input = grad_input_.mutable_data_ptr<scalar_t>();
  const auto* const grad_output = grad_output_.const_data_ptr<scalar_t>();
  const auto* const weight = weight_.const_data_ptr<scalar_t>();
  const int64_t output_plane = p.output_height * p.output_width;
  const int64_t output_planes = p.multiplier * output_plane; // made from one input plane
  const auto columns = columns_of_taps(p);
  const auto grain = grain_of(output_planes * p.kernel_size());

  at::parallel_for(0, p.batch * p.channels, grain, [&](int64_t begin, int64_t end) {
    std::vector<acc_t> row_buffer;
    std::vector<acc_t> grad_buffer;
    std::vector<acc_t> partial(p.input_width);
    std::vector<Connection> rows;
    for (const auto task : c10::irange(begin, end)) {
      const acc_t* grads =
          as_opmath(grad_output + task * output_planes, output_planes, grad_buffer);
      const scalar_t* weights = weight + task % p.channels * p.multiplier * p.kernel_size();
      for (const auto ih : c10::irange(p.input_height)) {
        scalar_t* target = grad_input + (task * p.input_height + ih) * p.input_width;
        acc_t* row = result_area(target, p.input_width, row_buffer);
        std::fill_n(row, p.input_width, acc_t(0));
        connections_to_outputs(
            rows,
            ih,
            p.kernel_height,
            p.stride_height,
            p.padding_height,
            p.dilation_height,
            p.output_height);
        for (const auto j : c10::irange(p.multiplier)) {
          for (const auto& [kh, oh] : rows) {
            const acc_t* grad_row = grads + j * output_plane + oh * p.output_width;
            const scalar_t* taps = weights + (j * p.kernel_height + kh) * p.kernel_width;
            std::fill(partial.begin(), partial.end(), acc_t(0));
            for (const auto kw : c10::irange(p.kernel_width)) {
              const auto [first, last] = columns[kw];
              const int64_t left = first * p.stride_width - p.padding_width + kw * p.dilation_width;
              add_scaled(
                  partial.data() + left,
                  p.stride_width,
                  grad_row + first,
                  1,
                  acc_t(taps[kw]),
                  last - first);
            }
            add_scaled(row, 1, partial.data(), 1, acc_t(1), p.input_width);
          }
        }
        store_result(target, row, p.input_width);
      }
    }
  });
}

// A task is one input channel over the whole batch. grad_weight or grad_bias may be undefined.
template <typename scalar_t>
void grad_weight_planes(
    const TensorBase& grad_weight_,
    const TensorBase& grad_bias_,
    const TensorBase& grad_output_,
    const TensorBase& input_,
    const Params& p) {
  using acc_t = opmath_type<scalar_t>;
  const auto* const grad_output = grad_output_.const_data_ptr<scalar_t>();
  const auto* const input = input_.const_data_ptr<scalar_t>();
  const int64_t input_plane = p.input_height * p.input_width;
  const int64_t output_plane = p.output_height * p.output_width;
  const auto columns = columns_of_taps(p);

  at::parallel_for(0, p.channels, 1, [&](int64_t begin, int64_t end) {
    std::vector<acc_t> input_buffer;
    std::vector<acc_t> grad_buffer;
    std::vector<double> tap_sums;
    std::vector<double> bias_sums;
    for (const auto channel : c10::irange(begin, end)) {
      tap_sums.assign(p.multiplier * p.kernel_size(), 0);
      bias_sums.assign(p.multiplier, 0);
      for (const auto n : c10::irange(p.batch)) {
        const int64_t plane = n * p.channels + channel;
        const acc_t* values = grad_weight_.defined()
            ? as_opmath(input + plane * input_plane, input_plane, input_buffer)
            : nullptr;
        for (const auto j : c10::irange(p.multiplier)) {
          const acc_t* grads = as_opmath(
              grad_output + (plane * p.multiplier + j) * output_plane, output_plane, grad_buffer);
          for (const auto oh : c10::irange(p.output_height)) {
            const acc_t* grad_row = grads + oh * p.output_width;
            if (grad_bias_.defined()) {
              bias_sums[j] += sum(grad_row, p.output_width);
            }
            if (!grad_weight_.defined()) {
              continue;
            }
            const int64_t top = oh * p.stride_height - p.padding_height;
            const auto rows = inside(top, p.dilation_height, p.input_height, p.kernel_height);
            for (const auto kh : c10::irange(rows.begin, rows.end)) {
              const acc_t* row = values + (top + kh * p.dilation_height) * p.input_width;
              double* sums = tap_sums.data() + (j * p.kernel_height + kh) * p.kernel_width;
              for (const auto kw : c10::irange(p.kernel_width)) {
                const auto [first, last] = columns[kw];
                const int64_t left =
                    first * p.stride_width - p.padding_width + kw * p.dilation_width;
                sums[kw] += dot(grad_row + first, row + left, p.stride_width, last - first);
              }
            }
          }
        }
      }
      if (grad_weight_.defined()) {
        std::copy(
            tap_sums.begin(),
            tap_sums.end(),
            grad_weight_.mutable_data_ptr<scalar_t>() + channel * p.multiplier * p.kernel_size());
      }
      if (grad_bias_.defined()) {
        std::copy(
            bias_sums.begin(),
            bias_sums.end(),
            grad_bias_.mutable_data_ptr<scalar_t>() + channel * p.multiplier);
      }
    }
  });
}

// --- channels last: [N, H, W, C], multiplier 1 --------------------------------------------------

// Neighbouring channels in registers: one vector of scalar_t, in the arithmetic type.
template <typename scalar_t>
class ChannelBlock {
 public:
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int64_t kSize = Vectorized<scalar_t>::size();
  static constexpr int64_t kVectors = kSize / Vec::size();
  static_assert(kVectors * Vec::size() == kSize);

  ChannelBlock() {
    lanes_.fill(Vec(acc_t(0)));
  }

  // `count` values; the rest is zero.
  static ChannelBlock load(const scalar_t* source, int64_t count) {
    using Stored = Vectorized<scalar_t>;
    const Stored stored =
        count == kSize ? Stored::loadu(source) : Stored::loadu(source, static_cast<int>(count));
    ChannelBlock block;
    if constexpr (kVectors == 1) {
      block.lanes_[0] = stored;
    } else {
      std::tie(block.lanes_[0], block.lanes_[1]) = vec::convert_to_float<scalar_t>(stored);
    }
    return block;
  }

  // kSize values in the arithmetic type.
  static ChannelBlock load_full(const acc_t* source) {
    ChannelBlock block;
    for (const auto v : c10::irange(kVectors)) {
      block.lanes_[v] = Vec::loadu(source + v * Vec::size());
    }
    return block;
  }

  void multiply_add(const ChannelBlock& left, const ChannelBlock& right) {
    for (const auto v : c10::irange(kVectors)) {
      lanes_[v] = vec::fmadd(left.lanes_[v], right.lanes_[v], lanes_[v]);
    }
  }

  void add(const ChannelBlock& other) {
    for (const auto v : c10::irange(kVectors)) {
      lanes_[v] = lanes_[v] + other.lanes_[v];
    }
  }

  void add_to(double* sums) const {
    std::array<acc_t, kSize> values;
    for (const auto v : c10::irange(kVectors)) {
      lanes_[v].store(values.data() + v * Vec::size());
    }
    for (const auto i : c10::irange(kSize)) {
      sums[i] += values[i];
    }
  }

  void store(scalar_t* target, int64_t count) const {
    if constexpr (kVectors == 1) {
      lanes_[0].store(target, static_cast<int>(count));
    } else {
      vec::convert_from_float<scalar_t>(lanes_[0], lanes_[1])
          .store(target, static_cast<int>(count));
    }
  }

 private:
  std::array<Vec, kVectors> lanes_;
};

// [rows][columns] in the arithmetic type from [columns][rows], columns padded with zeros to whole
// blocks: the weight tap by tap (rows = taps, columns = channels).
template <typename scalar_t>
std::vector<opmath_type<scalar_t>> transpose_padded(
    const scalar_t* source,
    int64_t rows,
    int64_t columns) {
  constexpr int64_t kBlock = ChannelBlock<scalar_t>::kSize;
  const int64_t padded = (columns + kBlock - 1) / kBlock * kBlock;
  std::vector<opmath_type<scalar_t>> result(rows * padded, opmath_type<scalar_t>(0));
  for (const auto column : c10::irange(source ? columns : 0)) {
    for (const auto row : c10::irange(rows)) {
      result[row * padded + column] = opmath_type<scalar_t>(source[column * rows + row]);
    }
  }
  return result;
}

// A task is one row of the output.
template <typename scalar_t>
void forward_channels_last(
    const TensorBase& output_,
    const TensorBase& input_,
    const TensorBase& weight_,
    const TensorBase& bias_,
    const Params& p) {
  using Block = ChannelBlock<scalar_t>;
  auto* const output = output_.mutable_data_ptr<scalar_t>();
  const auto* const input = input_.const_data_ptr<scalar_t>();
  const int64_t channels = p.channels;
  const auto weight =
      transpose_padded(weight_.const_data_ptr<scalar_t>(), p.kernel_size(), channels);
  const auto bias = transpose_padded(pointer_or_null<scalar_t>(bias_), 1, channels);
  const int64_t padded = static_cast<int64_t>(bias.size());
  const auto grain = grain_of(p.output_width * channels * p.kernel_size());

  at::parallel_for(0, p.batch * p.output_height, grain, [&](int64_t begin, int64_t end) {
    for (const auto task : c10::irange(begin, end)) {
      const int64_t image = task / p.output_height * p.input_height;
      const int64_t top = task % p.output_height * p.stride_height - p.padding_height;
      const auto rows = inside(top, p.dilation_height, p.input_height, p.kernel_height);
      for (const auto ow : c10::irange(p.output_width)) {
        const int64_t left = ow * p.stride_width - p.padding_width;
        const auto columns = inside(left, p.dilation_width, p.input_width, p.kernel_width);
        scalar_t* const target = output + (task * p.output_width + ow) * channels;
        for (int64_t c = 0; c < channels; c += Block::kSize) {
          const int64_t count = std::min(Block::kSize, channels - c);
          Block sum = Block::load_full(bias.data() + c);
          for (const auto kh : c10::irange(rows.begin, rows.end)) {
            const int64_t row = (image + top + kh * p.dilation_height) * p.input_width;
            Block partial;
            for (const auto kw : c10::irange(columns.begin, columns.end)) {
              const int64_t pixel = row + left + kw * p.dilation_width;
              partial.multiply_add(
                  Block::load(input + pixel * channels + c, count),
                  Block::load_full(weight.data() + (kh * p.kernel_width + kw) * padded + c));
            }
            sum.add(partial);
          }
          sum.store(target + c, count);
        }
      }
    }
  });
}

// A task is one row of grad_input, gathered from the output positions that its pixels reach.
template <typename scalar_t>
void grad_input_channels_last(
    const TensorBase& grad_input_,
    const TensorBase& grad_output_,
    const TensorBase& weight_,
    const Params& p) {
  using Block = ChannelBlock<scalar_t>;
  auto* const grad_input = grad_input_.mutable_data_ptr<scalar_t>();
  const auto* const grad_output = grad_output_.const_data_ptr<scalar_t>();
  const int64_t channels = p.channels;
  const auto weight =
      transpose_padded(weight_.const_data_ptr<scalar_t>(), p.kernel_size(), channels);
  const int64_t padded = static_cast<int64_t>(weight.size()) / p.kernel_size();
  const auto grain = grain_of(p.input_width * channels * p.kernel_size());

  at::parallel_for(0, p.batch * p.input_height, grain, [&](int64_t begin, int64_t end) {
    std::vector<Connection> rows;
    std::vector<Connection> columns;
    for (const auto task : c10::irange(begin, end)) {
      const int64_t image = task / p.input_height * p.output_height;
      connections_to_outputs(
          rows,
          task % p.input_height,
          p.kernel_height,
          p.stride_height,
          p.padding_height,
          p.dilation_height,
          p.output_height);
      for (const auto iw : c10::irange(p.input_width)) {
        connections_to_outputs(
            columns,
            iw,
            p.kernel_width,
            p.stride_width,
            p.padding_width,
            p.dilation_width,
            p.output_width);
        scalar_t* const target = grad_input + (task * p.input_width + iw) * channels;
        for (int64_t c = 0; c < channels; c += Block::kSize) {
          const int64_t count = std::min(Block::kSize, channels - c);
          Block sum;
          for (const auto& [kh, oh] : rows) {
            Block partial;
            for (const auto& [kw, ow] : columns) {
              const int64_t pixel = (image + oh) * p.output_width + ow;
              partial.multiply_add(
                  Block::load(grad_output + pixel * channels + c, count),
                  Block::load_full(weight.data() + (kh * p.kernel_width + kw) * padded + c));
            }
            sum.add(partial);
          }
          sum.store(target + c, count);
        }
      }
    }
  });
}

// A task is one block of channels over the whole batch.
template <typename scalar_t>
void grad_weight_channels_last(
    const TensorBase& grad_weight_,
    const TensorBase& grad_bias_,
    const TensorBase& grad_output_,
    const TensorBase& input_,
    const Params& p) {
  using Block = ChannelBlock<scalar_t>;
  const auto* const grad_output = grad_output_.const_data_ptr<scalar_t>();
  const auto* const input = input_.const_data_ptr<scalar_t>();
  const int64_t channels = p.channels;
  const int64_t blocks = (channels + Block::kSize - 1) / Block::kSize;
  const auto columns = columns_of_taps(p);

  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> tap_sums; // [kH * kW][block]
    std::array<double, Block::kSize> bias_sums;
    for (const auto block : c10::irange(begin, end)) {
      const int64_t c = block * Block::kSize;
      const int64_t count = std::min(Block::kSize, channels - c);
      tap_sums.assign(p.kernel_size() * Block::kSize, 0);
      bias_sums.fill(0);
      for (const auto task : c10::irange(p.batch * p.output_height)) {
        const scalar_t* grad_row = grad_output + task * p.output_width * channels + c;
        if (grad_bias_.defined()) {
          Block sum;
          for (const auto ow : c10::irange(p.output_width)) {
            sum.add(Block::load(grad_row + ow * channels, count));
          }
          sum.add_to(bias_sums.data());
        }
        if (!grad_weight_.defined()) {
          continue;
        }
        const int64_t image = task / p.output_height * p.input_height;
        const int64_t top = task % p.output_height * p.stride_height - p.padding_height;
        const auto rows = inside(top, p.dilation_height, p.input_height, p.kernel_height);
        for (const auto kh : c10::irange(rows.begin, rows.end)) {
          const int64_t row = (image + top + kh * p.dilation_height) * p.input_width;
          for (const auto kw : c10::irange(p.kernel_width)) {
            Block sum;
            for (const auto ow : c10::irange(columns[kw].begin, columns[kw].end)) {
              const int64_t pixel =
                  row + ow * p.stride_width - p.padding_width + kw * p.dilation_width;
              sum.multiply_add(
                  Block::load(grad_row + ow * channels, count),
                  Block::load(input + pixel * channels + c, count));
            }
            sum.add_to(tap_sums.data() + (kh * p.kernel_width + kw) * Block::kSize);
          }
        }
      }
      for (const auto i : c10::irange(count)) {
        if (grad_bias_.defined()) {
          grad_bias_.mutable_data_ptr<scalar_t>()[c + i] = static_cast<scalar_t>(bias_sums[i]);
        }
        for (const auto tap : c10::irange(grad_weight_.defined() ? p.kernel_size() : 0)) {
          grad_weight_.mutable_data_ptr<scalar_t>()[(c + i) * p.kernel_size() + tap] =
              static_cast<scalar_t>(tap_sums[tap * Block::kSize + i]);
        }
      }
    }
  });
}

// --- entries ------------------------------------------------------------------------------------

void forward_kernel(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& p) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, input.scalar_type(), "depthwise_conv2d_ext", [&] {
        if (p.channels_last) {
          forward_channels_last<scalar_t>(output, input, weight, bias, p);
        } else {
          forward_planes<scalar_t>(output, input, weight, bias, p);
        }
      });
}

void backward_kernel(
    const TensorBase& grad_input,
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const TensorBase& weight,
    const Params& p) {
  const bool sums_wanted = grad_weight.defined() || grad_bias.defined();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, input.scalar_type(), "depthwise_conv2d_ext_backward", [&] {
        if (grad_input.defined()) {
          if (p.channels_last) {
            grad_input_channels_last<scalar_t>(grad_input, grad_output, weight, p);
          } else {
            grad_input_planes<scalar_t>(grad_input, grad_output, weight, p);
          }
        }
        if (sums_wanted) {
          if (p.channels_last) {
            grad_weight_channels_last<scalar_t>(grad_weight, grad_bias, grad_output, input, p);
          } else {
            grad_weight_planes<scalar_t>(grad_weight, grad_bias, grad_output, input, p);
          }
        }
      });
}

} // namespace

// The ALSO form registers for the capability being compiled, whichever it is; plain
// REGISTER_DISPATCH would leave the AVX-512 build of these kernels out.
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_stub, &forward_kernel)
ALSO_REGISTER_AVX512_DISPATCH(depthwise_conv2d_ext_backward_stub, &backward_kernel)

} // namespace at::native
