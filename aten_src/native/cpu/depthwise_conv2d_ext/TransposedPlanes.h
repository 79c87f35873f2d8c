// Forward and grad_input of depthwise_conv2d_ext over planes with short rows.
//
// A row of 7 columns would leave most of a vector of 16 idle. Instead, as many planes as a vector
// has lanes are transposed, so that each is a lane: they are then pixels of that many channels, in
// first-level cache, and worked on as such (Pixels.h). The results are transposed
// back. Planes of 7 x 7 have loops of their own between.
#pragma once

#include <ATen/native/cpu/depthwise_conv2d_ext/Pixels.h>

namespace at::native {
namespace {

// Which planes are transposed: those of which one has rows of less than this, a vector of AVX-512 and two
// of AVX2, while they fit into the second-level cache, lanes of no channel too. Against rows, fp32, one image:
// in AVX-512 960 planes of 7 x 7, k = 3, 101 us became 78; 384 of 14 x 14, 126 became 102, and k = 7 212 became
// 168. In AVX2 384 of 14 x 14, k = 3, 195 became 146 and its wgrad 202 124; 672 of 14 x 14, k5s2, 266 became
// 116, its grad_input 445 149. Of planes drawn at random those of more than 512 pixels, or with more than 16
// columns in the other plane, take 1 / 2.7 to 1 / 4.9 of the time, wgrad 1 / 3.9 to 1 / 7.9.
constexpr int64_t kSmallRowBytes = 64;

template <typename acc_t>
bool are_small_planes(const Params& p) {
  constexpr int64_t kColumns = kSmallRowBytes / sizeof(acc_t);
  const int64_t columns = std::min(p.input_width, p.output_width);
  const int64_t size = std::max(p.input_height * p.input_width, p.output_height * p.output_width);
  return p.multiplier == 1 && columns < kColumns &&
      size * ceil_div(kColumns, std::max<int64_t>(p.channels, 1)) <= 8 * kColumns * kColumns;
}

// Planes of some channels, as pixels: [size][lanes].
template <typename scalar_t>
class TransposedPlanes {
  using acc_t = opmath_type<scalar_t>;
  static constexpr int64_t kLanes = Vectorized<acc_t>::size();

 public:
  TransposedPlanes(int64_t size, int64_t lanes)
      : size_(size), lanes_(lanes), planes_(lanes * size + 2 * kLanes), pixels_(lanes * size) {}

  acc_t* pixels() const {
    return pixels_.data();
  }
  void read(const scalar_t* planes, int64_t count) const {
    const acc_t* values = planes_.data();
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      values = planes;
    } else {
      convert_row(planes, count * size_, planes_.data());
    }
    transpose(values, count, size_, size_, pixels_.data(), lanes_);
  }
  void write(scalar_t* planes, int64_t count) const {
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      transpose(pixels_.data(), size_, count, lanes_, planes, size_);
    } else {
      transpose(pixels_.data(), size_, count, lanes_, planes_.data(), size_);
      unpack_row(planes_.data(), 0, 1, planes, count * size_);
    }
  }

 private:
  int64_t size_; // values of a plane
  int64_t lanes_; // whole vectors
  AlignedBuffer<acc_t> planes_; // where 16-bit values are converted
  AlignedBuffer<acc_t> pixels_;
};

// Calls make_work() once a thread, and what it returns as work(pixels, results, channel, count,
// ahead, written) for `count` planes of one image from `channel` on, as pixels of `lanes` lanes
// each. Two ranges of addresses are to be asked for meanwhile: those that the next task reads and
// those that this one writes, for which the core's buffer for stores would wait: N=16 of 1152@7 k5
// 659 us became 550, of 768@7 k7 544 and 461.
template <typename scalar_t, typename MakeWork>
void for_planes_as_lanes(
    const PixelOperands<scalar_t>& of,
    const Params& p,
    int64_t lanes,
    const MakeWork& make_work) {
  const int64_t source_size = of.height.sources * of.width.sources;
  const int64_t result_size = of.height.results * of.width.results;
  const int64_t parts = ceil_div(p.channels, lanes);
  const auto grain = grain_of(lanes * p.output_height * p.output_width * p.kernel_size());
  at::parallel_for(0, p.batch * parts, grain, [&](int64_t begin, int64_t end) {
    const TransposedPlanes<scalar_t> from(source_size, lanes);
    const TransposedPlanes<scalar_t> to(result_size, lanes);
    auto work = make_work();
    for (const auto task : c10::irange(begin, end)) {
      const int64_t channel = task % parts * lanes;
      const int64_t plane = task / parts * p.channels + channel;
      const int64_t count = std::min(lanes, p.channels - channel);
      from.read(of.sources + plane * source_size, count);
      const int64_t next = plane + count;
      const int64_t next_count = std::min(count, p.batch * p.channels - next);
      const Range ahead = addresses_of(of.sources + next * source_size, next_count * source_size);
      const Range written = addresses_of(of.results + plane * result_size, count * result_size);
      work(from.pixels(), to.pixels(), channel, count, ahead, written);
      to.write(of.results + plane * result_size, count);
    }
  });
}

