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
#include <ATen/native/cuda/depthwise_conv2d_ext/Bulk.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>

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

// The weight's gradient and all gradients of depthwise_conv2d_ext where there are so few elements that only
// the longest chain counts, in one kernel, in channels-last order, at stride 1 where the output is of the
// input's size.
//
// A warp has some vectors of channels and patches of pixels. A thread asks for its pixels of the input and
// for all that a window reaches of grad_output at once, takes its products into one sum a tap and its
// grad_input from the same registers. The lanes with the same channels are added up in a tree, the warps of
// a block in order and, where a channel's pixels are too many for a block, the blocks of a cluster in the
// first one's shared memory: no partials, no second kernel.
//
// Zeros outside the image are multiplied, which is right only while what they meet is finite: sums and
// results that end as NaN are taken again tap by tap, of places inside the image only. A float bias is added
// in double.
//
// Microseconds of an H200 on the device, the weight's gradient and all gradients, by the march or boxes and
// an addition of partials, and by this: N=1 144@56 in float 7.6, 8.6 and 4.6, 5.6, in half 6.5, 6.9 and 4.1,
// 4.7, 960@7 5.5, 7.6 and 2.7, 3.0, in half 5.0, 7.1 and 2.7, 3.0.

namespace {

constexpr int kMostOfCluster = 8; // blocks, on every device that has clusters

// Whether the kernel runs in clusters on the current device.
template <auto kKernel>
bool has_clusters() {
#if CUDART_VERSION >= 12000
  return compiled_for_sm_90<kKernel>();
#else
  return false;
#endif
}

// A kernel on a grid of clusters that are as wide as the grid is.
template <typename... Parameters, typename... Arguments>
void launch_clusters(
    void (*kernel)(Parameters...),
    dim3 grid,
    dim3 block,
    size_t shared,
    Arguments... arguments) {
#if CUDART_VERSION >= 12000
  if (grid.x > 1) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {grid.x, 1, 1};
    launch_with(&cluster, kernel, grid, block, shared, arguments...);
    return;
  }
#endif
  launch_kernel(kernel, grid, block, shared, arguments...);
}

// What the blocks of a cluster send to the first of them, as bytes that a barrier of the first one's counts:
// nobody waits for what else is on its way, as barriers of the whole cluster do for results on their way to
// memory (N=1 144@56 in channels-last, all gradients in half: 5.0 us, 4.7 so).

// By all threads of all blocks, of which the first will get so many bytes.
__device__ __forceinline__ void begin_sending(uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    init_barrier(shared_address(barrier), 1);
    arrive_and_expect(shared_address(barrier), bytes);
    fence_barriers();
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// By all threads, before they send: until all blocks have begun.
__device__ __forceinline__ void wait_for_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// To what `to` is in the first block.
template <typename T>
__device__ __forceinline__ void send_to_first(T* to, std::decay_t<T> value, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  uint32_t address = shared_address(to);
  uint32_t counter = shared_address(barrier);
  asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(address));
  asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(counter));
  if constexpr (sizeof(T) == sizeof(float)) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
        "r"(__float_as_uint(value)),
        "r"(counter)
        : "memory");
  } else {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(address),
        "l"(__double_as_longlong(value)),
        "r"(counter)
        : "memory");
  }
#endif
}

// In the first block: until all of it is there.
__device__ __forceinline__ void wait_for_parts(uint64_t* barrier) {
  wait_for(shared_address(barrier), 0);
}

using Divider = at::cuda::detail::IntDivider<uint32_t>;

struct FewPass : UnitStridePass { // of multiplier 1, src and dst of one size
  int32_t tasks; // patches of all images' pixels
  Divider tiles; // side by side
  Divider strips; // of tiles, one below the other
};

// By patches of so many columns and rows.
FewPass few_pass(const Params& params, int64_t columns, int64_t rows) {
  FewPass p{};
  set_unit_stride_pass(p, params);
  p.flip = true; // of grad_input
  const int64_t tiles = divide_up(params.input_width, columns);
  const int64_t strips = divide_up(params.input_height, rows);
  p.tasks = params.batch * tiles * strips;
  p.tiles = Divider(tiles);
  p.strips = Divider(strips);
  return p;
}

