// Forward of depthwise_conv2d_ext in plane order by strips (Strips.cuh), and
// grad_input at stride 1, which is the forward on grad_output with flipped taps.
//
// A lane walks down the rows of src. Each feeds all the dst rows that it belongs to, whose sums are in
// registers: slot s holds the dst row that this step's row reaches with the taps of kernel row s. With
// the first product of a row the sums move on a slot, so that the shift costs nothing. A round is as
// many rows as the march is unrolled for; those of the next are on their way, in registers.
//
// The images of a channel are one stack, through which a warp goes for its share of rounds, as many
// as there are if the warps are to fill the device once. So taps are fetched once and memory never waits
// for a strip to begin. A share that begins or ends within an image has a round more there.
//
// Rows outside the image are skipped. Columns outside it are zeros that are multiplied by taps, which
// is the same only for finite taps: a warp that has others takes its sums tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Strips.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kThreads = 128;

// kDilation: of rows and columns. Its phases, of which each sees every kDilation-th row alone, are
// strips beside each other. kSources: src planes that a dst plane adds up, each with taps of its own.
template <typename scalar_t_, typename Window, int kVector_, int kDilation_ = 1, int kSources_ = 1>
struct StripTraits {
  using scalar_t = scalar_t_;
  static constexpr int kVector = kVector_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kDilation = kDilation_;
  static constexpr int kSources = kSources_;
  static constexpr int kReach = (kWidth - 1) / 2 * kDilation; // columns on either side
  static constexpr int kPadding = (kHeight - 1) / 2; // rows of a phase above and below
  static constexpr int kBeside = (kReach + kVector - 1) / kVector; // lanes on either side
  // Rows of a round, which are under way while those before are used.
  static constexpr int kRound = kDilation > 1 ? 3 : 4;
  static_assert(kRound >= kPadding, "one round more is all that a share within an image reads");
  // Blocks a multiprocessor, for which registers are bounded.
  static constexpr bool kHalfSize = sizeof(scalar_t) == 2;
  static constexpr int kBlocks = kDilation > 1 ? 3
      : kTaps > 25 || kSources > 1             ? 4
      : kTaps > 9                              ? (kVector > 4 ? 4 : 5)
      : kVector > 4                            ? 6
                                               : 8;
  // Blocks that keep a multiprocessor about as busy as all of them. 5 x 5 in float32 waits for memory: 240@28
  // takes 72 us with 3 blocks, 66 with 4 and 63 with 5.
  static constexpr int kBusyBlocks = kTaps == 25 && !kHalfSize ? kBlocks : (3 * kBlocks + 4) / 5;
};

// What a lane owns of a strip, tap by tap.
template <typename scalar_t>
__device__ __noinline__ void careful_strip(
    scalar_t* dst,
    const scalar_t* src,
    const scalar_t* taps,
    int sources,
    float begin,
    const UnitStridePass& p,
    int first_row,
    int last_row,
    int row_step,
    int first_column,
    int columns) {
#pragma unroll 1
  for (int row = first_row; row < last_row; row += row_step) {
#pragma unroll 1
    for (int column = first_column; column < first_column + columns; ++column) {
      float sum = begin;
      for (int source = 0; source < sources; ++source) {
        sum = careful_output(
            src + source * p.src_height * p.src_width,
            taps + source * p.kernel_height * p.kernel_width,
            sum,
            p,
            row,
            column);
      }
      dst[row * p.dst_width + column] = static_cast<scalar_t>(sum);
    }
  }
}

// A march through stacks of images.
struct StripStacks {
  int32_t rounds; // of an image
  int32_t all_rounds; // of a stack
  int32_t share; // rounds of a warp
};

template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void strips_forward_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const UnitStridePass p,
    const Strips s,
    const StripStacks stacks) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  constexpr int kRound = Traits::kRound;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kPadding = Traits::kPadding;
  constexpr int kDilation = Traits::kDilation;
  constexpr int kSources = Traits::kSources;
  constexpr int kTaps = Traits::kTaps;
  using Row = StripRow<scalar_t, kVector, Traits::kReach, Traits::kReach>;

  StripLane lane;
  if (!strip_lane(lane, s, blockIdx.x * (kThreads / kWarpSize) + threadIdx.x / kWarpSize)) {
    return;
  }
  const int column = lane.vector * kVector;
  const int channel = lane.plane / kDilation;
  const int phase = lane.plane % kDilation;
  const int rows = (p.dst_height - phase + kDilation - 1) / kDilation;
  const int row_step = kDilation * p.dst_width;
  const int plane = p.dst_height * p.dst_width;
  const int src_image = p.channels / p.multiplier * kSources * plane;
  const int dst_image = p.channels * plane;
  const int corner = phase * p.dst_width + column;
  const scalar_t* const src_plane = src + channel / p.multiplier * kSources * plane;
  const scalar_t* const from = src_plane + corner;
  scalar_t* const into = dst + channel * plane + corner;
  const scalar_t* const channel_taps = weight + channel * kSources * kTaps;
  const int first_round = blockIdx.y * stacks.share;
  int left = min(stacks.share, stacks.all_rounds - first_round);

  // Of an image: the first round of dst, and the round of src that the march is at.
  int image = first_round / stacks.rounds;
  int first = first_round - image * stacks.rounds;
  int round = max(first - 1, 0);
  const scalar_t* next = from + image * src_image + round * kRound * row_step;
  int next_rows = rows - round * kRound;
  typename Row::Own ahead[kRound][kSources];
  const auto load_next = [&](typename Row::Own(&to)[kSources], int row) {
#pragma unroll
    for (int source = 0; source < kSources; ++source) {
      to[source] = packed_zero<scalar_t, kVector>();
      if (row < next_rows) {
        load_strip(to[source], next + source * plane);
      }
    }
    next += row_step;
  };
