// The weight's and the bias's gradient of any window, stride, dilation, number of outputs of a channel, type,
// memory order and size that has some multiply-adds for each element of the input, but double.
//
// grad_weight[k] = sum over o of grad_output[o] * input[o * stride - padding + k * dilation], in two dimensions.
// With L the least common multiple of stride and dilation, outputs that are L / stride apart and taps that are
// L / dilation apart meet input that is L apart: along one dimension the call falls into pairs of a phase of
// the outputs and a phase of the taps, each a plain correlation, whose input no other pair reads. So a tile
// lies in shared memory by phases, and a thread keeps kTaps neighbouring taps of a phase in registers and
// slides along its outputs, four at a time: two vector loads feed 4 * kTaps multiply-adds, whatever the call.
//
// `along` is the dimension that threads slide along, `across` the other one, along whose lines they step: either
// may be the rows, whichever has less to do. Only lines and stretches that meet the image are visited.
//
// A block has some channels, a phase of lines of taps and some of its lines, and takes a share of the tiles:
// some images, lines of outputs of one phase, and outputs of a line. Its threads are units of taps x channels x
// ways, which share outputs. Sums of the ways are added as a tree.
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <limits>
#include <numeric>

// After those that it needs.
#include <ATen/cuda/detail/IntegerDivider.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kMostThreads = 256;
constexpr int kStep = 4; // outputs that a thread takes at a time
constexpr int kFilled = 4; // elements of a row that a thread fills
constexpr int kBatch = 2 * kFilled; // elements that it loads at a time
constexpr int kFlush = 16; // steps after which a chain of products is added to its sum
constexpr int kFewLines = 8; // which a row of places had better not be across
constexpr int64_t kFewShared = 48 * 1024; // for several blocks of a multiprocessor
constexpr int64_t kMostShared = 96 * 1024;
constexpr int64_t kUnseenShared = 3 * 1024; // what the kernel declares, and the device's own

using Divider = at::cuda::detail::IntDivider<unsigned int>;

// One dimension: output o and tap k meet input o * stride - padding + k * dilation.
struct Axis {
  int64_t size; // of the input
  int64_t outputs;
  int64_t taps;
  int64_t stride;
  int64_t padding;
  int64_t dilation;
  int64_t step; // their least common multiple
  int64_t output_phases;
  int64_t tap_phases;
  int64_t used_phases; // those that have taps
  int64_t input_stride; // in memory
  int64_t output_stride;

  int64_t phase_outputs() const {
    return divide_up(outputs, output_phases);
  }
  int64_t phase_taps() const {
    return divide_up(taps, tap_phases);
  }
};

// How a tile of a tensor gets into shared memory: by rows of a line's entries or, where lines are neighbours in
// memory, by rows across lines. A thread takes kFilled elements of a row, `lanes` apart, of some rows at once.
struct Filling {
  int64_t image; // strides in memory
  int64_t channel;
  int64_t column;
  int64_t along; // from an entry of a line to the next
  int64_t across; // from a line of the tile to the next
  int64_t step; // of the tensor's columns between entries
  int32_t lines; // at most
  int32_t entries; // of a line that may exist
  int32_t pitch; // in shared memory, from line to line
  int32_t plane;
  int32_t inner; // elements of a row
  int32_t rows;
  int32_t lanes;
  int32_t chunks; // of a row
  int32_t row_step; // from what a thread takes to what it takes next
  int32_t chunk_step;
};

struct Plan {
  Axis along;
  Axis across;
  Filling input;
  Filling grads;
  // A tile: channels, images, lines of outputs of a phase, outputs of a line and of each of its phases.
  int32_t channels; // 1 << channel_bits
  int32_t channel_bits;
  int32_t images;
  int32_t lines;
  int64_t phase_lines; // all of a phase, or
  int64_t last_phases; // from this one on, one less
  int32_t outputs; // whole steps
  int32_t output_phases; // all, or one
  // A block's taps: lines of a phase, taps of a line and of each of its phases.
  int32_t tap_lines;
  int32_t taps; // whole groups of kTaps
  int32_t tap_phases; // all, or one
  int32_t positions; // of a line of input and a pair of phases
  int32_t entries; // of the table of positions
  bool lines_first; // neighbours in memory, so that rows of places are across lines
  bool channels_first;
  // Tiles, and the grid: chunks x groups of channels x parts of the window.
  Divider along_tiles;
  Divider across_tiles;
  Divider across_phases;
  Divider narrow_phases; // of the outputs of a line, where a tile has one of them
  int64_t tiles;
  int64_t chunks;
  int64_t channel_groups;
  int64_t line_parts; // of a phase
  int64_t tap_parts; // of a line
  // Threads.
  int32_t units;
  int32_t ways;
  int32_t image_ways;
  int32_t line_ways;
  int32_t phase_ways;
  int32_t stretch_ways;
  bool upright; // along is down the columns
  bool wants_weight;

