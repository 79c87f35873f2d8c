// Kernels of boxes at stride 2,
// for windows of 3 x 3 and 5 x 5 with the usual padding in channels-last order.
//
// A thread owns a vector of channels of a few columns of the small plane (the output, or its gradient)
// and of twice as many of the large one (the input, or its gradient), and marches down both: a step is
// a row of the small plane and the pair of rows of the large one that begins at twice its number. So
// which taps meet is known when all is unrolled: nothing is divided, and no tap is multiplied by a zero
// that stands for a place between grad_output's. Zeros that the engine brings stand for what lies
// outside the image.
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

// Forward of depthwise_conv2d_ext at stride 2 in channels-last order out of boxes
// (BoxesStrided.cu).
//
// A stage of the ring is a pair of rows of the input, with what the window reaches beside a stretch of
// columns. A thread scatters its columns of both into the rows of the output that they belong to, whose
// sums are in registers, as its taps are. Where taps are not finite, a block goes tap by tap.
//
// Microseconds of an H200 (a copy of what is moved), before by marches and now, 128 images, float32 and
// float16: 96@112 k3 217, 191 (183); 133, 102 (92). 144@56 k5 112, 85 (69); 83, 55 (34). 672@14 k5 36,
// 31 (20); 33, 23 (10).

namespace {

#if CUDART_VERSION >= 12000

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void boxes_strided_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ CUtensorMap map,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ StridedBoxes p,
    const __grid_constant__ BoxPlan b) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kSlots = Traits::kSlots;
  constexpr int kTile = Traits::kTile;
  constexpr int kVector = Traits::kVector;
  constexpr int kTaps = Traits::kTaps;
  extern __shared__ __align__(kBoxBytes) char shared_boxes[];
  BoxRing ring(shared_boxes, b.stages, p.stage_bytes);
  auto* const shared_taps = reinterpret_cast<scalar_t*>(ring.boxes + b.stages * p.stage_bytes);
  const BoxPlace place(b);
  const BoxThread<Traits> thread(b, place, p.channels);
  const int block_channels = b.lanes * kVector;
  const int have = min(block_channels, p.channels - thread.block_channel);
  __shared__ StageAsker<Traits> asker;
  if (threadIdx.x == 0) {
    prefetch_map(map);
    ThreadTaps<Traits>::ask(ring, shared_taps, weight, thread.block_channel, have);
    asker.begin(b, place);
    for (int i = 0; i < b.stages - 1; ++i) {
      asker.ask(ring, b, place, p, map, map);
    }
  }
  float begin[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    begin[v] =
        bias && thread.channel < p.channels ? static_cast<float>(bias[thread.channel + v]) : 0.0f;
  }
  __syncthreads();
  ThreadTaps<Traits> taps;
  if (!taps.read(ring, shared_taps, nullptr, thread, have, b.lanes)) {
    if (threadIdx.x == 0) {
      ring.drain();
    }
#pragma unroll 1
    for (BoxRuns runs(b, place); thread.works && runs.more();) {
      const BoxRun run = runs.next(b, 1);
      const int n = run.image + thread.image;
#pragma unroll 1
      for (int i = run.first_row * kTile; n < p.batch && i < run.last_row * kTile; ++i) {
        const int row = i / kTile;
        const int column = thread.column + i % kTile;
#pragma unroll 1
        for (int v = 0; column < p.small_width && v < kVector; ++v) {
          const int channel = thread.channel + v;
          dst[((n * p.small_height + row) * p.small_width + column) * p.channels + channel] =
              static_cast<scalar_t>(careful_forward(
                  src + n * p.height * p.width * p.channels + channel,
                  weight + channel * kTaps,
                  bias ? static_cast<float>(bias[channel]) : 0.0f,
                  p,
                  row,
                  column,
                  p.channels));
        }
      }
    }
    return;
  }

  const int pixel = b.lanes * Traits::kBytes; // of a box
  const int offset = thread.offset(b, 2 * p.large_columns, Traits::kOwn);
  int turn = threadIdx.x / kWarpSize;
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, 1);
    const int first = first_step<Traits>(run);
    const int end = end_step<Traits>(run);
    const int n = run.image + thread.image;
    const int columns = thread.works && n < p.batch ? p.small_width - thread.column : 0;
    // Of the row that the first step ends.
    scalar_t* to = dst +
        (((n * p.small_height + first - Traits::kBefore) * p.small_width + thread.column) *
             p.channels +
         thread.channel);
    // Row o, counted from the first step's, has its sums in slot o % kSlots.
    float sums[kSlots][kTile][kVector];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sums[s][t][v] = begin[v];
        }
      }
    }
