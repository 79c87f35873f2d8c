// All gradients of depthwise_conv2d_ext where there are so few elements that only the longest chain
// counts, in one kernel, in plane order, at stride 1 where the output is of the input's size: N = 1 in
// training, say.
//
// A channel belongs to some lanes, or to some warps of one block or of a cluster's. A lane owns a patch: it
// asks for its columns of some rows of the input and for those of grad_output that a window reaches, all at
// once, gets what lies beside them from its neighbours' registers, or from memory too, takes its products
// into one sum a tap and its grad_input from the same registers. Lanes and warps are added up in a fixed
// order, and the block writes the channel's results: no partials, no second kernel.
//
// Zeros outside the image are multiplied, which is right only while what they meet is finite: a sum that
// ends as NaN is taken again tap by tap, of positions inside the image only, and so is grad_input where a
// tap is not finite. Predicates instead took half as many instructions again. A float bias is added in
// double.
//
// Microseconds of an H200 on the device, the weight's gradient and all gradients, by what took them
// before and by this: N=1 144@56 in float 6.0, 6.7 and 3.7, 4.3, in half 5.2, 6.0 and 3.2, 3.8, 960@7
// 7.8, 10.6 and 2.2, 2.4, in half 3.4, 4.6 and 2.1, 2.4. Of 144@56 memory takes about 1.5, the launch .9,
// the instructions of the multiprocessors that have two channels the most of the rest.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Few.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kBlocks = 2; // of a multiprocessor, at least
constexpr int64_t kWarpsAlone = 4; // of a block, each with a channel
constexpr int64_t kLeastWarps = 4; // of a block whose lanes all have the same channel
// Lanes of a block that add up a sum, and what they read at once: a warp's together.
constexpr int kSumLanes = 8;
constexpr int kSumVector = 4;
static_assert(kSumLanes * kSumVector == kWarpSize);

// Who has a channel. Kernels of their own, so that none has the others' code even to skip: with nothing in
// the L2, instructions come from memory too.
enum class Share { Warp, Block, Cluster };

template <
    typename scalar_t_,
    typename Window,
    int kColumns_,
    int kRows_,
    bool kShuffles_,
    Share kShare_,
    bool kData_>
struct FewTraits {
  using scalar_t = scalar_t_;
  static constexpr int kWindow = Window::kHeight;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kColumns = kColumns_; // of a patch
  static constexpr int kRows = kRows_;
  // What lies beside a patch comes from the lanes beside it, else from memory.
  static constexpr bool kShuffles = kShuffles_;
  // Whether each warp adds its sums up in its registers, which is the faster the smaller the planes: N=4
  // 960@7 3.5 us, through shared memory 4.6, but 144@56 4.0 and 3.7.
  static constexpr bool kFolds = kColumns == 1;
  // Of a block, with the registers that keep all loads before what waits for them.
  static constexpr int kMostThreads = kRows == 2 ? 448 : 256;
  static constexpr int kMostWarps = kMostThreads / kWarpSize;
  static_assert(kRows % 2 == 0);
  static constexpr Share kShare = kShare_;
  template <Share kOther>
  using Of = FewTraits<scalar_t_, Window, kColumns_, kRows_, kShuffles_, kOther, kData_>;
  static constexpr bool kData = kData_; // grad_input too
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  // Rounding to 16 bits would hide what an exact bias gives.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  using Fold = WarpFold<kAlike, kWarpSize / 2>;
  using bias_t = std::conditional_t<kExact, double, float>;
  static_assert(kWindow == 3 && Window::kWidth == kWindow && Window::kStride == 1);
  static_assert(kAlike * kSumLanes <= (kLeastWarps - 1) * kWarpSize, "the last warp has the bias");
  static constexpr int kSumThreads = (kAlike * kSumLanes + kWarpSize - 1) / kWarpSize * kWarpSize;
  static_assert(kTaps < kWarpSize);

  // Where a block's warps have one channel.
  static constexpr int64_t shared_bytes(int64_t warps) {
    if (kFolds) {
      return warps * (kTaps + 1) * static_cast<int64_t>(sizeof(bias_t));
    }
    const int64_t threads = warps * kWarpSize;
    return kAlike * (threads + kSumVector) * static_cast<int64_t>(sizeof(float)) +
        (kExact ? threads * static_cast<int64_t>(sizeof(double)) : 0);
  }
};

// The plane of a lane's patch, in the tensors, and its first row and column there.
struct FewPatch {
  int plane;
  int row;
  int column;

