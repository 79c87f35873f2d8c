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

} // namespace at::native::depthwise_conv2d_ext_cuda
