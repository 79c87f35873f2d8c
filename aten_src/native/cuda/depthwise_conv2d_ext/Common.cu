// Kernels that others need: sums of partials, copies between the memory orders.
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kTotalSums = 32;
constexpr int kTotalWays = 8;
constexpr int kManyTotalWays = 32;
constexpr int64_t kManyChunks = 64;

// What a row of one image of the output gives one tap's gradient (kernel_size: the bias'), from a column on and
// every kTotalSums-th, of places inside the input only.
template <typename scalar_t>
__device__ __noinline__ double mended_sum(
    const scalar_t* grad_output,
    const scalar_t* input,
    const Params& p,
    int64_t tap,
    int64_t image,
    int64_t channel,
    int64_t row,
    int64_t column) {
  const int64_t channels = p.output_channels();
  const int64_t from = channel / p.multiplier;
  const bool is_bias = tap == p.kernel_size();
  const int64_t h =
      row * p.stride_height - p.padding_height + tap / p.kernel_width * p.dilation_height;
  double sum = 0;
  for (; column < p.output_width && (is_bias || (h >= 0 && h < p.input_height));
       column += kTotalSums) {
    const int64_t w =
        column * p.stride_width - p.padding_width + tap % p.kernel_width * p.dilation_width;
    if (!is_bias && (w < 0 || w >= p.input_width)) {
      continue;
    }
    const double grad = static_cast<double>(
        grad_output
            [p.channels_last
                 ? ((image * p.output_height + row) * p.output_width + column) * channels + channel
                 : ((image * channels + channel) * p.output_height + row) * p.output_width +
                     column]);
    sum += is_bias
        ? grad
        : grad *
            static_cast<double>(
                input
                    [p.channels_last
                         ? ((image * p.input_height + h) * p.input_width + w) * p.channels + from
                         : ((image * p.channels + from) * p.input_height + h) * p.input_width + w]);
  }
  return sum;
}

// A block adds kTotalSums of the sums, taps' or biases', blockDim.y chunks at a time. A float result is added
// in double: the last few of these additions would make most of its whole error. Rounding to 16 bits would
// hide that.
template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(kTotalSums* kManyTotalWays)
__global__ void add_partials_kernel(
    scalar_t* __restrict__ grad_weight,
    scalar_t* __restrict__ grad_bias,
    const opmath_type<scalar_t>* __restrict__ partial,
    const scalar_t* __restrict__ grad_output,
    const scalar_t* __restrict__ input,
    const __grid_constant__ Params p,
    int chunks) {
  const int64_t channels = p.output_channels();
  const int64_t kernel_size = p.kernel_size();
  constexpr bool kExact = sizeof(scalar_t) >= sizeof(float);
  using sum_t = std::conditional_t<kExact, double, float>;
  __shared__ sum_t shared[kManyTotalWays][kTotalSums];
  __shared__ bool spoilt_sums[kTotalSums];
  wait_for_kernel_before();
  const int lane = threadIdx.x;
  const int way = threadIdx.y;
  const int ways = blockDim.y;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kTotalSums + lane;
  const int64_t tap = at / channels;
  const int64_t channel = at - tap * channels;
  const bool wanted =
      tap < kernel_size ? grad_weight != nullptr : tap == kernel_size && grad_bias != nullptr;
  const int64_t step = (kernel_size + kBiasRows) * channels;
  sum_t sum = 0;
  if (wanted) {
    const opmath_type<scalar_t>* const from = partial + at;
    if (kExact && tap == kernel_size) {
      // Both rows at once: these loads, and not the additions, are what takes the time.
#pragma unroll 4
      for (int chunk = way; chunk < chunks; chunk += ways) {
        sum += static_cast<sum_t>(from[chunk * step]) + from[chunk * step + channels];
      }
    } else {
#pragma unroll 4
      for (int chunk = way; chunk < chunks; chunk += ways) {
        sum += from[chunk * step];
      }
    }
  }
  shared[way][lane] = sum;
  __syncthreads();
  if (way == 0) {
    for (int other = 1; other < ways; ++other) {
      sum += shared[other][lane];
    }
  }
  // Kernels multiply zeros that stand for places outside the image, which spoils a sum that meets what is not
  // finite there: it is taken again, of places inside only.
  const bool spoilt = way == 0 && wanted && isnan(sum);
  if (__syncthreads_or(spoilt)) {
    if (way == 0) {
      spoilt_sums[lane] = spoilt;
    }
    for (int other = 0; other < kTotalSums; ++other) {
      __syncthreads();
      if (!spoilt_sums[other]) {
        continue;
      }
      const int64_t of = static_cast<int64_t>(blockIdx.x) * kTotalSums + other;
      double mended = 0;
      for (int64_t line = way; line < p.batch * p.output_height; line += ways) {
        mended += mended_sum(
            grad_output,
            input,
            p,
            of / channels,
            line / p.output_height,
            of % channels,
            line % p.output_height,
            lane);
      }
      mended = sum_of_warp(mended);
      if (lane == 0) {
        shared[way][0] = mended;
      }
      __syncthreads();
      if (way == 0 && lane == other) {
        sum = 0;
        for (int part = 0; part < ways; ++part) {
          sum += shared[part][0];
        }
      }
    }
  }
  if (way != 0 || !wanted) {
    return;
  }
  if (tap == kernel_size) {
    grad_bias[channel] = static_cast<scalar_t>(sum);
  } else {
    grad_weight[channel * kernel_size + tap] = static_cast<scalar_t>(sum);
  }
}

} // namespace

