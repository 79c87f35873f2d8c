// What the kernels of boxes at stride 2 share (BoxesStrided.cu and ...Backward.cu),
// for windows of 3 x 3 and 5 x 5 with the usual padding in channels-last order.
//
// A thread owns a vector of channels of a few columns of the small plane (the output, or its gradient)
// and of twice as many of the large one (the input, or its gradient), and marches down both: a step is
// a row of the small plane and the pair of rows of the large one that begins at twice its number. So
// which taps meet is known when all is unrolled: nothing is divided, and no tap is multiplied by a zero
// that stands for a place between grad_output's. Zeros that the engine brings stand for what lies
// outside the image.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Strided.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

#if CUDART_VERSION >= 12000

struct StridedBoxes : StridedPlanes {
  int32_t large_columns; // of a box
  int32_t small_columns;
  int32_t large_bytes; // that a box brings, a pair of rows
  int32_t large_row; // from one of them to the other
  int32_t small_bytes;
  int32_t small_offset; // in a stage
  int32_t stage_bytes;
  int32_t out_bytes; // of a pair of rows of grad_input on its way out
};

// kData: whether grad_input is wanted, kWeight: whether the weight's gradient is; neither: the forward.
template <
    typename scalar_t_,
    int kWindow_,
    bool kData_,
    bool kWeight_,
    int kVector_,
    int kTile_,
    bool kSends_ = false>
struct BoxesStridedTraits {
  using scalar_t = scalar_t_;
  static constexpr int kWindow = kWindow_;
  static constexpr bool kData = kData_;
  static constexpr bool kWeight = kWeight_;
  static constexpr bool kForward = !kData && !kWeight;
  static constexpr bool kSends = kSends_; // pairs of rows of grad_input leave by boxes
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr bool kTapsInRegisters = kTaps <= 9 || (kVector_ == 2 && !(kData_ && kWeight_));
  static constexpr int kVector = kVector_; // channels of a thread
  static constexpr int kTile = kTile_; // columns of a thread, of the small plane
  static constexpr int kOwn = 2 * kTile; // columns of the large one
  static constexpr int kReach = kWindow / 2;
  // Positions of the small plane that those of the large one, in pairs, meet before and after their own.
  static constexpr int kBefore = kReach / 2;
  static constexpr int kAfter = (kReach + 1) / 2;
  static constexpr int kSlots = kBefore + 1 + kAfter; // rows under way
  static constexpr int kMet = kBefore + kTile + kAfter; // columns of the small plane
  static constexpr int kSpan = kOwn + kWindow - 2; // columns of the large plane that results need
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window<kWindow, kWindow, 2>>;
  static constexpr int kThreads = 192; // at most
  static constexpr int kBlocks = 2; // a multiprocessor, for which registers are bounded
  using Own = Packed<scalar_t, kVector>;
  static constexpr int kBytes = Own::kBytes;
  using bias_t = std::conditional_t<sizeof(scalar_t) == 4, double, float>;

  // The row (or column) of taps with which row `large` of a pair meets row `small` of those kept; none
  // if it is outside of 0 ... kWindow - 1.
  static constexpr C10_HOST_DEVICE int tap(int large, int small) {
    return large - 2 * (small - kBefore) + kReach;
  }
};

#ifdef __CUDACC__
// The first step of a run and the one after its last; steps are numbered as rows of the small plane.
template <typename Traits>
__device__ __forceinline__ int first_step(const BoxRun& run) {
  return run.first_row -
      (Traits::kForward ? (run.first_row > 0 ? Traits::kAfter : 0) : Traits::kSlots - 1);
}

template <typename Traits>
__device__ __forceinline__ int end_step(const BoxRun& run) {
  return run.last_row + (Traits::kForward ? Traits::kBefore : 0);
}

// Asks for the stages of a block's shares, one a call. It lies in shared memory, and the warps of a block
// call it in turn, one thread of each: by one warp alone, that would be the slowest, and all wait for it.
template <typename Traits>
struct StageAsker {
  BoxRuns runs;
  int32_t image;
  int32_t first_row; // of the run
  int32_t step;
  int32_t end;

  __device__ __forceinline__ void begin(const BoxPlan& b, const BoxPlace& place) {
    runs = BoxRuns(b, place);
    step = 0;
    end = 0;
  }

