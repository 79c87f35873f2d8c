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

// Operands of one call; a result that is not wanted is null.
template <typename scalar_t>
struct GradWeightCall {
  Params p;
  scalar_t* grad_weight;
  scalar_t* grad_bias;
  const scalar_t* grad;
  const scalar_t* input;
};

// Sums of one chunk, of all filters: [chunk][tap or bias][output channel].
struct PartialSums {
  PartialSums(int64_t chunk_count, const Params& p)
      : chunks(chunk_count),
        rows(p.kernel_size() + 1),
        channels(p.output_channels()),
        values(chunk_count * rows * channels) {}
  double* at(int64_t chunk, int64_t row, int64_t channel) {
    return values.data() + (chunk * rows + row) * channels + channel;
  }
  int64_t chunks;
  int64_t rows;
  int64_t channels;
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

// The rows of one filter's sums are far apart, those of neighbouring ones next to each other: so many
// filters are written at once.
constexpr int64_t kFiltersAtOnce = 16;

// The results of filters [begin, end). False where one of the weight's is a NaN.
template <typename scalar_t>
bool write_results(const GradWeightCall<scalar_t>& call, PartialSums& partial, Range filters) {
  const int64_t taps = call.p.kernel_size();
  bool certain = true;
  for (const auto tap : c10::irange(call.grad_weight ? taps : 0)) {
    const double* const sums = partial.at(0, tap, 0);
    for (const auto filter : c10::irange(filters.begin, filters.end)) {
      certain &= !std::isnan(sums[filter]);
      call.grad_weight[filter * taps + tap] = static_cast<scalar_t>(sums[filter]);
    }
  }
  for (int64_t filter = filters.begin; call.grad_bias && filter < filters.end; ++filter) {
    call.grad_bias[filter] = static_cast<scalar_t>(*partial.at(0, taps, filter));
  }
  return certain;
}

// Adds the chunks and writes the results.
template <typename scalar_t>
void finish(const GradWeightCall<scalar_t>& call, PartialSums& partial) {
  const Params& p = call.p;
  for (const auto chunk : c10::irange(1, partial.chunks)) {
    for (const auto i : c10::irange(partial.rows * partial.channels)) {
      partial.at(0, 0, 0)[i] += partial.at(chunk, 0, 0)[i];
    }
  }
  for (int64_t first = 0; first < partial.channels; first += kFiltersAtOnce) {
    const Range filters{first, std::min(first + kFiltersAtOnce, partial.channels)};
    if (write_results(call, partial, filters)) {
      continue;
    }
    for (const auto channel : c10::irange(filters.begin, filters.end)) {
      if (!write_results(call, partial, {channel, channel + 1})) {
        exact_grad_weight(
            call.grad_weight + channel * p.kernel_size(),
            channel_view(
                p, call.grad, channel, p.output_channels(), p.output_height * p.output_width),
            channel_view(
                p, call.input, channel / p.multiplier, p.channels, p.input_height * p.input_width),
            p);
      }
    }
  }
}

} // namespace
} // namespace at::native
