// What the kernels of depthwise_conv2d_ext share that read rows of pixels through shared memory whose
// channels are no whole vectors, as 33 are, or a multiple of the other tensor's: boxes cannot be asked for
// there (Boxes.cuh), and threads that load vectors would load single elements.
//
// A row of pixels is one run of elements, which begins anywhere. Bulk copies bring what a block's columns
// reach of it, from the 16 bytes in which it begins to those in which it ends; a row lies in its slot as far
// from where a line begins as it does in memory. A thread owns a channel and some columns, and reads
// element by element; neighbouring lanes are neighbouring channels, then tiles of columns. Columns outside
// the image are never asked for: a thread reads zeros in front of the slot for them. So borders need no
// instructions.
//
// Blocks take stretches of columns and shares of all rows, as those of boxes do, and their last warp does
// nothing but ask. Where one block cannot have all channels it has a group of them, and its columns come by
// a copy each.
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kZeroBytes = kLineBytes; // in front of a slot

// A tensor whose rows come to blocks.
struct PixelSource {
  int32_t height;
  int32_t width;
  int32_t channels;
  uint32_t bytes; // of the tensor
  int32_t columns; // that a stretch reaches, at most
  int32_t column_bytes; // from a column to the next in a slot
  int32_t slot_bytes; // of a row, with the zeros
};

// How a pass is cut. Of the plan of boxes the parts that say which rows a block takes, and its ring.
struct PixelPlan : BoxPlan {
  int32_t per_source; // dst channels of a src channel
  int32_t per_result; // src channels of a dst channel

  // Whether a block has all channels.
  C10_HOST_DEVICE bool whole() const {
    return groups == 1;
  }
};

struct PixelRequest {
  int64_t batch;
  int64_t channels; // that threads own
  int64_t dst_height;
  int64_t dst_width;
  int64_t kernel_height;
  int64_t kernel_width;
  int64_t dilation_height;
  int64_t dilation_width;
  int tile; // columns of a thread
  int most_threads; // that compute, of a block
  int resident; // blocks of a multiprocessor, as registers allow
};

// Channels to as few groups as can be, since a group's columns come by a copy each (257@28 k3 26 us by one,
// 37 by four), columns to tiles and stretches; false where a block cannot have a tile of each phase.
inline bool plan_pixels(PixelPlan& plan, const PixelRequest& r) {
  constexpr double kIdle = 2; // what no warp's instructions fill, in warps
  const int64_t most_lanes = r.most_threads / r.dilation_width;
  if (most_lanes == 0) {
    return false;
  }
  plan.groups = divide_up(r.channels, most_lanes);
  plan.lanes = divide_up(r.channels, plan.groups);
  const int64_t all_tiles = divide_up(divide_up(r.dst_width, r.dilation_width), r.tile);
  const int64_t reach = (r.kernel_width - 1) * r.dilation_width;
  double least = std::numeric_limits<double>::max();
  for (int64_t size = std::min(all_tiles, most_lanes / plan.lanes); size > 0; --size) {
    const int64_t stretches = divide_up(all_tiles, size);
    size = divide_up(all_tiles, stretches);
    const int64_t tiles = size * r.dilation_width;
    const int64_t stretch = tiles * r.tile;
    const int64_t warps = divide_up(tiles * plan.lanes, kWarpSize);
    const double overlap = stretches > 1 ? static_cast<double>(reach) / stretch : 0.0;
    const double time = stretches * (warps + kIdle) * (1 + overlap / 2);
    if (time < least) {
      least = time;
      plan.tiles = tiles;
      plan.stretches = stretches;
      plan.stretch = stretch;
      plan.threads = (warps + 1) * kWarpSize;
    }
  }
  plan.batch = r.batch;
  plan.images = 1;
  plan.row_phases = std::min(r.dilation_height, r.dst_height);
  plan.dst_height = r.dst_height;
  plan.phase_rows = divide_up(r.dst_height, r.dilation_height);
  plan.rows = r.batch * plan.row_phases * plan.phase_rows;
  constexpr int64_t kMostBlocks = 8;
  const int64_t resident = r.resident * (r.most_threads + kWarpSize) / plan.threads;
  plan.blocks = std::min(kMostBlocks, resident);
  return true;
}

// A source of which a block reads `columns` columns of `group` channels.
inline PixelSource pixel_source(const Operand& tensor, int64_t columns, int64_t group, bool whole) {
  PixelSource s{};
  const int64_t element = tensor.element_size();
  s.channels = tensor.size(1);
  s.height = tensor.size(2);
  s.width = tensor.size(3);
  s.bytes = static_cast<uint32_t>(tensor.numel() * element);
  s.columns = std::min<int64_t>(columns, s.width);
  s.column_bytes = s.channels * element;
  if (!whole) {
    // As far from a multiple of 16 bytes as in memory, with room for what copies bring beside a column. (Of
    // a line the room is so much more that a stage is fewer rows: forward of 514@28 in half 56 us and 74.)
    const int64_t room = divide_up(group * element + 2 * kBulkBytes, kBulkBytes) * kBulkBytes;
    s.column_bytes = room + s.column_bytes % kBulkBytes;
  }
  s.slot_bytes = kZeroBytes +
      divide_up(s.columns * s.column_bytes + kBulkBytes, kLineBytes) * kLineBytes + kLineBytes;
  return s;
}

