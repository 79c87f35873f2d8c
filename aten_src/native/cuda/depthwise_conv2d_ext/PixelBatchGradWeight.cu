// grad_weight and grad_bias of depthwise_conv2d_ext in channels-last for float16 and bfloat16, 5 x 5
// and 7 x 7 at stride 1: on the tensor cores, with the batch as the inner dimension of matrices.
//
// As in BatchMarch.cuh the sums of a row of taps are, for an octet of columns of
// grad_output,
//   [columns of the input that its taps meet][8 columns] += input row, transposed, . grad_output row
// over 16 images of a channel; entry (m, n) belongs to tap m - n of the row. A warp has four channels
// of one octet and marches down the rows: the rows of grad_output that a row of the input meets stay in
// registers, and so do the sums, four matrices for each row of taps, for the whole march. Diagonals
// are added once, at the end. A row of ones beneath the columns of the input makes the bias out of the
// middle row of taps.
//
// Rows come as boxes (Boxes.cuh) of [16 images][columns][32 channels], with zeros
// outside the image. A lane wants two images side by side in a word, of one column and channel: it
// loads four channels of either image at once and puts their halves together, 12 loads and 24
// permutations for a row's 28 products of 7 x 7, while those of the row before are multiplied. All
// lanes of a warp read the same channels, so that it is columns and images that must spread them over
// the banks: boxes come swizzled, which makes eight neighbouring pixels eight different places, and
// an image takes a number of columns in a box that is no multiple of four.
//
// A block has 32 channels, one octet (with a dilation of one phase of columns) and a share of all rows of
// all groups of images and phases of rows; neighbouring blocks have the other channels and octets of the
// same rows, so that what both read comes from device memory once. It writes one partial, and
// add_partials() adds those in order.
//
// Where a column does not exist there is a zero, and a zero is multiplied: a sum that is NaN is taken
// again, tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/PixelBatch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

struct PixelBatchWeight : UnitStridePass { // of multiplier 1
  int32_t phase_rows; // of the first phase; where others have one less, it comes as zeros
  int32_t rows; // of all groups of images and phases
  int32_t share; // of a block
  int32_t octets; // of a phase of columns
};

// From a row to the next of its phase.
template <typename Traits>
__device__ __forceinline__ int row_step(const PixelBatchWeight& p) {
  return Traits::kDilated ? p.dilation_height : 1;
}

// The phase of columns that a block has.
template <typename Traits>
__device__ __forceinline__ int column_phase(const PixelBatchWeight& p) {
  return Traits::kDilated ? static_cast<int>(blockIdx.y) / p.octets : 0;
}

// Where boxes begin in shared memory, behind the ring's head.
constexpr int kRingBytes = 1024;

// Columns of an image in a box: neighbours of the second image that a lane reads fall into other banks.
constexpr int spread_columns(int columns) {
  return columns % 4 == 0 ? columns + 1 : columns;
}

