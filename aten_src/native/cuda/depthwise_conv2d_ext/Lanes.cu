// depthwise_conv2d_ext with large windows in float32, at stride 1 without dilation, many images at a
// time: the lanes of a warp are 32 images of one channel.
//
// The operation is bound by multiply-adds, so that everything else has to be rare. With the batch
// across the lanes all that depends on the position is the same for a whole warp: a tap is one
// broadcast of shared memory, four taps one load; rows and taps that meet nothing of the image are
// passed over by all lanes together, so that an output of 27 x 27 on 14 x 14 takes 196 taps of 729. A
// lane keeps a tile of kRows x kColumns sums of its plane. For a row of src it takes kColumns values
// into registers; they meet the tile's columns along the diagonals of a matrix of taps,
//   dst[row][t] += src[h][s] * tap[kh][s - t + padding], kh = h - row + padding,
// so that a value is used up to kColumns x kRows times and a tap up to kColumns times for one load each.
// A plane of 7 x 7 lies in registers as a whole, and a tap is loaded once for all of it. All of that is
// unrolled, and of the matrix only what lies inside the tile's reach is there. Wider planes are several
// such blocks of columns, and a tile takes the neighbouring blocks of src too. grad_input is the same
// with flipped taps.
//
// Rows of src come into shared memory by asynchronous copies, some at a time, while the rows before
// them are computed with. An image lies an odd number of words from the next, so that neither the
// copies nor the lanes meet in a bank. Results leave through shared memory too, in whole runs.
//
// A single chain of additions a result was 1.01 to 1.10 times as far off as upstream's, in the mean
// square, so that two warps share a tile: one takes the even rows of src, the other the odd ones (.70
// to .79). Where a tile has but one warp, what a row of src gives a row of dst is summed by itself.
//
// Channels-last tensors are copied to plane order and back, as for the other large windows.
//
// Where a tap or a column does not exist there is a zero, and a zero is multiplied: a result that is
// NaN is taken again, tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Lanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kTapVector = 4; // taps of a load
constexpr int kStages = 2;
constexpr int kBlocks = 2; // a multiprocessor, by the registers

struct Lanes : UnitStridePass { // of multiplier 1
  int32_t column_blocks; // of a plane
  int32_t row_groups; // of kRows rows, of a block
  int32_t tile_rows; // of dst, of a block
  int32_t row_tiles;
  int32_t block_channels; // more than one only where a block has whole planes
  int32_t source_pitch; // words from one image to the next
  int32_t result_pitch;
  int32_t stage_words;
};

template <
    int kColumns_,
    int kRows_,
    int kReach_,
    bool kSides_,
    int kSplits_,
    int kChunkRows_,
    int kBlockChannels_,
    int kSourceRows_>
struct LanesTraits {
  static constexpr int kColumns = kColumns_; // of a lane's tile
  static constexpr int kRows = kRows_;
  static constexpr int kReach = kReach_; // columns from src to dst, at most
  static constexpr bool kSides = kSides_; // whether a plane has several blocks of columns
  static constexpr int kSplits = kSplits_; // warps that share a tile, each with its rows of src
  static constexpr int kChunkRows = kChunkRows_; // rows of src that are copied at a time
  static constexpr int kBlockChannels = kBlockChannels_; // of whole planes
  // Rows of src in registers at a time. More than one only where they are the whole plane's.
  static constexpr int kSourceRows = kSourceRows_;
  // Whether what a row of src gives is summed by itself first.
  static constexpr bool kRowSums = kSplits == 1;
  // Words that move together: rows, and so everything else, are whole such vectors.
  static constexpr int kWords = lane_words(kColumns);
  static constexpr int kVectors = (2 * kReach + kTapVector) / kTapVector; // of a row of taps
  static constexpr int kTapPitch = kVectors * kTapVector;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarpSize;
  static_assert(kReach <= kColumns);
};

// What is the same for a whole warp.
struct WarpTile {
  int split;
  int column_block;
  int channel; // of the block's
  int row; // the first
};

// Rows of taps of a block's channels, each from the one kReach to the left of the middle on.
template <typename Traits>
__device__ __forceinline__ void stage_lane_taps(
    float* to,
    const float* weight,
    int first_channel,
    int channels,
    const Lanes& p) {
  constexpr int kAtOnce = 8; // loads in flight
  constexpr int kPitch = Traits::kTapPitch;
  const int count = channels * p.kernel_height * kPitch;
  const int kernel_size = p.kernel_height * p.kernel_width;
  for (int first = threadIdx.x; first < count; first += kAtOnce * blockDim.x) {
    float values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * blockDim.x;
      const int row = i / kPitch; // of all channels
      const int kw = i % kPitch - Traits::kReach + p.padding_width;
      const int tap = row % p.kernel_height * p.kernel_width + kw;
      const int channel = first_channel + row / p.kernel_height;
      values[j] = i < count && kw >= 0 && kw < p.kernel_width
          ? weight[channel * kernel_size + (p.flip ? kernel_size - 1 - tap : tap)]
          : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * blockDim.x;
      if (i < count) {
        to[i] = values[j];
      }
    }
  }
}

