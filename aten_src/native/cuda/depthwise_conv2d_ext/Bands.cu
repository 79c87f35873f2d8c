// One object for each DEPTHWISE_TYPE: c10::Half, c10::BFloat16
// Forward and grad_input of depthwise_conv2d_ext for float16 and bfloat16 on the tensor cores.
//
// For one channel and one row of taps, eight dst columns are a product of src columns with a band
// matrix: B[k][n] is the tap that takes src column k to dst column n, or zero. With 16 dst rows as
// the other side that is one matrix instruction for a block of 8 src columns (or two), and
//   dst[16 rows][8 columns] = sum over tap rows and src blocks of src[16 rows][block] · B.
// A band of k taps at stride 1 meets (k + 6) / 8 + 1 blocks of an aligned image, three for k <= 9, so that
// k = 7 takes 24 multiply-adds a tap row for 7 that count; but an instruction does 2,048 of them, and
// what is left is far below what memory takes. Stride, dilation, multiplier and the flip of
// grad_input are all in the band matrices and in the choice of rows, so one kernel does everything;
// the matrices of a block's channel are made once, in shared memory, in the order of the lanes.
//
// A block of threads takes whole rows of a channel (Bands.cuh): a strip of one plane, or planes of several
// images. The 16 rows of an instruction are any rows: of different images first, so that where the window
// is larger than the image only rows inside it are visited. While a tile is computed the next is copied.
// Results go back through shared memory, so that memory sees whole vectors.
//
// Zeros of a band matrix, and zeros that stand in for rows and columns outside the image, are
// multiplied; where the other factor is not finite that leaves a NaN. A result that is NaN is taken
// again, tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Bands.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kBandThreads = 256;
constexpr int64_t kMostShared = 96 * 1024; // two blocks fit into every device since sm_80 but sm_86
constexpr int64_t kMostDoubled = 48 * 1024; // of shared memory, with a second tile under way
constexpr int64_t kMostTileRows = 256;
constexpr int64_t kTileElements = 4096;
inline int64_t threads_at_once() {
  return multiprocessors() * 1536;
}
inline int64_t few_blocks() {
  return multiprocessors() * 2;
}

// How dst columns lie over src columns.
enum class Columns { kSame, kHalf, kDouble };

template <typename scalar_t_, Columns kColumns_, int kBlocks_, int kDiagonals_>
struct BandTraits {
  using scalar_t = scalar_t_;
  static constexpr Columns kColumns = kColumns_;
  static constexpr int kBlocks = kBlocks_; // of dst columns, of a warp
  // Groups of 16 rows of a warp: enough work to be worth its preparation, as registers allow.
  static constexpr int kTiles = kBlocks > 4 ? 1 : kBlocks > 2 ? 2 : 4;
  static constexpr int kDiagonals = kDiagonals_; // src blocks that a dst block takes
  static constexpr int kResident = 2; // blocks of threads on a multiprocessor, at least
  // Two neighbouring dst blocks differ where there are two dst columns to a src column.
  static constexpr int kParities = kColumns == Columns::kDouble ? 2 : 1;
  static constexpr int kBands = kParities * kDiagonals; // matrices of one row of taps
  // The first src block of dst block b, without first_diagonal.
  static constexpr __host__ __device__ int source_block(int b) {
    return kColumns == Columns::kHalf ? 2 * b : kColumns == Columns::kDouble ? b / 2 : b;
  }
  static constexpr int kSourceBlocks = source_block(kBlocks - 1) + kDiagonals;
  static constexpr int kSourcePairs = (kSourceBlocks + 1) / 2;
  static_assert(kParities == 1 || kBlocks % 2 == 0);
};

struct Bands {
  int32_t batch;
  int32_t channels; // of dst
  int32_t sources; // src planes that a dst plane adds up (grad_input with a multiplier)
  int32_t multiplier; // dst planes of one src plane (forward)
  int32_t kernel_height;
  int32_t kernel_width;
  int32_t stride_width;
  int32_t padding_height;
  int32_t padding_width;
  int32_t dilation_height;
  int32_t dilation_width;
  bool grad;
  int32_t first_diagonal;
  // dst row t * phases + phase takes src rows t * row_stride + base(phase) + i * row_step.
  int32_t stride_height;
  int32_t phases;
  int32_t row_stride;
  int32_t row_step;
  int32_t above; // the first src row of tile row 0 over all phases
  // With many rows of taps: rows outside the image are not in the tile but read from a row of zeros,
  // and a row of taps is left out where all rows are.
  bool skips;
  // The tile.
  int32_t images;
  int32_t tile_rows; // of each phase
  int32_t row_tiles;
  int32_t image_groups;
  int32_t buffers;
  Span src;
  Span dst;
  Divider by_tap_row;
  Divider by_images;
  Divider by_units; // groups of rows of a phase and group of columns
  Divider by_column_groups;
};

