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

// Forward of depthwise_conv2d_ext in channels-last order at stride 1 in float16 and bfloat16, on the tensor
// cores, with segments of rows as rows of matrices (PixelBatch.cu), and grad_input, which
// is the forward on grad_output with flipped taps.
//
// A warp has four channels of 16 segments and marches down the rows: a row of src is one left matrix a
// channel, and adds to the kTapRows rows of dst that it meets, whose sums are in registers. So each row is
// read once, and its products do not wait for one another. A round of kTapRows rows is unrolled without a
// branch around what they do, so that the results of one row and the reading of the next are woven into the
// products of this one: two warps a scheduler hide no more than that (96@56 k7 in half 40.5 us with a switch
// over the slots of sums, 33.8 without).
//
// The warps of a block share boxes of src and of results in shared memory. They meet twice a round; then each
// of four, one of each scheduler, asks for a box and sends one, as the tensor copy engine keeps waiting who
// asks for several, while the others go on (96@56 k7 28.2 us where each of all eight did either, 26.8 so).
// There are two areas of results: one is sent while the other is written. A block has 64 bytes of channels
// rather than 32: 96@56 k7 27.6 us and 33.8, 240@28 k5 31.4 and 41.5.
//
// Rows above and below the image are never asked for: the last results of a run that ends there are handed
// on without products. Columns beside it come as zeros, and are multiplied: at the end of a block, results
// that are NaN are taken again, tap by tap.

namespace {

#if CUDART_VERSION >= 12000

// What is asked for next, as BoxFeed has it, and whether it is the second part of a round.
struct PixelFeed {
  int32_t row;
  int32_t rows;
  int32_t image;
  int32_t second;
  BoxRuns runs;
};

template <typename scalar_t_, int kWindow_, int kChannelBytes_>
struct PixelBatchTraits {
  using scalar_t = scalar_t_;
  using Taps = PaddedTaps<kWindow_>;
  static constexpr int kWindow = kWindow_;
  static constexpr int kTapRows = kWindow;
  static constexpr int kChannelBytes = kChannelBytes_; // of a block
  static constexpr int kChannels = kChannelBytes / 2;
  static constexpr int kWarps = kChannelBytes / kQuadBytes;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kMovers = 4; // warps that ask and send
  static constexpr int kWarpsResident = 8; // of a multiprocessor, as registers allow
  static constexpr int kBlocks = kWarpsResident / kWarps;
  // A round of the march is kTapRows rows, all unrolled, in two parts. A stage of the ring is the rows of a
  // part, and so is an area of results.
  static constexpr int kFirstRows = (kTapRows + 1) / 2;
  static constexpr int kHead = 1024; // of shared memory, where a swizzle of any size may begin
  static constexpr int kResultBytes = kMatrixRows * kSegment * kChannelBytes; // of a row
  static constexpr int kAreaBytes = kFirstRows * kResultBytes;
  // Before the first results padded taps lie there.
  static constexpr int kResultsBytes = 2 * kAreaBytes;
  static_assert(kHead >= kRingHead + 2 * sizeof(PixelFeed) && kHead % kBoxBytes == 0);
  static_assert(kChannels * Taps::kChannelBytes <= kResultsBytes);
  static_assert(kChannels * kWindow <= kThreads); // a row of taps each
};

// Sums of the rows of dst under way, and what they are made of.
template <typename Traits>
struct PixelMarch {
  using scalar_t = typename Traits::scalar_t;
  using Fragments = PixelFragments<Traits::kChannelBytes>;
  static constexpr int kTapRows = Traits::kTapRows;
  using Words = uint2[2][2]; // packed results: [segment and the eighth after it][column, next]

  uint32_t bands[kQuad][kTapRows][2];
  float begin[kQuad];
  float sums[kTapRows][kQuad][4];

  __device__ __forceinline__ void restart() {
#pragma unroll
    for (int row = 0; row < kTapRows; ++row) {
#pragma unroll
      for (int c = 0; c < kQuad; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[row][c][i] = 0.0f;
        }
      }
    }
  }

  // Adds a row of src. The row of dst that begins with it has slot kSlot.
  template <int kSlot>
  __device__ __forceinline__ void multiply(const Fragments& row) {
#pragma unroll
    for (int kh = kTapRows - 1; kh >= 0; --kh) {
#pragma unroll
      for (int c = 0; c < kQuad; ++c) {
        float (&sum)[4] = sums[(kSlot + kTapRows - kh) % kTapRows][c];
        if (kh == 0) {
          sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        }
        const uint32_t (&a)[4] = row.words[c];
        multiply_16<scalar_t>(sum, a[0], a[1], a[2], a[3], bands[c][kh][0], bands[c][kh][1]);
      }
    }
  }

  // The row of dst that ended with the row of src of slot kSlot.
  template <int kSlot>
  __device__ __forceinline__ void pack(Words& words) const {
    constexpr int kDone = (kSlot + 1) % kTapRows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto result = [&](int c) {
          return sums[kDone][c][2 * half + i] + begin[c];
        };
        words[half][i].x = pack_two<scalar_t>(result(0), result(1));
        words[half][i].y = pack_two<scalar_t>(result(2), result(3));
      }
    }
  }
};

// Where a block is: its first channel, its phase of columns, and its first column in it, of dst and of src.
struct PixelPlace {
  int32_t channel;
  int32_t phase;
  int32_t column;
  int32_t src_column;
};

// Rows of src that a run takes, at least one, as SrcRows has them.
struct PixelSrcRows {
  int32_t top;
  int32_t begin;
  int32_t end;

  __device__ __forceinline__
  PixelSrcRows(const BoxRun& run, const UnitStridePass& p, const PixelBatchPlan& b) {
    const auto rows_in = [&](int span) {
      return b.by_dilation.quotient(span + p.dilation_height - 1);
    };
    top = run.row_phase - p.padding_height;
    begin = max(run.first_row, rows_in(-top));
    end = min(run.last_row + p.kernel_height - 1, rows_in(p.src_height - top));
  }
};

