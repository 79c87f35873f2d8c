// Gradients of the weight and the bias of depthwise_conv2d_ext over pixels: of [N, H, W, C], and of small
// planes once they are transposed (DepthwiseConv2dExtSmallPlanes.h).
//
// Lanes are channels. Rows that meet the same kernel rows are summed up in one go.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/native/cpu/DepthwiseConv2dExtGradWeight.h>
#include <ATen/native/cpu/DepthwiseConv2dExtSmallPlanes.h>

namespace at::native {
namespace {

// Vectors of channels that a task of channels last works on, so that it reads memory by half
// kilobytes and its pixels stay in the first-level cache.
constexpr int64_t kVectorsPerTask = 8;

template <typename scalar_t>
class PixelGradWeight {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int64_t kLanes = Vec::size();

 public:
  explicit PixelGradWeight(const GradWeightCall<scalar_t>& call)
      : call_(call), width_(width_of(call.p, Direction::kForward)) {}

  // A task is some vectors of channels of some segments, which are rows of the whole batch.
  void run_pixels() {
    const Params& p = call_.p;
    const int64_t rows = p.batch * p.output_height;
    const int64_t segment = std::max<int64_t>(1, kTermsPerLane / p.output_width);
    const int64_t segments = ceil_div(rows, segment);
    const int64_t parts = ceil_div(p.channels, kVectorsPerTask * kLanes);
    const int64_t chunks = chunk_count(segments, parts);
    PartialSums partial(chunks, p);
    const auto grain = grain_of(
        ceil_div(segments, chunks) * segment * p.output_width * p.kernel_size() * kVectorsPerTask *
        kLanes);
    at::parallel_for(0, parts * chunks, grain, [&](int64_t begin, int64_t end) {
      AlignedBuffer<acc_t> sums((p.kernel_size() + 1) * kLanes);
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t first = task % parts * kVectorsPerTask * kLanes;
        const int64_t last = std::min(p.channels, first + kVectorsPerTask * kLanes);
        for (const auto s :
             c10::irange(segments * chunk / chunks, segments * (chunk + 1) / chunks)) {
          const Range here{s * segment, std::min(rows, (s + 1) * segment)};
          for (int64_t c = first; c < last; c += kLanes) {
            const int64_t lanes = std::min(kLanes, last - c);
            sum_rows<scalar_t>(
                {call_.input + c, call_.grad + c, p.channels, lanes}, here, sums.data());
            flush_lanes(c, lanes, sums.data(), chunk, partial);
          }
        }
      }
    });
    finish(call_, partial);
  }

  // A task is a vector of channels of some images, whose planes are transposed to pixels.
  void run_small_planes() {
    const Params& p = call_.p;
    const int64_t input_size = p.input_height * p.input_width;
    const int64_t output_size = p.output_height * p.output_width;
    const int64_t parts = ceil_div(p.channels, kLanes);
    const int64_t chunks = chunk_count(p.batch, parts);
    PartialSums partial(chunks, p);
    const auto grain = grain_of(ceil_div(p.batch, chunks) * kLanes * output_size * p.kernel_size());
    at::parallel_for(0, parts * chunks, grain, [&](int64_t begin, int64_t end) {
      AlignedBuffer<acc_t> sums((p.kernel_size() + 1) * kLanes);
      const TransposedPlanes<scalar_t> input(input_size, kLanes);
      const TransposedPlanes<scalar_t> grad(output_size, kLanes);
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t channel = task % parts * kLanes;
        const int64_t lanes = std::min(kLanes, p.channels - channel);
        int64_t terms = 0;
        for (const auto n : c10::irange(p.batch * chunk / chunks, p.batch * (chunk + 1) / chunks)) {
          const int64_t plane = n * p.channels + channel;
          input.read(call_.input + plane * input_size, lanes);
          grad.read(call_.grad + plane * output_size, lanes);
          sum_rows<acc_t>(
              {input.pixels(), grad.pixels(), kLanes, kLanes}, {0, p.output_height}, sums.data());
          terms += output_size;
          if (terms >= kTermsPerLane) {
            flush_lanes(channel, lanes, sums.data(), chunk, partial);
            terms = 0;
          }
        }
        flush_lanes(channel, lanes, sums.data(), chunk, partial);
      }
    });
    finish(call_, partial);
  }

 private:
  // Neighbouring channels of images in the order [N, H, W, C].
  template <typename stored_t>
  struct PixelView {
    const stored_t* input;
    const stored_t* grad;
    int64_t pitch; // from pixel to pixel
    int64_t lanes; // channels, a vector at most
  };

