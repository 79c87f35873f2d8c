// grad_weight and grad_bias of depthwise_conv2d_ext with large windows in float32, at stride 1 without
// dilation, many images at a time: the lanes of a warp are 32 images of one channel, as in
// Lanes.cu.
//
// A tap's gradient is a sum over images, rows and columns. A lane sums its image's part: a warp has some
// rows of taps, one sum a tap in registers, and marches down grad_output. It takes kGradRows rows of it
// into registers, then the rows of the input that these meet, one after the other; a value of the input
// meets a value of grad_output in the tap that lies their difference away,
//   sum[h' - h][s - t] += input[h'][s] * grad_output[h][t],
// so that each of either is loaded once for up to kColumns multiply-adds. All of that is unrolled, and
// only columns within the tile's reach are there; of a wide plane a warp has a block of columns of
// grad_output, and takes the neighbouring blocks of the input too. Rows outside the image are passed over
// by all lanes together. The warps of a block have neighbouring rows of taps, and share the rows of both
// tensors: these come into a ring in shared memory by asynchronous copies, the next while one step is
// computed. Nothing that is outside an image is multiplied, so that nothing spoils what is not finite.
//
// After some rows the sums of the lanes are added up in a tree that leaves each lane with one or two taps.
// That bounds the chains; it takes about 300 instructions. A block takes all images where there are
// channels enough, so that its sums are the result; else it writes a partial for add_partials().
//
// Microseconds of an H200 with 64 images, by Large.cu and by this: 31 x 31 at 56
// x 56 1,783 and 907, 29 x 29 at 28 x 28 1,080 and 337, 27 x 27 at 14 x 14 599 and 133, 13 x 13 at
// 7 x 7 184 and 31, 51 x 5 at 56 x 56 848 and 362. At the peak of multiply-adds 620, 200, 43, 5 and
// 125.
#include <ATen/native/cuda/depthwise_conv2d_ext/Lanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

struct LanesWeight : UnitStridePass { // of multiplier 1
  int32_t groups; // of rows of taps, of a block: kTapRows each
  int32_t tap_blocks; // blocks that share a channel's taps
  int32_t chunks; // blocks that share its images
};

template <
    int kColumns_,
    int kColumnBlocks_,
    int kReach_,
    int kTapRows_,
    int kGradRows_,
    int kMostGroups_,
    int kBlocks_>
struct LanesWeightTraits {
  static constexpr int kColumns = kColumns_; // of grad_output, of a warp
  static constexpr int kColumnBlocks = kColumnBlocks_; // of a plane
  static constexpr int kReach = kReach_; // columns from grad_output to the input, at most
  static constexpr int kTapRows = kTapRows_; // of a warp
  static constexpr int kGradRows = kGradRows_; // rows of grad_output in registers
  static constexpr int kMostGroups = kMostGroups_; // of rows of taps, of a block
  static constexpr int kBlocks = kBlocks_; // a multiprocessor
  static constexpr int kWidth = kColumns * kColumnBlocks;
  static constexpr int kWords = lane_words(kColumns);
  static constexpr int kVectors = kWidth / kWords; // of a row
  // Words from image to image of a row, an odd number of vectors: lanes that read a vector each meet in
  // no bank.
  static constexpr int kPitch = (kVectors | 1) * kWords;
  static constexpr int kRowWords = kWarpSize * kPitch;
  static constexpr int kDiagonals = 2 * kReach + 1;
  static constexpr int kSums = kTapRows * kDiagonals;
  static constexpr int kOwn = (kSums + kWarpSize - 1) / kWarpSize; // of a lane, once added up
  static constexpr int kAllSums = kOwn * kWarpSize;
  // Rows of the input that a warp meets in a step, and room for those of a block and the next step's.
  static constexpr int kMet = kTapRows + kGradRows - 1;
  static constexpr int kRing = kMostGroups * kTapRows + 2 * kGradRows - 1;
  static constexpr int kThreads = kWarpSize * kMostGroups * kColumnBlocks;
  static constexpr int64_t kShared =
      static_cast<int64_t>(sizeof(float)) * kRowWords * (kRing + 2 * kGradRows);
  // Products until a lane's sums are added to the others': of six rows of a plane, where sums are few of
  // two to eight. So errors stay about upstream's; with twice as many of them they were 1.5 times those on
  // 14 and 28 columns.
  static constexpr int kChain = kOwn == 1 ? 112 : 6 * kWidth;
  static constexpr int kStepProducts = kGradRows * kColumns;
  static constexpr int kSteps = kChain < 2 * kStepProducts ? 2 : kChain / kStepProducts;
  static_assert(kReach <= kColumns && kShared <= 227 * 1024);
};

