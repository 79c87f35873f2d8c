// What the kernels of depthwise_conv2d_ext share that read channels-last tensors through shared memory by
// boxes: the tensor copy engine (sm_90 and later) brings a box of channels x columns x rows x images with one
// instruction of one thread, and zeros for what lies outside the tensor, so that borders need no
// instructions, each element crosses the L1 once, and what is under way takes no registers.
//
// A block owns a group of channels, whose taps its threads keep, and a stretch of columns for good, and takes
// shares of all rows of dst: images, or a few side by side, and phases of a dilation's rows are laid end to
// end, and each block gets as many of their rows. So the work is even whatever the sizes are, and boxes of
// the next image are under way while the last rows of this one are multiplied. Blocks side by side are groups
// of channels and stretches of the same rows, so that what they leave of a page of memory is used while the
// page is open.
#pragma once

#include <cuda.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

// Barriers in shared memory that count the bytes of bulk copies, and such copies.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A round of a barrier ends when all `arrivals` have come, and all the bytes that they expect.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After what the thread itself has written to shared memory, before copies that write there.
__device__ __forceinline__ void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// After the thread's init_barrier(), so that copies meet what they did.
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_shared();
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and says how many bytes copies will bring; before them.
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// A run of memory, of a multiple of 16 bytes from a multiple of them on, by one thread.
__device__ __forceinline__ void load_run(void* to, uint32_t barrier, const void* from, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from),
      "r"(bytes),
      "r"(barrier)
      : "memory");
}

// Until the round of this parity has ended: the first has parity 0, and a barrier that is new stands as
// if one of parity 1 had.
__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n" // sleeps for a while
        "selp.b32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

constexpr int kBoxBytes = 128; // where boxes begin in shared memory
constexpr int kMostStages = 8;
// Bytes of shared memory in front of the boxes, for the barriers, what the thread that asks remembers and the
// runs that begin with stages.
constexpr int kBarrierBytes = (2 * kMostStages + 2) * static_cast<int>(sizeof(uint64_t));
constexpr int kFeedBytes = 64;
constexpr int kBoxRunBytes = 16;
constexpr int kRingHead = 3 * kBoxBytes;
static_assert(kBarrierBytes + kFeedBytes + kMostStages * kBoxRunBytes <= kRingHead);

// How a pass is cut: threads of a block are lanes (vectors of channels) innermost, then tiles of columns,
// then images.
struct BoxPlan {
  int32_t batch;
  int32_t lanes;
  int32_t tiles;
  int32_t images;
  int32_t groups; // of channels
  int32_t row_phases;
  int32_t stretches; // of columns
  int32_t stretch; // dst columns of one
  int32_t box_columns;
  int32_t box_rows;
  int32_t box_bytes;
  int32_t stage_bytes; // of a box, up to where the next may begin
  int32_t column_bytes; // from a column of a thread to its next in a box
  int32_t row_bytes; // from a row to the next
  int32_t dst_height;
  int32_t phase_rows; // of the first phase; others may have one less
  int32_t rows; // of all images and phases
  int32_t share; // of a block
  int32_t stages;
  int32_t threads; // that compute
  int32_t blocks; // of a multiprocessor, about
  int64_t dst_column; // bytes from a column of a thread to its next in dst
  int64_t dst_row; // from a row to the next of its phase
};

// What a plan depends on.
struct BoxRequest {
  int64_t batch;
  int64_t channels;
  int64_t dst_height;
  int64_t dst_width;
  int64_t kernel_width;
  int64_t dilation_height;
  int64_t dilation_width;
  int vector; // channels of a thread
  int tile; // columns of a thread
  int element_bytes;
  int most_threads;
  int resident_warps; // of a multiprocessor, as registers allow
  int64_t kernel_height;
};

inline int64_t box_columns(const BoxRequest& r, int64_t stretch) {
  return stretch + (r.kernel_width - 1) * r.dilation_width;
}