// Adds to a tile what rows of src give in the block of columns kSide blocks to the right. `source` is
// where that block begins in the first of them, `taps` the row of taps by which that one meets the
// tile's first row, `kh`.
template <typename Traits, int kSide>
__device__ __forceinline__ void add_columns(
    float (&sums)[Traits::kRows][Traits::kColumns],
    const float* source,
    const float* taps,
    int kh,
    const Lanes& p) {
  constexpr int kColumns = Traits::kColumns;
  constexpr int kReach = Traits::kReach;
  constexpr int kWords = Traits::kWords;
  constexpr int kSourceRows = Traits::kSourceRows;
  float values[kSourceRows][kColumns];
#pragma unroll
  for (int h = 0; h < kSourceRows; ++h) {
#pragma unroll
    for (int s = 0; s < kColumns; s += kWords) {
      if (kSide == 0 || (kSide > 0 && s < kReach) ||
          (kSide < 0 && s + kWords > kColumns - kReach)) {
        read_words<kWords>(values[h] + s, source + h * p.src_width + s);
      }
    }
  }
#pragma unroll
  for (int down = 1 - Traits::kRows; down < kSourceRows; ++down) { // from dst to src
    if (static_cast<uint32_t>(kh + down) >= static_cast<uint32_t>(p.kernel_height)) {
      continue;
    }
    float factors[Traits::kTapPitch];
#pragma unroll
    for (int i = 0; i < Traits::kTapPitch; i += kTapVector) {
      read_words<kTapVector>(factors + i, taps + down * Traits::kTapPitch + i);
    }
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
      const int h = row + down;
      if (h < 0 || h >= kSourceRows) {
        continue;
      }
      float own[kColumns] = {};
      float (&to)[kColumns] = Traits::kRowSums ? own : sums[row];
#pragma unroll
      for (int right = -kReach; right <= kReach; ++right) { // from dst to src
#pragma unroll
        for (int t = 0; t < kColumns; ++t) {
          const int s = t + right - kSide * kColumns;
          if (s >= 0 && s < kColumns) {
            to[t] = fmaf(values[h][s], factors[right + kReach], to[t]);
          }
        }
      }
      if constexpr (Traits::kRowSums) {
#pragma unroll
        for (int t = 0; t < kColumns; ++t) {
          sums[row][t] += own[t];
        }
      }
    }
  }
}

// The lane's results that are NaN again, tap by tap.
template <typename Traits>
__device__ __noinline__ void retake_tile(
    float* results,
    const float* src,
    const float* weight,
    float bias,
    int image,
    int channel,
    const WarpTile& tile,
    const Lanes& p) {
  const int plane = image * p.channels + channel;
  for (int row = tile.row; row < min(p.dst_height, tile.row + Traits::kRows); ++row) {
    for (int t = 0; t < Traits::kColumns; ++t) {
      float* const where = results + (row - tile.row) * p.dst_width + t;
      if (isnan(*where)) {
        *where = careful_output(
            src + plane * p.src_height * p.src_width,
            weight + channel * p.kernel_height * p.kernel_width,
            bias,
            p,
            row,
            tile.column_block * Traits::kColumns + t);
      }
    }
  }
}

