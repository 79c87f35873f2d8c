// All gradients of depthwise_conv2d_ext where there are so few elements that only the longest chain
// counts, in one kernel, in plane order, at stride 1 where the output is of the input's size: N = 1 in
// training, say.
//
// A channel belongs to some lanes, or to some warps of one block or of a cluster's. A lane owns a patch: it asks for its
// columns of some rows of the input, for those of grad_output and what a window reaches beside them, all
// at once, takes its products into one sum a tap and its grad_input from the same registers. The lanes of
// a channel are added up in a tree, the warps in order, and the block writes the channel's results: no
// partials, no second kernel.
//
// Zeros outside the image are multiplied, which is right only while what they meet is finite: a sum that
// ends as NaN is taken again tap by tap, of positions inside the image only, and so is grad_input where a
// tap is not finite. Predicates instead took half as many instructions again. A float bias is added in
// double.
//
// Microseconds of an H200 on the device, the weight's gradient and all gradients, by what took them
// before and by this: N=1 144@56 in float 6.0, 6.7 and 4.9, 5.4, in half 5.2, 6.0 and 3.7, 4.4, 960@7
// 7.8, 10.6 and 2.3, 2.5, in half 3.4, 4.6 and 2.2, 2.5.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/cuda/DepthwiseConv2dExtFew.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// Two blocks of so many fit on a multiprocessor with the 72 registers that keep all loads before what
// waits for them.
constexpr int kMostThreads = 448;
constexpr int kBlocks = 2;
constexpr int kMostWarps = 16; // in whole chains of sums
static_assert(kMostThreads <= kMostWarps * kWarpSize);

template <typename scalar_t_, typename Window, int kColumns_, bool kData_>
struct FewTraits {
  using scalar_t = scalar_t_;
  static constexpr int kWindow = Window::kHeight;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kReach = (kWindow - 1) / 2;
  static constexpr int kColumns = kColumns_; // of a patch
  // With one row small planes of some images take up to 1.5 times as long; four need more registers.
  static constexpr int kRows = 2;
  static constexpr bool kData = kData_; // grad_input too
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  // Rounding to 16 bits would hide what an exact bias gives.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  using Fold = WarpFold<kAlike, kWarpSize / 2>;
  using bias_t = std::conditional_t<kExact, double, float>;
  static_assert(Window::kWidth == kWindow && Window::kStride == 1);
};

// The plane of a lane's patch, in the tensors, and its first row and column there.
struct FewPatch {
  int plane;
  int row;
  int column;

  template <typename Traits>
  static __device__ __forceinline__ FewPatch of(int task, int channel, const FewPass& p) {
    const auto tile = p.tiles.divmod(task);
    const auto strip = p.strips.divmod(tile.div);
    FewPatch patch;
    patch.plane = (strip.div * p.channels + channel) * (p.src_height * p.src_width);
    patch.row = strip.mod * Traits::kRows;
    patch.column = tile.mod * Traits::kColumns;
    return patch;
  }
};

// Not before this place: the compiler would convert taps, and look at them, as soon as they are asked
// for, and the loads of the rows would wait for that.
template <typename scalar_t>
__device__ __forceinline__ float tap_as_float(Packed<scalar_t, 1> tap) {
  asm volatile("" : "+r"(tap.words[0]));
  return unpack(tap, 0);
}

// Adds a patch to the sums of the taps, and to the bias; writes its grad_input.
template <typename Traits>
__device__ __forceinline__ void take_patch(
    float (&sums)[Traits::kTaps],
    typename Traits::bias_t& bias,
    typename Traits::scalar_t* grad_input,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const Packed<typename Traits::scalar_t, 1> (&packed_taps)[Traits::kTaps],
    const FewPatch& patch,
    const FewPass& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kRows = Traits::kRows;
  constexpr int kReach = Traits::kReach;
  constexpr int kWindow = Traits::kWindow;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kSeen = kRows + 2 * kReach; // rows of grad_output
  constexpr int kWide = kColumns + 2 * kReach;
  using Own = Packed<scalar_t, kColumns>;
  const int at = patch.plane + patch.row * p.src_width + patch.column;
  const auto has_row = [&](int i) { // of those seen
    return static_cast<unsigned int>(patch.row - kReach + i) <
        static_cast<unsigned int>(p.src_height);
  };
  Own values[kRows];
  Own middle[kSeen];
  scalar_t beside[kSeen][2 * kReach];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    values[i] = packed_zero<scalar_t, kColumns>();
    if (has_row(i + kReach)) {
      values[i] = load_vector<scalar_t, kColumns>(input + (at + i * p.src_width));
    }
  }