// The stages of a ring, and the rows of one.
inline void plan_pixel_ring(PixelPlan& plan, int64_t row_bytes, int64_t ring_bytes) {
  constexpr int64_t kWantedBytes = 8 * 1024; // of a stage
  constexpr int64_t kMostRows = 4;
  constexpr int64_t kLeastStages = 3;
  const int64_t of_block = ring_bytes / plan.blocks;
  plan.row_bytes = row_bytes;
  plan.box_rows = std::clamp<int64_t>(
      std::min(kWantedBytes, of_block / kLeastStages) / row_bytes,
      1,
      std::min<int64_t>(kMostRows, plan.phase_rows));
  plan.stage_bytes = stage_bytes(plan.box_rows * plan.row_bytes);
  plan.stages = std::clamp<int64_t>(of_block / plan.stage_bytes, kLeastStages, kMostStages);
}

// Whether a pass is for rows of pixels: one that boxes do not take.
inline bool pixel_rows_take(const Params& p, const Operand& input) {
  const int64_t bytes = p.channels * static_cast<int64_t>(input.element_size());
  return p.channels_last && (p.multiplier > 1 || bytes % kBulkBytes != 0) &&
      march_fits_32_bits(p) && input.numel() > 0;
}

// What a block reads of a source.
template <typename scalar_t>
struct PixelReach {
  const scalar_t* data;
  int32_t first_channel;
  int32_t channels; // 0: all
  int32_t begin; // columns inside the image
  int32_t end;
  static constexpr int kSize = sizeof(scalar_t);

  // Of the columns from `left` on, `columns` of them.
  __device__ __forceinline__ PixelReach(
      const scalar_t* from,
      const PixelSource& s,
      int left,
      int columns,
      int channel,
      int count)
      : data(from),
        first_channel(channel),
        channels(count),
        begin(min(max(left, 0), s.width)),
        end(max(min(left + columns, s.width), begin)) {}

  // The element with which a row begins.
  __device__ __forceinline__ int first(const PixelSource& s, int image, int row) const {
    return ((image * s.height + row) * s.width + begin) * s.channels + first_channel;
  }

  // How far from where a line begins the row lies that begins with it.
  static __device__ __forceinline__ int lead_of(int first) {
    return static_cast<uint32_t>(first) * kSize % kLineBytes;
  }

  // Where in a slot a thread finds a column, from where the row begins; zeros if it does not exist.
  __device__ __forceinline__ int offset(const PixelSource& s, int column, int channel) const {
    return column >= begin && column < end
        ? (column - begin) * s.column_bytes + (channel - first_channel) * kSize
        : -kZeroBytes;
  }

  // Runs of a row: all of it, or its columns.
  __device__ __forceinline__ int runs() const {
    return channels == 0 ? min(1, end - begin) : end - begin;
  }

  // What a bulk copy brings of a run: the tensor's last bytes, if they are less than 16, it does not.
  struct Copy {
    int32_t first; // elements of the run
    int32_t last;
    uint32_t start; // bytes of the copy
    uint32_t stop;
    char* to;
  };

  __device__ __forceinline__ Copy
  copy_of(const PixelSource& s, char* slot, int image, int row, int run) const {
    const int from = first(s, image, row);
    Copy copy;
    copy.first = from + run * s.channels;
    copy.last = copy.first + (channels == 0 ? (end - begin) * s.channels : channels);
    const uint32_t whole = s.bytes / kBulkBytes * kBulkBytes;
    const uint32_t end_byte = static_cast<uint32_t>(copy.last) * kSize;
    copy.start = static_cast<uint32_t>(copy.first) * kSize / kBulkBytes * kBulkBytes;
    copy.stop = end_byte > whole ? whole : (end_byte + (kBulkBytes - 1)) / kBulkBytes * kBulkBytes;
    copy.to = slot + kZeroBytes + (lead_of(from) + run * s.column_bytes) / kBulkBytes * kBulkBytes;
    return copy;
  }

  // Before ask(): the bytes that it will bring. Brings what copies do not.
  __device__ __forceinline__ int expect(
      const PixelSource& s,
      char* slot,
      int image,
      int row,
      int run) const {
    const Copy copy = copy_of(s, slot, image, row, run);
#pragma unroll 1
    for (int i = max(copy.first, static_cast<int>(copy.stop / kSize)); i < copy.last; ++i) {
      *reinterpret_cast<scalar_t*>(copy.to + (static_cast<uint32_t>(i) * kSize - copy.start)) =
          data[i];
      fence_shared();
    }
    return copy.stop - copy.start;
  }

  __device__ __forceinline__ void ask(
      const PixelSource& s,
      char* slot,
      uint32_t barrier,
      int image,
      int row,
      int run) const {
    const Copy copy = copy_of(s, slot, image, row, run);
    if (copy.stop > copy.start) {
      const char* const from = reinterpret_cast<const char*>(data) + copy.start;
      load_run(copy.to, barrier, from, copy.stop - copy.start);
    }
  }
};

// Fills the ring's next stage, by a warp: each_run() calls a function with what expect() and ask() want of
// all runs of the lane.
template <typename EachRun>
__device__ __forceinline__ void fill_stage(BoxRing& ring, const EachRun& each_run) {
  wait_for(ring.empty(ring.filled), ring.filled_parity);
  const uint32_t full = ring.full(ring.filled);
  char* const stage = ring.boxes + ring.filled * ring.bytes;
  int bytes = 0;
  each_run([&](const auto& reach, const PixelSource& source, int at, int image, int row, int run) {
    bytes += reach.expect(source, stage + at, image, row, run);
  });
  bytes = sum_of_warp(bytes);
  if (threadIdx.x % kWarpSize == 0) {
    arrive_and_expect(full, bytes);
  }
  __syncwarp();
  each_run([&](const auto& reach, const PixelSource& source, int at, int image, int row, int run) {
    reach.ask(source, stage + at, full, image, row, run);
  });
  ring.advance(ring.filled, ring.filled_parity);
}

