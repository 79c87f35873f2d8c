// depthwise_conv2d_ext by 5 x 5 and 7 x 7 in float32, in plane order, on planes of 28, 32 and 56 columns or
// about as many, of the same size in and out.
//
// A chunk is one plane or two neighbouring ones, or half a plane, in buffers of a warp's own. The tensor copy
// engine (sm_90 and later) brings it with zeros around its rows, so that no instruction is spent on borders.
// It takes no columns but multiples of 16 bytes: another first column is an illegal instruction. A lane has
// four columns of a row. One half of the lanes marches down from the first row, the other up from the last,
// with the rows of its taps turned round, until they meet: so both have as many rows, what exists is known
// when the kernel is compiled, rows outside the image are not even multiplied, and a row of src is read by
// one 16-byte load and one on either side. Each row feeds all the dst rows that it belongs to, whose sums are
// in registers: slot s holds the dst row that this row reaches with the taps of kernel row s. With the first
// product of a row the sums move on a slot.
//
// A result lies where the rows lay that no lane needs any more, those of a half without gaps, and leaves by a
// bulk copy while the warp goes on with its other buffer. A warp keeps its channels from chunk to chunk, and
// so its taps. No warp waits for another.
//
// Where the weight's gradient is wanted, src is grad_output, and the rows of the input that a row meets are
// those of the slots: sum[slot][kw] += input * src, lanes of a half plane by trees after each chunk and
// chunks one by one, which bounds the chains. A task of a warp is a part of the images of its channels and
// writes a partial; add_partials() adds those up in order. The bias is compensated.
//
// Columns outside the image are zeros that are multiplied: results of taps that are not finite are taken
// again tap by tap, and so are a task's sums that end as NaN.
//
// Microseconds of an H200, by strips and by this: forward of 96@56 k7 67 and 61, 192@28 k7 38 and 34, the
// weight's gradient of 192@28 k7 41 and 39, 240@28 k5 66 and 56, all gradients of 192@28 k7 79 (two passes)
// and 70, 240@28 k5 94 and 92, of 8 images 19 and 16. By ncu 96@56 k7 issues .70 instructions a cycle and
// scheduler, at 1.96 GHz, with 8 warps a multiprocessor as with 12.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Bulk.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

struct Halves {
  int32_t lanes; // vectors of a row
  int32_t half; // rows of half a chunk
  int32_t bands; // of a plane
  int32_t chunks; // of a group of channels
  int32_t groups; // of channels
  int32_t parts; // of the chunks of a group, where the weight's gradient is wanted
  int32_t box_rows;
  int32_t box_bytes;
  int32_t input_at; // of a stage, in bytes
  int32_t stage_bytes;
  int32_t warp_bytes;
};

template <
    typename Window,
    int kLanes_,
    bool kBand_,
    bool kData_,
    bool kWeight_,
    int kWarps_,
    int kBlocks_>
struct HalvesTraits {
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kReach = (kWidth - 1) / 2; // rows and columns on either side
  static constexpr int kOwnRow = kFirstOwnRow<float, Window>;
  static constexpr bool kBand = kBand_; // whether a chunk is half a plane, else some whole ones
  static constexpr bool kData = kData_; // whether dst is wanted
  static constexpr bool kWeight = kWeight_; // whether the weight's gradient is
  static constexpr int kVector = 4; // columns of a lane
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(float));
  static constexpr int kColumns = kVector + 2 * kReach; // that a lane sees
  // Columns of a box before those of the image; the engine allows whole 16 bytes. What is behind a row lies
  // before the next.
  static constexpr int kPad = 4;
  // Rows of a box before and after the chunk's own.
  static constexpr int kOutside = kBand ? kReach : 0;
  static constexpr int kLanes = kLanes_; // of half a chunk's row, some of which may be idle
  static constexpr int kPlanes = kWarpSize / kLanes / 2; // of a chunk
  static constexpr int kStages = 2;
  // Stages that a warp asks for at once, the others when it has begun with the chunk before. Where a stage is
  // of two tensors, all warps' seconds would come before some warps' firsts: all gradients of 192@28 k7 67 us,
  // 61 so, of 16 images 30 and 27. A forward is as fast either way.
  static constexpr int kAtOnce = kWeight ? 1 : kStages;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kBlocks = kBlocks_; // of a multiprocessor
  // Rows of a turn of the march: two share what they read of the input. All that there is at once, or
  // nothing.
  static constexpr int kTurn = kData && kWeight ? 1 : 2;
  static constexpr int kBarrierBytes = kStages * static_cast<int>(sizeof(uint64_t)); // of a warp
  static constexpr int kZeros = kWarps * kBarrierBytes; // where each warp has a vector of zeros
  static constexpr int kZeroBytes = kWeight ? kWarps * kVectorBytes : 0;
  static constexpr int kHead = (kZeros + kZeroBytes + kBoxBytes - 1) / kBoxBytes * kBoxBytes;
  // Read behind the last row of the last box, for nothing.
  static constexpr int kTail = kVectorBytes;
  using Fold = WarpFold<kTaps, kLanes / 2>;

  static int64_t shared_bytes(const Halves& s) {
    return kHead + static_cast<int64_t>(kWarps) * s.warp_bytes + kTail;
  }

  static_assert(Window::kWidth == Window::kHeight && (kReach == 2 || kReach == 3));
  static_assert(!kBand || kPlanes == 1);
};

