// Forward of depthwise_conv2d_ext where there are so few elements that only the longest chain counts, in
// channels-last order at stride 1, and grad_input, which is the forward on grad_output with the taps
// flipped.
//
// A thread owns a vector of channels of a few pixels and asks for all that it reads at once, so that it takes
// one trip to memory, where a march waits for its rows and a block for its taps. A block has a rectangle of
// pixels of a few channels: with all channels of some columns of one row the L2 was asked for each pixel four
// times, and each warp for the taps of all channels.
//
// Zeros outside the image are multiplied by taps, which is the same only for finite taps: results that end as
// NaN are taken again tap by tap, of places inside the image only.
//
// Microseconds of an H200 on the device, before and by this: N=1 144@56 in float 4.5, 3.0, in half 3.7, 2.6,
// 960@7 2.5, 1.9, in half 2.4, 1.8; 4 images of 144@56, by boxes before, 7.6, 6.6, in half 6.5, 4.9.
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

// After those that it needs.
#include <ATen/cuda/detail/IntegerDivider.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kThreads = 128;
// With the registers of so many blocks the compiler leaves all loads before what waits for them; without a
// bound it takes fewer.
constexpr int kBlocks = 4;

// Of results. From so many on a thread has 2 x 2 pixels, before 2 x 1, which is more threads and more reads:
// 96@28 in float 2.1, 1.9 us, 144@56 2.7, 2.8 in half, 16 images of 960@7 3.9, 4.7.
inline int64_t many_elements() {
  return multiprocessors() * 2 * 1024;
}

using Divider = at::cuda::detail::IntDivider<uint32_t>;

struct FewPixels : UnitStridePass { // of multiplier 1
  Divider stretches; // of columns; outside of them groups of channels
  Divider column_phases; // of a dilation
  Divider row_phases;
};

template <typename scalar_t_, typename Window, bool kWide, bool kFlip_>
struct FewPixelsTraits {
  using scalar_t = scalar_t_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr bool kFlip = kFlip_;
  static constexpr int kVector = 4; // channels
  // Of a thread. Where there are fewer elements more threads are worth more reads.
  static constexpr int kRows = kHeight == 1 ? 1 : 2;
  static constexpr int kColumns = kWide ? 2 : 1;
  static constexpr int kSeenRows = kRows + kHeight - 1;
  static constexpr int kSeenColumns = kColumns + kWidth - 1;
};

// The first place of tile `index` along one dimension. A tile's places are a dilation apart.
template <int kTile>
__device__ __forceinline__ int place_of(int index, int dilation, const Divider& phases) {
  if (dilation == 1) {
    return index * kTile;
  }
  const auto tile = phases.divmod(index);
  return tile.mod + tile.div * (kTile * dilation);
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, kBlocks)
__global__ void few_pixels_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ FewPixels p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  constexpr int kRows = Traits::kRows;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kTaps = Traits::kTaps;
  using Vector = Packed<scalar_t, kVector>;
  const auto stretch = p.stretches.divmod(blockIdx.x);
  const int channel = (stretch.div * blockDim.x + threadIdx.x) * kVector;
  const int column =
      place_of<kColumns>(stretch.mod * blockDim.y + threadIdx.y, p.dilation_width, p.column_phases);
  const int row =
      place_of<kRows>(blockIdx.y * blockDim.z + threadIdx.z, p.dilation_height, p.row_phases);
  if (channel >= p.channels || row >= p.dst_height || column >= p.dst_width) {
    return;
  }
  const scalar_t* const image =
      src + blockIdx.z * (p.src_height * p.src_width * p.channels) + channel;
  const int top = row - p.padding_height;
  const int left = column - p.padding_width;
  constexpr int kBytes = sizeof(scalar_t);
  auto of_row = reinterpret_cast<const char*>(image + (top * p.src_width + left) * p.channels);
  int64_t row_step = p.dilation_height * p.src_width * p.channels * kBytes;
  int64_t column_step = p.dilation_width * p.channels * kBytes;
  // The compiler would multiply for each load otherwise.
  asm volatile("" : "+l"(of_row), "+l"(row_step), "+l"(column_step));
  Vector values[Traits::kSeenRows][Traits::kSeenColumns];
#pragma unroll
  for (int i = 0; i < Traits::kSeenRows; ++i) {
    const bool has_row = static_cast<unsigned int>(top + i * p.dilation_height) <
        static_cast<unsigned int>(p.src_height);
    const char* from = of_row;
#pragma unroll
    for (int j = 0; j < Traits::kSeenColumns; ++j) {
      const bool has_column = static_cast<unsigned int>(left + j * p.dilation_width) <
          static_cast<unsigned int>(p.src_width);
      values[i][j] = packed_zero<scalar_t, kVector>();
      if (has_row && has_column) {
        values[i][j] = load_vector<scalar_t, kVector>(reinterpret_cast<const scalar_t*>(from));
      }
      from += column_step;
    }
    of_row += row_step;
  }
  const scalar_t* const channel_taps = weight + channel * kTaps;
  Vector taps[kTaps]; // as they lie, all of a channel first
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    taps[tap] = load_vector<scalar_t, kVector>(channel_taps + tap * kVector);
  }
  Vector begin = packed_zero<scalar_t, kVector>();
  if (bias) {
    begin = load_vector<scalar_t, kVector>(bias + channel);
  }

  float sums[kRows][kColumns][kVector];
  bool careful = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int t = 0; t < kColumns; ++t) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        sums[i][t][v] = unpack(begin, v);
      }
    }