// Asks for the next stage, into one that all have read: by one thread of each of `warps` warps, of which this
// is `warp`.
template <typename Traits>
__device__ __forceinline__ void fill_pixel_stage(
    PixelFeed& feed,
    int stage,
    int warp,
    int warps,
    const BoxRing& ring,
    const CUtensorMap& map,
    const PixelPlace& place,
    const UnitStridePass& p,
    const PixelBatchPlan& b) {
  if (feed.rows <= 0) {
    BoxRun run;
    if (!next_pixel_run(run, feed.runs, b, p.dilation_height)) {
      feed.image = -1;
      return;
    }
    const PixelSrcRows rows(run, p, b);
    feed.image = run.image;
    feed.row = rows.top + rows.begin * p.dilation_height;
    feed.rows = rows.end - rows.begin;
    feed.second = 0;
  }
  const int most = feed.second ? Traits::kTapRows - Traits::kFirstRows : Traits::kFirstRows;
  const int count = min(most, feed.rows);
  if (warp == 0) {
    arrive_and_expect(ring.full(stage), count * b.box_bytes);
  }
#pragma unroll 1
  for (int i = warp; i < count; i += warps) {
    load_box(
        shared_address(ring.boxes + stage * b.stage_bytes + i * b.slot_bytes),
        ring.full(stage),
        map,
        place.channel,
        place.src_column,
        feed.row + i * p.dilation_height,
        feed.image);
  }
  feed.row += count * p.dilation_height;
  feed.rows -= count;
  feed.second ^= 1;
}

// A block's results of a run that are NaN again, tap by tap. By all threads, after those that sent them know
// that they are in device memory.
template <typename Traits>
__device__ __noinline__ void retake_pixels(
    typename Traits::scalar_t* dst,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    const typename Traits::scalar_t* bias,
    const UnitStridePass& p,
    const BoxRun& run,
    int images,
    const PixelPlace& place,
    int columns) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kChannels = Traits::kChannels;
  const int last_image = min(p.batch, run.image + images);
  const int pixels = (run.last_row - run.first_row) * columns;
#pragma unroll 1
  for (int n = run.image; n < last_image; ++n) {
#pragma unroll 1
    for (int i = threadIdx.x; i < pixels * kChannels; i += Traits::kThreads) {
      const int c = place.channel + i % kChannels;
      const int row = run.row_phase + (run.first_row + i / kChannels / columns) * p.dilation_height;
      const int w = place.phase + (place.column + i / kChannels % columns) * p.dilation_width;
      if (c >= p.channels || w >= p.dst_width) {
        continue;
      }
      scalar_t* const to = dst + ((n * p.dst_height + row) * p.dst_width + w) * p.channels + c;
      scalar_t result;
      result.x = *reinterpret_cast<volatile unsigned short*>(to);
      if (isnan(static_cast<float>(result))) {
        *to = static_cast<scalar_t>(careful_output<true>(
            src + n * p.src_height * p.src_width * p.channels + c,
            weight + c * p.kernel_height * p.kernel_width,
            bias ? static_cast<float>(bias[c]) : 0.0f,
            p,
            row,
            w));
      }
    }
  }
}

// Calls function(kValue as a constant) for a value from kFirst on, below kEnd.
template <int kFirst, int kEnd, typename Function>
__device__ __forceinline__ void with_constant(int value, const Function& function) {
  if constexpr (kFirst < kEnd) {
    if (value == kFirst) {
      function(std::integral_constant<int, kFirst>());
    } else {
      with_constant<kFirst + 1, kEnd>(value, function);
    }
  }
}