  // The patches of a warp lie beside each other, rows of them one below the other. A lane that has none gets
  // one below its plane.
  template <typename Traits>
  static __device__ __forceinline__ FewPatch of(int warp, int channel, const FewPass& p) {
    const int lane = threadIdx.x % kWarpSize;
    const int task = warp * p.lanes + lane;
    const auto tile = p.tiles.divmod(task);
    const auto strip = p.strips.divmod(tile.div);
    const bool exists = lane < p.lanes && task < p.tasks;
    FewPatch patch;
    patch.plane = (strip.div * p.channels + channel) * (p.src_height * p.src_width);
    patch.row = exists ? strip.mod * Traits::kRows : p.src_height + 1;
    patch.column = tile.mod * Traits::kColumns;
    return patch;
  }
};

// Not before this place: the compiler would convert a tap, and look at it, as soon as it is asked for, and
// the loads of the rows would wait for that.
template <typename scalar_t>
__device__ __forceinline__ float tap_as_float(Packed<scalar_t, 1> tap) {
  asm volatile("" : "+r"(tap.words[0]));
  return unpack(tap, 0);
}

// Adds a patch to the sums of the taps, and to the bias; writes its grad_input. A lane has one of the taps.
template <typename Traits>
__device__ __forceinline__ void take_patch(
    float (&sums)[Traits::kTaps],
    typename Traits::bias_t& bias,
    typename Traits::scalar_t* grad_input,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const Packed<typename Traits::scalar_t, 1>& tap_of_lane,
    const FewPatch& patch,
    const FewPass& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kRows = Traits::kRows;
  constexpr int kWindow = Traits::kWindow;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kSeen = kRows + 2; // rows of grad_output
  using Own = Packed<scalar_t, kColumns>;
  using One = Packed<scalar_t, 1>;
  const int at = patch.plane + patch.row * p.src_width + patch.column;
  const auto has_row = [&](int i) { // of the patch
    return static_cast<unsigned int>(patch.row + i) < static_cast<unsigned int>(p.src_height);
  };
  const bool at_begin = patch.column == 0;
  const bool at_end = patch.column + kColumns >= p.src_width;
  Own values[kRows];
  Own middle[kSeen];
  One beside[kSeen][2];
#pragma unroll
  for (int i = -1; i <= kRows; ++i) {
    const int row = at + i * p.src_width;
    middle[i + 1] = packed_zero<scalar_t, kColumns>();
    if (has_row(i)) {
      middle[i + 1] = load_vector<scalar_t, kColumns>(grad_output + row);
    }
    if (i >= 0 && i < kRows) {
      Own& own = values[i >= 0 && i < kRows ? i : 0];
      own = packed_zero<scalar_t, kColumns>();
      if (has_row(i)) {
        own = load_vector<scalar_t, kColumns>(input + row);
      }
    }
    if constexpr (!Traits::kShuffles) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        beside[i + 1][j] = packed_zero<scalar_t, 1>();
        if (has_row(i) && !(j == 0 ? at_begin : at_end)) {
          beside[i + 1][j] =
              load_vector<scalar_t, 1>(grad_output + (row + (j == 0 ? -1 : kColumns)));
        }
      }
    }
  }
  float grads[kSeen][kColumns + 2];
#pragma unroll
  for (int i = 0; i < kSeen; ++i) {
    if constexpr (Traits::kShuffles) {
      Own left;
      Own right;
      left.words[Own::kWords - 1] =
          __shfl_up_sync(0xffffffffu, middle[i].words[Own::kWords - 1], 1);
      right.words[0] = __shfl_down_sync(0xffffffffu, middle[i].words[0], 1);
      grads[i][0] = at_begin ? 0.0f : unpack(left, kColumns - 1);
      grads[i][kColumns + 1] = at_end ? 0.0f : unpack(right, 0);
    } else {
      grads[i][0] = unpack(beside[i][0], 0);
      grads[i][kColumns + 1] = unpack(beside[i][1], 0);
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      grads[i][j + 1] = unpack(middle[i], j);
    }
  }
  float taps[kTaps];
  if constexpr (Traits::kData) {
    const float own = tap_as_float(tap_of_lane);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap] = __shfl_sync(0xffffffffu, own, tap);
    }
  }
  // Of two rows by themselves: short chains of sums.
  constexpr bool kPairs = kRows > 2;
  float of_pair[kTaps] = {};
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
          float& sum = kPairs ? of_pair[tap] : sums[tap];
          sum = fmaf(unpack(values[i], c), grad, sum);
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
      whole += grads[i + 1][c + 1];
    }
    if (i % 2 != 0) {
      bias += whole;
      whole = 0.0f;
#pragma unroll
      for (int tap = 0; kPairs && tap < kTaps; ++tap) {
        sums[tap] += of_pair[tap];
        of_pair[tap] = 0.0f;
      }
    }
    if constexpr (Traits::kData) {
      if (has_row(i)) {
        float row[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          row[c] = result[c][0];
        }
        store_vector(grad_input + (at + i * p.src_width), row);
      }
    }
  }
}