// What the rows of one phase have in common.
struct Phase {
  int first; // tap row
  int count; // of tap rows
  int base;
  __device__ __forceinline__ Phase(const Bands& p, int phase) {
    if (p.grad) {
      const int shift = phase + p.padding_height;
      first = shift % p.phases;
      base = shift / p.phases;
      count = p.kernel_height > first ? (p.kernel_height - first + p.phases - 1) / p.phases : 0;
    } else {
      first = 0;
      base = -p.padding_height;
      count = p.kernel_height;
    }
  }
};

// The column of taps that takes src column `from` to dst column `to`, both relative, or -1.
__host__ __device__ inline int tap_column(const Bands& p, int from, int to) {
  const int at = p.grad ? to + p.padding_width - from * p.stride_width
                        : from + p.padding_width - to * p.stride_width;
  const int column = at / p.dilation_width;
  return at >= 0 && column * p.dilation_width == at && column < p.kernel_width ? column : -1;
}

// The band matrices of a block's channel: [source][tap row][band][lane], a lane's two
// elements of `b` in one word.
template <typename Traits>
__device__ __forceinline__ void make_bands(
    uint32_t* to,
    const typename Traits::scalar_t* weight,
    const Bands& p,
    int dst_channel) {
  constexpr int kBands = Traits::kBands;
  const int taps = p.kernel_height * p.kernel_width;
  const int tap_rows = p.sources * p.kernel_height;
#pragma unroll 4
  for (int at = threadIdx.x; at < tap_rows * kBands * kWarpSize; at += blockDim.x) {
    const int lane = at % kWarpSize;
    const int band = at / kWarpSize % kBands;
    const int tap_row = at / (kWarpSize * kBands);
    const int plane = p.by_tap_row.quotient(tap_row);
    const int kh = tap_row - plane * p.kernel_height;
    const int channel = dst_channel * p.sources + plane;
    const int from = (band % Traits::kDiagonals + p.first_diagonal) * kBlock + lane % 4 * 2;
    const int dst_column = band / Traits::kDiagonals * kBlock + lane / 4;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int kw = tap_column(p, from + i, dst_column);
      if (kw >= 0) {
        const uint32_t bits = __ldg(
            reinterpret_cast<const unsigned short*>(weight) + static_cast<int64_t>(channel) * taps +
            kh * p.kernel_width + kw);
        word |= bits << (16 * i);
      }
    }
    to[at] = word;
  }
}

