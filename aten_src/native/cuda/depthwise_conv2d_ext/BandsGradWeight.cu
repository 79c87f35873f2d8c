// grad_weight and grad_bias of depthwise_conv2d_ext for float16 and bfloat16 on the tensor cores.
//
// With 16 rows of one channel as the inner dimension, the product of 16 input columns with 8
// grad_output columns holds the products of every tap of one row of taps, along its diagonals: entry
// (m, n) belongs to the tap that lies m - stride * n columns off. It does so for every block of
// columns alike, so all of them, all rows and all images are added into the same few registers: for
// k <= 9 two matrices of 16 x 8 for a row of taps. The diagonals are added once, at the end.
//
// Tiles of both tensors are in shared memory (Bands.cuh) and read as transposed matrices; rows outside
// the image are read from a row of zeros. Warps share a channel's rows of taps (a warp keeps
// kTapRows of them) and rows of the image; their sums are added in order and written as one partial,
// and add_partials() adds those of the blocks in order. The bias is a product with ones.
//
// A zero that stands for a column outside the image leaves a NaN where grad_output is not finite,
// and the other way round. A tap that ends as NaN is summed again, of positions inside the image.
#include <ATen/native/cuda/depthwise_conv2d_ext/Bands.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / kWarpSize;
constexpr int kUsualWarps = 8;
constexpr int64_t kMostDoubled = 64 * 1024; // of shared memory, with a second tile under way
inline int64_t wanted_blocks() {
  return multiprocessors() * 6;
}

template <typename scalar_t_, int kStride_, int kBlocks_, int kDiagonals_>
struct GradWeightTraits {
  using scalar_t = scalar_t_;
  static constexpr int kStride = kStride_; // of columns
  static constexpr int kBlocks = kBlocks_; // of grad_output columns, of a warp
  static constexpr int kDiagonals = kDiagonals_; // input blocks that a grad_output block meets
  static constexpr int kTapRows = kDiagonals > 4 ? 5 : 7; // as many as registers hold
  static constexpr int kMatrices = (kDiagonals + 1) / 2; // of a row of taps
  static constexpr int kInputBlocks = kStride * (kBlocks - 1) + kDiagonals;
  static constexpr int kInputPairs = (kInputBlocks + 1) / 2;
  static constexpr int kGradPairs = (kBlocks + 1) / 2;
  // Of one warp, as floats: the matrices, then a row for the bias.
  static constexpr int kRowSums = kMatrices * kMatrixRows * kBlock;
  static constexpr int kSums = kTapRows * kRowSums + kBlock;
};

struct GradWeight {
  int32_t batch;
  int32_t channels; // of grad_output
  int32_t multiplier;
  int32_t kernel_height;
  int32_t kernel_width;
  int32_t stride_height;
  int32_t padding_height;
  int32_t padding_width;
  int32_t dilation_height;
  int32_t dilation_width;
  int32_t first_diagonal;
  // The tile.
  int32_t tap_groups;
  int32_t parts; // warps that share the rows of a channel and group of taps
  int32_t images;
  int32_t tile_rows;
  int32_t row_tiles;
  int32_t tiles; // row tiles x groups of images
  int32_t above; // the first input row of tile row 0
  int32_t buffers;
  Span input;
  Span grad;
  Divider by_images;
  Divider by_column_groups;
  int32_t units; // groups of 16 rows x groups of columns
};