// Rows of a block's share where `blocks` share them. A share that begins or ends inside an image meets up to
// `overhang` rows more than it has, and begins once more: whole images where those are no more.
inline int64_t box_share(int64_t rows, int64_t blocks, int64_t phase_rows, int64_t overhang) {
  constexpr int64_t kBegin = 2;
  const int64_t share = divide_up(rows, blocks);
  const int64_t whole = divide_up(share, phase_rows) * phase_rows;
  return whole <= share + overhang + kBegin && rows > phase_rows ? whole : share;
}

// The plan of the least time that lanes, tiles and images can have; false where no box takes the sizes.
inline bool plan_boxes(BoxPlan& plan, const BoxRequest& r) {
  constexpr int64_t kMostElements = 256; // of a box in each direction
  constexpr int64_t kSectorBytes = 32;
  constexpr int64_t kMostRowBytes = 24 * 1024;
  constexpr int64_t kMostImages = 8;
  const int64_t vector_bytes = static_cast<int64_t>(r.vector) * r.element_bytes;
  const int64_t vectors = divide_up(r.channels, r.vector);
  const int64_t whole = std::max<int64_t>(1, kSectorBytes / vector_bytes);
  const int64_t most_lanes = std::min<int64_t>(kMostElements / r.vector, r.most_threads);
  const int64_t phase_columns = divide_up(r.dst_width, r.dilation_width);
  const int64_t most_tiles = divide_up(phase_columns, r.tile); // of a phase
  const int64_t phase_rows = divide_up(r.dst_height, r.dilation_height);
  const int64_t row_phases = std::min(r.dilation_height, r.dst_height);
  double least = std::numeric_limits<double>::max();
  // What a row takes that no warp's instructions fill, in warps. More in 16 bit where there are many taps.
  const double idle = r.element_bytes == 2 && r.kernel_height > 3 ? 12 : 4;
  // Bytes that a pixel takes to begin, of those of a group.
  const double pixel_begin = r.element_bytes == 2 ? 24 : 64;
  // How long the slowest multiprocessor takes, in rows of its warps.
  const auto consider = [&](int64_t lanes, int64_t of_phase, int64_t images) {
    const int64_t tiles = of_phase * r.dilation_width;
    const int64_t stretch = tiles * r.tile;
    const int64_t stretches = divide_up(most_tiles, of_phase);
    const int64_t columns = box_columns(r, stretch);
    const int64_t row_bytes = columns * lanes * vector_bytes;
    if (images * tiles * lanes > r.most_threads || columns > kMostElements ||
        images * row_bytes > kMostRowBytes) {
      return false;
    }
    const int64_t groups = divide_up(vectors, lanes);
    const int64_t warps = divide_up(images * tiles * lanes, kWarpSize);
    const int64_t across = groups * stretches;
    const int64_t resident = std::max<int64_t>(1, r.resident_warps / warps);
    const int64_t rows = divide_up(r.batch, images) * row_phases * phase_rows;
    const int64_t wanted = std::max<int64_t>(1, resident * multiprocessors() / across);
    const int64_t overhang = r.kernel_height - 1;
    const int64_t share = box_share(rows, wanted, phase_rows, overhang);
    const int64_t blocks = divide_up(divide_up(rows, share) * across, multiprocessors());
    constexpr double kBegin = 3; // rows that a block takes to begin; each image takes another
    constexpr double kBoxBegin = 2048; // bytes that a box takes to begin
    const double steps = share + std::max(1.0, static_cast<double>(share) / phase_rows) + kBegin +
        (share % phase_rows != 0 ? overhang : 0);
    const double overlap = static_cast<double>(columns - stretch) * (stretches - 1) / r.dst_width;
    const double time = steps * (static_cast<double>(warps * blocks) + idle) * (1 + overlap / 2) *
        (1 + kBoxBegin / (images * row_bytes)) * (1 + pixel_begin / (lanes * vector_bytes));
    if (time < least) {
      least = time;
      plan.lanes = lanes;
      plan.tiles = tiles;
      plan.images = images;
      plan.groups = groups;
      plan.stretches = stretches;
      plan.stretch = stretch;
      plan.box_columns = columns;
      plan.column_bytes = r.dilation_width * lanes * vector_bytes;
      plan.row_bytes = row_bytes;
      plan.threads = warps * kWarpSize;
      plan.rows = rows;
      plan.share = share;
      plan.blocks = resident;
    }
    return true;
  };
  // Into as many parts as have sizes of their own, from the largest size allowed down.
  const auto with_parts = [](int64_t count, int64_t most, const auto& function) {
    for (int64_t size = std::min(count, most); size > 0;) {
      size = divide_up(count, divide_up(count, size));
      function(size);
      --size;
    }
  };
  with_parts(
      divide_up(vectors, whole), std::max<int64_t>(1, most_lanes / whole), [&](int64_t sectors) {
        const int64_t lanes = sectors * whole;
        const int64_t room = r.most_threads / (lanes * r.dilation_width);
        with_parts(most_tiles, room, [&](int64_t of_phase) {
          int64_t images = 1;
          while (consider(lanes, of_phase, images) && of_phase == most_tiles &&
                 2 * images <= r.batch && 2 * images <= kMostImages) {
            images *= 2;
          }
        });
      });
  if (least == std::numeric_limits<double>::max()) {
    return false;
  }
  plan.batch = r.batch;
  plan.row_phases = row_phases;
  plan.dst_height = r.dst_height;
  plan.phase_rows = phase_rows;
  return true;
}

