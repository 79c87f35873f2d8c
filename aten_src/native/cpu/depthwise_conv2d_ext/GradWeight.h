// What the gradients of the weight of depthwise_conv2d_ext have in common in both memory orders.
//
// Sums over the whole batch are taken in vectors of the arithmetic type for some hundred terms a
// lane, then in double. The batch is cut into chunks by the shape alone; each chunk of a channel is
// summed by one thread, and the chunks are added in their order, so that results do not depend on
// the number of threads.
//
// The kernels multiply zeros outside the image, so that a NaN may be of infinity times zero: a
// filter whose gradient has one is computed again by exact_grad_weight.
//
// grad_weight[tap] is a sum of products of grad_output and the input over all positions. As in
// Tiles.h, both memory orders are marched through along one dimension (rows of
// planes, pixels of channels last), along which the taps of a group meet neighbouring positions. At
// each step one vector of the input for every tap of the other dimension meets the vectors of
// grad_output of the last positions, one for every tap of the group: 1 + kCross loads for
// kTaps * kCross multiply-adds, whose sums stay in registers.
#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Problem.h>
#include <ATen/native/cpu/depthwise_conv2d_ext/Vectors.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace at::native {
namespace {

// Taps of a group that are taken at once with 1, 2, 3 ... of the other dimension: their sums, their
// vectors of grad_output and one of the input are to be registers. 5 x 5 take 31 of AVX-512's 32. Of the
// 16 of AVX2, 3 x 3 take 13; 3 x 5 pay where groups are small. Of 0 there is no loop.
#if defined(CPU_CAPABILITY_AVX512) || !defined(__x86_64__)
constexpr bool kFewRegisters = false;
constexpr std::array<int, 7> kTapsAtOnce = {4, 0, 4, 0, 5, 0, 4};
#elif defined(CPU_CAPABILITY_AVX2)
constexpr bool kFewRegisters = true;
constexpr std::array<int, 5> kTapsAtOnce = {4, 0, 3, 0, 3};
#else
constexpr bool kFewRegisters = true;
constexpr std::array<int, 1> kTapsAtOnce = {2};
#endif
constexpr int kMaxProductCross = kTapsAtOnce.size();

// What is read next, asked for a little with each step of products: runs of pairs of cache lines, which memory
// delivers twice as fast together as every other line alone (25 GB/s instead of 12). They go to the second-level
// cache; the first one has no room (240@28 k5 N=16 2.5 ms, and 2.0 this way).
class LinesAhead {
 public:
  struct Part {
    const char* first;
    int64_t step; // bytes
    int64_t steps;
    int64_t run_step;
    int64_t runs;
  };
  // Of some steps, a pair with each; where nothing is left, the same one.
  struct Share {
    const char* at;
    int64_t step;
    C10_ALWAYS_INLINE void ask() {
      __builtin_prefetch(at, 0, 2);
      __builtin_prefetch(at + kCacheLine, 0, 2);
      at += step;
    }
  };
  // Of two parts, one after the other.
  void begin(const Part& first, const Part& second) {
    parts_ = {first, second};
    left_ = 0;
  }
  Share take(int64_t steps) {
    for (Part& part : parts_) {
      if (left_ <= steps / 8 && part.runs > 0) {
        for (; left_ > 0; --left_) { // rather than have most of the steps idle
          next_.ask();
        }
        next_ = {part.first, part.step};
        left_ = part.steps;
        part.first += part.run_step;
        --part.runs;
      }
    }
    const Share share{next_.at, left_ > 0 ? next_.step : 0};
    const int64_t taken = std::min(left_, steps);
    next_.at += taken * next_.step;
    left_ -= taken;
    return share;
  }

 private:
  std::array<Part, 2> parts_{};
  Share next_{};
  int64_t left_ = 0; // of a run
};

// Vectors in two neighbouring cache lines.
template <typename scalar_t>
constexpr int64_t kPairVectors = 2 * kCacheLine /
    (Vectorized<opmath_type<scalar_t>>::size() * static_cast<int64_t>(sizeof(scalar_t)));
constexpr int kMostTapsAtOnce = *std::max_element(kTapsAtOnce.begin(), kTapsAtOnce.end());

// Products of a group of taps with some of the other dimension; what is not said is in values.
struct Products {
  int64_t taps; // of the group
  int64_t cross; // taps of the other dimension
  int64_t sums; // one vector for each pair of taps
  int64_t tap_step; // of sums, between taps of the group
  int64_t cross_step; // of sums, between taps of the other dimension
  int64_t input; // what tap 0 of the group meets at position 0
  int64_t input_step; // between positions
  std::array<int64_t, kMaxProductCross> offsets; // of `input`, for each tap of the other dimension
  int64_t grad; // of position 0
  int64_t grad_step;
  int64_t positions;
  // Tap i meets step j of the input at position j - i. The steps that are inside the image:
  int64_t first;
  int64_t last;
  int64_t repeats; // lines of the same form, one after the other
  int64_t input_repeat_step;
  int64_t grad_repeat_step;
};

// What Products are of.
template <typename scalar_t>
struct ProductOperands {
  const scalar_t* input;
  const scalar_t* grad;
  opmath_type<scalar_t>* sums;
  // Neighbouring vectors of lanes, one after the other, and from one's sums to the next one's.
  int64_t vectors = 1;
  int64_t vector_sums = 0;
};

// What is in registers. Lambdas that refer to it would have GCC 12 keep it in memory, loops a part.
template <typename scalar_t, int kTaps, int kCross>
struct ProductSums {
  using acc_t = opmath_type<scalar_t>;
  using Vec = Vectorized<acc_t>;
  using Taps = std::make_integer_sequence<int, kTaps>;
  using Cross = std::make_integer_sequence<int, kCross>;
  using Sums = std::make_integer_sequence<int, kTaps * kCross>;
  Vec sums[kTaps * kCross];
  Vec grads[kTaps]; // of the positions j, j - 1, ...: each is loaded once and moved on