// Whether the window is one that they have: 3 x 3, and keeps the size of planes.
bool has_few_window(const Params& p, const Operand& input) {
  return keeps_size(p) && p.multiplier == 1 && p.dilation_height == 1 && p.dilation_width == 1 &&
      p.kernel_height == 3 && p.kernel_width == 3 && input.numel() > 0 && march_fits_32_bits(p);
}

constexpr int kMostThreads = 448;
constexpr int kMostWarps = kMostThreads / kWarpSize;

template <typename scalar_t_, typename Window, int kLanes_, int kRows_, bool kData_>
struct FewTraits {
  using scalar_t = scalar_t_;
  static constexpr int kWindow = Window::kHeight;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kReach = (kWindow - 1) / 2;
  static constexpr int kVector = 2; // channels of a thread; with four the registers are too few
  static constexpr int kLanes = kLanes_; // of a warp, that have channels beside each other
  static constexpr int kChannels = kVector * kLanes; // of a block
  static constexpr int kRows = kRows_; // of a patch
  static constexpr int kColumns = 2;
  static constexpr bool kData = kData_; // grad_input too
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  // Rounding to 16 bits would hide what an exact bias gives.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  static constexpr int kSums = kAlike * kVector;
  using Fold = WarpFold<kSums, kWarpSize / 2, kLanes>;
  using bias_t = std::conditional_t<kExact, double, float>;
  static_assert(Window::kWidth == kWindow && Window::kStride == 1);
};

// Where a thread's patch is: row and column in the image, and offset of its first element.
template <typename Traits>
struct FewPatch {
  static constexpr int kReach = Traits::kReach;
  static constexpr int kSeen = Traits::kRows + 2 * kReach; // rows of grad_output
  static constexpr int kWide = Traits::kColumns + 2 * kReach;
  using scalar_t = typename Traits::scalar_t;
  using Vector = Packed<scalar_t, Traits::kVector>;

  int image; // its offset
  int row;
  int column;
  int at;

  __device__ __forceinline__ FewPatch(int task, int channel, const FewPass& p) {
    const auto tile = p.tiles.divmod(task);
    const auto strip = p.strips.divmod(tile.div);
    image = strip.div * (p.src_height * p.src_width * p.channels) + channel;
    row = strip.mod * Traits::kRows;
    column = tile.mod * Traits::kColumns;
    at = image + (row * p.src_width + column) * p.channels;
  }

  __device__ __forceinline__ bool has(int i, int j, const FewPass& p) const {
    return static_cast<unsigned int>(row + i) < static_cast<unsigned int>(p.src_height) &&
        static_cast<unsigned int>(column + j) < static_cast<unsigned int>(p.src_width);
  }

  // Rows and columns from `first` on, before or after the patch's own; zeros where there are none.
  template <int kRows, int kColumns>
  __device__ __forceinline__ void load(
      Vector (&to)[kRows][kColumns],
      const scalar_t* from,
      int first,
      const FewPass& p) const {
    constexpr int kBytes = sizeof(scalar_t);
    int64_t row_step = p.src_width * p.channels * kBytes;
    int64_t column_step = p.channels * kBytes;
    auto of_row = reinterpret_cast<const char*>(from + at) + first * (row_step + column_step);
    // The compiler would multiply for each load otherwise.
    asm volatile("" : "+l"(row_step), "+l"(column_step), "+l"(of_row));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const char* element = of_row;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        to[i][j] = packed_zero<scalar_t, Traits::kVector>();
        if (has(first + i, first + j, p)) {
          to[i][j] =
              load_vector<scalar_t, Traits::kVector>(reinterpret_cast<const scalar_t*>(element));
        }
        element += column_step;
      }
      of_row += row_step;
    }
  }
};

