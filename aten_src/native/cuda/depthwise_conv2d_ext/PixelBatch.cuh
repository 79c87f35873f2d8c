// What the kernels of depthwise_conv2d_ext share that take channels-last tensors of 16-bit elements to the
// tensor cores.
//
// As in Batch.cuh a row of taps lies along the diagonals of a matrix T, one for each
// channel, but rows of the matrices on the left are segments of kSegment columns of a row of src, wherever
// they are: the segments of a stretch of columns first, then those of the next image, until there are 16.
// Segment s begins at column 7 s, and its row of the matrix has the 16 columns from there on, which is what
// a window up to ten wide meets:
//   dst row[segment][column] += src row[segment][16 columns] . T[16 columns][column].
// Seven of the eight columns of a product are used. With eight columns a segment all segments would lie in the
// same banks of shared memory; by sevens they are spread over all, and widths of 7, 14, 28 and 56 leave
// nothing idle.
//
// Rows of src come by boxes (Boxes.cuh) as they lie in memory, [image][column][channels]
// with zeros outside the image, so that channels and not columns are neighbours. A lane reads four channels
// of two neighbouring columns, eight bytes each, and byte permutations put the two columns of a channel side
// by side, as the instructions take them. The tensor copy engine's swizzle permutes the 16-byte blocks of
// eight pixels so that the lanes of a warp, which read the same block of different pixels, meet all banks.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kSegment = 7; // dst columns of a matrix row
constexpr int kQuad = 4; // channels of a warp
constexpr int kQuadBytes = 2 * kQuad;
constexpr int kMostPixelWindow = kMatrixRows + 1 - kSegment; // columns of taps
// Pixels after which the swizzle of blocks repeats, whatever the channels of a box.
constexpr int kSwizzlePixels = 8;
// Phases of columns, each with maps of 128 bytes among a kernel's arguments.
constexpr int kMostColumnPhases = 4;

// How a pass is cut: boxes of kChannelBytes of channels, the columns of `segments` segments, one row, and as
// many images as fill a matrix. Stretches are of all phases of columns.
struct PixelBatchPlan : BoxPlan {
  int32_t segments; // of a stretch
  int32_t slot_bytes; // of a box, up to where the next of its stage begins
  int32_t phase_stretches; // of one phase of columns
  Divider by_segments;
  Divider by_rows; // phase_rows
  Divider by_phases; // row_phases
  Divider by_dilation; // of rows
};

// The cut with the fewest products: false where there is none. `p` is the pass whose src comes by boxes,
// `rows` of them a stage.
inline bool plan_pixel_batch(
    PixelBatchPlan& b,
    const UnitStridePass& p,
    int channel_bytes,
    int rows) {
  constexpr int64_t kMostElements = 256; // of a box in each direction
  constexpr int64_t kElementBytes = 2;
  if (p.batch == 0 || p.dst_width <= 0) {
    return false;
  }
  const int64_t phase_columns = divide_up(p.dst_width, p.dilation_width);
  const int64_t phase_rows = divide_up(p.dst_height, p.dilation_height);
  const int64_t all = divide_up(phase_columns, kSegment);
  double least = std::numeric_limits<double>::max();
  for (int64_t segments = 1; segments <= std::min<int64_t>(all, kMatrixRows); ++segments) {
    const int64_t stretches = divide_up(all, segments);
    const int64_t images = std::min<int64_t>(kMatrixRows / segments, p.batch);
    const int64_t columns = segments * kSegment;
    const double overlap =
        static_cast<double>((stretches - 1) * (p.kernel_width - 1)) / phase_columns;
    const double time =
        static_cast<double>(stretches * divide_up(p.batch, images)) * (1 + overlap / 2);
    if (time < least) {
      least = time;
      b.segments = segments;
      b.phase_stretches = stretches;
      b.stretches = stretches * p.dilation_width;
      b.stretch = columns;
      b.images = images;
    }
  }
  // Odd, so that images too lie in different banks.
  b.box_columns = (b.stretch + kMatrixRows - kSegment) | 1;
  // Where all rows of a stage have the same swizzle.
  const int64_t align = static_cast<int64_t>(kSwizzlePixels) * channel_bytes;
  b.batch = p.batch;
  b.groups = divide_up(p.channels * kElementBytes, channel_bytes);
  b.row_phases = p.dilation_height;
  b.box_rows = 1;
  b.row_bytes = b.box_columns * channel_bytes;
  b.box_bytes = b.images * b.row_bytes;
  b.slot_bytes = divide_up(b.box_bytes, align) * align;
  b.stage_bytes = rows * b.slot_bytes;
  b.by_segments = Divider(b.segments);
  b.by_rows = Divider(phase_rows);
  b.by_phases = Divider(b.row_phases);
  b.by_dilation = Divider(p.dilation_height);
  b.dst_height = p.dst_height;
  b.phase_rows = phase_rows;
  const int64_t items = divide_up(p.batch, b.images) * b.row_phases;
  const int64_t all_rows = items * phase_rows;
  b.rows = all_rows;
  const int64_t span = p.src_height + p.padding_height + p.dilation_height; // of rows of src
  // The latter so that the divisors divide them.
  return p.kernel_width <= kMostPixelWindow && b.box_columns <= kMostElements &&
      std::max({all_rows * phase_rows, items * b.row_phases, span * p.dilation_height}) <=
      std::numeric_limits<uint32_t>::max();
}

