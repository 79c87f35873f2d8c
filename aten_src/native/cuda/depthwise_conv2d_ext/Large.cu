// depthwise_conv2d_ext with large windows of any size, at stride 1 without dilation.
//
// The operation is bound by multiply-adds here, not by memory, so everything is arranged for few
// other instructions: rows of the image and all the taps of a channel lie in shared memory as
// floats, and a thread keeps a tile of 2 rows x 8 columns of sums. Along a row it slides a window
// of 16 source values, 8 at a time: two vector loads of the source and four of the taps feed 128
// multiply-adds. Only rows inside the image are visited: 27 x 27 on 14 x 14 has 14 of 27.
// grad_input is the same with flipped taps.
//
// Channels-last tensors are copied to plane order and back; that is small beside the arithmetic.
//
// Windows are filled up to whole vectors with zeros, and rows to pairs. That spoils a result where
// the other factor is not finite, and leaves NaN: a result that is NaN is taken again, tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kMostThreads = 256;
constexpr int kVector = 8; // columns, or taps along a row, of a thread
constexpr int kRows = 2; // rows, or rows of taps, of a thread
constexpr int64_t kMostShared = 48 * 1024; // what every device gives without being asked

struct Large : UnitStridePass {
  int32_t taps_width; // kernel_width in whole vectors
  int32_t taps_pitch; // floats from one row of taps to the next
  int32_t tile_rows; // dst rows of a block
  int32_t tile_columns; // dst columns of a block, whole vectors
  int32_t row_tiles;
  int32_t column_tiles;
  int32_t images; // that a block takes at a time
  int32_t source_rows; // rows of src in shared memory
  int32_t source_pitch;
};

__device__ __forceinline__ void read_eight(float* to, const float* from) {
  read_four(to, from);
  read_four(to + 4, from + 4);
}

// grid: (row tiles x column tiles x groups of images) x channels.
template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(kMostThreads)
__global__ void large_forward_kernel(
    scalar_t* __restrict__ dst,
    const scalar_t* __restrict__ src,
    const scalar_t* __restrict__ weight,
    const scalar_t* __restrict__ bias,
    const __grid_constant__ Params call,
    const __grid_constant__ Large p) {
  extern __shared__ float4 shared_vectors[];
  // One row of zeros before the taps and one after them.
  float* const taps = reinterpret_cast<float*>(shared_vectors);
  float* const source = taps + (p.kernel_height + 2) * p.taps_pitch;

  const int channel = blockIdx.y;
  int tile = blockIdx.x;
  const int first_column = tile % p.column_tiles * p.tile_columns;
  tile /= p.column_tiles;
  const int first_row = tile % p.row_tiles * p.tile_rows;
  const int first_image = tile / p.row_tiles * p.images;
  const int images = min(p.images, p.batch - first_image);
  const int kernel_size = p.kernel_height * p.kernel_width;

  for (int i = threadIdx.x; i < (p.kernel_height + 2) * p.taps_pitch; i += blockDim.x) {
    const int kh = i / p.taps_pitch - 1;
    const int kw = i % p.taps_pitch;
    float value = 0.0f;
    if (kh >= 0 && kh < p.kernel_height && kw < p.kernel_width) {
      const int tap = kh * p.kernel_width + kw;
      value = static_cast<float>(
          weight[channel * kernel_size + (p.flip ? kernel_size - 1 - tap : tap)]);
    }
    taps[i] = value;
  }
  // The rows of src that this tile needs and that exist.
  const int top = max(0, first_row - p.padding_height);
  const int bottom =
      min(p.src_height,
          min(p.dst_height, first_row + p.tile_rows) - p.padding_height + p.kernel_height - 1);
  const int rows = max(0, bottom - top);
  const int left = first_column - p.padding_width;
  for (int i = threadIdx.x; i < images * rows * p.source_pitch; i += blockDim.x) {
    const int w = left + i % p.source_pitch;
    const int h = i / p.source_pitch % rows;
    const int image = i / p.source_pitch / rows;
    const int plane = ((first_image + image) * p.channels + channel) / p.multiplier;
    source[(image * p.source_rows + h) * p.source_pitch + i % p.source_pitch] =
        w >= 0 && w < p.src_width
        ? static_cast<float>(src[(plane * p.src_height + top + h) * p.src_width + w])
        : 0.0f;
  }
  __syncthreads();

  const int groups = p.tile_columns / kVector;
  const int group = threadIdx.x % groups;
  const int image = threadIdx.x / groups % p.images;
  const int row = first_row + threadIdx.x / groups / p.images * kRows;
  const int column = first_column + group * kVector;
  if (image >= images || row >= p.dst_height || row >= first_row + p.tile_rows ||
      column >= p.dst_width) {
    return;
  }
  float sums[kRows][kVector] = {};
  for (int h = 0; h < rows; ++h) {
    const int kh = top + h - row + p.padding_height; // of the first row; the second's is one less
    if (kh < 0 || kh > p.kernel_height) {
      continue;
    }
    const float* from = source + (image * p.source_rows + h) * p.source_pitch + group * kVector;
    const float* factors = taps + (kh + 1) * p.taps_pitch;
    float window[2 * kVector];
    read_eight(window + kVector, from);
    for (int kw = 0; kw < p.taps_width; kw += kVector) {
      float factor[kRows][kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        window[i] = window[kVector + i];
      }
      read_eight(window + kVector, from + kw + kVector);
      read_eight(factor[0], factors + kw);
      read_eight(factor[1], factors - p.taps_pitch + kw);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
#pragma unroll
        for (int t = 0; t < kVector; ++t) {
          sums[0][t] = fmaf(window[i + t], factor[0][i], sums[0][t]);
          sums[1][t] = fmaf(window[i + t], factor[1][i], sums[1][t]);
        }
      }
    }
  }
  const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
  const int plane = (first_image + image) * p.channels + channel;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (row + i >= p.dst_height || row + i >= first_row + p.tile_rows) {
      continue;
    }