// The sum of `count` parts that are `next` apart, kMost at most, as a tree.
template <int kMost, typename T>
__device__ __forceinline__ T add_parts(const T* parts, int next, int count) {
  if constexpr (kMost == 1) {
    return count > 0 ? parts[0] : T(0);
  } else {
    constexpr int kHalf = kMost / 2;
    return add_parts<kHalf>(parts, next, count) +
        add_parts<kMost - kHalf>(parts + kHalf * next, next, count - kHalf);
  }
}

// What a lane ends with: the sum of a tap, kTaps for the bias, or none, -1.
template <typename Traits>
struct Sum {
  int tap = -1;
  typename Traits::bias_t total = 0;
};

template <typename Traits>
__device__ __forceinline__ void sums_alike(
    float (&alike)[Traits::kAlike],
    const float (&sums)[Traits::kTaps],
    typename Traits::bias_t bias) {
#pragma unroll
  for (int k = 0; k < Traits::kAlike; ++k) {
    alike[k] = k < Traits::kTaps ? sums[k < Traits::kTaps ? k : 0] : static_cast<float>(bias);
  }
}

// Those of a warp that has a channel by itself, in its registers.
template <typename Traits>
__device__ __forceinline__ Sum<Traits> sum_of_warp_of(
    const float (&sums)[Traits::kTaps],
    typename Traits::bias_t bias) {
  using Fold = typename Traits::Fold;
  constexpr int kIdle = kWarpSize - 1; // a lane that has none of the others
  const int lane = threadIdx.x % kWarpSize;
  float alike[Traits::kAlike];
  sums_alike<Traits>(alike, sums, bias);
  Fold::fold(alike, lane);
  static_assert(Fold::kKept == 1, "a lane has one sum at most");
  Sum<Traits> sum;
  sum.tap = Fold::index_of(0, lane);
  sum.total = alike[0];
  if constexpr (Traits::kExact) {
    bias = sum_of_warp(bias);
    if (lane == kIdle) {
      sum.tap = Traits::kTaps;
      sum.total = bias;
    }
  }
  return sum;
}

// Those of a block's warps, all of one channel.
template <typename Traits>
__device__ __forceinline__ Sum<Traits> sum_of_block(
    void* shared,
    const float (&sums)[Traits::kTaps],
    typename Traits::bias_t bias,
    int warps) {
  using bias_t = typename Traits::bias_t;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kAlike = Traits::kAlike;
  constexpr int kMostWarps = Traits::kMostWarps;
  const int thread = threadIdx.x;
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  Sum<Traits> sum;
  if constexpr (Traits::kFolds) {
    bias_t* const of_warps = static_cast<bias_t*>(shared);
    const auto of_warp = sum_of_warp_of<Traits>(sums, bias);
    if (of_warp.tap >= 0) {
      of_warps[warp * (kTaps + 1) + of_warp.tap] = of_warp.total;
    }
    __syncthreads();
    if (thread <= kTaps) {
      sum.tap = thread;
      sum.total = add_parts<kMostWarps>(of_warps + thread, kTaps + 1, warps);
    }
  } else {
    // By some lanes a sum: in the registers of each warp it takes three times as many instructions.
    const int threads = warps * kWarpSize;
    const int pitch = threads + kSumVector; // rows begin in different banks
    float* const of_threads = static_cast<float*>(shared);
    double* const biases = reinterpret_cast<double*>(of_threads + kAlike * pitch);
    float alike[kAlike];
    sums_alike<Traits>(alike, sums, bias);
#pragma unroll
    for (int k = 0; k < kAlike; ++k) {
      of_threads[k * pitch + thread] = alike[k];
    }
    if constexpr (Traits::kExact) {
      biases[thread] = bias;
    }
    __syncthreads();
    if (Traits::kExact && warp == warps - 1) {
      sum.total = sum_of_warp(add_parts<kMostWarps>(biases + lane, kWarpSize, warps));
      sum.tap = lane == 0 ? kTaps : -1;
    } else if (thread < Traits::kSumThreads) {
      const int k = thread / kSumLanes;
      const float* const from =
          of_threads + min(k, kAlike - 1) * pitch + thread % kSumLanes * kSumVector;
      float parts[kMostWarps];
#pragma unroll
      for (int w = 0; w < kMostWarps; ++w) {
        float four[kSumVector] = {};
        if (w < warps) {
          read_four(four, from + w * kWarpSize);
        }
        parts[w] = (four[0] + four[1]) + (four[2] + four[3]);
      }
      float total = add_parts<kMostWarps>(parts, 1, kMostWarps);
#pragma unroll
      for (int partner = kSumLanes / 2; partner > 0; partner /= 2) {
        total += __shfl_xor_sync(0xffffffffu, total, partner);
      }
      sum.total = total;
      sum.tap = thread % kSumLanes == 0 && k < kAlike ? k : -1;
    }
  }
  return sum;
}