#ifdef __CUDACC__
#if CUDART_VERSION >= 12000
// Where a chunk lies.
template <typename Traits>
struct HalvesChunk {
  int32_t group;
  int32_t planes;
  int32_t image;
  int32_t first_row;
  int32_t offset; // of its first element

  __device__ __forceinline__ HalvesChunk(int index, const Halves& s, const UnitStridePass& p) {
    group = index / s.chunks;
    const int chunk = index - group * s.chunks;
    image = Traits::kBand ? chunk / s.bands : chunk;
    first_row = Traits::kBand ? chunk % s.bands * 2 * s.half : 0;
    planes = min(Traits::kPlanes, p.channels - group * Traits::kPlanes);
    offset =
        ((image * p.channels + group * Traits::kPlanes) * p.dst_height + first_row) * p.dst_width;
  }
};

// A lane's place in the buffers, in bytes.
template <typename Traits>
struct HalvesLane {
  int32_t vector;
  int32_t plane; // of the chunk
  bool owns; // else it does what the last lane does
  bool at_end; // of the row
  bool upwards;
  int32_t src;
  int32_t src_step; // from row to row
  int32_t dst;
  int32_t dst_step;
  int32_t input;
  int32_t input_step;
  __device__ __forceinline__ HalvesLane(const Halves& s, const UnitStridePass& p) {
    const int lane = threadIdx.x % Traits::kLanes;
    const int part = threadIdx.x / Traits::kLanes;
    const int row = p.dst_width * static_cast<int>(sizeof(float));
    const int pitch = (p.dst_width + Traits::kPad) * static_cast<int>(sizeof(float));
    vector = min(lane, s.lanes - 1);
    plane = part / 2;
    owns = lane == vector;
    at_end = vector == s.lanes - 1;
    upwards = part % 2 != 0;
    const int plane_bytes = s.box_rows * pitch;
    const int input_bytes = 2 * s.half * row;
    const int column = vector * Traits::kVectorBytes;
    src = plane * plane_bytes + (upwards ? plane_bytes - pitch : 0) + column;
    src_step = upwards ? -pitch : pitch;
    dst = plane * plane_bytes + (upwards ? plane_bytes - row : 0) + column;
    dst_step = upwards ? -row : row;
    input = plane * input_bytes + (upwards ? input_bytes - row : 0) + column + s.input_at;
    input_step = owns ? dst_step : 0;
  }
};

// The columns that a lane sees of a row of src.
template <typename Traits>
struct HalvesRow {
  static constexpr int kReach = Traits::kReach;
  float values[Traits::kColumns];

  // `from` is the lane's vector in a box, less the pad.
  __device__ __forceinline__ void load(const char* from) {
    read_four(values + kReach, from + 16);
    if constexpr (kReach == 3) {
      const float4 left = *reinterpret_cast<const float4*>(from);
      const float4 right = *reinterpret_cast<const float4*>(from + 32);
      values[0] = left.y;
      values[1] = left.z;
      values[2] = left.w;
      values[7] = right.x;
      values[8] = right.y;
      values[9] = right.z;
    } else {
      const float2 left = *reinterpret_cast<const float2*>(from + 8);
      const float2 right = *reinterpret_cast<const float2*>(from + 32);
      values[0] = left.x;
      values[1] = left.y;
      values[6] = right.x;
      values[7] = right.y;
    }
  }