// Zeros in front of the slots that lie `at` bytes from where rows of a stage begin, by all threads;
// __syncthreads() after.
__device__ __forceinline__ void clear_slot_heads(const BoxRing& ring, const PixelPlan& b, int at) {
  constexpr int kWords = kZeroBytes / static_cast<int>(sizeof(uint32_t));
  for (int i = threadIdx.x; i < b.stages * b.box_rows * kWords; i += blockDim.x) {
    const int slot = i / kWords;
    char* const stage = ring.boxes + slot / b.box_rows * b.stage_bytes;
    char* const head = stage + slot % b.box_rows * b.row_bytes + at;
    reinterpret_cast<uint32_t*>(head)[i % kWords] = 0;
  }
}

// An element of shared memory, by its address there: of a pointer the compiler would add up the parts again.
template <typename scalar_t>
__device__ __forceinline__ float read_shared(uint32_t address) {
  if constexpr (sizeof(scalar_t) == sizeof(float)) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
    return value;
  } else {
    unsigned short bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address));
    return element_as_float(bits, scalar_t());
  }
}

// As a value that the compiler knows nothing of: it would count it again in each row.
__device__ __forceinline__ void keep(int& value) {
  asm volatile("" : "+r"(value));
}
__device__ __forceinline__ void keep(uint32_t& value) {
  asm volatile("" : "+r"(value));
}
__device__ __forceinline__ void keep(int64_t& value) {
  asm volatile("" : "+l"(value));
}

// Stores an element if `wanted`, without a branch.
template <typename scalar_t>
__device__ __forceinline__ void store_if(bool wanted, scalar_t* to, float value) {
  const float values[1] = {value};
  store_vector_if(wanted, to, values);
}

// A thread's place: channels innermost, then tiles of columns.
struct PixelPlace {
  int32_t channel;
  int32_t tile;
  int32_t column; // the first of its tile in a stretch; the next are a dilation apart
  bool computes; // beside those that ask or have no tile

  __device__ __forceinline__
  PixelPlace(const PixelPlan& b, int group, int tile_columns, int dilation) {
    tile = threadIdx.x / b.lanes;
    channel = group * b.lanes + static_cast<int>(threadIdx.x) - tile * b.lanes;
    column = tile % dilation + tile / dilation * tile_columns * dilation;
    computes = tile < b.tiles;
  }
};

// Forward of depthwise_conv2d_ext at stride 1 in channels-last order where channels are no whole vectors, or
// where an input channel has several output channels; and grad_input, which is the forward on grad_output
// with the taps flipped and the padding mirrored, and adds up several channels of grad_output.
//
// Rows come as PixelRows.cu has it. A thread owns a channel of dst and some columns, keeps
// its taps in registers and marches down the rows (Boxes.cuh). Results leave element by
// element, of neighbouring lanes side by side.
//
// Rows outside the image are never asked for. Columns outside it are zeros that are multiplied by taps, which
// is the same only for finite taps: a block that has others takes its results tap by tap.

namespace {

// kSources: src channels that a dst channel adds up.
template <typename scalar_t_, typename Window, int kTile_, int kMostThreads_, int kSources_>
struct PixelRowsTraits : RowMarchTraits<scalar_t_, Window, 1, kTile_, kSources_> {
  using scalar_t = scalar_t_;
  static constexpr int kMostThreads = kMostThreads_; // that compute
  static constexpr int kThreads = kMostThreads + kWarpSize;
  static constexpr int kBlocks = 2; // a multiprocessor, for which registers are bounded
};

// Asks for all rows of a block's share; by a warp.
template <typename Traits>
__device__ __forceinline__ void ask_rows(
    BoxRing ring,
    const BoxPlace& place,
    const UnitStridePass& p,
    const PixelPlan& b,
    const PixelSource& source,
    const PixelReach<typename Traits::scalar_t>& reach) {
  const int runs_of_row = reach.runs();
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
    const SrcRows rows(run, Traits::kHeight, 1, p.padding_height, p.dilation_height, p.src_height);
#pragma unroll 1
    for (int first = rows.begin; first < rows.end; first += b.box_rows) {
      fill_stage(ring, [&](const auto& function) {
        const int all = min(b.box_rows, rows.end - first) * runs_of_row;
#pragma unroll 1
        for (int i = threadIdx.x % kWarpSize; i < all; i += kWarpSize) {
          const int row = i / runs_of_row;
          const int h = rows.top + (first + row) * p.dilation_height;
          function(reach, source, row * b.row_bytes, run.image, h, i - row * runs_of_row);
        }
      });
    }
  }
}

// One result, tap by tap, of taps inside the image only.
template <typename Traits>
__device__ __noinline__ typename Traits::scalar_t careful_pixel(
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    float sum,
    UnitStridePass p,
    const PixelPlan& b,
    int src_channels,
    int image,
    int row,
    int column,
    int channel) {
  p.channels = src_channels; // from a pixel to the next
  src += image * p.src_height * p.src_width * src_channels;
  for (int i = 0; i < Traits::kSources; ++i) {
    sum = careful_output<true>(
        src + channel * b.per_result / b.per_source + i,
        weight + (channel * Traits::kSources + i) * Traits::kTaps,
        sum,
        p,
        row,
        column);
  }
  return static_cast<typename Traits::scalar_t>(sum);
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void pixel_rows_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ PixelPlan b,
    const __grid_constant__ PixelSource source) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kWidth = Traits::kWidth;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kSources = Traits::kSources;
  extern __shared__ __align__(kBoxBytes) char shared_rows[];
  const BoxPlace place(b);
  const PixelPlace mine(b, place.group, kTile, p.dilation_width);
  const int computing = blockDim.x - kWarpSize;
  BoxRing ring(shared_rows, b.stages, b.stage_bytes, computing / kWarpSize);
  clear_slot_heads(ring, b, 0);
  const int first_channel = place.group * b.lanes;
  const auto source_channel = [&](int channel) {
    return channel * kSources / b.per_source;
  };
  const int block_sources = min(first_channel + b.lanes, p.channels) - first_channel;
  const PixelReach<scalar_t> reach(
      src,
      source,
      place.stretch * b.stretch - p.padding_width,
      b.stretch + (kWidth - 1) * p.dilation_width,
      source_channel(first_channel),
      b.whole() ? 0
                : source_channel(first_channel + block_sources - 1) + kSources -
              source_channel(first_channel));
  const int column = place.stretch * b.stretch + mine.column;
  const bool works = mine.computes && mine.channel < p.channels;

  float taps[kSources][kTaps][1];
  float begin[1] = {0.0f};
  bool finite = true;