#pragma unroll
  for (int u = 0; u < kRound; ++u) {
    load_next(ahead[u], u);
  }

  float taps[kSources][kTaps];
  bool finite = true;
#pragma unroll
  for (int source = 0; source < kSources; ++source) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[source][tap] =
          static_cast<float>(channel_taps[source * kTaps + (p.flip ? kTaps - 1 - tap : tap)]);
      finite = finite && is_finite(taps[source][tap]);
    }
  }
  const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
  if (__any_sync(0xffffffffu, !finite)) {
    for (int i = first_round; lane.owns && i < first_round + left; ++i) {
      const int of = i / stacks.rounds;
      const int row = i % stacks.rounds * kRound;
      careful_strip(
          dst + of * dst_image + channel * plane,
          src_plane + of * src_image,
          channel_taps,
          kSources,
          begin,
          p,
          phase + row * kDilation,
          phase + min(row + kRound, rows) * kDilation,
          kDilation,
          column,
          kVector);
    }
    return;
  }

  while (true) {
    const int end = min(first + left, stacks.rounds); // of dst
    const int src_end = min(end + 1, stacks.rounds);
    left -= end - first;
    scalar_t* to = into + image * dst_image + first * kRound * row_step;
    const int stored = lane.owns ? min(end * kRound, rows) - first * kRound : 0;
    const auto store = [&](int finished, const float (&sums)[kVector]) {
      if (static_cast<unsigned int>(finished) < static_cast<unsigned int>(stored)) {
        store_vector<scalar_t, kVector>(to, sums);
        to += row_step;
      }
    };
    // The dst rows whose first rows are not there begin as all others do.
    float slots[kHeight][kVector];
#pragma unroll
    for (int slot = 0; slot < kHeight; ++slot) {
#pragma unroll
      for (int t = 0; t < kVector; ++t) {
        slots[slot][t] = begin;
      }
    }
    next_rows = rows - (round + 1) * kRound;
    int finished = (round - first) * kRound - kPadding;
#pragma unroll 1
    for (; round < src_end; ++round) {
      if (round + 1 == src_end) {
        next = from + (image + 1) * src_image;
        next_rows = left > 0 ? rows : 0;
      }
#pragma unroll
      for (int u = 0; u < kRound; ++u) {
#pragma unroll
        for (int source = 0; source < kSources; ++source) {
          const Row values(ahead[u][source], lane);
#pragma unroll
          for (int slot = kHeight - 1; slot >= 0; --slot) {
            const bool own = slot >= Traits::kOwnRow;
#pragma unroll
            for (int t = 0; t < kVector; ++t) {
              const float before = source > 0 ? slots[slot][t]
                  : slot > 0                  ? slots[slot > 0 ? slot - 1 : 0][t]
                                              : begin;
              float sum = before;
#pragma unroll
              for (int kw = 0; kw < Traits::kWidth; ++kw) {
                const float tap = taps[source][slot * Traits::kWidth + kw];
                const float value = values.column(t + kw * kDilation);
                sum = own && kw == 0 ? value * tap : fmaf(value, tap, sum);
              }
              slots[slot][t] = own ? before + sum : sum;
            }
          }
        }
        load_next(ahead[u], u);
        store(finished + u, slots[kHeight - 1]);
      }
      next_rows -= kRound;
      finished += kRound;
    }
    // The last rows of an image, whose last rows are not there.
    if (src_end == stacks.rounds) {
#pragma unroll
      for (int i = 0; i < kPadding; ++i) {
        store(finished + i, slots[kHeight - 2 - i]);
      }
    }
    if (left == 0) {
      return;
    }
    image += 1;
    first = 0;
    round = 0;
  }
}

// Shares that make the time shortest: of whole images, or so many that a multiprocessor has one more
// block at a time. A wave of few blocks takes as long as one of kBusyBlocks: 96@56 k7 takes 91 us with
// 2 blocks, 67 with 3, 70 with 4 (whose shares end within images) and 68 with 6, 4 of them at a time.
template <typename Traits>
StripStacks plan_stacks(const UnitStridePass& p, int64_t warps) {
  constexpr int64_t kWaves = 3;
  constexpr int64_t kMostImages = 4;
  constexpr int64_t kStart = 1; // in rounds: what it takes to begin a share
  constexpr int64_t kWithin = 2; // more rounds of one that begins and ends within images
  StripStacks stacks{};
  stacks.rounds = divide_up(divide_up(p.dst_height, Traits::kDilation), Traits::kRound);
  stacks.all_rounds = stacks.rounds * p.batch;
  const int64_t side_by_side = divide_up(warps, kThreads / kWarpSize);
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto consider = [&](int64_t share) {
    const int64_t blocks =
        divide_up(divide_up(stacks.all_rounds, share) * side_by_side, multiprocessors());
    const int64_t rest = blocks % Traits::kBlocks;
    const int64_t taken =
        blocks - rest + (rest > 0 ? std::max<int64_t>(rest, Traits::kBusyBlocks) : 0);
    const int64_t cost = taken * (share + kStart + (share % stacks.rounds != 0 ? kWithin : 0));
    if (cost < least) {
      least = cost;
      stacks.share = share;
    }
  };
  for (int64_t images = 1; images <= std::min<int64_t>(kMostImages, p.batch); ++images) {
    consider(images * stacks.rounds);
  }
  for (int64_t blocks = 1; blocks <= kWaves * Traits::kBlocks; ++blocks) {
    const int64_t shares = std::max<int64_t>(1, blocks * multiprocessors() / side_by_side);
    consider(divide_up(stacks.all_rounds, shares));
  }
  return stacks;
}

