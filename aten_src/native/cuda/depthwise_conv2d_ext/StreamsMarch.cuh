// The march of Streams.cuh: a lane's columns, its sums, the kernel, and which calls go to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Streams.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

#ifdef __CUDACC__
__device__ __forceinline__ float masked(float value, uint32_t mask) {
  return __uint_as_float(__float_as_uint(value) & mask);
}

// What a lane adds up of the weight's gradient.
template <typename Traits>
struct StreamSums {
  static constexpr int kTaps = 9;
  float sums[kTaps] = {};
  float totals[kTaps] = {};
  float bias = 0.0f;
  float excess = 0.0f;

  // In float after each chunk, which bounds the chains.
  __device__ __forceinline__ void add_to_totals() {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      totals[i] += sums[i];
      sums[i] = 0.0f;
    }
  }
};

// A lane's columns.
template <typename Traits>
struct StreamLane {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kTile = Traits::kTile;
  static constexpr int kDilation = Traits::kDilation;
  static constexpr int kEdge = Traits::kEdge;

  int of_group; // its channel
  int phase; // of its rows
  int index; // of its tile
  bool owns;
  int column; // the first
  bool has_first; // of a tile of pairs
  bool has_last;
  uint32_t inside[2 * kEdge]; // all bits of values that exist, none of others
  float own[Traits::kWeight ? kTile : 1]; // 1 where a column is the lane's alone, else 0

  __device__ __forceinline__ StreamLane(const StreamPlan& s, int channels) {
    const int used = channels * kDilation * s.lanes;
    const int lane = threadIdx.x;
    const int place = min(lane, used - 1);
    owns = lane == place;
    of_group = place / (kDilation * s.lanes);
    const int rest = place - of_group * kDilation * s.lanes;
    phase = rest / s.lanes;
    index = rest - phase * s.lanes;
  }

  // `odd`: whether the rows that it begins with begin with half a word.
  __device__ __forceinline__ void find_columns(const StreamPlan& s, bool odd) {
    const int width = s.dst_width;
    const int shift = Traits::kPairs && odd ? 1 : 0;
    const int begin = index * kTile - shift;
    const int last = width - kTile + (Traits::kPairs ? (width - kTile + shift) & 1 : 0);
    column = min(begin, last);
    has_first = column >= 0;
    has_last = column + kTile <= width;
#pragma unroll
    for (int i = 0; i < 2 * kEdge; ++i) {
      const int value = i < kEdge ? i : Traits::kValues - 2 * kEdge + i;
      const int at = column - kDilation + value;
      inside[i] = static_cast<unsigned int>(at) < static_cast<unsigned int>(width) ? ~0u : 0;
      asm volatile("" : "+r"(inside[i]));
    }
    if constexpr (Traits::kWeight) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const int at = column + t;
        own[t] = owns && at >= max(begin, 0) && at < width ? 1.0f : 0.0f;
        asm volatile("" : "+f"(own[t]));
      }
    }
  }

  // The values of a row that meet its columns; the row's columns begin at `address`.
  template <bool kOdd>
  __device__ __forceinline__ void read(float (&values)[Traits::kValues], uint32_t address) const {
    constexpr int kOffset = Traits::kPairs && (kDilation + kOdd) % 2 == 1;
    const StreamRow<scalar_t, Traits::kValues, kOffset> row(address - kDilation * Traits::kSize);
#pragma unroll
    for (int i = 0; i < Traits::kValues; ++i) {
      values[i] = row[i];
      const int edge = i < kEdge ? i : i - (Traits::kValues - 2 * kEdge);
      if (i < kEdge || i >= Traits::kValues - kEdge) {
        values[i] = masked(values[i], inside[edge]);
      }
    }
  }

  template <bool kOdd>
  __device__ __forceinline__ void write(uint32_t address, const float (&results)[kTile][1]) const {
    if constexpr (!Traits::kPairs) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        write_shared_word(address + t * sizeof(uint32_t), __float_as_uint(results[t][0]));
      }
    } else {
      const auto pair = [&](int t) {
        const float values[2] = {results[t][0], results[t + 1][0]};
        return pack<scalar_t>(values).words[0];
      };
      constexpr int kFirst = kOdd ? 1 : 2;
#pragma unroll
      for (int t = kFirst; t + kFirst < kTile; t += 2) {
        write_shared_word(address + t * Traits::kSize, pair(t));
      }
      if constexpr (kOdd) {
        if (has_first) {
          write_shared_half(address, bits_of<scalar_t>(results[0][0]));
        }
        if (has_last) {
          write_shared_half(
              address + (kTile - 1) * Traits::kSize, bits_of<scalar_t>(results[kTile - 1][0]));
        }
      } else {
        const uint32_t first = pair(0);
        if (has_first) {
          write_shared_word(address, first);
        } else {
          write_shared_half(address + Traits::kSize, first >> 16);
        }
        const uint32_t last = pair(kTile - 2);
        const uint32_t place = address + (kTile - 2) * Traits::kSize;
        if (has_last) {
          write_shared_word(place, last);
        } else {
          write_shared_half(place, last);
        }
      }
    }
  }
};