Operand empty_partial(int64_t chunks, const Params& p, Type type) {
  return empty({1, chunks, p.kernel_size() + kBiasRows, p.output_channels()}, type);
}

template <typename scalar_t>
void add_partials(const BackwardPass& pass, const Operand& partial, const Params& p) {
  const int64_t sums = (p.kernel_size() + 1) * p.output_channels();
  const int64_t chunks = partial.size(1);
  launch_early(
      add_partials_kernel<scalar_t>,
      divide_up(sums, kTotalSums),
      dim3(
          kTotalSums,
          // without images there is no chunk, and the sums are zeros
          chunks < kManyChunks ? std::clamp<int64_t>(chunks, 1, kTotalWays) : kManyTotalWays),
      mutable_pointer_or_null<scalar_t>(pass.grad_weight),
      mutable_pointer_or_null<scalar_t>(pass.grad_bias),
      partial.const_data_ptr<opmath_type<scalar_t>>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      p,
      static_cast<int>(chunks));
}

template void add_partials<float>(const BackwardPass&, const Operand&, const Params&);
template void add_partials<double>(const BackwardPass&, const Operand&, const Params&);
template void add_partials<c10::Half>(const BackwardPass&, const Operand&, const Params&);
template void add_partials<c10::BFloat16>(const BackwardPass&, const Operand&, const Params&);

// Copies between the two memory orders, for calls of depthwise_conv2d_ext in channels-last order whose kernels
// are in plane order: [N][H·W][C] to [N][C][H·W] and back, an image at a time the transposition of a matrix.
//
// A block takes a tile of 64 x 64 elements through shared memory: rows of src come in as they are, columns of the
// tile leave as rows of dst. Elements of 16 bits go in pairs where rows begin at whole words, so that a warp reads
// and writes 128 bytes at a time; the pair that leaves is of two rows of the tile.

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;

// element_t_: unsigned integers of the elements' size. kLoaded_, kStored_: elements that are loaded and stored
// together.
template <typename element_t_, int kLoaded_, int kStored_>
struct OrderTraits {
  using element_t = element_t_;
  static constexpr int kLoaded = kLoaded_;
  static constexpr int kStored = kStored_;
  // Of a row of the tile in shared memory: pairs stay whole, columns fall into different banks.
  static constexpr int kPitch = kTile + (sizeof(element_t) == 2 ? 2 : 1);
};

template <typename element_t, int kSize>
struct alignas(sizeof(element_t) * kSize) Together {
  element_t elements[kSize];
};