#pragma unroll
  for (int q = 0; q < kSources; ++q) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const int at = (mine.channel * kSources + q) * kTaps + (p.flip ? kTaps - 1 - tap : tap);
      taps[q][tap][0] = works ? static_cast<float>(weight[at]) : 0.0f;
      finite = finite && is_finite(taps[q][tap][0]);
    }
  }
  if (bias && works) {
    begin[0] = static_cast<float>(bias[mine.channel]);
  }
  const bool careful = __syncthreads_or(!finite); // the ring is there for all

  if (careful) {
#pragma unroll 1
    for (BoxRuns runs(b, place); works && runs.more();) {
      const BoxRun run = runs.next(b, p.dilation_height);
#pragma unroll 1
      for (int i = run.first_row * kTile; i < run.last_row * kTile; ++i) {
        const int row = run.row_phase + i / kTile * p.dilation_height;
        const int w = column + i % kTile * p.dilation_width;
        if (w < p.dst_width) {
          dst[((run.image * p.dst_height + row) * p.dst_width + w) * p.channels + mine.channel] =
              careful_pixel<Traits>(
                  src, weight, begin[0], p, b, source.channels, run.image, row, w, mine.channel);
        }
      }
    }
    return;
  }
  if (static_cast<int>(threadIdx.x) >= computing) {
    ask_rows<Traits>(ring, place, p, b, source, reach);
    return;
  }

  int offsets[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int w = column - p.padding_width + c * p.dilation_width;
    offsets[c] = works ? reach.offset(source, w, source_channel(mine.channel)) : -kZeroBytes;
  }
  const uint32_t src_step = // of the places where rows begin, in elements
      static_cast<uint32_t>(p.dilation_height * source.width) * source.channels;
  int64_t column_step = static_cast<int64_t>(p.dilation_width) * p.channels;
  int64_t row_step = static_cast<int64_t>(p.dilation_height) * p.dst_width * p.channels;
  keep(column_step);
  keep(row_step);
  int columns = 0; // inside the image
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    columns += works && column + t * p.dilation_width < p.dst_width;
  }
  keep(columns);

#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
    const SrcRows rows(run, kHeight, 1, p.padding_height, p.dilation_height, p.src_height);
    scalar_t* to = dst +
        (((run.image * p.dst_height + run.row_phase + run.first_row * p.dilation_height) *
              p.dst_width +
          column) *
             p.channels +
         mine.channel);
    const auto store_row = [&](const float (&row)[kTile][1], int) {
      scalar_t* at = to;
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        store_vector_if(t < columns, at, row[t]);
        at += column_step;
      }
      to += row_step;
    };
    RowMarch<Traits> march(begin);
    uint32_t first = reach.first(source, run.image, rows.top + rows.begin * p.dilation_height);
    int i = rows.begin;
#pragma unroll 1
    while (i < rows.end) {
      uint32_t slot = shared_address(ring.wait()) + kZeroBytes;
      const int next = min(i + b.box_rows, rows.end);
#pragma unroll 1
      for (; i < next; ++i) {
        uint32_t from = slot + reach.lead_of(first);
        keep(from);
        slot += b.row_bytes;
        first += src_step;
        float values[kSources][kColumns][1];
#pragma unroll
        for (int q = 0; q < kSources; ++q) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            values[q][c][0] =
                read_shared<scalar_t>(from + offsets[c] + q * static_cast<int>(sizeof(scalar_t)));
          }
        }
        if (i + 1 == next) {
          ring.release();
        }
        march.template add<true>(i, run.first_row, run.last_row, values, taps, begin, store_row);
      }
    }
    march.finish(rows.end, run.first_row, run.last_row, store_row);
  }
#endif
}

template <typename Traits>
bool launch_pixel_rows(const ForwardPass& pass, const UnitStridePass& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = pixel_rows_kernel<Traits>;
  const PixelRequest request{
      p.batch,
      p.channels,
      p.dst_height,
      p.dst_width,
      Traits::kHeight,
      Traits::kWidth,
      p.dilation_height,
      p.dilation_width,
      Traits::kTile,
      Traits::kMostThreads,
      Traits::kBlocks};
  PixelPlan plan{};
  if (!compiled_for_sm_90<kernel>() || !plan_pixels(plan, request)) {
    return false;
  }
  // Many taps take the march as long where it loads vectors (514@14 k7 45 us, 53 here by groups).
  if (!plan.whole() && Traits::kTaps > 9 && p.channels % 2 == 0) {
    return false;
  }
  plan.per_result = Traits::kSources;
  plan.per_source = p.multiplier;
  const PixelSource source = pixel_source(
      pass.src,
      plan.stretch + (Traits::kWidth - 1) * p.dilation_width,
      divide_up(plan.lanes * Traits::kSources, p.multiplier) + 1,
      plan.whole());
  constexpr int64_t kRingBytes = 100 * 1024; // of a multiprocessor
  plan_pixel_ring(plan, source.slot_bytes, kRingBytes);
  const int64_t shared = kRingHead + plan.stages * plan.stage_bytes;
  if (!has_shared(shared)) {
    return false;
  }
  const auto grid = static_cast<unsigned int>(
      plan_box_shares(plan, resident_blocks(kernel, plan.threads, shared), Traits::kHeight - 1));
  launch_kernel(
      kernel,
      grid,
      plan.threads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      plan,
      source);
  return true;
}