// Dilations have kernels of their own: by one for both 1152@7 k5 took 20.3 us for 19.6, 768@7 k7 15 for 14.5,
// which wait for each step of a block's begin.
template <typename scalar_t_, int kSide_, bool kDilated_>
struct PixelBatchTraits {
  using scalar_t = scalar_t_;
  static constexpr int kSide = kSide_; // of the window
  static constexpr bool kDilated = kDilated_;
  using Phases = ColumnPhases<kDilated ? kMostColumnPhases : 1>;
  static constexpr int kTaps = kSide * kSide;
  static constexpr int kReach = kSide / 2;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kChannels = kWarps * kQuad;
  static constexpr int kPixelBytes = kChannels * 2;
  static constexpr int kPatternBytes = kSwizzlePixels * kPixelBytes; // of the swizzle
  static constexpr int kInputColumns = spread_columns(kOctet + kSide - 1);
  static constexpr int kGradColumns = spread_columns(kOctet);
  static constexpr int kInputBytes = kTileImages * kInputColumns * kPixelBytes;
  static constexpr int kGradBytes = kTileImages * kGradColumns * kPixelBytes;
  static constexpr int kStageBytes = kInputBytes + kGradBytes;
  // More are slower: 240@28 k5 of 128 images 42 us by 8, 37.5 by 5, 46.5 by 3; 96@56 k7 of 64 33.6,
  // 32.4 and 39.1.
  static constexpr int kStages = 5;
  static constexpr int kOnes = kMatrixRows - 1; // the row of ones
  // Sums of a channel in shared memory; 32 channels spread over the banks.
  static constexpr int kTapMatrix = kMatrixRows * kOctet;
  static constexpr int kChannelSums = kSide * kTapMatrix + 2;
  static constexpr int kSumsBytes = kChannels * kChannelSums * 4;
  static_assert(kOctet + kSide - 1 <= kOnes && kRingBytes % kPatternBytes == 0);
  static_assert(kInputBytes % kPatternBytes == 0 && kGradBytes % kPatternBytes == 0);
};

// Rows of the input that follow each other, in a block's share, of one phase of a group of images. Step s
// brings row first_row + s of grad_output and, of the input, the one kReach above, if they exist and are
// wanted.
struct RowPiece {
  int32_t image;
  int32_t phase;
  int32_t first_row;
  int32_t steps;
  int32_t first_input; // step
  int32_t last_grads; // step, exclusive
};

struct RowPieces {
  int32_t image;
  int32_t phase;
  int32_t row;
  int32_t rows_left;

  __device__ __forceinline__ RowPieces(const PixelBatchWeight& p, int phases) {
    const int first = static_cast<int>(blockIdx.z) * p.share;
    const int item = first / p.phase_rows;
    const int group = item / phases;
    image = group * kTileImages;
    phase = item - group * phases;
    row = first - item * p.phase_rows;
    rows_left = min(p.share, p.rows - first);
  }

  template <typename Traits>
  __device__ __forceinline__ RowPiece next(const PixelBatchWeight& p) {
    const int rows = min(p.phase_rows - row, rows_left);
    const int beyond = row + rows + Traits::kReach;
    RowPiece piece;
    piece.image = image;
    piece.phase = phase;
    piece.first_row = max(row - Traits::kReach, 0);
    piece.steps = beyond - piece.first_row;
    piece.first_input = row + Traits::kReach - piece.first_row;
    piece.last_grads = min(beyond, p.phase_rows) - piece.first_row;
    row = 0;
    rows_left -= rows;
    if (++phase == row_step<Traits>(p)) {
      phase = 0;
      image += kTileImages;
    }
    return piece;
  }
};

// A row of four channels of 16 images, of kOctets octets of columns: places [first or second eight
// images][octet].
template <typename Traits, int kOctets, int kColumns>
struct RowPairs {
  // Where a lane reads in a box: column `row` of images 2 pair and 2 pair + 1. Eight columns or images
  // further on are as many whole patterns of the swizzle further on.
  struct Places {
    int at[2];