// A task is one or two vectors of channels of one image.
template <typename scalar_t>
void small_plane_pass(const Pass& pass) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int64_t kLanes = Vectorized<acc_t>::size();
  const PixelOperands<scalar_t> of(pass, LastVector::kPadded);
  const Params& p = of.params;
  const int64_t lanes = p.channels > kLanes ? 2 * kLanes : kLanes;
  const bool pairs = are_taken_by_pairs<acc_t>(lanes, of.height, of.width);
  for_planes_as_lanes(of, p, lanes, [&] {
    return [&, rows = PixelRows<acc_t>(p, pass.direction, of.weights, lanes, of.down)](
               const acc_t* pixels,
               acc_t* results,
               int64_t channel,
               int64_t count,
               Range ahead,
               Range written) mutable {
      const int64_t height = of.height.results;
      const int64_t step = pairs ? 2 : 1;
      AheadParts ahead_parts = AheadParts::of(ahead, ceil_div(height, step));
      AheadParts written_parts = AheadParts::of(written, ceil_div(height, step));
      for (int64_t row = 0; row < height; row += step) {
        written_parts.ask_for_part<Ask::kToWrite>();
        acc_t* const target = results + row * rows.result_row();
        const Range channels{0, round_up(count, kLanes)};
        const Range part = ahead_parts.take(1).left;
        if (pairs) {
          rows.run_pair(pixels, target, row, channels, channel, part);
        } else {
          rows.run(pixels, target, row, channels, channel, part);
        }
      }
    };
  });
}

#if defined(CPU_CAPABILITY_AVX512)

// Planes of 7 x 7 with windows of 3 x 3, 5 x 5 or 7 x 7 and strides and dilations of 1.
//
// As many planes as a vector has lanes, transposed, are 49 vectors, which stay in first-level cache with
// their weights and results. A row of results is 7 pixels by two sums each, of the even and of the odd taps
// across, so that additions wait less for each other, and err less. A line of the source is loaded once for
// each row of results that it meets, and every weight of that kernel row multiplied into the pixels for
// which it is inside: of k7 37 multiply-adds for 14 loads. Nothing outside the image is multiplied.
//
// Against PixelRows, fp32, one thread, Zen 5: 960@7 k3 20 us became 11, N=16 930 and 275, 1152@7 k5 32 and
// 19, N=16 580 and 360, 768@7 k7 29 and 19, N=16 430 and 294.
constexpr int kSevenPixels = 7; // a side

template <typename acc_t>
bool are_seven_planes(const Params& p) {
  const auto is_seven = [](int64_t height, int64_t width) {
    return height == kSevenPixels && width == kSevenPixels;
  };
  const int64_t side = p.kernel_height;
  return std::is_same_v<acc_t, float> && p.multiplier == 1 &&
      is_seven(p.input_height, p.input_width) && is_seven(p.output_height, p.output_width) &&
      p.kernel_width == side && (side == 3 || side == 5 || side == 7) && p.stride_height == 1 &&
      p.stride_width == 1 && p.dilation_height == 1 && p.dilation_width == 1;
}

// Planes and their weights by lanes. Taps follow each other as the sources that a result meets do.
template <typename acc_t>
struct SevenPlane {
  const acc_t* pixels; // [rows][columns][lanes]
  const acc_t* weights; // [taps down][taps across][lanes]
  const acc_t* start; // what sums begin with
  acc_t* results;
};

