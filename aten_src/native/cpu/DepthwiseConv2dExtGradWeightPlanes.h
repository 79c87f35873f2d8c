// Gradients of the weight and the bias of depthwise_conv2d_ext over planes, [N, C, H, W].
//
// The input is packed as for the forward pass (DepthwiseConv2dExtPlanes.h) and grad_output with zeros
// up to whole vectors. Lanes are columns, whose sums are added to each other at last.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/native/cpu/DepthwiseConv2dExtColumns.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGradWeight.h>

namespace at::native {
namespace {

template <typename scalar_t>
class PlaneGradWeight {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int64_t kLanes = Vec::size();

 public:
  explicit PlaneGradWeight(const GradWeightCall<scalar_t>& call)
      : call_(call),
        height_(height_of(call.p, Direction::kForward)),
        columns_(columns_of(call.p, Direction::kForward, kLanes)),
        grad_pitch_(round_up(call.p.output_width, 2 * kLanes)) {}

  // A task is some images of one input channel.
  void run() {
    const Params& p = call_.p;
    const int64_t chunks = chunk_count(p.batch, p.channels);
    PartialSums<kLanes> partial(chunks, p);
    const int64_t band = band_results(
        height_,
        (columns_.pitch() + grad_pitch_) * static_cast<int64_t>(sizeof(acc_t)),
        height_.result_step());
    const int64_t input_rows = std::min(p.input_height, height_.source_reach(band));
    const auto grain = grain_of(
        ceil_div(p.batch, chunks) * p.multiplier * p.output_height * p.output_width *
        p.kernel_size());
    at::parallel_for(0, p.channels * chunks, grain, [&](int64_t begin, int64_t end) {
      Scratch scratch(*this, band, input_rows);
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task % chunks;
        const Range images{p.batch * chunk / chunks, p.batch * (chunk + 1) / chunks};
        sum_planes(task / chunks, images, band, scratch, chunk, partial);
      }
    });
    finish(call_, partial);
  }

 private:
  struct Scratch {
    Scratch(const PlaneGradWeight& pass, int64_t band, int64_t input_rows)
        : input(input_rows * pass.columns_.pitch()),
          grad(band * pass.grad_pitch_),
          sums(pass.call_.p.multiplier * (pass.call_.p.kernel_size() + 1) * kLanes),
          row(pass.call_.p.input_width + 2 * kLanes) {}
    AlignedBuffer<acc_t> input;
    AlignedBuffer<acc_t> grad;
    AlignedBuffer<acc_t> sums; // [multiplier][taps, bias][lanes]
    AlignedBuffer<acc_t> row;
  };

  void sum_planes(
      int64_t channel,
      Range images,
      int64_t band,
      Scratch& scratch,
      int64_t chunk,
      PartialSums<kLanes>& partial) {
    const Params& p = call_.p;
    int64_t terms = 0;
    for (const auto n : c10::irange(images.begin, images.end)) {
      const int64_t plane = n * p.channels + channel;
      for (int64_t first = 0; first < p.output_height; first += band) {
        const Range rows{first, std::min(first + band, p.output_height)};
        const int64_t lowest = pack_input(plane, rows, scratch);
        for (const auto j : c10::irange(p.multiplier)) {
          pack_grad(plane * p.multiplier + j, rows, scratch);
          acc_t* const sums = scratch.sums.data() + j * (p.kernel_size() + 1) * kLanes;
          if (call_.grad_bias) {
            add_values(
                scratch.grad.data(),
                kLanes,
                rows.size() * grad_pitch_ / kLanes,
                sums + p.kernel_size() * kLanes,
                kLanes);
          }
          if (call_.grad_weight) {
            add_band(rows, lowest, packed_next(n, channel, j, rows, band), sums, scratch);
          }
        }
        terms += rows.size() * grad_pitch_ / kLanes;
        if (terms >= kTermsPerLane) {
          flush_planes(channel, scratch, chunk, partial);
          terms = 0;
        }
      }
    }
    flush_planes(channel, scratch, chunk, partial);
  }

  // Packs the input rows that a band of output rows meets; returns the first of them.
  int64_t pack_input(int64_t plane, Range rows, Scratch& scratch) {
    const Params& p = call_.p;
    const int64_t window = (p.kernel_height - 1) * p.dilation_height;
    const int64_t top = rows.begin * p.stride_height - p.padding_height;
    const int64_t bottom = (rows.end - 1) * p.stride_height - p.padding_height + window;
    const Range needed{std::max<int64_t>(top, 0), std::min(bottom + 1, p.input_height)};
    for (int64_t row = needed.begin; call_.grad_weight && row < needed.end; ++row) {
      pack_row(
          call_.input + (plane * p.input_height + row) * p.input_width,
          p.input_width,
          columns_.classes,
          scratch.input.data() + (row - needed.begin) * columns_.pitch() + columns_.lead,
          columns_.class_pitch,
          scratch.row.data());
    }
    return needed.begin;
  }