template <typename Traits>
bool launch_strips(const ForwardPass& pass, const UnitStridePass& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  if (!strips_aligned(pass, p.dst_width, kVector, kVector * sizeof(scalar_t)) ||
      p.padding_width != Traits::kReach ||
      p.padding_height != Traits::kPadding * Traits::kDilation) {
    return false;
  }
  const Strips s = plan_strips(
      p.channels * Traits::kDilation,
      p.dst_height,
      p.dst_width / kVector,
      Traits::kBeside,
      1,
      p.dst_height);
  const StripStacks stacks = plan_stacks<Traits>(p, strip_warps(s));
  const int64_t shares = divide_up(stacks.all_rounds, stacks.share);
  if (shares > kMostGridRows) {
    return false;
  }
  const dim3 grid(divide_up(strip_warps(s), kThreads / kWarpSize), shares);
  launch_kernel(
      strips_forward_kernel<Traits>,
      grid,
      kThreads,
      0,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      s,
      stacks);
  return true;
}

// Of 7 x 7 windows, the one dilation that has kernels: that of attention by large windows.
constexpr int kDilated = 3;

// Whether nothing else is faster on rows of this length.
bool strips_pay(const UnitStridePass& p, int sources, bool half_size) {
  const int64_t very_many = multiprocessors() * 64 * 1024; // elements
  constexpr int32_t kPatch = 7; // columns
  constexpr int32_t kMarchTile = 56;
  constexpr int32_t kMarchLeast = 42;
  const int64_t elements = static_cast<int64_t>(p.batch) * p.channels * p.dst_height * p.dst_width;
  const int32_t width = p.dst_width;
  if (p.kernel_height == 7 || p.multiplier > 1 || sources > 1) {
    return true;
  }
  if (p.kernel_height == 5) {
    // In 16 bit where the tiles of the marches on tensor cores, or whole planes, are not full (240@28 40
    // us there, 49 here).
    const int32_t in_tile = width % kMarchTile;
    return !half_size ||
        (width < 2 * kMarchTile && width != kMarchTile / 2 && in_tile > 0 && in_tile < kMarchLeast);
  }
  // Patches that fill rows are as fast or faster, as they copy flat; but not where there are few blocks, or their rows have 112 columns and more in 16 bit.
  // Where patches do not fill rows, float32 has to have whole sectors and whole warps (64@68 has neither:
  // dgrad 48 us by patches, 52 here).
  constexpr int32_t kLongRow = 112;
  constexpr int32_t kSector = 8; // columns
  if (width % kPatch == 0) {
    return half_size ? width >= kLongRow : elements < very_many;
  }
  return half_size || (width % kSector == 0 && plan_strips(1, 1, width / 4, 1, 1, 1).beside == 0);
}

template <typename scalar_t, typename Window>
bool launch_window(const ForwardPass& pass, const UnitStridePass& p, int sources) {
  constexpr bool kHalfSize = sizeof(scalar_t) == 2;
  if constexpr (
      Window::kStride > 1 || Window::kHeight == 1 || (Window::kHeight == 7 && kHalfSize)) {
    return false; // 7 x 7 in 16 bit is for tensor cores
  } else {
    if (!strips_pay(p, sources, kHalfSize)) {
      return false;
    }
    if constexpr (Window::kHeight == 7) {
      if (p.dilation_width == kDilated && sources == 1) {
        return launch_strips<StripTraits<scalar_t, Window, 4, kDilated>>(pass, p);
      }
    }
    if (p.dilation_width != 1) {
      return false;
    }
    const auto with_vector = [&](auto vector) {
      constexpr int kVector = decltype(vector)::value;
      if constexpr (Window::kHeight == 3) {
        if (sources == 2) {
          return launch_strips<StripTraits<scalar_t, Window, kVector, 1, 2>>(pass, p);
        }
      }
      return sources == 1 && launch_strips<StripTraits<scalar_t, Window, kVector>>(pass, p);
    };
    if constexpr (kHalfSize) {
      if (with_vector(std::integral_constant<int, 8>())) {
        return true;
      }
    }
    return with_vector(std::integral_constant<int, 4>());
  }
}

bool strips_pass(
    const ForwardPass& pass,
    const Params& window,
    const UnitStridePass& p,
    int sources) {
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_window(window, [&](auto fixed) {
      return launch_window<decltype(scalar), decltype(fixed)>(pass, p, sources);
    });
  });
}

// As much padding as leaves the sizes as they are; the launcher looks for it.
bool strips_take(const Params& p) {
  return march_fits_32_bits(p) && keeps_size_of_planes(p) && p.dilation_height == p.dilation_width;
}

} // namespace