// grid: (row tiles x groups of 32 images) x groups of channels.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, kBlocks)
__global__ void lanes_kernel(
    float* __restrict__ dst,
    const float* __restrict__ src,
    const float* __restrict__ weight,
    const float* __restrict__ bias,
    const __grid_constant__ Lanes p) {
  constexpr int kWords = Traits::kWords;
  extern __shared__ uint4 shared_blocks[];
  float* const taps = reinterpret_cast<float*>(shared_blocks);
  float* const source = taps + p.block_channels * p.kernel_height * Traits::kTapPitch;
  float* const results = source; // once nothing is read from there any more

  const int lane = threadIdx.x % kWarpSize;
  // The shuffle tells the compiler that it is the same for all lanes.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int warps = blockDim.x / kWarpSize;
  const int first_row = blockIdx.x % p.row_tiles * p.tile_rows;
  const int first_image = blockIdx.x / p.row_tiles * kWarpSize;
  const int images = min(kWarpSize, p.batch - first_image);
  const int first_channel = blockIdx.y * p.block_channels;
  const int channels = min(p.block_channels, p.channels - first_channel);
  const int last_row = min(p.dst_height, first_row + p.tile_rows);
  WarpTile tile;
  tile.split = warp % Traits::kSplits;
  tile.column_block = warp / Traits::kSplits % p.column_blocks;
  const int group = warp / Traits::kSplits / p.column_blocks;
  tile.row = first_row + group % p.row_groups * Traits::kRows;
  tile.channel = group / p.row_groups;
  const bool works = tile.channel < channels && tile.row < last_row;

  // The rows of src that the block needs and that exist.
  const int top = max(0, first_row - p.padding_height);
  const int bottom = min(p.src_height, last_row - p.padding_height + p.kernel_height - 1);
  const int src_plane = p.src_height * p.src_width;
  const auto load = [&](int row, int stage) {
    const int run = channels * min(Traits::kChunkRows, bottom - row) * p.src_width;
    const float* from =
        src + ((first_image + warp) * p.channels + first_channel) * src_plane + row * p.src_width;
    float* to = source + stage * p.stage_words + warp * p.source_pitch;
    for (int image = warp; image < images; image += warps) {
#pragma unroll 4
      for (int i = lane * kWords; i < run; i += kWarpSize * kWords) {
        copy_words<kWords>(to + i, from + i);
      }
      from += warps * p.channels * src_plane;
      to += warps * p.source_pitch;
    }
    commit_copies();
  };
  if (top < bottom) {
    load(top, 0);
  }
  stage_lane_taps<Traits>(taps, weight, first_channel, channels, p);

  float sums[Traits::kRows][Traits::kColumns] = {};
  int stage = 0;
#pragma unroll 1
  for (int first = top; first < bottom; first += Traits::kChunkRows) {
    wait_for_groups<0>();
    __syncthreads();
    // Into the stage that was used before this barrier.
    if (first + Traits::kChunkRows < bottom) {
      load(first + Traits::kChunkRows, 1 - stage);
    }
    if (works) {
      // Rows outside the tile's reach are left out at once.
      const int reach_top = tile.row - p.padding_height;
      const int reach_bottom = reach_top + Traits::kRows + p.kernel_height - 1;
      const int end = min(min(first + Traits::kChunkRows, bottom), reach_bottom);
      const float* const rows = source + stage * p.stage_words + lane * p.source_pitch +
          tile.channel * src_plane + tile.column_block * Traits::kColumns;
      const float* const channel_taps = taps + tile.channel * p.kernel_height * Traits::kTapPitch;
#pragma unroll 1
      for (int h = first + tile.split * Traits::kSourceRows; h < end;
           h += Traits::kSplits * Traits::kSourceRows) {
        const int kh = h - reach_top;
        if (kh + Traits::kSourceRows > 0) {
          const float* const row = rows + (h - first) * p.src_width;
          const float* const row_taps = channel_taps + kh * Traits::kTapPitch;
          add_columns<Traits, 0>(sums, row, row_taps, kh, p);
          if (Traits::kSides && tile.column_block > 0) {
            add_columns<Traits, -1>(sums, row - Traits::kColumns, row_taps, kh, p);
          }
          if (Traits::kSides && tile.column_block + 1 < p.column_blocks) {
            add_columns<Traits, 1>(sums, row + Traits::kColumns, row_taps, kh, p);
          }
        }
      }
    }
    stage = 1 - stage;
  }

  float* const mine = results + lane * p.result_pitch +
      (tile.channel * p.tile_rows + tile.row - first_row) * p.dst_width +
      tile.column_block * Traits::kColumns;
  const int rows = min(Traits::kRows, last_row - tile.row);
  __syncthreads();
  if constexpr (Traits::kSplits > 1) {
    if (works && tile.split == 1) {
#pragma unroll
      for (int row = 0; row < Traits::kRows; ++row) {
        if (row < rows) {
#pragma unroll
          for (int t = 0; t < Traits::kColumns; t += kWords) {
            write_words<kWords>(mine + row * p.dst_width + t, sums[row] + t);
          }
        }
      }
    }
    __syncthreads();
  }
  if (works && tile.split == 0) {
    const int channel = first_channel + tile.channel;
    const float begin = bias ? bias[channel] : 0.0f;
    bool spoilt = false;
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
      if (row < rows) {
#pragma unroll
        for (int t = 0; t < Traits::kColumns; t += kWords) {
          float* const where = mine + row * p.dst_width + t;
          float others[kWords] = {};
          if constexpr (Traits::kSplits > 1) {
            read_words<kWords>(others, where);
          }
#pragma unroll
          for (int i = 0; i < kWords; ++i) {
            others[i] = sums[row][t + i] + others[i] + begin;
            spoilt = spoilt || isnan(others[i]);
          }
          write_words<kWords>(where, others);
        }
      }
    }
    if (spoilt && lane < images) {
      retake_tile<Traits>(mine, src, weight, begin, first_image + lane, channel, tile, p);
    }
  }
  __syncthreads();
  const int run = channels * (last_row - first_row) * p.dst_width;
  const int dst_plane = p.dst_height * p.dst_width;
  for (int image = warp; image < images; image += warps) {
    float* const to = dst + ((first_image + image) * p.channels + first_channel) * dst_plane +
        first_row * p.dst_width;
    const float* const from = results + image * p.result_pitch;
#pragma unroll 4
    for (int i = lane * kWords; i < run; i += kWarpSize * kWords) {
      float words[kWords];
      read_words<kWords>(words, from + i);
      write_words<kWords>(to + i, words);
    }
  }
}

