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
  // Vectors of channels in the two neighbouring cache lines that are asked for at once: memory delivers
  // pairs twice as fast as every other line (25 GB/s instead of 12).
  static constexpr int64_t kVectorsAhead =
      2 * kCacheLine / (kLanes * static_cast<int64_t>(sizeof(scalar_t)));

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
    const int64_t part = kVectorsPerTask * kLanes;
    const int64_t parts = ceil_div(p.channels, part);
    const int64_t chunks = chunk_count(segments, parts);
    PartialSums partial(chunks, p);
    const auto grain = grain_of(
        ceil_div(segments, chunks) * segment_rows * p.output_width * p.kernel_size() *
        kVectorsPerTask * kLanes);
    at::parallel_for(0, parts * chunks, grain, [&](int64_t begin, int64_t end) {
      PixelScratch scratch(*this, segment_rows);
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t first = task % parts * part;
        const int64_t last = std::min(p.channels, first + part);
        const Range here{segments * chunk / chunks, segments * (chunk + 1) / chunks};
        for (int64_t s = here.begin; s < here.end;) {
          // As many segments as are added up before their sums are.
          const int64_t joined = std::min(
              here.end, s + std::max<int64_t>(1, kTermsPerLane / (segment_rows * p.output_width)));
          const SegmentWork work{{s, joined}, segment_rows, {first, last}};
          if (scratch.packed) {
            sum_segments<Pixels::kPacked>(work, scratch, chunk, partial);
          } else {
            sum_segments<Pixels::kInPlace>(work, scratch, chunk, partial);
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
      auto rows = plan_rows<acc_t>(
          {input.pixels(), grad.pixels(), kLanes, 0, 0, Lines::kNear}, {0, p.output_height});
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t channel = task % parts * kLanes;
        const int64_t lanes = std::min(kLanes, p.channels - channel);
        int64_t terms = 0;
        for (const auto n : c10::irange(p.batch * chunk / chunks, p.batch * (chunk + 1) / chunks)) {
          const int64_t plane = n * p.channels + channel;
          input.read(call_.input + plane * input_size, lanes);
          grad.read(call_.grad + plane * output_size, lanes);
          if (plane + p.channels + lanes <= p.batch * p.channels) { // the next image's
            ask_for_planes(plane + p.channels, lanes, rows);
          }
          run_rows(rows, 0, kLanes, {0, 0}, sums.data());
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
    int64_t first_input_row; // that `input` begins with
    int64_t first_row; // that `grad` begins with
    Lines lines;
  };

  // Some taps of some rows, for the first vector of channels of a view.
  template <typename stored_t>
  struct RowWork {
    Products<stored_t> products; // but for what differs between vectors of channels
    int64_t sums; // where those of tap 0 of the group begin
    std::array<int64_t, kMaxProductCross> offsets;
    ProductFunction<stored_t> add_all; // for whole vectors
    ProductFunction<stored_t> add_some;
    int64_t cross_taps;
    bool first_of_rows; // among those of the same kernel rows
  };

  // What is to be done for some rows of one image, the same for each vector of channels.
  template <typename stored_t>
  struct RowPlan {
    const stored_t* grad; // of the first pixel
    int64_t pitch;
    int64_t pixels;
    c10::SmallVector<RowWork<stored_t>, 8> works;
  };

  // One thread's sums, and with large windows the pixels of a vector of channels without what lies
  // between them.
  struct PixelScratch {
    PixelScratch(const PixelGradWeight& pass, int64_t rows)
        : packed(pass.call_.p.kernel_size() >= kPackedTaps),
          input(packed ? pass.input_reach(rows) * pass.call_.p.input_width * kLanes : 0),
          grad(packed ? rows * pass.call_.p.output_width * kLanes : 0),
          sums((pass.call_.p.kernel_size() + 1) * kLanes) {}
    bool packed;
    AlignedBuffer<acc_t> input;
    AlignedBuffer<acc_t> grad;
    AlignedBuffer<acc_t> sums;
  };

  // Where a task of channels last finds its pixels.
  enum class Pixels { kInPlace, kPacked };

  // Some segments by some channels.
  struct SegmentWork {
    Range segments;
    int64_t segment_rows;
    Range channels;
  };

  // Has the products of most rows ask for planes that will be transposed.
  void ask_for_planes(int64_t plane, int64_t count, RowPlan<acc_t>& plan) const {
    const Params& p = call_.p;
    const auto slice = [&](const scalar_t* tensor, int64_t size) -> Slice {
      return {
          reinterpret_cast<const char*>(tensor + plane * size),
          count * size * static_cast<int64_t>(sizeof(scalar_t))};
    };
    const auto most = std::max_element(
        plan.works.begin(), plan.works.end(), [](const auto& one, const auto& other) {
          return one.products.repeats < other.products.repeats;
        });
    if (most != plan.works.end()) {
      most->products.ahead =
          spread(slice(call_.input, p.input_height * p.input_width), 0, 1, most->products);
      most->products.also_ahead =
          spread(slice(call_.grad, p.output_height * p.output_width), 0, 1, most->products);
    }
  }

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

  // A segment's pixels from `channel` on.
  PixelView<scalar_t> image_view(int64_t image, int64_t channel) const {
    const Params& p = call_.p;
    return {
        call_.input + image * p.input_height * p.input_width * p.channels + channel,
        call_.grad + image * p.output_height * p.output_width * p.channels + channel,
        p.channels,
        0,
        0,
        Lines::kFar};
  }

  // The pixels of a vector of channels that some rows need, next to each other.
  PixelView<acc_t> packed_view(Range rows, const PixelScratch& scratch) const {
    const int64_t first_input_row = input_rows(rows).begin;
    return {
        scratch.input.data(),
        scratch.grad.data(),
        kLanes,
        first_input_row,
        rows.begin,
        Lines::kNear};
  }

  void pack_rows(
      const PixelView<scalar_t>& image,
      Range rows,
      int64_t lanes,
      const PixelScratch& scratch) const {
    const Params& p = call_.p;
    const Range met = input_rows(rows);
    pack_pixels(
        image.input + met.begin * p.input_width * p.channels,
        met.size() * p.input_width,
        p.channels,
        lanes,
        scratch.input.data());
    pack_pixels(
        image.grad + rows.begin * p.output_width * p.channels,
        rows.size() * p.output_width,
        p.channels,
        lanes,
        scratch.grad.data());
  }

  // What comes next after a block of kVectorsAhead vectors of channels, as distances from it; null where
  // nothing is to be asked for.
  struct Distances {
    int64_t input;
    int64_t grad;
  };

  // From the pixels of a block of vectors to those of the one beside it, or of the first one of the
  // segments behind these.
  Distances distances(const SegmentWork& work, int64_t channel, int64_t image_segments) const {
    const Params& p = call_.p;
    constexpr int64_t kBlock = kVectorsAhead * kLanes;
    if (channel + kBlock < work.channels.size()) {
      return {kBlock, kBlock};
    }
    const auto row_of = [&](int64_t segment, int64_t height, int64_t step) {
      return segment / image_segments * height +
          segment % image_segments * work.segment_rows * step;
    };
    const auto rows = [&](int64_t height, int64_t step) {
      return row_of(work.segments.end, height, step) - row_of(work.segments.begin, height, step);
    };
    const int64_t back = channel / kBlock * kBlock;
    return {
        rows(p.input_height, p.stride_height) * p.input_width * p.channels - back,
        rows(p.output_height, 1) * p.output_width * p.channels - back};
  }

  // Segments whose sums are added up before they are in double, by some vectors of channels.
  template <Pixels kPixels>
  void sum_segments(
      const SegmentWork& work,
      PixelScratch& scratch,
      int64_t chunk,
      PartialSums& partial) {
    constexpr bool kPacked = kPixels == Pixels::kPacked;
    const int64_t image_segments = ceil_div(call_.p.output_height, work.segment_rows);
    const auto image_of = [&](int64_t segment, int64_t channel) {
      return image_view(segment / image_segments, channel);
    };
    const auto rows_of = [&](int64_t segment) -> Range {
      const int64_t row = segment % image_segments * work.segment_rows;
      return {row, std::min(row + work.segment_rows, call_.p.output_height)};
    };
    c10::SmallVector<RowPlan<std::conditional_t<kPacked, acc_t, scalar_t>>, 8> plans;
    for (const auto segment : c10::irange(work.segments.begin, work.segments.end)) {
      if constexpr (kPacked) {
        plans.push_back(plan_rows(packed_view(rows_of(segment), scratch), rows_of(segment)));
      } else {
        plans.push_back(plan_rows(image_of(segment, work.channels.begin), rows_of(segment)));
      }
    }
    for (int64_t c = work.channels.begin; c < work.channels.end; c += kLanes) {
      const int64_t lanes = std::min(kLanes, work.channels.end - c);
      const Distances next = distances(work, c - work.channels.begin, image_segments);
      for (const auto i : c10::irange(plans.size())) {
        if constexpr (kPacked) {
          const int64_t segment = work.segments.begin + static_cast<int64_t>(i);
          pack_rows(image_of(segment, c), rows_of(segment), lanes, scratch);
          run_rows(plans[i], 0, kLanes, {0, 0}, scratch.sums.data());
        } else {
          run_rows(plans[i], c - work.channels.begin, lanes, next, scratch.sums.data());
        }
      }
      flush_lanes(c, lanes, scratch.sums.data(), chunk, partial);
    }
  }

  // What is to be done for some rows.
  template <typename stored_t>
  RowPlan<stored_t> plan_rows(const PixelView<stored_t>& view, Range rows) const {
    const Params& p = call_.p;
    RowPlan<stored_t> plan{
        view.grad + (rows.begin - view.first_row) * p.output_width * view.pitch,
        view.pitch,
        rows.size() * p.output_width,
        {}};
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
      add_work(view, {row, end}, taps, plan);
      row = end;
    }
    return plan;
  }

  // Adds the products of some rows to one vector for each tap and one for the bias: of the channels
  // from `channel` of the view on.
  template <typename stored_t>
  void run_rows(
      const RowPlan<stored_t>& plan,
      int64_t channel,
      int64_t lanes,
      Distances next,
      acc_t* sums) const {
    for (const auto& work : plan.works) {
      Products<stored_t> products = work.products;
      products.sums = sums + work.sums;
      products.input += channel;
      products.grad += channel;
      products.offsets = work.offsets.data();
      products.lanes = lanes;
      if (next.input != 0) {
        look_ahead(work, channel / kLanes % kVectorsAhead, next, products);
      }
      (lanes == kLanes ? work.add_all : work.add_some)(products);
    }
    // Last, as the products ask for what they need and this does not: 960@7 k3 N=16 498 us and 440.
    if (call_.grad_bias) {
      add_values(
          plan.grad + channel,
          plan.pitch,
          plan.pixels,
          sums + call_.p.kernel_size() * kLanes,
          lanes);
    }
  }

  // Shares what a block's vectors ask for among the first two of them: one input row or, with a stride,
  // two that no row before has met, and the row of grad_output.
  template <typename stored_t>
  void look_ahead(
      const RowWork<stored_t>& work,
      int64_t vector,
      Distances next,
      Products<stored_t>& products) const {
    const bool two_rows = call_.p.stride_height > 1 && work.cross_taps > 1;
    const auto steps = [](const stored_t* first, int64_t step, int64_t repeat_step) -> Ahead {
      constexpr int64_t kBytes = sizeof(stored_t);
      return {first, step * kBytes, repeat_step * kBytes};
    };
    const auto grads = steps(
        products.grad + next.grad - vector * kLanes, products.grad_step, products.grad_repeat_step);
    if (vector == 0 || (vector == 1 && two_rows)) {
      products.ahead = steps(
          products.input + next.input + work.offsets[work.cross_taps - 1 - vector] -
              vector * kLanes,
          products.input_step,
          products.input_repeat_step);
      if (vector == 0 && two_rows && work.first_of_rows) {
        products.also_ahead = grads;
      }
    } else if (vector == 1) {
      products.ahead = grads;
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
      const auto add = [&](int64_t count) {
        for (const auto lane : c10::irange(count)) {
          total[lane] += sums[row * kLanes + lane];
        }
      };
      lanes == kLanes ? add(kLanes) : add(lanes);
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

  // Plans the products of rows that meet the same kernel rows.
  template <typename stored_t>
  void add_work(const PixelView<stored_t>& view, Range rows, Range taps, RowPlan<stored_t>& plan)
      const {
    const Params& p = call_.p;
    const int64_t row_pitch = p.input_width * view.pitch;
    const int64_t top = rows.begin * p.stride_height - p.padding_height - view.first_input_row;
    RowWork<stored_t> work{};
    Products<stored_t>& products = work.products;
    products.cross_step = p.kernel_width * kLanes;
    products.input_step = width_.source_step() * view.pitch;
    products.grad_step = width_.result_step() * view.pitch;
    products.repeats = rows.size();
    products.input_repeat_step = p.stride_height * row_pitch;
    products.grad_repeat_step = p.output_width * view.pitch;
    for (int64_t kh = taps.begin; kh < taps.end; kh += work.cross_taps) {
      work.cross_taps = cross_taps_at_once(taps.end - kh, width_.most_taps(), view.lines);
      for (const auto i : c10::irange(work.cross_taps)) {
        work.offsets[i] = i * p.dilation_height * row_pitch;
      }
      const int64_t first_row = top + kh * p.dilation_height;
      work.first_of_rows = true;
      for_each_group(width_, work.cross_taps, [&](int64_t phase, const TapGroup& group) {
        products.positions = width_.results_of(phase);
        find_steps(group.source, width_, group.count, products);
        work.add_all = product_function<stored_t, Lanes::kAll>(group.count, work.cross_taps);
        work.add_some = product_function<stored_t, Lanes::kSome>(group.count, work.cross_taps);
        work.sums = (kh * p.kernel_width + group.first) * kLanes;
        products.tap_step = group.step * kLanes;
        products.input = view.input + (first_row * p.input_width + group.source) * view.pitch;
        products.grad =
            view.grad + ((rows.begin - view.first_row) * p.output_width + phase) * view.pitch;
        plan.works.push_back(work);
        work.first_of_rows = false;
      });
    }
  }

  GradWeightCall<scalar_t> call_;
  Dimension width_;
};

} // namespace
} // namespace at::native