  // They lie before the next row; of the last one in what is not the box.
  __device__ __forceinline__ void end_with_zeros() {
#pragma unroll
    for (int i = Traits::kVector + kReach; i < Traits::kColumns; ++i) {
      values[i] = 0;
    }
  }
};

template <typename Traits>
__device__ __forceinline__ void write_halves_result(
    char* to,
    const float (&sums)[Traits::kVector],
    const HalvesLane<Traits>& lane) {
  // All lanes have read what lies there.
  __syncwarp();
  if (lane.owns) {
    *reinterpret_cast<float4*>(to) = make_float4(sums[0], sums[1], sums[2], sums[3]);
  }
}

// The taps in the order in which the march meets them; whether all are finite.
template <typename Traits>
__device__ __forceinline__ bool load_halves_taps(
    float (&taps)[Traits::kTaps],
    const float* weight,
    bool upwards,
    bool flip) {
  constexpr int kWidth = Traits::kWidth;
  const bool from_below = upwards != flip;
  const int row_step = from_below ? -kWidth : kWidth;
  const int column_step = flip ? -1 : 1;
  const float* from = weight + (from_below ? Traits::kTaps - kWidth : 0) + (flip ? kWidth - 1 : 0);
  bool finite = true;
#pragma unroll
  for (int kh = 0; kh < Traits::kHeight; ++kh) {
#pragma unroll
    for (int kw = 0; kw < kWidth; ++kw) {
      const float tap = from[kw * column_step];
      taps[kh * kWidth + kw] = tap;
      finite = finite && is_finite(tap);
    }
    from += row_step;
  }
  return finite;
}

// A lane's rows of a chunk, tap by tap, from `row` on, downwards where to_step is positive.
template <typename Traits>
__device__ __noinline__ void careful_half(
    char* to,
    int to_step,
    const float* plane,
    const float* taps,
    float begin,
    const UnitStridePass& p,
    int row,
    int rows,
    int column,
    int columns) {
#pragma unroll 1
  for (; rows > 0; --rows) {
#pragma unroll 1
    for (int t = 0; t < columns; ++t) {
      reinterpret_cast<float*>(to)[t] = careful_output(plane, taps, begin, p, row, column + t);
    }
    to += to_step;
    row += to_step > 0 ? 1 : -1;
  }
}

// One tap (kernel_size: the bias) of a task, inside the image only; `first` and `end` of its chunks.
template <typename Traits>
__device__ __noinline__ float careful_task(
    const float* grad_output,
    const float* input,
    const UnitStridePass& p,
    const Halves& s,
    int channel,
    int tap,
    int first,
    int end) {
  const int width = p.dst_width;
  float sum = 0;
  for (int chunk = first; chunk < end; ++chunk) {
    const int plane = (chunk / s.bands * p.channels + channel) * p.dst_height * width;
    const int first_row = chunk % s.bands * 2 * s.half;
    for (int i = threadIdx.x; i < 2 * s.half * width; i += kWarpSize) {
      const int at = plane + first_row * width + i;
      const int h = first_row + i / width - tap / p.kernel_width + p.padding_height;
      const int w = i % width - tap % p.kernel_width + p.padding_width;
      if (tap == p.kernel_height * p.kernel_width) {
        sum += grad_output[at];
      } else if (h >= 0 && h < p.dst_height && w >= 0 && w < width) {
        sum += grad_output[plane + h * width + w] * input[at];
      }
    }
  }
  return sum_of_warp(sum);
}

// Calls function(std::integral_constant<int, i>()) for i from 0 to kCount - 1.
template <int kCount, typename Function>
__device__ __forceinline__ void with_each_step(const Function& function) {
  if constexpr (kCount > 0) {
    with_each_step<kCount - 1>(function);
    function(std::integral_constant<int, kCount - 1>());
  }
}

// What a task adds up.
template <typename Traits>
struct HalvesSums {
  float taps[Traits::Fold::kKept] = {};
  float bias = 0;
  float excess = 0;
};