// grid: channels, chunks of tiles.
template <typename Traits>
C10_LAUNCH_BOUNDS_1(kMostThreads)
__global__ void bands_grad_weight_kernel(
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const __grid_constant__ GradWeight p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kBlocks = Traits::kBlocks;
  constexpr int kTapRows = Traits::kTapRows;
  constexpr int kMatrices = Traits::kMatrices;
  extern __shared__ uint4 shared_blocks[];
  // A row of zeros, the tiles; once they are done, the warps' sums.
  char* const zeros = reinterpret_cast<char*>(shared_blocks);
  char* const tiles = zeros + kBlocks * kBlockBytes;
  const int input_bytes = p.images * p.input.image_pitch;
  const int grad_bytes = p.images * p.grad.image_pitch;
  const int buffer_bytes = input_bytes + grad_bytes;

  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int part = warp % p.parts;
  const int tap_group = warp / p.parts;
  const int channel = blockIdx.x;

  const auto place_input = [&](int tile) {
    Place at{};
    const int top = tile % p.row_tiles * p.tile_rows * p.stride_height + p.above;
    at.image = tile / p.row_tiles * p.images;
    at.images = min(p.images, p.batch - at.image);
    at.plane = channel / p.multiplier;
    at.row = max(0, top);
    at.rows = max(0, min(p.input.height, top + p.input.rows) - at.row);
    at.shared_row = at.row - top;
    return at;
  };
  const auto place_grad = [&](int tile) {
    Place at = place_input(tile);
    at.plane = channel;
    at.row = tile % p.row_tiles * p.tile_rows;
    at.rows = min(p.grad.rows, p.grad.height - at.row);
    at.shared_row = 0;
    return at;
  };
  const auto load = [&](int tile, int buffer) {
    char* const to = tiles + buffer * buffer_bytes;
    load_tile(to + input_bytes, grad_output, p.grad, place_grad(tile));
    load_tile(to, input, p.input, place_input(tile));
  };
  clear_shared(zeros, static_cast<int>(tiles - zeros) + p.buffers * buffer_bytes);
  __syncthreads();
  load(blockIdx.y, 0);

  float sums[kTapRows][kMatrices][4] = {};
  float bias[4] = {};
  const uint32_t shared_zeros = static_cast<uint32_t>(__cvta_generic_to_shared(zeros));
  int buffer = 0;
  for (int tile = blockIdx.y; tile < p.tiles; tile += gridDim.y) {
    const int next = tile + gridDim.y;
    wait_for_copies();
    __syncthreads();
    if (p.buffers > 1 && next < p.tiles) {
      load(next, buffer ^ 1);
    }
    const int first_row = tile % p.row_tiles * p.tile_rows;
    const int images = min(p.images, p.batch - tile / p.row_tiles * p.images);
    const uint32_t input_tile =
        static_cast<uint32_t>(__cvta_generic_to_shared(tiles + buffer * buffer_bytes));
    const uint32_t grad_tile = input_tile + input_bytes;

    for (int unit = part; unit < p.units; unit += p.parts) {
      const int row_unit = p.by_column_groups.quotient(unit);
      const int first_block = (unit - row_unit * static_cast<int>(p.by_column_groups.by)) * kBlocks;
      // The row whose address this lane gives, and which of two blocks of it. A row of grad_output
      // that does not exist is zeros, so that the input's does not matter.
      const int matrix_row = row_unit * kMatrixRows + lane % kMatrixRows;
      const int t = p.by_images.quotient(matrix_row);
      const int image = matrix_row - t * p.images;
      const bool exists = image < images && t < p.tile_rows && first_row + t < p.grad.height;
      const int half = lane / kMatrixRows;

      uint32_t grads[Traits::kGradPairs][4];
      const uint32_t grad_row = exists ? grad_tile + image * p.grad.image_pitch + t * p.grad.pitch +
              (first_block + half) * kBlockBytes
                                       : shared_zeros + (kBlocks > 1 ? half : 0) * kBlockBytes;
#pragma unroll
      for (int pair = 0; pair < Traits::kGradPairs; ++pair) {
        load_matrices_transposed(grads[pair], grad_row + 2 * pair * kBlockBytes);
      }
      if (tap_group == 0) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          multiply_16<scalar_t>(
              bias,
              kTwoOnes<scalar_t>,
              kTwoOnes<scalar_t>,
              kTwoOnes<scalar_t>,
              kTwoOnes<scalar_t>,
              grads[b / 2][b % 2 * 2],
              grads[b / 2][b % 2 * 2 + 1]);
        }
      }

      const int safe_t = exists ? t : 0;
      const int top = (first_row + safe_t) * p.stride_height - p.padding_height;
      const int step = p.dilation_height * p.input.pitch;
      const uint32_t address = input_tile + (exists ? image : 0) * p.input.image_pitch +
          (safe_t * p.stride_height - p.padding_height - p.above) * p.input.pitch +
          tap_group * kTapRows * step +
          (first_block * Traits::kStride + p.first_diagonal + p.input.left + half) * kBlockBytes;
#pragma unroll
      for (int r = 0; r < kTapRows; ++r) {
        const int kh = tap_group * kTapRows + r;
        if (kh >= p.kernel_height) {
          continue;
        }
        // With many rows of taps, many are outside the image for all 16 rows.
        const int row = top + kh * p.dilation_height;
        if (!__any_sync(0xffffffffu, exists && row >= 0 && row < p.input.height)) {
          continue;
        }
        uint32_t inputs[Traits::kInputPairs][4];
#pragma unroll
        for (int pair = 0; pair < Traits::kInputPairs; ++pair) {
          load_matrices_transposed(inputs[pair], address + r * step + 2 * pair * kBlockBytes);
        }
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int m = 0; m < kMatrices; ++m) {
            const int s = Traits::kStride * b + 2 * m;
            const bool both = 2 * m + 1 < Traits::kDiagonals;
            const int other = both ? s + 1 : s;
            multiply_16<scalar_t>(
                sums[r][m],
                inputs[s / 2][s % 2 * 2],
                both ? inputs[other / 2][other % 2 * 2] : 0u,
                inputs[s / 2][s % 2 * 2 + 1],
                both ? inputs[other / 2][other % 2 * 2 + 1] : 0u,
                grads[b / 2][b % 2 * 2],
                grads[b / 2][b % 2 * 2 + 1]);
          }
        }
      }
    }
    if (p.buffers == 1 && next < p.tiles) {
      __syncthreads();
      load(next, 0);
    }
    buffer ^= p.buffers - 1;
  }

  wait_for_copies();
  __syncthreads();
  float* const shared = reinterpret_cast<float*>(shared_blocks);
  float* const mine = shared + warp * Traits::kSums;
  const int row = lane / 4;
  const int column = lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < kTapRows; ++r) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mine
            [r * Traits::kRowSums + (m * kMatrixRows + row + i / 2 * kBlock) * kBlock + column +
             i % 2] = sums[r][m][i];
      }
    }
  }
  if (row == 0) {
    mine[kTapRows * Traits::kRowSums + column] = bias[0];
    mine[kTapRows * Traits::kRowSums + column + 1] = bias[1];
  }
  __syncthreads();

  const int kernel_size = p.kernel_height * p.kernel_width;
  float* const to =
      partial + static_cast<int64_t>(blockIdx.y) * (kernel_size + kBiasRows) * p.channels;
  for (int tap = threadIdx.x; tap <= kernel_size; tap += blockDim.x) {
    const int kh = tap / p.kernel_width;
    const int kw = tap - kh * p.kernel_width;
    const bool is_bias = tap == kernel_size;
    const int group = is_bias ? 0 : kh / kTapRows;
    const int offset = kw * p.dilation_width - p.padding_width - p.first_diagonal * kBlock;
    float sum = 0.0f;
    for (int other = 0; other < p.parts; ++other) {
      const float* const from = shared + (group * p.parts + other) * Traits::kSums;
#pragma unroll
      for (int n = 0; n < kBlock; ++n) {
        if (is_bias) {
          sum += from[kTapRows * Traits::kRowSums + n];
        } else {
          const int m = n * Traits::kStride + offset;
          if (m >= 0 && m < Traits::kDiagonals * kBlock) {
            sum += from[kh % kTapRows * Traits::kRowSums + m * kBlock + n];
          }
        }
      }
    }
    to[tap * p.channels + channel] = sum;
    if (is_bias) {
      to[(tap + 1) * p.channels + channel] = 0.0f;
    }
  }
}