// An odd number of vectors: lanes that move a vector of each image at once meet in no bank.
template <typename Traits>
int32_t odd_pitch(int64_t words) {
  return (words / Traits::kWords | 1) * Traits::kWords;
}

// Fills in the block's plan; the bytes of shared memory, or none where the tile does not apply.
template <typename Traits>
int64_t plan(Lanes& l) {
  l.column_blocks = l.dst_width / Traits::kColumns;
  l.row_groups = Traits::kWarps / (Traits::kSplits * l.column_blocks * Traits::kBlockChannels);
  l.tile_rows = std::min(l.dst_height, l.row_groups * Traits::kRows);
  l.row_groups = divide_up(l.tile_rows, Traits::kRows);
  l.row_tiles = divide_up(l.dst_height, l.tile_rows);
  // Rows of src that are not needed lie between the channels'.
  const bool whole =
      l.row_tiles == 1 && l.src_height <= Traits::kChunkRows && l.padding_height >= 0;
  if (Traits::kSourceRows > 1 && (!whole || l.src_height != Traits::kSourceRows)) {
    return 0;
  }
  l.block_channels = whole ? Traits::kBlockChannels : 1;
  const int64_t rows = std::min(l.src_height, Traits::kChunkRows);
  l.source_pitch = odd_pitch<Traits>(l.block_channels * rows * l.src_width);
  l.result_pitch =
      odd_pitch<Traits>(static_cast<int64_t>(l.block_channels) * l.tile_rows * l.dst_width);
  l.stage_words = kWarpSize * l.source_pitch;
  const int64_t stages = static_cast<int64_t>(whole ? 1 : kStages) * l.stage_words;
  const int64_t words =
      static_cast<int64_t>(l.block_channels) * l.kernel_height * Traits::kTapPitch +
      std::max(stages, static_cast<int64_t>(kWarpSize) * l.result_pitch);
  return words * static_cast<int64_t>(sizeof(float));
}

template <typename Traits>
bool launch(const ForwardPass& pass, Lanes l) {
  // Fewer blocks than this last longer than all the work does in large_forward_kernel's smaller ones, as
  // an estimate. A little above it this wins: 29 x 29 at 28 x 28 with 17 channels of 32 images 65 -> 32
  // us, 31 x 31 at 56 x 56 with 5 channels 76 -> 46.
  const int64_t least_blocks = multiprocessors() / 2;
  const int64_t shared = plan<Traits>(l);
  if (shared == 0 || shared > kMostShared) {
    return false;
  }
  const dim3 grid(
      l.row_tiles * divide_up(l.batch, kWarpSize), divide_up(l.channels, l.block_channels));
  constexpr size_t kAlignment = Traits::kWords * sizeof(float);
  if (static_cast<int64_t>(grid.x) * grid.y < least_blocks ||
      !is_aligned(pass.src.const_data_ptr(), kAlignment) ||
      !is_aligned(pass.dst.const_data_ptr(), kAlignment)) {
    return false;
  }
  const int threads =
      kWarpSize * Traits::kSplits * l.column_blocks * l.row_groups * l.block_channels;
  launch_kernel(
      lanes_kernel<Traits>,
      grid,
      threads,
      shared,
      pass.dst.mutable_data_ptr<float>(),
      pass.src.const_data_ptr<float>(),
      pass.weight.const_data_ptr<float>(),
      pointer_or_null<float>(pass.bias),
      l);
  return true;
}

// The tiles: columns, rows, reach, sides, warps that share one, rows of a chunk, channels of a block,
// rows of src in registers. Microseconds are those of an H200 with 64 images.
// 13 x 13: 21.7. A row of src in registers at a time 22.7, two warps a tile 26.3. Fewer channels a block
// were slower each time.
using Lanes7 = LanesTraits<7, 7, 6, false, 1, 7, 8, 7>;
// 27 x 27: 69.5. With taps loaded one by one 75.5, a channel a block 77, 4 rows a tile 86, 2 rows in
// single chains 81 to 84.
using Lanes14 = LanesTraits<14, 7, 13, false, 2, 14, 2, 1>;
// 29 x 29: 295. Chunks of 4 or 6 rows 312 and 300; half as many threads 304 to 344; 7 rows of 14
// columns 375 to 426.
using Lanes28 = LanesTraits<28, 2, 14, false, 2, 8, 1, 1>;
// 31 x 31: 830. Chunks of 2, 4 or 8 rows 968, 899 and 948; half as many threads 952 to 1,006.
using Lanes56 = LanesTraits<28, 2, 15, true, 2, 6, 1, 1>;
// 51 x 5 on 56 x 56: 290. Chunks of 2 rows 354; half as many threads 362; 2 rows a tile 316 to 715, 7
// rows of 14 columns 306 to 360.
using LanesNarrow = LanesTraits<28, 3, 2, true, 2, 4, 1, 1>;