template <typename scalar_t, typename Window, int kSources>
bool launch_window(const ForwardPass& pass, const UnitStridePass& p) {
  // Wider tiles read less, but their lanes meet in banks of shared memory: 33@128x513 k3 in half 66 us by
  // tiles of eight columns, 55 by four.
  constexpr int kTile = Window::kHeight == 1 ? 8 : 4;
  constexpr int kMostThreads = Window::kHeight > 5 ? 224 : 352;
  return launch_pixel_rows<PixelRowsTraits<scalar_t, Window, kTile, kMostThreads, kSources>>(
      pass, p);
}

// `sources`: src channels that a dst channel adds up.
bool pixel_rows_pass(
    const ForwardPass& pass,
    const Params& window,
    const UnitStridePass& p,
    int64_t sources) {
  // As of boxes: each row of results is reached by a row of src.
  if (p.padding_height < 0 || p.padding_height > p.dilation_height * (p.kernel_height - 1) ||
      p.dilation_height > p.src_height || !begins_a_run(pass.src) || !device_has_boxes()) {
    return false;
  }
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_window(window, [&](auto fixed) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(fixed);
      if constexpr (Fixed::kStride > 1) {
        return false;
      } else if constexpr (Fixed::kHeight == 3) {
        return sources == 2 ? launch_window<scalar_t, Fixed, 2>(pass, p)
                            : launch_window<scalar_t, Fixed, 1>(pass, p);
      } else {
        return sources == 1 && launch_window<scalar_t, Fixed, 1>(pass, p);
      }
    });
  });
}

} // namespace

bool pixel_rows_forward(const ForwardPass& pass, const Params& p) {
  constexpr int64_t kMostSources = 2;
  if (!pixel_rows_take(p, pass.src) || (pass.grad_input && p.multiplier > kMostSources)) {
    return false;
  }
  UnitStridePass unit = unit_stride_pass(p, pass.grad_input);
  if (pass.grad_input) {
    unit.channels = p.channels;
    unit.multiplier = 1;
  }
  return pixel_rows_pass(pass, p, unit, pass.grad_input ? p.multiplier : 1);
}

// grad_weight and grad_bias of depthwise_conv2d_ext in channels-last where channels are no whole vectors, or
// where an input channel has several output channels, and grad_input in the same pass where it is wanted, of
// windows of 3 x 3, at stride 1.
//
// Rows come as PixelRows.cu has it, those of grad_output and of the input side by side.
// A thread owns a channel and some columns and marches down the rows of the input; a row of it meets all rows
// of grad_output that it belongs to, which stay in registers and serve twice: their products with the input
// go into one sum a tap, those with the taps make the row of grad_input,
//   sum[kh][kw] += input[h][s] * grad_output[h + padding - kh][s + padding - kw].
// A stage of the ring has as many rows as a window, so that it is known which of them are in which registers.
//
// In float the sums of a stage go to totals in shared memory, which bounds the chains. A block's tiles are
// added up in order; it writes one partial, and add_partials() adds the blocks' in a fixed order. A float
// bias is compensated in a lane and added in double beyond, as in MarchGradWeight.cu.
//
// Zeros outside the image are multiplied with the other tensor, which is right only while that is finite: a
// sum that ends as NaN is taken again tap by tap, of positions inside the image only. So is grad_input
// where a tap is not finite.

namespace {

// Elements of the input. Of fewer in float the march begins and ends sooner (the weight's gradient of 128
// images of 33@14 k3 15 us and 18 here, of 64 of 9@56 32 and 20); all gradients go with it, so that a
// gradient of few elements has the same bits whatever else is wanted.
constexpr int64_t kFewPixels = 1024 * 1024;

template <typename scalar_t_, typename Window, int kTile_, bool kData_>
struct PixelBackwardTraits {
  using scalar_t = scalar_t_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kReachHeight = (kHeight - 1) / 2;
  static constexpr int kReachWidth = (kWidth - 1) / 2;
  static constexpr int kBefore = kHeight - 1; // rows of grad_output before the first of the input
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kTile = kTile_;
  static constexpr int kColumns = kTile + kWidth - 1;
  static constexpr bool kData = kData_; // grad_input too
  // Rounding to 16 bits would hide what bounded chains and an exact bias give.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  static constexpr int kMostThreads = kTaps > 25 ? 352 : kTaps > 9 ? 224 : 288; // that compute
  static constexpr int kThreads = kMostThreads + kWarpSize;
  static constexpr int kBlocks =
      kTaps > 25 ? 1 : 2; // a multiprocessor, for which registers are bounded
};

// What the kernel knows of the two tensors.
struct PixelSources {
  PixelSource grads;
  PixelSource input;
};

// The rows of grad_output and of the input that the steps of a run take.
template <typename Traits>
struct RunRows {
  int32_t steps;
  int32_t input; // of step 0; the first kBefore do not exist for this run
  int32_t grads;