#pragma unroll
  for (int i = 0; i < kSeen; ++i) {
    const int row = at + (i - kReach) * p.src_width;
    middle[i] = packed_zero<scalar_t, kColumns>();
    if (has_row(i)) {
      middle[i] = load_vector<scalar_t, kColumns>(grad_output + row);
    }
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      const int left = j - kReach;
      const int right = j + kColumns;
      beside[i][j] = scalar_t(0);
      beside[i][kReach + j] = scalar_t(0);
      if (has_row(i) && patch.column + left >= 0) {
        beside[i][j] = grad_output[row + left];
      }
      if (has_row(i) && patch.column + right < p.src_width) {
        beside[i][kReach + j] = grad_output[row + right];
      }
    }
  }
  float grads[kSeen][kWide];
#pragma unroll
  for (int i = 0; i < kSeen; ++i) {
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      grads[i][j] = static_cast<float>(beside[i][j]);
      grads[i][kReach + kColumns + j] = static_cast<float>(beside[i][kReach + j]);
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      grads[i][kReach + j] = unpack(middle[i], j);
    }
  }
  float taps[kTaps];
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    taps[tap] = tap_as_float(packed_taps[tap]);
  }
  float whole = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float result[kColumns][1] = {};
#pragma unroll
    for (int h = 0; h < kWindow; ++h) {
      // In the order of the forward with the taps flipped, which is what grad_input alone is: its bits
      // are the same whatever else is wanted.
      RowSums<kColumns, 1> products(result, h >= Traits::kOwnRow);
#pragma unroll
      for (int w = 0; w < kWindow; ++w) {
        const int tap = kTaps - 1 - (h * kWindow + w);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const float grad = grads[i + h][c + w];
          sums[tap] = fmaf(unpack(values[i], c), grad, sums[tap]);
          if constexpr (Traits::kData) {
            products.add(w, c, 0, grad, taps[tap]);
          }
        }
      }
      if constexpr (Traits::kData) {
        products.finish();
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      whole += grads[i + kReach][c + kReach];
    }
    if constexpr (Traits::kData) {
      if (has_row(i + kReach)) {
        float row[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          row[c] = result[c][0];
        }
        store_vector(grad_input + (at + i * p.src_width), row);
      }
    }
  }
  bias += whole;
}

// block: lanes of a channel, in whole warps, x channels, of which there are several where a warp is
// enough for one; grid: groups of channels. grad_input only where Traits::kData; grad_weight or grad_bias
// may be null.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kMostThreads, kBlocks)
__global__ void few_backward_kernel(
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
  constexpr int kTaps = Traits::kTaps;
  __shared__ float shared[Traits::kAlike][kMostWarps];
  __shared__ double biases[kMostWarps];
  __shared__ float shared_by_blocks[kMostOfCluster][Traits::kAlike];
  __shared__ double biases_by_blocks[kMostOfCluster];
  const int channel = blockIdx.y * blockDim.y + threadIdx.y;
  if (channel >= p.channels) {
    return; // a warp, of those that meet no other
  }
  const int blocks = gridDim.x; // of the channel
  if (blocks > 1) {
    arrive_at_cluster();
  }
  const int first_task = blockIdx.x * blockDim.x + threadIdx.x;
  const int step = blocks * blockDim.x;

  const scalar_t* const channel_taps = weight + channel * kTaps;
  Packed<scalar_t, 1> taps[kTaps];
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    taps[tap] =
        Traits::kData ? load_vector<scalar_t, 1>(channel_taps + tap) : packed_zero<scalar_t, 1>();
  }
  float sums[kTaps] = {};
  bias_t bias = 0;
  int task = first_task;