// Adds a patch to the sums of the taps, and to the bias; writes its grad_input.
template <typename Traits>
__device__ __forceinline__ void take_patch(
    float (&sums)[Traits::kTaps][Traits::kVector],
    typename Traits::bias_t (&bias)[Traits::kVector],
    typename Traits::scalar_t* grad_input,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const typename Traits::scalar_t* channel_taps,
    const FewPatch<Traits>& patch,
    const FewPass& p) {
  using scalar_t = typename Traits::scalar_t;
  using Patch = FewPatch<Traits>;
  using Vector = typename Patch::Vector;
  constexpr int kVector = Traits::kVector;
  constexpr int kRows = Traits::kRows;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kReach = Traits::kReach;
  constexpr int kWindow = Traits::kWindow;
  constexpr int kTaps = Traits::kTaps;
  Vector values[kRows][kColumns];
  Vector grads[Patch::kSeen][Patch::kWide];
  Vector taps[kTaps]; // as they lie, all of a channel first
  patch.load(values, input, 0, p);
  patch.load(grads, grad_output, -kReach, p);
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    taps[tap] = Traits::kData ? load_vector<scalar_t, kVector>(channel_taps + tap * kVector)
                              : packed_zero<scalar_t, kVector>();
  }
  float whole[kVector] = {};
  bool careful = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float result[kColumns][kVector] = {};
#pragma unroll
    for (int h = 0; h < kWindow; ++h) {
      // In the order of the forward with the taps flipped, which is what grad_input alone is: its bits
      // are the same whatever else is wanted.
      RowSums<kColumns, kVector> products(result, h >= Traits::kOwnRow);
#pragma unroll
      for (int w = 0; w < kWindow; ++w) {
        const int tap = kTaps - 1 - (h * kWindow + w);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            const float grad = unpack(grads[i + h][c + w], v);
            sums[tap][v] = fmaf(unpack(values[i][c], v), grad, sums[tap][v]);
            if constexpr (Traits::kData) {
              const int of = v * kTaps + tap;
              products.add(w, c, v, grad, unpack(taps[of / kVector], of % kVector));
            }
          }
        }
      }
      if constexpr (Traits::kData) {
        products.finish();
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        whole[v] += unpack(grads[i + kReach][c + kReach], v);
        careful = careful || isnan(result[c][v]);
      }
      if (Traits::kData && patch.has(i, c, p)) {
        store_vector<scalar_t, kVector>(
            grad_input + (patch.at + (i * p.src_width + c) * p.channels), result[c]);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    bias[v] += whole[v];
  }
  if (Traits::kData && careful) {
#pragma unroll 1
    for (int k = 0; k < kRows * kColumns * kVector; ++k) {
      const int v = k % kVector;
      const int i = k / kVector / kColumns;
      const int c = k / kVector % kColumns;
      if (patch.has(i, c, p)) {
        grad_input[patch.at + (i * p.src_width + c) * p.channels + v] =
            static_cast<scalar_t>(careful_output<true>(
                grad_output + patch.image + v,
                channel_taps + v * kTaps,
                0.0f,
                p,
                patch.row + i,
                patch.column + c));
      }
    }
  }
}

// The sum of `count` parts that are `next` apart, most at most.
template <int most, typename T>
__device__ __forceinline__ T add_parts(const T* parts, int next, int count) {
  constexpr int kChains = 2;
  T chains[kChains] = {};
#pragma unroll
  for (int i = 0; i < most; ++i) {
    const T part = parts[i * next];
    chains[i % kChains] += i < count ? part : 0;
  }
  return chains[0] + chains[1];
}

