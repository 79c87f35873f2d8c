// What the gradients of the weight of depthwise_conv2d_ext have in common in both memory orders.
//
// Sums over the whole batch are taken in vectors of the arithmetic type for some hundred terms a
// lane, then in double. The batch is cut into chunks by the shape alone; each chunk of a channel is
// summed by one thread, and the chunks are added in their order, so that results do not depend on
// the number of threads.
//
// The kernels multiply zeros outside the image, so that a NaN may be of infinity times zero: a
// filter whose gradient has one is computed again by exact_grad_weight.
#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/DepthwiseConv2dExtExact.h>
#include <ATen/native/cpu/DepthwiseConv2dExtProducts.h>
#include <cmath>

namespace at::native {
namespace {

// Terms that a lane adds up before it is added in double: 512 keep the error of a sum near that of
// its terms, and the additions in double below 2 % of the products.
constexpr int64_t kTermsPerLane = 512;
// Chunks that all channels together are cut into at least, where the batch allows.
constexpr int64_t kWantedTasks = 32;

// From so many taps on, the pixels of a vector of channels are copied next to each other first. fp32,
// one thread of AVX2: 128@56 k31 29.1 -> 19.3 ms, 512@14 k27 5.2 -> 4.3, 1024@7 k13 1.62 -> 1.46; windows
// of 7 within a tenth of what they were, of 5 up to a fifth slower.
constexpr int64_t kPackedTaps = 64;

// Operands of one call; a result that is not wanted is null.
template <typename scalar_t>
struct GradWeightCall {
  Params p;
  scalar_t* grad_weight;
  scalar_t* grad_bias;
  const scalar_t* grad;
  const scalar_t* input;
};

// Sums of each chunk, of all filters by vectors of them: [chunk][vector][tap or bias][lane].
template <int64_t kLanes>
struct PartialSums {
  PartialSums(int64_t chunk_count, const Params& p)
      : chunks(chunk_count),
        rows(p.kernel_size() + 1),
        vectors(ceil_div(p.output_channels(), kLanes)),
        values(chunk_count * vectors * rows * kLanes) {}
  double* at(int64_t chunk, int64_t row, int64_t channel) {
    return values.data() + ((chunk * vectors + channel / kLanes) * rows + row) * kLanes +
        channel % kLanes;
  }
  int64_t chunks;
  int64_t rows;
  int64_t vectors;
  AlignedBuffer<double> values;
};

// How many chunks to cut `length` into, where each is cut into `parts` in another way. By the shape
// alone, as it decides in which order results are added.
inline int64_t chunk_count(int64_t length, int64_t parts) {
  return std::max<int64_t>(1, std::min(length, ceil_div(kWantedTasks, parts)));
}

// Calls visit(phase, taps) for all taps of a dimension, as many at once as registers allow.
template <typename Visit>
void for_each_group(const Dimension& dimension, int64_t cross, const Visit& visit) {
  for (const auto phase : c10::irange(dimension.phases())) {
    for (const auto g : c10::irange(dimension.groups())) {
      TapGroup rest = dimension.group(phase, g);
      while (rest.count > 0) {
        TapGroup now = rest;
        now.count = group_taps_at_once(rest.count, cross);
        visit(phase, now);
        rest.first += now.count * rest.step;
        rest.source += now.count * dimension.source_step();
        rest.count -= now.count;
      }
    }
  }
}

// The steps from source position `source` on that are inside the image.
template <typename stored_t>
void find_steps(
    int64_t source,
    const Dimension& dimension,
    int64_t taps,
    Products<stored_t>& work) {
  const int64_t step = dimension.source_step();
  work.first = source >= 0 ? 0 : ceil_div(-source, step);
  work.last =
      std::min(work.positions + taps - 1, floor_div(dimension.sources - 1 - source, step) + 1);
}

// Neighbouring bytes that will be read later; of null, none.
struct Slice {
  const char* first;
  int64_t size;
};

// Part `part` of `parts` of a slice, asked for in equal shares by all steps of some products.
template <typename stored_t>
Ahead spread(const Slice& slice, int64_t part, int64_t parts, const Products<stored_t>& work) {
  const int64_t steps = (work.last - work.first) * work.repeats;
  if (!slice.first || part >= parts || steps <= 0) {
    return {nullptr, 0, 0};
  }
  const int64_t step = ceil_div(slice.size / parts, steps);
  return {
      slice.first + slice.size * part / parts - work.first * step,
      step,
      (work.last - work.first) * step};
}

// Adds `count` vectors, `step` apart, to a vector of sums.
template <typename stored_t>
void add_values(
    const stored_t* values,
    int64_t step,
    int64_t count,
    opmath_type<stored_t>* sums,
    int64_t lanes) {
  using Vec = Vectorized<opmath_type<stored_t>>;
  constexpr int64_t kLanes = Vec::size();
  constexpr int kChains = 4; // additions that do not wait for each other
  constexpr int kBlock = 8 * kChains; // vectors whose sum is taken by itself, for its error
  const auto load = [&](int64_t i) {
    return lanes == kLanes ? load_lanes(values + i * step) : load_lanes(values + i * step, lanes);
  };
  Vec total(opmath_type<stored_t>(0));
  for (int64_t block = 0; block < count; block += kBlock) {
    const int64_t end = std::min(count, block + kBlock);
    Vec chains[kChains];
    std::fill_n(chains, kChains, Vec(opmath_type<stored_t>(0)));
    int64_t i = block;
    for (; i + kChains <= end; i += kChains) {
      DEPTHWISE_UNROLL for (int chain = 0; chain < kChains; ++chain) {
        chains[chain] = chains[chain] + load(i + chain);
      }
    }
    for (; i < end; ++i) {
      chains[0] = chains[0] + load(i);
    }
    total = total + ((chains[0] + chains[1]) + (chains[2] + chains[3]));
  }
  (Vec::loadu(sums) + total).store(sums);
}

template <typename scalar_t>
ChannelView<scalar_t> channel_view(
    const Params& p,
    const scalar_t* tensor,
    int64_t channel,
    int64_t channels,
    int64_t pixels) {
  const bool last = p.channels_last;
  return {tensor + (last ? channel : channel * pixels), channels * pixels, last ? channels : 1};
}

// Adds sums to others in double and begins them anew.
template <typename acc_t>
void move_sums(acc_t* sums, double* totals, int64_t count) {
  for (const auto i : c10::irange(count)) {
    totals[i] += static_cast<double>(sums[i]);
    sums[i] = acc_t(0);
  }
}

template <int64_t kLanes, typename acc_t, typename sum_t>
Vectorized<acc_t> load_sums(const sum_t* sums) {
  if constexpr (std::is_same_v<sum_t, acc_t>) {
    return Vectorized<acc_t>::loadu(sums);
  } else {
    std::array<acc_t, kLanes> values;
    DEPTHWISE_UNROLL for (int64_t lane = 0; lane < kLanes; ++lane) {
      values[lane] = static_cast<acc_t>(sums[lane]);
    }
    return Vectorized<acc_t>::loadu(values.data());
  }
}

// Writes the results of a vector of filters from their sums, [tap or bias][lane]: by squares, as a tap's
// sums are next to each other and a filter's results are.
template <int64_t kLanes, typename scalar_t, typename sum_t>
void write_filters(const GradWeightCall<scalar_t>& call, const sum_t* sums, Range filters) {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  const Params& p = call.p;
  const int64_t taps = p.kernel_size();
  const int64_t lanes = filters.size();
  for (int64_t lane = 0; call.grad_bias && lane < lanes; ++lane) {
    call.grad_bias[filters.begin + lane] = static_cast<scalar_t>(sums[taps * kLanes + lane]);
  }
  if (!call.grad_weight) {
    return;
  }
  Vec unlimited(acc_t(0)); // NaN where a sum is not finite
  alignas(kCacheLine) std::array<acc_t, kLanes * kLanes> square{};
  for (int64_t i = 0; i < taps; i += kLanes) {
    // The last square overlaps the one before.
    const int64_t first = std::max<int64_t>(0, std::min(i, taps - kLanes));
    const int64_t count = std::min(kLanes, taps - first);
    for (const auto row : c10::irange(count)) {
      const Vec values = load_sums<kLanes, acc_t>(sums + (first + row) * kLanes);
      unlimited = vec::fmadd(values, Vec(acc_t(0)), unlimited);
      if (!std::is_same_v<sum_t, acc_t> || count < kLanes) {
        values.store(square.data() + row * kLanes);
      }
    }
    const acc_t* from = square.data();
    if constexpr (std::is_same_v<sum_t, acc_t>) {
      if (count == kLanes) { // else a square would reach beyond the sums
        from = sums + first * kLanes;
      }
    }
    scalar_t* const target = call.grad_weight + filters.begin * taps + first;
    if constexpr (std::is_same_v<scalar_t, acc_t>) {
      if (count == kLanes && lanes == kLanes) {
        transpose_square(from, kLanes, target, taps);
        continue;
      }
    }
    transpose_square(from, kLanes, square.data(), kLanes);
    for (const auto lane : c10::irange(lanes)) {
      store_lanes(Vec::loadu(square.data() + lane * kLanes), target + lane * taps, count);
    }
  }
  std::array<acc_t, kLanes> limits;
  unlimited.store(limits.data());
  for (const auto lane : c10::irange(lanes)) {
    bool certain = true;
    for (int64_t tap = 0; std::isnan(limits[lane]) && tap < taps; ++tap) {
      certain &= !std::isnan(sums[tap * kLanes + lane]);
    }
    if (!certain) {
      const int64_t channel = filters.begin + lane;
      exact_grad_weight(
          call.grad_weight + channel * taps,
          channel_view(
              p, call.grad, channel, p.output_channels(), p.output_height * p.output_width),
          channel_view(
              p, call.input, channel / p.multiplier, p.channels, p.input_height * p.input_width),
          p);
    }
  }
}

// Adds the chunks and writes the results.
template <int64_t kLanes, typename scalar_t>
void finish(const GradWeightCall<scalar_t>& call, PartialSums<kLanes>& partial) {
  const int64_t size = partial.vectors * partial.rows * kLanes;
  double* const sums = partial.values.data();
  for (const auto chunk : c10::irange(1, partial.chunks)) {
    for (const auto i : c10::irange(size)) {
      sums[i] += sums[chunk * size + i];
    }
  }
  const int64_t filters = call.p.output_channels();
  for (int64_t first = 0; partial.chunks > 0 && first < filters; first += kLanes) {
    write_filters<kLanes>(
        call, partial.at(0, 0, first), {first, std::min(first + kLanes, filters)});
  }
}

} // namespace
} // namespace at::native