template <typename scalar_t>
__device__ __forceinline__ uint32_t pair_of(float low, float high) {
  uint32_t pair = 0;
  if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Where matrix row `row` is: image of the tile and tile row, images innermost, so that rows of one
// instruction are inside the image together.
struct MatrixRow {
  int image;
  int t;
  __device__ __forceinline__ MatrixRow(const Bands& p, int row) {
    t = p.by_images.quotient(row);
    image = row - t * p.images;
  }
};

// What a warp does next.
struct Unit {
  int phase;
  int first_block; // of dst columns
  int first_row; // of matrix rows
  template <typename Traits>
  static __device__ __forceinline__ Unit of(const Bands& p, int index) {
    Unit u;
    int rest = p.by_units.quotient(index);
    u.first_row = (index - rest * static_cast<int>(p.by_units.by)) * Traits::kTiles * kMatrixRows;
    index = rest;
    rest = p.by_column_groups.quotient(index);
    u.first_block = (index - rest * static_cast<int>(p.by_column_groups.by)) * Traits::kBlocks;
    u.phase = rest;
    return u;
  }
};

// What does not change from one group of images to the next.
template <typename Traits>
struct Prepared {
  static constexpr int kHalves = 2 * Traits::kTiles;

  Unit unit;
  int tap_rows;
  const uint32_t* bands; // of the first row of taps
  float begin;
  // Of the rows that this lane gives to ldmatrix: where they are in the tile for the first row of taps,
  // and their row of the image.
  int offsets[Traits::kTiles];
  int rows[Traits::kTiles];
  int results[kHalves]; // where the lane's results go in the dst tile, or -1

  template <typename scalar_t>
  __device__ __forceinline__ Prepared(
      const Bands& p,
      int index,
      const uint32_t* all_bands,
      const scalar_t* bias,
      int channel,
      int first_t,
      int first_src_row) {
    const int lane = threadIdx.x % kWarpSize;
    unit = Unit::of<Traits>(p, index);
    const Phase phase(p, unit.phase);
    tap_rows = phase.count;
    bands = all_bands + phase.first * Traits::kBands * kWarpSize + lane;
    begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
    const int block =
        Traits::source_block(unit.first_block) + p.first_diagonal + p.src.left + lane / kMatrixRows;
    const int last_row = p.images * p.tile_rows - 1;
#pragma unroll
    for (int a = 0; a < Traits::kTiles; ++a) {
      // Rows that do not exist repeat the last one.
      const MatrixRow at(p, min(last_row, unit.first_row + a * kMatrixRows + lane % kMatrixRows));
      rows[a] = (first_t + at.t) * p.row_stride + phase.base;
      offsets[a] = at.image * p.src.image_pitch + (rows[a] - first_src_row) * p.src.pitch +
          block * kBlockBytes;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const MatrixRow at(p, unit.first_row + half * (kMatrixRows / 2) + lane / 4);
      const int row = at.t * p.phases + unit.phase;
      results[half] = at.t < p.tile_rows && row < p.dst.rows ? at.image * p.dst.image_pitch +
              row * p.dst.pitch + unit.first_block * kBlockBytes + lane % 4 * 4
                                                             : -1;
    }
  }
};

// Takes a lane's results of a unit that are NaN again.
template <typename Traits>
__device__ __noinline__ void repair(
    char* dst_tile,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    float begin,
    const Params& call,
    const Bands& p,
    const Place& to,
    const Unit& u) {
  using scalar_t = typename Traits::scalar_t;
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll 1
  for (int half = 0; half < 2 * Traits::kTiles; ++half) {
    const MatrixRow at(p, u.first_row + half * (kMatrixRows / 2) + lane / 4);
    const int row = (blockIdx.x % p.row_tiles * p.tile_rows + at.t) * p.phases + u.phase;
    if (at.image >= to.images || at.t >= p.tile_rows || row >= p.dst.height) {
      continue;
    }
#pragma unroll 1
    for (int i = 0; i < 2 * Traits::kBlocks; ++i) {
      const int column = (u.first_block + i / 2) * kBlock + lane % 4 * 2 + i % 2;
      scalar_t* const result = reinterpret_cast<scalar_t*>(
          dst_tile + at.image * p.dst.image_pitch + (row - to.row) * p.dst.pitch + column * 2);
      if (column < p.dst.width && isnan(static_cast<float>(*result))) {
        *result = static_cast<scalar_t>(
            mended(src, weight, begin, call, p.grad, to.image + at.image, to.plane, row, column));
      }
    }
  }
}

// grid: row tiles x channels, chunks of image groups.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kBandThreads, Traits::kResident)
__global__ void bands_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ Params call,
    const __grid_constant__ Bands p) {
#if __CUDA_ARCH__ >= 800
  using scalar_t = typename Traits::scalar_t;
  constexpr int kBlocks = Traits::kBlocks;
  constexpr int kDiagonals = Traits::kDiagonals;
  constexpr int kTiles = Traits::kTiles;
  using State = Prepared<Traits>;
  extern __shared__ uint4 shared_blocks[];
  // The bands, a row of zeros, the src tiles, the dst tile.
  uint32_t* const bands = reinterpret_cast<uint32_t*>(shared_blocks);
  char* const zeros =
      reinterpret_cast<char*>(bands + p.sources * p.kernel_height * Traits::kBands * kWarpSize);
  char* const src_tile = zeros + (p.skips ? p.src.pitch : 0);
  const int src_bytes = p.images * p.src.image_pitch;
  char* const dst_tile = src_tile + p.buffers * src_bytes;

  const int warp = threadIdx.x / kWarpSize;
  const int channel = blockIdx.x / p.row_tiles;
  const int first_t = blockIdx.x % p.row_tiles * p.tile_rows;

  Place from{};
  const int wanted_row = first_t * p.row_stride + p.above;
  const int top = p.skips ? max(0, wanted_row) : wanted_row;
  from.row = max(0, top);
  from.rows = max(0, min(p.src.height, top + p.src.rows) - from.row);
  from.shared_row = from.row - top;
  Place to{};
  to.plane = channel;
  to.row = first_t * p.phases;
  to.rows = min(p.dst.rows, p.dst.height - to.row);

  const auto load = [&](int group, int buffer) {
    from.image = group * p.images;
    from.images = min(p.images, p.batch - from.image);
    char* const tile = src_tile + buffer * src_bytes;
    for (int source = 0; source < p.sources; ++source) {
      from.plane = channel / p.multiplier * p.sources + source;
      load_tile(tile + source * p.src.plane_pitch(), src, p.src, from);
    }
  };
  clear_shared(zeros, static_cast<int>(src_tile - zeros) + p.buffers * src_bytes);
  __syncthreads();
  load(blockIdx.y, 0);
  make_bands<Traits>(bands, weight, p, channel);

  const int units = static_cast<int>(p.by_units.by * p.by_column_groups.by) * p.phases;
  const int warps = blockDim.x / kWarpSize;
  const uint32_t shared_zeros = static_cast<uint32_t>(__cvta_generic_to_shared(zeros));
  State state(p, min(warp, units - 1), bands, bias, channel, first_t, top);
  int buffer = 0;
  for (int group = blockIdx.y; group < p.image_groups; group += gridDim.y) {
    const int next = group + gridDim.y;
    wait_for_copies();
    __syncthreads();
    if (p.buffers > 1 && next < p.image_groups) {
      load(next, buffer ^ 1);
    }
    to.image = group * p.images;
    to.images = min(p.images, p.batch - to.image);
    const uint32_t tile =
        static_cast<uint32_t>(__cvta_generic_to_shared(src_tile + buffer * src_bytes));

    for (int index = warp; index < units; index += warps) {
      if (units > warps) {
        state = State(p, index, bands, bias, channel, first_t, top);
      }
      float sums[kTiles][kBlocks][4];
#pragma unroll
      for (int a = 0; a < kTiles; ++a) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[a][b][i] = state.begin;
          }
        }
      }
      const int step = p.row_step * p.src.pitch;
      for (int source = 0; source < p.sources; ++source) {
        const uint32_t* words_of_row =
            state.bands + source * p.kernel_height * Traits::kBands * kWarpSize;
        const uint32_t plane = tile + source * p.src.plane_pitch();
#pragma unroll 1
        for (int i = 0; i < state.tap_rows; ++i) {
          uint32_t addresses[kTiles];
#pragma unroll
          for (int a = 0; a < kTiles; ++a) {
            addresses[a] = plane + state.offsets[a] + i * step;
          }
          bool useful = true;
          if (p.skips) {
            useful = false;
#pragma unroll
            for (int a = 0; a < kTiles; ++a) {
              const int row = state.rows[a] + i * p.row_step;
              const bool inside = row >= 0 && row < p.src.height;
              addresses[a] = inside ? addresses[a] : shared_zeros;
              useful = useful || inside;
            }
            useful = __any_sync(0xffffffffu, useful);
          }
          if (useful) {
            uint32_t b_words[Traits::kBands];
#pragma unroll
            for (int band = 0; band < Traits::kBands; ++band) {
              b_words[band] = words_of_row[band * kWarpSize];
            }
#pragma unroll
            for (int a = 0; a < kTiles; ++a) {
              uint32_t a_words[Traits::kSourcePairs][4];
#pragma unroll
              for (int pair = 0; pair < Traits::kSourcePairs; ++pair) {
                load_matrices(a_words[pair], addresses[a] + 2 * pair * kBlockBytes);
              }
#pragma unroll
              for (int b = 0; b < kBlocks; ++b) {
                const int s = Traits::source_block(b);
                const uint32_t* const words = b_words + b % Traits::kParities * kDiagonals;
#pragma unroll
                for (int d = 0; d + 1 < kDiagonals; d += 2) {
                  const int left = s + d;
                  const int right = left + 1;
                  multiply_16<scalar_t>(
                      sums[a][b],
                      a_words[left / 2][left % 2 * 2],
                      a_words[left / 2][left % 2 * 2 + 1],
                      a_words[right / 2][right % 2 * 2],
                      a_words[right / 2][right % 2 * 2 + 1],
                      words[d],
                      words[d + 1]);
                }
                if constexpr (kDiagonals % 2 == 1) {
                  const int last = s + kDiagonals - 1;
                  multiply_8<scalar_t>(
                      sums[a][b],
                      a_words[last / 2][last % 2 * 2],
                      a_words[last / 2][last % 2 * 2 + 1],
                      words[kDiagonals - 1]);
                }
              }
            }
          }
          words_of_row += p.phases * Traits::kBands * kWarpSize;
        }
      }

      // The lane's own results: rows lane / 4 and + 8, two columns of each block.
      uint32_t spoilt = 0;