// The results of a lane in a chunk tap by tap: rows [first, end). `to`: where the chunk's row `at` begins.
template <typename Traits>
__device__ __noinline__ void careful_chunk(
    typename Traits::scalar_t* to,
    const typename Traits::scalar_t* plane,
    const typename Traits::scalar_t* taps,
    float begin,
    const StreamPlan& s,
    int at,
    int first,
    int end,
    int phase,
    int column) {
#pragma unroll 1
  for (int row = at + phase; row < end; row += Traits::kDilation) {
#pragma unroll 1
    for (int w = max(column, 0); w < min(column + Traits::kTile, s.dst_width); ++w) {
      if (row >= first) {
        to[(row - at) * s.dst_width + w] =
            static_cast<typename Traits::scalar_t>(careful_output(plane, taps, begin, s, row, w));
      }
    }
  }
}

// One tap (9: the bias) as its place between src and the input, of rows [first, end) of one channel, counted
// through the images, inside src only; by all lanes.
template <typename Traits>
__device__ __noinline__ float careful_stream_sum(
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* input,
    const StreamPlan& s,
    int channel,
    int place,
    int first,
    int end) {
  const bool bias = place == StreamSums<Traits>::kTaps;
  if (bias) {
    place /= 2; // the middle of the window meets all of src
  }
  float sum = 0.0f;
#pragma unroll 1
  for (int i = first; i < end; ++i) {
    const int image = i / s.dst_height;
    const int row = i - image * s.dst_height;
    const int plane = (image * s.channels + channel) * s.dst_height;
    const int h = row + (place / 3 - 1) * Traits::kDilation;
    if (h < 0 || h >= s.src_height) {
      continue;
    }
#pragma unroll 1
    for (int column = threadIdx.x; column < s.dst_width; column += kWarpSize) {
      const int w = column + (place % 3 - 1) * Traits::kDilation;
      if (w >= 0 && w < s.src_width) {
        const float value = static_cast<float>(src[(plane + h) * s.src_width + w]);
        sum +=
            bias ? value : value * static_cast<float>(input[(plane + row) * s.dst_width + column]);
      }
    }
  }
  return sum_of_warp(sum);
}

