// Gradients of the weight and the bias of depthwise_conv2d_ext by products of rows (GradWeight.h).
//
// Over pixels, of [N, H, W, C] and of small planes once they are transposed (TransposedPlanes.h), lanes are
// channels, and rows that meet the same kernel rows are summed up in one go. Over other planes lanes are
// columns, whose sums are added to each other at last: the input is packed as for the forward pass
// (Planes.h) and grad_output with zeros up to whole vectors.
#pragma once

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

// What is to be done for some rows of one image, the same for each vector of channels.
struct RowPlan {
  Range rows;
  int64_t grad; // of the first pixel
  c10::SmallVector<Products, 8> works; // of the first vector of channels
};

// Plans the products of pixels `pitch` values apart, by vectors of `lanes`.
struct RowPlanner {
  const Params& p;
  const Dimension& width;
  int64_t pitch;
  int64_t lanes;

  RowPlan plan_rows(Range rows, bool with_weight) const {
    RowPlan plan{rows, rows.begin * p.output_width * pitch, {}};
    for (int64_t row = rows.begin; with_weight && row < rows.end;) {
      // Rows that meet the same kernel rows.
      const Range taps = kernel_rows(row);
      int64_t end = row + 1;
      for (; end < rows.end; ++end) {
        const Range next = kernel_rows(end);
        if (next.begin != taps.begin || next.end != taps.end) {
          break;
        }
      }
      add_work({row, end}, taps, plan);
      row = end;
    }
    return plan;
  }

  // The kernel rows that are inside the image at an output row.
  Range kernel_rows(int64_t row) const {
    const int64_t top = row * p.stride_height - p.padding_height;
    const int64_t begin =
        std::max<int64_t>(0, ceil_div(std::max<int64_t>(-top, 0), p.dilation_height));
    const int64_t last = floor_div(p.input_height - 1 - top, p.dilation_height);
    const int64_t end = std::min(p.kernel_height, last + 1);
    return {std::min(begin, std::max<int64_t>(end, 0)), std::max<int64_t>(end, 0)};
  }