// Adds the products of one row of the input, the kMet-th `j`, with the rows of grad_output that it meets
// in the warp's rows of taps. `source` is where the block of columns begins that is kSide blocks to
// the right of grad_output's.
template <typename Traits, int kSide>
__device__ __forceinline__ void add_products(
    float (&sums)[Traits::kAllSums],
    const float* source,
    const float (&grads)[Traits::kGradRows][Traits::kColumns],
    int j) {
  constexpr int kColumns = Traits::kColumns;
  constexpr int kReach = Traits::kReach;
  constexpr int kWords = Traits::kWords;
#pragma unroll
  for (int first = 0; first < kColumns; first += kWords) {
    if ((kSide > 0 && first >= kReach) || (kSide < 0 && first + kWords <= kColumns - kReach)) {
      continue;
    }
    float values[kWords];
    read_words<kWords>(values, source + first);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int g = 0; g < Traits::kGradRows; ++g) {
#pragma unroll
        for (int t = 0; t < kColumns; ++t) {
          const int row = j - g;
          const int right = kSide * kColumns + first + i - t; // from grad_output to the input
          if (row >= 0 && row < Traits::kTapRows && right >= -kReach && right <= kReach) {
            float& sum = sums[row * Traits::kDiagonals + right + kReach];
            sum = fmaf(values[i], grads[g][t], sum);
          }
        }
      }
    }
  }
}