bool strips_forward(const ForwardPass& pass, const Params& p) {
  if (!strips_take(p) || pass.dst.numel() == 0) {
    return false;
  }
  UnitStridePass unit = unit_stride_pass(p, pass.grad_input);
  if (pass.grad_input) {
    unit.channels = p.channels;
    unit.multiplier = 1;
  }
  return strips_pass(pass, p, unit, pass.grad_input ? p.multiplier : 1);
}

// grad_weight and grad_bias of depthwise_conv2d_ext by strips (Strips.cuh), and
// grad_input in the same pass where it is wanted, at stride 1 where the output is of the input's size.
//
// A warp marches down the rows of grad_output, of one channel, with the last k of them in registers, a
// vector of columns and what a window reaches beside it a lane. A row of the input then meets all rows
// of grad_output that it belongs to, which serve twice: their products with the input go into one sum
// a tap, those with the taps make the row of grad_input,
//   sum[kh][kw] += input[h][s] * grad_output[h + reach - kh][s + reach - kw],
// so that grad_output is needed beside a lane's columns and the input is not. Rows come by asynchronous
// copies into a ring in shared memory, a vector a lane: what is under way costs no registers. The march
// is unrolled by the slots of the ring, so that neither rows nor sums are moved.
//
// Where an input channel has two outputs, of 3 x 3, a lane has the rows of both: those of the input are read
// once, and both add to a row of grad_input.
//
// In float the sums of a turn of the ring go to totals in shared memory, which bounds the chains: with a
// sum a strip errors were up to 1.6 times upstream's. Lanes are added up in a tree; a block writes one
// partial, and add_partials() adds the blocks' in a fixed order. A float bias is compensated in a lane and
// added in double beyond, as in MarchGradWeight.cu.
//
// Zeros outside the image are multiplied with the input, which is right only while that is finite: a sum
// that ends as NaN is taken again tap by tap, of positions inside the image only. So is grad_input
// where a tap is not finite.
//
// Microseconds of an H200, the weight's gradient and all gradients, by the march and by patches and by this;
// float 144@56 k3 145, 213 and 126, 181, 240@28 k5 94, 159 and 77, 103, 1024x1008 k5 1,507, 3,042 and 1,053,
// 1,771, 96@56 k7 118 and 73; half 144@56 k3 95, 127 and 79, 103.

namespace {

constexpr int kWarps = 4;
constexpr int kBackwardThreads = kWarps * kWarpSize;
// Of a larger window sums, taps and rows together leave too few warps.
constexpr int kMostFused = 5;

struct StripsWeight : UnitStridePass { // src and dst of one size
  Strips strips; // of a channel's planes
  int32_t warps; // that have one
};

template <typename scalar_t_, typename Window, int kVector_, bool kData_, int kOutputs_ = 1>
struct StripsWeightTraits {
  using scalar_t = scalar_t_;
  static constexpr int kOutputs = kOutputs_; // of an input channel
  static constexpr int kWindow = Window::kHeight;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kReach = (kWindow - 1) / 2;
  static constexpr int kVector = kVector_; // columns of a lane
  static constexpr int kColumns = kVector + 2 * kReach;
  static constexpr bool kData = kData_; // grad_input too
  // Rounding to 16 bits would hide what bounded chains and an exact bias give.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  using Own = Packed<scalar_t, kVector>;
  using Fold = WarpFold<kAlike, kWarpSize / 2>;
  // Rows of the ring: the march is unrolled by them, and they by the rows of a window.
  static constexpr int kSlots = kWindow > 3 ? kWindow : 2 * kWindow;
  static constexpr int kAhead = kSlots - 1; // rows under way
  // What a lane sees beside its vector comes from the ring, by one load on either side, or by
  // shuffles: for k3 the loads' bank conflicts are what the kernel waits for, for k7 shuffles spill.
  static constexpr bool kFromRing = kReach > 1;
  // Of a slot: a row of grad_output, zeros for what is outside the image, and a row of the input.
  static constexpr int kGrads = (kWarpSize + kFromRing) * Own::kBytes; // of an output
  static constexpr int kInput = kOutputs * kGrads;
  static constexpr int kSlotBytes = kInput + kWarpSize * Own::kBytes;
  static constexpr int kRingBytes = kSlots * kSlotBytes;
  // A lane's totals of the sums, four to a vector.
  static constexpr int kQuads = kExact ? (kTaps + 3) / 4 : 0;
  static constexpr int kWarpBytes =
      kRingBytes + kOutputs * kQuads * kWarpSize * static_cast<int>(sizeof(float4));
  static constexpr int kShared = kWarps * kWarpBytes;
  // More would leave the L1, which the copies go through, too small: with seven the weight's gradient of
  // 144@56 k3 in float takes 153 us, not 126 (seven past the L1 130).
  static constexpr int kBlocks = kOutputs > 1 ? (kVector > 4 && kData ? 3 : 4)
      : kTaps > 25                            ? 3
      : kTaps > 9                             ? (kData ? 3 : 4)
                                              : (kData ? 5 : 6);
  // Rows of a strip at most: of short ones a block's warps have neighbouring memory. All gradients of
  // 144@56 k3 by 14, 28, 56 rows: float 185, 192, 197 us, half 103, 110, 116. With two outputs more of a strip is
  // read twice: all gradients of 32@112 by 20, 28, 40, 56 rows float 72, 67, 67, 65 us, half 42, 43, 40, 41.
  static constexpr int kMostRows = kTaps > 9 ? 64 : kOutputs > 1 ? 56 : kData ? 14 : 28;
  static constexpr int kBeside = kReach == 3 ? 4 : 2; // elements of a load beside the lane's vector
  using Beside = Packed<scalar_t, kBeside>;
  static_assert(kReach <= 3 && kBeside <= kVector);
  static_assert(kOutputs == 1 || !kFromRing);
  static_assert(Window::kWidth == kWindow && kSlots % kWindow == 0 && kAhead >= 2 * kReach);
};

template <typename Word>
__device__ __forceinline__ Word read_shared(const char* from) {
  return *reinterpret_cast<const Word*>(from);
}

// One lane's strip. Rows are counted as those of the input: row h of the input comes with row
// h + reach of grad_output.
template <typename Traits>
struct StripMarch {
  using scalar_t = typename Traits::scalar_t;
  using Own = typename Traits::Own;
  static constexpr int kReach = Traits::kReach;