#pragma unroll 1
    for (int base = first; base < end; base += kSlots) {
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
        if (base + u >= end) {
          break;
        }
        const char* const from = ring.wait() + offset;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float values[Traits::kSpan][kVector];
#pragma unroll
          for (int c = 0; c < Traits::kSpan; ++c) {
            read_vector<Traits>(values[c], from + j * p.large_row + c * pixel);
          }
#pragma unroll
          for (int s = 0; s < kSlots; ++s) {
            const int kh = Traits::tap(j, s);
            if (kh < 0 || kh >= Traits::kWindow) {
              continue;
            }
            RowSums<kTile, kVector> row_sums(sums[(u + s) % kSlots], kh >= Traits::kOwnRow);
#pragma unroll
            for (int kw = 0; kw < Traits::kWindow; ++kw) {
              float tap[kVector];
              taps.get(tap, kh * Traits::kWindow + kw);
#pragma unroll
              for (int t = 0; t < kTile; ++t) {
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                  row_sums.add(kw, t, v, values[2 * t + kw][v], tap[v]);
                }
              }
            }
            row_sums.finish();
          }
        }
        asker.release(ring, turn, b, place, p, map, map);
        // The row that no later step belongs to.
        const int row = base + u - Traits::kBefore;
        float (&finished)[kTile][kVector] = sums[u % kSlots];
        if (row >= run.first_row) {
          store_columns<Traits>(to, finished, columns, p.channels);
        }
        to += p.small_width * p.channels;
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            finished[t][v] = begin[v];
          }
        }
      }
    }
  }
#endif
}

#endif

} // namespace

bool boxes_strided_forward(const ForwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  // Of less the march is faster by 3 x 3: 8@224 fp16 of 64 images 34 us, by boxes 47; 24@112 27 and 29.
  const int64_t least_bytes = p.kernel_width == 3 ? 64 : 32;
  if (!boxes_strided_apply(p, least_bytes, pass.weight, {&pass.dst, &pass.src})) {
    return false;
  }
  return with_traits<false, false>(p, pass.src.type(), [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    constexpr auto kernel = boxes_strided_kernel<Traits>;
    StridedLaunch launch;
    CUtensorMap map;
    if (!plan_strided<Traits, kernel>(launch, p)) {
      return false;
    }
    const BoxPlan& b = launch.plan;
    if (!map_boxes(
            map, pass.src, b.lanes * Traits::kVector, launch.boxes.large_columns, 2, b.images)) {
      return false;
    }
    launch_kernel(
        kernel,
        launch.blocks,
        b.threads,
        launch.shared,
        pass.dst.mutable_data_ptr<scalar_t>(),
        map,
        pass.src.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.bias),
        launch.boxes,
        b);
    return true;
  });
#else
  return false;
#endif
}

// The gradients of depthwise_conv2d_ext at stride 2 in channels-last order out of boxes
// (BoxesStrided.cu), all that are wanted in one pass.
//
// It is rows of grad_output that a thread keeps: an element of the input meets the same elements of
// grad_output for the weight's gradient as its own gradient is gathered from. So every row of the three
// tensors is moved once, and what lies beside a stretch is needed of grad_output alone. A stage of the
// ring is a row of grad_output and, for the weight, a pair of rows of the input. What is not wanted is
// left out.
//
// Much of grad_input by 3 x 3, where it is wanted alone, leaves by boxes of two rows, too.
//
// A thread has a sum a tap. A block's are added up in order through shared memory at its end, and
// blocks' by add_partials(). Where taps are not finite, a block takes grad_input tap by tap; one whose
// sums of the weight hold a NaN takes them again so.
//
// Microseconds of an H200 (a copy of what is moved), grad_input, the weight's and all gradients, before
// by marches and now, 128 images, float32: 96@112 k3 257, 209, 465 became 224, 188, 361 (183, 183,
// 330); 144@56 k5 114, 129, 243 97, 89, 157 (69, 69, 124); 672@14 k5 41, 44, 85 29, 41, 58 (20, 20,
// 36). Float16: 144, 150, 292 113, 106, 188 (92, 92, 165); 83, 90, 171 50, 58, 89 (34, 34, 62); 35, 37,
// 71 20, 31, 40 (10, 10, 18).