// False where no tile is known to win.
bool with_tile(const ForwardPass& pass, const Lanes& l) {
  if (!lanes_are_used(l.batch, least_lanes(l.dst_width))) {
    return false;
  }
  const int reach = std::max(l.padding_width, l.kernel_width - 1 - l.padding_width);
  const auto with = [&](auto traits) {
    using Traits = decltype(traits);
    return reach <= Traits::kReach && launch<Traits>(pass, l);
  };
  switch (l.dst_width) {
    case 7:
      return with(Lanes7());
    case 14:
      return with(Lanes14());
    case 28:
      return reach < kLeastReach28 ? with(LanesNarrow()) : with(Lanes28());
    case 56:
      return reach < kLeastReach56 ? with(LanesNarrow()) : with(Lanes56());
    default:
      return false;
  }
}

bool lanes_pass(const ForwardPass& pass, const Params& p, bool flip) {
  if (!lanes_take(p, pass.src.type(), kLeastLaneTaps) || pass.dst.numel() == 0 ||
      pass.src.numel() == 0) {
    return false;
  }
  Lanes l{};
  set_unit_stride_pass(l, p);
  if (flip) {
    turn_around(l, p);
  }
  return with_tile(pass, l);
}

} // namespace

bool lanes_forward(const ForwardPass& pass, const Params& p) {
  return lanes_pass(pass, p, pass.grad_input);
}

// grad_weight and grad_bias of depthwise_conv2d_ext with large windows in float32, at stride 1 without
// dilation, many images at a time: the lanes of a warp are 32 images of one channel, as in
// Lanes.cu.
//
// A tap's gradient is a sum over images, rows and columns. A lane sums its image's part: a warp has some
// rows of taps, one sum a tap in registers, and marches down grad_output. It takes kGradRows rows of it
// into registers, then the rows of the input that these meet, one after the other; a value of the input
// meets a value of grad_output in the tap that lies their difference away,
//   sum[h' - h][s - t] += input[h'][s] * grad_output[h][t],
// so that each of either is loaded once for up to kColumns multiply-adds. All of that is unrolled, and
// only columns within the tile's reach are there; of a wide plane a warp has a block of columns of
// grad_output, and takes the neighbouring blocks of the input too. Rows outside the image are passed over
// by all lanes together. The warps of a block have neighbouring rows of taps, and share the rows of both
// tensors: these come into a ring in shared memory by asynchronous copies, the next while one step is
// computed. Nothing that is outside an image is multiplied, so that nothing spoils what is not finite.
//
// After some rows the sums of the lanes are added up in a tree that leaves each lane with one or two taps.
// That bounds the chains; it takes about 300 instructions. A block takes all images where there are
// channels enough, so that its sums are the result; else it writes a partial for add_partials().
//
// Microseconds of an H200 with 64 images, by Large.cu and by this: 31 x 31 at 56
// x 56 1,783 and 907, 29 x 29 at 28 x 28 1,080 and 337, 27 x 27 at 14 x 14 599 and 133, 13 x 13 at
// 7 x 7 184 and 31, 51 x 5 at 56 x 56 848 and 362. At the peak of multiply-adds 620, 200, 43, 5 and
// 125.

namespace {

struct LanesWeight : UnitStridePass { // of multiplier 1
  int32_t groups; // of rows of taps, of a block: kTapRows each
  int32_t tap_blocks; // blocks that share a channel's taps
  int32_t chunks; // blocks that share its images
};

template <
    int kColumns_,
    int kColumnBlocks_,
    int kReach_,
    int kTapRows_,
    int kGradRows_,
    int kMostGroups_,
    int kBlocks_>
struct LanesWeightTraits {
  static constexpr int kColumns = kColumns_; // of grad_output, of a warp
  static constexpr int kColumnBlocks = kColumnBlocks_; // of a plane
  static constexpr int kReach = kReach_; // columns from grad_output to the input, at most
  static constexpr int kTapRows = kTapRows_; // of a warp
  static constexpr int kGradRows = kGradRows_; // rows of grad_output in registers
  static constexpr int kMostGroups = kMostGroups_; // of rows of taps, of a block
  static constexpr int kBlocks = kBlocks_; // a multiprocessor
  static constexpr int kWidth = kColumns * kColumnBlocks;
  static constexpr int kWords = lane_words(kColumns);
  static constexpr int kVectors = kWidth / kWords; // of a row
  // Words from image to image of a row, an odd number of vectors: lanes that read a vector each meet in
  // no bank.
  static constexpr int kPitch = (kVectors | 1) * kWords;
  static constexpr int kRowWords = kWarpSize * kPitch;
  static constexpr int kDiagonals = 2 * kReach + 1;
  static constexpr int kSums = kTapRows * kDiagonals;
  static constexpr int kOwn = (kSums + kWarpSize - 1) / kWarpSize; // of a lane, once added up
  static constexpr int kAllSums = kOwn * kWarpSize;
  // Rows of the input that a warp meets in a step, and room for those of a block and the next step's.
  static constexpr int kMet = kTapRows + kGradRows - 1;
  static constexpr int kRing = kMostGroups * kTapRows + 2 * kGradRows - 1;
  static constexpr int kThreads = kWarpSize * kMostGroups * kColumnBlocks;
  static constexpr int64_t kShared =
      static_cast<int64_t>(sizeof(float)) * kRowWords * (kRing + 2 * kGradRows);
  // Products until a lane's sums are added to the others': of six rows of a plane, where sums are few of
  // two to eight. So errors stay about upstream's; with twice as many of them they were 1.5 times those on
  // 14 and 28 columns.
  static constexpr int kChain = kOwn == 1 ? 112 : 6 * kWidth;
  static constexpr int kStepProducts = kGradRows * kColumns;
  static constexpr int kSteps = kChain < 2 * kStepProducts ? 2 : kChain / kStepProducts;
  static_assert(kReach <= kColumns && kShared <= 227 * 1024);
};

// Adds the products of one row of the input, the kMet-th `j`, with the rows of grad_output that it meets
// in the warp's rows of taps. `source` is where the block of columns begins that is kSide blocks to
// the right of grad_output's.
template <typename Traits, int kSide>
__device__ __forceinline__ void add_products(
    float (&sums)[Traits::kAllSums],
    const float* source,
    const float (&grads)[Traits::kGradRows][Traits::kColumns],
    int j) {
  constexpr int kColumns = Traits::kColumns;
  constexpr int kReach = Traits::kReach;
  constexpr int kWords = Traits::kWords;
#pragma unroll
  for (int first = 0; first < kColumns; first += kWords) {
    if ((kSide > 0 && first >= kReach) || (kSide < 0 && first + kWords <= kColumns - kReach)) {
      continue;
    }
    float values[kWords];
    read_words<kWords>(values, source + first);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int g = 0; g < Traits::kGradRows; ++g) {
#pragma unroll
        for (int t = 0; t < kColumns; ++t) {
          const int row = j - g;
          const int right = kSide * kColumns + first + i - t; // from grad_output to the input
          if (row >= 0 && row < Traits::kTapRows && right >= -kReach && right <= kReach) {
            float& sum = sums[row * Traits::kDiagonals + right + kReach];
            sum = fmaf(values[i], grads[g][t], sum);
          }
        }
      }
    }
  }
}