// A warp's march down the rows of the block's share. What is NaN or infinite of its results stays in `seen`.
template <typename Traits>
__device__ __forceinline__ void march_pixel_rows(
    uint32_t (&seen)[2],
    BoxRing& ring,
    char* shared,
    const ColumnPhases<>& maps,
    const typename Traits::scalar_t* weight,
    const typename Traits::scalar_t* bias,
    const PixelPlace& place,
    int quad,
    const UnitStridePass& p,
    const PixelBatchPlan& b) {
  using scalar_t = typename Traits::scalar_t;
  using March = PixelMarch<Traits>;
  using Fragments = typename March::Fragments;
  using Taps = typename Traits::Taps;
  constexpr int kTapRows = Traits::kTapRows;
  constexpr int kFirstRows = Traits::kFirstRows;
  constexpr int kChannelBytes = Traits::kChannelBytes;
  constexpr int kChannels = Traits::kChannels;
  constexpr int kMovers = Traits::kMovers;
  char* const results = shared + Traits::kHead;
  PixelFeed* const feeds = reinterpret_cast<PixelFeed*>(shared); // this one, the next
  const CUtensorMap& dst_map = maps.dst[place.phase];
  const CUtensorMap& src_map = maps.src[place.phase];
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  const auto fill = [&](PixelFeed& feed, int stage, int warp, int warps) {
    fill_pixel_stage<Traits>(feed, stage, warp, warps, ring, src_map, place, p, b);
  };
  // A row of a channel's taps is a thread's. They travel while the boxes are asked for.
  const int tap_channel = threadIdx.x / Traits::kWindow;
  const bool has_taps = tap_channel < min(kChannels, p.channels - place.channel);
  const auto* const from = reinterpret_cast<const unsigned short*>(
      weight + place.channel * Taps::kTaps + threadIdx.x * Traits::kWindow);
  unsigned short taps[Traits::kWindow];
#pragma unroll
  for (int i = 0; i < Traits::kWindow; ++i) {
    taps[i] = has_taps ? __ldg(from + i) : 0;
  }
  if (threadIdx.x == 0) {
    PixelFeed feed{0, 0, 0, 0, pixel_runs(b, blockIdx.z)};
    fill(feed, 0, 0, 1);
    feeds[0] = feed;
  }
  // Padded taps lie where results will.
  unsigned short* const padded = reinterpret_cast<unsigned short*>(results);
#pragma unroll 1
  for (int i = threadIdx.x * kBlockBytes; i < kChannels * Taps::kChannelBytes;
       i += Traits::kThreads * kBlockBytes) {
    *reinterpret_cast<uint4*>(results + i) = make_uint4(0, 0, 0, 0);
  }
  const int channel = place.channel + quad * kQuad;
  const Lane at;
  March march;
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    march.begin[c] =
        bias && channel + c < p.channels ? static_cast<float>(bias[channel + c]) : 0.0f;
  }
  const typename Fragments::Places places(b, quad, at);
  // Where the lane's results lie in a row of results. Matrix rows of no segment are the first segment's, and
  // write what that does; the last of a lane's eight columns is the next segment's.
  char* result_place[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SegmentPlace segment(at.row + half * kOctet, b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pixel = (segment.image * b.segments + segment.segment) * kSegment + 2 * at.pair + i;
      result_place[half][i] = results + swizzled<kChannelBytes>(pixel, quad * kQuadBytes);
    }
  }
  const bool has_odd = 2 * at.pair + 1 < kSegment;
  __syncthreads();
  if (has_taps) {
    const int row = threadIdx.x - tap_channel * Traits::kWindow;
    Taps::put(padded + tap_channel * Taps::kChannel, row, taps, p.flip);
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    Taps::read(march.bands[c], padded + (quad * kQuad + c) * Taps::kChannel, at);
  }
  __syncthreads();
  // Not before the taps are there: they would wait for the boxes.
  if (first_lane) {
    PixelFeed feed = feeds[0];
#pragma unroll 1
    for (int stage = 1; stage < b.stages && feed.image >= 0; ++stage) {
      fill(feed, stage, quad, Traits::kWarps);
    }
    if (quad == 0) {
      feeds[1] = feed;
    }
  }

  int turn = 1; // which of the feeds is next
  int part = 0; // of all of the share
  int other = Traits::kAreaBytes; // from this area of results to the other

  BoxRuns runs = pixel_runs(b, blockIdx.z);
  BoxRun run;
#pragma unroll 1
  while (next_pixel_run(run, runs, b, p.dilation_height)) {
    const PixelSrcRows rows(run, p, b);
    march.restart();
    Fragments row;
    typename Fragments::Raw raw;
    const char* next = ring.wait();
    raw.load(next, places);
    row.arrange(raw);
    int i = rows.begin;

    // The results that row `kAt` of a round ends.
    const auto put = [&](auto of_round, const typename March::Words& words) {
      constexpr int kAt = decltype(of_round)::value;
      constexpr int kOfPart = kAt < kFirstRows ? kAt : kAt - kFirstRows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          look_at<scalar_t>(seen[0], words[half][j].x);
          look_at<scalar_t>(seen[1], words[half][j].y);
          if (j == 0 || has_odd) {
            *reinterpret_cast<uint2*>(result_place[half][j] + kOfPart * Traits::kResultBytes) =
                words[half][j];
          }
        }
      }
    };
    // Row `kAt` of a round; whether the run goes on. The next row is read while this one is multiplied.
    const auto step = [&](auto of_round) {
      constexpr int kAt = decltype(of_round)::value;
      const bool goes_on = i + 1 < rows.end;
      if (kAt + 1 == kFirstRows || kAt + 1 == kTapRows) {
        if (goes_on) {
          ring.advance(ring.used, ring.used_parity);
          next = ring.wait();
        }
      } else {
        next += b.slot_bytes;
      }
      raw.load(next, places);
      march.template multiply<kAt>(row);
      typename March::Words words;
      march.template pack<kAt>(words);
      row.arrange(raw);
      put(of_round, words);
      ++i;
      return goes_on;
    };
    // The warps meet after a part of `count` rows; the next one's results are of the other area. Those that
    // move boxes ask for another stage if the part had one.
    const auto meet = [&](int count, bool asks) {
      fence_for_copies();
      if (first_lane) {
        wait_until_sent(); // what the next part's results will be written over
      }
      __syncthreads();
      if (first_lane && (Traits::kWarps == kMovers || quad / kMovers == part % 2)) {
        const int mover = quad % kMovers;
        const int first_row = i - count - (kTapRows - 1); // of dst
        const char* const area = results + part % 2 * Traits::kAreaBytes;
#pragma unroll 1
        for (int j = mover; j < count; j += kMovers) {
          if (first_row + j >= run.first_row) {
            store_box(
                dst_map,
                area + j * Traits::kResultBytes,
                place.channel,
                place.column,
                run.row_phase + (first_row + j) * p.dilation_height,
                run.image);
          }
        }
        if (asks) {
          PixelFeed feed = feeds[turn];
          if (feed.image >= 0) {
            fill(feed, (ring.used == 0 ? ring.stages : ring.used) - 1, mover, kMovers);
          }
          if (mover == 0) {
            feeds[turn ^ 1] = feed;
          }
        }
      }
      turn ^= asks;
      ++part;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          result_place[half][j] += other;
        }
      }
      other = -other;
    };
    const int of_first = i;
#pragma unroll 1
    while (true) {
      if (!take_steps<0, kFirstRows>(step)) {
        break;
      }
      meet(kFirstRows, true);
      if (!take_steps<kFirstRows, kTapRows>(step)) {
        break;
      }
      meet(kTapRows - kFirstRows, true);
    }
    ring.advance(ring.used, ring.used_parity);
    // The results that are left; those of a part are taken beside the part's last rows of src.
    const int end = run.last_row + kTapRows - 1;
    int in_round = (i - of_first - 1) % kTapRows + 1; // rows
    bool asks = true;