  int64_t window_parts() const {
    return across.used_phases * line_parts * (along.used_phases / tap_phases) * tap_parts;
  }
  int64_t blocks() const {
    return chunks * channel_groups * window_parts();
  }
};

// From where to where, of anything.
struct alignas(8) Range {
  int32_t from;
  int32_t to;
};

// Where a row of elements comes from, negative where it does not exist and is zero, and goes to, negative where
// nobody reads it.
struct alignas(16) Row {
  int64_t from;
  int32_t to;
};

// chain[t] += sum over i < 4 * steps of grads[i] * input[i + t].
template <int kTaps>
__device__ __forceinline__ void correlate(
    float (&chain)[kTaps],
    const float* input,
    const float* grads,
    int steps) {
  constexpr int kRing = kTaps + kStep;
  float ring[kRing];
#pragma unroll
  for (int t = 0; t < kTaps; t += kStep) {
    read_four(ring + t, input + t);
  }
  input += kTaps;
  for (;;) {
#pragma unroll
    for (int r = 0; r < kRing; r += kStep) {
      float grad[kStep];
      read_four(grad, grads);
      read_four(ring + (r + kTaps) % kRing, input);
      grads += kStep;
      input += kStep;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          chain[t] += grad[i] * ring[(r + i + t) % kRing];
        }
      }
      if (--steps == 0) {
        return;
      }
    }
  }
}

__device__ __forceinline__ int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

__device__ __forceinline__ int64_t ceil_divide(int64_t value, int64_t by) {
  return value > 0 ? (value + by - 1) / by : value / by;
}

// One of a tile's two operands.
template <typename scalar_t>
struct Side {
  const Filling& filling;
  const scalar_t* from;
  float* to;
  Row* rows;
  const int32_t* entries; // where they go to
  const int32_t* lines;
  int64_t first_column; // of the first entry
  int64_t first_line; // in elements
  int32_t live; // lines that exist
  int32_t multiplier; // channels of grad_output of one of it
};