// grid: (blocks of a channel's taps x chunks of images) x channels. Either `partial` is given or the
// gradients, of which grad_bias may be null.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void lanes_grad_weight_kernel(
    float* __restrict__ partial,
    float* __restrict__ grad_weight,
    float* __restrict__ grad_bias,
    const float* __restrict__ grad_output,
    const float* __restrict__ input,
    const __grid_constant__ LanesWeight p) {
  constexpr int kColumns = Traits::kColumns;
  constexpr int kWords = Traits::kWords;
  constexpr int kGradRows = Traits::kGradRows;
  extern __shared__ uint4 shared_blocks[];
  float* const ring = reinterpret_cast<float*>(shared_blocks);
  float* const stages = ring + Traits::kRing * Traits::kRowWords; // rows of grad_output

  const int lane = threadIdx.x % kWarpSize;
  // The shuffle tells the compiler that it is the same for all lanes.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int column_block = warp % Traits::kColumnBlocks;
  const int block_row = warp / Traits::kColumnBlocks * Traits::kTapRows; // of taps
  const int first_row = blockIdx.x % p.tap_blocks * p.groups * Traits::kTapRows;
  const int chunk = blockIdx.x / p.tap_blocks;
  const int channel = blockIdx.y;
  const int tap_row = first_row + block_row;
  // The row of the input that the block's first row of taps meets in the first row of grad_output.
  const int top = first_row - p.padding_height;
  const int block_rows = p.groups * Traits::kTapRows;
  const int src_plane = p.src_height * p.src_width;
  const int dst_plane = p.dst_height * p.dst_width;

  float sums[Traits::kAllSums] = {};
  float totals[Traits::kOwn] = {};
  double bias = 0;
  int pending = 0; // steps
#pragma unroll 1
  for (int first_image = chunk * kWarpSize; first_image < p.batch;
       first_image += p.chunks * kWarpSize) {
    const int images = min(kWarpSize, p.batch - first_image);
    const int first_plane = first_image * p.channels + channel;
    // Lanes without an image have zeros.
    const auto load_row = [&](float* to, const float* from, int plane) {
      for (int i = threadIdx.x; i < kWarpSize * Traits::kVectors; i += blockDim.x) {
        const int image = i / Traits::kVectors;
        const int word = i % Traits::kVectors * kWords;
        // Faster than a branch: 29 x 29 345 -> 337 us, 7 x 7 on 56 x 56 121 -> 114.
        copy_async<kWords* static_cast<int>(sizeof(float))>(
            to + image * Traits::kPitch + word,
            from + image * p.channels * plane + word,
            image < images);
      }
    };
    // Rows [begin, end) of the input from `top` on, as far as they exist, and rows of grad_output.
    const auto load = [&](int begin, int end, int row) {
      for (int r = begin; r < end; ++r) {
        if (top + r >= 0 && top + r < p.src_height) {
          load_row(
              ring + r % Traits::kRing * Traits::kRowWords,
              input + first_plane * src_plane + (top + r) * p.src_width,
              src_plane);
        }
      }
      float* const stage = stages + row / kGradRows % 2 * kGradRows * Traits::kRowWords;
      for (int g = 0; g < kGradRows; ++g) {
        load_row(
            stage + g * Traits::kRowWords,
            grad_output + first_plane * dst_plane + (row + g) * p.dst_width,
            dst_plane);
      }
      commit_copies();
    };
    __syncthreads(); // for the last step of the images before
    load(0, block_rows + kGradRows - 1, 0);
#pragma unroll 1
    for (int row = 0; row < p.dst_height; row += kGradRows) {
      wait_for_groups<0>();
      __syncthreads();
      // Over what was used before this barrier.
      if (row + kGradRows < p.dst_height) {
        const int loaded = row + block_rows + kGradRows - 1;
        load(loaded, loaded + kGradRows, row + kGradRows);
      }
      if (tap_row >= p.kernel_height) {
        continue;
      }
      const int at = lane * Traits::kPitch + column_block * kColumns;
      const float* const stage = stages + row / kGradRows % 2 * kGradRows * Traits::kRowWords + at;
      float grads[kGradRows][kColumns];
#pragma unroll
      for (int g = 0; g < kGradRows; ++g) {
#pragma unroll
        for (int t = 0; t < kColumns; t += kWords) {
          read_words<kWords>(grads[g] + t, stage + g * Traits::kRowWords + t);
        }
      }
      if (tap_row == 0) {
#pragma unroll
        for (int g = 0; g < kGradRows; ++g) {
          float sum = 0.0f;
#pragma unroll
          for (int t = 0; t < kColumns; ++t) {
            sum += grads[g][t];
          }
          bias += sum;
        }
      }
      int slot = (row + block_row) % Traits::kRing;
#pragma unroll
      for (int j = 0; j < Traits::kMet; ++j) {
        const int source_row = top + row + block_row + j;
        const float* const source = ring + slot * Traits::kRowWords + at;
        if (source_row >= 0 && source_row < p.src_height) {
          add_products<Traits, 0>(sums, source, grads, j);
          if (Traits::kColumnBlocks > 1 && column_block > 0) {
            add_products<Traits, -1>(sums, source - kColumns, grads, j);
          }
          if (Traits::kColumnBlocks > 1 && column_block + 1 < Traits::kColumnBlocks) {
            add_products<Traits, 1>(sums, source + kColumns, grads, j);
          }
        }
        slot = slot + 1 == Traits::kRing ? 0 : slot + 1;
      }
      if (++pending == Traits::kSteps) {
        add_lanes(totals, sums, lane);
        pending = 0;
      }
    }
  }
  add_lanes(totals, sums, lane);

  // The blocks of columns in order.
  __syncthreads();
  double* const biases = reinterpret_cast<double*>(stages); // [column block]
#pragma unroll
  for (int i = 0; i < Traits::kOwn; ++i) {
    ring[warp * Traits::kAllSums + lane * Traits::kOwn + i] = totals[i];
  }
  if (tap_row == 0) {
    bias = sum_of_warp(bias);
    if (lane == 0) {
      biases[column_block] = bias;
    }
  }
  __syncthreads();
  const int kernel_size = p.kernel_height * p.kernel_width;
  const int rows = min(block_rows, p.kernel_height - first_row);
  float* const to = partial + chunk * (kernel_size + kBiasRows) * p.channels + channel;
  for (int i = threadIdx.x; i < rows * p.kernel_width; i += blockDim.x) {
    const int row = i / p.kernel_width;
    const int diagonal = i % p.kernel_width - p.padding_width + Traits::kReach;
    const float* const from = ring +
        row / Traits::kTapRows * Traits::kColumnBlocks * Traits::kAllSums +
        row % Traits::kTapRows * Traits::kDiagonals + diagonal;
    float sum = 0.0f;
#pragma unroll
    for (int block = 0; block < Traits::kColumnBlocks; ++block) {
      sum += from[block * Traits::kAllSums];
    }
    const int tap = first_row * p.kernel_width + i;
    if (partial) {
      to[tap * p.channels] = sum;
    } else if (grad_weight) {
      grad_weight[channel * kernel_size + tap] = sum;
    }
  }
  if (first_row == 0 && threadIdx.x == 0) {
    double sum = 0;
#pragma unroll
    for (int block = 0; block < Traits::kColumnBlocks; ++block) {
      sum += biases[block];
    }
    if (partial) {
      write_bias(to + kernel_size * p.channels, p.channels, sum);
    } else if (grad_bias) {
      *(grad_bias + channel) = static_cast<float>(sum);
    }
  }
}