// Adds the lanes' sums of a group up and writes its partial of a share; afterwards they are zero. `of_lanes` is
// room for [sum][lane].
template <typename Traits>
__device__ __forceinline__ void write_stream_sums(
    StreamSums<Traits>& sums,
    float* of_lanes,
    float* partial,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* input,
    const StreamPlan& s,
    int share,
    int group,
    int channels) {
  constexpr int kTaps = StreamSums<Traits>::kTaps;
  const int lane = threadIdx.x;
  sums.add_to_totals();
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    of_lanes[i * kWarpSize + lane] = sums.totals[i];
    sums.totals[i] = 0.0f;
  }
  of_lanes[kTaps * kWarpSize + lane] = sums.bias;
  of_lanes[(kTaps + 1) * kWarpSize + lane] = sums.excess;
  sums.bias = 0.0f;
  sums.excess = 0.0f;
  __syncwarp();
  const int of_channel = Traits::kDilation * s.lanes;
  const int count = channels * (kTaps + 1);
  const int before = group * s.group_rows; // rows of the groups before
  const int first_row = max(share * s.share - before, 0);
  const int end_row = min((share + 1) * s.share - before, s.group_rows);
  const int slot = share - before / s.share;
  // The warp that ends a group leaves zeros where others have more partials.
  const int end_slot = end_row == s.group_rows ? s.slots : slot + 1;
#pragma unroll 1
  for (int first = 0; first < count; first += kWarpSize) {
    const int mine = first + lane;
    const int index = min(mine, count - 1) / (kTaps + 1);
    const int at = min(mine, count - 1) % (kTaps + 1); // in the window; kTaps: the bias
    const float* const values = of_lanes + at * kWarpSize + index * of_channel;
    double sum = 0;
#pragma unroll 4
    for (int i = 0; i < of_channel; ++i) {
      sum += values[i];
      if (Traits::kExact && at == kTaps) {
        sum -= values[i + kWarpSize];
      }
    }
    unsigned int spoiled = __ballot_sync(0xffffffffu, mine < count && isnan(sum));
    while (spoiled) {
      const int which = __ffs(spoiled) - 1;
      spoiled &= spoiled - 1;
      const float again = careful_stream_sum<Traits>(
          src,
          input,
          s,
          group * s.group + (first + which) / (kTaps + 1),
          (first + which) % (kTaps + 1),
          first_row,
          end_row);
      if (which == lane) {
        sum = again;
      }
    }
    if (mine < count) {
      const int row = at == kTaps ? kTaps : kTaps - 1 - at;
#pragma unroll 1
      for (int i = slot; i < end_slot; ++i) {
        float* const result = partial +
            (static_cast<int64_t>(i) * (kTaps + kBiasRows) + row) * s.channels + group * s.group +
            index;
        if (at == kTaps) {
          write_bias(result, s.channels, sum);
        } else {
          *result = static_cast<float>(sum);
        }
        sum = 0;
      }
    }
  }
  __syncwarp();
}

// Row h of a lane, which window[kUpper + 1] has: its products with the row of the input, and its results.
// `values`: where its columns are in the input, `to`: where its results go.
template <typename Traits, int kUpper, bool kOdd>
__device__ __forceinline__ void take_stream_row(
    const StreamLane<Traits>& lane,
    StreamSums<Traits>& sums,
    const float (&window)[4][Traits::kValues],
    const float (&taps)[StreamSums<Traits>::kTaps],
    float begin,
    bool wanted,
    uint32_t values,
    uint32_t to) {
  constexpr int kTaps = StreamSums<Traits>::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kDilation = Traits::kDilation;
  if constexpr (Traits::kWeight) {
    if constexpr (Traits::kData && Traits::kPairs) {
      __syncwarp(); // a row's first word may have the last result of the row before
    }
    const StreamRow<typename Traits::scalar_t, kTile, kOdd> row(values);
    constexpr int kChains = 4;
    float middles[kChains] = {};
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      float value = row[t];
      if (Traits::kPairs && (t == 0 || t == kTile - 1)) {
        // Its column may be none at all.
        value = masked(value, lane.inside[Traits::kEdge - (t == 0 ? 1 : 0)]);
      }
      value *= lane.own[t];
      float& middle = middles[t % kChains];
      middle = fmaf(window[kUpper + 1][t + kDilation], lane.own[t], middle);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        const float meets = window[kUpper + tap / 3][t + tap % 3 * kDilation];
        sums.sums[tap] = fmaf(value, meets, sums.sums[tap]);
      }
    }
    const float middle = (middles[0] + middles[1]) + (middles[2] + middles[3]);
    add_to_bias<Traits::kExact>(sums.bias, sums.excess, wanted ? middle : 0.0f);
  }
  if constexpr (Traits::kData) {
    float results[kTile][1];
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      results[t][0] = begin;
    }