template <typename scalar_t, int kTaps>
__global__ void __launch_bounds__(kMostThreads, 3) tile_grad_weight_kernel(
    float* __restrict__ partial,
    const scalar_t* __restrict__ grad_output,
    const scalar_t* __restrict__ input,
    const __grid_constant__ Params call,
    const __grid_constant__ Plan p) {
  extern __shared__ float4 shared_vectors[];
  const int planes = p.images * p.channels;
  float* const source = reinterpret_cast<float*>(shared_vectors);
  float* const grads = source + planes * p.input.plane;
  const int phase_pairs = p.output_phases * p.tap_phases;
  Row* const rows = reinterpret_cast<Row*>(grads + planes * p.grads.plane);
  Range* const reaches = reinterpret_cast<Range*>(rows + p.input.rows + p.grads.rows + 2);
  int32_t* const positions = reinterpret_cast<int32_t*>(reaches + phase_pairs + 3);
  int32_t* const outputs = positions + p.entries;
  int32_t* const input_lines = outputs + p.grads.entries;
  int32_t* const grad_lines = input_lines + p.input.lines;
  const int threads = blockDim.x;
  const int thread = threadIdx.x;

  // What the block has.
  unsigned int rest = blockIdx.x;
  const auto next = [&](int64_t count) {
    const unsigned int of = static_cast<unsigned int>(count);
    const unsigned int at = rest % of;
    rest /= of;
    return static_cast<int64_t>(at);
  };
  const int64_t chunk = next(p.chunks);
  const int64_t first_channel = next(p.channel_groups) * p.channels;
  const bool is_first_part = rest == 0;
  const int64_t tap_part = next(p.tap_parts);
  const int64_t along_phase = next(p.along.used_phases / p.tap_phases);
  const int64_t line_part = next(p.line_parts);
  const int64_t across_phase = rest;
  const int64_t first_tap = along_phase + p.along.tap_phases * tap_part * p.taps;
  const int64_t first_line = across_phase + p.across.tap_phases * line_part * p.tap_lines;
  const int64_t output_channels = call.output_channels();

  // What the thread has.
  const int groups = p.taps / kTaps;
  const int way = thread % p.ways;
  const int unit = thread / p.ways % p.units;
  const int tap_in_part = unit % groups * kTaps;
  const int phase = unit / groups % p.tap_phases;
  const int line_in_part = unit / groups / p.tap_phases;
  const int channel = thread / p.ways / p.units;
  const int line_way = way % p.line_ways;
  const int image_way = way / p.line_ways % p.image_ways;
  const int stretch_way = way / p.line_ways / p.image_ways % p.stretch_ways;
  const int phase_way = way / p.line_ways / p.image_ways / p.stretch_ways;
  const bool works = channel < p.channels && p.wants_weight;

  // Where entries go to: a tile's lines are in the order of memory but where it has single phases.
  const bool sorted = p.output_phases == p.along.output_phases;
#pragma unroll 1
  for (int i = thread; i < p.entries; i += threads) {
    positions[i] = sorted ? -1 : i;
  }
#pragma unroll 1
  for (int i = thread; i < p.grads.entries; i += threads) {
    outputs[i] = i % p.output_phases * p.outputs + i / p.output_phases;
  }
#pragma unroll 1
  for (int i = thread; i < p.input.lines + p.lines; i += threads) {
    input_lines[i] = i < p.input.lines ? i * p.input.pitch : (i - p.input.lines) * p.grads.pitch;
  }
  // What is outside the image in every tile is never filled.
  const int vectors = planes * (p.input.plane + p.grads.plane) / kStep;
#pragma unroll 1
  for (int i = thread; i < vectors; i += threads) {
    shared_vectors[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  __syncthreads();
  const auto position_at = [&](int a, int b, int m) {
    return a * p.along.stride + b * p.along.dilation + m * p.along.step;
  };
#pragma unroll 1
  for (int i = thread; sorted && i < phase_pairs * p.positions; i += threads) {
    const int pair = phase_pairs == 1 ? 0 : i / p.positions;
    const int64_t at = phase_pairs == 1
        ? i * p.along.step
        : position_at(pair / p.tap_phases, pair % p.tap_phases, i % p.positions);
    positions[p.input.step == 1 ? at : at / p.input.step] = i;
  }

  float sums[kTaps] = {};
  float chain[kTaps] = {};
  int chained = 0;
  const auto flush = [&] {
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      sums[t] += chain[t];
      chain[t] = 0;
    }
    chained = 0;
  };
  float bias = 0;
  float bias_excess = 0;

  for (int64_t index = chunk; index < p.tiles; index += p.chunks) {
    // What the tile has: images, lines of outputs and outputs, and the input that the first of them meet with the
    // block's first taps.
    const auto by_along = p.along_tiles.divmod(static_cast<unsigned int>(index));
    const auto by_across = p.across_tiles.divmod(by_along.div);
    const auto by_phase = p.across_phases.divmod(by_across.mod);
    const auto by_narrow = p.narrow_phases.divmod(by_along.mod);
    const int64_t first_image = static_cast<int64_t>(by_across.div) * p.images;
    const int images = static_cast<int>(least(p.images, call.batch - first_image));
    const int64_t first_of_lines =
        by_phase.mod + static_cast<int64_t>(by_phase.div) * p.lines * p.across.output_phases;
    const int lines = static_cast<int>(least(
        p.lines,
        p.phase_lines - static_cast<int64_t>(by_phase.div) * p.lines -
            (by_phase.mod >= p.last_phases ? 1 : 0)));
    const int64_t first_output =
        by_narrow.mod + static_cast<int64_t>(by_narrow.div) * p.outputs * p.along.output_phases;
    const int64_t first_input =
        first_output * p.along.stride - p.along.padding + first_tap * p.along.dilation;
    const int64_t first_source =
        first_of_lines * p.across.stride - p.across.padding + first_line * p.across.dilation;
    __syncthreads();
    const int first_entry = p.input.entries == p.entries
        ? 0
        : static_cast<int>(::max(
              int64_t{0},
              least(ceil_divide(-first_input, p.input.step), p.entries - p.input.entries)));
    const int64_t first_column = first_input + first_entry * p.input.step;
    // Which positions of a pair of phases, lines, and entries of the input and of grad_output are inside the image.
#pragma unroll 1
    for (int i = thread; i < phase_pairs + 3; i += threads) {
      const int of = i - phase_pairs;
      const int64_t first = of == 0 ? first_source
          : of == 1                 ? first_column
          : of == 2                 ? first_output
                    : first_input + position_at(i / p.tap_phases, i % p.tap_phases, 0);
      const int64_t size = of == 0 ? p.across.size : of == 2 ? p.along.outputs : p.along.size;
      const int64_t step = of == 0 ? p.across.step
          : of == 1                ? p.input.step
          : of == 2                ? p.grads.step
                                   : p.along.step;
      const int64_t most = of == 0 ? lines + p.tap_lines - 1
          : of == 1                ? p.input.entries
          : of == 2                ? p.grads.entries
                                   : p.positions;
      const auto bounded = [&](int64_t at) {
        return static_cast<int32_t>(::max(int64_t{0}, ::min(ceil_divide(at, step), most)));
      };
      reaches[i] = Range{bounded(-first), bounded(size - first)};
    }
    __syncthreads();

    const int first_source_line = reaches[phase_pairs].from;
    const int source_lines = reaches[phase_pairs].to - first_source_line;
    const auto side = [&](bool is_input) {
      return is_input ? Side<scalar_t>{p.input, input, source, rows, positions + first_entry,
                                       input_lines, first_column,
                                       (first_source + first_source_line * p.across.step) *
                                           p.across.input_stride,
                                       source_lines, static_cast<int32_t>(call.multiplier)}
                      : Side<scalar_t>{p.grads, grad_output, grads, rows + p.input.rows + 1, outputs,
                                       grad_lines, first_output,
                                       first_of_lines * p.across.output_stride, lines, 1};
    };
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      const Side<scalar_t> of = side(which == 0);
      const Filling& f = of.filling;
      const Range inside = reaches[phase_pairs + 1 + which];
      const int of_plane = p.lines_first ? f.entries : f.lines;
#pragma unroll 1
      for (int r = thread; r <= f.rows; r += threads) {
        const int plane = r / of_plane;
        const int at = r - plane * of_plane;
        const int image = p.channels_first ? plane : plane >> p.channel_bits;
        const unsigned int of_channel =
            p.channels_first ? 0 : first_channel + (plane & (p.channels - 1));
        Row row;
        row.from = (first_image + image) * f.image + of_channel / of.multiplier * f.channel;
        row.to = (p.channels_first ? plane << p.channel_bits : plane) * f.plane;
        bool exists = r < f.rows && image < images && of_channel < output_channels;
        if (p.lines_first) {
          const int to = exists ? of.entries[at] : -1;
          exists = to >= 0;
          row.from = at >= inside.from && at < inside.to ? row.from + at * f.along : -1;
          row.to += to;
        } else {
          exists = exists && at < of.live;
          row.from += at * f.across;
          row.to += at * f.pitch;
        }
        row.to = exists ? row.to : -1;
        of.rows[r] = row;
      }
    }
    __syncthreads();

    const int own_channel = p.channels_first ? thread & (p.channels - 1) : 0;
#pragma unroll 1
    for (int which = 0; which < 2 && first_channel + own_channel < output_channels; ++which) {
      const Side<scalar_t> of = side(which == 0);
      const Filling& f = of.filling;
      const int index = p.channels_first ? thread >> p.channel_bits : thread;
      const int lane = index % f.lanes;
      int r = index / f.lanes / f.chunks;
      int chunk = index / f.lanes % f.chunks;
      constexpr int64_t kBytes = sizeof(scalar_t);
      const int64_t stride = (p.lines_first ? f.across : f.along) * kBytes;
      const int64_t next = f.lanes * stride;
      const int64_t own = p.channels_first
          ? static_cast<unsigned int>(first_channel + own_channel) / of.multiplier * f.channel
          : 0;
      const char* const from =
          reinterpret_cast<const char*>(of.from + of.first_line + of.first_column * f.column + own);
      const int32_t* const inner = p.lines_first ? of.lines : of.entries;
      const int first_inside = p.lines_first ? 0 : reaches[phase_pairs + 1 + which].from;
      const unsigned int inside =
          p.lines_first ? of.live : reaches[phase_pairs + 1 + which].to - first_inside;
      while (r < f.rows) {
        scalar_t values[kBatch];
        int places[kBatch];
        // Without a branch, so that all loads are under way at once.
#pragma unroll
        for (int b = 0; b < kBatch; b += kFilled) {
          const Row row = of.rows[::min(r, f.rows)];
          const int end = row.to >= 0 ? f.inner : 0;
          const unsigned int existing = row.from >= 0 ? inside : 0;
          const int row_to = row.to + own_channel * f.plane;
          int q = chunk * (kFilled * f.lanes) + lane;
          const int32_t* place = inner + q;
          const char* at = from + row.from * kBytes + q * stride;
#pragma unroll
          for (int k = b; k < b + kFilled; ++k) {
            const int to = *place; // of an entry or, behind the last, of what lies there
            places[k] = q < end && to >= 0 ? row_to + to : -1;
            values[k] = scalar_t(0);
            if (static_cast<unsigned int>(q - first_inside) < existing && q < end && to >= 0) {
              values[k] = *reinterpret_cast<const scalar_t*>(at);
            }
            q += f.lanes;
            place += f.lanes;
            at += next;
          }
          chunk += f.chunk_step;
          r += f.row_step;
          if (chunk >= f.chunks) {
            chunk -= f.chunks;
            ++r;
          }
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          if (places[k] >= 0) {
            of.to[places[k]] = static_cast<float>(values[k]);
          }
        }
      }
    }
    __syncthreads();

    if (is_first_part) {
      const int of_lines = lines * p.grads.pitch;
      for (int image = 0; image < images; ++image) {
        const float* const plane =
            grads + (image * p.channels + (thread & (p.channels - 1))) * p.grads.plane;
#pragma unroll 4
        for (int i = thread >> p.channel_bits; i < of_lines; i += threads >> p.channel_bits) {
          add_compensated(bias, bias_excess, plane[i]);
        }
      }
    }
    if (!works) {
      continue;
    }
    const int begin_line = ::max(0, first_source_line - line_in_part);
    const int end_line = ::min(lines, first_source_line + source_lines - line_in_part);
    for (int a = phase_way; a < p.output_phases; a += p.phase_ways) {
      const int pair = a * p.tap_phases + phase;
      const Range reach = reaches[pair];
      const int first = ::max(0, reach.from - tap_in_part - (kTaps - 1)) / kStep * kStep;
      const int steps = (::min(p.outputs, reach.to - tap_in_part) - first + kStep - 1) / kStep;
      const int of_way = (steps + p.stretch_ways - 1) / p.stretch_ways;
      const int begin = first + stretch_way * of_way * kStep;
      const int mine = ::min(of_way, steps - stretch_way * of_way);
      if (mine <= 0) {
        continue;
      }
      for (int image = image_way; image < images; image += p.image_ways) {
        const int plane = image * p.channels + channel;
        for (int line = begin_line + line_way; line < end_line; line += p.line_ways) {
          const float* from = source + plane * p.input.plane +
              (line + line_in_part - first_source_line) * p.input.pitch + pair * p.positions +
              begin + tap_in_part;
          const float* grad =
              grads + plane * p.grads.plane + line * p.grads.pitch + a * p.outputs + begin;
          for (int left = mine; left > 0; left -= 2 * kFlush) {
            const int now = ::min(left, 2 * kFlush);
            correlate<kTaps>(chain, from, grad, now);
            from += now * kStep;
            grad += now * kStep;
            chained += now;
            if (chained >= kFlush) {
              flush();
            }
          }
        }
      }
    }
  }
  flush();

  // The ways' sums, and the biases'.
  float* const exchanged = source;
  for (int ways = p.ways; ways > 1;) {
    const int half = (ways + 1) / 2;
    __syncthreads();
    if (way >= half && way < ways) {
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        exchanged[t * kMostThreads + thread - half] = sums[t];
      }
    }
    __syncthreads();
    if (way < ways - half) {
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        sums[t] += exchanged[t * kMostThreads + thread];
      }
    }
    ways = half;
  }
  float* const to =
      partial + chunk * (call.kernel_size() + kBiasRows) * output_channels + first_channel;
  if (way == 0 && works && first_channel + channel < output_channels) {
    const int64_t line = first_line + line_in_part * p.across.tap_phases;
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const int64_t tap = first_tap + phase + (tap_in_part + t) * p.along.tap_phases;
      if (tap < p.along.taps && line < p.across.taps) {
        const int64_t at =
            p.upright ? tap * call.kernel_width + line : line * call.kernel_width + tap;
        to[at * output_channels + channel] = sums[t];
      }
    }
  }
  if (is_first_part) {
    double bias_sum = static_cast<double>(bias) - bias_excess;
    for (int partner = p.channels; partner < kWarpSize; partner *= 2) {
      bias_sum += __shfl_xor_sync(0xffffffffu, bias_sum, partner);
    }
    double* const bias_sums = reinterpret_cast<double*>(shared_vectors);
    __syncthreads();
    if (thread % kWarpSize < p.channels) {
      bias_sums[thread] = bias_sum;
    }
    __syncthreads();
    if (thread < p.channels && first_channel + thread < output_channels) {
      for (int warp = 1; warp < threads / kWarpSize; ++warp) {
        bias_sum += bias_sums[warp * kWarpSize + thread];
      }
      write_bias(to + call.kernel_size() * output_channels + thread, output_channels, bias_sum);
    }
  }
}

