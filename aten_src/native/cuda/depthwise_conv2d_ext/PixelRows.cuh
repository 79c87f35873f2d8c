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
#pragma once

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

#ifdef __CUDACC__
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
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