namespace {

#if CUDART_VERSION >= 12000

// Either of grad_input and partial may be null where it is not taken.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void boxes_strided_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    float* __restrict__ partial,
    const __grid_constant__ CUtensorMap grads_map,
    const __grid_constant__ CUtensorMap input_map,
    const __grid_constant__ CUtensorMap result_map,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ StridedBoxes p,
    const __grid_constant__ BoxPlan b) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  using bias_t = typename Traits::bias_t;
  constexpr int kSlots = Traits::kSlots;
  constexpr int kTile = Traits::kTile;
  constexpr int kOwn = Traits::kOwn;
  constexpr int kVector = Traits::kVector;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kMet = Traits::kMet;
  constexpr int kBefore = Traits::kBefore;
  extern __shared__ __align__(kBoxBytes) char shared_boxes[];
  BoxRing ring(shared_boxes, b.stages, p.stage_bytes);
  char* const outs = ring.boxes + b.stages * p.stage_bytes;
  auto* const shared_taps = reinterpret_cast<scalar_t*>(outs + 2 * p.out_bytes);
  const BoxPlace place(b);
  const BoxThread<Traits> thread(b, place, p.channels);
  const int block_channels = b.lanes * kVector;
  const int have = min(block_channels, p.channels - thread.block_channel);
  __shared__ StageAsker<Traits> asker;
  if (threadIdx.x == 0) {
    prefetch_map(grads_map);
    if constexpr (Traits::kWeight) {
      prefetch_map(input_map);
    }
    if constexpr (Traits::kData) {
      ThreadTaps<Traits>::ask(ring, shared_taps, weight, thread.block_channel, have);
    }
    asker.begin(b, place);
    for (int i = 0; i < b.stages - 1; ++i) {
      asker.ask(ring, b, place, p, input_map, grads_map);
    }
  }
  __syncthreads();
  ThreadTaps<Traits> taps;
  bool careful = false;
  if constexpr (Traits::kData) {
    auto* const as_floats = reinterpret_cast<float*>(shared_taps + block_channels * kTaps);
    careful = !taps.read(ring, shared_taps, as_floats, thread, have, b.lanes);
    if (careful) {
      if (!Traits::kWeight && threadIdx.x == 0) {
        ring.drain();
      }
#pragma unroll 1
      for (BoxRuns runs(b, place); thread.works && runs.more();) {
        const BoxRun run = runs.next(b, 1);
        const int n = run.image + thread.image;
        const int last = min(2 * run.last_row, p.height);
#pragma unroll 1
        for (int i = 2 * run.first_row * kOwn; n < p.batch && i < last * kOwn; ++i) {
          const int h = i / kOwn;
          const int w = 2 * thread.column + i % kOwn;
#pragma unroll 1
          for (int v = 0; w < p.width && v < kVector; ++v) {
            const int channel = thread.channel + v;
            grad_input[((n * p.height + h) * p.width + w) * p.channels + channel] =
                static_cast<scalar_t>(careful_grad_input(
                    grad_output + n * p.small_height * p.small_width * p.channels + channel,
                    weight + channel * kTaps,
                    p,
                    h,
                    w,
                    p.channels));
          }
        }
      }
      if constexpr (!Traits::kWeight) {
        return;
      }
    }
  }

  const int pixel = b.lanes * Traits::kBytes; // of a box
  const int large_offset = thread.offset(b, 2 * p.large_columns, kOwn);
  const int small_offset = p.small_offset + thread.offset(b, p.small_columns, kTile);
  float sums[Traits::kWeight ? kTaps : 1][kVector] = {};
  bias_t bias[kVector] = {};
  int turn = threadIdx.x / kWarpSize;
  BoxSender sender(outs, p.out_bytes, large_offset);
  const auto hand_over = [&]() {
    sender.hand_over(result_map, b.threads, thread.block_channel, 2 * place.stretch * b.stretch);
  };
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, 1);
    const int n = run.image + thread.image;
    const int column = 2 * thread.column;
    const int columns =
        Traits::kData && thread.works && n < p.batch && !careful ? p.width - column : 0;
    scalar_t* to = nullptr;
    if constexpr (Traits::kData && !Traits::kSends) {
      to = grad_input +
          (((n * p.height + 2 * run.first_row) * p.width + column) * p.channels + thread.channel);
    }
    // Row o of grad_output, counted from the run's first less kBefore, is in slot o % kSlots.
    float rows[kSlots][kMet][kVector];
    const auto read_grads = [&](float (&row)[kMet][kVector], const char* stage) {
#pragma unroll
      for (int t = 0; t < kMet; ++t) {
        read_vector<Traits>(row[t], stage + small_offset + t * pixel);
      }
    };
    const auto release = [&]() {
      asker.release(ring, turn, b, place, p, input_map, grads_map);
    };