// What a step of a thread costs beside its multiply-adds, and a stretch of them, in the same unit.
constexpr int64_t kBesideStep = 24;
constexpr int64_t kBesideStretch = 40;

// The columns or, if `down`, the rows.
Axis axis_of(const Params& p, bool down) {
  const int64_t size = down ? p.input_height : p.input_width;
  const int64_t outputs = down ? p.output_height : p.output_width;
  const int64_t taps = down ? p.kernel_height : p.kernel_width;
  const int64_t stride = down ? p.stride_height : p.stride_width;
  const int64_t padding = down ? p.padding_height : p.padding_width;
  const int64_t dilation = down ? p.dilation_height : p.dilation_width;
  const int64_t common = std::gcd(stride, dilation);
  Axis axis;
  axis.size = size;
  axis.outputs = outputs;
  axis.taps = taps;
  axis.stride = stride;
  axis.padding = padding;
  axis.dilation = dilation;
  axis.step = stride / common * dilation;
  axis.output_phases = dilation / common;
  axis.tap_phases = stride / common;
  axis.used_phases = std::min(axis.tap_phases, axis.taps);
  axis.input_stride = (p.channels_last ? p.channels : 1) * (down ? p.input_width : 1);
  axis.output_stride = (p.channels_last ? p.output_channels() : 1) * (down ? p.output_width : 1);
  return axis;
}