// Writes a task's sums to its partial, chunks `first` to `end` of a group.
template <typename Traits>
__device__ __forceinline__ void write_halves_sums(
    float* partial,
    char* shared,
    const HalvesSums<Traits>& sums,
    const float* grad_output,
    const float* input,
    const UnitStridePass& p,
    const Halves& s,
    const HalvesLane<Traits>& lane,
    int group,
    int first,
    int end) {
  constexpr int kTaps = Traits::kTaps;
  constexpr int kWidth = Traits::kWidth;
  using Fold = typename Traits::Fold;
  float (*const of_parts)[kTaps] = reinterpret_cast<float (*)[kTaps]>(shared);
#pragma unroll
  for (int i = 0; i < Fold::kKept; ++i) {
    const int k = Fold::index_of(i, threadIdx.x);
    if (k >= 0) {
      const int row = lane.upwards ? k / kWidth : Traits::kHeight - 1 - k / kWidth;
      of_parts[threadIdx.x / Traits::kLanes][row * kWidth + kWidth - 1 - k % kWidth] = sums.taps[i];
    }
  }
  double bias = lane.owns ? static_cast<double>(sums.bias) - sums.excess : 0.0;
#pragma unroll
  for (int partner = Traits::kLanes; partner > 0; partner /= 2) {
    bias += __shfl_xor_sync(0xffffffffu, bias, partner);
  }
  __syncwarp();
#pragma unroll 1
  for (int plane = 0; plane < Traits::kPlanes; ++plane) {
    const int channel = group * Traits::kPlanes + plane;
    if (channel >= p.channels) {
      break;
    }
    bool spoilt = lane.plane == plane && isnan(bias);
    for (int k = threadIdx.x; k < kTaps; k += kWarpSize) {
      const float sum = of_parts[2 * plane][k] + of_parts[2 * plane + 1][k];
      of_parts[2 * plane][k] = sum;
      spoilt = spoilt || isnan(sum);
    }
    if (__any_sync(0xffffffffu, spoilt)) {
#pragma unroll 1
      for (int k = 0; k <= kTaps; ++k) {
        const float sum = careful_task<Traits>(grad_output, input, p, s, channel, k, first, end);
        if (k == kTaps) {
          bias = lane.plane == plane && isnan(bias) ? sum : bias;
        } else if (threadIdx.x == 0 && isnan(of_parts[2 * plane][k])) {
          of_parts[2 * plane][k] = sum;
        }
      }
      __syncwarp();
    }
    float* const to = partial + channel;
    for (int k = threadIdx.x; k < kTaps; k += kWarpSize) {
      to[k * p.channels] = of_parts[2 * plane][k];
    }
    if (threadIdx.x == plane * 2 * Traits::kLanes) {
      write_bias(to + kTaps * p.channels, p.channels, bias);
    }
  }
}