#pragma unroll
    for (int s = 0; s < kSlots - 1; ++s) {
      read_grads(rows[s], ring.wait());
      release();
    }
#pragma unroll 1
    for (int base = run.first_row; base < run.last_row; base += kSlots) {
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
        const int row = base + u;
        if (row >= run.last_row) {
          break;
        }
        const char* const stage = ring.wait();
        read_grads(rows[(u + kSlots - 1) % kSlots], stage);
        if constexpr (Traits::kWeight) {
          const float (&own)[kMet][kVector] = rows[(u + kBefore) % kSlots];
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              sum += own[kBefore + t][v];
            }
            bias[v] += sum;
          }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float values[kOwn][kVector];
          float result[kOwn][kVector] = {};
          if constexpr (Traits::kWeight) {
#pragma unroll
            for (int c = 0; c < kOwn; ++c) {
              read_vector<Traits>(values[c], stage + large_offset + j * p.large_row + c * pixel);
            }
          }
#pragma unroll
          for (int s = 0; s < kSlots; ++s) {
            const int kh = Traits::tap(j, s);
            if (kh < 0 || kh >= Traits::kWindow) {
              continue;
            }
            const float (&grad)[kMet][kVector] = rows[(u + s) % kSlots];
            // As in StripsStrided.cu: in float what a row of grad_output gives is summed
            // by itself, but for the first and where there are two products of each of two.
            const bool by_itself = Traits::kData && sizeof(scalar_t) == 4 && Traits::kWindow > 3 &&
                kh + 2 < Traits::kWindow;
            float row_result[kOwn][kVector] = {};
#pragma unroll
            for (int kw = 0; kw < Traits::kWindow; ++kw) {
              const int at = kh * Traits::kWindow + kw;
              float tap[kVector];
              if constexpr (Traits::kData) {
                taps.get(tap, at);
              }
#pragma unroll
              for (int t = 0; t < kMet; ++t) {
                // That which meets column t by kw.
                const int c = kw - Traits::kReach + 2 * (t - kBefore);
                if (c < 0 || c >= kOwn) {
                  continue;
                }
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                  if constexpr (Traits::kWeight) {
                    sums[at][v] = fmaf(values[c][v], grad[t][v], sums[at][v]);
                  }
                  if constexpr (Traits::kData) {
                    float& sum = by_itself ? row_result[c][v] : result[c][v];
                    sum = fmaf(grad[t][v], tap[v], sum);
                  }
                }
              }
            }
            if (by_itself) {
#pragma unroll
              for (int c = 0; c < kOwn; ++c) {
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                  result[c][v] += row_result[c][v];
                }
              }
            }
          }
          if constexpr (Traits::kData) {
            if constexpr (Traits::kSends) {
              if (j == 0) {
                hand_over();
              }
              if (thread.works) {
                write_columns<Traits>(sender.to + j * p.large_row, result, pixel);
              }
              if (j == 1) {
                sender.advance(2 * row, run.image);
              }
            } else {
              if (2 * row + j < p.height) {
                store_columns<Traits>(to, result, columns, p.channels);
              }
              to += p.width * p.channels;
            }
          }
        }
        release();
      }
    }
  }

  if constexpr (Traits::kSends) {
    hand_over();
    sender.finish();
  }
  if constexpr (Traits::kWeight) {
    bool spoilt = false;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        spoilt = spoilt || isnan(sums[tap][v]);
      }
    }
    // All boxes have been read, so that their room is free: [tap][tile of an image][channel of the block]. The
    // barriers' is not: who writes there must invalidate them first.
    const bool again = __syncthreads_or(spoilt);
    const int tiles = b.tiles * b.images;
    const int row = threadIdx.x / b.lanes; // of the sums
    float* const shared = reinterpret_cast<float*>(ring.boxes);
    if (row < tiles) {
      if (again) {
#pragma unroll 1
        for (int i = 0; i < kTaps * kVector; ++i) {
          const int tap = i / kVector;
          const int channel = thread.channel + i % kVector;
          float sum = 0.0f;
#pragma unroll 1
          for (BoxRuns runs(b, place); thread.works && runs.more();) {
            const BoxRun run = runs.next(b, 1);
            const int n = run.image + thread.image;
            const int column = 2 * thread.column;
            if (n < p.batch) {
              sum += careful_products(
                  grad_output + n * p.small_height * p.small_width * p.channels + channel,
                  input + n * p.height * p.width * p.channels + channel,
                  p,
                  2 * run.first_row,
                  2 * run.last_row,
                  column,
                  column + kOwn,
                  tap,
                  p.channels);
            }
          }
          shared[(tap * tiles + row) * block_channels + thread.lane * kVector + i % kVector] = sum;
        }
      } else {
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            shared[(tap * tiles + row) * block_channels + thread.lane * kVector + v] = sums[tap][v];
          }
        }
      }
    }
    // Those of a stretch and a share make a chunk.
    float* const sums_to = partial +
        static_cast<int>(blockIdx.x) / b.groups * (kTaps + kBiasRows) * p.channels +
        thread.block_channel;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < kTaps * block_channels; i += blockDim.x) {
      const int tap = i / block_channels;
      const int channel = i % block_channels;
      if (channel < have) {
        float sum = 0.0f;
        for (int other = 0; other < tiles; ++other) {
          sum += shared[(tap * tiles + other) * block_channels + channel];
        }
        sums_to[tap * p.channels + channel] = sum;
      }
    }
    __syncthreads();
    bias_t* const shared_bias = reinterpret_cast<bias_t*>(ring.boxes);
    if (row < tiles) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        shared_bias[row * block_channels + thread.lane * kVector + v] = bias[v];
      }
    }
    __syncthreads();
    for (int channel = threadIdx.x; channel < have; channel += blockDim.x) {
      double sum = 0.0;
      for (int other = 0; other < tiles; ++other) {
        sum += shared_bias[other * block_channels + channel];
      }
      write_bias(sums_to + kTaps * p.channels + channel, p.channels, sum);
    }
  }