  __device__ __forceinline__ RunRows(const BoxRun& run, const UnitStridePass& p)
      : steps(run.last_row > run.first_row ? run.last_row - run.first_row + Traits::kBefore : 0),
        input(run.row_phase + (run.first_row - Traits::kBefore) * p.dilation_height),
        grads(input + p.padding_height) {}
};

// Asks for all rows of a block's share; by a warp.
template <typename Traits>
__device__ __forceinline__ void ask_rows(
    BoxRing ring,
    const BoxPlace& place,
    const UnitStridePass& p,
    const PixelPlan& b,
    const PixelSources& sources,
    const PixelReach<typename Traits::scalar_t>& grads,
    const PixelReach<typename Traits::scalar_t>& input) {
  const int grads_runs = grads.runs();
  const int input_runs = input.runs();
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
    const RunRows<Traits> rows(run, p);
#pragma unroll 1
    for (int first = 0; first < rows.steps; first += Traits::kHeight) {
      const int steps = min(Traits::kHeight, rows.steps - first);
      fill_stage(ring, [&](const auto& function) {
#pragma unroll 1
        for (int i = threadIdx.x % kWarpSize; i < steps * grads_runs; i += kWarpSize) {
          const int u = i / grads_runs;
          const int row = rows.grads + (first + u) * p.dilation_height;
          if (row >= 0 && row < p.dst_height) {
            function(grads, sources.grads, u * b.row_bytes, run.image, row, i - u * grads_runs);
          }
        }
#pragma unroll 1
        for (int i = threadIdx.x % kWarpSize; i < steps * input_runs; i += kWarpSize) {
          const int u = i / input_runs;
          const int row = rows.input + (first + u) * p.dilation_height;
          if (first + u >= Traits::kBefore) {
            const int at = u * b.row_bytes + sources.grads.slot_bytes;
            function(input, sources.input, at, run.image, row, i - u * input_runs);
          }
        }
      });
    }
  }
}

// One tap (kTaps: the bias) of a thread's part of a share, inside the image only.
template <typename Traits>
__device__ __noinline__ float careful_sum(
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const UnitStridePass& p,
    const PixelPlan& b,
    int first_column,
    int channel,
    int tap) {
  const bool bias = tap == Traits::kTaps;
  const int kh = bias ? Traits::kReachHeight : tap / Traits::kWidth;
  const int kw = bias ? Traits::kReachWidth : tap % Traits::kWidth;
  const int channels = p.channels / p.multiplier;
  float sum = 0.0f;
#pragma unroll 1
  for (BoxRuns runs(b, BoxPlace(b)); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
#pragma unroll 1
    for (int i = run.first_row * Traits::kTile; i < run.last_row * Traits::kTile; ++i) {
      const int h = run.row_phase + i / Traits::kTile * p.dilation_height;
      const int w = first_column + i % Traits::kTile * p.dilation_width;
      const int row = h + p.padding_height - kh * p.dilation_height;
      const int column = w + p.padding_width - kw * p.dilation_width;
      if (w < p.src_width && row >= 0 && row < p.dst_height && column >= 0 &&
          column < p.dst_width) {
        const int at = (run.image * p.dst_height + row) * p.dst_width + column;
        const int from = (run.image * p.src_height + h) * p.src_width + w;
        const float grad = static_cast<float>(grad_output[at * p.channels + channel]);
        sum += bias ? grad
                    : grad * static_cast<float>(input[from * channels + channel / p.multiplier]);
      }
    }
  }
  return sum;
}

// grad_input of a thread's part of a run, tap by tap; `p` is the pass of grad_input.
template <typename Traits>
__device__ __noinline__ void careful_rows(
    typename Traits::scalar_t* grad_input,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* weight,
    const UnitStridePass& p,
    const BoxRun& run,
    int first_column,
    int channel) {
#pragma unroll 1
  for (int i = run.first_row * Traits::kTile; i < run.last_row * Traits::kTile; ++i) {
    const int h = run.row_phase + i / Traits::kTile * p.dilation_height;
    const int w = first_column + i % Traits::kTile * p.dilation_width;
    if (w < p.dst_width) {
      const int to = (run.image * p.dst_height + h) * p.dst_width + w;
      grad_input[to * p.channels + channel] =
          static_cast<typename Traits::scalar_t>(careful_output<true>(
              grad_output + run.image * p.src_height * p.src_width * p.channels + channel,
              weight + channel * Traits::kTaps,
              0.0f,
              p,
              h,
              w));
    }
  }
}

// grad_input only where Traits::kData.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void pixel_rows_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ UnitStridePass turned, // the pass of grad_input
    const __grid_constant__ PixelPlan b,
    const __grid_constant__ PixelSources sources) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kWidth = Traits::kWidth;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kColumns = Traits::kColumns;
  extern __shared__ __align__(kBoxBytes) char shared_rows[];
  const BoxPlace place(b);
  const PixelPlace mine(b, place.group, kTile, p.dilation_width);
  const int computing = blockDim.x - kWarpSize;
  BoxRing ring(shared_rows, b.stages, b.stage_bytes, computing / kWarpSize);
  clear_slot_heads(ring, b, 0);
  clear_slot_heads(ring, b, sources.grads.slot_bytes);
  const int first_channel = place.group * b.lanes;
  const int last_channel = min(first_channel + b.lanes, p.channels) - 1;
  const auto input_channel = [&](int channel) {
    return channel / p.multiplier;
  };
  const int left = place.stretch * b.stretch;
  const int reach_width = (kWidth - 1) * p.dilation_width;
  const PixelReach<scalar_t> grads_reach(
      grad_output,
      sources.grads,
      left + p.padding_width - reach_width,
      b.stretch + reach_width,
      first_channel,
      b.whole() ? 0 : last_channel - first_channel + 1);
  const PixelReach<scalar_t> input_reach(
      input,
      sources.input,
      left,
      b.stretch,
      input_channel(first_channel),
      b.whole() ? 0 : input_channel(last_channel) - input_channel(first_channel) + 1);
  const int column = left + mine.column;
  const bool works = mine.computes && mine.channel < p.channels;

  // [sum][thread]: totals all along, or sums at the end in the ring's place.
  char* const behind = ring.boxes + b.stages * b.stage_bytes;
  float* const sums_of_block =
      reinterpret_cast<float*>(Traits::kExact ? behind : ring.boxes) + threadIdx.x;
  float taps[kTaps];
  bool finite = true;
  if constexpr (Traits::kData) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap] = works ? static_cast<float>(weight[mine.channel * kTaps + tap]) : 0.0f;
      finite = finite && is_finite(taps[tap]);
    }
  }
  if (Traits::kExact && static_cast<int>(threadIdx.x) < computing) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      sums_of_block[tap * computing] = 0.0f;
    }
  }
  __syncthreads(); // the ring is there for all

  float sums[kTaps + 1] = {};
  float excess = 0.0f;
  if (static_cast<int>(threadIdx.x) >= computing) {
    ask_rows<Traits>(ring, place, p, b, sources, grads_reach, input_reach);
  } else {
    int grads_offsets[kColumns];
    int input_offsets[kTile];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int w = column + p.padding_width - reach_width + c * p.dilation_width;
      grads_offsets[c] = works ? grads_reach.offset(sources.grads, w, mine.channel) : -kZeroBytes;
    }
    int columns = 0; // inside the image
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      const int w = column + t * p.dilation_width;
      input_offsets[t] =
          works ? input_reach.offset(sources.input, w, input_channel(mine.channel)) : -kZeroBytes;
      columns += works && w < p.src_width;
    }
    keep(columns);
    int64_t column_step = static_cast<int64_t>(p.dilation_width) * p.channels;
    int64_t row_step = static_cast<int64_t>(p.dilation_height) * p.src_width * p.channels;
    keep(column_step);
    keep(row_step);