#if CUDART_VERSION >= 12000
// The map of a phase of the columns of a dense channels-last tensor, one of `phases`, in boxes of a row,
// swizzled; false where it has none.
template <int kChannelBytes>
bool map_pixel_rows(
    CUtensorMap& map,
    const Operand& tensor,
    int64_t columns,
    int64_t images,
    int64_t phases,
    int64_t phase) {
  static_assert(kChannelBytes == 32 || kChannelBytes == 64 || kChannelBytes == 128);
  constexpr CUtensorMapSwizzle kSwizzle = kChannelBytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
      : kChannelBytes == 64                                   ? CU_TENSOR_MAP_SWIZZLE_64B
                                                              : CU_TENSOR_MAP_SWIZZLE_128B;
  const auto size = [&](int dim) {
    return static_cast<cuuint64_t>(tensor.size(dim));
  };
  const auto bytes = static_cast<cuuint64_t>(tensor.element_size());
  const cuuint64_t pixel = size(1) * bytes;
  const cuuint64_t row = size(3) * pixel;
  const auto phase_columns = static_cast<cuuint64_t>(divide_up(tensor.size(3) - phase, phases));
  const cuuint64_t sizes[] = {size(1), phase_columns, size(2), size(0)};
  const cuuint64_t strides[] = {phases * pixel, row, size(2) * row};
  const cuuint32_t box[] = {
      static_cast<cuuint32_t>(kChannelBytes / bytes),
      static_cast<cuuint32_t>(columns),
      1,
      static_cast<cuuint32_t>(images)};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  return encode_map(map, tensor, sizes, strides, box, steps, kSwizzle, phase * pixel);
}

// Of the phases of columns of a pass: their maps, of dst and of the src that they meet, and the column of the
// latter that column 0 of dst meets first.
template <int kMost = kMostColumnPhases>
struct ColumnPhases {
  CUtensorMap dst[kMost];
  CUtensorMap src[kMost];
  int32_t first[kMost];
};

// False where a phase has no map, or no column.
template <int kChannelBytes, int kMost>
bool map_column_phases(
    ColumnPhases<kMost>& maps,
    const Operand& dst,
    int64_t dst_columns,
    const Operand& src,
    int64_t src_columns,
    int64_t images,
    int64_t phases,
    int64_t padding) {
  if (phases > kMost || dst.size(3) < phases || src.size(3) < phases) {
    return false;
  }
  for (int64_t phase = 0; phase < phases; ++phase) {
    const int64_t from = phase - padding; // of src
    const int64_t src_phase = (from % phases + phases) % phases;
    if (!map_pixel_rows<kChannelBytes>(maps.dst[phase], dst, dst_columns, images, phases, phase) ||
        !map_pixel_rows<kChannelBytes>(
            maps.src[phase], src, src_columns, images, phases, src_phase)) {
      return false;
    }
    maps.first[phase] = (from - src_phase) / phases;
  }
  return true;
}
#endif

#ifdef __CUDACC__

// Where the block of 16 bytes that `bytes` into a pixel's channels is in lies in a swizzled box.
template <int kChannelBytes>
__device__ __forceinline__ int swizzled(int pixel, int bytes) {
  constexpr int kBlocks = kChannelBytes / kBlockBytes;
  const int turn = (pixel * kBlocks / kSwizzlePixels) % kBlocks;
  return pixel * kChannelBytes + (bytes ^ (turn * kBlockBytes));
}

// Row `row` of the matrices: which image of a box and which segment of it; those beyond the last are row 0.
struct SegmentPlace {
  int image;
  int segment;
  bool exists;

  __device__ __forceinline__ SegmentPlace(int row, const PixelBatchPlan& b) {
    image = b.by_segments.quotient(row);
    segment = row - image * b.segments;
    exists = image < b.images;
    if (!exists) {
      image = 0;
      segment = 0;
    }
  }
};