    __device__ __forceinline__ Places(int quad, const Lane& lane) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pixel = (2 * lane.pair + i) * kColumns + lane.row;
        at[i] = swizzled<Traits::kPixelBytes>(pixel, quad * kQuadBytes);
        // As a word that the compiler knows nothing of: it would be made again for each row.
        asm volatile("" : "+r"(at[i]));
      }
    }
  };

  // As they lie in memory, of an image and the next.
  struct Raw {
    uint2 words[2 * kOctets][2];

    __device__ __forceinline__ void load(const char* box, const Places& places) {
#pragma unroll
      for (int i = 0; i < 2 * kOctets; ++i) {
        const int pixels = (i % kOctets + i / kOctets * kColumns) * kOctet;
        const char* const from = box + pixels * Traits::kPixelBytes;
        words[i][0] = *reinterpret_cast<const uint2*>(from + places.at[0]);
        words[i][1] = *reinterpret_cast<const uint2*>(from + places.at[1]);
      }
    }
  };

  // As the instructions take them: of a channel, two images side by side in a word.
  uint32_t words[kQuad][2 * kOctets];

  __device__ __forceinline__ void arrange(const Raw& raw) {
    constexpr int kLow = 0x5410;
    constexpr int kHigh = 0x7632;
#pragma unroll
    for (int i = 0; i < 2 * kOctets; ++i) {
      const uint2 even = raw.words[i][0];
      const uint2 odd = raw.words[i][1];
      words[0][i] = __byte_perm(even.x, odd.x, kLow);
      words[1][i] = __byte_perm(even.x, odd.x, kHigh);
      words[2][i] = __byte_perm(even.y, odd.y, kLow);
      words[3][i] = __byte_perm(even.y, odd.y, kHigh);
      // Here and now: done later, what is loaded meanwhile would have to be moved out of the way.
      asm volatile("" : "+r"(words[0][i]), "+r"(words[1][i]), "+r"(words[2][i]), "+r"(words[3][i]));
    }
  }
};

// What a step of a block's share brings.
struct StepRows {
  int32_t image;
  int32_t row; // of grad_output; that of the input is kReach of its phase above
  int32_t has_grads;
  int32_t has_input;
};

// The steps of a share, by all threads; how many they are.
template <typename Traits>
__device__ __forceinline__ int write_steps(
    StepRows* steps,
    RowPieces pieces,
    const PixelBatchWeight& p) {
  int count = 0;
#pragma unroll 1
  while (pieces.rows_left > 0) {
    const RowPiece piece = pieces.template next<Traits>(p);
    for (int i = threadIdx.x; i < piece.steps; i += Traits::kThreads) {
      steps[count + i] = {
          piece.image,
          piece.phase + (piece.first_row + i) * row_step<Traits>(p),
          i < piece.last_grads,
          i >= piece.first_input};
    }
    count += piece.steps;
  }
  return count;
}

// One tap (kTaps: the bias) of one channel over a block's share, inside the image only.
template <typename Traits>
__device__ __noinline__ float careful_share(
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const PixelBatchWeight& p,
    int channel,
    int tap) {
  const bool bias = tap == Traits::kTaps;
  const int down = bias ? 0 : (tap / Traits::kSide - Traits::kReach) * p.dilation_height;
  const int right = bias ? 0 : (tap % Traits::kSide - Traits::kReach) * p.dilation_width;
  const int phase = column_phase<Traits>(p);
  const int first_column = (static_cast<int>(blockIdx.y) - phase * p.octets) * kOctet;
  const int first = static_cast<int>(blockIdx.z) * p.share;
  const int last = min(first + p.share, p.rows);
  float sum = 0.0f;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    const int item = i / p.phase_rows;
    const int h = item % p.dilation_height + i % p.phase_rows * p.dilation_height;
    const int row = h - down;
    if (h >= p.src_height || row < 0 || row >= p.dst_height) {
      continue;
    }
    const int image = item / p.dilation_height * kTileImages;
#pragma unroll 1
    for (int j = 0; j < kTileImages * kOctet; ++j) {
      const int n = image + j / kOctet;
      const int column = phase + (first_column + j % kOctet) * p.dilation_width;
      const int w = column + right;
      if (n < p.batch && column < p.dst_width && w >= 0 && w < p.src_width) {
        const float grad = static_cast<float>(
            grad_output[((n * p.dst_height + row) * p.dst_width + column) * p.channels + channel]);
        sum += bias ? grad
                    : grad *
                static_cast<float>(
                          input[((n * p.src_height + h) * p.src_width + w) * p.channels + channel]);
      }
    }
  }
  return sum;
}

