// depthwise_conv2d_ext at stride 2 from planes of 14 x 14 to planes of 7 x 7, many images at a time: the
// lanes of a warp are 32 images of one channel, as in LanesPlanes.cuh, in all three
// types; most of 16 bit goes by BatchStrided.cu. The windows are 3 x 3 and 5 x 5 with the
// usual padding.
//
// A warp has whole planes, and nothing to do with any other. Planes come into shared memory as they
// are, columns two at a time; a lane marches over the rows of its plane, each of which it unpacks once. All
// of that is unrolled: what is outside the image is neither loaded nor multiplied, and so spoils
// nothing. Results take the place of rows that nobody needs any more.
//
// Backward, a row of the input meets up to three rows of grad_output: in the weight's gradient, one sum
// a tap, and in the same row of grad_input, which takes its place. What is not wanted is left out. A block
// has all images of its channels; its sums are the result, without partials.
//
// Microseconds of an H200 for 128 images of 672 channels by 5 x 5, forward, grad_input, the
// weight's and all gradients: float32 48, 74, 82, 155 became 40, 34, 36, 60; float16 30, 71, 71,
// 141 became 25, 23, 28, 41.
#include <ATen/native/cuda/depthwise_conv2d_ext/Lanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kSide = 14; // of the input
constexpr int kSmallSide = 7; // of the output
constexpr int kPixels = kSide * kSide;
constexpr int kSmallPixels = kSmallSide * kSmallSide;
constexpr int kMostWarps = 4; // of a block

struct LanesStrided {
  int32_t batch;
  int32_t channels;
  int32_t block_channels;
  int32_t ways; // warps that share the images of a channel
};

template <typename scalar_t_, int kWindow_, bool kData_, bool kWeight_>
struct LanesStridedTraits {
  using scalar_t = scalar_t_;
  using Pair = Packed<scalar_t, 2>;
  static constexpr int kWindow = kWindow_;
  static constexpr bool kData = kData_; // whether grad_input is wanted
  static constexpr bool kWeight = kWeight_; // whether the weight's gradient is
  static constexpr bool kBackward = kData || kWeight;
  static constexpr int kReach = kWindow / 2;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window<kWindow, kWindow, 2>>;
  // A plane's elements from image to image, an odd number of pairs, and of a small plane's words.
  static constexpr int kPairs = kPixels / 2;
  static constexpr int kPitch = (kPairs | 1) * 2;
  static constexpr int kPlaneBytes = kWarpSize * kPitch * sizeof(scalar_t);
  static constexpr int kElementsOfWord = 4 / sizeof(scalar_t);
  static constexpr int kSmallWords = (kSmallPixels + kElementsOfWord - 1) / kElementsOfWord;
  static constexpr int kSmallPitch = kSmallWords * kElementsOfWord;
  static constexpr int kSmallBytes = kBackward ? kWarpSize * kSmallPitch * sizeof(scalar_t) : 0;
  static_assert(kSmallWords % 2 == 1);
  static constexpr int kTapPitch = kWindow > 4 ? 8 : 4;
  static constexpr int kTapBytes = kWindow * kTapPitch * sizeof(float);
  static constexpr int kUnitBytes = kPlaneBytes + kSmallBytes + kTapBytes;
  static constexpr int kWarps = sizeof(scalar_t) == 4 ? kMostWarps / 2 : kMostWarps; // of a block
  static constexpr int kSums = (kTaps + kWarpSize - 1) / kWarpSize * kWarpSize;
  static constexpr int kOwn = kSums / kWarpSize;
  static constexpr int kChain = 8; // groups of images until a lane's sums are added to the others'
  static_assert(kPlaneBytes % 16 == 0 && kSmallBytes % 16 == 0 && kTapBytes % 16 == 0);
};

template <typename Traits>
__device__ __forceinline__ void stage_taps(float* to, const typename Traits::scalar_t* weight) {
  for (int i = threadIdx.x % kWarpSize; i < Traits::kWindow * Traits::kTapPitch; i += kWarpSize) {
    const int kw = i % Traits::kTapPitch;
    to[i] = kw < Traits::kWindow
        ? static_cast<float>(weight[i / Traits::kTapPitch * Traits::kWindow + kw])
        : 0.0f;
  }
}

// Planes of the input in pairs of columns, from one on, in all images of a channel.
template <typename Traits>
__device__ __forceinline__ Runs plane_runs(int first_plane, int images, int channels) {
  return {first_plane * Traits::kPairs, images, Traits::kPitch / 2, channels * Traits::kPairs};
}