#pragma unroll 1
  for (; task < p.tasks; task += step) {
    const auto patch = FewPatch::of<Traits>(task, channel, p);
    take_patch<Traits>(sums, bias, grad_input, grad_output, input, taps, patch, p);
  }
  if constexpr (Traits::kData) {
    bool finite = true;
    // Zero, of which the compiler knows as little ahead of the loop.
    const uint32_t zero = task < 0;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap].words[0] ^= zero;
      finite = finite && is_finite(unpack(taps[tap], 0));
    }
    if (!finite) {
      // No lane writes what another has written.
#pragma unroll 1
      for (task = first_task; task < p.tasks; task += step) {
        const auto patch = FewPatch::of<Traits>(task, channel, p);
#pragma unroll 1
        for (int i = 0; i < Traits::kRows * Traits::kColumns; ++i) {
          const int row = patch.row + i / Traits::kColumns;
          const int column = patch.column + i % Traits::kColumns;
          if (row < p.src_height) {
            grad_input[patch.plane + row * p.src_width + column] = static_cast<scalar_t>(
                careful_output(grad_output + patch.plane, channel_taps, 0.0f, p, row, column));
          }
        }
      }
    }
  }

  const auto write = [&](int tap, bias_t sum) {
    if (isnan(sum)) {
      sum = careful_tap(grad_output, input, p, channel, tap, 0, p.batch, p.batch);
    }
    if (tap < kTaps && grad_weight) {
      grad_weight[channel * kTaps + tap] = static_cast<scalar_t>(sum);
    } else if (tap == kTaps && grad_bias) {
      grad_bias[channel] = static_cast<scalar_t>(sum);
    }
  };
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const bool alone = blockDim.x == kWarpSize && blocks == 1;
  float values[Traits::kAlike];