// The taps of a block's channels from their matrices: a lane has a channel, a warp every eighth tap.
template <typename Traits>
__device__ __forceinline__ void write_taps(
    float* partial,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const float* matrices,
    const PixelBatchWeight& p) {
  static_assert(Traits::kChannels == kWarpSize);
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int channel = static_cast<int>(blockIdx.x) * Traits::kChannels + lane;
  if (channel >= p.channels) {
    return;
  }
  const int chunk = blockIdx.z * gridDim.y + blockIdx.y;
  float* const to =
      partial + static_cast<int64_t>(chunk) * (Traits::kTaps + kBiasRows) * p.channels + channel;
  // Not unrolled: it is done but once.
#pragma unroll 1
  for (int tap = warp; tap <= Traits::kTaps; tap += Traits::kWarps) {
    const bool bias = tap == Traits::kTaps;
    const int row = bias ? Traits::kReach * kMatrixRows + Traits::kOnes
                         : tap / Traits::kSide * kMatrixRows + tap % Traits::kSide;
    const float* const from = matrices + lane * Traits::kChannelSums + row * kOctet;
    const int next = bias ? 1 : kOctet + 1;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kOctet; ++n) {
      sum += from[n * next];
    }
    if (isnan(sum)) {
      sum = careful_share<Traits>(grad_output, input, p, channel, tap);
    }
    if (bias) {
      write_bias(to + tap * p.channels, p.channels, sum);
    } else {
      to[tap * p.channels] = sum;
    }
  }
}

// grid: groups of channels, octets of columns of all phases, shares of rows.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, 1)
__global__ void pixel_batch_weight_kernel(
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const __grid_constant__ typename Traits::Phases maps, // dst is grad_output, src the input
    const __grid_constant__ PixelBatchWeight p) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  using Columns = RowPairs<Traits, 2, Traits::kInputColumns>;
  using Grads = RowPairs<Traits, 1, Traits::kGradColumns>;
  constexpr int kSide = Traits::kSide;
  extern __shared__ __align__(kRingBytes) char shared[];
  BoxRing ring(shared + kRingBytes - kRingHead, Traits::kStages, Traits::kStageBytes);
  StepRows* const steps =
      reinterpret_cast<StepRows*>(shared + kRingBytes + Traits::kStages * Traits::kStageBytes);
  RowPieces pieces(p, row_step<Traits>(p));
  const int all_steps = write_steps<Traits>(steps, pieces, p);
  __syncthreads();

  const int warp = threadIdx.x / kWarpSize;
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  const int first_channel = static_cast<int>(blockIdx.x) * Traits::kChannels;
  const int phase = column_phase<Traits>(p);
  const int first_column = (static_cast<int>(blockIdx.y) - phase * p.octets) * kOctet;
  const int left = first_column - Traits::kReach;
  const CUtensorMap& grads_map = maps.dst[phase];
  const CUtensorMap& input_map = maps.src[phase];
  // By one thread, into a stage that is free.
  const auto ask = [&](int step) {
    const StepRows rows = steps[step];
    const int bytes =
        (rows.has_input ? Traits::kInputBytes : 0) + (rows.has_grads ? Traits::kGradBytes : 0);
    ring.fill(bytes, [&](uint32_t to, uint32_t barrier) {
      if (rows.has_grads) {
        const uint32_t behind = to + Traits::kInputBytes;
        load_box(behind, barrier, grads_map, first_channel, first_column, rows.row, rows.image);
      }
      if (rows.has_input) {
        const int row = rows.row - Traits::kReach * row_step<Traits>(p);
        load_box(to, barrier, input_map, first_channel, left, row, rows.image);
      }
    });
  };
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int step = 0; step < min(Traits::kStages - 1, all_steps); ++step) {
      ask(step);
    }
  }

  const Lane at;
  const typename Columns::Places input_at(warp, at);
  const typename Grads::Places grads_at(warp, at);
  const bool is_ones = at.row + kOctet == Traits::kOnes;
  typename Columns::Raw raw_columns{};
  typename Grads::Raw raw_grads{};
  bool has_input = false;
  bool has_grads = false;
  int next = 0; // the step whose rows are loaded next
  const auto load_next = [&]() {
    if (next >= all_steps) {
      return;
    }
    has_grads = steps[next].has_grads;
    has_input = steps[next].has_input;
    const char* const stage = ring.wait();
    if (has_grads) {
      raw_grads.load(stage + Traits::kInputBytes, grads_at);
    }
    if (has_input) {
      raw_columns.load(stage, input_at);
    }
    // Warps ask in turn.
    const int ahead = next + Traits::kStages - 1;
    if (next % Traits::kWarps == warp && ahead < all_steps && first_lane) {
      ring.take_turn();
      ask(ahead);
    }
    next += 1;
    ring.release();
  };
  load_next();
  float sums[kQuad][kSide][4] = {};