#pragma unroll
    for (int t = 0; t < kVector; ++t) {
      if (column + t < p.dst_width) {
        float value = sums[i][t] + begin;
        if (isnan(value)) {
          value = mended(
              src, weight, begin, call, p.flip, first_image + image, channel, row + i, column + t);
        }
        dst[(plane * p.dst_height + row + i) * p.dst_width + column + t] =
            static_cast<scalar_t>(value);
      }
    }
  }
}

int32_t round_up(int64_t value, int64_t to) {
  return divide_up(value, to) * to;
}

bool applies(const Params& p) {
  return fits_32_bits(p) && !p.channels_last && p.stride_height == 1 && p.stride_width == 1 &&
      p.dilation_height == 1 && p.dilation_width == 1 && p.output_channels() <= kMostGridRows &&
      p.kernel_height < 1024 && p.kernel_width < 1024;
}

// Of the forward and grad_input.
bool applies_to_data(const Params& p, const Operand& dst) {
  // Narrower planes leave vectors empty.
  return dst.numel() > 0 && applies(p) && std::min(p.input_width, p.output_width) >= kVector;
}

Large large_of(const Params& p) {
  Large l{};
  set_unit_stride_pass(l, p);
  l.taps_width = round_up(p.kernel_width, kVector);
  // Rows of taps that a warp reads together differ by pairs and fall into different banks.
  l.taps_pitch = l.taps_width + 4;
  return l;
}

// Bytes of shared memory of a forward block, once its tile is chosen.
int64_t plan_source(Large& l) {
  l.source_rows = std::min(l.src_height, l.tile_rows + l.kernel_height - 1);
  l.source_pitch = l.tile_columns + l.taps_width;
  return static_cast<int64_t>(sizeof(float)) *
      ((l.kernel_height + 2) * l.taps_pitch +
       static_cast<int64_t>(l.images) * l.source_rows * l.source_pitch);
}

// Chooses the tile; false where none fits into shared memory.
bool plan_forward(Large& l, int& threads, int64_t& shared) {
  constexpr int kMostColumns = 64;
  l.tile_columns = std::min(kMostColumns, round_up(l.dst_width, kVector));
  const int groups = l.tile_columns / kVector;
  l.tile_rows = std::min<int32_t>(
      round_up(l.dst_height, kRows), std::max(kRows, kMostThreads / groups * kRows));
  l.images = 1;
  while ((shared = plan_source(l)) > kMostShared) {
    if (l.tile_rows <= kRows) {
      return false;
    }
    l.tile_rows = round_up(l.tile_rows / 2, kRows);
  }
  const int threads_per_image = groups * (l.tile_rows / kRows);
  while (l.images * 2 <= l.batch && threads_per_image * l.images * 2 <= kMostThreads) {
    l.images *= 2;
    if (plan_source(l) > kMostShared) {
      l.images /= 2;
      break;
    }
  }
  shared = plan_source(l);
  threads = threads_per_image * l.images;
  l.row_tiles = divide_up(l.dst_height, l.tile_rows);
  l.column_tiles = divide_up(l.dst_width, l.tile_columns);
  return true;
}

bool launch_forward(const ForwardPass& pass, const Params& p, Large l) {
  int threads = 0;
  int64_t shared = 0;
  if (!plan_forward(l, threads, shared)) {
    return false;
  }
  const int64_t blocks =
      divide_up(l.batch, l.images) * l.row_tiles * static_cast<int64_t>(l.column_tiles);
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    using scalar_t = decltype(scalar);
    launch_kernel(
        large_forward_kernel<scalar_t>,
        dim3(blocks, l.channels),
        threads,
        shared,
        pass.dst.mutable_data_ptr<scalar_t>(),
        pass.src.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.bias),
        p,
        l);
    return true;
  });
}

} // namespace

bool large_forward(const ForwardPass& pass, const Params& p) {
  if (!applies_to_data(p, pass.dst) || (pass.grad_input && p.multiplier != 1)) {
    return false;
  }
  Large l = large_of(p);
  if (pass.grad_input) {
    turn_around(l, p);
  }
  return launch_forward(pass, p, l);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