#pragma unroll 1
    for (bool second = in_round > kFirstRows;; second = !second) {
#pragma unroll 1
      for (const int beyond = second ? kTapRows : kFirstRows; in_round < beyond && i < end;
           ++in_round, ++i) {
        with_constant<0, kTapRows>(in_round, [&](auto of_round) {
          typename March::Words words;
          march.template pack<decltype(of_round)::value>(words);
          put(of_round, words);
        });
      }
      meet(second ? in_round - kFirstRows : in_round, asks);
      if (i >= end) {
        break;
      }
      asks = false;
      in_round = in_round == kTapRows ? 0 : in_round;
    }
  }
  if (first_lane) {
    wait_until_sent(); // before the block ends
  }
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void pixel_batch_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ ColumnPhases<> maps,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ PixelBatchPlan b) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(Traits::kHead) char shared_boxes[];
  BoxRing ring(shared_boxes + Traits::kHead - kRingHead, b.stages, b.stage_bytes, 1);
  ring.boxes = shared_boxes + Traits::kHead + Traits::kResultsBytes;
  // The same for all lanes, as the compiler sees from this.
  const int quad = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  PixelPlace place;
  place.channel = blockIdx.x * Traits::kChannels;
  place.phase = blockIdx.y / b.phase_stretches;
  place.column = (blockIdx.y - place.phase * b.phase_stretches) * b.stretch;
  place.src_column = maps.first[place.phase] + place.column;
  uint32_t seen[2] = {};
  march_pixel_rows<Traits>(seen, ring, shared_boxes, maps, weight, bias, place, quad, p, b);
  if (__syncthreads_or((seen[0] | seen[1]) != 0)) {
    wait_until_stored();
    __syncthreads();
    BoxRuns runs = pixel_runs(b, blockIdx.z);
    BoxRun run;
#pragma unroll 1
    while (next_pixel_run(run, runs, b, p.dilation_height)) {
      retake_pixels<Traits>(dst, src, weight, bias, p, run, b.images, place, b.stretch);
    }
  }
#endif
}

// Columns of images, or of a few of them, of a group of channels, from which 64 bytes of channels a block are
// better than 32: 96@56 k7 of 8 images (12) 13.6 us and 12.1, of 32 (48) 19.6 and 19.8, of 64 27.6 and 33.2.
constexpr int64_t kLeastUnits = 48;

template <typename Traits>
bool launch_pixel_batch(const ForwardPass& pass, const UnitStridePass& p, int64_t least_units) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = pixel_batch_kernel<Traits>;
  PixelBatchPlan plan{};
  if (!compiled_for_sm_90<kernel>() ||
      !plan_pixel_batch(plan, p, Traits::kChannelBytes, Traits::kFirstRows)) {
    return false;
  }
  const int64_t across = int64_t{plan.groups} * plan.stretches;
  if (across * divide_up(p.batch, plan.images) < least_units) {
    return false;
  }
  constexpr int64_t kMostBytes = 224 * 1024; // of a multiprocessor
  constexpr int64_t kRest = Traits::kHead + Traits::kResultsBytes;
  plan.stages = std::clamp<int64_t>(
      (kMostBytes / Traits::kBlocks - kRest) / plan.stage_bytes, 2, kMostStages);
  const int64_t shared = kRest + plan.stages * plan.stage_bytes;
  ColumnPhases<> maps;
  if (!has_shared(shared) ||
      !map_column_phases<Traits::kChannelBytes>(
          maps,
          pass.dst,
          plan.stretch,
          pass.src,
          plan.box_columns,
          plan.images,
          p.dilation_width,
          p.padding_width)) {
    return false;
  }
  const int64_t blocks = plan_box_shares(
      plan, resident_blocks(kernel, Traits::kThreads, shared), Traits::kTapRows - 1);
  if (plan.stretches > kMostGridRows || blocks / across > kMostGridRows) {
    return false;
  }
  const dim3 grid(plan.groups, plan.stretches, blocks / across);
  launch_kernel(
      kernel,
      grid,
      Traits::kThreads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      maps,
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      plan);
  return true;
}

// Dilated 5 x 5 whose phases are no wider: 384@14, dilation 2, of 128 images 22.5 to 23.7 us by boxes, 24 here.
constexpr int64_t kNarrowPhase = kSegment;

bool pixel_batch_pass(const ForwardPass& pass, const Params& params, const UnitStridePass& p) {
  const Type type = pass.src.type();
  if (!params.channels_last || params.multiplier != 1 || params.stride_height != 1 ||
      params.stride_width != 1 || !is_16_bit(type) || pass.dst.numel() == 0 ||
      pass.src.numel() == 0 || p.padding_height < 0 ||
      p.padding_height > p.dilation_height * (p.kernel_height - 1) ||
      p.src_height < p.dilation_height || p.dst_height < p.dilation_height ||
      p.kernel_height != p.kernel_width || !march_fits_32_bits(params) || !boxes_take(pass.src) ||
      !boxes_take(pass.dst) || !device_has_boxes()) {
    return false;
  }
  const bool narrow =
      p.dilation_width > 1 && divide_up(p.dst_width, p.dilation_width) <= kNarrowPhase;
  // By 64 bytes of channels a block, or by 32 where that would leave few blocks.
  const auto with_window = [&](auto scalar, auto window) {
    using scalar_t = decltype(scalar);
    constexpr int kWindow = decltype(window)::value;
    return launch_pixel_batch<PixelBatchTraits<scalar_t, kWindow, 64>>(pass, p, kLeastUnits) ||
        launch_pixel_batch<PixelBatchTraits<scalar_t, kWindow, 32>>(pass, p, 0);
  };
  const auto with_scalar = [&](auto scalar) {
    switch (p.kernel_height) {
      case 5:
        return !narrow && with_window(scalar, std::integral_constant<int, 5>());
      case 7:
        return with_window(scalar, std::integral_constant<int, 7>());
      default:
        return false;
    }
  };
  return type == Type::kHalf ? with_scalar(c10::Half()) : with_scalar(c10::BFloat16());
}