#pragma unroll
    for (int kh = 0; kh < 3; ++kh) {
      RowSums<kTile, 1> products(results, kh >= Traits::kOwnRow);
#pragma unroll
      for (int kw = 0; kw < 3; ++kw) {
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
          products.add(kw, t, 0, window[kUpper + kh][t + kw * kDilation], taps[kh * 3 + kw]);
        }
      }
      products.finish();
    }
    // All lanes have read what these take the place of.
    if (kUpper == 0 || Traits::kWeight) {
      __syncwarp();
    }
    if (wanted) {
      lane.template write<kOdd>(to, results);
    }
  }
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(kStreamThreads, Traits::kBlocks)
__global__ void streams_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ StreamPlan s) {
  constexpr int kTaps = StreamSums<Traits>::kTaps;
  constexpr int kDilation = Traits::kDilation;
  constexpr int kSize = Traits::kSize;
  constexpr bool kSecondOdd = Traits::kAlternates;
  extern __shared__ float4 shared_vectors[];
  const int share = blockIdx.x * blockDim.y + threadIdx.y;
  if (share >= s.shares) {
    return;
  }
  char* const memory = reinterpret_cast<char*>(shared_vectors) +
      threadIdx.y * (Traits::kHead + s.stages * s.group * Traits::kTensors * s.run_bytes);
  const StreamRing<Traits> ring(s, memory);
  StreamChunk asked(s, kDilation, share);
  StreamChunk chunk = asked;
  int stage_asked = 0; // where the next goes that is asked for
  const auto ask_next = [&]() {
    if (asked.exists()) {
      ring.ask(stage_asked, asked, src, input);
      asked.next();
      stage_asked = ring.after(stage_asked);
    }
  };
#pragma unroll 1
  for (int i = 0; i < s.stages; ++i) {
    ask_next();
  }

  StreamSums<Traits> sums;
  const int step = kDilation * s.src_width * kSize; // from a lane's row to its next
  // Zeros lie as far from a word as what is there else.
  const uint32_t zeros = ring.zeros() + 2 * sizeof(uint32_t);
  const uint32_t zeros_second = zeros + (kSecondOdd ? kSize : 0);
  // Rows in pairs: two that were, and two that come.
  float window[4][Traits::kValues];
  uint32_t before = 0; // where the row before is, in the input where that comes too
  int stage = 0;
  int stage_before = 0;
  uint32_t parity = 0;
  StreamChunk chunk_before = chunk;

#pragma unroll 1
  while (chunk.exists()) {
    const int group = chunk.group;
    StreamLane<Traits> lane(s, chunk.channels());
    const int channel = group * s.group + lane.of_group;
    float taps[kTaps] = {};
    bool finite = true;
    if constexpr (Traits::kData) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        taps[tap] = static_cast<float>(weight[channel * kTaps + (s.flip ? kTaps - 1 - tap : tap)]);
        finite = finite && is_finite(taps[tap]);
      }
    }
    const bool careful = Traits::kData && __any_sync(0xffffffffu, !finite);
    const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
    bool follows = false; // whether there is a chunk of the group before
    // The chunk before has all its results: sends them.
    const auto finish = [&]() {
      if (careful) {
        __syncwarp();
        careful_chunk<Traits>(
            ring.pointer(
                ring.rows(stage_before, chunk_before, lane.of_group, Traits::kTensors - 1)),
            src + chunk_before.element(lane.of_group, 0),
            weight + channel * kTaps,
            begin,
            s,
            chunk_before.at,
            chunk_before.dst_first(),
            chunk_before.dst_end(),
            lane.phase,
            lane.column);
      }
      fence_for_copies();
      __syncwarp();
      ring.send(stage_before, chunk_before, dst);
    };

