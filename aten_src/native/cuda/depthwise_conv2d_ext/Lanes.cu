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
  constexpr int64_t kLeastBlocks = 66;
  const int64_t shared = plan<Traits>(l);
  if (shared == 0 || shared > kMostShared) {
    return false;
  }
  const dim3 grid(
      l.row_tiles * divide_up(l.batch, kWarpSize), divide_up(l.channels, l.block_channels));
  constexpr size_t kAlignment = Traits::kWords * sizeof(float);
  if (static_cast<int64_t>(grid.x) * grid.y < kLeastBlocks ||
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

} // namespace at::native::depthwise_conv2d_ext_cuda