template <typename Traits>
__device__ __forceinline__ void load_planes(void* to, const void* from, const Runs& runs) {
  load_runs<typename Traits::Pair, Traits::kPairs, kWarpSize>(to, from, runs);
}

template <typename Traits>
__device__ __forceinline__ void read_row(
    float (&row)[kSide],
    const typename Traits::scalar_t* from) {
  const auto* const pairs = reinterpret_cast<const typename Traits::Pair*>(from);
#pragma unroll
  for (int i = 0; i < kSide / 2; ++i) {
    const auto pair = pairs[i];
    row[2 * i] = unpack(pair, 0);
    row[2 * i + 1] = unpack(pair, 1);
  }
}

// grid: groups of channels x groups of images.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kWarps* kWarpSize, 4)
__global__ void lanes_strided_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ LanesStrided p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kWindow = Traits::kWindow;
  extern __shared__ uint4 shared_blocks[];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int channel = blockIdx.x * p.block_channels + warp;
  if (channel >= p.channels) {
    return;
  }
  char* const shared = reinterpret_cast<char*>(shared_blocks) + warp * Traits::kUnitBytes;
  auto* const plane = reinterpret_cast<scalar_t*>(shared);
  auto* const taps = reinterpret_cast<float*>(shared + Traits::kPlaneBytes);
  const int first_image = blockIdx.y * kWarpSize;
  const int images = min(kWarpSize, p.batch - first_image);
  const int first_plane = first_image * p.channels + channel;
  load_planes<Traits>(plane, src, plane_runs<Traits>(first_plane, images, p.channels));
  commit_copies();
  stage_taps<Traits>(taps, weight + channel * Traits::kTaps);
  const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
  wait_for_groups<0>();
  __syncwarp();

  scalar_t* const mine = plane + lane * Traits::kPitch;
  // Of the rows under way; row o meets the rows 2 o - kReach to 2 o + kReach.
  constexpr int kSlots = Traits::kReach + 1;
  float sums[kSlots][kSmallSide];