template <typename acc_t, int kSide>
C10_ALWAYS_INLINE void row_of_seven_plane(const SevenPlane<acc_t>& plane, int row) {
  using Vec = Vectorized<acc_t>;
  constexpr int kHalf = kSide / 2;
  constexpr int64_t kLine = kSevenPixels * Vec::size();
  const Vec start = Vec::loadu(plane.start);
  Vec even[kSevenPixels];
  Vec odd[kSevenPixels];
  DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
    even[c] = start;
    odd[c] = Vec(acc_t(0));
  }
  const int first = std::max(row - kHalf, 0);
  const int last = std::min(row + kHalf, kSevenPixels - 1);
  const acc_t* line = plane.pixels + first * kLine;
  const acc_t* weights = plane.weights + (first - row + kHalf) * kSide * Vec::size();
  for (int j = first; j <= last; ++j) {
    Vec sources[kSevenPixels];
    DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
      sources[c] = held_in_register(Vec::loadu(line + c * Vec::size()));
    }
    DEPTHWISE_UNROLL for (int i = 0; i < kSide; ++i) {
      const Vec weight = held_in_register(Vec::loadu(weights + i * Vec::size()));
      Vec* const sums = i % 2 == 0 ? even : odd;
      DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
        const int source = c + i - kHalf;
        if (source >= 0 && source < kSevenPixels) {
          sums[c] = vec::fmadd(sources[source], weight, sums[c]);
        }
      }
    }
    line += kLine;
    weights += kSide * Vec::size();
  }
  acc_t* const results = plane.results + row * kLine;
  DEPTHWISE_UNROLL for (int c = 0; c < kSevenPixels; ++c) {
    (even[c] + odd[c]).store(results + c * Vec::size());
  }
}

template <typename acc_t, int kSide>
void take_seven_plane(const SevenPlane<acc_t>& plane, Range ahead, Range written) {
  AheadParts ahead_parts = AheadParts::of(ahead, kSevenPixels);
  AheadParts written_parts = AheadParts::of(written, kSevenPixels);
  for (const auto row : c10::irange(kSevenPixels)) {
    // From the second-level cache N=16 would take 1.04 to 1.2 of the time.
    ahead_parts.ask_for_part();
    written_parts.ask_for_part<Ask::kToWrite>();
    row_of_seven_plane<acc_t, kSide>(plane, row);
  }
}

// Images from which on the weights are transposed once for all of them, not with each task. fp32,
// one thread, Zen 5, with each task and once: N=2 within 3 %, N=4 of 960@7 k5 48 us and 44, k7 64
// and 61, N=16 of 768@7 k7 206 and 188.
constexpr int64_t kWeightKeepingImages = 2;

// One thread's tasks; each is a vector of channels of one image. With the same channels of all
// images one after the other, whose weights would stay in first-level cache, N=16 of 768@7 k7 takes
// 1.15 of the time, of 960@7 k3 1.34.
//
// A task's weights are transposed where they are used, and all that it computes in is on the stack.
// Of one image, with the weights of all channels transposed before, into memory that was zeroed and
// then came back from the second-level cache, fp32, one thread, Zen 5, the kernel alone: 768@7 k7
// 15.7 us became 12.4, k5 11.2 and 8.9, k3 7.8 and 5.9, 16 channels of k7 .96 and .32.
template <typename scalar_t>
class SevenPlaneTasks {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  static constexpr bool kConverts = !std::is_same_v<scalar_t, acc_t>;
  static constexpr int64_t kLanes = Vec::size();
  static constexpr int64_t kPixels = kSevenPixels * kSevenPixels;

 public:
  explicit SevenPlaneTasks(const Pass& pass)
      : results_(pass.result.mutable_data_ptr<scalar_t>()),
        sources_(pass.source.const_data_ptr<scalar_t>()),
        weights_(pass.weight.const_data_ptr<scalar_t>()),
        biases_(pass.bias.defined() ? pass.bias.const_data_ptr<scalar_t>() : nullptr),
        channels_(pass.params.channels),
        planes_(pass.params.batch * channels_),
        taps_(pass.params.kernel_size()),
        direction_(pass.direction),
        take_plane_(
            pass.params.kernel_width == 3       ? &take_seven_plane<acc_t, 3>
                : pass.params.kernel_width == 5 ? &take_seven_plane<acc_t, 5>
                                                : &take_seven_plane<acc_t, 7>) {
    if (channels_ % kLanes != 0) { // lanes of no plane are computed too
      std::fill_n(pixels_, kPixels * kLanes, acc_t(0));
      std::fill_n(own_weights_, kPixels * kLanes, acc_t(0));
    }
  }

  // The weights of all channels by lanes.
  void transpose_all_weights(acc_t* to) {
    for (int64_t channel = 0; channel < channels_; channel += kLanes) {
      transpose_weights(channel, to + channel * taps_);
    }
  }