  const StripsWeight& p;
  const scalar_t* const grad_output; // from it rows are as far as from the input
  const scalar_t* const input;
  const StripLane place;
  char* const ring; // where the lane's vectors go
  const char* left; // where it finds those beside them, or zeros
  const char* right;
  int input_end; // of rows that the lane has, exclusive; none where it only loads
  int grad_end; // of rows that these meet
  int at; // of the row in the tensors

  __device__ __forceinline__ StripMarch(
      const StripsWeight& geometry,
      const scalar_t* dy,
      const scalar_t* x,
      char* my_ring,
      const StripLane& lane,
      int channel)
      : p(geometry),
        grad_output(
            dy +
            (Traits::kOutputs - 1) *
                (lane.plane * (geometry.channels / Traits::kOutputs) + channel) *
                geometry.src_height * geometry.src_width),
        input(x),
        place(lane),
        ring(my_ring) {
    const char* const zeros =
        ring + (kWarpSize - static_cast<int>(threadIdx.x) % kWarpSize) * Own::kBytes;
    left = place.vector > 0 && threadIdx.x % kWarpSize > 0 ? ring - Own::kBytes : zeros;
    right = place.vector + 1 < place.lanes ? ring + Own::kBytes : zeros;
    const int last_row = min(place.first_row + p.strips.rows, p.src_height);
    input_end = place.owns ? last_row : place.first_row;
    grad_end = min(last_row + kReach, p.src_height);
    at = ((place.plane * (p.channels / Traits::kOutputs) + channel) * p.src_height +
          place.first_row) *
            p.src_width +
        place.vector * Traits::kVector;
  }

  // Asks for row h of the input and what comes with it; `offset` is the row's in the tensors.
  __device__ __forceinline__ void load(int slot, int h, int offset) const {
    char* const to = ring + slot * Traits::kSlotBytes;
    const int g = h + kReach;
#pragma unroll
    for (int q = 0; q < Traits::kOutputs; ++q) {
      copy_async<Own::kBytes>(
          to + q * Traits::kGrads,
          grad_output + (offset + (q * p.src_height + kReach) * p.src_width),
          g >= 0 && g < grad_end);
    }
    copy_async<Own::kBytes>(
        to + Traits::kInput, input + offset, h >= place.first_row && h < input_end);
    commit_copies();
  }

  // Until the row that is used next is there, for all lanes.
  static __device__ __forceinline__ void wait() {
    wait_for_groups<Traits::kAhead - 1>();
    __syncwarp();
  }

  __device__ __forceinline__ void read_grads(float (&row)[Traits::kColumns], int slot, int output)
      const {
    constexpr int kVector = Traits::kVector;
    const int offset = slot * Traits::kSlotBytes + output * Traits::kGrads;
    const auto own = read_shared<Own>(ring + offset);
    if constexpr (Traits::kFromRing) {
      // The words that hold the reach.
      using Beside = typename Traits::Beside;
      const auto before = read_shared<Beside>(left + offset + Own::kBytes - Beside::kBytes);
      const auto after = read_shared<Beside>(right + offset);
#pragma unroll
      for (int i = 0; i < kReach; ++i) {
        row[i] = unpack(before, Traits::kBeside - kReach + i);
        row[kReach + kVector + i] = unpack(after, i);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        row[kReach + i] = unpack(own, i);
      }
    } else {
      const StripRow<scalar_t, kVector, kReach, kReach> columns(own, place);
#pragma unroll
      for (int i = 0; i < Traits::kColumns; ++i) {
        row[i] = columns.column(i);
      }
    }
  }

  __device__ __forceinline__ void read_input(float (&row)[Traits::kVector], int slot) const {
    const auto own = read_shared<Own>(ring + slot * Traits::kSlotBytes + Traits::kInput);
#pragma unroll
    for (int i = 0; i < Traits::kVector; ++i) {
      row[i] = unpack(own, i);
    }
  }
};

// Adds the taps' sums of some rows to the lane's totals in shared memory, and begins them anew.
template <typename Traits>
__device__ __forceinline__ void add_to_totals(float (&sums)[Traits::kTaps + 1], float4* totals) {
  constexpr int kTaps = Traits::kTaps;
#pragma unroll
  for (int i = 0; i < Traits::kQuads; ++i) {
    const auto take = [&](int k) {
      return k < kTaps ? sums[k < kTaps ? k : 0] : 0.0f;
    };
    float4 total = totals[i * kWarpSize];
    total.x += take(4 * i);
    total.y += take(4 * i + 1);
    total.z += take(4 * i + 2);
    total.w += take(4 * i + 3);
    totals[i * kWarpSize] = total;
  }
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    sums[k] = 0.0f;
  }
}