#pragma unroll
    for (int kh = 0; kh < Traits::kHeight; ++kh) {
      RowSums<kColumns, kVector> products(sums[i], kh >= Traits::kOwnRow);
#pragma unroll
      for (int kw = 0; kw < Traits::kWidth; ++kw) {
        const int forth = kh * Traits::kWidth + kw;
        const int tap = Traits::kFlip ? kTaps - 1 - forth : forth;
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const int at = v * kTaps + tap;
          const float factor = unpack(taps[at / kVector], at % kVector);
#pragma unroll
          for (int t = 0; t < kColumns; ++t) {
            products.add(kw, t, v, unpack(values[i + kh][t + kw], v), factor);
          }
        }
      }
      products.finish();
    }
  }
  scalar_t* const to = dst + blockIdx.z * (p.dst_height * p.dst_width * p.channels) + channel;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int t = 0; t < kColumns; ++t) {
      const int h = row + i * p.dilation_height;
      const int w = column + t * p.dilation_width;
      if (h < p.dst_height && w < p.dst_width) {
        store_vector<scalar_t, kVector>(to + (h * p.dst_width + w) * p.channels, sums[i][t]);
      }
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        careful = careful || isnan(sums[i][t][v]);
      }
    }
  }
  if (careful) {
#pragma unroll 1
    for (int k = 0; k < kRows * kColumns * kVector; ++k) {
      const int v = k % kVector;
      const int h = row + k / kVector / kColumns * p.dilation_height;
      const int w = column + k / kVector % kColumns * p.dilation_width;
      if (h < p.dst_height && w < p.dst_width) {
        const float first = bias ? static_cast<float>(bias[channel + v]) : 0.0f;
        to[(h * p.dst_width + w) * p.channels + v] = static_cast<scalar_t>(
            careful_output<true>(image + v, channel_taps + v * kTaps, first, p, h, w));
      }
    }
  }
}

template <typename Traits>
bool launch(const ForwardPass& pass, FewPixels p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr size_t kVectorBytes = Traits::kVector * sizeof(scalar_t);
  constexpr int64_t kBlockBytes = Traits::kHeight == 1 ? 256 : 64; // of a pixel
  constexpr int64_t kMostOfGrid = 65535;
  auto* const dst = pass.dst.mutable_data_ptr<scalar_t>();
  const auto* const src = pass.src.const_data_ptr<scalar_t>();
  const auto* const weight = pass.weight.const_data_ptr<scalar_t>();
  const auto* const bias = pointer_or_null<scalar_t>(pass.bias);
  if (p.channels % Traits::kVector != 0 || !is_aligned(dst, kVectorBytes) ||
      !is_aligned(src, kVectorBytes) || !is_aligned(weight, kVectorBytes) ||
      !is_aligned(bias, kVectorBytes)) {
    return false;
  }
  const auto tiles_of = [](int64_t places, int64_t dilation, int64_t tile) {
    return divide_up(divide_up(places, dilation), tile) * dilation;
  };
  const int64_t vectors = p.channels / Traits::kVector;
  const int64_t lanes = std::min<int64_t>(kBlockBytes / kVectorBytes, vectors);
  const int64_t columns = tiles_of(p.dst_width, p.dilation_width, Traits::kColumns);
  const int64_t rows = tiles_of(p.dst_height, p.dilation_height, Traits::kRows);
  // Threads of a block, which is about as high as it is wide where there are as many rows.
  const int64_t of_lane = kThreads / lanes;
  const int64_t most_columns = of_lane / std::min<int64_t>(rows, 2 * Traits::kColumns);
  const int64_t stretches = divide_up(columns, most_columns);
  const int64_t block_columns = divide_up(columns, stretches);
  const int64_t bands = divide_up(rows, of_lane / block_columns);
  if (bands > kMostOfGrid || p.batch > kMostOfGrid) {
    return false;
  }
  p.stretches = Divider(stretches);
  p.column_phases = Divider(p.dilation_width);
  p.row_phases = Divider(p.dilation_height);
  const dim3 grid(divide_up(vectors, lanes) * stretches, bands, p.batch);
  const dim3 block(lanes, block_columns, divide_up(rows, bands));
  launch_kernel(few_pixels_kernel<Traits>, grid, block, 0, dst, src, weight, bias, p);
  return true;
}

bool few_pixels_pass(const ForwardPass& pass, const FewPixels& few, const Params& p) {
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_window(p, [&](auto window) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(window);
      if constexpr (Fixed::kStride == 1 && Fixed::kWidth == 3) {
        const auto with = [&](auto wide) {
          constexpr bool kWide = decltype(wide)::value;
          return few.flip ? launch<FewPixelsTraits<scalar_t, Fixed, kWide, true>>(pass, few)
                          : launch<FewPixelsTraits<scalar_t, Fixed, kWide, false>>(pass, few);
        };
        return pass.dst.numel() > many_elements() ? with(std::true_type())
                                                  : with(std::false_type());
      } else {
        return false;
      }
    });
  });
}

bool few_pixels_take(const Params& p, const Operand& dst) {
  return p.channels_last && p.multiplier == 1 && dst.numel() > 0 && march_fits_32_bits(p);
}

} // namespace

bool few_pixels_forward(const ForwardPass& pass, const Params& p) {
  if (!few_pixels_take(p, pass.dst)) {
    return false;
  }
  FewPixels few{};
  set_unit_stride_pass(few, p);
  if (pass.grad_input) {
    turn_around(few, p);
  }
  return few_pixels_pass(pass, few, p);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