#pragma unroll
  for (int h = 0; h < kSide; ++h) {
    float row[kSide];
    read_row<Traits>(row, mine + h * kSide);
#pragma unroll
    for (int o = 0; o < kSmallSide; ++o) {
      const int kh = h - 2 * o + Traits::kReach;
      if (kh < 0 || kh >= kWindow) {
        continue;
      }
      float (&to)[kSmallSide] = sums[o % kSlots];
      if (kh == 0 || h == 0) {
#pragma unroll
        for (int t = 0; t < kSmallSide; ++t) {
          to[t] = begin;
        }
      }
      float factors[Traits::kTapPitch];
      read_taps(factors, taps + kh * Traits::kTapPitch);
      float own[kSmallSide] = {};
#pragma unroll
      for (int kw = 0; kw < kWindow; ++kw) {
#pragma unroll
        for (int t = 0; t < kSmallSide; ++t) {
          const int s = 2 * t + kw - Traits::kReach;
          if (s >= 0 && s < kSide) {
            float& sum = kh >= Traits::kOwnRow ? own[t] : to[t];
            sum = fmaf(row[s], factors[kw], sum);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kSmallSide; ++t) {
        if (kh >= Traits::kOwnRow) {
          to[t] += own[t];
        }
        // The last row that this one meets: those before it are needed no more.
        if (kh == kWindow - 1 || h == kSide - 1) {
          mine[o * kSmallSide + t] = static_cast<scalar_t>(to[t]);
        }
      }
    }
  }
  __syncwarp();
  store_runs<scalar_t, kSmallPixels, kWarpSize>(
      dst, plane, {first_plane * kSmallPixels, images, Traits::kPitch, p.channels * kSmallPixels});
}

// grid: groups of channels. Of the gradients any may be null, but grad_input where it is taken.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kWarps* kWarpSize, 3)
__global__ void lanes_strided_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    typename Traits::scalar_t* __restrict__ grad_weight,
    typename Traits::scalar_t* __restrict__ grad_bias,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ LanesStrided p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kWindow = Traits::kWindow;
  extern __shared__ uint4 shared_blocks[];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int way = warp % p.ways;
  const int channel = blockIdx.x * p.block_channels + warp / p.ways;
  char* const shared = reinterpret_cast<char*>(shared_blocks) + warp * Traits::kUnitBytes;
  auto* const plane = reinterpret_cast<scalar_t*>(shared); // of the input, then of its gradient
  auto* const grads = reinterpret_cast<uint32_t*>(shared + Traits::kPlaneBytes);
  auto* const taps = reinterpret_cast<float*>(shared + Traits::kPlaneBytes + Traits::kSmallBytes);

  float sums[Traits::kSums] = {};
  float totals[Traits::kOwn] = {};
  double bias = 0;
  int pending = 0;
  if (channel < p.channels) {
    if constexpr (Traits::kData) {
      stage_taps<Traits>(taps, weight + channel * Traits::kTaps);
    }
#pragma unroll 1
    for (int first_image = way * kWarpSize; first_image < p.batch;
         first_image += p.ways * kWarpSize) {
      const int images = min(kWarpSize, p.batch - first_image);
      const int first_plane = first_image * p.channels + channel;
      const Runs runs = plane_runs<Traits>(first_plane, images, p.channels);
      // Of 16-bit types every other channel begins in the middle of a word; channels are even in number.
      const int first = first_plane * kSmallPixels;
      const int lead = first % Traits::kElementsOfWord;
      __syncwarp(); // nobody stores from here any more
      load_runs<uint32_t, Traits::kSmallWords, kWarpSize>(
          grads,
          grad_output,
          {(first - lead) / Traits::kElementsOfWord,
           images,
           Traits::kSmallWords,
           p.channels * kSmallPixels / Traits::kElementsOfWord});
      if constexpr (Traits::kWeight) {
        load_planes<Traits>(plane, input, runs);
      }
      commit_copies();
      wait_for_groups<0>();
      __syncwarp();
      scalar_t* const mine = plane + lane * Traits::kPitch;
      const scalar_t* const my_grads =
          reinterpret_cast<const scalar_t*>(grads + lane * Traits::kSmallWords) + lead;
      constexpr int kSlots = Traits::kReach + 1;
      float rows[kSlots][kSmallSide]; // of grad_output
#pragma unroll
      for (int h = 0; h < kSide; ++h) {
        // The rows of grad_output that this one is the first to meet.
#pragma unroll
        for (int o = 0; o < kSmallSide; ++o) {
          if (h != (2 * o > Traits::kReach ? 2 * o - Traits::kReach : 0)) {
            continue;
          }
          float sum = 0.0f;
#pragma unroll
          for (int t = 0; t < kSmallSide; ++t) {
            rows[o % kSlots][t] = static_cast<float>(my_grads[o * kSmallSide + t]);
            sum += rows[o % kSlots][t];
          }
          bias += sum;
        }
        float values[kSide];
        if constexpr (Traits::kWeight) {
          read_row<Traits>(values, mine + h * kSide);
        }
        float result[kSide] = {};
#pragma unroll
        for (int o = 0; o < kSmallSide; ++o) {
          const int kh = h - 2 * o + Traits::kReach;
          if (kh < 0 || kh >= kWindow) {
            continue;
          }
          const float (&row)[kSmallSide] = rows[o % kSlots];
          float factors[Traits::kTapPitch];
          if constexpr (Traits::kData) {
            read_taps(factors, taps + kh * Traits::kTapPitch);
          }
#pragma unroll
          for (int kw = 0; kw < kWindow; ++kw) {
            // Of a row by itself first: chains of seven, then of rows.
            float products = 0.0f;
#pragma unroll
            for (int t = 0; t < kSmallSide; ++t) {
              const int s = 2 * t + kw - Traits::kReach;
              if (s < 0 || s >= kSide) {
                continue;
              }
              if constexpr (Traits::kWeight) {
                products = fmaf(values[s], row[t], products);
              }
              if constexpr (Traits::kData) {
                result[s] = fmaf(row[t], factors[kw], result[s]);
              }
            }
            if constexpr (Traits::kWeight) {
              sums[kh * kWindow + kw] += products;
            }
          }
        }
        if constexpr (Traits::kData) {
#pragma unroll
          for (int s = 0; s < kSide; s += 2) {
            const float pair[2] = {result[s], result[s + 1]};
            store_vector<scalar_t, 2>(mine + h * kSide + s, pair);
          }
        }
      }
      if constexpr (Traits::kData) {
        __syncwarp();
        store_runs<typename Traits::Pair, Traits::kPairs, kWarpSize>(grad_input, plane, runs);
      }
      if (Traits::kWeight && ++pending == Traits::kChain) {
        add_lanes(totals, sums, lane);
        pending = 0;
      }
    }
  }
  if constexpr (Traits::kWeight) {
    add_lanes(totals, sums, lane);
    bias = sum_of_warp(bias);
    // The ways in order.
    __syncthreads();
    double* const biases = reinterpret_cast<double*>(shared_blocks); // [warp]
    float* const all_sums = reinterpret_cast<float*>(biases + kMostWarps); // [warp][sum]
#pragma unroll
    for (int i = 0; i < Traits::kOwn; ++i) {
      all_sums[warp * Traits::kSums + lane * Traits::kOwn + i] = totals[i];
    }
    if (lane == 0) {
      biases[warp] = bias;
    }
    __syncthreads();
    const int first_channel = blockIdx.x * p.block_channels;
    const int channels = min(p.block_channels, p.channels - first_channel);
    for (int i = threadIdx.x; grad_weight && i < channels * Traits::kTaps; i += blockDim.x) {
      const float* const from =
          all_sums + i / Traits::kTaps * p.ways * Traits::kSums + i % Traits::kTaps;
      float sum = 0.0f;
      for (int w = 0; w < p.ways; ++w) {
        sum += from[w * Traits::kSums];
      }
      grad_weight[first_channel * Traits::kTaps + i] = static_cast<scalar_t>(sum);
    }
    if (grad_bias && threadIdx.x < channels) {
      double sum = 0;
      for (int w = 0; w < p.ways; ++w) {
        sum += biases[threadIdx.x * p.ways + w];
      }
      grad_bias[first_channel + threadIdx.x] = static_cast<scalar_t>(sum);
    }
  }
}