// Marches down a strip: adds to the sums of the taps, and to sums[kTaps] - excess the bias; writes
// grad_input. In float the taps' sums end up in the totals.
template <typename Traits>
__device__ __forceinline__ void march_strip(
    float (&sums)[Traits::kOutputs][Traits::kTaps + 1],
    float (&excess)[Traits::kOutputs],
    typename Traits::scalar_t* grad_input,
    const float (&taps)[Traits::kOutputs][Traits::kTaps],
    float4* totals,
    StripMarch<Traits>& m) {
  constexpr int kWindow = Traits::kWindow;
  constexpr int kVector = Traits::kVector;
  constexpr int kOutputs = Traits::kOutputs;
  constexpr int kBefore = 2 * Traits::kReach; // rows of grad_output before the first of the input
  const int width = m.p.src_width;
  int h = m.place.first_row - kBefore;
  m.at -= kBefore * width;
  __syncwarp(); // nobody reads the ring of the strip before any more
#pragma unroll
  for (int i = 0; i < Traits::kAhead; ++i) {
    m.load(i, h + i, m.at + i * width);
  }
  float grads[kWindow][kOutputs][Traits::kColumns];
  const auto next_row = [&](int i) {
    m.wait();
    // Into the slot that was used before this wait.
    m.load(
        (i + Traits::kAhead) % Traits::kSlots, h + Traits::kAhead, m.at + Traits::kAhead * width);
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      m.read_grads(grads[i % kWindow][q], i % Traits::kSlots, q);
    }
  };
#pragma unroll
  for (int i = 0; i < kBefore; ++i) {
    next_row(i);
    ++h;
    m.at += width;
  }
#pragma unroll 1
  for (int first = 0; first < m.p.strips.rows; first += Traits::kSlots) {
#pragma unroll
    for (int u = 0; u < Traits::kSlots; ++u) {
      if (first + u >= m.p.strips.rows) {
        break;
      }
      const int i = kBefore + u;
      next_row(i);
      float values[kVector];
      m.read_input(values, i % Traits::kSlots);
      float result[kVector][1] = {};
#pragma unroll
      for (int k = 0; k < kWindow * kOutputs; ++k) {
        // From the oldest row, as the forward with the taps flipped goes, which grad_input alone is: of
        // few elements its bits are the same whatever else is wanted.
        const int r = k / kOutputs;
        const int q = k % kOutputs;
        const float (&row)[Traits::kColumns] = grads[(i + 1 + r) % kWindow][q];
        RowSums<kVector, 1> products(result, r >= Traits::kOwnRow);
#pragma unroll
        for (int c = 0; c < kWindow; ++c) {
          const int tap = Traits::kTaps - 1 - (r * kWindow + c);
#pragma unroll
          for (int s = 0; s < kVector; ++s) {
            const float grad = row[s + c];
            sums[q][tap] = fmaf(values[s], grad, sums[q][tap]);
            if constexpr (Traits::kData) {
              products.add(c, s, 0, grad, taps[q][tap]);
            }
          }
        }
        if constexpr (Traits::kData) {
          products.finish();
        }
      }
      const bool has_row = h < m.input_end;
#pragma unroll
      for (int q = 0; q < kOutputs; ++q) {
        const float* const middle = grads[(i - Traits::kReach) % kWindow][q] + Traits::kReach;
        float sum = middle[0];
#pragma unroll
        for (int s = 1; s < kVector; ++s) {
          sum += middle[s];
        }
        sum = has_row ? sum : 0.0f;
        add_to_bias<Traits::kExact>(sums[q][Traits::kTaps], excess[q], sum);
      }
      if constexpr (Traits::kData) {
        if (has_row) {
          float row[kVector];
#pragma unroll
          for (int s = 0; s < kVector; ++s) {
            row[s] = result[s][0];
          }
          store_vector(grad_input + m.at, row);
        }
      }
      ++h;
      m.at += width;
    }
    if constexpr (Traits::kExact) {
#pragma unroll
      for (int q = 0; q < kOutputs; ++q) {
        add_to_totals<Traits>(sums[q], totals + q * Traits::kQuads * kWarpSize);
      }
    }
  }
  wait_for_copies();
}

// One tap (kTaps: the bias) of a lane's part of a strip, inside the image only.
template <typename Traits>
__device__ __noinline__ float careful_strip(
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const StripsWeight& p,
    const StripLane& place,
    int channel,
    int tap) {
  const int index = place.plane * p.channels + channel; // of all planes of grad_output
  const int size = p.src_height * p.src_width;
  grad_output += index * size;
  input += index / Traits::kOutputs * size;
  const int last_row = min(place.first_row + p.strips.rows, p.src_height);
  float sum = 0.0f;
#pragma unroll 1
  for (int row = place.first_row; row < last_row; ++row) {
#pragma unroll 1
    for (int i = 0; i < Traits::kVector; ++i) {
      const int column = place.vector * Traits::kVector + i;
      const int h = row - tap / Traits::kWindow + Traits::kReach;
      const int w = column - tap % Traits::kWindow + Traits::kReach;
      if (tap == Traits::kTaps) {
        sum += static_cast<float>(grad_output[row * p.src_width + column]);
      } else if (h >= 0 && h < p.src_height && w >= 0 && w < p.src_width) {
        sum += static_cast<float>(grad_output[h * p.src_width + w]) *
            static_cast<float>(input[row * p.src_width + column]);
      }
    }
  }
  return sum;
}