#pragma unroll 1
  while (pieces.rows_left > 0) {
    const RowPiece piece = pieces.template next<Traits>(p);
    Grads grads[kSide] = {}; // that of step s in slot s % kSide
#pragma unroll 1
    for (int first = 0; first < piece.steps; first += kSide) {
      // Unrolled: a row stays in the registers of its slot.
#pragma unroll
      for (int u = 0; u < kSide; ++u) {
        if (first + u >= piece.steps) {
          break;
        }
        if (has_grads) {
          grads[u].arrange(raw_grads);
        } else {
          grads[u] = {};
        }
        Columns columns;
        columns.arrange(raw_columns);
        const bool multiplies = has_input;
        load_next(); // while this step's are multiplied
        if (!multiplies) {
          continue;
        }
#pragma unroll
        for (int c = 0; c < kQuad; ++c) {
          const uint32_t (&column)[4] = columns.words[c];
          const uint32_t low = is_ones ? kTwoOnes<scalar_t> : column[1];
          const uint32_t high = is_ones ? kTwoOnes<scalar_t> : column[3];
#pragma unroll
          for (int kh = 0; kh < kSide; ++kh) {
            const uint32_t (&grad)[2] = grads[(u - kh + kSide) % kSide].words[c];
            multiply_16<scalar_t>(sums[c][kh], column[0], low, column[2], high, grad[0], grad[1]);
          }
        }
      }
    }
  }

  // The sums of all channels, in the ring's place.
  __syncthreads();
  float* const matrices = reinterpret_cast<float*>(shared + kRingBytes);
#pragma unroll
  for (int i = 0; i < kQuad * kSide * 2; ++i) {
    const int c = i / (2 * kSide);
    const int kh = i / 2 % kSide;
    const int half = i % 2;
    const int row = kh * kMatrixRows + half * kOctet + at.row;
    float* const to = matrices + (warp * kQuad + c) * Traits::kChannelSums + row * kOctet;
    *reinterpret_cast<float2*>(to + 2 * at.pair) =
        make_float2(sums[c][kh][2 * half], sums[c][kh][2 * half + 1]);
  }
  __syncthreads();
  write_taps<Traits>(partial, grad_output, input, matrices, p);
#endif
}