// Bytes of a stage of boxes, so that the next begins where boxes may.
inline int64_t stage_bytes(int64_t box_bytes) {
  return divide_up(box_bytes, kBoxBytes) * kBoxBytes;
}

// The rows of a box and the stages of the ring. Several rows a box where they are short: a box costs each
// warp some 20 instructions and the thread that asks 60. Of small planes two are better than four, since the
// first comes sooner.
inline void plan_ring(BoxPlan& plan, const BoxRequest& r) {
  // Of the rings of a multiprocessor: more leave less L1. Images of few rows are a block's whole
  // share, of which all that fits had better be under way from the start.
  constexpr int64_t kFewRows = 16;
  const bool few = plan.phase_rows <= kFewRows;
  const int64_t bytes = (few ? 144 : 104) * 1024;
  const int64_t wanted = (few ? 32 : 18) * 1024; // of a stage
  const int64_t most_rows = r.kernel_height > 5 ? 4 : 2;
  constexpr int64_t kLeastStages = 3;
  const int64_t of_block = bytes / plan.blocks;
  const int64_t row_bytes = static_cast<int64_t>(plan.images) * plan.row_bytes;
  const int64_t most = std::min<int64_t>(most_rows, plan.phase_rows);
  plan.box_rows = r.dilation_height > 1
      ? 1
      : std::clamp<int64_t>(std::min(wanted, of_block / kLeastStages) / row_bytes, 1, most);
  plan.box_bytes = row_bytes * plan.box_rows;
  plan.stage_bytes = stage_bytes(plan.box_bytes);
  plan.stages = std::clamp<int64_t>(of_block / plan.stage_bytes, kLeastStages, kMostStages);
}

// The shares for `resident` blocks, where that is enough for each group and stretch; the number of blocks.
inline int64_t plan_box_shares(BoxPlan& plan, int64_t resident, int64_t overhang) {
  const int64_t across = static_cast<int64_t>(plan.groups) * plan.stretches;
  plan.share =
      box_share(plan.rows, std::max<int64_t>(1, resident / across), plan.phase_rows, overhang);
  return divide_up(plan.rows, plan.share) * across;
}