// grid: channels of the input x chunks of a channel's strips. grad_input only where Traits::kData.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kBackwardThreads, Traits::kBlocks)
__global__ void strips_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ StripsWeight p) {
  using scalar_t = typename Traits::scalar_t;
  using Fold = typename Traits::Fold;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kVector = Traits::kVector;
  constexpr int kOutputs = Traits::kOutputs;
  constexpr int kSums = kTaps + 1; // of an output
  extern __shared__ float4 shared_vectors[];
  __shared__ float shared[kWarps][kOutputs * kSums];
  __shared__ double biases[kWarps][kOutputs];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int channel = blockIdx.x;
  char* const ring = reinterpret_cast<char*>(shared_vectors) + warp * Traits::kWarpBytes;
  float4* const totals = reinterpret_cast<float4*>(ring + Traits::kRingBytes) + lane;
#pragma unroll
  for (int i = 0; i < kOutputs * Traits::kQuads; ++i) {
    totals[i * kWarpSize] = {};
  }

  float taps[kOutputs][kTaps] = {};
  bool finite = true;
  if constexpr (Traits::kData) {
#pragma unroll
    for (int i = 0; i < kOutputs * kTaps; ++i) {
      const float tap = static_cast<float>(weight[channel * kOutputs * kTaps + i]);
      taps[i / kTaps][i % kTaps] = tap;
      finite = finite && is_finite(tap);
    }
  }
  if constexpr (Traits::kFromRing) {
    constexpr int kWords = Traits::Own::kBytes / static_cast<int>(sizeof(uint32_t));
    for (int i = lane; i < Traits::kSlots * kWords; i += kWarpSize) {
      char* const zeros = ring + i / kWords * Traits::kSlotBytes + kWarpSize * Traits::Own::kBytes;
      reinterpret_cast<uint32_t*>(zeros)[i % kWords] = 0;
    }
  }
  float sums[kOutputs][kSums] = {};
  float excess[kOutputs] = {};
  const int step = gridDim.y * kWarps;
  const int first_strip = blockIdx.y * kWarps + warp;
  StripLane place;
#pragma unroll 1
  for (int strip = first_strip; strip < p.warps; strip += step) {
    strip_lane(place, p.strips, strip);
    StripMarch<Traits> march(
        p, grad_output, input, ring + lane * Traits::Own::kBytes, place, channel);
    march_strip<Traits>(sums, excess, grad_input, taps, totals, march);
    if (Traits::kData && !finite && place.owns) {
      const int size = p.src_height * p.src_width;
      const int plane = place.plane * (p.channels / kOutputs) + channel; // of all
      const int last_row = min(place.first_row + p.strips.rows, p.src_height);
#pragma unroll 1
      for (int i = place.first_row * kVector; i < last_row * kVector; ++i) {
        const int row = i / kVector;
        const int column = place.vector * kVector + i % kVector;
        float sum = 0.0f;
#pragma unroll 1
        for (int q = 0; q < kOutputs; ++q) {
          sum = careful_output(
              grad_output + (plane * kOutputs + q) * size,
              weight + (channel * kOutputs + q) * kTaps,
              sum,
              p,
              row,
              column);
        }
        grad_input[plane * size + row * p.src_width + column] = static_cast<scalar_t>(sum);
      }
    }
  }

#pragma unroll
  for (int q = 0; q < kOutputs; ++q) {
    const float4* const mine = totals + q * Traits::kQuads * kWarpSize;
    float values[Traits::kAlike];
#pragma unroll
    for (int k = 0; k < Traits::kAlike; ++k) {
      values[k] = Traits::kExact ? reinterpret_cast<const float*>(mine + k / 4 * kWarpSize)[k % 4]
                                 : sums[q][k];
    }
    Fold::fold(values, lane);
#pragma unroll
    for (int i = 0; i < Fold::kKept; ++i) {
      const int k = Fold::index_of(i, lane);
      if (k >= 0) {
        shared[warp][q * kSums + k] = values[i];
      }
    }
    if constexpr (Traits::kExact) {
      const double bias = sum_of_warp(static_cast<double>(sums[q][kTaps]) - excess[q]);
      if (lane == 0) {
        biases[warp][q] = bias;
      }
    }
  }
  __syncthreads();
  // A thread has a tap, or the bias, of an output.
  static_assert(kOutputs * kSums <= kBackwardThreads);
  const int mine = min(static_cast<int>(threadIdx.x), kOutputs * kSums - 1);
  const int mine_of = mine % kSums;
  const auto add_warps = [&]() {
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum +=
          mine_of < Traits::kAlike ? static_cast<double>(shared[w][mine]) : biases[w][mine / kSums];
    }
    return sum;
  };
  double total = add_warps();
  if (__syncthreads_or(isnan(total))) {
#pragma unroll 1
    for (int i = 0; i < kOutputs * kSums; ++i) {
      float sum = 0.0f;
      for (int strip = first_strip; strip < p.warps; strip += step) {
        strip_lane(place, p.strips, strip);
        if (place.owns) {
          sum += careful_strip<Traits>(
              grad_output, input, p, place, channel * kOutputs + i / kSums, i % kSums);
        }
      }
      sum = sum_of_warp(sum);
      if (lane == 0) {
        shared[warp][i] = sum;
        biases[warp][i / kSums] = sum;
      }
    }
    __syncthreads();
    total = isnan(total) ? add_warps() : total;
  }
  if (threadIdx.x < kOutputs * kSums) {
    float* const to = partial +
        (static_cast<int64_t>(blockIdx.y) * (kTaps + kBiasRows) + mine_of) * p.channels +
        channel * kOutputs + mine / kSums;
    if (mine_of == kTaps) {
      write_bias(to, p.channels, total);
    } else {
      *to = static_cast<float>(total);
    }
  }
}