  explicit C10_ALWAYS_INLINE ProductSums(const Products& p, const acc_t* values)
      : ProductSums(p, values, Sums(), Taps()) {}

  static C10_ALWAYS_INLINE int64_t sum_at(const Products& p, int n) {
    return n / kCross * p.tap_step + n % kCross * p.cross_step;
  }

  // Members that begin as something: arrays of vectors without a value are zeroed by a loop, and GCC 12
  // keeps in memory what a loop goes through.
  template <int... n, int... i>
  C10_ALWAYS_INLINE ProductSums(
      const Products& p,
      const acc_t* values,
      std::integer_sequence<int, n...> /*sums*/,
      std::integer_sequence<int, i...> /*taps*/)
      : sums{Vec::loadu(values + sum_at(p, n))...}, grads{(void(i), Vec(acc_t(0)))...} {}

  template <int... n>
  C10_ALWAYS_INLINE void store_sums(
      const Products& p,
      acc_t* values,
      std::integer_sequence<int, n...> /*sums*/) const {
    (sums[n].store(values + sum_at(p, n)), ...);
  }

  // The gradient at a position; no position, no gradient.
  static C10_ALWAYS_INLINE Vec grad_at(const scalar_t* grad, int64_t position, const Products& p) {
    const bool inside = position >= 0 && position < p.positions;
    return inside ? load_lanes(grad + position * p.grad_step) : Vec(acc_t(0));
  }

  // The gradients before step p.first.
  template <int... i>
  C10_ALWAYS_INLINE void load_grads(
      const scalar_t* grad,
      const Products& p,
      std::integer_sequence<int, i...> /*taps*/) {
    ((grads[i] = grad_at(grad, p.first - 1 - i, p)), ...);
  }

  // As a loop, k3 on 144@56 took 97 us instead of 88.
  template <int kLast>
  C10_ALWAYS_INLINE void move_grads() {
    if constexpr (kLast > 0) {
      grads[kLast] = grads[kLast - 1];
      move_grads<kLast - 1>();
    }
  }

  template <int b, int... i>
  C10_ALWAYS_INLINE void multiply(const Vec& values, std::integer_sequence<int, i...> /*taps*/) {
    ((sums[i * kCross + b] = vec::fmadd(values, grads[i], sums[i * kCross + b])), ...);
  }