  __device__ __forceinline__ void ask(
      BoxRing& ring,
      const BoxPlan& b,
      const BoxPlace& place,
      const StridedBoxes& p,
      const CUtensorMap& large,
      const CUtensorMap& small) {
    if (step >= end) {
      if (!runs.more()) {
        return;
      }
      const BoxRun run = runs.next(b, 1);
      image = run.image;
      first_row = run.first_row;
      step = first_step<Traits>(run);
      end = end_step<Traits>(run);
    }
    const int channel = place.group * b.lanes * Traits::kVector;
    const int column = place.stretch * b.stretch;
    // The first rows of grad_output meet nothing yet.
    const bool pair = Traits::kForward || (Traits::kWeight && step >= first_row);
    ring.fill(
        (pair ? p.large_bytes : 0) + (Traits::kForward ? 0 : p.small_bytes),
        [&](uint32_t to, uint32_t barrier) {
          if constexpr (!Traits::kForward) {
            load_box(
                to + p.small_offset,
                barrier,
                small,
                channel,
                column - Traits::kBefore,
                step + Traits::kAfter,
                image);
          }
          if (pair) {
            load_box(
                to,
                barrier,
                large,
                channel,
                2 * column - (Traits::kForward ? Traits::kReach : 0),
                2 * step,
                image);
          }
        });
    ++step;
  }

  // By all warps after they read a stage, instead of ring.release().
  __device__ __forceinline__ void release(
      BoxRing& ring,
      int& turn,
      const BoxPlan& b,
      const BoxPlace& place,
      const StridedBoxes& p,
      const CUtensorMap& large,
      const CUtensorMap& small) {
    if (turn == 0) {
      turn = blockDim.x / kWarpSize;
      if (threadIdx.x % kWarpSize == 0) {
        ring.take_turn();
        ask(ring, b, place, p, large, small);
      }
    }
    --turn;
    ring.release();
  }
};

// A thread's place in its block.
template <typename Traits>
struct BoxThread {
  int32_t lane;
  int32_t tile;
  int32_t image;
  int32_t column; // of the small plane
  int32_t block_channel;
  int32_t channel;
  bool works;

  __device__ __forceinline__ BoxThread(const BoxPlan& b, const BoxPlace& place, int channels) {
    lane = threadIdx.x % b.lanes;
    tile = threadIdx.x / b.lanes % b.tiles;
    image = threadIdx.x / b.lanes / b.tiles;
    column = place.stretch * b.stretch + tile * Traits::kTile;
    block_channel = place.group * b.lanes * Traits::kVector;
    channel = block_channel + lane * Traits::kVector;
    works = image < b.images && channel < channels;
    image = min(image, b.images - 1); // what it reads is there, and not used
  }

  // Of its first element in a box whose images have `columns` columns, of which a tile has `tile_columns`.
  __device__ __forceinline__ int offset(const BoxPlan& b, int columns, int tile_columns) const {
    return ((image * columns + tile * tile_columns) * b.lanes + lane) * Traits::kBytes;
  }
};

template <typename Traits>
__device__ __forceinline__ void read_vector(float (&to)[Traits::kVector], const char* from) {
  const typename Traits::Own packed = *reinterpret_cast<const typename Traits::Own*>(from);
#pragma unroll
  for (int v = 0; v < Traits::kVector; ++v) {
    to[v] = unpack(packed, v);
  }
}

// The first `count` columns; mostly all.
template <typename Traits, int kColumns>
__device__ __forceinline__ void store_columns(
    typename Traits::scalar_t* to,
    const float (&values)[kColumns][Traits::kVector],
    int count,
    int step) {
  using scalar_t = typename Traits::scalar_t;
  if (count >= kColumns) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      store_vector<scalar_t, Traits::kVector>(to + c * step, values[c]);
    }
  } else {
#pragma unroll
    for (int c = 0; c < kColumns - 1; ++c) {
      if (c < count) {
        store_vector<scalar_t, Traits::kVector>(to + c * step, values[c]);
      }
    }
  }
}

// Writes columns of a row of grad_input for the engine to send.
template <typename Traits, int kColumns>
__device__ __forceinline__ void write_columns(
    char* to,
    const float (&values)[kColumns][Traits::kVector],
    int step) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    *reinterpret_cast<typename Traits::Own*>(to + c * step) =
        pack<typename Traits::scalar_t>(values[c]);
  }
}

// The taps of a thread's channels: in registers or, where there is no room, as floats in shared memory, to
// which they come as they lie in memory, by one copy.
template <typename Traits>
struct ThreadTaps {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kVector = Traits::kVector;
  static constexpr int kTaps = Traits::kTaps;
  float taps[Traits::kTapsInRegisters ? kTaps : 1][kVector];
  const float* shared; // [tap][channel of the block]
  int step; // channels of the block

  static __device__ __forceinline__ void ask(
      const BoxRing& ring,
      scalar_t* to,
      const scalar_t* weight,
      int block_channel,
      int channels) {
    const int bytes = channels * kTaps * static_cast<int>(sizeof(scalar_t));
    arrive_and_expect(ring.taps(), bytes);
    load_run(to, ring.taps(), weight + block_channel * kTaps, bytes);
  }