#pragma unroll 1
    do {
      if (chunk.begins()) {
        lane.find_columns(s, chunk.element(lane.of_group, chunk.at + lane.phase) % 2 != 0);
#pragma unroll
        for (int i = 0; i < Traits::kValues; ++i) {
          window[0][i] = 0.0f;
          window[1][i] = 0.0f;
        }
      }
      uint32_t from = ring.rows(stage, chunk, lane.of_group, 0) +
          (lane.phase * s.src_width + lane.column) * kSize;
      const uint32_t beside = Traits::kWeight ? s.run_bytes : 0;
      int row = chunk.at + lane.phase;
      const int rows_end = min(chunk.at + s.chunk_rows, chunk.end + kDilation);
      wait_for(ring.full(stage), parity);
      bool first = true;
#pragma unroll 1
      for (int at = chunk.at; at < rows_end; at += 2 * kDilation) {
        const auto exists = [&](int h) {
          return h >= 0 && h < min(chunk.end + kDilation, s.src_height);
        };
        const auto wanted = [&](int h) {
          return h >= chunk.first && h < chunk.end;
        };
        lane.template read<false>(window[2], exists(row) ? from : zeros);
        lane.template read<kSecondOdd>(
            window[3], exists(row + kDilation) ? from + step : zeros_second);
        const bool upper = wanted(row - kDilation);
        take_stream_row<Traits, 0, kSecondOdd>(
            lane, sums, window, taps, begin, upper, upper ? before : zeros_second, before);
        const bool lower = wanted(row);
        const uint32_t place = from + beside;
        take_stream_row<Traits, 1, false>(
            lane, sums, window, taps, begin, lower, lower ? place : zeros, place);
#pragma unroll
        for (int i = 0; i < Traits::kValues; ++i) {
          window[0][i] = window[2][i];
          window[1][i] = window[3][i];
        }
        before = place + step;
        from += 2 * step;
        row += 2 * kDilation;
        if (first && follows) {
          if constexpr (Traits::kData) {
            finish();
          } else {
            fence_for_copies();
            __syncwarp();
            ask_next();
          }
        }
        first = false;
      }
      if (Traits::kData && follows) {
        // The chunk before has left by now.
        wait_until_sent();
        __syncwarp();
        ask_next();
      }
      if constexpr (Traits::kWeight && Traits::kExact) {
        sums.add_to_totals();
      }
      follows = true;
      chunk_before = chunk;
      stage_before = stage;
      chunk.next();
      stage = ring.after(stage);
      parity ^= stage == 0;
    } while (chunk.exists() && chunk.group == group);
    // The group's last chunk.
    if constexpr (Traits::kData) {
      finish();
      wait_until_sent();
    } else {
      fence_for_copies();
    }
    __syncwarp();
    ask_next();
    if constexpr (Traits::kWeight) {
      write_stream_sums(
          sums,
          reinterpret_cast<float*>(memory + kStreamSums),
          partial,
          src,
          input,
          s,
          share,
          group,
          chunk_before.channels());
    }
  }
  if constexpr (Traits::kData) {
    wait_until_stored();
  }
}
#endif

// What one pass is about: forward, or the gradients that are wanted.
struct StreamPass {
  const TensorBase& dst; // may be undefined where the input is not
  const TensorBase& grad_weight;
  const TensorBase& grad_bias;
  const TensorBase& src;
  const TensorBase& input; // where the weight's gradient is wanted
  const TensorBase& weight;
  const TensorBase& bias;
};