template <typename Traits>
bool launch(const BackwardPass& pass, LanesWeight l, const Params& p) {
  const int64_t wanted_blocks = multiprocessors() * Traits::kBlocks;
  constexpr int64_t kMostChunks = 16;
  constexpr size_t kAlignment = Traits::kWords * sizeof(float);
  if (!has_shared(Traits::kShared)) {
    return false;
  }
  const int64_t groups = divide_up(l.kernel_height, Traits::kTapRows);
  const int64_t image_groups = divide_up(l.batch, kWarpSize);
  l.tap_blocks = divide_up(groups, Traits::kMostGroups);
  l.groups = divide_up(groups, l.tap_blocks);
  const int64_t blocks = static_cast<int64_t>(l.tap_blocks) * l.channels;
  // As many parts of the images as end soonest, by the rounds of blocks on the largest devices.
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t chunks = 1; chunks <= std::min(image_groups, kMostChunks); ++chunks) {
    const int64_t rounds =
        divide_up(blocks * chunks, wanted_blocks) * divide_up(image_groups, chunks);
    if (rounds < least) {
      least = rounds;
      l.chunks = chunks;
    }
  }
  // As in the forward, fewer last longer than the work in smaller blocks.
  if (blocks * l.chunks < wanted_blocks / 4 || l.dst_height % Traits::kGradRows != 0 ||
      !is_aligned(pass.grad_output.const_data_ptr(), kAlignment) ||
      !is_aligned(pass.input.const_data_ptr(), kAlignment)) {
    return false;
  }
  const int64_t partials = l.chunks * (p.kernel_size() + kBiasRows) * l.channels;
  if (partials > std::numeric_limits<int32_t>::max()) {
    return false;
  }
  Operand partial;
  if (l.chunks > 1) {
    partial = empty_partial(l.chunks, p);
  }
  const dim3 grid(l.tap_blocks * l.chunks, l.channels);
  const int threads = kWarpSize * l.groups * Traits::kColumnBlocks;
  launch_kernel(
      lanes_grad_weight_kernel<Traits>,
      grid,
      threads,
      Traits::kShared,
      mutable_pointer_or_null<float>(partial),
      mutable_pointer_or_null<float>(pass.grad_weight),
      mutable_pointer_or_null<float>(pass.grad_bias),
      pass.grad_output.const_data_ptr<float>(),
      pass.input.const_data_ptr<float>(),
      l);
  if (l.chunks > 1) {
    add_partials(pass.grad_weight, pass.grad_bias, partial, l.chunks, p);
  }
  return true;
}