  // Adds the products of some rows of the batch to one vector for each tap and one for the bias.
  template <typename stored_t>
  void sum_rows(const PixelView<stored_t>& view, Range rows, acc_t* sums) {
    const Params& p = call_.p;
    if (call_.grad_bias) {
      add_values(
          view.grad + rows.begin * p.output_width * view.pitch,
          view.pitch,
          rows.size() * p.output_width,
          sums + p.kernel_size() * kLanes,
          view.lanes);
    }
    for (int64_t row = rows.begin; call_.grad_weight && row < rows.end;) {
      // Rows of one image that meet the same kernel rows.
      const Range taps = kernel_rows(row % p.output_height);
      int64_t end = row + 1;
      while (end < rows.end && end % p.output_height != 0) {
        const Range next = kernel_rows(end % p.output_height);
        if (next.begin != taps.begin || next.end != taps.end) {
          break;
        }
        ++end;
      }
      add_rows(view, {row, end}, taps, sums);
      row = end;
    }
  }

  void flush_lanes(
      int64_t channel,
      int64_t lanes,
      acc_t* sums,
      int64_t chunk,
      PartialSums& partial) {
    for (const auto row : c10::irange(partial.rows)) {
      double* const total = partial.at(chunk, row, channel);
      for (const auto lane : c10::irange(lanes)) {
        total[lane] += sums[row * kLanes + lane];
      }
    }
    std::fill_n(sums, partial.rows * kLanes, acc_t(0));
  }

  // The kernel rows that are inside the image at an output row.
  Range kernel_rows(int64_t row) const {
    const Params& p = call_.p;
    const int64_t top = row * p.stride_height - p.padding_height;
    const int64_t begin =
        std::max<int64_t>(0, ceil_div(std::max<int64_t>(-top, 0), p.dilation_height));
    const int64_t last = floor_div(p.input_height - 1 - top, p.dilation_height);
    const int64_t end = std::min(p.kernel_height, last + 1);
    return {std::min(begin, std::max<int64_t>(end, 0)), std::max<int64_t>(end, 0)};
  }

  template <typename stored_t>
  void add_rows(const PixelView<stored_t>& view, Range rows, Range taps, acc_t* sums) {
    const Params& p = call_.p;
    const int64_t row_pitch = p.input_width * view.pitch;
    const int64_t image = rows.begin / p.output_height;
    const int64_t top = rows.begin % p.output_height * p.stride_height - p.padding_height;
    Products<stored_t> work{};
    work.cross_step = p.kernel_width * kLanes;
    work.input_step = width_.source_step() * view.pitch;
    work.grad_step = width_.result_step() * view.pitch;
    work.repeats = rows.size();
    work.input_repeat_step = p.stride_height * row_pitch;
    work.grad_repeat_step = p.output_width * view.pitch;
    // One row before it is needed: neighbouring pixels are far from each other, and no processor
    // foresees those of the next row.
    work.grad_ahead = work.grad_repeat_step;
    work.lanes = view.lanes;
    for (int64_t kh = taps.begin; kh < taps.end;) {
      const int64_t cross = cross_taps_at_once(taps.end - kh);
      std::array<int64_t, kMaxProductCross> offsets{};
      for (const auto i : c10::irange(cross)) {
        offsets[i] = i * p.dilation_height * row_pitch;
      }
      work.offsets = offsets.data();
      work.input_ahead = work.input_repeat_step + offsets[cross - 1];
      const int64_t first_row = image * p.input_height + top + kh * p.dilation_height;
      for_each_group(width_, cross, [&](int64_t phase, const TapGroup& group) {
        work.positions = width_.results_of(phase);
        find_steps(group.source, width_, group.count, work);
        work.sums = sums + (kh * p.kernel_width + group.first) * kLanes;
        work.tap_step = group.step * kLanes;
        work.input = view.input + (first_row * p.input_width + group.source) * view.pitch;
        work.grad = view.grad + (rows.begin * p.output_width + phase) * view.pitch;
        const auto products = view.lanes == kLanes
            ? product_function<stored_t, Lanes::kAll>(group.count, cross)
            : product_function<stored_t, Lanes::kSome>(group.count, cross);
        products(work);
      });
      kh += cross;
    }
  }

  GradWeightCall<scalar_t> call_;
  Dimension width_;
};

} // namespace
} // namespace at::native