#ifdef __CUDACC__
template <typename Traits>
bool launch_stream(const StreamPass& pass, const Params& params, StreamPlan s) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int64_t kStep = 2 * Traits::kDilation; // rows that a warp takes at once
  // Of a tensor, in a chunk. What a chunk costs beside its rows is some 300 instructions: forward of 33@128x513
  // in float by 4, 6, 8 KB 79, 79, 77 us, all gradients of 728@65 dilated by 2 102, 102, 89, of 65 columns
  // 100, 100, 87; forward of 728@65 in half 36.1, 35.8, 36.5.
  constexpr int64_t kChunkBytes = !Traits::kWeight && Traits::kSize == 2 ? 6200 : 8300;
  // One that comes, one at work, one that leaves; with two all gradients of 33@128x513 in float take 126 us
  // for 112.
  s.stages = 3;
  const int64_t row_bytes = s.dst_width * Traits::kSize;
  const int64_t together = kWarpSize / (s.lanes * Traits::kDilation);
  s.group = std::min({static_cast<int64_t>(s.channels), together, kMostStreamGroup});
  s.groups = divide_up(s.channels, s.group);
  const int64_t beside = (Traits::kValues - Traits::kTile + 2) * sizeof(uint32_t) + kBulkBytes;
  int64_t shared = 0;
  const auto plan_rows = [&](int64_t rows) {
    s.chunk_rows = rows;
    s.run_bytes = (divide_up(rows * row_bytes + beside, kLineBytes) + 1) * kLineBytes;
    shared = kStreamWarps *
        (Traits::kHead + static_cast<int64_t>(s.stages) * s.group * Traits::kTensors * s.run_bytes);
  };
  plan_rows(std::max<int64_t>(kChunkBytes / (s.group * row_bytes) / kStep, 1) * kStep);
  if (!has_shared(shared) && s.chunk_rows > kStep) {
    plan_rows(s.chunk_rows - kStep); // what runs have beside their rows is more where they are many
  }
  constexpr auto kernel = streams_kernel<Traits>;
  if (!has_shared(shared) || !compiled_for_sm_90<kernel>()) {
    return false;
  }
  // Even shares for all warps that are resident at once: with twice as many 33@128x513 in half takes 48 us
  // forward for 44, 57 for 45 in the weight's gradient.
  const int64_t warps = resident_blocks(kernel, kStreamThreads, shared) * kStreamWarps;
  constexpr int64_t kLeastRows = 16;
  s.group_rows = s.batch * s.dst_height;
  const int64_t rows = static_cast<int64_t>(s.groups) * s.group_rows;
  s.share = std::max(divide_up(rows, warps), kLeastRows);
  s.shares = divide_up(rows, s.share);
  s.slots = divide_up(s.group_rows, s.share) + 1;
  const TensorBase partial =
      Traits::kWeight ? empty_partial(pass.src, s.slots, params) : TensorBase();
  const unsigned int grid = divide_up(s.shares, kStreamWarps);
  kernel<<<grid, dim3(kWarpSize, kStreamWarps), shared, c10::cuda::getCurrentCUDAStream()>>>(
      mutable_pointer_or_null<scalar_t>(pass.dst),
      mutable_pointer_or_null<float>(partial),
      pass.src.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.input),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      s);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  if constexpr (Traits::kWeight) {
    add_partials(pass.grad_weight, pass.grad_bias, partial, s.slots, params);
  }
  return true;
}