// grid: (blocks of a channel's taps x chunks of images) x channels. Either `partial` is given or the
// gradients, of which grad_bias may be null.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void lanes_grad_weight_kernel(
    float* __restrict__ partial,
    float* __restrict__ grad_weight,
    float* __restrict__ grad_bias,
    const float* __restrict__ grad_output,
    const float* __restrict__ input,
    const __grid_constant__ LanesWeight p) {
  constexpr int kColumns = Traits::kColumns;
  constexpr int kWords = Traits::kWords;
  constexpr int kGradRows = Traits::kGradRows;
  extern __shared__ uint4 shared_blocks[];
  float* const ring = reinterpret_cast<float*>(shared_blocks);
  float* const stages = ring + Traits::kRing * Traits::kRowWords; // rows of grad_output

  const int lane = threadIdx.x % kWarpSize;
  // The shuffle tells the compiler that it is the same for all lanes.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int column_block = warp % Traits::kColumnBlocks;
  const int block_row = warp / Traits::kColumnBlocks * Traits::kTapRows; // of taps
  const int first_row = blockIdx.x % p.tap_blocks * p.groups * Traits::kTapRows;
  const int chunk = blockIdx.x / p.tap_blocks;
  const int channel = blockIdx.y;
  const int tap_row = first_row + block_row;
  // The row of the input that the block's first row of taps meets in the first row of grad_output.
  const int top = first_row - p.padding_height;
  const int block_rows = p.groups * Traits::kTapRows;
  const int src_plane = p.src_height * p.src_width;
  const int dst_plane = p.dst_height * p.dst_width;

  float sums[Traits::kAllSums] = {};
  float totals[Traits::kOwn] = {};
  double bias = 0;
  int pending = 0; // steps
#pragma unroll 1
  for (int first_image = chunk * kWarpSize; first_image < p.batch;
       first_image += p.chunks * kWarpSize) {
    const int images = min(kWarpSize, p.batch - first_image);
    const int first_plane = first_image * p.channels + channel;
    // Lanes without an image have zeros.
    const auto load_row = [&](float* to, const float* from, int plane) {
      for (int i = threadIdx.x; i < kWarpSize * Traits::kVectors; i += blockDim.x) {
        const int image = i / Traits::kVectors;
        const int word = i % Traits::kVectors * kWords;
        // Faster than a branch: 29 x 29 345 -> 337 us, 7 x 7 on 56 x 56 121 -> 114.
        copy_async<kWords* static_cast<int>(sizeof(float))>(
            to + image * Traits::kPitch + word,
            from + image * p.channels * plane + word,
            image < images);
      }
    };
    // Rows [begin, end) of the input from `top` on, as far as they exist, and rows of grad_output.
    const auto load = [&](int begin, int end, int row) {
      for (int r = begin; r < end; ++r) {
        if (top + r >= 0 && top + r < p.src_height) {
          load_row(
              ring + r % Traits::kRing * Traits::kRowWords,
              input + first_plane * src_plane + (top + r) * p.src_width,
              src_plane);
        }
      }
      float* const stage = stages + row / kGradRows % 2 * kGradRows * Traits::kRowWords;
      for (int g = 0; g < kGradRows; ++g) {
        load_row(
            stage + g * Traits::kRowWords,
            grad_output + first_plane * dst_plane + (row + g) * p.dst_width,
            dst_plane);
      }
      commit_copies();
    };
    __syncthreads(); // for the last step of the images before
    load(0, block_rows + kGradRows - 1, 0);
#pragma unroll 1
    for (int row = 0; row < p.dst_height; row += kGradRows) {
      wait_for_groups<0>();
      __syncthreads();
      // Over what was used before this barrier.
      if (row + kGradRows < p.dst_height) {
        const int loaded = row + block_rows + kGradRows - 1;
        load(loaded, loaded + kGradRows, row + kGradRows);
      }
      if (tap_row >= p.kernel_height) {
        continue;
      }
      const int at = lane * Traits::kPitch + column_block * kColumns;
      const float* const stage = stages + row / kGradRows % 2 * kGradRows * Traits::kRowWords + at;
      float grads[kGradRows][kColumns];
#pragma unroll
      for (int g = 0; g < kGradRows; ++g) {
#pragma unroll
        for (int t = 0; t < kColumns; t += kWords) {
          read_words<kWords>(grads[g] + t, stage + g * Traits::kRowWords + t);
        }
      }
      if (tap_row == 0) {
#pragma unroll
        for (int g = 0; g < kGradRows; ++g) {
          float sum = 0.0f;
#pragma unroll
          for (int t = 0; t < kColumns; ++t) {
            sum += grads[g][t];
          }
          bias += sum;
        }
      }
      int slot = (row + block_row) % Traits::kRing;
#pragma unroll
      for (int j = 0; j < Traits::kMet; ++j) {
        const int source_row = top + row + block_row + j;
        const float* const source = ring + slot * Traits::kRowWords + at;
        if (source_row >= 0 && source_row < p.src_height) {
          add_products<Traits, 0>(sums, source, grads, j);
          if (Traits::kColumnBlocks > 1 && column_block > 0) {
            add_products<Traits, -1>(sums, source - kColumns, grads, j);
          }
          if (Traits::kColumnBlocks > 1 && column_block + 1 < Traits::kColumnBlocks) {
            add_products<Traits, 1>(sums, source + kColumns, grads, j);
          }
        }
        slot = slot + 1 == Traits::kRing ? 0 : slot + 1;
      }
      if (++pending == Traits::kSteps) {
        add_lanes(totals, sums, lane);
        pending = 0;
      }
    }
  }
  add_lanes(totals, sums, lane);

  // The blocks of columns in order.
  __syncthreads();
  double* const biases = reinterpret_cast<double*>(stages); // [column block]
#pragma unroll
  for (int i = 0; i < Traits::kOwn; ++i) {
    ring[warp * Traits::kAllSums + lane * Traits::kOwn + i] = totals[i];
  }
  if (tap_row == 0) {
    bias = sum_of_warp(bias);
    if (lane == 0) {
      biases[column_block] = bias;
    }
  }
  __syncthreads();
  const int kernel_size = p.kernel_height * p.kernel_width;
  const int rows = min(block_rows, p.kernel_height - first_row);
  float* const to = partial + chunk * (kernel_size + kBiasRows) * p.channels + channel;
  for (int i = threadIdx.x; i < rows * p.kernel_width; i += blockDim.x) {
    const int row = i / p.kernel_width;
    const int diagonal = i % p.kernel_width - p.padding_width + Traits::kReach;
    const float* const from = ring +
        row / Traits::kTapRows * Traits::kColumnBlocks * Traits::kAllSums +
        row % Traits::kTapRows * Traits::kDiagonals + diagonal;
    float sum = 0.0f;
#pragma unroll
    for (int block = 0; block < Traits::kColumnBlocks; ++block) {
      sum += from[block * Traits::kAllSums];
    }
    const int tap = first_row * p.kernel_width + i;
    if (partial) {
      to[tap * p.channels] = sum;
    } else if (grad_weight) {
      grad_weight[channel * kernel_size + tap] = sum;
    }
  }
  if (first_row == 0 && threadIdx.x == 0) {
    double sum = 0;
#pragma unroll
    for (int block = 0; block < Traits::kColumnBlocks; ++block) {
      sum += biases[block];
    }
    if (partial) {
      write_bias(to + kernel_size * p.channels, p.channels, sum);
    } else if (grad_bias) {
      *(grad_bias + channel) = static_cast<float>(sum);
    }
  }
}