// Columns of a warp, blocks of them, reach, rows of taps, rows of grad_output, groups, blocks.
using LanesWeight7 = LanesWeightTraits<7, 1, 6, 4, 7, 4, 4>;
using LanesWeight14 = LanesWeightTraits<14, 1, 13, 2, 2, 8, 2>;
using LanesWeight28 = LanesWeightTraits<28, 1, 14, 2, 1, 8, 2>;
using LanesWeight56 = LanesWeightTraits<28, 2, 15, 2, 1, 4, 2>;
using LanesWeightSevens28 = LanesWeightTraits<14, 2, 3, 4, 2, 2, 3>;
using LanesWeightSevens56 = LanesWeightTraits<28, 2, 3, 4, 1, 2, 3>;
using LanesWeightNarrow28 = LanesWeightTraits<28, 1, 2, 3, 2, 6, 2>;
// 14 columns and 6 rows of taps a warp 404, 5 rows of taps 373, 6 in two halves of the window 487.
using LanesWeightNarrow56 = LanesWeightTraits<28, 2, 2, 3, 2, 6, 1>;

} // namespace

bool lanes_grad_weight(const BackwardPass& pass, const Params& p) {
  // Of windows 7 wide smaller ones pay too: 7 x 7 on 28 x 28 83 -> 54 us, on 56 x 56 150 -> 116, but what
  // strips take (Strips.cu, 45 and 73).
  constexpr int kSevensReach = 3;
  constexpr int64_t kLeastSevens = 49;
  const int64_t reach = std::max(p.padding_width, p.kernel_width - 1 - p.padding_width);
  const bool sevens = reach == kSevensReach && (p.output_width == 28 || p.output_width == 56);
  if (!lanes_take(p, pass.input.type(), sevens ? kLeastSevens : kLeastLaneTaps) ||
      pass.grad_output.numel() == 0 || pass.input.numel() == 0 ||
      !lanes_are_used(p.batch, least_lanes(p.output_width))) {
    return false;
  }
  LanesWeight l{};
  set_unit_stride_pass(l, p);
  const auto with = [&](auto traits) {
    using Traits = decltype(traits);
    return reach <= Traits::kReach && launch<Traits>(pass, l, p);
  };
  switch (p.output_width) {
    case 7:
      return with(LanesWeight7());
    case 14:
      return with(LanesWeight14());
    case 28:
      return sevens               ? with(LanesWeightSevens28())
          : reach < kLeastReach28 ? with(LanesWeightNarrow28())
                                  : with(LanesWeight28());
    case 56:
      return sevens               ? with(LanesWeightSevens56())
          : reach < kLeastReach56 ? with(LanesWeightNarrow56())
                                  : with(LanesWeight56());
    default:
      return false;
  }
}

} // namespace at::native::depthwise_conv2d_ext_cuda