#pragma unroll
      for (int half = 0; half < State::kHalves; ++half) {
        if (state.results[half] >= 0) {
          char* const to_row = dst_tile + state.results[half];
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            const uint32_t pair = pair_of<scalar_t>(
                sums[half / 2][b][half % 2 * 2], sums[half / 2][b][half % 2 * 2 + 1]);
            spoilt = add_zero_times<scalar_t>(spoilt, pair);
            *reinterpret_cast<uint32_t*>(to_row + b * kBlockBytes) = pair;
          }
        }
      }
      if (has_nan(spoilt)) {
        repair<Traits>(dst_tile, src, weight, state.begin, call, p, to, state.unit);
      }
    }
    __syncthreads();
    if (p.buffers == 1 && next < p.image_groups) {
      load(next, 0);
    }
    store_tile(dst, dst_tile, p.dst, to);
    buffer ^= p.buffers - 1;
  }
#endif
}

// The geometry of one pass.
Bands bands_of(const Params& p, bool grad) {
  Bands b{};
  b.batch = p.batch;
  b.channels = grad ? p.channels : p.output_channels();
  b.sources = grad ? p.multiplier : 1;
  b.multiplier = grad ? 1 : p.multiplier;
  b.kernel_height = p.kernel_height;
  b.kernel_width = p.kernel_width;
  b.stride_height = p.stride_height;
  b.stride_width = p.stride_width;
  b.padding_height = p.padding_height;
  b.padding_width = p.padding_width;
  b.dilation_height = p.dilation_height;
  b.dilation_width = p.dilation_width;
  b.grad = grad;
  b.phases = grad ? p.stride_height : 1;
  b.row_stride = grad ? 1 : p.stride_height;
  b.row_step = grad ? -b.dilation_height : b.dilation_height;
  b.by_tap_row = Divider(p.kernel_height);
  return b;
}