// Whether streams are faster than columns; used: the part of the lanes' columns that exist.
template <typename scalar_t, bool kData, bool kWeight>
bool streams_pay(const StreamPlan& s, double used) {
  // Microseconds by columns (of float forward to 288 columns by what took those) and by this, of 8 images of
  // 24 million elements. Float: forward of 57, 113, 225, 385 columns 69 and 58, 71 and 57, 69 and 56, 58 and
  // 56, the weight's gradient 74 and 53, 80 and 54, 69 and 52, 87 and 51, all gradients 90 and 90, 96 and
  // 86, 89 and 82, 121 and 83, of 51 91 and 102. Half: forward of 57, 65, 75, 97, 161, 225, 513 columns 53
  // and 38, 36 and 36, 35 and 36, 50 and 35, 34 and 34, 52 and 35, 53 and 44.
  constexpr bool kHalf = sizeof(scalar_t) == 2;
  constexpr bool kAll = kData && kWeight;
  constexpr int32_t kNarrow = 60;
  constexpr int32_t kManyColumns = 120; // from which columns take no dilation
  if (s.dilation_height > 1 && s.dst_width > kManyColumns) {
    return true;
  }
  if constexpr (!kHalf) {
    return !kAll || s.dst_width > kNarrow;
  } else if constexpr (kAll) {
    // 65, 113, 129, 161, 225, 257, 513, 543 columns 66 and 73, 59 and 67, 80 and 62, 69 and 63, 57 and 64, 67
    // and 58, 99 and 74, 72 and 58.
    constexpr int32_t kWide = 95;
    constexpr double kLeastUsed = 0.8;
    return s.dst_width < kNarrow || (s.dst_width > kWide && used > kLeastUsed);
  } else if constexpr (kWeight) {
    // 193 columns (.670 used) 62 and 42, 321 (.557) 37 and 46, 385 (.668) 40 and 42, 225 (.78) 39 and 39.
    constexpr double kLeastUsed = 0.67;
    return used > kLeastUsed;
  } else {
    // Planes that columns take whole.
    constexpr int64_t kWholeBytes = 12 * 1024;
    const int64_t bytes = static_cast<int64_t>(s.dst_height) * s.dst_width * 2;
    return s.dilation_height > 1 || s.dst_width < kNarrow || bytes > kWholeBytes;
  }
}

// Calls the kernel of the tile that leaves the fewest lanes idle.
template <typename scalar_t, bool kData, bool kWeight>
bool stream_pass(const StreamPass& pass, const Params& params, const StreamPlan& plan) {
  const auto with = [&](auto dilation) {
    constexpr int kDilation = decltype(dilation)::value;
    constexpr bool kPairs = sizeof(scalar_t) == 2;
    using Narrow = StreamTraits<scalar_t, kDilation, kPairs ? 10 : 9, kData, kWeight>;
    using Wide = StreamTraits<scalar_t, kDilation, kPairs ? 18 : 17, kData, kWeight>;
    StreamPlan s = plan;
    // Pairs may begin an element before the row.
    const auto lanes = [&](int64_t tile) {
      return divide_up(s.dst_width + kPairs, tile);
    };
    const auto used = [&](int64_t tile) {
      const int64_t planes = std::min(kWarpSize / (lanes(tile) * kDilation), kMostStreamGroup);
      return static_cast<double>(planes * kDilation * s.dst_width) / (kWarpSize * tile);
    };
    // Narrow tiles take fewer registers and fewer channels at once.
    constexpr double kGain = 1.1;
    const bool wide = used(Wide::kTile) > used(Narrow::kTile) * kGain;
    const int64_t tile = wide ? Wide::kTile : Narrow::kTile;
    s.lanes = lanes(tile);
    if (s.lanes * kDilation > kWarpSize || !streams_pay<scalar_t, kData, kWeight>(s, used(tile))) {
      return false;
    }
    return wide ? launch_stream<Wide>(pass, params, s) : launch_stream<Narrow>(pass, params, s);
  };
  return plan.dilation_height == 1 ? with(std::integral_constant<int, 1>())
                                   : with(std::integral_constant<int, 2>());
}
#endif

// Whether there are kernels for the sizes.
inline bool streams_take(const Params& p) {
  constexpr int64_t kFew = 132 * 64 * 1024; // elements; of fewer there are no measurements
  constexpr int64_t kLeastColumns = 48;
  return march_fits_32_bits(p) && keeps_size_of_planes(p) && p.multiplier == 1 &&
      p.kernel_height == 3 && p.kernel_width == 3 && p.dilation_height == p.dilation_width &&
      p.dilation_height <= 2 && p.padding_height == p.dilation_height &&
      p.padding_width == p.dilation_width && p.input_width >= kLeastColumns &&
      p.input_width % 2 != 0 && p.batch * p.channels * p.input_height * p.input_width > kFew &&
      device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

inline StreamPlan stream_plan(const Params& p, bool grad) {
  StreamPlan s{};
  set_unit_stride_pass(s, p);
  if (grad) {
    turn_around(s, p);
  }
  return s;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