#pragma unroll 1
    for (BoxRuns runs(b, place); runs.more();) {
      const BoxRun run = runs.next(b, p.dilation_height);
      const RunRows<Traits> rows(run, p);
      // Places where rows begin, of which the lowest bits count.
      uint32_t grads_first = grads_reach.first(sources.grads, run.image, rows.grads);
      uint32_t input_first = input_reach.first(sources.input, run.image, rows.input);
      const uint32_t grads_step = p.dilation_height * sources.grads.width * sources.grads.channels;
      const uint32_t input_step = p.dilation_height * sources.input.width * sources.input.channels;
      int grads_row = rows.grads;
      scalar_t* to = grad_input +
          (((run.image * p.src_height + run.row_phase + run.first_row * p.dilation_height) *
                p.src_width +
            column) *
               p.channels +
           mine.channel);
      float grads[kHeight][kColumns];
#pragma unroll 1
      for (int first = 0; first < rows.steps; first += kHeight) {
        uint32_t slot = shared_address(ring.wait()) + kZeroBytes;
#pragma unroll
        for (int u = 0; u < kHeight; ++u) {
          if (first + u >= rows.steps) {
            break;
          }
          uint32_t grads_from = slot + grads_reach.lead_of(grads_first);
          uint32_t input_from = slot + sources.grads.slot_bytes + input_reach.lead_of(input_first);
          keep(grads_from);
          keep(input_from);
          const bool exists =
              static_cast<uint32_t>(grads_row) < static_cast<uint32_t>(p.dst_height);
          slot += b.row_bytes;
          grads_first += grads_step;
          input_first += input_step;
          grads_row += p.dilation_height;
          if (exists) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
              grads[u][c] = read_shared<scalar_t>(grads_from + grads_offsets[c]);
            }
          } else {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
              grads[u][c] = 0.0f;
            }
          }
          if (u < Traits::kBefore && first == 0) {
            continue;
          }
          float values[kTile];
          float result[kTile][1] = {};
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
            values[t] = read_shared<scalar_t>(input_from + input_offsets[t]);
          }
          // In the order of grad_input alone.
#pragma unroll
          for (int turn = 0; turn < kHeight; ++turn) {
            const int kh = kHeight - 1 - turn;
            const float (&row)[kColumns] = grads[(u - kh + kHeight) % kHeight];
            RowSums<kTile, 1> products(result, turn >= Traits::kOwnRow);
#pragma unroll
            for (int c = 0; c < kWidth; ++c) {
              const int kw = kWidth - 1 - c;
              const int tap = kh * kWidth + kw;
#pragma unroll
              for (int t = 0; t < kTile; ++t) {
                const float grad = row[t + c];
                sums[tap] = fmaf(values[t], grad, sums[tap]);
                if constexpr (Traits::kData) {
                  products.add(c, t, 0, grad, taps[tap]);
                }
              }
            }
            if constexpr (Traits::kData) {
              products.finish();
            }
            if (kh == Traits::kReachHeight) {
              // Each element of grad_output is once beside the window's middle tap.
              float sum = 0.0f;
#pragma unroll
              for (int t = 0; t < kTile; t += 2) {
                sum += row[t + Traits::kReachWidth] + row[t + 1 + Traits::kReachWidth];
              }
              add_to_bias<Traits::kExact>(sums[kTaps], excess, sum);
            }
          }
          if constexpr (Traits::kData) {
            scalar_t* at = to;
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              store_if(t < columns, at, result[t][0]);
              at += column_step;
            }
            to += row_step;
          }
        }
        ring.release();
        if constexpr (Traits::kExact) {
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap) {
            sums_of_block[tap * computing] += sums[tap];
            sums[tap] = 0.0f;
          }
        }
      }
      if (Traits::kData && !finite) {
        careful_rows<Traits>(grad_input, grad_output, weight, turned, run, column, mine.channel);
      }
    }
  }

  // A block's sums: those of its tiles, in order.
  __syncthreads();
  double* const biases =
      reinterpret_cast<double*>(ring.boxes) + threadIdx.x; // of float, whose sums are elsewhere
  if (static_cast<int>(threadIdx.x) < computing) {
#pragma unroll
    for (int k = 0; k < Traits::kAlike; ++k) {
      float* const to = sums_of_block + k * computing;
      *to = Traits::kExact ? *to + sums[k] : sums[k];
    }
    if constexpr (Traits::kExact) {
      *biases = static_cast<double>(sums[kTaps]) - excess;
    }
  }
  __syncthreads();
  const BlockSums block{
      sums_of_block,
      biases,
      computing,
      mine.tile,
      b.tiles,
      b.lanes,
      static_cast<int>(threadIdx.x) < computing,
      works};
  write_block_sums<Traits>(
      block,
      partial + static_cast<int64_t>(blockIdx.x / b.groups) * (kTaps + kBiasRows) * p.channels +
          mine.channel,
      p.channels,
      [&](int k) {
        return careful_sum<Traits>(grad_output, input, p, b, column, mine.channel, k);
      });