// The src blocks that dst blocks take, relative to the first: those with a tap that some block of
// the image meets.
struct Diagonals {
  int first;
  int count;
};

Diagonals diagonals_of(const Bands& b, Columns columns, int src_blocks, int dst_blocks) {
  constexpr int kMost = 16;
  const int parities = columns == Columns::kDouble ? 2 : 1;
  int first = kMost;
  int last = -kMost;
  for (int d = -kMost; d <= kMost; ++d) {
    for (int at = 0; at < parities * kBlock * kBlock; ++at) {
      const int from = d * kBlock + at % kBlock;
      const int to = at / kBlock;
      // The first dst block has the last src block to its right, the last has the first to its left.
      const int last_source = columns == Columns::kHalf ? 2 * (dst_blocks - 1)
          : columns == Columns::kDouble                 ? (dst_blocks - 1) / 2
                                                        : dst_blocks - 1;
      if (tap_column(b, from, to) >= 0 && d < src_blocks && last_source + d >= 0) {
        first = std::min(first, d);
        last = std::max(last, d);
      }
    }
  }
  return {std::min(first, last), std::max(0, last - first) + 1};
}

struct Launch {
  dim3 grid;
  int threads;
  int64_t shared;
};

// Chooses the tile; false where none fits into shared memory.
template <typename Traits>
bool plan_bands(Bands& b, Launch& launch, const ForwardPass& pass, const Params& p) {
  const int64_t src_height = b.grad ? p.output_height : p.input_height;
  const int64_t src_width = b.grad ? p.output_width : p.input_width;
  const int64_t src_channels = b.grad ? p.output_channels() : p.channels;
  const int64_t dst_height = b.grad ? p.input_height : p.output_height;
  const int64_t dst_width = b.grad ? p.input_width : p.output_width;
  const int64_t phase_rows = divide_up(dst_height, b.phases);
  const int64_t reach = (p.kernel_height - 1) * p.dilation_height;
  // The src rows of tile row 0: from `above` to `below`.
  int64_t below = 0;
  if (b.grad) {
    below = (b.phases - 1 + p.padding_height) / b.phases;
    b.above = p.padding_height / b.phases -
        static_cast<int32_t>(b.phases == 1 ? reach : divide_up(p.kernel_height, b.phases));
  } else {
    b.above = -p.padding_height;
    below = b.above + reach;
  }
  const int64_t above = b.above;
  const int64_t column_groups = divide_up(blocks_of(dst_width), Traits::kBlocks);
  const int64_t left = std::max(0, -b.first_diagonal);
  // The last src block that is read: ldmatrix takes two at a time.
  const int64_t end = Traits::source_block((column_groups - 1) * Traits::kBlocks) +
      b.first_diagonal + 2 * Traits::kSourcePairs;

  const auto fill = [&](int64_t images, int64_t rows) {
    b.images = images;
    b.tile_rows = rows;
    b.row_tiles = divide_up(phase_rows, rows);
    const bool whole = b.row_tiles == 1;
    // Planes that are neighbours are loaded with all their rows.
    b.above = whole ? std::min<int64_t>(above, 0) : above;
    const int64_t needed = (rows - 1) * b.row_stride + below - b.above + 1;
    const int64_t src_rows = b.skips ? (whole ? src_height : std::min(src_height, needed))
        : whole                      ? std::max(needed, src_height - b.above)
                                     : needed;
    b.src = make_span(
        src_channels,
        src_height,
        src_width,
        b.sources,
        src_rows,
        whole ? src_height : std::min(src_height, needed),
        left,
        end,
        pass.src.const_data_ptr());
    const int64_t dst_rows = std::min(dst_height, rows * b.phases);
    b.dst = make_span(
        b.channels,
        dst_height,
        dst_width,
        1,
        dst_rows,
        dst_rows,
        0,
        column_groups * Traits::kBlocks,
        pass.dst.const_data_ptr());
    b.buffers = 1;
    const int64_t src_bytes = images * b.src.image_pitch;
    launch.shared = int64_t{b.sources} * b.kernel_height * Traits::kBands * kWarpSize * 4 +
        (b.skips ? b.src.pitch : 0) + src_bytes + images * b.dst.image_pitch;
    if (b.src.whole_blocks && launch.shared + src_bytes <= kMostDoubled) {
      b.buffers = 2;
      launch.shared += src_bytes;
    }
    return launch.shared <= kMostShared;
  };

  const int64_t plane = std::max(src_height * src_width * b.sources, dst_height * dst_width);
  int64_t images = 1;
  const bool large = p.kernel_height >= kLargeWindow;
  b.skips = large;
  while (images * 2 <= std::min<int64_t>(b.batch, large ? kMatrixRows : b.batch) &&
         images * 2 * phase_rows <= kMostTileRows &&
         images * 2 * plane <= (large ? 4 : 1) * kTileElements) {
    images *= 2;
  }
  int64_t rows = phase_rows;
  while (!fill(images, rows) ||
         // Small problems: a block more is worth a little overhang.
         (b.channels * divide_up(b.batch, images) * b.row_tiles < few_blocks() && images == 1 &&
          rows > kMatrixRows)) {
    if (images > 1) {
      images /= 2;
    } else if (rows > kMatrixRows) {
      const int64_t strips = divide_up(phase_rows, rows) + 1;
      const int64_t even = divide_up(divide_up(phase_rows, strips), kMatrixRows) * kMatrixRows;
      rows = even < rows ? even : rows - kMatrixRows;
    } else {
      return false;
    }
  }
  b.by_images = Divider(b.images);
  const int64_t row_units = divide_up(
      static_cast<int64_t>(b.images) * b.tile_rows, int64_t{Traits::kTiles} * kMatrixRows);
  b.by_units = Divider(row_units);
  b.by_column_groups = Divider(column_groups);
  b.image_groups = divide_up(b.batch, b.images);

  const int64_t columns = int64_t{b.channels} * b.row_tiles;
  const int64_t units = row_units * column_groups * b.phases;
  launch.threads = units <= kBandThreads / 2 / kWarpSize ? kBandThreads / 2 : kBandThreads;
  // Few enough blocks for what they prepare to be worth it.
  const int64_t rounds =
      std::max<int64_t>(1, columns * b.image_groups * launch.threads / threads_at_once());
  launch.grid = dim3(columns, std::min(divide_up(b.image_groups, rounds), kMostGridRows));
  return true;
}