#else

bool pixel_batch_pass(const ForwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

} // namespace

bool pixel_batch_forward(const ForwardPass& pass, const Params& p) {
  return pixel_batch_pass(pass, p, unit_stride_pass(p, pass.grad_input));
}

// grad_weight and grad_bias of depthwise_conv2d_ext in channels-last for float16 and bfloat16, 5 x 5
// and 7 x 7 at stride 1: on the tensor cores, with the batch as the inner dimension of matrices.
//
// As in BatchMarch.cu the sums of a row of taps are, for an octet of columns of
// grad_output,
//   [columns of the input that its taps meet][8 columns] += input row, transposed, . grad_output row
// over 16 images of a channel; entry (m, n) belongs to tap m - n of the row. A warp has four channels
// of one octet and marches down the rows: the rows of grad_output that a row of the input meets stay in
// registers, and so do the sums, four matrices for each row of taps, for the whole march. Diagonals
// are added once, at the end. A row of ones beneath the columns of the input makes the bias out of the
// middle row of taps.
//
// Rows come as boxes (Boxes.cuh) of [16 images][columns][32 channels], with zeros
// outside the image. A lane wants two images side by side in a word, of one column and channel: it
// loads four channels of either image at once and puts their halves together, 12 loads and 24
// permutations for a row's 28 products of 7 x 7, while those of the row before are multiplied. All
// lanes of a warp read the same channels, so that it is columns and images that must spread them over
// the banks: boxes come swizzled, which makes eight neighbouring pixels eight different places, and
// an image takes a number of columns in a box that is no multiple of four.
//
// A block has 32 channels, one octet (with a dilation of one phase of columns) and a share of all rows of
// all groups of images and phases of rows; neighbouring blocks have the other channels and octets of the
// same rows, so that what both read comes from device memory once. It writes one partial, and
// add_partials() adds those in order.
//
// Where a column does not exist there is a zero, and a zero is multiplied: a sum that is NaN is taken
// again, tap by tap.

namespace {

#if CUDART_VERSION >= 12000

struct PixelBatchWeight : UnitStridePass { // of multiplier 1
  int32_t phase_rows; // of the first phase; where others have one less, it comes as zeros
  int32_t rows; // of all groups of images and phases
  int32_t share; // of a block
  int32_t octets; // of a phase of columns
};

// From a row to the next of its phase.
template <typename Traits>
__device__ __forceinline__ int row_step(const PixelBatchWeight& p) {
  return Traits::kDilated ? p.dilation_height : 1;
}

// The phase of columns that a block has.
template <typename Traits>
__device__ __forceinline__ int column_phase(const PixelBatchWeight& p) {
  return Traits::kDilated ? static_cast<int>(blockIdx.y) / p.octets : 0;
}

// Where boxes begin in shared memory, behind the ring's head.
constexpr int kRingBytes = 1024;

// Columns of an image in a box: neighbours of the second image that a lane reads fall into other banks.
constexpr int spread_columns(int columns) {
  return columns % 4 == 0 ? columns + 1 : columns;
}

// Dilations have kernels of their own: by one for both 1152@7 k5 took 20.3 us for 19.6, 768@7 k7 15 for 14.5,
// which wait for each step of a block's begin.
template <typename scalar_t_, int kSide_, bool kDilated_>
struct PixelBatchWeightTraits {
  using scalar_t = scalar_t_;
  static constexpr int kSide = kSide_; // of the window
  static constexpr bool kDilated = kDilated_;
  using Phases = ColumnPhases<kDilated ? kMostColumnPhases : 1>;
  static constexpr int kTaps = kSide * kSide;
  static constexpr int kReach = kSide / 2;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kChannels = kWarps * kQuad;
  static constexpr int kPixelBytes = kChannels * 2;
  static constexpr int kPatternBytes = kSwizzlePixels * kPixelBytes; // of the swizzle
  static constexpr int kInputColumns = spread_columns(kOctet + kSide - 1);
  static constexpr int kGradColumns = spread_columns(kOctet);
  static constexpr int kInputBytes = kTileImages * kInputColumns * kPixelBytes;
  static constexpr int kGradBytes = kTileImages * kGradColumns * kPixelBytes;
  static constexpr int kStageBytes = kInputBytes + kGradBytes;
  // More are slower: 240@28 k5 of 128 images 42 us by 8, 37.5 by 5, 46.5 by 3; 96@56 k7 of 64 33.6,
  // 32.4 and 39.1.
  static constexpr int kStages = 5;
  static constexpr int kOnes = kMatrixRows - 1; // the row of ones
  // Sums of a channel in shared memory; 32 channels spread over the banks.
  static constexpr int kTapMatrix = kMatrixRows * kOctet;
  static constexpr int kChannelSums = kSide * kTapMatrix + 2;
  static constexpr int kSumsBytes = kChannels * kChannelSums * 4;
  static_assert(kOctet + kSide - 1 <= kOnes && kRingBytes % kPatternBytes == 0);
  static_assert(kInputBytes % kPatternBytes == 0 && kGradBytes % kPatternBytes == 0);
};

// Rows of the input that follow each other, in a block's share, of one phase of a group of images. Step s
// brings row first_row + s of grad_output and, of the input, the one kReach above, if they exist and are
// wanted.
struct RowPiece {
  int32_t image;
  int32_t phase;
  int32_t first_row;
  int32_t steps;
  int32_t first_input; // step
  int32_t last_grads; // step, exclusive
};

struct RowPieces {
  int32_t image;
  int32_t phase;
  int32_t row;
  int32_t rows_left;

  __device__ __forceinline__ RowPieces(const PixelBatchWeight& p, int phases) {
    const int first = static_cast<int>(blockIdx.z) * p.share;
    const int item = first / p.phase_rows;
    const int group = item / phases;
    image = group * kTileImages;
    phase = item - group * phases;
    row = first - item * p.phase_rows;
    rows_left = min(p.share, p.rows - first);
  }