  // All threads, after a barrier of the block; whether all of the block's are finite.
  __device__ __forceinline__ bool read(
      const BoxRing& ring,
      const scalar_t* from,
      float* as_floats,
      const BoxThread<Traits>& thread,
      int channels,
      int lanes) {
    wait_for(ring.taps(), 0);
    bool finite = true;
    if constexpr (Traits::kTapsInRegisters) {
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
        const auto packed = *reinterpret_cast<const typename Traits::Own*>(
            from + (thread.lane * kTaps + i) * kVector);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const int at =
              i * kVector + j; // the thread's channels follow each other, each with all its taps
          const float tap = unpack(packed, j);
          taps[at % kTaps][at / kTaps] = tap;
          finite = finite && is_finite(tap);
        }
      }
      finite = finite || !thread.works;
    } else {
      step = lanes * kVector;
      shared = as_floats + thread.lane * kVector;
#pragma unroll 1
      for (int i = threadIdx.x; i < step * kTaps; i += blockDim.x) {
        const float tap = i < channels * kTaps ? static_cast<float>(from[i]) : 0.0f;
        finite = finite && is_finite(tap);
        as_floats[i % kTaps * step + i / kTaps] = tap;
      }
    }
    return !__syncthreads_or(!finite);
  }

  __device__ __forceinline__ void get(float (&to)[kVector], int tap) const {
    if constexpr (Traits::kTapsInRegisters) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        to[v] = taps[tap][v];
      }
    } else {
      const auto packed = *reinterpret_cast<const Packed<float, kVector>*>(shared + tap * step);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        to[v] = unpack(packed, v);
      }
    }
  }
};
#endif

// Whether the call is one on tensors of which boxes can be asked for, and pixels have `least_bytes`.
inline bool boxes_strided_apply(
    const Params& p,
    int64_t least_bytes,
    const Operand& weight,
    std::initializer_list<const Operand*> tensors) {
  constexpr size_t kAlignment = 16;
  return p.channels_last && p.multiplier == 1 && p.stride_height == 2 && p.stride_width == 2 &&
      p.dilation_height == 1 && p.dilation_width == 1 &&
      (p.kernel_height == 3 || p.kernel_height == 5) && p.kernel_width == p.kernel_height &&
      p.padding_height == p.kernel_height / 2 && p.padding_width == p.padding_height &&
      march_fits_32_bits(p) && p.batch * p.channels > 0 &&
      p.channels * weight.element_size() >= least_bytes && device_has_boxes() &&
      is_aligned(weight.const_data_ptr(), kAlignment) &&
      std::all_of(tensors.begin(), tensors.end(), [](const Operand* tensor) {
           return boxes_take(*tensor);
         });
}

// Calls launch with the type, the window and the tile of a thread: of all gradients two columns, of
// which more threads fit (96@112 k3 fp32 361 us, 372 with four; 144@56 k5 157, 172), but four of wide
// planes by 5 x 5 in 16 bit (102, 89).
template <bool kData, bool kWeight, typename Launch>
bool with_traits(const Params& p, Type type, const Launch& launch) {
  constexpr bool kAll = kData && kWeight;
  constexpr int64_t kWide = 16;
  // Of grad_input alone, from which on rows leave by boxes: 96@112 k3 fp32 224 us, 210 so, half 113 and 110,
  // 576@14 in half (29 MB) 14.5 and 13.4; but 192@28 in fp32 (19 MB) 11.0 and 11.9, 40@75 in half 12.1 and
  // 14.7. Not with the weight's gradient (359 and 362) nor 5 x 5 (95 and 99): a barrier costs more there.
  constexpr int64_t kManyBytes = 24 * 1024 * 1024;
  return with_scalar_type(type, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    if (p.kernel_width == 3) {
      if constexpr (kData && !kWeight) {
        const int64_t bytes =
            p.batch * p.channels * p.input_height * p.input_width * sizeof(scalar_t);
        if (bytes >= kManyBytes) {
          return launch(BoxesStridedTraits<scalar_t, 3, kData, kWeight, 4, 4, true>());
        }
      }
      return launch(BoxesStridedTraits<scalar_t, 3, kData, kWeight, kAll ? 2 : 4, kAll ? 2 : 4>());
    }
    if constexpr (kAll && sizeof(scalar_t) == 2) {
      if (p.output_width > kWide) {
        return launch(BoxesStridedTraits<scalar_t, 5, kData, kWeight, 2, 4>());
      }
    }
    return launch(BoxesStridedTraits<scalar_t, 5, kData, kWeight, 2, kAll ? 2 : 4>());
  });
}