// block: vectors of channels x patches, in whole warps; grid: blocks of a cluster, groups of channels.
// grad_input only where Traits::kData; grad_weight or grad_bias may be null.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kMostThreads, 1)
__global__ void few_pixels_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    typename Traits::scalar_t* __restrict__ grad_weight,
    typename Traits::scalar_t* __restrict__ grad_bias,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ FewPass p) {
  using scalar_t = typename Traits::scalar_t;
  using Fold = typename Traits::Fold;
  using bias_t = typename Traits::bias_t;
  constexpr int kVector = Traits::kVector;
  constexpr int kLanes = Traits::kLanes;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kBlockSums = Traits::kSums * kLanes;
  __shared__ float of_warps[kMostWarps][kBlockSums];
  __shared__ double biases_of_warps[kMostWarps][Traits::kChannels];
  __shared__ float of_blocks[kMostOfCluster][kBlockSums];
  __shared__ double biases_of_blocks[kMostOfCluster][Traits::kChannels];
  __shared__ uint64_t all_sent;
  const int blocks = gridDim.x; // of the channels
  if (blocks > 1) {
    constexpr int kOfBlock =
        sizeof(of_blocks[0]) + (Traits::kExact ? sizeof(biases_of_blocks[0]) : 0);
    begin_sending(&all_sent, blocks * kOfBlock);
  }
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int first_channel = blockIdx.y * Traits::kChannels;
  const int channel = first_channel + threadIdx.x % kLanes * kVector;
  const int patches = blockDim.x / kLanes;

  float sums[kTaps][kVector] = {};
  bias_t bias[kVector] = {};
  if (channel < p.channels) {
#pragma unroll 1
    for (int task = blockIdx.x * patches + threadIdx.x / kLanes; task < p.tasks;
         task += blocks * patches) {
      const FewPatch<Traits> patch(task, channel, p);
      take_patch<Traits>(
          sums, bias, grad_input, grad_output, input, weight + channel * kTaps, patch, p);
    }
  }

  float values[Traits::kSums];
#pragma unroll
  for (int k = 0; k < Traits::kAlike; ++k) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      values[k * kVector + v] =
          k < kTaps ? sums[k < kTaps ? k : 0][v] : static_cast<float>(bias[v]);
    }
  }
  __syncwarp();
  Fold::fold(values, lane);
  if constexpr (Traits::kExact) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
#pragma unroll
      for (int partner = kWarpSize / 2; partner >= kLanes; partner /= 2) {
        bias[v] += __shfl_xor_sync(0xffffffffu, bias[v], partner);
      }
    }
  }
  // What a lane has of them: sum k of the block's, after which biases follow if they are in double.
  const auto each = [&](const auto& take, const auto& take_bias) {
#pragma unroll
    for (int i = 0; i < Fold::kKept; ++i) {
      const int of = Fold::index_of(i, lane);
      if (of >= 0) {
        take(of * kLanes + lane % kLanes, values[i]);
      }
    }
    if (Traits::kExact && lane < kLanes) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        take_bias(v * kLanes + lane, bias[v]);
      }
    }
  };
  const auto write = [&](int k, bias_t sum) {
    const bool exact = k >= kBlockSums;
    const int own = exact ? k - kBlockSums : k;
    const int tap = exact ? kTaps : own / Traits::kChannels;
    const int to = first_channel + own % kLanes * kVector + own / kLanes % kVector;
    if (to >= p.channels) {
      return;
    }
    if (isnan(sum)) {
      sum = careful_tap<true>(grad_output, input, p, to, tap, 0, p.batch, p.batch);
    }
    if (tap < kTaps && grad_weight) {
      grad_weight[to * kTaps + tap] = static_cast<scalar_t>(sum);
    } else if (tap == kTaps && grad_bias) {
      grad_bias[to] = static_cast<scalar_t>(sum);
    }
  };
  if (blocks == 1 && blockDim.x == kWarpSize) {
    each(write, [&](int k, bias_t sum) { write(kBlockSums + k, sum); });
    return;
  }
  each(
      [&](int k, float sum) { of_warps[warp][k] = sum; },
      [&](int k, bias_t sum) { biases_of_warps[warp][k] = sum; });
  __syncthreads();
  constexpr int kAll = kBlockSums + (Traits::kExact ? Traits::kChannels : 0);
  const int warps = blockDim.x / kWarpSize;
  const auto finish = [&](int k, auto* of_block, auto sum) {
    if (blocks > 1) {
      send_to_first(of_block, sum, &all_sent);
    } else {
      write(k, sum);
    }
  };
  if (blocks > 1) {
    wait_for_begin();
  }
#pragma unroll 1
  for (int k = threadIdx.x; k < kAll; k += blockDim.x) {
    const int exact = k - kBlockSums;
    if (exact < 0) {
      finish(
          k, &of_blocks[blockIdx.x][k], add_parts<kMostWarps>(&of_warps[0][k], kBlockSums, warps));
    } else {
      finish(
          k,
          &biases_of_blocks[blockIdx.x][exact],
          add_parts<kMostWarps>(&biases_of_warps[0][exact], Traits::kChannels, warps));
    }
  }
  if (blocks == 1 || blockIdx.x > 0) {
    return;
  }
  wait_for_parts(&all_sent);