// Whether the planes are as these kernels have them, and many enough.
bool applies(const Params& p, std::initializer_list<const Operand*> tensors) {
  return lanes_take_planes(p, 2, tensors) && p.input_width == kSide && p.channels % 2 == 0;
}

// Calls launch with the type and the window; false where there is no kernel.
template <bool kData, bool kWeight, typename Launch>
bool with_traits(const Params& p, Type type, const Launch& launch) {
  return with_scalar_type(type, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    switch (p.kernel_width) {
      case 3:
        return launch(LanesStridedTraits<scalar_t, 3, kData, kWeight>());
      case 5:
        return launch(LanesStridedTraits<scalar_t, 5, kData, kWeight>());
      default:
        return false;
    }
  });
}

LanesStrided lanes_of(const Params& p) {
  LanesStrided l{};
  l.batch = p.batch;
  l.channels = p.channels;
  return l;
}

} // namespace

bool lanes_strided_forward(const ForwardPass& pass, const Params& p) {
  if (!applies(p, {&pass.dst, &pass.src})) {
    return false;
  }
  return with_traits<false, false>(p, pass.src.type(), [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    constexpr size_t kShared = Traits::kWarps * Traits::kUnitBytes;
    LanesStrided l = lanes_of(p);
    l.block_channels = Traits::kWarps;
    const dim3 grid(divide_up(l.channels, l.block_channels), divide_up(l.batch, kWarpSize));
    if (grid.y > kMostGridRows || !has_shared(kShared)) {
      return false;
    }
    launch_kernel(
        lanes_strided_kernel<Traits>,
        grid,
        Traits::kWarps * kWarpSize,
        kShared,
        pass.dst.mutable_data_ptr<scalar_t>(),
        pass.src.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.bias),
        l);
    return true;
  });
}

bool lanes_strided_backward(const BackwardPass& pass, const Params& p) {
  // A channel has one block.
  const int64_t least_channels = multiprocessors();
  const bool data = pass.grad_input.defined();
  const bool asks_weight = pass.asks_weight();
  const Operand& result = data ? pass.grad_input : pass.input;
  if (p.channels < least_channels || !applies(p, {&pass.grad_output, &pass.input, &result})) {
    return false;
  }
  const auto launch = [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    LanesStrided l = lanes_of(p);
    l.ways = std::min<int64_t>(Traits::kWarps, divide_up(l.batch, kWarpSize));
    l.block_channels = Traits::kWarps / l.ways;
    const int warps = l.ways * l.block_channels;
    const size_t shared = static_cast<size_t>(warps) * Traits::kUnitBytes;
    if (!has_shared(shared)) {
      return false;
    }
    const unsigned int grid = divide_up(l.channels, l.block_channels);
    launch_kernel(
        lanes_strided_backward_kernel<Traits>,
        grid,
        warps * kWarpSize,
        shared,
        mutable_pointer_or_null<scalar_t>(pass.grad_input),
        mutable_pointer_or_null<scalar_t>(pass.grad_weight),
        mutable_pointer_or_null<scalar_t>(pass.grad_bias),
        pass.grad_output.const_data_ptr<scalar_t>(),
        pass.input.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        l);
    return true;
  };
  const Type type = pass.input.type();
  if (data && asks_weight) {
    return with_traits<true, true>(p, type, launch);
  }
  return data ? with_traits<true, false>(p, type, launch)
              : with_traits<false, true>(p, type, launch);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