template <typename scalar_t, Columns kColumns, int kBlocks, int kDiagonals>
bool launch_bands(const ForwardPass& pass, const Params& p, Bands b) {
  using Traits = BandTraits<scalar_t, kColumns, kBlocks, kDiagonals>;
  constexpr auto kernel = bands_kernel<Traits>;
  Launch launch;
  if (!is_compiled_for(reinterpret_cast<const void*>(kernel), 8) ||
      !plan_bands<Traits>(b, launch, pass, p)) {
    return false;
  }
  launch_kernel(
      kernel,
      launch.grid,
      launch.threads,
      launch.shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      b);
  return true;
}

// The kernel with the fewest blocks of dst columns, and diagonals, that are enough, for dst and src in plane
// order.
template <typename scalar_t>
bool choose_bands(const ForwardPass& pass, const Params& p, Bands b) {
  const int src_blocks = blocks_of(b.grad ? p.output_width : p.input_width);
  const int dst_blocks = blocks_of(b.grad ? p.input_width : p.output_width);
  const Columns columns = p.stride_width == 1 ? Columns::kSame
      : b.grad                                ? Columns::kDouble
                                              : Columns::kHalf;
  const Diagonals diagonals = diagonals_of(b, columns, src_blocks, dst_blocks);
  b.first_diagonal = diagonals.first;
  if (columns == Columns::kHalf) {
    return diagonals.count <= 4 && launch_bands<scalar_t, Columns::kHalf, 4, 4>(pass, p, b);
  }
  if (columns == Columns::kDouble) {
    return diagonals.count <= 3 && launch_bands<scalar_t, Columns::kDouble, 4, 3>(pass, p, b);
  }
  if (diagonals.count <= 3) {
    return dst_blocks <= 2 ? launch_bands<scalar_t, Columns::kSame, 2, 3>(pass, p, b)
                           : launch_bands<scalar_t, Columns::kSame, 4, 3>(pass, p, b);
  }
  if (diagonals.count <= 5) {
    return dst_blocks <= 4 ? launch_bands<scalar_t, Columns::kSame, 4, 5>(pass, p, b)
                           : launch_bands<scalar_t, Columns::kSame, 8, 5>(pass, p, b);
  }
  return false;
}