#pragma unroll 1
  for (int k = threadIdx.x; k < kAll; k += blockDim.x) {
    const int exact = k - kBlockSums;
    if (exact < 0) {
      write(k, add_parts<kMostOfCluster>(&of_blocks[0][k], kBlockSums, blocks));
    } else {
      write(k, add_parts<kMostOfCluster>(&biases_of_blocks[0][exact], Traits::kChannels, blocks));
    }
  }
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr size_t kBytes = Traits::kVector * sizeof(scalar_t);
  constexpr int64_t kMostRounds = 2; // of patches, where there are as many blocks as are wanted
  // More in larger clusters do not all fit the GPCs at once: 144@56 by 18 clusters of 5 5.1 us, of 6 8.2.
  constexpr int64_t kWantedBlocks = 60;
  constexpr int64_t kLeastWarps = 2; // of a cluster's block
  const FewPass p = few_pass(params, Traits::kColumns, Traits::kRows);
  const int64_t groups = divide_up(params.channels, Traits::kChannels);
  const int64_t warps = divide_up(static_cast<int64_t>(p.tasks) * Traits::kLanes, kWarpSize);
  constexpr auto kernel = few_pixels_backward_kernel<Traits>;
  const bool clusters = has_clusters<kernel>();
  const int64_t wanted = std::min(divide_up(kWantedBlocks, groups), divide_up(warps, kLeastWarps));
  const int64_t blocks = clusters
      ? std::min<int64_t>(kMostOfCluster, std::max(divide_up(warps, kMostWarps), wanted))
      : 1;
  const int64_t rounds = groups * blocks < kWantedBlocks ? 1 : kMostRounds;
  const auto grad_input = pass.grad_input.defined() ? pass.grad_input.const_data_ptr() : nullptr;
  if (groups > kMostGridRows || warps > rounds * blocks * kMostWarps ||
      params.channels % Traits::kVector != 0 || !is_aligned(pass.input.const_data_ptr(), kBytes) ||
      !is_aligned(pass.grad_output.const_data_ptr(), kBytes) ||
      !is_aligned(pass.weight.const_data_ptr(), kBytes) || !is_aligned(grad_input, kBytes)) {
    return false;
  }
  const int64_t block_warps = std::min<int64_t>(divide_up(warps, blocks), kMostWarps);
  launch_clusters(
      kernel,
      dim3(blocks, groups),
      dim3(block_warps * kWarpSize),
      0,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      mutable_pointer_or_null<scalar_t>(pass.grad_weight),
      mutable_pointer_or_null<scalar_t>(pass.grad_bias),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      p);
  return true;
}

} // namespace

bool few_pixels_backward(const BackwardPass& pass, const Params& p) {
  if (!p.channels_last || !has_few_window(p, pass.input)) {
    return false;
  }
  return with_scalar_type(pass.input.type(), [&](auto scalar) {
    const auto with = [&](auto lanes, auto rows) {
      using scalar_t = decltype(scalar);
      using Fixed = Window<3, 3, 1>;
      constexpr int kLanes = decltype(lanes)::value;
      constexpr int kRows = decltype(rows)::value;
      return pass.grad_input.defined()
          ? launch<FewTraits<scalar_t, Fixed, kLanes, kRows, true>>(pass, p)
          : launch<FewTraits<scalar_t, Fixed, kLanes, kRows, false>>(pass, p);
    };
    using Two = std::integral_constant<int, 2>;
    using Four = std::integral_constant<int, 4>;
    using Eight = std::integral_constant<int, 8>;
    // 64 bytes of a pixel are read nearly twice as fast as 32, but where a warp has a whole plane it ends
    // sooner with less to do.
    constexpr int64_t kPlaneOfWarp = 8 * 8 + 1;
    return p.batch * p.input_height * p.input_width < kPlaneOfWarp ? with(Two(), Two())
                                                                   : with(Eight(), Four());
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