template <typename Traits>
bool launch(const BackwardPass& pass, LanesWeight l, const Params& p) {
  const int64_t wanted_blocks = multiprocessors() * Traits::kBlocks;
  constexpr int64_t kMostChunks = 16;
  constexpr size_t kAlignment = Traits::kWords * sizeof(float);
  if (!has_shared(Traits::kShared)) {
    return false;
  }
  const int64_t groups = divide_up(l.kernel_height, Traits::kTapRows);
  const int64_t image_groups = divide_up(l.batch, kWarpSize);
  l.tap_blocks = divide_up(groups, Traits::kMostGroups);
  l.groups = divide_up(groups, l.tap_blocks);
  const int64_t blocks = static_cast<int64_t>(l.tap_blocks) * l.channels;
  // As many parts of the images as end soonest, by the rounds of blocks on the largest devices.
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t chunks = 1; chunks <= std::min(image_groups, kMostChunks); ++chunks) {
    const int64_t rounds =
        divide_up(blocks * chunks, wanted_blocks) * divide_up(image_groups, chunks);
    if (rounds < least) {
      least = rounds;
      l.chunks = chunks;
    }
  }
  // As in the forward, fewer last longer than the work in smaller blocks.
  if (blocks * l.chunks < wanted_blocks / 4 || l.dst_height % Traits::kGradRows != 0 ||
      !is_aligned(pass.grad_output.const_data_ptr(), kAlignment) ||
      !is_aligned(pass.input.const_data_ptr(), kAlignment)) {
    return false;
  }
  const int64_t partials = l.chunks * (p.kernel_size() + kBiasRows) * l.channels;
  if (partials > std::numeric_limits<int32_t>::max()) {
    return false;
  }
  Operand partial;
  if (l.chunks > 1) {
    partial = empty_partial(l.chunks, p);
  }
  const dim3 grid(l.tap_blocks * l.chunks, l.channels);
  const int threads = kWarpSize * l.groups * Traits::kColumnBlocks;
  launch_kernel(
      lanes_grad_weight_kernel<Traits>,
      grid,
      threads,
      Traits::kShared,
      mutable_pointer_or_null<float>(partial),
      mutable_pointer_or_null<float>(pass.grad_weight),
      mutable_pointer_or_null<float>(pass.grad_bias),
      pass.grad_output.const_data_ptr<float>(),
      pass.input.const_data_ptr<float>(),
      l);
  if (l.chunks > 1) {
    add_partials(pass.grad_weight, pass.grad_bias, partial, l.chunks, p);
  }
  return true;
}

// Columns of a warp, blocks of them, reach, rows of taps, rows of grad_output, groups, blocks.
using LanesWeight7 = LanesWeightTraits<7, 1, 6, 4, 7, 4, 4>;
using LanesWeight14 = LanesWeightTraits<14, 1, 13, 2, 2, 8, 2>;
using LanesWeight28 = LanesWeightTraits<28, 1, 14, 2, 1, 8, 2>;
using LanesWeight56 = LanesWeightTraits<28, 2, 15, 2, 1, 4, 2>;
using LanesWeightSevens28 = LanesWeightTraits<14, 2, 3, 4, 2, 2, 3>;
using LanesWeightSevens56 = LanesWeightTraits<28, 2, 3, 4, 1, 2, 3>;
using LanesWeightNarrow28 = LanesWeightTraits<28, 1, 2, 3, 2, 6, 2>;
// 14 columns and 6 rows of taps a warp 404, 5 rows of taps 373, 6 in two halves of the window 487.
using LanesWeightNarrow56 = LanesWeightTraits<28, 2, 2, 3, 2, 6, 1>;

} // namespace

bool lanes_grad_weight(const BackwardPass& pass, const Params& p) {
  // Of windows 7 wide smaller ones pay too: 7 x 7 on 28 x 28 83 -> 54 us, on 56 x 56 150 -> 116, but what
  // strips take (StripsBackward.cu, 45 and 73).
  constexpr int kSevensReach = 3;
  constexpr int64_t kLeastSevens = 49;
  const int64_t reach = std::max(p.padding_width, p.kernel_width - 1 - p.padding_width);
  const bool sevens = reach == kSevensReach && (p.output_width == 28 || p.output_width == 56);
  if (!lanes_take(p, pass.input.type(), sevens ? kLeastSevens : kLeastLaneTaps) ||
      pass.grad_output.numel() == 0 || pass.input.numel() == 0 ||
      !lanes_are_used(p.batch, least_lanes(p.output_width))) {
    return false;
  }
  LanesWeight l{};
  set_unit_stride_pass(l, p);
  const auto with = [&](auto traits) {
    using Traits = decltype(traits);
    return reach <= Traits::kReach && launch<Traits>(pass, l, p);
  };
  switch (p.output_width) {
    case 7:
      return with(LanesWeight7());
    case 14:
      return with(LanesWeight14());
    case 28:
      return sevens               ? with(LanesWeightSevens28())
          : reach < kLeastReach28 ? with(LanesWeightNarrow28())
                                  : with(LanesWeight28());
    case 56:
      return sevens               ? with(LanesWeightSevens56())
          : reach < kLeastReach56 ? with(LanesWeightNarrow56())
                                  : with(LanesWeight56());
    default:
      return false;
  }
}

} // namespace at::native::depthwise_conv2d_ext_cuda