#if CUDART_VERSION >= 12000
using EncodeTiled = CUresult(
    CUtensorMap*,
    CUtensorMapDataType,
    cuuint32_t,
    void*,
    const cuuint64_t*,
    const cuuint64_t*,
    const cuuint32_t*,
    const cuuint32_t*,
    CUtensorMapInterleave,
    CUtensorMapSwizzle,
    CUtensorMapL2promotion,
    CUtensorMapFloatOOBfill);

// The driver's function, looked up so that nothing need be linked; null where the driver has none.
inline EncodeTiled* encode_tiled() {
  static EncodeTiled* const found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    constexpr const char* kName = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(kName, &entry, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(kName, &entry, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
    }
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
        ? reinterpret_cast<EncodeTiled*>(entry)
        : nullptr;
  }();
  return found;
}

// The map of a tensor of 32- or 16-bit elements, its innermost dimension first,
// `strides` in bytes from the second on; false where it has none.
inline bool encode_map(
    CUtensorMap& map,
    const Operand& tensor,
    const cuuint64_t (&sizes)[4],
    const cuuint64_t (&strides)[3],
    const cuuint32_t (&box)[4],
    const cuuint32_t (&steps)[4]) {
  const bool words = tensor.element_size() == 4;
  return encode_tiled()(
             &map,
             words ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
             4,
             const_cast<void*>(tensor.const_data_ptr()),
             sizes,
             strides,
             box,
             steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The map of a dense channels-last tensor, in boxes of channels x columns x rows x images; false where it
// has none. A box's columns are column_step apart.
inline bool map_boxes(
    CUtensorMap& map,
    const Operand& tensor,
    int64_t box_channels,
    int64_t box_columns,
    int64_t box_rows,
    int64_t box_images,
    int64_t column_step = 1) {
  const auto bytes = static_cast<cuuint64_t>(tensor.element_size());
  const auto batch = static_cast<cuuint64_t>(tensor.size(0));
  const auto channels = static_cast<cuuint64_t>(tensor.size(1));
  const auto height = static_cast<cuuint64_t>(tensor.size(2));
  const auto width = static_cast<cuuint64_t>(tensor.size(3));
  const cuuint64_t sizes[] = {channels, width, height, batch};
  const cuuint64_t strides[] = {
      channels * bytes, channels * width * bytes, channels * width * height * bytes};
  const cuuint32_t box[] = {
      static_cast<cuuint32_t>(box_channels),
      static_cast<cuuint32_t>((box_columns - 1) * column_step + 1),
      static_cast<cuuint32_t>(box_rows),
      static_cast<cuuint32_t>(box_images)};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(column_step), 1, 1};
  return encode_map(map, tensor, sizes, strides, box, steps);
}
#endif

// Whether boxes of the tensor can be asked for: rows of pixels begin where the engine allows.
inline bool boxes_take(const Operand& tensor) {
  constexpr int64_t kAlignment = 16;
  return tensor.size(1) * tensor.element_size() % kAlignment == 0 &&
      is_aligned(tensor.const_data_ptr(), kAlignment);
}

// Whether the current device has the engine and the driver knows it.
inline bool device_has_boxes() {
#if CUDART_VERSION >= 12000
  return device().capability >= 9 && encode_tiled() != nullptr;
#else
  return false;
#endif
}

// Where a block is among groups of channels, stretches of columns and shares of rows.
struct BoxPlace {
  int32_t group;
  int32_t stretch;
  int32_t share;

  __device__ __forceinline__ explicit BoxPlace(const BoxPlan& b) {
    const int32_t rest = static_cast<int32_t>(blockIdx.x) / b.groups;
    group = static_cast<int32_t>(blockIdx.x) - rest * b.groups;
    share = rest / b.stretches;
    stretch = rest - share * b.stretches;
  }
};

// Rows [first_row, last_row) of dst, in steps of the dilation, of b.images images.
struct BoxRun {
  int32_t image;
  int32_t row_phase;
  int32_t first_row;
  int32_t last_row;
};

// The runs of a block's share.
struct BoxRuns {
  int32_t left; // rows
  int32_t row_phase;
  int32_t image;
  int32_t row;

  BoxRuns() = default;
  __device__ __forceinline__ BoxRuns(const BoxPlan& b, const BoxPlace& place) {
    const int32_t first = place.share * b.share;
    const int32_t item = first / b.phase_rows;
    left = min(b.share, b.rows - first);
    row = first - item * b.phase_rows;
    image = item / b.row_phases;
    row_phase = item - image * b.row_phases;
    image *= b.images;
  }

  __device__ __forceinline__ bool more() const {
    return left > 0;
  }

  __device__ __forceinline__ BoxRun next(const BoxPlan& b, int dilation_height) {
    BoxRun run;
    run.image = image;
    run.row_phase = row_phase;
    run.first_row = row;
    const int32_t taken = min(left, b.phase_rows - row);
    // Later phases may have no last row.
    const int32_t rows = row_phase + (b.phase_rows - 1) * dilation_height < b.dst_height
        ? b.phase_rows
        : b.phase_rows - 1;
    run.last_row = min(row + taken, rows);
    left -= taken;
    row = 0;
    if (++row_phase == b.row_phases) {
      row_phase = 0;
      image += b.images;
    }
    return run;
  }
};

// The rows of src that a run meets: those i in [begin, end) for which row top + i * dilation exists. Row o of
// dst is reached by i = o + kh.
struct SrcRows {
  int32_t top;
  int32_t begin;
  int32_t end;

  __device__ __forceinline__
  SrcRows(const BoxRun& run, int kernel_height, int padding, int dilation, int src_height) {
    top = run.row_phase - padding;
    int lowest = -top;
    int beyond = src_height - top;
    if (dilation > 1) { // spares most calls the divisions
      lowest = (lowest + dilation - 1) / dilation;
      beyond = (beyond + dilation - 1) / dilation;
    }
    begin = max(run.first_row, lowest);
    end = run.first_row < run.last_row ? min(run.last_row - 1 + kernel_height, beyond) : begin;
  }
};

// What is asked for next: the row of src, how many of the run's are left, the run's image, and the runs after
// it. It lies in shared memory, for one thread alone has a use for it.
struct BoxFeed {
  int32_t row;
  int32_t rows;
  int32_t image; // negative: there is nothing more
  BoxRuns runs;
};
static_assert(sizeof(BoxFeed) <= kFeedBytes && sizeof(BoxRun) == kBoxRunBytes);

// A ring of stages in shared memory that one thread has filled and all threads read. A stage may be more
// than one box: fill()'s `ask` asks for all of them. With n stages n - 1 are filled at first, and another
// after each one that was read, so that the thread that asks waits for none that is in use but the last.
struct BoxRing {
  uint32_t barriers; // full, then empty ones
  char* boxes;
  int32_t bytes; // of a stage
  int32_t stages;
  int32_t used = 0; // the stage to use next, and the parity of its round
  uint32_t used_parity = 0;
  int32_t filled = 0; // the stage to fill next, and that of the round before
  uint32_t filled_parity = 1;

  // __syncthreads() before anything else. `shared` begins at a multiple of kBoxBytes.
  __device__ __forceinline__ BoxRing(void* shared, int count, int stage_size)
      : barriers(shared_address(shared)),
        boxes(static_cast<char*>(shared) + kRingHead),
        bytes(stage_size),
        stages(count) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) {
        init_barrier(full(i), 1);
        init_barrier(empty(i), blockDim.x / kWarpSize);
      }
      init_barrier(taps(), 1);
      fence_barriers();
    }
  }

  // For what comes but once.
  __device__ __forceinline__ uint32_t taps() const {
    return full(2 * kMostStages);
  }

  __device__ __forceinline__ uint32_t full(int stage) const {
    return barriers + stage * static_cast<int>(sizeof(uint64_t));
  }

  __device__ __forceinline__ BoxFeed& feed() const {
    return *reinterpret_cast<BoxFeed*>(boxes - kRingHead + kBarrierBytes);
  }

  // The run that begins with a stage.
  __device__ __forceinline__ BoxRun& run(int stage) const {
    return reinterpret_cast<BoxRun*>(boxes - kRingHead + kBarrierBytes + kFeedBytes)[stage];
  }

  // The same for a whole warp. Only the lane looks that will release the stage, so that racecheck follows the order
  // too; where all looked, it reported their first looks beside the next run's.
  __device__ __forceinline__ BoxRun run_of_warp(int stage) const {
    BoxRun seen{};
    if (threadIdx.x % kWarpSize == 0) {
      seen = run(stage);
    }
    const auto of_first = [](int32_t value) {
      return __shfl_sync(0xffffffffu, value, 0);
    };
    return {
        of_first(seen.image),
        of_first(seen.row_phase),
        of_first(seen.first_row),
        of_first(seen.last_row)};
  }

  // Where warps ask in turn, one thread of each: the stage to fill is that before the one in use. When all
  // have released it, the warp that asked last has, and so has left all as it must be.
  __device__ __forceinline__ void take_turn() {
    filled = (used == 0 ? stages : used) - 1;
    filled_parity = used == 0 ? used_parity ^ 1 : used_parity;
    wait_for_room();
  }

  __device__ __forceinline__ uint32_t empty(int stage) const {
    return full(kMostStages + stage);
  }

  __device__ __forceinline__ void advance(int32_t& stage, uint32_t& parity) const {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // By one thread, until the stage to fill has been released by all.
  __device__ __forceinline__ void wait_for_room() const {
    wait_for(empty(filled), filled_parity);
  }

  // By one thread, where there is room. `expected` bytes come by ask(address in shared memory, barrier).
  template <typename Ask>
  __device__ __forceinline__ void fill(int expected, const Ask& ask) {
    arrive_and_expect(full(filled), expected);
    ask(shared_address(boxes + filled * bytes), full(filled));
    advance(filled, filled_parity);
  }

  // Before the block ends, by that thread, if nobody used what fill() asked for before the first wait().
  __device__ __forceinline__ void drain() const {
    for (int i = 0; i < filled; ++i) {
      wait_for(full(i), 0);
    }
  }

  // The next stage, by all threads.
  __device__ __forceinline__ const char* wait() const {
    wait_for(full(used), used_parity);
    return boxes + used * bytes;
  }

  // By all threads of a warp, after the last of them read the stage.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) {
      arrive(empty(used));
    }
    advance(used, used_parity);
  }
};