  // Held, or GCC 12 loads a vector again for each of its products: NCHW 64@56 k7d3 330 us, 258 so.
  template <int... b>
  C10_ALWAYS_INLINE void step(
      const scalar_t* input,
      const Vec& grad,
      const Products& p,
      std::integer_sequence<int, b...> /*cross*/) {
    move_grads<kTaps - 1>();
    grads[0] = grad;
    (multiply<b>(held_in_register(load_lanes(input + p.offsets[b])), Taps()), ...);
  }
};

template <typename scalar_t, int kTaps, int kCross>
void add_products(const Products& p, const ProductOperands<scalar_t>& of, LinesAhead& ahead) {
  using Vec = Vectorized<opmath_type<scalar_t>>;
  const int64_t positions_end = std::min(p.positions, p.last);
  for (int64_t v = 0; v < of.vectors; ++v) {
    const int64_t lane = v * Vec::size();
    auto* const values = of.sums + p.sums + v * of.vector_sums;
    ProductSums<scalar_t, kTaps, kCross> sums(p, values);
    for (int64_t repeat = 0; repeat < p.repeats; ++repeat) {
      const scalar_t* const input = of.input + p.input + lane + repeat * p.input_repeat_step;
      const scalar_t* const grad = of.grad + p.grad + lane + repeat * p.grad_repeat_step;
      auto share = ahead.take(positions_end - p.first);
      sums.load_grads(grad, p, typename decltype(sums)::Taps());
      int64_t j = p.first;
      for (; j < positions_end; ++j) {
        share.ask();
        sums.step(
            input + j * p.input_step,
            load_lanes(grad + j * p.grad_step),
            p,
            typename decltype(sums)::Cross());
      }
      for (; j < p.last; ++j) {
        sums.step(input + j * p.input_step, Vec(0), p, typename decltype(sums)::Cross());
      }
    }
    sums.store_sums(p, values, typename decltype(sums)::Sums());
  }
}

inline int64_t group_taps_at_once(int64_t taps, int64_t cross) {
  return std::min<int64_t>(taps, kTapsAtOnce[cross - 1]);
}
// How many taps of the other dimension to take at once with groups of `group_taps`.
inline int64_t cross_taps_at_once(int64_t taps, int64_t group_taps) {
  int64_t cross = std::min<int64_t>(taps, kMaxProductCross);
  const auto pays = [&] {
    const int64_t at_once = kTapsAtOnce[cross - 1];
    return at_once > 0 && !(kFewRegisters && cross == 5 && group_taps > at_once);
  };
  while (!pays()) {
    --cross;
  }
  return cross;
}

// add_products by the number of taps and by that of the other dimension, each less one; null where there is none.
template <typename scalar_t>
using ProductFunction = void (*)(const Products&, const ProductOperands<scalar_t>&, LinesAhead&);
template <typename scalar_t, int kCross, int... kTaps>
constexpr auto product_functions(std::integer_sequence<int, kTaps...> /*taps less one*/) {
  return std::array<ProductFunction<scalar_t>, kMostTapsAtOnce>{
      &add_products<scalar_t, kTaps + 1, kCross>...};
}
template <typename scalar_t, int... kCross>
constexpr auto product_functions_by_cross(std::integer_sequence<int, kCross...> /*less one*/) {
  using OfCross = std::array<ProductFunction<scalar_t>, kMostTapsAtOnce>;
  return std::array<OfCross, kMaxProductCross>{product_functions<scalar_t, kCross + 1>(
      std::make_integer_sequence<int, kTapsAtOnce[kCross]>())...};
}

template <typename scalar_t>
void add_products(const Products& p, const ProductOperands<scalar_t>& of, LinesAhead& ahead) {
  static constexpr auto kFunctions =
      product_functions_by_cross<scalar_t>(std::make_integer_sequence<int, kMaxProductCross>());
  kFunctions[p.cross - 1][p.taps - 1](p, of, ahead);
}

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

// Rows of some channels of an image of a tensor; of channels last they may go on into the next one.
template <typename scalar_t>
LinesAhead::Part part_of(
    const GradWeightCall<scalar_t>& call,
    const scalar_t* tensor,
    int64_t image,
    Range rows,
    Range filters) {
  constexpr int64_t kBytes = sizeof(scalar_t);
  constexpr int64_t kPair = 2 * kCacheLine;
  const Params& p = call.p;
  const bool of_input = tensor == call.input;
  const int64_t channels = of_input ? p.channels : p.output_channels();
  const int64_t height = of_input ? p.input_height : p.output_height;
  const int64_t width = of_input ? p.input_width : p.output_width;
  const auto at = [&](int64_t value) {
    return reinterpret_cast<const char*>(tensor) + value * kBytes;
  };
  if (p.channels_last) {
    return {
        at((image * height + rows.begin) * width * channels + filters.begin),
        channels * kBytes,
        rows.size() * width,
        kPair,
        ceil_div(filters.size() * kBytes, kPair)};
  }
  const bool whole = rows.size() == height; // planes follow each other
  const int64_t bytes = rows.size() * width * kBytes;
  return {
      at(((image * channels + filters.begin) * height + rows.begin) * width),
      kPair,
      ceil_div(whole ? bytes * filters.size() : bytes, kPair),
      height * width * kBytes,
      whole ? 1 : filters.size()};
}

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
inline void find_steps(int64_t source, const Dimension& dimension, Products& work) {
  const int64_t step = dimension.source_step();
  work.first = source >= 0 ? 0 : ceil_div(-source, step);
  work.last =
      std::min(work.positions + work.taps - 1, floor_div(dimension.sources - 1 - source, step) + 1);
}

// Adds `count` vectors, `step` apart, to a vector of sums.
template <typename stored_t>
void add_values(const stored_t* values, int64_t step, int64_t count, opmath_type<stored_t>* sums) {
  using Vec = Vectorized<opmath_type<stored_t>>;
  constexpr int kChains = 4; // additions that do not wait for each other
  constexpr int kBlock = 8 * kChains; // vectors whose sum is taken by itself, for its error
  const auto load = [&](int64_t i) {
    return load_lanes(values + i * step);
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
      const int64_t filter = filters.begin + lane;
      exact_grad_weight(call.grad_weight + filter * taps, call.grad, call.input, filter, p);
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