#endif
}

// Planned: the traits that tell how many blocks there are.
template <typename Traits, typename Planned = Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = pixel_rows_backward_kernel<Traits>;
  UnitStridePass p{};
  set_unit_stride_pass(p, params);
  UnitStridePass turned = p;
  turn_around(turned, params);
  const PixelRequest request{
      p.batch,
      p.channels,
      p.src_height,
      p.src_width,
      Traits::kHeight,
      Traits::kWidth,
      p.dilation_height,
      p.dilation_width,
      Traits::kTile,
      Traits::kMostThreads,
      Traits::kBlocks};
  PixelPlan plan{};
  if (!compiled_for_sm_90<kernel>() || !plan_pixels(plan, request)) {
    return false;
  }
  // By groups of channels the march is as fast, but by single elements of 16 bits (the weight's gradient of
  // 1023@14 k3 in float 34 us, some 50 here); for all gradients it is not (67 and 38).
  if (!plan.whole() && !Traits::kData && params.multiplier == 1 &&
      (Traits::kTaps > 9 || pass.input.numel() >= kFewPixels) &&
      (Traits::kExact || p.channels % 2 == 0)) {
    return false;
  }
  const PixelSources sources{
      pixel_source(
          pass.grad_output,
          plan.stretch + (Traits::kWidth - 1) * p.dilation_width,
          plan.lanes,
          plan.whole()),
      pixel_source(
          pass.input, plan.stretch, divide_up(plan.lanes, p.multiplier) + 1, plan.whole())};
  constexpr int64_t kRingBytes = 160 * 1024; // of a multiprocessor
  constexpr int64_t kLeastStages = 2;
  // Rows: each block begins with some for nothing, and leaves sums for the second kernel to add up.
  constexpr int32_t kLeastShare = 2 * Traits::kBefore;
  plan.box_rows = Traits::kHeight;
  plan.row_bytes = sources.grads.slot_bytes + sources.input.slot_bytes;
  plan.stage_bytes = stage_bytes(plan.box_rows * plan.row_bytes);
  plan.stages =
      std::clamp<int64_t>(kRingBytes / plan.blocks / plan.stage_bytes, kLeastStages, kMostStages);
  const int64_t computing = plan.threads - kWarpSize;
  const int64_t sums = sizeof(float) * Traits::kAlike * computing;
  const int64_t ring = plan.stages * plan.stage_bytes;
  const int64_t shared = kRingHead + (Traits::kExact ? ring + sums : std::max(ring, sums));
  if (!has_shared(shared)) {
    return false;
  }
  // The blocks of the kernel for all gradients, so that sums fall into the same parts.
  const int64_t resident =
      resident_blocks(pixel_rows_backward_kernel<Planned>, plan.threads, shared);
  plan_box_shares(plan, resident, Traits::kHeight - 1);
  plan.share = std::max(plan.share, kLeastShare);
  const int64_t grid =
      divide_up(plan.rows, plan.share) * static_cast<int64_t>(plan.groups) * plan.stretches;
  const int64_t chunks = grid / plan.groups;
  const Operand partial = empty_partial(chunks, params);
  launch_kernel(
      kernel,
      static_cast<unsigned int>(grid),
      plan.threads,
      shared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      p,
      turned,
      plan,
      sources);
  add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, params);
  return true;
}

} // namespace

bool pixel_rows_backward(const BackwardPass& pass, const Params& p) {
  const bool all = pass.grad_input.defined();
  if (!pixel_rows_take(p, pass.input) || !middle_meets_all(p) || pass.grad_output.numel() == 0 ||
      (all && p.multiplier > 1) || !begins_a_run(pass.input) || !begins_a_run(pass.grad_output) ||
      !device_has_boxes()) {
    return false;
  }
  return with_scalar_type(pass.input.type(), [&](auto scalar) {
    return with_window(p, [&](auto window) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(window);
      if constexpr (Fixed::kHeight == 1 || Fixed::kStride > 1) {
        return false;
      } else if constexpr (Fixed::kHeight == 3) {
        using All = PixelBackwardTraits<scalar_t, Fixed, 6, true>;
        using Weight = PixelBackwardTraits<scalar_t, Fixed, 6, false>;
        // All gradients of several outputs of a channel are not taken in one pass. In 16 bit wider tiles are
        // faster (32@112 with two outputs 67 us, 55); in float they would be longer chains.
        using Several = PixelBackwardTraits<scalar_t, Fixed, sizeof(scalar_t) == 2 ? 8 : 6, false>;
        return all              ? launch<All>(pass, p)
            : p.multiplier == 1 ? launch<Weight, All>(pass, p)
                                : launch<Several>(pass, p);
      } else {
        return !all && launch<PixelBackwardTraits<scalar_t, Fixed, 4, false>>(pass, p);
      }
    });
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