// Stores the vector if `wanted`, without a branch.
template <typename scalar_t, int kSize>
__device__ __forceinline__ void store_vector_if(
    bool wanted,
    scalar_t* to,
    const float (&values)[kSize]) {
  const Packed<scalar_t, kSize> from = pack<scalar_t>(values);
  if constexpr (from.kBytes == 2) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.u16 [%1], %2;\n}\n" ::"r"(
                     static_cast<int>(wanted)),
                 "l"(to),
                 "h"(static_cast<unsigned short>(from.words[0]))
                 : "memory");
  } else if constexpr (from.kWords == 1) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n}\n" ::"r"(
                     static_cast<int>(wanted)),
                 "l"(to),
                 "r"(from.words[0])
                 : "memory");
  } else if constexpr (from.kWords == 2) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};\n}\n" ::"r"(
            static_cast<int>(wanted)),
        "l"(to),
        "r"(from.words[0]),
        "r"(from.words[1])
        : "memory");
  } else {
    static_assert(from.kWords == 4, "a store moves at most 16 bytes");
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, "
        "%5};\n}\n" ::"r"(static_cast<int>(wanted)),
        "l"(to),
        "r"(from.words[0]),
        "r"(from.words[1]),
        "r"(from.words[2]),
        "r"(from.words[3])
        : "memory");
  }
}