// Neighbouring taps of a thread.
int group_of(const Axis& along) {
  const auto cost = [&](int taps) {
    return divide_up(along.phase_taps(), taps) * (kStep * taps + kBesideStep);
  };
  const int best = cost(8) < cost(4) ? 8 : 4;
  return cost(12) < cost(best) ? 12 : best;
}

// Of all threads that slide along one line of outputs.
int64_t along_cost(const Axis& along) {
  const int group = group_of(along);
  int64_t cost = 0;
  for (int64_t tap = 0; tap < along.phase_taps(); tap += group) {
    const int64_t first = std::max<int64_t>(0, along.padding / along.step - tap - group + 1);
    const int64_t end =
        std::min(along.phase_outputs(), divide_up(along.padding + along.size, along.step) - tap);
    if (first < end) {
      cost += divide_up(end - first, kStep) * (kStep * group + kBesideStep) + kBesideStretch;
    }
  }
  return cost * along.used_phases * along.output_phases;
}

// Pairs of a line of outputs and a line of taps that meet the image.
int64_t meetings(const Axis& across) {
  int64_t count = 0;
  for (int64_t tap = 0; tap < across.taps; ++tap) {
    const int64_t before = across.padding - tap * across.dilation;
    const int64_t first = before > 0 ? divide_up(before, across.stride) : 0;
    const int64_t end = before + across.size <= 0
        ? 0
        : std::min(across.outputs, divide_up(before + across.size, across.stride));
    count += std::max<int64_t>(0, end - first);
  }
  return count;
}