  template <typename Traits>
  __device__ __forceinline__ RowPiece next(const PixelBatchWeight& p) {
    const int rows = min(p.phase_rows - row, rows_left);
    const int beyond = row + rows + Traits::kReach;
    RowPiece piece;
    piece.image = image;
    piece.phase = phase;
    piece.first_row = max(row - Traits::kReach, 0);
    piece.steps = beyond - piece.first_row;
    piece.first_input = row + Traits::kReach - piece.first_row;
    piece.last_grads = min(beyond, p.phase_rows) - piece.first_row;
    row = 0;
    rows_left -= rows;
    if (++phase == row_step<Traits>(p)) {
      phase = 0;
      image += kTileImages;
    }
    return piece;
  }
};

// A row of four channels of 16 images, of kOctets octets of columns: places [first or second eight
// images][octet].
template <typename Traits, int kOctets, int kColumns>
struct RowPairs {
  // Where a lane reads in a box: column `row` of images 2 pair and 2 pair + 1. Eight columns or images
  // further on are as many whole patterns of the swizzle further on.
  struct Places {
    int at[2];

    __device__ __forceinline__ Places(int quad, const Lane& lane) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pixel = (2 * lane.pair + i) * kColumns + lane.row;
        at[i] = swizzled<Traits::kPixelBytes>(pixel, quad * kQuadBytes);
        // As a word that the compiler knows nothing of: it would be made again for each row.
        asm volatile("" : "+r"(at[i]));
      }
    }
  };

  // As they lie in memory, of an image and the next.
  struct Raw {
    uint2 words[2 * kOctets][2];

    __device__ __forceinline__ void load(const char* box, const Places& places) {
#pragma unroll
      for (int i = 0; i < 2 * kOctets; ++i) {
        const int pixels = (i % kOctets + i / kOctets * kColumns) * kOctet;
        const char* const from = box + pixels * Traits::kPixelBytes;
        words[i][0] = *reinterpret_cast<const uint2*>(from + places.at[0]);
        words[i][1] = *reinterpret_cast<const uint2*>(from + places.at[1]);
      }
    }
  };

  // As the instructions take them: of a channel, two images side by side in a word.
  uint32_t words[kQuad][2 * kOctets];

  __device__ __forceinline__ void arrange(const Raw& raw) {
    constexpr int kLow = 0x5410;
    constexpr int kHigh = 0x7632;
#pragma unroll
    for (int i = 0; i < 2 * kOctets; ++i) {
      const uint2 even = raw.words[i][0];
      const uint2 odd = raw.words[i][1];
      words[0][i] = __byte_perm(even.x, odd.x, kLow);
      words[1][i] = __byte_perm(even.x, odd.x, kHigh);
      words[2][i] = __byte_perm(even.y, odd.y, kLow);
      words[3][i] = __byte_perm(even.y, odd.y, kHigh);
      // Here and now: done later, what is loaded meanwhile would have to be moved out of the way.
      asm volatile("" : "+r"(words[0][i]), "+r"(words[1][i]), "+r"(words[2][i]), "+r"(words[3][i]));
    }
  }
};

// What a step of a block's share brings.
struct StepRows {
  int32_t image;
  int32_t row; // of grad_output; that of the input is kReach of its phase above
  int32_t has_grads;
  int32_t has_input;
};

// The steps of a share, by all threads; how many they are.
template <typename Traits>
__device__ __forceinline__ int write_steps(
    StepRows* steps,
    RowPieces pieces,
    const PixelBatchWeight& p) {
  int count = 0;
#pragma unroll 1
  while (pieces.rows_left > 0) {
    const RowPiece piece = pieces.template next<Traits>(p);
    for (int i = threadIdx.x; i < piece.steps; i += Traits::kThreads) {
      steps[count + i] = {
          piece.image,
          piece.phase + (piece.first_row + i) * row_step<Traits>(p),
          i < piece.last_grads,
          i >= piece.first_input};
    }
    count += piece.steps;
  }
  return count;
}

// One tap (kTaps: the bias) of one channel over a block's share, inside the image only.
template <typename Traits>
__device__ __noinline__ float careful_share(
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const PixelBatchWeight& p,
    int channel,
    int tap) {
  const bool bias = tap == Traits::kTaps;
  const int down = bias ? 0 : (tap / Traits::kSide - Traits::kReach) * p.dilation_height;
  const int right = bias ? 0 : (tap % Traits::kSide - Traits::kReach) * p.dilation_width;
  const int phase = column_phase<Traits>(p);
  const int first_column = (static_cast<int>(blockIdx.y) - phase * p.octets) * kOctet;
  const int first = static_cast<int>(blockIdx.z) * p.share;
  const int last = min(first + p.share, p.rows);
  float sum = 0.0f;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    const int item = i / p.phase_rows;
    const int h = item % p.dilation_height + i % p.phase_rows * p.dilation_height;
    const int row = h - down;
    if (h >= p.src_height || row < 0 || row >= p.dst_height) {
      continue;
    }
    const int image = item / p.dilation_height * kTileImages;
#pragma unroll 1
    for (int j = 0; j < kTileImages * kOctet; ++j) {
      const int n = image + j / kOctet;
      const int column = phase + (first_column + j % kOctet) * p.dilation_width;
      const int w = column + right;
      if (n < p.batch && column < p.dst_width && w >= 0 && w < p.src_width) {
        const float grad = static_cast<float>(
            grad_output[((n * p.dst_height + row) * p.dst_width + column) * p.channels + channel]);
        sum += bias ? grad
                    : grad *
                static_cast<float>(
                          input[((n * p.src_height + h) * p.src_width + w) * p.channels + channel]);
      }
    }
  }
  return sum;
}