// The input blocks that grad_output blocks meet, relative to the first (to stride times it).
struct Diagonals {
  int first;
  int count;
};

Diagonals diagonals_of(const Params& p) {
  const int64_t input_blocks = blocks_of(p.input_width);
  const int64_t last_source = (blocks_of(p.output_width) - 1) * p.stride_width;
  // The columns that a block's first and last column meet.
  const int64_t left = -p.padding_width;
  const int64_t right =
      (kBlock - 1) * p.stride_width - p.padding_width + (p.kernel_width - 1) * p.dilation_width;
  const auto block_at = [](int64_t column) {
    return column >= 0 ? column / kBlock : -divide_up(-column, kBlock);
  };
  const int64_t first = std::max(block_at(left), -last_source);
  const int64_t last = std::min(block_at(right), input_blocks - 1);
  return {static_cast<int>(first), static_cast<int>(std::max<int64_t>(0, last - first) + 1)};
}

struct Launch {
  int64_t groups;
  int64_t chunks;
  int threads;
  int64_t shared;
};

// Chooses the tile; false where none fits.
template <typename Traits>
bool plan(GradWeight& g, Launch& launch, const BackwardPass& pass, const Params& p) {
  g.tap_groups = divide_up(p.kernel_height, Traits::kTapRows);
  if (g.tap_groups > kMostWarps) {
    return false;
  }
  const int64_t height = p.output_height;
  const int64_t reach = (p.kernel_height - 1) * p.dilation_height;
  const int64_t column_groups = divide_up(blocks_of(p.output_width), Traits::kBlocks);
  const int64_t left = std::max(0, -g.first_diagonal);
  // The last blocks that are read: ldmatrix takes two at a time.
  const int64_t input_end = (column_groups - 1) * Traits::kBlocks * Traits::kStride +
      g.first_diagonal + 2 * Traits::kInputPairs;
  const int64_t grad_end = (column_groups - 1) * Traits::kBlocks + 2 * Traits::kGradPairs;
  g.above = -p.padding_height;
  const auto fill = [&](int64_t images, int64_t rows) {
    g.images = images;
    g.tile_rows = rows;
    g.row_tiles = divide_up(height, rows);
    const bool whole = g.row_tiles == 1;
    const int64_t needed = (rows - 1) * p.stride_height + reach + 1;
    const int64_t input_rows = whole ? std::max(needed, p.input_height + p.padding_height) : needed;
    g.input = make_span(
        p.channels,
        p.input_height,
        p.input_width,
        1,
        input_rows,
        whole ? p.input_height : std::min(p.input_height, needed),
        left,
        input_end,
        pass.input.const_data_ptr());
    g.grad = make_span(
        p.output_channels(),
        height,
        p.output_width,
        1,
        rows,
        rows,
        0,
        grad_end,
        pass.grad_output.const_data_ptr());
    const int64_t tile = images * (g.input.image_pitch + g.grad.image_pitch);
    g.buffers = g.input.whole_blocks && g.grad.whole_blocks && 2 * tile <= kMostDoubled ? 2 : 1;
    launch.shared = Traits::kBlocks * kBlockBytes + g.buffers * tile;
    return launch.shared <= kMostShared;
  };
  const int64_t plane = std::max(p.input_height * p.input_width, height * p.output_width);
  int64_t images = 1;
  while (images * 2 <= p.batch && images * 2 * plane <= kTileElements) {
    images *= 2;
  }
  int64_t rows = height;
  while (!fill(images, rows)) {
    if (images > 1) {
      images /= 2;
    } else if (rows > kMatrixRows) {
      const int64_t strips = divide_up(height, rows) + 1;
      const int64_t even = divide_up(divide_up(height, strips), kMatrixRows) * kMatrixRows;
      rows = even < rows ? even : rows - kMatrixRows;
    } else {
      return false;
    }
  }
  g.by_images = Divider(g.images);
  g.by_column_groups = Divider(column_groups);
  g.units = divide_up(static_cast<int64_t>(g.images) * g.tile_rows, kMatrixRows) * column_groups;
  g.tiles = divide_up(g.batch, g.images) * g.row_tiles;
  g.parts = std::max<int64_t>(1, kUsualWarps / g.tap_groups);
  const int64_t warps = int64_t{g.tap_groups} * g.parts;
  launch.threads = warps * kWarpSize;
  launch.shared =
      std::max<int64_t>(launch.shared, static_cast<int64_t>(sizeof(float)) * warps * Traits::kSums);
  launch.groups = p.output_channels();
  // A block stays at one strip, so that the rows of zeros stay where they are.
  const int64_t image_groups = g.tiles / g.row_tiles;
  launch.chunks = g.row_tiles *
      std::clamp<int64_t>(divide_up(wanted_blocks(), launch.groups * g.row_tiles), 1, image_groups);
  return launch.shared <= kMostShared && launch.chunks <= kMostGridRows;
}