// Rows of shared memory whose vectors of four fall into different banks.
int64_t odd_vectors(int64_t elements) {
  return divide_up(elements, kStep) / 2 * (2 * kStep) + kStep;
}

// Of the tile as it is; sets what follows from it.
int64_t shared_bytes(Plan& g, int group) {
  const int64_t pairs = static_cast<int64_t>(g.output_phases) * g.tap_phases;
  const int64_t planes = static_cast<int64_t>(g.images) * g.channels;
  const int64_t positions = static_cast<int64_t>(g.outputs) + g.taps;
  const bool sorted = g.output_phases == g.along.output_phases;
  const int64_t entries = sorted ? g.along.output_phases * g.along.tap_phases * (positions + 1) -
          g.along.output_phases - g.along.tap_phases + 1
                                 : pairs * positions;
  const int64_t input_lines =
      std::min<int64_t>(g.lines + g.tap_lines - 1, divide_up(g.across.size, g.across.step) + 1);
  const int64_t input_pitch = odd_vectors(pairs * positions);
  const int64_t input_plane = odd_vectors(input_lines * input_pitch);
  const int64_t line = static_cast<int64_t>(g.output_phases) * g.outputs;
  // Whole lines lie in the same places in every tile, so that but what exists is filled.
  const bool whole = sorted && g.outputs >= g.along.phase_outputs();
  g.input.step = sorted ? std::gcd(g.along.stride, g.along.dilation) : g.along.step;
  g.grads.step = sorted ? 1 : g.along.output_phases;
  g.grads.entries = whole ? g.along.outputs : line;
  g.input.entries = whole ? std::min(entries, divide_up(g.along.size, g.input.step)) : entries;
  g.input.lines = input_lines;
  g.grads.lines = g.lines;
  g.lines_first = g.upright && !g.channels_first && input_lines >= kFewLines;
  const int64_t output_pitch = odd_vectors(line);
  const int64_t output_plane = odd_vectors(g.lines * output_pitch);
  g.positions = positions;
  g.entries = entries;
  g.input.pitch = input_pitch;
  g.input.plane = input_plane;
  g.grads.pitch = output_pitch;
  g.grads.plane = output_plane;
  for (Filling* f : {&g.input, &g.grads}) {
    f->inner = g.lines_first ? f->lines : f->entries;
    f->rows = (g.channels_first ? g.images : planes) * (g.lines_first ? f->entries : f->lines);
  }
  const int64_t floats =
      std::max(planes * (input_plane + output_plane), int64_t{group} * kMostThreads);
  return floats * static_cast<int64_t>(sizeof(float)) +
      (static_cast<int64_t>(g.input.rows) + g.grads.rows + 2) * static_cast<int64_t>(sizeof(Row)) +
      (pairs + 3) * static_cast<int64_t>(sizeof(Range)) +
      (entries + g.grads.entries + input_lines + g.lines + kFilled * kWarpSize) *
      static_cast<int64_t>(sizeof(int32_t));
}

int64_t tiles_of(const Plan& g, int64_t batch) {
  return divide_up(batch, g.images) * divide_up(g.across.phase_outputs(), g.lines) *
      g.across.output_phases * divide_up(g.along.phase_outputs(), g.outputs) *
      (g.along.output_phases / g.output_phases);
}

