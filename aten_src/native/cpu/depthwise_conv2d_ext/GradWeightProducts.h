// Gradients of the weight and the bias of depthwise_conv2d_ext by products of rows (GradWeight.h).
//
// Over pixels, of [N, H, W, C] and of small planes once they are transposed (TransposedPlanes.h), lanes are
// channels, and rows that meet the same kernel rows are summed up in one go. Over other planes lanes are
// columns, whose sums are added to each other at last: the input is packed as for the forward pass
// (Planes.h) and grad_output with zeros up to whole vectors.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/GradWeight.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Planes.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/TransposedPlanes.h>

namespace at::native {
namespace {

// Vectors of channels that a task of channels last works on, so that it reads memory by half
// kilobytes and its pixels stay in the first-level cache.
constexpr int64_t kVectorsPerTask = 8;
// Where both tensors are larger than a second-level cache, and windows or planes are small, a task does a
// row, or some of together kRowPixels, by all of its vectors, which are then more, before the next rows: with
// many channels each pixel is on a page of memory of its own, in a vector of 7 x 7 planes 98. fp32, one
// thread, N=16: 960@7 k3 477 -> 383 us, 1152@7 k5 974 -> 793, 672@14 k5s2 885 -> 767, 384@14 k3 624 -> 557,
// 96@112 k3s2 8,827 -> 7,153. Sums are then loaded and stored for each row: slower in cache (960@7 N=1 30
// and 34) and where a window has much to do (240@28 k5 N=16 1,790 and 1,940, 192@28 k7 2,780 and 3,430).
constexpr int64_t kRowPixels = 14;
constexpr int64_t kVectorsPerRow = 10;
constexpr int64_t kRowBytes = 2 << 20; // of both tensors
constexpr int64_t kRowTaps = 9;
constexpr int64_t kRowPlane = 49;
template <typename scalar_t>
class PixelGradWeight {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr int64_t kLanes = Vec::size();
  static constexpr int64_t kVectorsAhead = Products<scalar_t>::kPairVectors;

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
    const int64_t vectors = is_by_rows() ? kVectorsPerRow : kVectorsPerTask;
    const int64_t part = vectors * kLanes;
    const int64_t parts = ceil_div(p.channels, part);
    const int64_t chunks = chunk_count(segments, parts);
    PartialSums<kLanes> partial(chunks, p);
    const auto grain = grain_of(
        ceil_div(segments, chunks) * segment_rows * p.output_width * p.kernel_size() * part);
    at::parallel_for(0, parts * chunks, grain, [&](int64_t begin, int64_t end) {
      PixelScratch scratch(*this, segment_rows, is_by_rows() ? vectors : 1);
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
    PartialSums<kLanes> partial(chunks, p);
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
          run_rows(rows, {0, 0, 0, 1}, {0, 0}, sums.data());
          terms += output_size;
          if (terms >= kTermsPerLane) {
            flush_lanes(channel, sums.data(), chunk, partial);
            terms = 0;
          }
        }
        flush_lanes(channel, sums.data(), chunk, partial);
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
    ProductFunction<stored_t> add;
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
    PixelScratch(const PixelGradWeight& pass, int64_t rows, int64_t vectors)
        : packed(pass.is_packed()),
          input(packed ? pass.input_reach(rows) * pass.call_.p.input_width * kLanes : 0),
          grad(packed ? rows * pass.call_.p.output_width * kLanes : 0),
          sums(pass.sums_of_vector() * vectors) {}
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

  // What of some rows is worked on.
  struct Place {
    int64_t input; // values from where the rows were planned to the first vector's
    int64_t grad;
    int64_t vector; // the first one's number in a pair of cache lines; of several it is 0
    int64_t vectors;
  };

  // Of fewer channels than a vector has lanes too: a vector is zeros behind them.
  bool is_packed() const {
    return call_.p.kernel_size() >= kPackedTaps || call_.p.channels < kLanes;
  }
  bool is_by_rows() const {
    const Params& p = call_.p;
    const int64_t pixels = p.input_height * p.input_width + p.output_height * p.output_width;
    const int64_t bytes = p.batch * pixels * p.channels * static_cast<int64_t>(sizeof(scalar_t));
    return bytes > kRowBytes && !is_packed() &&
        (p.kernel_size() <= kRowTaps || p.output_height * p.output_width <= kRowPlane);
  }

  int64_t sums_of_vector() const {
    return (call_.p.kernel_size() + 1) * kLanes;
  }

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
      most->products.ahead[0] =
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

  // The first image's pixels.
  PixelView<scalar_t> image_view() const {
    return {call_.input, call_.grad, call_.p.channels, 0, 0, Lines::kFar};
  }

  // From the first image's pixels to those of `image` from a vector of channels on.
  Place place_of(int64_t image, int64_t channel, int64_t vector, int64_t vectors) const {
    const Params& p = call_.p;
    return {
        image * p.input_height * p.input_width * p.channels + channel,
        image * p.output_height * p.output_width * p.channels + channel,
        vector,
        vectors};
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

  void pack_rows(const Place& place, Range rows, int64_t lanes, const PixelScratch& scratch) const {
    const Params& p = call_.p;
    const Range met = input_rows(rows);
    pack_pixels(
        call_.input + place.input + met.begin * p.input_width * p.channels,
        met.size() * p.input_width,
        p.channels,
        lanes,
        scratch.input.data());
    pack_pixels(
        call_.grad + place.grad + rows.begin * p.output_width * p.channels,
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
      PartialSums<kLanes>& partial) {
    constexpr bool kPacked = kPixels == Pixels::kPacked;
    const int64_t image_segments = ceil_div(call_.p.output_height, work.segment_rows);
    const auto rows_of = [&](int64_t segment) -> Range {
      const int64_t row = segment % image_segments * work.segment_rows;
      return {row, std::min(row + work.segment_rows, call_.p.output_height)};
    };
    const bool by_rows = !kPacked && is_by_rows();
    const int64_t rows_at_once =
        by_rows ? std::max<int64_t>(1, kRowPixels / call_.p.output_width) : work.segment_rows;
    // Whole images have one plan.
    const int64_t planned = image_segments == 1 ? 1 : work.segments.size();
    c10::SmallVector<RowPlan<std::conditional_t<kPacked, acc_t, scalar_t>>, 8> plans;
    for (const auto i : c10::irange(planned)) {
      const Range rows = rows_of(work.segments.begin + i);
      for (int64_t row = rows.begin; row < rows.end; row += rows_at_once) {
        const Range some{row, std::min(row + rows_at_once, rows.end)};
        if constexpr (kPacked) {
          plans.push_back(plan_rows(packed_view(rows, scratch), some));
        } else {
          plans.push_back(plan_rows(image_view(), some));
        }
      }
    }
    if (by_rows) {
      if constexpr (!kPacked) {
        sum_rows(work, plans, image_segments, rows_at_once, scratch.sums.data());
      }
      for (int64_t c = work.channels.begin; c < work.channels.end; c += kLanes) {
        acc_t* const sums =
            scratch.sums.data() + (c - work.channels.begin) / kLanes * sums_of_vector();
        flush_lanes(c, sums, chunk, partial, c - first_of_vector(c));
      }
      return;
    }
    for (int64_t c = work.channels.begin; c < work.channels.end; c += kLanes) {
      const int64_t lanes = std::min(kLanes, work.channels.end - c);
      const int64_t first = kPacked ? c : first_of_vector(c);
      const int64_t vector = (c - work.channels.begin) / kLanes % kVectorsAhead;
      const Distances next = distances(work, c - work.channels.begin, image_segments);
      for (const auto segment : c10::irange(work.segments.begin, work.segments.end)) {
        const auto& plan = plans[(segment - work.segments.begin) % planned];
        const Place place = place_of(segment / image_segments, first, vector, 1);
        if constexpr (kPacked) {
          pack_rows(place, rows_of(segment), lanes, scratch);
          run_rows(plan, {0, 0, 0, 1}, {0, 0}, scratch.sums.data());
        } else {
          run_rows(plan, place, next, scratch.sums.data());
        }
      }
      flush_lanes(c, scratch.sums.data(), chunk, partial, c - first);
    }
  }

  // Some rows of all vectors after the other; what is asked for are those that come next.
  void sum_rows(
      const SegmentWork& work,
      ArrayRef<RowPlan<scalar_t>> plans,
      int64_t image_segments,
      int64_t rows_at_once,
      acc_t* sums) {
    const Params& p = call_.p;
    const Distances next{
        rows_at_once * p.stride_height * p.input_width * p.channels,
        rows_at_once * p.output_width * p.channels};
    const int64_t whole = work.channels.size() / kLanes;
    // Segments that are not whole images are one at a time.
    const Range images{
        work.segments.begin / image_segments, (work.segments.end - 1) / image_segments + 1};
    for (const auto image : c10::irange(images.begin, images.end)) {
      for (const auto& plan : plans) {
        const int64_t channel = work.channels.begin;
        if (whole > 0) {
          run_rows(plan, place_of(image, channel, 0, whole), next, sums);
        }
        if (whole * kLanes < work.channels.size()) {
          run_rows(
              plan,
              place_of(image, first_of_vector(channel + whole * kLanes), 0, 1),
              {0, 0},
              sums + whole * sums_of_vector());
        }
      }
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

  // Adds the products of some rows to one vector for each tap and one for the bias, for each of some
  // vectors of channels.
  template <typename stored_t>
  void run_rows(const RowPlan<stored_t>& plan, const Place& place, Distances next, acc_t* sums)
      const {
    for (const auto& work : plan.works) {
      Products<stored_t> products = work.products;
      products.sums = sums + work.sums;
      products.input += place.input;
      products.grad += place.grad;
      products.offsets = work.offsets.data();
      products.vectors = place.vectors;
      products.vector_sums = sums_of_vector();
      if (next.input != 0) {
        for (const auto v : c10::irange(std::min(place.vectors, kVectorsAhead))) {
          look_ahead(work, place.vector, v, next, products);
        }
      }
      work.add(products);
    }
    // Last, as the products ask for what they need and this does not: 960@7 k3 N=16 498 us and 440.
    for (int64_t v = 0; call_.grad_bias && v < place.vectors; ++v) {
      add_values(
          plan.grad + place.grad + v * kLanes,
          plan.pitch,
          plan.pixels,
          sums + (v + 1) * sums_of_vector() - kLanes);
    }
  }

  // Shares what a block's vectors ask for among the first two of them: one input row or, with a stride,
  // two that no row before has met, and the row of grad_output. The products begin with vector `first` of
  // a block; `v` is counted from there.
  template <typename stored_t>
  void look_ahead(
      const RowWork<stored_t>& work,
      int64_t first,
      int64_t v,
      Distances next,
      Products<stored_t>& products) const {
    const int64_t vector = first + v;
    const bool two_rows = call_.p.stride_height > 1 && work.cross_taps > 1;
    const auto steps = [](const stored_t* from, int64_t step, int64_t repeat_step) -> Ahead {
      constexpr int64_t kBytes = sizeof(stored_t);
      return {from, step * kBytes, repeat_step * kBytes};
    };
    const auto grads = steps(
        products.grad + next.grad - first * kLanes, products.grad_step, products.grad_repeat_step);
    if (vector == 0 || (vector == 1 && two_rows)) {
      products.ahead[v] = steps(
          products.input + next.input + work.offsets[work.cross_taps - 1 - vector] - first * kLanes,
          products.input_step,
          products.input_repeat_step);
      if (vector == 0 && two_rows && work.first_of_rows) {
        products.also_ahead = grads;
      }
    } else if (vector == 1) {
      products.ahead[v] = grads;
    }
  }

  // A last vector that is not whole begins earlier, with channels that the vector before has too.
  int64_t first_of_vector(int64_t channel) const {
    return std::min(channel, call_.p.channels - kLanes);
  }

  // The sums from lane `shift` on are those of `channel` and of those behind it.
  void flush_lanes(
      int64_t channel,
      acc_t* sums,
      int64_t chunk,
      PartialSums<kLanes>& partial,
      int64_t shift = 0) {
    double* const totals = partial.at(chunk, 0, channel);
    for (const auto row : c10::irange(partial.rows)) {
      move_sums(sums + row * kLanes + shift, totals + row * kLanes, kLanes - shift);
      std::fill_n(sums + row * kLanes, shift, acc_t(0));
    }
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
        work.add = product_function<stored_t>(group.count, work.cross_taps);
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
                sums + p.kernel_size() * kLanes);
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
        product_function<acc_t>(group.count, cross)(work);
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

template <typename scalar_t>
void grad_weight_of_pixels(const GradWeightCall<scalar_t>& call) {
  PixelGradWeight<scalar_t>(call).run_pixels();
}
template <typename scalar_t>
void grad_weight_of_small_planes(const GradWeightCall<scalar_t>& call) {
  PixelGradWeight<scalar_t>(call).run_small_planes();
}
template <typename scalar_t>
void grad_weight_of_planes(const GradWeightCall<scalar_t>& call) {
  PlaneGradWeight<scalar_t>(call).run();
}

} // namespace
} // namespace at::native