// Whether there is a kernel for the call.
bool bands_apply(const Params& p, const Operand& one, const Operand& other) {
  constexpr int64_t kMostStride = 2;
  const bool unit_dilation = p.dilation_height == 1 && p.dilation_width == 1;
  return !p.channels_last && fits_32_bits(p) && p.stride_width <= kMostStride &&
      ((p.stride_height == 1 && p.stride_width == 1) || unit_dilation) && one.numel() > 0 &&
      other.numel() > 0;
}

// Whether the products are worth the preparation, and blocks that rows leave partly empty.
bool is_worth_it(const Params& p, bool grad) {
  constexpr int64_t kWorthyTaps = 49;
  constexpr int64_t kWorthyPlane = 1024; // where fewer taps are added up over several outputs
  const int64_t taps = p.kernel_size();
  const bool adds_up = grad && p.multiplier > 1;
  const bool whole_blocks = p.input_width % kBlock == 0 && p.output_width % kBlock == 0;
  if (std::min(p.input_width, p.output_width) < kBlock) {
    return p.kernel_height * std::min(p.kernel_width, p.input_width) >= kWorthyTaps;
  }
  return p.kernel_height >= kLargeWindow || (taps >= kWorthyTaps && (whole_blocks || adds_up)) ||
      (adds_up && taps >= 9 && p.input_height * p.input_width >= kWorthyPlane);
}

} // namespace

template <typename scalar_t>
bool bands_forward(const ForwardPass& pass, const Params& p) {
  if constexpr (sizeof(scalar_t) == 2) {
    return bands_apply(p, pass.dst, pass.src) && is_worth_it(p, pass.grad_input) &&
        choose_bands<scalar_t>(pass, p, bands_of(p, pass.grad_input));
  } else {
    return false;
  }
}

DEPTHWISE_INSTANTIATE(bands_forward, const ForwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