// Makes the tile smaller where that costs least; false where it is as small as can be.
bool shrink(Plan& g) {
  if (g.images > 1) {
    g.images = divide_up(g.images, 2);
    return true;
  }
  const bool has_lines = g.lines > 1;
  const bool has_outputs = g.outputs > kStep;
  // The halo of a tile grows with the other side of it.
  if (has_lines && (!has_outputs || g.tap_lines * g.outputs <= g.taps * g.lines)) {
    g.lines = divide_up(g.lines, 2);
  } else if (has_outputs) {
    g.outputs = divide_up(divide_up(g.outputs, 2), kStep) * kStep;
  } else if (g.tap_lines > 1) {
    g.tap_lines = divide_up(g.tap_lines, 2);
  } else if (g.channels > 1) {
    g.channels /= 2;
    --g.channel_bits;
  } else if (g.output_phases > 1 || g.tap_phases > 1) {
    g.output_phases = 1;
    g.tap_phases = 1;
  } else {
    return false;
  }
  return true;
}

// Chooses the tile and how a block's threads share it; the bytes of shared memory.
int64_t plan_tile(Plan& g, const Params& p, int group, int64_t element_size, int64_t met) {
  constexpr int64_t kSectorBytes = 32; // which channels side by side in memory fill
  constexpr int64_t kMostImages = 64;
  constexpr int64_t kLeastOutputs = 512; // of a tile, unless there are no more
  const int64_t channels = p.output_channels();
  g.channel_bits = 0;
  while (p.channels_last && (element_size << g.channel_bits) < kSectorBytes &&
         (int64_t{1} << g.channel_bits) < channels) {
    ++g.channel_bits;
  }
  g.output_phases = g.along.output_phases;
  g.tap_phases = g.along.used_phases;
  g.taps = divide_up(g.along.phase_taps(), group) * group;
  const auto line_units = [&] {
    return static_cast<int64_t>(g.tap_phases) * (g.taps / group);
  };
  while (line_units() << g.channel_bits > kMostThreads) {
    if (g.channel_bits > 0) {
      --g.channel_bits;
    } else if (g.taps > group) {
      g.taps = divide_up(g.taps / group, 2) * group;
    } else {
      g.output_phases = 1;
      g.tap_phases = 1;
    }
  }
  g.channels = 1 << g.channel_bits;
  const int64_t lines = g.across.phase_taps();
  g.tap_lines = divide_up(lines, divide_up(lines, kMostThreads / (line_units() * g.channels)));
  g.images = std::min(p.batch, kMostImages);
  g.phase_lines = g.across.phase_outputs();
  g.last_phases = g.across.outputs - (g.phase_lines - 1) * g.across.output_phases;
  g.lines = g.phase_lines;
  g.outputs = divide_up(g.along.phase_outputs(), kStep) * kStep;
  const auto outputs = [&] {
    return static_cast<int64_t>(g.images) * g.lines * g.outputs * g.output_phases;
  };
  const auto blocks = [&] {
    return tiles_of(g, p.batch) * divide_up(channels, g.channels) * g.across.used_phases *
        divide_up(lines, g.tap_lines);
  };
  while (shared_bytes(g, group) > kFewShared && outputs() > kLeastOutputs && shrink(g)) {
  }
  while (shared_bytes(g, group) > std::min(kMostShared, device().shared - kUnseenShared) &&
         shrink(g)) {
  }
  while (blocks() < 2 * multiprocessors() && outputs() > kLeastOutputs && shrink(g)) {
  }
  // Small images in plane order: several channels for threads that had nothing to share.
  g.units = line_units() * g.tap_lines;
  g.line_ways = std::max<int64_t>(
      1, std::min<int64_t>(g.lines, divide_up(met, g.across.taps * g.across.output_phases)));
  const int64_t shares = static_cast<int64_t>(g.images) * g.line_ways * g.output_phases *
      divide_up(g.outputs, 2 * kStep);
  while (!p.channels_last && g.units * g.channels * 2 * shares <= kMostThreads &&
         g.channels < kWarpSize && blocks() >= 4 * multiprocessors()) {
    ++g.channel_bits;
    g.channels *= 2;
  }
  // Where there are blocks enough, no more threads than are worth what each of them has to prepare.
  const int64_t bytes = shared_bytes(g, group);
  const int64_t elements = g.images * g.channels *
      (static_cast<int64_t>(g.input.lines) * g.input.entries + g.lines * g.grads.entries);
  const int64_t steps = g.images * g.channels * g.units * g.line_ways *
      static_cast<int64_t>(g.output_phases) * (g.outputs / kStep);
  const int64_t threads = blocks() < 4 * multiprocessors()
      ? kMostThreads
      : std::clamp<int64_t>(std::max(elements / 48, steps / 8), 64, kMostThreads);
  const int ways = std::max<int64_t>(1, threads / (g.units * g.channels));
  g.image_ways = std::min(ways, g.images);
  g.phase_ways = std::min(ways / g.image_ways, g.output_phases);
  const int left = ways / (g.image_ways * g.phase_ways);
  const int64_t met_lines = g.line_ways;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int line_ways = 1; line_ways <= std::min<int64_t>(left, met_lines); ++line_ways) {
    const int64_t long_steps = g.outputs / kStep;
    const int64_t stretches = std::min<int64_t>(left / line_ways, divide_up(long_steps, 2));
    const int64_t rounds = divide_up(met_lines, line_ways) * (divide_up(long_steps, stretches) + 1);
    if (rounds < least) {
      least = rounds;
      g.line_ways = line_ways;
      g.stretch_ways = stretches;
    }
  }
  g.ways = g.image_ways * g.line_ways * g.phase_ways * g.stretch_ways;
  return bytes;
}