template <typename scalar_t, int kStride, int kBlocks, int kDiagonals>
bool launch_grad_weight(
    Operand& partial,
    int64_t& chunks,
    const BackwardPass& pass,
    const Params& p,
    GradWeight g) {
  using Traits = GradWeightTraits<scalar_t, kStride, kBlocks, kDiagonals>;
  Launch launch;
  if (!plan<Traits>(g, launch, pass, p)) {
    return false;
  }
  chunks = launch.chunks;
  partial = empty_partial(chunks, p);
  launch_kernel(
      bands_grad_weight_kernel<Traits>,
      dim3(launch.groups, launch.chunks),
      launch.threads,
      launch.shared,
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      g);
  return true;
}

template <typename scalar_t>
bool choose_grad_weight(
    Operand& partial,
    int64_t& chunks,
    const BackwardPass& pass,
    const Params& p) {
  const Diagonals diagonals = diagonals_of(p);
  GradWeight g{};
  g.batch = p.batch;
  g.channels = p.output_channels();
  g.multiplier = p.multiplier;
  g.kernel_height = p.kernel_height;
  g.kernel_width = p.kernel_width;
  g.stride_height = p.stride_height;
  g.padding_height = p.padding_height;
  g.padding_width = p.padding_width;
  g.dilation_height = p.dilation_height;
  g.dilation_width = p.dilation_width;
  g.first_diagonal = diagonals.first;
  const int blocks = blocks_of(p.output_width);
  if (p.stride_width == 2) {
    return diagonals.count <= 4 &&
        (blocks <= 2 ? launch_grad_weight<scalar_t, 2, 2, 4>(partial, chunks, pass, p, g)
                     : launch_grad_weight<scalar_t, 2, 4, 4>(partial, chunks, pass, p, g));
  }
  if (diagonals.count <= 3) {
    return blocks <= 2 ? launch_grad_weight<scalar_t, 1, 2, 3>(partial, chunks, pass, p, g)
                       : launch_grad_weight<scalar_t, 1, 4, 3>(partial, chunks, pass, p, g);
  }
  return diagonals.count <= 5 && launch_grad_weight<scalar_t, 1, 4, 5>(partial, chunks, pass, p, g);
}

} // namespace

bool bands_grad_weight(const BackwardPass& pass, const Params& p) {
  // For fewer rows of taps the march's sums, which are in registers too, cost less to prepare.
  // Columns of taps leave most of a matrix empty.
  if (!bands_apply(p, pass.grad_output, pass.input) || p.kernel_height < kLargeWindow ||
      (p.kernel_width == 1 && p.stride_height == 1)) {
    return false;
  }
  Operand partial;
  int64_t chunks = 0;
  const bool launched = pass.input.type() == Type::kHalf
      ? choose_grad_weight<c10::Half>(partial, chunks, pass, p)
      : choose_grad_weight<c10::BFloat16>(partial, chunks, pass, p);
  if (launched) {
    add_partials(pass, partial, chunks, p);
  }
  return launched;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