// The strips of a channel's planes: as many rows each as end soonest, by the rounds of warps on the largest
// devices. Beside its rows a strip takes the time of those that it reads twice and of some to begin.
template <typename Traits>
Strips plan_rows(const StripsWeight& s, int64_t resident) {
  constexpr int64_t kBegin = 2 * Traits::kReach + 4;
  constexpr int64_t kLeastRows = 4;
  constexpr int64_t kTries = 16;
  const auto plan = [&](int64_t chunks) {
    constexpr int kBeside = 1;
    const int64_t lanes = s.src_width / Traits::kVector;
    const Strips whole = plan_strips(s.batch, s.src_height, lanes, kBeside, 1, s.src_height);
    return plan_strips(s.batch, s.src_height, lanes, kBeside, chunks * strip_warps(whole), 1);
  };
  const int64_t first = divide_up(s.src_height, Traits::kMostRows);
  const int64_t last = std::min(first + kTries, std::max(first, s.src_height / kLeastRows));
  int64_t least = std::numeric_limits<int64_t>::max();
  Strips best{};
  for (int64_t chunks = first; chunks <= last; ++chunks) {
    const Strips strips = plan(chunks);
    const int64_t rounds =
        divide_up(strip_warps(strips) * (s.channels / Traits::kOutputs), resident);
    const int64_t time = rounds * (strips.rows + kBegin);
    if (time < least) {
      least = time;
      best = strips;
    }
  }
  return best;
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int64_t kMostChunks = 1024;
  const int64_t resident_warps = multiprocessors() * Traits::kBlocks * kWarps;
  StripsWeight s{};
  set_unit_stride_pass(s, params);
  s.flip = true; // of grad_input
  s.strips = plan_rows<Traits>(s, resident_warps);
  s.warps = strip_warps(s.strips);
  const int64_t chunks = std::min<int64_t>(divide_up(s.warps, kWarps), kMostChunks);
  const Operand partial = empty_partial(chunks, params);
  launch_kernel(
      strips_backward_kernel<Traits>,
      dim3(s.channels / Traits::kOutputs, chunks),
      kBackwardThreads,
      Traits::kShared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      s);
  add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, params);
  return true;
}

} // namespace

bool strips_backward(const BackwardPass& pass, const Params& p) {
  // With fewer a lane has little beside its borders; not tried.
  constexpr int64_t kLeastColumns = 16;
  constexpr int64_t kMostOutputs = 2; // of an input channel
  if (!keeps_size_of_planes(p) || p.multiplier > kMostOutputs || p.input_width < kLeastColumns ||
      p.dilation_height != 1 || p.dilation_width != 1 || !march_fits_32_bits(p) ||
      pass.input.numel() == 0) {
    return false;
  }
  const auto fits = [&](int64_t vector, size_t bytes) {
    return p.input_width % vector == 0 && is_aligned(pass.grad_output.const_data_ptr(), bytes) &&
        is_aligned(pass.input.const_data_ptr(), bytes) &&
        is_aligned(pass.grad_input.defined() ? pass.grad_input.const_data_ptr() : nullptr, bytes);
  };
  return with_scalar_type(pass.input.type(), [&](auto scalar) {
    return with_window(p, [&](auto window) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(window);
      constexpr int kSize = sizeof(scalar_t);
      // In 16 bit larger windows are the march's (BatchMarch.cu): weight's gradient of
      // 240@28 k5 57 us here and 50 there, all gradients 90 and 75, 96@56 k7 71 and 40.
      constexpr int kMostWindow = kSize == 2 ? 3 : 7;
      if constexpr (
          Fixed::kHeight != Fixed::kWidth || Fixed::kStride != 1 || Fixed::kHeight > kMostWindow) {
        return false;
      } else {
        const auto with_vector = [&](auto vector) {
          constexpr int kVector = decltype(vector)::value;
          if (p.multiplier > 1) {
            if constexpr (Fixed::kHeight == 3) {
              return pass.grad_input.defined()
                  ? launch<StripsWeightTraits<scalar_t, Fixed, kVector, true, 2>>(pass, p)
                  : launch<StripsWeightTraits<scalar_t, Fixed, kVector, false, 2>>(pass, p);
            }
            return false;
          }
          if (!pass.grad_input.defined()) {
            return launch<StripsWeightTraits<scalar_t, Fixed, kVector, false>>(pass, p);
          }
          if constexpr (Fixed::kHeight <= kMostFused) {
            return launch<StripsWeightTraits<scalar_t, Fixed, kVector, true>>(pass, p);
          }
          return false;
        };
        if constexpr (kSize == 2) {
          if (fits(8, 16)) {
            return with_vector(std::integral_constant<int, 8>());
          }
        }
        return fits(4, 4 * kSize) && with_vector(std::integral_constant<int, 4>());
      }
    });
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