  // Plans the products of rows that meet the same kernel rows.
  void add_work(Range rows, Range taps, RowPlan& plan) const {
    const int64_t row_pitch = p.input_width * pitch;
    const int64_t top = rows.begin * p.stride_height - p.padding_height;
    Products work{};
    work.cross_step = p.kernel_width * lanes;
    work.input_step = width.source_step() * pitch;
    work.grad_step = width.result_step() * pitch;
    work.repeats = rows.size();
    work.input_repeat_step = p.stride_height * row_pitch;
    work.grad_repeat_step = p.output_width * pitch;
    for (const auto i : c10::irange(kMaxProductCross)) {
      work.offsets[i] = i * p.dilation_height * row_pitch;
    }
    for (int64_t kh = taps.begin; kh < taps.end; kh += work.cross) {
      work.cross = cross_taps_at_once(taps.end - kh, width.most_taps());
      const int64_t first_row = top + kh * p.dilation_height;
      for_each_group(width, work.cross, [&](int64_t phase, const TapGroup& group) {
        work.taps = group.count;
        work.positions = width.results_of(phase);
        find_steps(group.source, width, work);
        work.sums = (kh * p.kernel_width + group.first) * lanes;
        work.tap_step = group.step * lanes;
        work.input = (first_row * p.input_width + group.source) * pitch;
        work.grad = (rows.begin * p.output_width + phase) * pitch;
        plan.works.push_back(work);
      });
    }
  }
};

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
    const int64_t vectors = is_by_rows() ? kVectorsPerRow : kVectorsPerTask;
    const int64_t part = vectors * kLanes;
    const int64_t parts = ceil_div(p.channels, part);
    const int64_t chunks = chunk_count(segments, parts);
    PartialSums<kLanes> partial(chunks, p);
    const auto grain = grain_of(
        ceil_div(segments, chunks) * segment_rows * p.output_width * p.kernel_size() * part);
    in_parallel(parts * chunks, grain, [&](int64_t begin, int64_t end) {
      AlignedBuffer<acc_t> sums(sums_of_vector() * (is_by_rows() ? vectors : 1));
      LinesAhead ahead;
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t first = task % parts * part;
        const int64_t last = std::min(p.channels, first + part);
        const Range here{segments * chunk / chunks, segments * (chunk + 1) / chunks};
        for (int64_t s = here.begin; s < here.end;) {
          // As many segments as are added up before their sums are.
          const int64_t joined = std::min(
              here.end, s + std::max<int64_t>(1, kTermsPerLane / (segment_rows * p.output_width)));
          sum_segments(
              {{s, joined}, segment_rows, {first, last}}, sums.data(), ahead, chunk, partial);
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
    in_parallel(parts * chunks, grain, [&](int64_t begin, int64_t end) {
      AlignedBuffer<acc_t> sums((p.kernel_size() + 1) * kLanes);
      const TransposedPlanes<scalar_t> input(input_size, kLanes);
      const TransposedPlanes<scalar_t> grad(output_size, kLanes);
      const RowPlanner planner{p, width_, kLanes, kLanes};
      const RowPlan rows = planner.plan_rows({0, p.output_height}, call_.grad_weight);
      LinesAhead ahead;
      for (const auto task : c10::irange(begin, end)) {
        const int64_t chunk = task / parts;
        const int64_t channel = task % parts * kLanes;
        const int64_t lanes = std::min(kLanes, p.channels - channel);
        int64_t terms = 0;
        for (const auto n : c10::irange(p.batch * chunk / chunks, p.batch * (chunk + 1) / chunks)) {
          const int64_t plane = n * p.channels + channel;
          input.read(call_.input + plane * input_size, lanes);
          grad.read(call_.grad + plane * output_size, lanes);
          if (n + 1 < p.batch) {
            const Range filters{channel, channel + lanes};
            ahead.begin(
                part_of(call_, call_.input, n + 1, {0, p.input_height}, filters),
                part_of(call_, call_.grad, n + 1, rows.rows, filters));
          }
          run_rows<acc_t>(rows, kLanes, {input.pixels(), grad.pixels(), sums.data()}, ahead);
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
  // Some segments by some channels.
  struct SegmentWork {
    Range segments;
    int64_t segment_rows;
    Range channels;
  };

  bool is_by_rows() const {
    const Params& p = call_.p;
    const int64_t pixels = p.input_height * p.input_width + p.output_height * p.output_width;
    const int64_t bytes = p.batch * pixels * p.channels * static_cast<int64_t>(sizeof(scalar_t));
    return bytes > kRowBytes &&
        (p.kernel_size() <= kRowTaps || p.output_height * p.output_width <= kRowPlane);
  }

  int64_t sums_of_vector() const {
    return (call_.p.kernel_size() + 1) * kLanes;
  }

  // Segments whose sums are added up before they are in double, by each vector of channels after the other,
  // or by all of them row after row.
  void sum_segments(
      const SegmentWork& work,
      acc_t* sums,
      LinesAhead& ahead,
      int64_t chunk,
      PartialSums<kLanes>& partial) {
    const Params& p = call_.p;
    const int64_t image_segments = ceil_div(p.output_height, work.segment_rows);
    const auto rows_of = [&](int64_t segment) -> Range {
      const int64_t row = segment % image_segments * work.segment_rows;
      return {row, std::min(row + work.segment_rows, p.output_height)};
    };
    const bool by_rows = is_by_rows();
    const int64_t rows_at_once =
        by_rows ? std::max<int64_t>(1, kRowPixels / p.output_width) : work.segment_rows;
    // Whole images have one plan.
    const int64_t planned = image_segments == 1 ? 1 : work.segments.size();
    std::vector<c10::SmallVector<RowPlan, 4>> plans(planned);
    const RowPlanner planner{p, width_, p.channels, kLanes};
    for (const auto i : c10::irange(planned)) {
      const Range rows = rows_of(work.segments.begin + i);
      for (int64_t row = rows.begin; row < rows.end; row += rows_at_once) {
        plans[i].push_back(
            planner.plan_rows({row, std::min(row + rows_at_once, rows.end)}, call_.grad_weight));
      }
    }
    for (int64_t c = work.channels.begin; c < work.channels.end;) {
      const int64_t left = work.channels.end - c;
      const int64_t vectors = by_rows ? std::max<int64_t>(1, left / kLanes) : 1;
      // A last vector that is not whole begins earlier, with channels that the vector before has too.
      const int64_t first = std::clamp<int64_t>(p.channels - kLanes, 0, c);
      for (const auto segment : c10::irange(work.segments.begin, work.segments.end)) {
        const int64_t image = segment / image_segments;
        for (const auto& plan : plans[(segment - work.segments.begin) % planned]) {
          if (by_rows) {
            const Range rows{plan.rows.end, plan.rows.end + plan.rows.size()};
            const Range channels{c, c + vectors * kLanes};
            ahead.begin(
                part_of(
                    call_,
                    call_.input,
                    image,
                    {input_rows(p, plan.rows).end, input_rows(p, rows).end},
                    channels),
                part_of(call_, call_.grad, image, rows, channels));
          } else {
            ask_for_next(work, c, segment, image_segments, rows_of, ahead);
          }
          run_rows<scalar_t>(
              plan,
              p.channels,
              {call_.input + image * p.input_height * p.input_width * p.channels + first,
               call_.grad + image * p.output_height * p.output_width * p.channels + first,
               sums,
               vectors,
               sums_of_vector()},
              ahead);
        }
      }
      for (const auto v : c10::irange(vectors)) {
        flush_lanes(c + v * kLanes, sums + v * sums_of_vector(), chunk, partial, c - first);
      }
      c += vectors * kLanes;
    }
  }

  // Has the products of a segment ask for the same rows of the vectors that fill the next pair of cache lines
  // or, behind the last one, for the first ones of later segments, each of the vectors for its share of rows.
  template <typename RowsOf>
  void ask_for_next(
      const SegmentWork& work,
      int64_t channel,
      int64_t segment,
      int64_t image_segments,
      const RowsOf& rows_of,
      LinesAhead& ahead) const {
    constexpr int64_t kVectors = kPairVectors<scalar_t>;
    const int64_t vector = (channel - work.channels.begin) / kLanes % kVectors;
    const int64_t beside = channel + (kVectors - vector) * kLanes;
    const bool later = beside >= work.channels.end;
    const int64_t first = later ? work.channels.begin : beside;
    const int64_t next = later ? segment + work.segments.size() : segment;
    const Range channels{first, first + kVectors * kLanes};
    const auto share_of = [&](Range rows) -> Range {
      return {
          rows.begin + rows.size() * vector / kVectors,
          rows.begin + rows.size() * (vector + 1) / kVectors};
    };
    const Range rows = rows_of(next);
    const int64_t image = next / image_segments;
    ahead.begin(
        part_of(call_, call_.input, image, share_of(input_rows(call_.p, rows)), channels),
        part_of(call_, call_.grad, image, share_of(rows), channels));
  }

  // Adds the products of some rows to one vector for each tap and one for the bias, for each of some
  // vectors of channels.
  template <typename stored_t>
  void run_rows(
      const RowPlan& plan,
      int64_t pitch,
      const ProductOperands<stored_t>& of,
      LinesAhead& ahead) const {
    for (const Products& work : plan.works) {
      add_products(work, of, ahead);
    }
    // Last, as the products ask for what they need and this does not: 960@7 k3 N=16 498 us and 440.
    for (int64_t v = 0; call_.grad_bias && v < of.vectors; ++v) {
      add_values(
          of.grad + plan.grad + v * kLanes,
          pitch,
          plan.rows.size() * call_.p.output_width,
          of.sums + v * of.vector_sums + sums_of_vector() - kLanes);
    }
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
    in_parallel(p.channels * chunks, grain, [&](int64_t begin, int64_t end) {
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
    LinesAhead ahead;
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
            ask_for_packed_next(n, channel, j, rows, band, scratch.ahead);
            add_band(rows, lowest, sums, scratch);
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
    const Range needed = input_rows(p, rows);
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

  // What is packed next, the next band or the first one of the next image or channel, is asked for while this
  // one is worked on.
  void ask_for_packed_next(
      int64_t image,
      int64_t channel,
      int64_t j,
      Range rows,
      int64_t band,
      LinesAhead& ahead) const {
    const Params& p = call_.p;
    if (rows.end >= p.output_height) {
      image = image + 1 < p.batch ? image + 1 : 0;
      channel += image == 0 ? 1 : 0;
      rows = {0, 0};
    }
    if (channel == p.channels) {
      ahead.begin({}, {});
      return;
    }
    rows = {rows.end, std::min(rows.end + band, p.output_height)};
    const Range met{
        rows.begin * p.input_height / p.output_height, rows.end * p.input_height / p.output_height};
    const int64_t filter = channel * p.multiplier + j;
    ahead.begin(
        part_of(call_, call_.input, image, met, {channel, channel + 1}),
        part_of(call_, call_.grad, image, rows, {filter, filter + 1}));
  }

  // The products of packed rows: `rows` of grad_output, the input's from `lowest` on.
  void add_band(Range rows, int64_t lowest, acc_t* sums, Scratch& scratch) {
    Products work{};
    work.cross_step = kLanes;
    work.input_step = height_.source_step() * columns_.pitch();
    work.grad_step = height_.result_step() * grad_pitch_;
    work.input_repeat_step = work.grad_repeat_step = kLanes;
    const int64_t length = ceil_div(call_.p.input_width, columns_.classes);
    for (int64_t b = 0; b < call_.p.kernel_width; b += work.cross) {
      work.cross = cross_taps_at_once(call_.p.kernel_width - b, height_.most_taps());
      for (const auto i : c10::irange(work.cross)) {
        work.offsets[i] = columns_.cross[b + i].source;
      }
      // The vectors of columns at which one of these taps meets the image.
      const int64_t begin = std::max<int64_t>(0, -columns_.positions[b + work.cross - 1]) / kLanes;
      const int64_t end =
          ceil_div(std::min(call_.p.output_width, length - columns_.positions[b]), kLanes);
      work.repeats = end - begin;
      for_each_group(height_, work.cross, [&](int64_t phase, const TapGroup& group) {
        const int64_t q = rows.begin / height_.result_step();
        const int64_t source = group.source + q * height_.source_step();
        work.positions = ceil_div(
            std::min(rows.end, call_.p.output_height) - rows.begin - phase, height_.result_step());
        if (work.positions <= 0) {
          return;
        }
        work.taps = group.count;
        find_steps(source, height_, work);
        work.sums = (group.first * call_.p.kernel_width + b) * kLanes;
        work.tap_step = group.step * call_.p.kernel_width * kLanes;
        work.input = (source - lowest) * columns_.pitch() + begin * kLanes;
        work.grad = phase * grad_pitch_ + begin * kLanes;
        add_products<acc_t>(work, {scratch.input.data(), scratch.grad.data(), sums}, scratch.ahead);
      });
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
  const Params& p = call.p;
  const WholeVectors<scalar_t> input(
      call.input, p.batch * p.input_height * p.input_width, p.channels);
  const WholeVectors<scalar_t> grad(
      call.grad, p.batch * p.output_height * p.output_width, p.channels);
  PixelGradWeight<scalar_t>({p, call.grad_weight, call.grad_bias, grad.data(), input.data()})
      .run_pixels();
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