// dst[column][row] = src[row][column] in each of the matrices. grid: tiles of a matrix, matrices.
template <typename Traits>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void transpose_kernel(
    typename Traits::element_t* __restrict__ dst,
    const typename Traits::element_t* __restrict__ src,
    int64_t rows,
    int64_t columns,
    int64_t matrices) {
  using element_t = typename Traits::element_t;
  using Loaded = Together<element_t, Traits::kLoaded>;
  using Stored = Together<element_t, Traits::kStored>;
  // Threads beside each other along a row, and the rows that they take at a time.
  constexpr int kLoading = kTile / Traits::kLoaded;
  constexpr int kLoadedRows = kThreads / kLoading;
  constexpr int kStoring = kTile / Traits::kStored;
  constexpr int kStoredRows = kThreads / kStoring;
  __shared__ __align__(8) element_t tile[kTile][Traits::kPitch];
  const int64_t tiles = (columns + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x / tiles * kTile;
  const int64_t first_column = blockIdx.x % tiles * kTile;
  const int tile_rows = static_cast<int>(std::min<int64_t>(rows - first_row, kTile));
  const int tile_columns = static_cast<int>(std::min<int64_t>(columns - first_column, kTile));

  const int load_row = threadIdx.x / kLoading;
  const int load_column = threadIdx.x % kLoading * Traits::kLoaded;
  const int store_column = threadIdx.x / kStoring;
  const int store_row = threadIdx.x % kStoring * Traits::kStored;
  const int rows_to_load = load_column < tile_columns ? tile_rows - load_row : 0;
  const int columns_to_store = store_row < tile_rows ? tile_columns - store_column : 0;
  for (int64_t matrix = blockIdx.y; matrix < matrices; matrix += gridDim.y) {
    const element_t* from =
        src + (matrix * rows + first_row + load_row) * columns + first_column + load_column;
    Loaded loaded[kTile / kLoadedRows];
#pragma unroll
    for (int i = 0; i < kTile / kLoadedRows; ++i) {
      if (i * kLoadedRows < rows_to_load) {
        loaded[i] = *reinterpret_cast<const Loaded*>(from);
      }
      from += kLoadedRows * columns;
    }
#pragma unroll
    for (int i = 0; i < kTile / kLoadedRows; ++i) {
      *reinterpret_cast<Loaded*>(&tile[load_row + i * kLoadedRows][load_column]) = loaded[i];
    }
    __syncthreads();
    element_t* to =
        dst + (matrix * columns + first_column + store_column) * rows + first_row + store_row;
#pragma unroll
    for (int i = 0; i < kTile / kStoredRows; ++i) {
      if (i * kStoredRows < columns_to_store) {
        Stored stored;
#pragma unroll
        for (int k = 0; k < Traits::kStored; ++k) {
          stored.elements[k] = tile[store_row + k][store_column + i * kStoredRows];
        }
        *reinterpret_cast<Stored*>(to) = stored;
      }
      to += kStoredRows * rows;
    }
    __syncthreads();
  }
}

template <typename Traits>
void launch(
    const Operand& dst,
    const Operand& src,
    int64_t rows,
    int64_t columns,
    int64_t matrices) {
  using element_t = typename Traits::element_t;
  const dim3 grid(
      divide_up(rows, kTile) * divide_up(columns, kTile), std::min(matrices, kMostGridRows));
  launch_kernel(
      transpose_kernel<Traits>,
      grid,
      kThreads,
      0,
      static_cast<element_t*>(dst.mutable_data_ptr()),
      static_cast<const element_t*>(src.const_data_ptr()),
      rows,
      columns,
      matrices);
}

} // namespace

void transpose(
    const Operand& dst,
    const Operand& src,
    int64_t rows,
    int64_t columns,
    int64_t matrices) {
  const auto in_pairs = [](int64_t length, const Operand& tensor) {
    return length % 2 == 0 && is_aligned(tensor.const_data_ptr(), sizeof(uint32_t));
  };
  const bool loaded = in_pairs(columns, src);
  const bool stored = in_pairs(rows, dst);
  if (src.element_size() == sizeof(uint64_t)) {
    launch<OrderTraits<uint64_t, 1, 1>>(dst, src, rows, columns, matrices);
  } else if (src.element_size() == sizeof(uint32_t)) {
    launch<OrderTraits<uint32_t, 1, 1>>(dst, src, rows, columns, matrices);
  } else if (loaded && stored) {
    launch<OrderTraits<uint16_t, 2, 2>>(dst, src, rows, columns, matrices);
  } else if (loaded) {
    launch<OrderTraits<uint16_t, 2, 1>>(dst, src, rows, columns, matrices);
  } else if (stored) {
    launch<OrderTraits<uint16_t, 1, 2>>(dst, src, rows, columns, matrices);
  } else {
    launch<OrderTraits<uint16_t, 1, 1>>(dst, src, rows, columns, matrices);
  }
}

} // namespace at::native::depthwise_conv2d_ext_cuda