// Rows of a block's share, of `rows` in all that `across` blocks side by side have: with which the
// multiprocessors() are done soonest.
inline int64_t plan_share(int64_t rows, int64_t height, int64_t across, int64_t overhang) {
  // Chains of a sum are no longer.
  constexpr int64_t kMostRows = 256;
  constexpr int64_t kMostTurns = 4; // of a multiprocessor
  constexpr int64_t kBegin = 10; // rows that a block's begin and end take
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t best = 1;
  for (int64_t turns = 1; turns <= kMostTurns; ++turns) {
    const int64_t sets = std::max<int64_t>(1, turns * multiprocessors() / across);
    const int64_t share = std::min(kMostRows, box_share(rows, sets, height, overhang));
    const int64_t blocks = divide_up(rows, share) * across;
    const int64_t time = divide_up(blocks, multiprocessors()) * (share + kBegin);
    if (time < least) {
      least = time;
      best = share;
    }
  }
  return best;
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int64_t kOverhang = 2 * Traits::kReach;
  PixelBatchWeight s{};
  set_unit_stride_pass(s, params);
  const int64_t groups = divide_up(s.channels, Traits::kChannels);
  s.octets = divide_up(divide_up(s.src_width, s.dilation_width), kOctet);
  const int64_t octets = s.octets * s.dilation_width;
  s.phase_rows = divide_up(s.src_height, s.dilation_height);
  s.rows = divide_up(s.batch, kTileImages) * s.dilation_height * s.phase_rows;
  s.share = plan_share(s.rows, s.phase_rows, groups * octets, kOverhang);
  const int64_t shares = divide_up(s.rows, s.share);
  const int64_t steps = s.share + kOverhang * (divide_up(s.share, s.phase_rows) + 1);
  const int64_t rings = Traits::kStages * Traits::kStageBytes + steps * sizeof(StepRows);
  const size_t bytes = kRingBytes + std::max<int64_t>(rings, Traits::kSumsBytes);
  typename Traits::Phases maps;
  constexpr auto kernel = pixel_batch_weight_kernel<Traits>;
  if (!compiled_for_sm_90<kernel>() || !has_shared(bytes) || octets > kMostGridRows ||
      shares > kMostGridRows ||
      !map_column_phases<Traits::kPixelBytes>(
          maps,
          pass.grad_output,
          Traits::kGradColumns,
          pass.input,
          Traits::kInputColumns,
          kTileImages,
          s.dilation_width,
          s.padding_width)) {
    return false;
  }
  const Operand partial = empty_partial(octets * shares, params);
  launch_kernel(
      kernel,
      dim3(groups, octets, shares),
      Traits::kThreads,
      bytes,
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      maps,
      s);
  add_partials(pass.grad_weight, pass.grad_bias, partial, octets * shares, params);
  return true;
}

#endif

} // namespace

bool pixel_batch_grad_weight(const BackwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  constexpr int64_t kLeastChannels = 16; // half of a block's
  constexpr int64_t kLeastImages = kOctet; // 96@56 k7 of 8 images 21.6 us by boxes, 16.7 here
  // Of matrices, for 5 x 5: 96@56 of 8 images 14.8 us by boxes, 15.5 here.
  constexpr double kLeastFill = .75;
  const Type type = pass.input.type();
  const int64_t side = p.kernel_width;
  if (!p.channels_last || p.multiplier != 1 || !is_16_bit(type) || !keeps_size(p) ||
      p.kernel_height != side || p.padding_height != side / 2 * p.dilation_height ||
      p.padding_width != side / 2 * p.dilation_width || p.input_height < p.dilation_height ||
      p.channels < kLeastChannels || p.batch < kLeastImages || pass.input.numel() == 0 ||
      !march_fits_32_bits(p) || !boxes_take(pass.input) || !boxes_take(pass.grad_output) ||
      !device_has_boxes()) {
    return false;
  }
  const auto with_dilation = [&](auto fixed, auto dilated) {
    constexpr int kSide = decltype(fixed)::value;
    constexpr bool kDilated = decltype(dilated)::value;
    return type == Type::kHalf ? launch<PixelBatchTraits<c10::Half, kSide, kDilated>>(pass, p)
                               : launch<PixelBatchTraits<c10::BFloat16, kSide, kDilated>>(pass, p);
  };
  const auto with_type = [&](auto fixed) {
    return p.dilation_height > 1 || p.dilation_width > 1 ? with_dilation(fixed, std::true_type())
                                                         : with_dilation(fixed, std::false_type());
  };
  const double room = divide_up(p.batch, kTileImages) * kTileImages;
  return side == 7                                ? with_type(std::integral_constant<int, 7>())
      : side == 5 && p.batch >= kLeastFill * room ? with_type(std::integral_constant<int, 5>())
                                                  : false;
#else
  return false;
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