#if CUDART_VERSION >= 12000
// Has the engine fetch the map itself, so that the first box need not wait for it.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Asks for the box whose first element is that of these places, any of which may lie outside.
__device__ __forceinline__ void load_box(
    uint32_t to,
    uint32_t barrier,
    const CUtensorMap& map,
    int channel,
    int column,
    int row,
    int image) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, "
      "%3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map),
      "r"(channel),
      "r"(column),
      "r"(row),
      "r"(image),
      "r"(barrier)
      : "memory");
}
#endif

// The window, the tile of columns of a thread with what the window reaches beside it, and its channels; rows
// of taps from kOwnRow on are summed by themselves.
template <typename scalar_t, typename Window, int kVector_, int kTile_>
struct RowMarchTraits {
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kVector = kVector_;
  static constexpr int kTile = kTile_;
  static constexpr int kColumns = kTile + kWidth - 1;
};

// The march down the rows of src in channels-last order: a thread owns a few channels and columns of dst. Each
// row of src feeds all the dst rows that it belongs to, whose sums are in registers: slot s holds the dst row
// that this row reaches with the taps of kernel row s. With the first product of a row the sums move on a slot,
// so that the shift costs nothing.
template <typename Traits>
struct RowMarch {
  static constexpr int kHeight = Traits::kHeight;
  static constexpr int kWidth = Traits::kWidth;
  static constexpr int kTile = Traits::kTile;
  static constexpr int kVector = Traits::kVector;
  using Sums = float[kTile][kVector];
  using Values = float[Traits::kColumns][kVector];
  using Taps = float[Traits::kTaps][kVector];