// What a launch needs.
struct StridedLaunch {
  BoxPlan plan{};
  StridedBoxes boxes{};
  int64_t shared = 0;
  int64_t blocks = 0;
};

// The plan for a kernel; false where there is none.
template <typename Traits, auto kKernel>
bool plan_strided(StridedLaunch& launch, const Params& p) {
  constexpr int kElement = sizeof(typename Traits::scalar_t);
  // Smaller blocks where planes have few tiles: 672@14 k5 forward fp32 36 -> 31 us.
  constexpr int64_t kFewColumns = 8;
  constexpr int kThreadsOfFew = 128;
  BoxRequest request{};
  request.batch = p.batch;
  request.channels = p.channels;
  request.dst_height = p.output_height;
  request.dst_width = p.output_width;
  request.kernel_width = p.kernel_width;
  request.kernel_height = 1; // rows of the small plane that shares overlap in are few
  request.stride = 2;
  request.dilation_height = 1;
  request.dilation_width = 1;
  request.vector = Traits::kVector;
  request.tile = Traits::kTile;
  request.element_bytes = kElement;
  request.most_threads = p.output_width <= kFewColumns ? kThreadsOfFew : Traits::kThreads;
  request.resident_warps = Traits::kBlocks * Traits::kThreads / kWarpSize;
  BoxPlan& b = launch.plan;
  if (!compiled_for_sm_90<kKernel>() || !plan_boxes(b, request)) {
    return false;
  }
  StridedBoxes& s = launch.boxes;
  s.batch = p.batch;
  s.channels = p.channels;
  s.height = p.input_height;
  s.width = p.input_width;
  s.small_height = p.output_height;
  s.small_width = p.output_width;
  s.padding = p.padding_height;
  s.large_columns = Traits::kForward ? b.box_columns : 2 * b.stretch;
  s.small_columns = b.stretch + Traits::kBefore + Traits::kAfter;
  const int64_t pixel = b.lanes * Traits::kBytes;
  s.large_row = s.large_columns * pixel;
  s.large_bytes = 2 * s.large_row * b.images;
  s.small_bytes = s.small_columns * pixel * b.images;
  s.small_offset = Traits::kWeight ? stage_bytes(s.large_bytes) : 0;
  s.stage_bytes =
      Traits::kForward ? stage_bytes(s.large_bytes) : s.small_offset + stage_bytes(s.small_bytes);

  // Bytes under way on a multiprocessor. With more, passes whose results are as large as the input are
  // slower (dgrad of 96@112 k3 fp32 with 64 KB 224 us, with 174 KB 242; all gradients of 144@56 k5 fp16
  // with 82 and 192 KB 89 and 101), and none is faster.
  constexpr int64_t kWantedBytes = (Traits::kData ? 64 : 96) * 1024;
  constexpr int64_t kLeastStages = 3;
  constexpr int64_t kRoom = 224 * 1024; // of a multiprocessor
  constexpr int64_t kOfBlock = 1024; // of which each block takes some for itself
  constexpr int64_t kWantedThreads = 448;
  const int64_t taps = sizeof(float) * Traits::kTaps * b.lanes * Traits::kVector;
  const int64_t packed_taps = taps / static_cast<int64_t>(sizeof(float)) * kElement;
  s.out_bytes = Traits::kSends ? stage_bytes(s.large_bytes) : 0;
  const int64_t fixed = kRingHead + 2 * s.out_bytes +
      (Traits::kForward || Traits::kData ? packed_taps : 0) + (Traits::kTapsInRegisters ? 0 : taps);
  int64_t wanted = std::max<int64_t>(1, kWantedThreads / b.threads);
  while (wanted > 1 && kRoom / wanted - kOfBlock < fixed + kLeastStages * s.stage_bytes) {
    --wanted;
  }
  b.stages = std::clamp<int64_t>(kWantedBytes / wanted / s.stage_bytes, kLeastStages, kMostStages);
  // At the end of a block, of taps and, before those, of biases.
  const int64_t sums = Traits::kWeight ? kRingHead + taps * b.tiles * b.images : 0;
  launch.shared = std::max(fixed + b.stages * s.stage_bytes, sums);
  if (!has_shared(launch.shared + static_cast<int64_t>(sizeof(StageAsker<Traits>)))) {
    return false;
  }
  int64_t blocks = resident_blocks(kKernel, b.threads, launch.shared);
  if (Traits::kWeight && kElement == sizeof(float)) {
    constexpr int64_t kMostRows = 256; // bounds a thread's chains of sums
    blocks = std::max<int64_t>(blocks, divide_up(b.rows, kMostRows) * b.groups * b.stretches);
  }
  launch.blocks = plan_box_shares(b, blocks, 0);
  return true;
}

#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