template <typename scalar_t>
void launch_tiles(const BackwardPass& pass, const Params& p) {
  const int64_t channels = p.output_channels();
  const Axis height = axis_of(p, true);
  const Axis width = axis_of(p, false);
  const int64_t rows_met = meetings(height);
  const int64_t columns_met = meetings(width);
  Plan g;
  g.upright = columns_met * along_cost(height) < rows_met * along_cost(width);
  g.along = g.upright ? height : width;
  g.across = g.upright ? width : height;
  g.channels_first = p.channels_last;
  const int group = group_of(g.along);
  const int64_t shared =
      plan_tile(g, p, group, sizeof(scalar_t), g.upright ? columns_met : rows_met);
  const int64_t narrow_phases = g.along.output_phases / g.output_phases;
  g.along_tiles = Divider(divide_up(g.along.phase_outputs(), g.outputs) * narrow_phases);
  g.across_tiles = Divider(divide_up(g.phase_lines, g.lines) * g.across.output_phases);
  g.across_phases = Divider(g.across.output_phases);
  g.narrow_phases = Divider(narrow_phases);
  g.tiles = tiles_of(g, p.batch);
  g.channel_groups = divide_up(channels, g.channels);
  g.line_parts = divide_up(g.across.phase_taps(), g.tap_lines);
  g.tap_parts = divide_up(g.along.phase_taps(), g.taps);
  g.wants_weight = pass.grad_weight.defined();
  const int threads = divide_up(g.units * g.channels * g.ways, kWarpSize) * kWarpSize;
  const int64_t wanted = divide_up(
      8 * multiprocessors() * (kMostThreads / threads), g.channel_groups * g.window_parts());
  g.chunks = divide_up(g.tiles, divide_up(g.tiles, std::min(wanted, g.tiles)));
  const Operand partial = empty_partial(g.chunks, p);
  const auto set_filling = [&](Filling& f, int64_t plane, int64_t planes) {
    f.image = plane * planes;
    f.channel = p.channels_last ? 1 : plane;
    f.along = f.step * f.column;
    // As many lanes as leave the fewest without an element.
    f.lanes = 1;
    for (const int lanes : {2, 4, 8, 16, 32}) {
      const auto taken = [&](int of) {
        return divide_up(f.inner, kFilled * of) * of;
      };
      if (threads % (lanes * g.channels) == 0 && taken(lanes) <= taken(f.lanes) * 9 / 8) {
        f.lanes = lanes;
      }
    }
    f.chunks = divide_up(f.inner, kFilled * f.lanes);
    const int step = threads / (g.channels_first ? g.channels : 1) / f.lanes;
    f.chunk_step = step % f.chunks;
    f.row_step = step / f.chunks;
  };
  g.input.column = g.along.input_stride;
  g.input.across = g.across.step * g.across.input_stride;
  g.grads.column = g.along.output_stride;
  g.grads.across = g.across.output_phases * g.across.output_stride;
  set_filling(g.input, p.input_height * p.input_width, p.channels);
  set_filling(g.grads, p.output_height * p.output_width, channels);
  const auto launch = [&](auto taps) {
    launch_kernel(
        tile_grad_weight_kernel<scalar_t, decltype(taps)::value>,
        g.blocks(),
        threads,
        shared,
        partial.mutable_data_ptr<float>(),
        pass.grad_output.const_data_ptr<scalar_t>(),
        pass.input.const_data_ptr<scalar_t>(),
        p,
        g);
  };
  group == 4       ? launch(std::integral_constant<int, 4>())
      : group == 8 ? launch(std::integral_constant<int, 8>())
                   : launch(std::integral_constant<int, 12>());
  add_partials<scalar_t>(pass, partial, p);
}

} // namespace

template <typename scalar_t>
bool tiles_grad_weight(const BackwardPass& pass, const Params& p) {
  // Below, what a tile costs to fill is more than what its products cost without.
  constexpr int64_t kLeastProducts = 4; // of an element of the input
  if (p.kernel_size() <= kLeastProducts * p.stride_height * p.stride_width ||
      pass.grad_output.numel() == 0 || pass.input.numel() == 0) {
    return false;
  }
  launch_tiles<scalar_t>(pass, p);
  return true;
}

DEPTHWISE_INSTANTIATE(tiles_grad_weight, const BackwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