// src: the input of a forward, else grad_output. dst only where kData, input and partial only where kWeight.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void halves_kernel(
    float* __restrict__ dst,
    float* __restrict__ partial,
    const float* __restrict__ src,
    const float* __restrict__ input,
    const float* __restrict__ weight,
    const float* __restrict__ bias,
    const __grid_constant__ CUtensorMap map,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ Halves s) {
  constexpr int kHeight = Traits::kHeight;
  constexpr int kWidth = Traits::kWidth;
  constexpr int kReach = Traits::kReach;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kVector = Traits::kVector;
  constexpr int kStages = Traits::kStages;
  extern __shared__ __align__(kBoxBytes) char shared[];
  const int warp = threadIdx.y;
  char* const buffers = shared + Traits::kHead + warp * s.warp_bytes;
  float* const zeros =
      reinterpret_cast<float*>(shared + Traits::kZeros + warp * Traits::kVectorBytes);
  if (Traits::kWeight && threadIdx.x < kVector) {
    zeros[threadIdx.x] = 0;
  }
  const WarpRuns<kStages> runs(shared + warp * Traits::kBarrierBytes);

  // Chunks of this warp, those of a group one after the other.
  const int place = warp * gridDim.x + blockIdx.x;
  int index;
  int end;
  if constexpr (Traits::kWeight) {
    const int group = place / s.parts;
    const int part = place % s.parts;
    if (group >= s.groups) {
      return;
    }
    index = group * s.chunks + part * s.chunks / s.parts;
    end = group * s.chunks + (part + 1) * s.chunks / s.parts;
  } else {
    const int64_t all = static_cast<int64_t>(s.groups) * s.chunks;
    const int warps = gridDim.x * Traits::kWarps;
    index = place * all / warps;
    end = (place + 1) * all / warps;
  }
  const int first = index;
  const int run = s.half * p.dst_width; // elements of half a plane of a chunk
  const int plane_bytes = s.box_bytes / Traits::kPlanes;
  const auto load = [&](int stage, int at) {
    if (at < end && threadIdx.x == 0) {
      const HalvesChunk<Traits> chunk(at, s, p);
      char* const to = buffers + stage * s.stage_bytes;
      const int input_bytes = chunk.planes * 2 * run * static_cast<int>(sizeof(float));
      runs.expect(stage, Traits::kWeight ? s.box_bytes + input_bytes : s.box_bytes);
      load_box(
          shared_address(to),
          runs.barrier(stage),
          map,
          -Traits::kPad,
          chunk.first_row - Traits::kOutside,
          chunk.group * Traits::kPlanes,
          chunk.image);
      if constexpr (Traits::kWeight) {
        runs.load(stage, to + s.input_at, input + chunk.offset, input_bytes);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < Traits::kAtOnce; ++i) {
    load(i, index + i);
  }

  const HalvesLane<Traits> lane(s, p);
  float taps[kTaps];
  float begin = 0;
  bool finite = true;
  int known = -1;
  HalvesSums<Traits> totals;
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (; index < end; ++index) {
    const HalvesChunk<Traits> chunk(index, s, p);
    const int channel = min(chunk.group * Traits::kPlanes + lane.plane, p.channels - 1);
    if (Traits::kData && chunk.group != known) {
      known = chunk.group;
      finite = load_halves_taps<Traits>(taps, weight + channel * kTaps, lane.upwards, p.flip);
      begin = bias ? bias[channel] : 0.0f;
      finite = __all_sync(0xffffffffu, finite);
    }
    char* const buffer = buffers + stage * s.stage_bytes;
    char* to = buffer + lane.dst;
    const char* from = buffer + lane.src;
    // The input's row of slot 0.
    const char* inputs = lane.owns
        ? buffer + lane.input + (kReach - Traits::kOutside) * lane.input_step
        : reinterpret_cast<const char*>(zeros);
    runs.wait(stage, parity);

    HalvesRow<Traits> next;
    next.load(from);
    if (lane.at_end) {
      next.end_with_zeros();
    }
    float slots[kHeight][kVector];
#pragma unroll
    for (int slot = 0; slot < kHeight; ++slot) {
#pragma unroll
      for (int t = 0; t < kVector; ++t) {
        slots[slot][t] = begin;
      }
    }
    float sums[kTaps] = {};
    // One row of src, of which only the slots from first_slot to last_slot exist.
    const auto add_row = [&](auto first_slot, auto last_slot) {
      const HalvesRow<Traits> row = next;
      if constexpr (first_slot.value < kHeight - 1) {
        from += lane.src_step;
        next.load(from);
      }
      if constexpr (Traits::kWeight && first_slot.value <= kReach && last_slot.value >= kReach) {
        const float* const own = row.values + kReach;
        add_compensated(totals.bias, totals.excess, own[0] + own[1] + (own[2] + own[3]));
      }
#pragma unroll
      for (int slot = kHeight - 1; slot >= 0; --slot) {
        if (slot < first_slot.value || slot > last_slot.value) {
          continue;
        }
        if constexpr (Traits::kWeight) {
          float values[kVector];
          read_four(values, inputs - slot * lane.input_step);
#pragma unroll
          for (int kw = 0; kw < kWidth; ++kw) {
            float& sum = sums[slot * kWidth + kw];
#pragma unroll
            for (int t = 0; t < kVector; ++t) {
              sum = fmaf(values[t], row.values[t + kw], sum);
            }
          }
        }
        if constexpr (Traits::kData) {
          const bool own = slot >= Traits::kOwnRow;
#pragma unroll
          for (int t = 0; t < kVector; ++t) {
            const float before = slot > 0 ? slots[slot > 0 ? slot - 1 : 0][t] : begin;
            float sum = before;
#pragma unroll
            for (int kw = 0; kw < kWidth; ++kw) {
              const float tap = taps[slot * kWidth + kw];
              const float value = row.values[t + kw];
              sum = own && kw == 0 ? value * tap : fmaf(value, tap, sum);
            }
            slots[slot][t] = own ? before + sum : sum;
          }
        }
      }
      inputs += lane.input_step;
    };
    const auto store_row = [&]() {
      if constexpr (Traits::kData) {
        write_halves_result<Traits>(to, slots[kHeight - 1], lane);
        to += lane.dst_step;
      }
    };
    constexpr auto kFirst = std::integral_constant<int, 0>();
    constexpr auto kLast = std::integral_constant<int, kHeight - 1>();
    with_each_step<kReach + Traits::kOutside>([&](auto i) {
      add_row(kFirst, std::integral_constant<int, kReach - Traits::kOutside + i.value>());
    });
    // By now the result before has left its buffer.
    if (Traits::kData) {
      runs.wait_sent();
    }
    if (Traits::kAtOnce < kStages || index > first) {
      load(stage ^ 1, index + 1);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = s.half - 2 * kReach; i > 0; i -= Traits::kTurn) {
#pragma unroll
      for (int j = 0; j < Traits::kTurn; ++j) {
        add_row(kFirst, kLast);
        store_row();
      }
    }
    with_each_step<kHeight - 1>([&](auto i) {
      add_row(std::integral_constant<int, i.value + 1>(), kLast);
      store_row();
    });

    __syncwarp();
    if constexpr (Traits::kData) {
      if (!finite) {
        const int column = lane.vector * kVector;
        careful_half<Traits>(
            buffer + lane.dst,
            lane.dst_step,
            src + (chunk.image * p.channels + channel) * p.dst_height * p.dst_width,
            weight + channel * kTaps,
            begin,
            p,
            chunk.first_row + (lane.upwards ? 2 * s.half - 1 : 0),
            s.half,
            column,
            lane.owns ? min(kVector, p.dst_width - column) : 0);
      }
      fence_for_copies();
      __syncwarp();
      if (threadIdx.x == 0) {
        float* const out = dst + chunk.offset;
        const int bytes = run * static_cast<int>(sizeof(float));
#pragma unroll
        for (int plane = 0; plane < Traits::kPlanes; ++plane) {
          if (plane < chunk.planes) {
            const char* const begins = buffer + plane * plane_bytes;
            store_run(out + 2 * plane * run, begins, bytes);
            store_run(out + (2 * plane + 1) * run, begins + plane_bytes - bytes, bytes);
          }
        }
      }
    }
    if constexpr (Traits::kWeight) {
      Traits::Fold::fold(sums, threadIdx.x);
#pragma unroll
      for (int i = 0; i < Traits::Fold::kKept; ++i) {
        totals.taps[i] += sums[i];
      }
    }
    stage ^= 1;
    parity ^= stage == 0 ? 1 : 0;
  }
  if constexpr (Traits::kData) {
    runs.finish();
    __syncwarp();
  }
  if constexpr (Traits::kWeight) {
    const int group = place / s.parts;
    write_halves_sums<Traits>(
        partial + static_cast<int64_t>(place % s.parts) * (kTaps + kBiasRows) * p.channels,
        buffers,
        totals,
        src,
        input,
        p,
        s,
        lane,
        group,
        first - group * s.chunks,
        end - group * s.chunks);
  }
}
#endif
#endif

#if CUDART_VERSION >= 12000
// The map of a dense tensor in plane order, in boxes of columns x rows x planes; false where it has none.
inline bool map_planes(
    CUtensorMap& map,
    const TensorBase& tensor,
    int64_t box_columns,
    int64_t box_rows,
    int64_t box_planes) {
  const auto bytes = static_cast<cuuint64_t>(tensor.element_size());
  const auto batch = static_cast<cuuint64_t>(tensor.size(0));
  const auto channels = static_cast<cuuint64_t>(tensor.size(1));
  const auto height = static_cast<cuuint64_t>(tensor.size(2));
  const auto width = static_cast<cuuint64_t>(tensor.size(3));
  const cuuint64_t sizes[] = {width, height, channels, batch};
  const cuuint64_t strides[] = {
      width * bytes, height * width * bytes, channels * height * width * bytes};
  const cuuint32_t box[] = {
      static_cast<cuuint32_t>(box_columns),
      static_cast<cuuint32_t>(box_rows),
      static_cast<cuuint32_t>(box_planes),
      1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  return encode_map(map, tensor, sizes, strides, box, steps);
}

// False where planes are not as the kernel has them.
template <typename Traits>
bool plan_halves(Halves& s, const UnitStridePass& p) {
  constexpr int64_t kElement = sizeof(float);
  const int64_t width = p.dst_width;
  const int64_t height = p.dst_height;
  s = {};
  s.lanes = divide_up(width, Traits::kVector);
  s.bands = Traits::kBand ? 2 : 1;
  s.half = height / s.bands / 2;
  // Lanes without a vector do what others do.
  const bool fills = s.lanes <= Traits::kLanes && 8 * s.lanes >= 7 * Traits::kLanes;
  if (!fills || height != 2 * s.half * s.bands || width % Traits::kVector != 0 ||
      s.half % Traits::kTurn != 0 || s.half <= 2 * Traits::kReach) {
    return false;
  }
  // The results of one half without the pads must not reach the rows that the other still reads. A band has
  // rows that are not its own between them.
  const int64_t unread = s.half - Traits::kReach;
  if (Traits::kOutside == 0 && Traits::kPad * (unread - 1) < (Traits::kReach - 2) * width) {
    return false;
  }
  s.chunks = p.batch * s.bands;
  s.groups = divide_up(p.channels, Traits::kPlanes);
  s.box_rows = 2 * (s.half + Traits::kOutside);
  s.box_bytes = Traits::kPlanes * s.box_rows * (width + Traits::kPad) * kElement;
  s.input_at = stage_bytes(s.box_bytes);
  s.stage_bytes = s.input_at +
      (Traits::kWeight ? stage_bytes(Traits::kPlanes * 2 * s.half * width * kElement) : 0);
  s.warp_bytes = Traits::kStages * s.stage_bytes;
  return (s.half * width * kElement) % kBulkBytes == 0 && has_shared(Traits::shared_bytes(s));
}

// grad_input, grad_output, input and weight, or, of a forward, dst, src, nothing and weight.
template <typename Traits>
bool launch_halves(
    const BackwardPass& pass,
    const TensorBase& bias,
    const Params& params,
    const UnitStridePass& p) {
  constexpr auto kernel = halves_kernel<Traits>;
  Halves s;
  CUtensorMap map{};
  if (!plan_halves<Traits>(s, p) || !compiled_for_sm_90<kernel>() ||
      !map_planes(map, pass.grad_output, p.dst_width + Traits::kPad, s.box_rows, Traits::kPlanes)) {
    return false;
  }
  const size_t shared = Traits::shared_bytes(s);
  const int64_t resident = resident_blocks(kernel, Traits::kThreads, shared);
  int64_t shares = static_cast<int64_t>(s.groups) * s.chunks;
  TensorBase partial;
  if constexpr (Traits::kWeight) {
    s.parts = std::min<int64_t>(resident * Traits::kWarps / s.groups, s.chunks);
    if (s.parts == 0) {
      return false;
    }
    shares = static_cast<int64_t>(s.groups) * s.parts;
    partial = empty_partial(pass.grad_output, s.parts, params);
  }
  const auto grid = static_cast<unsigned int>(std::min(resident, shares));
  kernel<<<grid, dim3(kWarpSize, Traits::kWarps), shared, c10::cuda::getCurrentCUDAStream()>>>(
      mutable_pointer_or_null<float>(pass.grad_input),
      mutable_pointer_or_null<float>(partial),
      pass.grad_output.const_data_ptr<float>(),
      pointer_or_null<float>(pass.input),
      pointer_or_null<float>(pass.weight),
      pointer_or_null<float>(bias),
      map,
      p,
      s);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  if constexpr (Traits::kWeight) {
    add_partials(pass.grad_weight, pass.grad_bias, partial, s.parts, params);
  }
  return true;
}

// Calls launch with the window, where the pass is one that these kernels have.
template <typename Launch>
bool with_halves(
    const Params& p,
    std::initializer_list<const TensorBase*> tensors,
    const Launch& launch) {
  if (!keeps_size_of_planes(p) || p.multiplier != 1 || p.dilation_height != 1 ||
      p.dilation_width != 1 || p.padding_height != p.kernel_height / 2 ||
      p.padding_width != p.kernel_width / 2 || !march_fits_32_bits(p) ||
      !std::all_of(
          tensors.begin(),
          tensors.end(),
          [](const TensorBase* tensor) {
            return begins_a_run(*tensor) &&
                (!tensor->defined() || tensor->scalar_type() == ScalarType::Float);
          }) ||
      p.batch * p.channels == 0 || !device_has_boxes()) {
    return false;
  }
  return with_window(p, [&](auto window) {
    using Fixed = decltype(window);
    if constexpr (Fixed::kStride > 1 || Fixed::kHeight != Fixed::kWidth || Fixed::kHeight < 5) {
      return false;
    } else {
      return launch(window);
    }
  });
}
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
