// Copies between the two memory orders, for calls of depthwise_conv2d_ext in channels-last order whose kernels
// are in plane order: [N][H·W][C] to [N][C][H·W] and back, an image at a time the transposition of a matrix.
//
// A block takes a tile of 64 x 64 elements through shared memory: rows of src come in as they are, columns of the
// tile leave as rows of dst. Elements of 16 bits go in pairs where rows begin at whole words, so that a warp reads
// and writes 128 bytes at a time; the pair that leaves is of two rows of the tile.
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;

// element_t_: unsigned integers of the elements' size. kLoaded_, kStored_: elements that are loaded and stored together.
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