// A row of src of four channels as left matrices, [16 segments][16 columns] each.
template <int kChannelBytes>
struct PixelFragments {
  // Where a lane reads in a box, of its two segments: an even column and the next.
  struct Places {
    int offset[2][2];

    __device__ __forceinline__ Places(const PixelBatchPlan& b, int quad, const Lane& at) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const SegmentPlace place(at.row + half * kOctet, b);
        const int pixel = place.image * b.box_columns + place.segment * kSegment + 2 * at.pair;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          offset[half][i] = swizzled<kChannelBytes>(pixel + i, quad * kQuadBytes);
        }
      }
    }
  };

  // As they lie in memory: [segment and the eighth after it][column and the eighth after it][column, next].
  struct Raw {
    uint2 words[2][2][2];

    __device__ __forceinline__ void load(const char* box, const Places& places) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int octet = 0; octet < 2; ++octet) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            words[half][octet][i] = *reinterpret_cast<const uint2*>(
                box + places.offset[half][i] + octet * kSwizzlePixels * kChannelBytes);
          }
        }
      }
    }
  };

  uint32_t words[kQuad][4];

  __device__ __forceinline__ void arrange(const Raw& raw) {
    constexpr int kLow = 0x5410;
    constexpr int kHigh = 0x7632;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int octet = 0; octet < 2; ++octet) {
        const uint2 even = raw.words[half][octet][0];
        const uint2 odd = raw.words[half][octet][1];
        const int i = 2 * octet + half;
        words[0][i] = __byte_perm(even.x, odd.x, kLow);
        words[1][i] = __byte_perm(even.x, odd.x, kHigh);
        words[2][i] = __byte_perm(even.y, odd.y, kLow);
        words[3][i] = __byte_perm(even.y, odd.y, kHigh);
      }
    }
  }
};

// Rows of taps with zeros on both sides, from which the matrices T are read: two copies, the second one
// column on, so that two neighbouring taps are one word wherever they begin.
template <int kWindow>
struct PaddedTaps {
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kLeft = kOctet; // zeros before the first tap
  static constexpr int kRow = 28; // elements of a row of one copy
  static constexpr int kChannel = 2 * kWindow * kRow;
  static constexpr int kChannelBytes = kChannel * 2;
  static_assert(kLeft + kMatrixRows + 1 < kRow && kChannelBytes % kBlockBytes == 0);

  // A row of taps of a channel. Zeros were written before.
  static __device__ __forceinline__ void put(
      unsigned short* channel,
      int row,
      const unsigned short (&taps)[kWindow],
      bool flip) {
    unsigned short* const to = channel + (flip ? kWindow - 1 - row : row) * (2 * kRow) + kLeft;
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      unsigned short* const place = to + (flip ? kWindow - 1 - i : i);
      place[0] = place[kRow - 1] = taps[i];
    }
  }

  // The lane's part of a channel's matrices T: of column `row` of dst, taps of columns 2 pair and + 1 of src,
  // and of those eight on.
  static __device__ __forceinline__ void read(
      uint32_t (&bands)[kWindow][2],
      const unsigned short* channel,
      const Lane& at) {
    const int first = kLeft + 2 * at.pair - at.row;
    const unsigned short* const from = channel + (at.row % 2) * (kRow - 1) + first;
#pragma unroll
    for (int kh = 0; kh < kWindow; ++kh) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        bands[kh][i] = *reinterpret_cast<const uint32_t*>(from + kh * 2 * kRow + i * kOctet);
      }
    }
  }
};

// The runs of a block's share, of whole images.
__device__ __forceinline__ BoxRuns pixel_runs(const PixelBatchPlan& b, int share) {
  const int first = share * b.share;
  const int item = b.by_rows.quotient(first);
  const int group = b.by_phases.quotient(item);
  BoxRuns runs;
  runs.left = min(b.share, b.rows - first);
  runs.row_phase = item - group * b.row_phases;
  runs.image = group * b.images;
  runs.row = first - item * b.phase_rows;
  return runs;
}

// The next of them that has rows; whether there is one.
__device__ __forceinline__ bool next_pixel_run(
    BoxRun& run,
    BoxRuns& runs,
    const PixelBatchPlan& b,
    int dilation_height) {
  while (runs.more()) {
    run = runs.next(b, dilation_height);
    if (run.first_row < run.last_row) {
      return true;
    }
  }
  return false;
}

#endif // __CUDACC__

} // namespace at::native::depthwise_conv2d_ext_cuda