// The taps of a block's channels from their matrices: a lane has a channel, a warp every eighth tap.
template <typename Traits>
__device__ __forceinline__ void write_taps(
    float* partial,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const float* matrices,
    const PixelBatchWeight& p) {
  static_assert(Traits::kChannels == kWarpSize);
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int channel = static_cast<int>(blockIdx.x) * Traits::kChannels + lane;
  if (channel >= p.channels) {
    return;
  }
  const int chunk = blockIdx.z * gridDim.y + blockIdx.y;
  float* const to =
      partial + static_cast<int64_t>(chunk) * (Traits::kTaps + kBiasRows) * p.channels + channel;
  // Not unrolled: it is done but once.
#pragma unroll 1
  for (int tap = warp; tap <= Traits::kTaps; tap += Traits::kWarps) {
    const bool bias = tap == Traits::kTaps;
    const int row = bias ? Traits::kReach * kMatrixRows + Traits::kOnes
                         : tap / Traits::kSide * kMatrixRows + tap % Traits::kSide;
    const float* const from = matrices + lane * Traits::kChannelSums + row * kOctet;
    const int next = bias ? 1 : kOctet + 1;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kOctet; ++n) {
      sum += from[n * next];
    }
    if (isnan(sum)) {
      sum = careful_share<Traits>(grad_output, input, p, channel, tap);
    }
    if (bias) {
      write_bias(to + tap * p.channels, p.channels, sum);
    } else {
      to[tap * p.channels] = sum;
    }
  }
}

// grid: groups of channels, octets of columns of all phases, shares of rows.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, 1)
__global__ void pixel_batch_weight_kernel(
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const __grid_constant__ typename Traits::Phases maps, // dst is grad_output, src the input
    const __grid_constant__ PixelBatchWeight p) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  using Columns = RowPairs<Traits, 2, Traits::kInputColumns>;
  using Grads = RowPairs<Traits, 1, Traits::kGradColumns>;
  constexpr int kSide = Traits::kSide;
  extern __shared__ __align__(kRingBytes) char shared[];
  BoxRing ring(shared + kRingBytes - kRingHead, Traits::kStages, Traits::kStageBytes);
  StepRows* const steps =
      reinterpret_cast<StepRows*>(shared + kRingBytes + Traits::kStages * Traits::kStageBytes);
  RowPieces pieces(p, row_step<Traits>(p));
  const int all_steps = write_steps<Traits>(steps, pieces, p);
  __syncthreads();

  const int warp = threadIdx.x / kWarpSize;
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  const int first_channel = static_cast<int>(blockIdx.x) * Traits::kChannels;
  const int phase = column_phase<Traits>(p);
  const int first_column = (static_cast<int>(blockIdx.y) - phase * p.octets) * kOctet;
  const int left = first_column - Traits::kReach;
  const CUtensorMap& grads_map = maps.dst[phase];
  const CUtensorMap& input_map = maps.src[phase];
  // By one thread, into a stage that is free.
  const auto ask = [&](int step) {
    const StepRows rows = steps[step];
    const int bytes =
        (rows.has_input ? Traits::kInputBytes : 0) + (rows.has_grads ? Traits::kGradBytes : 0);
    ring.fill(bytes, [&](uint32_t to, uint32_t barrier) {
      if (rows.has_grads) {
        const uint32_t behind = to + Traits::kInputBytes;
        load_box(behind, barrier, grads_map, first_channel, first_column, rows.row, rows.image);
      }
      if (rows.has_input) {
        const int row = rows.row - Traits::kReach * row_step<Traits>(p);
        load_box(to, barrier, input_map, first_channel, left, row, rows.image);
      }
    });
  };
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int step = 0; step < min(Traits::kStages - 1, all_steps); ++step) {
      ask(step);
    }
  }

  const Lane at;
  const typename Columns::Places input_at(warp, at);
  const typename Grads::Places grads_at(warp, at);
  const bool is_ones = at.row + kOctet == Traits::kOnes;
  typename Columns::Raw raw_columns{};
  typename Grads::Raw raw_grads{};
  bool has_input = false;
  bool has_grads = false;
  int next = 0; // the step whose rows are loaded next
  const auto load_next = [&]() {
    if (next >= all_steps) {
      return;
    }
    has_grads = steps[next].has_grads;
    has_input = steps[next].has_input;
    const char* const stage = ring.wait();
    if (has_grads) {
      raw_grads.load(stage + Traits::kInputBytes, grads_at);
    }
    if (has_input) {
      raw_columns.load(stage, input_at);
    }
    // Warps ask in turn.
    const int ahead = next + Traits::kStages - 1;
    if (next % Traits::kWarps == warp && ahead < all_steps && first_lane) {
      ring.take_turn();
      ask(ahead);
    }
    next += 1;
    ring.release();
  };
  load_next();
  float sums[kQuad][kSide][4] = {};
#pragma unroll 1
  while (pieces.rows_left > 0) {
    const RowPiece piece = pieces.template next<Traits>(p);
    Grads grads[kSide] = {}; // that of step s in slot s % kSide
#pragma unroll 1
    for (int first = 0; first < piece.steps; first += kSide) {
      // Unrolled: a row stays in the registers of its slot.
#pragma unroll
      for (int u = 0; u < kSide; ++u) {
        if (first + u >= piece.steps) {
          break;
        }
        if (has_grads) {
          grads[u].arrange(raw_grads);
        } else {
          grads[u] = {};
        }
        Columns columns;
        columns.arrange(raw_columns);
        const bool multiplies = has_input;
        load_next(); // while this step's are multiplied
        if (!multiplies) {
          continue;
        }
#pragma unroll
        for (int c = 0; c < kQuad; ++c) {
          const uint32_t (&column)[4] = columns.words[c];
          const uint32_t low = is_ones ? kTwoOnes<scalar_t> : column[1];
          const uint32_t high = is_ones ? kTwoOnes<scalar_t> : column[3];
#pragma unroll
          for (int kh = 0; kh < kSide; ++kh) {
            const uint32_t (&grad)[2] = grads[(u - kh + kSide) % kSide].words[c];
            multiply_16<scalar_t>(sums[c][kh], column[0], low, column[2], high, grad[0], grad[1]);
          }
        }
      }
    }
  }

  // The sums of all channels, in the ring's place.
  __syncthreads();
  float* const matrices = reinterpret_cast<float*>(shared + kRingBytes);