#endif
}

#endif

} // namespace

bool boxes_strided_backward(const BackwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  const bool data = pass.grad_input.defined();
  const bool asks_weight = pass.asks_weight();
  constexpr int64_t kLeastBytes = 32;
  const Operand& result = data ? pass.grad_input : pass.input;
  if (!boxes_strided_apply(
          p, kLeastBytes, pass.weight, {&pass.grad_output, &pass.input, &result})) {
    return false;
  }
  const auto launch_traits = [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    constexpr auto kernel = boxes_strided_backward_kernel<Traits>;
    StridedLaunch launch;
    CUtensorMap grads_map;
    CUtensorMap input_map;
    CUtensorMap result_map{};
    if (!plan_strided<Traits, kernel>(launch, p)) {
      return false;
    }
    const BoxPlan& b = launch.plan;
    const StridedBoxes& s = launch.boxes;
    const int64_t channels = b.lanes * Traits::kVector;
    if (!map_boxes(grads_map, pass.grad_output, channels, s.small_columns, 1, b.images) ||
        !map_boxes(input_map, pass.input, channels, s.large_columns, 2, b.images) ||
        (Traits::kSends &&
         !map_boxes(result_map, pass.grad_input, channels, s.large_columns, 2, b.images))) {
      return false;
    }
    const int64_t chunks = launch.blocks / b.groups;
    Operand partial;
    if constexpr (Traits::kWeight) {
      partial = empty_partial(chunks, p);
    }
    launch_kernel(
        kernel,
        launch.blocks,
        b.threads,
        launch.shared,
        mutable_pointer_or_null<scalar_t>(pass.grad_input),
        mutable_pointer_or_null<float>(partial),
        grads_map,
        input_map,
        result_map,
        pass.grad_output.const_data_ptr<scalar_t>(),
        pass.input.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        s,
        b);
    if constexpr (Traits::kWeight) {
      add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, p);
    }
    return true;
  };
  const Type type = pass.input.type();
  if (data && asks_weight) {
    return with_traits<true, true>(p, type, launch_traits);
  }
  return data ? with_traits<true, false>(p, type, launch_traits)
              : with_traits<false, true>(p, type, launch_traits);
#else
  return false;
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