  void pack_grad(int64_t plane, Range rows, Scratch& scratch) {
    const int64_t width = call_.p.output_width;
    for (const auto row : c10::irange(rows.begin, rows.end)) {
      convert_row(
          call_.grad + (plane * call_.p.output_height + row) * width,
          width,
          scratch.grad.data() + (row - rows.begin) * grad_pitch_);
    }
  }

  // What is packed next: a band of other planes, asked for while this one is worked on.
  struct Slices {
    Slice input;
    Slice grad;
  };

  // The next band, or the first one of the next image or channel.
  Slices packed_next(int64_t image, int64_t channel, int64_t j, Range rows, int64_t band) const {
    const Params& p = call_.p;
    const bool banded = rows.end < p.output_height;
    const int64_t next = image + 1 < p.batch ? (image + 1) * p.channels + channel : channel + 1;
    const int64_t plane = banded ? image * p.channels + channel : next;
    if (plane >= p.batch * p.channels) {
      return {{nullptr, 0}, {nullptr, 0}};
    }
    const int64_t first = banded ? rows.end : 0;
    const int64_t last = std::min(first + band, p.output_height);
    const auto slice = [&](const scalar_t* tensor, int64_t index, int64_t height, int64_t width) {
      const Range part{first * height / p.output_height, last * height / p.output_height};
      return Slice{
          reinterpret_cast<const char*>(tensor + (index * height + part.begin) * width),
          part.size() * width * static_cast<int64_t>(sizeof(scalar_t))};
    };
    return {
        slice(call_.input, plane, p.input_height, p.input_width),
        slice(call_.grad, plane * p.multiplier + j, p.output_height, p.output_width)};
  }

  // The products of packed rows: `rows` of grad_output, the input's from `lowest` on.
  void add_band(Range rows, int64_t lowest, const Slices& next, acc_t* sums, Scratch& scratch) {
    int64_t part = 0;
    Products<acc_t> work{};
    work.cross_step = kLanes;
    work.input_step = height_.source_step() * columns_.pitch();
    work.grad_step = height_.result_step() * grad_pitch_;
    work.input_repeat_step = work.grad_repeat_step = kLanes;
    const int64_t length = ceil_div(call_.p.input_width, columns_.classes);
    for (int64_t b = 0; b < call_.p.kernel_width;) {
      const int64_t cross =
          cross_taps_at_once(call_.p.kernel_width - b, height_.most_taps(), Lines::kNear);
      std::array<int64_t, kMaxProductCross> offsets;
      for (const auto i : c10::irange(cross)) {
        offsets[i] = columns_.cross[b + i].source;
      }
      // The vectors of columns at which one of these taps meets the image.
      const int64_t begin = std::max<int64_t>(0, -columns_.positions[b + cross - 1]) / kLanes;
      const int64_t end =
          ceil_div(std::min(call_.p.output_width, length - columns_.positions[b]), kLanes);
      work.offsets = offsets.data();
      work.repeats = end - begin;
      for_each_group(height_, cross, [&](int64_t phase, const TapGroup& group) {
        const int64_t q = rows.begin / height_.result_step();
        const int64_t source = group.source + q * height_.source_step();
        work.positions = ceil_div(
            std::min(rows.end, call_.p.output_height) - rows.begin - phase, height_.result_step());
        if (work.positions <= 0) {
          return;
        }
        find_steps(source, height_, group.count, work);
        work.sums = sums + (group.first * call_.p.kernel_width + b) * kLanes;
        work.tap_step = group.step * call_.p.kernel_width * kLanes;
        work.input = scratch.input.data() + (source - lowest) * columns_.pitch() + begin * kLanes;
        work.grad = scratch.grad.data() + phase * grad_pitch_ + begin * kLanes;
        // The first groups of rows share the slices, the others ask for nothing.
        work.ahead[0] = spread(next.input, part, height_.groups(), work);
        work.also_ahead = spread(next.grad, part, height_.groups(), work);
        ++part;
        product_function<acc_t, Lanes::kAll>(group.count, cross)(work);
      });
      b += cross;
    }
  }

  void flush_planes(
      int64_t channel,
      Scratch& scratch,
      int64_t chunk,
      PartialSums<kLanes>& partial) {
    const Params& p = call_.p;
    acc_t* sums = scratch.sums.data();
    for (const auto j : c10::irange(p.multiplier)) {
      for (const auto row : c10::irange(p.kernel_size() + 1)) {
        *partial.at(chunk, row, channel * p.multiplier + j) += sum_lanes(Vec::loadu(sums));
        Vec(acc_t(0)).store(sums);
        sums += kLanes;
      }
    }
  }

  GradWeightCall<scalar_t> call_;
  Dimension height_;
  Columns columns_;
  int64_t grad_pitch_;
};

} // namespace
} // namespace at::native