// block: lanes in whole warps, of one channel or, where a warp is enough for one, of one a warp; grid: blocks
// of a channel x channels, or groups of them. grad_input only where Traits::kData; grad_weight or grad_bias
// may be null.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kMostThreads, kBlocks)
__global__ void few_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    typename Traits::scalar_t* __restrict__ grad_weight,
    typename Traits::scalar_t* __restrict__ grad_bias,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ FewPass p) {
  using scalar_t = typename Traits::scalar_t;
  using bias_t = typename Traits::bias_t;
  constexpr int kTaps = Traits::kTaps;
  extern __shared__ float4 shared_vectors[];
  __shared__ bias_t of_blocks[kMostOfCluster][kTaps + 1];
  __shared__ uint64_t all_sent;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  constexpr bool kAlone = Traits::kShare == Share::Warp;
  constexpr bool kCluster = Traits::kShare == Share::Cluster;
  const int blocks = kCluster ? p.blocks : 1; // of the channel
  const int warps = kAlone ? 1 : p.block_warps; // of a block and of the channel
  const int channel = kAlone ? blockIdx.y * kWarpsAlone + warp : blockIdx.y;
  if (kAlone && channel >= p.channels) {
    return; // a warp, of those that meet no other
  }
  const int first = kAlone ? 0 : (kCluster ? blockIdx.x * warps : 0) + warp;
  if constexpr (kCluster) {
    begin_sending(&all_sent, blocks * static_cast<int>(sizeof(of_blocks[0])));
  }
  const int step = blocks * warps;

  float sums[kTaps] = {};
  bias_t bias = 0;
  const scalar_t* const channel_taps = weight + channel * kTaps;
  Packed<scalar_t, 1> tap_of_lane = packed_zero<scalar_t, 1>();
  if (Traits::kData && lane < kTaps) {
    tap_of_lane = load_vector<scalar_t, 1>(channel_taps + lane);
  }
  int at = first;
#pragma unroll 1
  for (; at < p.warps; at += step) {
    const auto patch = FewPatch::of<Traits>(at, channel, p);
    take_patch<Traits>(sums, bias, grad_input, grad_output, input, tap_of_lane, patch, p);
  }
  const bool exact = Traits::kData && !is_finite(tap_as_float(tap_of_lane));
  if (Traits::kData && __builtin_expect(__any_sync(0xffffffffu, exact), false)) {
    // No lane writes what another has written.
#pragma unroll 1
    for (at = first; at < p.warps; at += step) {
      const auto patch = FewPatch::of<Traits>(at, channel, p);
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

  Sum<Traits> sum;
  if constexpr (kAlone) {
    sum = sum_of_warp_of<Traits>(sums, bias);
  } else {
    sum = sum_of_block<Traits>(shared_vectors, sums, bias, warps);
    if constexpr (kCluster) {
      wait_for_begin();
      if (sum.tap >= 0) {
        send_to_first(&of_blocks[blockIdx.x][sum.tap], sum.total, &all_sent);
      }
      if (blockIdx.x > 0) {
        return;
      }
      wait_for_parts(&all_sent);
      sum.tap = threadIdx.x <= kTaps ? threadIdx.x : -1;
      sum.total = add_parts<kMostOfCluster>(&of_blocks[0][max(sum.tap, 0)], kTaps + 1, blocks);
    }
  }
  scalar_t* const to = sum.tap < kTaps ? grad_weight : grad_bias;
  if (sum.tap < 0 || to == nullptr) {
    return;
  }
  if (__builtin_expect(isnan(sum.total), false)) {
    sum.total = careful_tap(grad_output, input, p, channel, sum.tap, 0, p.batch, p.batch);
  }
  to[sum.tap < kTaps ? channel * kTaps + sum.tap : channel] = static_cast<scalar_t>(sum.total);
}

template <typename Traits>
bool launch_kernel(const BackwardPass& pass, const FewPass& p) {
  constexpr bool kAlone = Traits::kShare == Share::Warp;
  return launch_few<typename Traits::scalar_t>(
      few_backward_kernel<Traits>,
      p.blocks,
      kAlone ? divide_up(p.channels, kWarpsAlone) : p.channels,
      (kAlone ? kWarpsAlone : p.block_warps) * kWarpSize,
      kAlone ? 0 : Traits::shared_bytes(p.block_warps),
      pass,
      p);
}

// By `lanes` patches a warp.
template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params, int64_t lanes) {
  using OfCluster = typename Traits::template Of<Share::Cluster>;
  using OfWarp = typename Traits::template Of<Share::Warp>;
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
  // Where channels leave multiprocessors without a block, and have more than a block takes at once, a cluster
  // has each: N=1 32@112 in float 4.9 and 5.7 us by strips, 3.3 and 3.9 here, in half 4.5, 5.5 and 2.9, 3.4.
  // Of smaller planes (64@56 2.7, 2.9 by two blocks) and of more channels (144@56 3.7 either way) it wins
  // nothing.
  constexpr int64_t kWantedBlocks = 232;
  constexpr int64_t kLeastOfCluster = 8 / Traits::kRows; // warps of a block
  constexpr int64_t kMostWarps = Traits::kMostWarps;
  const bool clusters = has_clusters<few_backward_kernel<OfCluster>>();
  FewPass p = few_pass(params, Traits::kColumns, Traits::kRows);
  p.lanes = lanes;
  p.warps = divide_up(p.tasks, lanes);
  p.blocks = clusters && p.warps > kMostWarps
      ? std::clamp<int64_t>(
            std::min(kWantedBlocks / params.channels, p.warps / kLeastOfCluster), 1, kMostOfCluster)
      : 1;
  const int64_t rounds = p.blocks > 1 ? 1 : kMostRounds;
  if (pass.input.numel() > most * kMultiprocessors || p.warps > rounds * p.blocks * kMostWarps) {
    return false;
  }
  p.block_warps = std::clamp(divide_up(p.warps, p.blocks), kLeastWarps, kMostWarps);
  return p.blocks > 1 ? launch_kernel<OfCluster>(pass, p)
      : p.warps > 1   ? launch_kernel<Traits>(pass, p)
                      : launch_kernel<OfWarp>(pass, p);
}

} // namespace