  Sums slots[kHeight];

  __device__ __forceinline__ explicit RowMarch(const float (&begin)[kVector]) {
#pragma unroll
    for (int s = 0; s < kHeight; ++s) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          slots[s][t][v] = begin[v];
        }
      }
    }
  }

  // Adds row i of src to the dst rows i - kHeight + 1 ... i: to all, or to those in [first, last), and calls
  // store(sums, row) with that which it is the last of, from `first` on.
  template <bool kEvery, typename Store>
  __device__ __forceinline__ void add(
      int i,
      int first,
      int last,
      const Values& values,
      const Taps& taps,
      const float (&begin)[kVector],
      const Store& store) {
#pragma unroll
    for (int s = kHeight - 1; s >= 0; --s) {
      if (!kEvery && (i - s < first || i - s >= last)) {
        continue;
      }
      const bool own = s >= Traits::kOwnRow;
      Sums sums;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            const float before = s > 0 ? slots[s > 0 ? s - 1 : 0][t][v] : begin[v];
            const float value = values[t + k][v];
            const float tap = taps[s * kWidth + k][v];
            sums[t][v] = k > 0 ? fmaf(value, tap, sums[t][v])
                : own          ? value * tap
                               : fmaf(value, tap, before);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const float before = s > 0 ? slots[s > 0 ? s - 1 : 0][t][v] : begin[v];
          slots[s][t][v] = own ? before + sums[t][v] : sums[t][v];
        }
      }
      if (s == kHeight - 1 && i - s >= first) {
        store(slots[s], i - s);
      }
    }
  }

  // Calls store() with the rows of [first, last) that the last row of the image leaves, which was `end` - 1.
  template <typename Store>
  __device__ __forceinline__ void finish(int end, int first, int last, const Store& store) const {
#pragma unroll
    for (int s = kHeight - 2; s >= 0; --s) {
      const int row = end - 1 - s;
      if (row >= first && row < last) {
        store(slots[s], row);
      }
    }
  }
};

} // namespace at::native::depthwise_conv2d_ext_cuda
