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
// From so many taps on, the pixels of a vector of channels are copied next to each other first. fp32,
// one thread of AVX2: 128@56 k31 29.1 -> 19.3 ms, 512@14 k27 5.2 -> 4.3, 1024@7 k13 1.62 -> 1.46; windows
// of 7 within a tenth of what they were, of 5 up to a fifth slower.
constexpr int64_t kPackedTaps = 64;

template <typename scalar_t>
class PixelGradWeight {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int64_t kLanes = Vec::size();

 public:
  explicit PixelGradWeight(const GradWeightCall<scalar_t>& call)
      : call_(call), width_(width_of(call.p, Direction::kForward)) {}

  // A task is some vectors of channels of some segments, which are rows of one image each.
  void run_pixels() {
    const Params& p = call_.p;
    const int64_t segment_rows =
        std::min(p.output_height, std::max<int64_t>(1, kTermsPerLane / p.output_width));
    const int64_t image_segments = ceil_div(p.output_height, segment_rows);
    const int64_t segments = p.batch * image_segments;
    const int64_t parts = ceil_div(p.channels, kVectorsPerTask * kLanes);
    const int64_t chunks = chunk_count(segments, parts);
    PartialSums partial(chunks, p);
    const auto grain = grain_of(
        ceil_div(segments, chunks) * segment_rows * p.output_width * p.kernel_size() *
        kVectorsPerTask * kLanes);
    at::parallel_for(0, parts * chunks, grain, [&](int64_t begin, int64_t end) {
      AlignedBuffer<acc_t> sums((p.kernel_size() + 1) * kLanes);
      const PackedPixels packed(*this, segment_rows);
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t first = task % parts * kVectorsPerTask * kLanes;
        const int64_t last = std::min(p.channels, first + kVectorsPerTask * kLanes);
        const Range here{segments * chunk / chunks, segments * (chunk + 1) / chunks};
        for (int64_t s = here.begin; s < here.end;) {
          // As many segments as are added up before their sums are.
          const int64_t joined = std::min(
              here.end, s + std::max<int64_t>(1, kTermsPerLane / (segment_rows * p.output_width)));
          for (int64_t c = first; c < last; c += kLanes) {
            const int64_t lanes = std::min(kLanes, last - c);
            for (const auto segment : c10::irange(s, joined)) {
              const int64_t row = segment % image_segments * segment_rows;
              sum_segment(
                  c,
                  lanes,
                  segment / image_segments,
                  {row, std::min(row + segment_rows, p.output_height)},
                  packed,
                  sums.data());
            }
            flush_lanes(c, lanes, sums.data(), chunk, partial);
          }
          s = joined;
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
              {input.pixels(), grad.pixels(), kLanes, kLanes, 0, 0, Lines::kNear},
              {0, p.output_height},
              sums.data());
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
  // Neighbouring channels of some rows of one image, as pixels.
  template <typename stored_t>
  struct PixelView {
    const stored_t* input;
    const stored_t* grad;
    int64_t pitch; // from pixel to pixel
    int64_t lanes; // channels, a vector at most
    int64_t first_input_row; // that `input` begins with
    int64_t first_row; // that `grad` begins with
    Lines lines;
  };

  // One thread's memory for the pixels of a vector of channels, without what lies between them.
  struct PackedPixels {
    PackedPixels(const PixelGradWeight& pass, int64_t rows)
        : used(pass.call_.p.kernel_size() >= kPackedTaps),
          input(used ? pass.input_reach(rows) * pass.call_.p.input_width * kLanes : 0),
          grad(used ? rows * pass.call_.p.output_width * kLanes : 0) {}
    bool used;
    AlignedBuffer<acc_t> input;
    AlignedBuffer<acc_t> grad;
  };

  // Input rows that `rows` neighbouring output rows meet at most.
  int64_t input_reach(int64_t rows) const {
    const Params& p = call_.p;
    const int64_t window = (p.kernel_height - 1) * p.dilation_height;
    return std::min(p.input_height, (rows - 1) * p.stride_height + window + 1);
  }

  // The input rows inside the image that some output rows meet.
  Range input_rows(Range rows) const {
    const Params& p = call_.p;
    const int64_t window = (p.kernel_height - 1) * p.dilation_height;
    const int64_t top = rows.begin * p.stride_height - p.padding_height;
    const int64_t end = (rows.end - 1) * p.stride_height - p.padding_height + window + 1;
    const int64_t first = std::clamp<int64_t>(top, 0, p.input_height);
    return {first, std::clamp<int64_t>(end, first, p.input_height)};
  }

  static void pack_pixels(
      const scalar_t* source,
      int64_t count,
      int64_t pitch,
      int64_t lanes,
      acc_t* target) {
    for (const auto i : c10::irange(count)) {
      const scalar_t* const pixel = source + i * pitch;
      const Vec values = lanes == kLanes ? load_lanes(pixel) : load_lanes(pixel, lanes);
      values.store(target + i * kLanes);
    }
  }

  // Adds the products of some rows of one image.
  void sum_segment(
      int64_t channel,
      int64_t lanes,
      int64_t image,
      Range rows,
      const PackedPixels& packed,
      acc_t* sums) {
    const Params& p = call_.p;
    const int64_t input_row = p.input_width * p.channels;
    const int64_t grad_row = p.output_width * p.channels;
    const scalar_t* const input = call_.input + image * p.input_height * input_row + channel;
    const scalar_t* const grad = call_.grad + image * p.output_height * grad_row + channel;
    if (!packed.used) {
      sum_rows<scalar_t>({input, grad, p.channels, lanes, 0, 0, Lines::kFar}, rows, sums);
      return;
    }
    const Range met = input_rows(rows);
    pack_pixels(
        input + met.begin * input_row,
        met.size() * p.input_width,
        p.channels,
        lanes,
        packed.input.data());
    pack_pixels(
        grad + rows.begin * grad_row,
        rows.size() * p.output_width,
        p.channels,
        lanes,
        packed.grad.data());
    sum_rows<acc_t>(
        {packed.input.data(),
         packed.grad.data(),
         kLanes,
         kLanes,
         met.begin,
         rows.begin,
         Lines::kNear},
        rows,
        sums);
  }

  // Adds the products of some rows to one vector for each tap and one for the bias.
  template <typename stored_t>
  void sum_rows(const PixelView<stored_t>& view, Range rows, acc_t* sums) {
    const Params& p = call_.p;
    if (call_.grad_bias) {
      add_values(
          view.grad + (rows.begin - view.first_row) * p.output_width * view.pitch,
          view.pitch,
          rows.size() * p.output_width,
          sums + p.kernel_size() * kLanes,
          view.lanes);
    }
    for (int64_t row = rows.begin; call_.grad_weight && row < rows.end;) {
      // Rows that meet the same kernel rows.
      const Range taps = kernel_rows(row);
      int64_t end = row + 1;
      for (; end < rows.end; ++end) {
        const Range next = kernel_rows(end);
        if (next.begin != taps.begin || next.end != taps.end) {
          break;
        }
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
    const int64_t top = rows.begin * p.stride_height - p.padding_height - view.first_input_row;
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
      const int64_t cross = cross_taps_at_once(taps.end - kh, width_.most_taps(), view.lines);
      std::array<int64_t, kMaxProductCross> offsets{};
      for (const auto i : c10::irange(cross)) {
        offsets[i] = i * p.dilation_height * row_pitch;
      }
      work.offsets = offsets.data();
      work.input_ahead = work.input_repeat_step + offsets[cross - 1];
      const int64_t first_row = top + kh * p.dilation_height;
      for_each_group(width_, cross, [&](int64_t phase, const TapGroup& group) {
        work.positions = width_.results_of(phase);
        find_steps(group.source, width_, group.count, work);
        work.sums = sums + (kh * p.kernel_width + group.first) * kLanes;
        work.tap_step = group.step * kLanes;
        work.input = view.input + (first_row * p.input_width + group.source) * view.pitch;
        work.grad =
            view.grad + ((rows.begin - view.first_row) * p.output_width + phase) * view.pitch;
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