#pragma unroll
  for (int k = 0; k < Traits::kAlike; ++k) {
    values[k] = k < kTaps ? sums[k < kTaps ? k : 0] : static_cast<float>(bias);
  }
  Fold::fold(values, lane);
  if constexpr (Traits::kExact) {
    bias = sum_of_warp(bias);
  }
  static_assert(Fold::kKept == 1, "a lane has one sum at most");
  int tap = Fold::index_of(0, lane);
  bias_t sum = values[0];
  if (!alone) {
    if (tap >= 0) {
      shared[tap][warp] = values[0];
    }
    if (Traits::kExact && lane == 0) {
      biases[warp] = bias;
    }
    __syncthreads();
    if (warp > 0) {
      return;
    }
    const auto add_warps = [&](const auto* of_warps) {
      constexpr int kChains = 4;
      std::decay_t<decltype(*of_warps)> parts[kChains] = {};
#pragma unroll
      for (int w = 0; w < kMostWarps; ++w) {
        const auto part = of_warps[w];
        parts[w % kChains] += w * kWarpSize < blockDim.x ? part : 0;
      }
      return (parts[0] + parts[1]) + (parts[2] + parts[3]);
    };
    tap = lane < Traits::kAlike ? lane : -1;
    sum = add_warps(shared[max(tap, 0)]);
    if constexpr (Traits::kExact) {
      bias = add_warps(biases);
    }
    if (blocks > 1) {
      wait_for_cluster(); // all have begun
      if (tap >= 0) {
        store_in_first(&shared_by_blocks[blockIdx.x][tap], sum);
      }
      if (Traits::kExact && lane == 0) {
        store_in_first(&biases_by_blocks[blockIdx.x], static_cast<double>(bias));
      }
      arrive_at_cluster();
      if (blockIdx.x > 0) {
        return;
      }
      wait_for_cluster();
      sum = 0;
      bias = 0;
#pragma unroll
      for (int b = 0; b < kMostOfCluster; ++b) {
        const float part = shared_by_blocks[b][max(tap, 0)];
        sum += b < blocks ? part : 0.0f;
        if constexpr (Traits::kExact) {
          const double of_block = biases_by_blocks[b];
          bias += b < blocks ? of_block : 0.0;
        }
      }
    }
  }
  if (tap >= 0) {
    write(tap, sum);
  }
  if (Traits::kExact && lane == 0) {
    write(kTaps, bias);
  }
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int64_t kWarpsAlone = 4; // of a block, each with a channel
  // What others do faster, all gradients: one channel in more rounds (N=1 32@112 in float 6.0 us by
  // strips, 7.2 here), more elements (N=1 300@56 8.3 and 8.8), and of small planes fewer: in float where
  // they have images as lanes (N=16 960@7 8.0 and 11.6), in 16 bit where images are rows of matrices (N=8
  // 960@7 5.1 and 5.6).
  constexpr int64_t kMostRounds = 2;
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kMostImages = Traits::kExact ? 15 : 4;
  const int64_t most = Traits::kColumns > 1 ? 6144
      : params.batch > kMostImages          ? (Traits::kExact ? 4096 : 0)
                                            : (Traits::kExact ? 4608 : 2304);
  // Where channels leave multiprocessors without a block, and have more than a block takes at once, a
  // cluster has each: N=1 32@112 in float 4.9 and 5.7 us by strips, 3.9 and 4.5 here, in half 4.5, 5.5 and
  // 3.2, 3.8. Its barriers cost more than it wins of smaller planes (64@56 2.9, 3.5) and of more channels
  // (144@56 4.2, 4.5).
  constexpr int64_t kWantedBlocks = 232;
  constexpr int64_t kLeastTasks = 128; // of a cluster's block
  const FewPass p = few_pass(params, Traits::kColumns, Traits::kRows);
  const int64_t tasks = p.tasks;
  const auto kernel = few_backward_kernel<Traits>;
  static const bool clusters = has_clusters(kernel);
  const int64_t blocks = clusters && tasks > kMostThreads
      ? std::clamp<int64_t>(
            std::min(kWantedBlocks / params.channels, tasks / kLeastTasks), 1, kMostOfCluster)
      : 1;
  const int64_t rounds = blocks > 1 ? 1 : kMostRounds;
  if (pass.input.numel() > most * kMultiprocessors || tasks > rounds * blocks * kMostThreads) {
    return false;
  }
  const int64_t lanes =
      std::min<int64_t>(divide_up(divide_up(tasks, blocks), kWarpSize) * kWarpSize, kMostThreads);
  const dim3 block(lanes, blocks == 1 && lanes == kWarpSize ? kWarpsAlone : 1);
  return launch_few<scalar_t>(kernel, blocks, divide_up(p.channels, block.y), block, pass, p);
}

} // namespace

bool few_backward(const BackwardPass& pass, const Params& p) {
  if (p.channels_last || !few_take(p, pass.input)) {
    return false;
  }
  return with_scalar_type(pass.input.scalar_type(), [&](auto scalar) {
    using scalar_t = decltype(scalar);
    using Fixed = Window<3, 3, 1>;
    const auto with_columns = [&](auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      return pass.grad_input.defined()
          ? launch<FewTraits<scalar_t, Fixed, kColumns, true>>(pass, p)
          : launch<FewTraits<scalar_t, Fixed, kColumns, false>>(pass, p);
    };
    constexpr int kVector = 4;
    constexpr size_t kBytes = kVector * sizeof(scalar_t);
    const bool whole = p.input_width % kVector == 0 &&
        is_aligned(pass.grad_output.const_data_ptr(), kBytes) &&
        is_aligned(pass.input.const_data_ptr(), kBytes) &&
        is_aligned(pass.grad_input.defined() ? pass.grad_input.const_data_ptr() : nullptr, kBytes);
    return whole ? with_columns(std::integral_constant<int, kVector>())
                 : with_columns(std::integral_constant<int, 1>());
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