  // `kept` are all weights by lanes, or null.
  void run(int64_t begin, int64_t end, const acc_t* kept) {
    const int64_t vectors = ceil_div(channels_, kLanes);
    int64_t channel = begin % vectors * kLanes;
    int64_t plane = begin / vectors * channels_ + channel;
    for (int64_t left = end - begin; left > 0; --left) {
      if (!kept) {
        transpose_weights(channel, own_weights_);
      }
      const int64_t count = count_of(channel);
      take(plane, channel, count, kept ? kept + channel * taps_ : own_weights_);
      plane += count;
      channel = channel + count < channels_ ? channel + count : 0;
    }
  }

 private:
  int64_t count_of(int64_t channel) const {
    return std::min(kLanes, channels_ - channel);
  }

  static const acc_t* as_values(const scalar_t* stored, int64_t count, acc_t* values) {
    if constexpr (kConverts) {
      convert_row(stored, count, values);
      return values;
    } else {
      return stored;
    }
  }

  // Of grad_input from the last tap to the first.
  void transpose_weights(int64_t channel, acc_t* to) {
    const int64_t count = count_of(channel);
    const acc_t* const from = as_values(weights_ + channel * taps_, count * taps_, values_);
    const bool forward = direction_ == Direction::kForward;
    const int64_t step = forward ? kLanes : -kLanes;
    transpose(from, count, taps_, taps_, forward ? to : to + (taps_ - 1) * kLanes, step);
  }

  void take(int64_t plane, int64_t channel, int64_t count, const acc_t* weights) {
    if (biases_) {
      load_lanes(biases_ + channel, count).store(start_);
    } else {
      Vec(acc_t(0)).store(start_);
    }
    const scalar_t* const sources = sources_ + plane * kPixels;
    transpose(
        as_values(sources, count * kPixels, values_), count, kPixels, kPixels, pixels_, kLanes);
    const int64_t next = plane + count;
    const int64_t next_count = std::min(count, planes_ - next);
    scalar_t* const results = results_ + plane * kPixels;
    take_plane_(
        {pixels_, weights, start_, sums_},
        addresses_of(sources + count * kPixels, next_count * kPixels),
        addresses_of(results, count * kPixels));
    if constexpr (kConverts) {
      transpose(sums_, kPixels, count, kLanes, values_, kPixels);
      unpack_row(values_, 0, 1, results, count * kPixels);
    } else {
      transpose(sums_, kPixels, count, kLanes, results, kPixels);
    }
  }

  scalar_t* results_;
  const scalar_t* sources_;
  const scalar_t* weights_;
  const scalar_t* biases_; // or null
  int64_t channels_;
  int64_t planes_; // of all images
  int64_t taps_; // of a window, as many as a plane has pixels at most
  Direction direction_;
  void (*take_plane_)(const SevenPlane<acc_t>&, Range, Range);
  alignas(kCacheLine) acc_t pixels_[kPixels * kLanes];
  alignas(kCacheLine) acc_t own_weights_[kPixels * kLanes];
  alignas(kCacheLine) acc_t start_[kLanes];
  alignas(kCacheLine) acc_t sums_[kPixels * kLanes];
  // 16-bit planes or weights as acc_t, with what convert_row writes behind them.
  alignas(kCacheLine) acc_t values_[kConverts ? (kPixels + 2) * kLanes : 1];
};

template <typename scalar_t>
void seven_plane_pass([[maybe_unused]] const Pass& pass) {
  if constexpr (std::is_same_v<opmath_type<scalar_t>, float>) {
    using acc_t = opmath_type<scalar_t>;
    using Tasks = SevenPlaneTasks<scalar_t>;
    constexpr int64_t kLanes = Vectorized<acc_t>::size();
    const int64_t vectors = ceil_div(pass.params.channels, kLanes);
    const int64_t vector_weights = pass.params.kernel_size() * kLanes;
    const bool keeps = pass.params.batch >= kWeightKeepingImages;
    const AlignedBuffer<acc_t> kept(keeps ? vectors * vector_weights : 0);
    if (keeps) {
      Tasks(pass).transpose_all_weights(kept.data());
    }
    const auto grain = grain_of(vector_weights * kSevenPixels * kSevenPixels);
    at::parallel_for(0, pass.params.batch * vectors, grain, [&](int64_t begin, int64_t end) {
      Tasks(pass).run(begin, end, keeps ? kept.data() : nullptr);
    });
  }
}

#endif

} // namespace
} // namespace at::native