bool few_backward(const BackwardPass& pass, const Params& p) {
  if (p.channels_last || !few_take(p, pass.input)) {
    return false;
  }
  return with_scalar_type(pass.input.scalar_type(), [&](auto scalar) {
    using scalar_t = decltype(scalar);
    using Fixed = Window<3, 3, 1>;
    const auto with_patches = [&](auto columns, auto rows, auto shuffles, int64_t lanes) {
      constexpr int kColumns = decltype(columns)::value;
      constexpr int kRows = decltype(rows)::value;
      constexpr bool kShuffles = decltype(shuffles)::value;
      return pass.grad_input.defined()
          ? launch<FewTraits<scalar_t, Fixed, kColumns, kRows, kShuffles, Share::Block, true>>(
                pass, p, lanes)
          : launch<FewTraits<scalar_t, Fixed, kColumns, kRows, kShuffles, Share::Block, false>>(
                pass, p, lanes);
    };
    constexpr int kVector = 4;
    constexpr size_t kBytes = kVector * sizeof(scalar_t);
    const bool whole = p.input_width % kVector == 0 &&
        is_aligned(pass.grad_output.const_data_ptr(), kBytes) &&
        is_aligned(pass.input.const_data_ptr(), kBytes) &&
        is_aligned(pass.grad_input.defined() ? pass.grad_input.const_data_ptr() : nullptr, kBytes);
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    using Four = std::integral_constant<int, kVector>;
    if (!whole) {
      return with_patches(One(), Two(), std::false_type(), kWarpSize);
    }
    // Whole rows of patches to a warp, unless many lanes would be idle.
    constexpr int64_t kLeastLanes = 24;
    const int64_t tiles = p.input_width / kVector;
    const int64_t lanes = kWarpSize / tiles * tiles;
    return lanes < kLeastLanes ? with_patches(Four(), Two(), std::false_type(), kWarpSize)
                               : with_patches(Four(), Four(), std::true_type(), lanes);
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