#pragma unroll
  for (int i = 0; i < kQuad * kSide * 2; ++i) {
    const int c = i / (2 * kSide);
    const int kh = i / 2 % kSide;
    const int half = i % 2;
    const int row = kh * kMatrixRows + half * kOctet + at.row;
    float* const to = matrices + (warp * kQuad + c) * Traits::kChannelSums + row * kOctet;
    *reinterpret_cast<float2*>(to + 2 * at.pair) =
        make_float2(sums[c][kh][2 * half], sums[c][kh][2 * half + 1]);
  }
  __syncthreads();
  write_taps<Traits>(partial, grad_output, input, matrices, p);
#endif
}

// Rows of a block's share, of `rows` in all that `across` blocks side by side have: with which the
// multiprocessors() are done soonest.
inline int64_t plan_share(int64_t rows, int64_t height, int64_t across, int64_t overhang) {
  // Chains of a sum are no longer.
  constexpr int64_t kMostRows = 256;
  constexpr int64_t kMostTurns = 4; // of a multiprocessor
  constexpr int64_t kBegin = 10; // rows that a block's begin and end take
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t best = 1;
  for (int64_t turns = 1; turns <= kMostTurns; ++turns) {
    const int64_t sets = std::max<int64_t>(1, turns * multiprocessors() / across);
    const int64_t share = std::min(kMostRows, box_share(rows, sets, height, overhang));
    const int64_t blocks = divide_up(rows, share) * across;
    const int64_t time = divide_up(blocks, multiprocessors()) * (share + kBegin);
    if (time < least) {
      least = time;
      best = share;
    }
  }
  return best;
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int64_t kOverhang = 2 * Traits::kReach;
  PixelBatchWeight s{};
  set_unit_stride_pass(s, params);
  const int64_t groups = divide_up(s.channels, Traits::kChannels);
  s.octets = divide_up(divide_up(s.src_width, s.dilation_width), kOctet);
  const int64_t octets = s.octets * s.dilation_width;
  s.phase_rows = divide_up(s.src_height, s.dilation_height);
  s.rows = divide_up(s.batch, kTileImages) * s.dilation_height * s.phase_rows;
  s.share = plan_share(s.rows, s.phase_rows, groups * octets, kOverhang);
  const int64_t shares = divide_up(s.rows, s.share);
  const int64_t steps = s.share + kOverhang * (divide_up(s.share, s.phase_rows) + 1);
  const int64_t rings = Traits::kStages * Traits::kStageBytes + steps * sizeof(StepRows);
  const size_t bytes = kRingBytes + std::max<int64_t>(rings, Traits::kSumsBytes);
  typename Traits::Phases maps;
  constexpr auto kernel = pixel_batch_weight_kernel<Traits>;
  if (!compiled_for_sm_90<kernel>() || !has_shared(bytes) || octets > kMostGridRows ||
      shares > kMostGridRows ||
      !map_column_phases<Traits::kPixelBytes>(
          maps,
          pass.grad_output,
          Traits::kGradColumns,
          pass.input,
          Traits::kInputColumns,
          kTileImages,
          s.dilation_width,
          s.padding_width)) {
    return false;
  }
  const Operand partial = empty_partial(octets * shares, params);
  launch_kernel(
      kernel,
      dim3(groups, octets, shares),
      Traits::kThreads,
      bytes,
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      maps,
      s);
  add_partials(pass.grad_weight, pass.grad_bias, partial, octets * shares, params);
  return true;
}

#endif

} // namespace

bool pixel_batch_grad_weight(const BackwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  constexpr int64_t kLeastChannels = 16; // half of a block's
  constexpr int64_t kLeastImages = kOctet; // 96@56 k7 of 8 images 21.6 us by boxes, 16.7 here
  // Of matrices, for 5 x 5: 96@56 of 8 images 14.8 us by boxes, 15.5 here.
  constexpr double kLeastFill = .75;
  const Type type = pass.input.type();
  const int64_t side = p.kernel_width;
  if (!p.channels_last || p.multiplier != 1 || !is_16_bit(type) || !keeps_size(p) ||
      p.kernel_height != side || p.padding_height != side / 2 * p.dilation_height ||
      p.padding_width != side / 2 * p.dilation_width || p.input_height < p.dilation_height ||
      p.channels < kLeastChannels || p.batch < kLeastImages || pass.input.numel() == 0 ||
      !march_fits_32_bits(p) || !boxes_take(pass.input) || !boxes_take(pass.grad_output) ||
      !device_has_boxes()) {
    return false;
  }
  const auto with_dilation = [&](auto fixed, auto dilated) {
    constexpr int kSide = decltype(fixed)::value;
    constexpr bool kDilated = decltype(dilated)::value;
    return type == Type::kHalf
        ? launch<PixelBatchWeightTraits<c10::Half, kSide, kDilated>>(pass, p)
        : launch<PixelBatchWeightTraits<c10::BFloat16, kSide, kDilated>>(pass, p);
  };
  const auto with_type = [&](auto fixed) {
    return p.dilation_height > 1 || p.dilation_width > 1 ? with_dilation(fixed, std::true_type())
                                                         : with_dilation(fixed, std::false_type());
  };
  const double room = divide_up(p.batch, kTileImages) * kTileImages;
  return side == 7                                ? with_type(std::integral_constant<int, 7>())
      : side == 5 && p.batch >= kLeastFill * room ? with_type(std::integral_constant<int, 5>())
                                                  : false;
#else
  return false;
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
