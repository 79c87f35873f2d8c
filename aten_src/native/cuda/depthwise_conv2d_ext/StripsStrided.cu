// depthwise_conv2d_ext at stride 2 in plane order by strips (Strips.cuh), all passes,
// for windows of 3 x 3 and 5 x 5 with the usual padding whose rows are whole vectors.
//
// A lane owns a vector of columns of the large plane (the input, or its gradient) and half as many of
// the small one (the output, or its gradient). As many lanes as a row has vectors stand side by side,
// and as many rows as fit beside each other in a warp, each in a strip of its own: a plane or a band of
// its rows. Longer rows are shared by several warps. All strips of a block belong to one channel.
//
// A strip is marched through from the top, its next rows on their way to a ring of the lane's own in
// shared memory. In registers they would not be: the compiler gives all loads of a loop one scoreboard,
// so that the oldest row is waited for together with the newest, and forward and the weight's gradient
// took a fifth more time.
//
// Forward, two rows of the input are scattered into the rows of the output that they belong to, whose
// sums are in registers; columns beyond a lane's own come from its neighbours.
//
// Backward, it is rows of grad_output that are kept, and only their columns come from neighbours: an
// element of the input meets the same elements of grad_output for the weight's gradient as its own
// gradient is gathered from, in phases that are known when all is unrolled. So every row of the three
// tensors is moved once, and strips overlap in grad_output alone. What is not wanted is left out. Lanes'
// sums of the weight are added up in a tree at the end of a strip, warps' by the block, and blocks' by
// add_partials().
//
// Zeros stand for what lies beside a plane. Where taps are not finite, forward and grad_input go tap by
// tap; a warp whose sums of the weight hold a NaN takes them again so.
//
// Microseconds of an H200, forward, grad_input, the weight's and all gradients: 128 images of 144@56 by
// 5 x 5 in float16 62, 85, 84, 168 became 50, 47, 54, 83 (copied, they would take 34, 34, 34, 62), in
// float32 101, 122, 117, 237 became 78, 83, 83, 139; of 96@112 by 3 x 3 in float16 111, 168, 137, 305
// became 103, 112, 102, 186.
#include <ATen/native/cuda/depthwise_conv2d_ext/Strided.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Strips.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kWarps = 4; // of a block
constexpr int kThreads = kWarps * kWarpSize;

struct StridedStrips : StridedPlanes {
  int32_t lanes; // vectors of a row
  int32_t tiles; // warps side by side that share a row
  int32_t owned; // vectors of a tile
  int32_t group_lanes; // lanes side by side in a warp
  int32_t groups; // of a warp
  int32_t bands; // of a plane
  int32_t rows_per_band; // of the small plane
};

// kData: whether grad_input is wanted, kWeight: whether the weight's gradient is; neither: the forward.
template <typename scalar_t_, int kWindow_, int kColumns_, bool kData_, bool kWeight_>
struct StridedTraits {
  using scalar_t = scalar_t_;
  static constexpr int kWindow = kWindow_;
  static constexpr int kColumns = kColumns_; // of a lane, of the large plane
  static constexpr int kSmall = kColumns / 2;
  static constexpr bool kData = kData_;
  static constexpr bool kWeight = kWeight_;
  static constexpr bool kForward = !kData && !kWeight;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kReach = kWindow / 2;
  // Positions of the small plane that those of the large one, in pairs, meet before and after their own.
  static constexpr int kBefore = kReach / 2;
  static constexpr int kAfter = (kReach + 1) / 2;
  static constexpr int kSlots = kBefore + 1 + kAfter; // rows under way
  static constexpr int kMet = kBefore + kSmall + kAfter; // columns of the small plane
  // Columns of the large plane that results need after their own; before those, kReach.
  static constexpr int kRight = kReach - 1;
  static constexpr int kSpan = kReach + kColumns + kRight;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window<kWindow, kWindow, 2>>;
  // All gradients by 5 x 5 have 127 registers in 4 blocks and 96 in 5, which is faster in 16 bit alone
  // (144@56 85 -> 81 us; float32 139 -> 142); forward with 6 blocks 50 -> 52 us, the weight's gradient
  // 56 -> 55.
  static constexpr int kBlocksOfAll = kColumns > 4 ? 5 : 4;
  static constexpr int kBlocksOfOne = kWeight ? 6 : 5;
  static constexpr int kBlocks = kTaps <= 9 ? 6 : kData && kWeight ? kBlocksOfAll : kBlocksOfOne;
  // Steps under way, and the one in use. More do not pay where the large plane is read: what is under
  // way has a line of the L1 each, of which shared memory leaves less (96@112 k3 in float16 with 4 and
  // 6, forward 103 and 120 us, the weight's gradient 105 and 124).
  static constexpr int kStages = kData && !kWeight ? 6 : 4;
  // Two rows of the large plane a step, one of the small one.
  using LargeRing = RowRing<scalar_t, kColumns, 2, kStages, kThreads, true>;
  using SmallRing = RowRing<scalar_t, kSmall, 1, kStages, kThreads, true>;
  static constexpr size_t kShared =
      (kForward || kWeight ? LargeRing::kBytes : 0) + (kForward ? 0 : SmallRing::kBytes);
  using Large = Packed<scalar_t, kColumns>;
  using Small = Packed<scalar_t, kSmall>;
  using bias_t = std::conditional_t<sizeof(scalar_t) == 4, double, float>;

  // The row (or column) of taps with which row `large` of a pair meets row `small` of those kept; none
  // if it is outside of 0 ... kWindow - 1.
  static constexpr C10_HOST_DEVICE int tap(int large, int small) {
    return large - 2 * (small - kBefore) + kReach;
  }
};

// Where a lane is, and the end of its strip. It has no rows at all where it only stands beside others'
// lanes.
struct Strip : StripLane {
  int32_t last_row; // exclusive, of the rows that it loads of what others see
  int32_t own_last_row; // of those it works at
};

__device__ __forceinline__ Strip strip_of(const StridedStrips& p, int channel) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int group = lane / p.group_lanes;
  int index = (blockIdx.y * (blockDim.x / kWarpSize) + warp) * p.groups + group;
  const int tile = index % p.tiles;
  index /= p.tiles;
  const int image = index / p.bands;
  // Beside a tile's own vectors is one lane on either side.
  const int beside = p.tiles > 1;
  const int place = lane - group * p.group_lanes - beside;
  const int vector = place + tile * p.owned;
  const bool exists = group < p.groups && image < p.batch && vector >= 0 && vector < p.lanes;
  Strip strip;
  strip.owns = exists && place >= 0 && place < p.owned;
  strip.plane = exists ? image * p.channels + channel : 0;
  strip.vector = exists ? vector : 0;
  strip.lanes = p.lanes;
  strip.first_row = exists ? index % p.bands * p.rows_per_band : 0;
  strip.last_row = exists ? min(strip.first_row + p.rows_per_band, p.small_height) : 0;
  strip.own_last_row = strip.owns ? strip.last_row : 0;
  find_neighbours(strip);
  return strip;
}

// Which of two rows are before the end, and not before a plane, as bits.
__device__ __forceinline__ uint32_t rows_inside(int row, int end) {
  return static_cast<uint32_t>(row >= 0 && row < end) |
      static_cast<uint32_t>(row >= 0 && row + 1 < end) << 1;
}

template <typename Traits>
__device__ __forceinline__ bool read_taps(
    float (&taps)[Traits::kTaps],
    const typename Traits::scalar_t* weight) {
  bool finite = true;
#pragma unroll
  for (int tap = 0; tap < Traits::kTaps; ++tap) {
    taps[tap] = static_cast<float>(weight[tap]);
    finite = finite && is_finite(taps[tap]);
  }
  return finite;
}

// grid: channels x groups of strips.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void strips_strided_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ StridedStrips p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kSlots = Traits::kSlots;
  constexpr int kSmall = Traits::kSmall;
  constexpr int kReach = Traits::kReach;
  const int channel = blockIdx.x;
  const Strip strip = strip_of(p, channel);
  const scalar_t* const plane = src + strip.plane * p.height * p.width;
  const int small_column = strip.vector * kSmall;
  scalar_t* const results = dst + strip.plane * p.small_height * p.small_width + small_column;
  const scalar_t* const own = plane + strip.vector * Traits::kColumns;
  // A plane in one piece needs no rows before its first.
  const int first = p.bands == 1 ? 0 : strip.first_row - Traits::kAfter;
  const int steps = (p.bands == 1 ? 0 : Traits::kAfter) + p.rows_per_band + Traits::kBefore;
  const int end = strip.last_row > 0 ? min(2 * (strip.last_row + Traits::kBefore), p.height) : 0;
  extern __shared__ uint4 shared_rows[];
  typename Traits::LargeRing ring(shared_rows);
  int filled = 2 * first; // the next row to ask for
  const scalar_t* next = own + filled * p.width;
  const auto fill = [&]() {
    ring.fill(next, true, rows_inside(filled, end), p.width, true, Traits::kColumns);
    Traits::LargeRing::commit();
    filled += 2;
    next += 2 * p.width;
  };
#pragma unroll
  for (int i = 0; i < Traits::kStages - 1; ++i) {
    fill();
  }
  float taps[Traits::kTaps];
  const bool finite = read_taps<Traits>(taps, weight + channel * Traits::kTaps);
  const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
  if (!finite) {
#pragma unroll 1
    for (int i = strip.first_row * kSmall; i < strip.own_last_row * kSmall; ++i) {
      results[i / kSmall * p.small_width + i % kSmall] = static_cast<scalar_t>(careful_forward(
          plane,
          weight + channel * Traits::kTaps,
          begin,
          p,
          i / kSmall,
          small_column + i % kSmall,
          1));
    }
    return;
  }
  // Row o of the strip, counted from the first step's, has its sums in slot o % kSlots.
  float sums[kSlots][1][kSmall];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
#pragma unroll
    for (int t = 0; t < kSmall; ++t) {
      sums[s][0][t] = begin;
    }
  }
  scalar_t* to = results + (first - Traits::kBefore) * p.small_width;
#pragma unroll 1
  for (int base = 0; base < steps; base += kSlots) {
#pragma unroll
    for (int u = 0; u < kSlots; ++u) {
      const int step = base + u;
      if (step >= steps) {
        break;
      }
      Traits::LargeRing::wait();
      typename Traits::Large rows[2];
      ring.use(rows);
      fill();
      float columns[2][Traits::kSpan];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const StripRow<scalar_t, Traits::kColumns, kReach, Traits::kRight> row(rows[j], strip);
#pragma unroll
        for (int c = 0; c < Traits::kSpan; ++c) {
          columns[j][c] = row.column(c);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          const int kh = Traits::tap(j, s);
          if (kh < 0 || kh >= Traits::kWindow) {
            continue;
          }
          RowSums<1, kSmall> row_sums(sums[(u + s) % kSlots], kh >= Traits::kOwnRow);
#pragma unroll
          for (int kw = 0; kw < Traits::kWindow; ++kw) {
#pragma unroll
            for (int t = 0; t < kSmall; ++t) {
              row_sums.add(kw, 0, t, columns[j][2 * t + kw], taps[kh * Traits::kWindow + kw]);
            }
          }
          row_sums.finish();
        }
      }
      // The row that no later one belongs to.
      const int row = first + step - Traits::kBefore;
      float (&finished)[kSmall] = sums[u % kSlots][0];
      if (row >= strip.first_row && row < strip.own_last_row) {
        store_vector<scalar_t, kSmall>(to, finished);
      }
      to += p.small_width;
#pragma unroll
      for (int t = 0; t < kSmall; ++t) {
        finished[t] = begin;
      }
    }
  }
}

// grid: channels x groups of strips. Either of grad_input and partial may be null where it is not taken.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void strips_strided_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ StridedStrips p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kSlots = Traits::kSlots;
  constexpr int kSmall = Traits::kSmall;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kBefore = Traits::kBefore;
  constexpr int kTaps = Traits::kTaps;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int channel = blockIdx.x;
  const Strip strip = strip_of(p, channel);
  const scalar_t* const grads = grad_output + strip.plane * p.small_height * p.small_width;
  const int own = strip.plane * p.height * p.width + strip.vector * kColumns;
  const scalar_t* const own_grads = grads + strip.vector * kSmall;
  const int end = min(2 * strip.own_last_row, p.height);
  const int grads_end =
      strip.last_row > 0 ? min(strip.last_row + Traits::kAfter, p.small_height) : 0;
  extern __shared__ uint4 shared_rows[];
  typename Traits::LargeRing ring(shared_rows);
  typename Traits::SmallRing grad_ring(
      reinterpret_cast<char*>(shared_rows) + (Traits::kWeight ? Traits::LargeRing::kBytes : 0));
  int filled = strip.first_row; // the row of the small plane whose pair is to be asked for next
  const scalar_t* next = input + own + 2 * filled * p.width;
  const scalar_t* next_grads = own_grads + (filled + Traits::kAfter) * p.small_width;
  const auto fill = [&]() {
    grad_ring.fill(next_grads, true, filled + Traits::kAfter < grads_end, 0, true, kSmall);
    next_grads += p.small_width;
    if constexpr (Traits::kWeight) {
      ring.fill(next, true, rows_inside(2 * filled, end), p.width, true, kColumns);
      next += 2 * p.width;
    }
    Traits::SmallRing::commit();
    ++filled;
  };
  // Row o of grad_output, counted from the strip's first less kBefore, is in slot o % kSlots.
  float rows[kSlots][Traits::kMet];
  const auto widen = [&](float (&row)[Traits::kMet], const typename Traits::Small& from) {
    const StripRow<scalar_t, kSmall, kBefore, Traits::kAfter> packed(from, strip);
#pragma unroll
    for (int t = 0; t < Traits::kMet; ++t) {
      row[t] = packed.column(t);
    }
  };
#pragma unroll
  for (int i = 0; i < Traits::kStages - 1; ++i) {
    fill();
  }
  typename Traits::Small begin[kSlots - 1];
#pragma unroll
  for (int s = 0; s < kSlots - 1; ++s) {
    const int o = strip.first_row - kBefore + s;
    begin[s] = packed_zero<scalar_t, kSmall>();
    if (o >= 0 && o < grads_end) {
      begin[s] = load_vector<scalar_t, kSmall>(own_grads + o * p.small_width);
    }
  }
  float taps[Traits::kData ? kTaps : 1];
  bool finite = true;
  if constexpr (Traits::kData) {
    finite = read_taps<Traits>(taps, weight + channel * kTaps);
    if (!finite) {
#pragma unroll 1
      for (int h = 2 * strip.first_row; h < min(2 * strip.own_last_row, p.height); ++h) {
#pragma unroll 1
        for (int c = 0; c < kColumns; ++c) {
          grad_input[own + h * p.width + c] = static_cast<scalar_t>(careful_grad_input(
              grads, weight + channel * kTaps, p, h, strip.vector * kColumns + c, 1));
        }
      }
      if constexpr (!Traits::kWeight) {
        return;
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kSlots - 1; ++s) {
    widen(rows[s], begin[s]);
  }

  const int data_end = finite ? end : 0;
  scalar_t* to = Traits::kData ? grad_input + own + 2 * strip.first_row * p.width : nullptr;
  float sums[Traits::kWeight ? kTaps : 1] = {};
  typename Traits::bias_t bias = 0;
#pragma unroll 1
  for (int base = 0; base < p.rows_per_band; base += kSlots) {
#pragma unroll
    for (int u = 0; u < kSlots; ++u) {
      const int step = base + u;
      if (step >= p.rows_per_band) {
        break;
      }
      Traits::SmallRing::wait();
      typename Traits::Small grads_row[1];
      grad_ring.use(grads_row);
      widen(rows[(u + kSlots - 1) % kSlots], grads_row[0]);
      typename Traits::Large inputs[2];
      if constexpr (Traits::kWeight) {
        ring.use(inputs);
      }
      fill();
      const int row = strip.first_row + step;
      if constexpr (Traits::kWeight) {
        const float (&of_bias)[Traits::kMet] = rows[(u + kBefore) % kSlots];
        float sum = 0.0f;
#pragma unroll
        for (int t = 0; t < kSmall; ++t) {
          sum += of_bias[kBefore + t];
        }
        bias += row < strip.own_last_row ? sum : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int h = 2 * row + j;
        float values[kColumns];
        float result[kColumns] = {};
        if constexpr (Traits::kWeight) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            values[c] = unpack(inputs[j], c);
          }
        }
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          const int kh = Traits::tap(j, s);
          if (kh < 0 || kh >= Traits::kWindow) {
            continue;
          }
          const float (&grad)[Traits::kMet] = rows[(u + s) % kSlots];
          // In float what a row of grad_output gives is summed by itself, but for the first and where
          // there are two products of each of two (1.03 times upstream's error became .95, of 3 x 3 1.00
          // 1.03).
          const bool by_itself =
              sizeof(scalar_t) == 4 && Traits::kWindow > 3 && kh + 2 < Traits::kWindow;
          float row_result[kColumns] = {};
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int t = 0; t < Traits::kMet; ++t) {
              const int kw = Traits::tap(c, t);
              if (kw < 0 || kw >= Traits::kWindow) {
                continue;
              }
              const int tap = kh * Traits::kWindow + kw;
              if constexpr (Traits::kWeight) {
                sums[tap] = fmaf(values[c], grad[t], sums[tap]);
              }
              if constexpr (Traits::kData) {
                float& sum = by_itself ? row_result[c] : result[c];
                sum = fmaf(grad[t], taps[tap], sum);
              }
            }
            if (Traits::kData && by_itself) {
              result[c] += row_result[c];
            }
          }
        }
        if constexpr (Traits::kData) {
          if (h < data_end) {
            store_vector<scalar_t, kColumns>(to, result);
          }
          to += p.width;
        }
      }
    }
  }
  if constexpr (Traits::kWeight) {
    __shared__ float shared[kWarps][kTaps];
    __shared__ typename Traits::bias_t shared_bias[kWarps];
    bool spoilt = false;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      spoilt = spoilt || isnan(sums[tap]);
    }
    bias = sum_of_warp(bias);
    if (lane == 0) {
      shared_bias[warp] = bias;
    }
    if (__any_sync(0xffffffffu, spoilt)) {
#pragma unroll 1
      for (int tap = 0; tap < kTaps; ++tap) {
        const float sum = sum_of_warp(careful_products(
            grads,
            input + strip.plane * p.height * p.width,
            p,
            2 * strip.first_row,
            2 * strip.own_last_row,
            strip.vector * kColumns,
            (strip.vector + 1) * kColumns,
            tap,
            1));
        if (lane == 0) {
          shared[warp][tap] = sum;
        }
      }
    } else {
      using Fold = WarpFold<kTaps, kWarpSize / 2>;
      Fold::fold(sums, lane);
#pragma unroll
      for (int i = 0; i < Fold::kKept; ++i) {
        const int tap = Fold::index_of(i, lane);
        if (tap >= 0) {
          shared[warp][tap] = sums[i];
        }
      }
    }
    __syncthreads();
    const int warps = blockDim.x / kWarpSize;
    float* const sums_to = partial + blockIdx.y * (kTaps + kBiasRows) * p.channels + channel;
    for (int tap = threadIdx.x; tap < kTaps; tap += blockDim.x) {
      float sum = shared[0][tap];
      for (int other = 1; other < warps; ++other) {
        sum += shared[other][tap];
      }
      sums_to[tap * p.channels] = sum;
    }
    if (threadIdx.x == blockDim.x - 1) {
      double sum = shared_bias[0];
      for (int other = 1; other < warps; ++other) {
        sum += shared_bias[other];
      }
      write_bias(sums_to + kTaps * p.channels, p.channels, sum);
    }
  }
}

// Whether the call is one on tensors of whole vectors; with_traits() looks at the width.
bool applies(const Params& p, std::initializer_list<const Operand*> tensors) {
  constexpr int64_t kLeastWidth = 16;
  constexpr size_t kAlignment = 16;
  return !p.channels_last && p.multiplier == 1 && p.stride_height == 2 && p.stride_width == 2 &&
      p.dilation_height == 1 && p.dilation_width == 1 && p.kernel_height == p.kernel_width &&
      p.padding_height == p.kernel_height / 2 && p.padding_width == p.padding_height &&
      p.input_width >= kLeastWidth && march_fits_32_bits(p) && p.batch * p.channels > 0 &&
      std::all_of(tensors.begin(), tensors.end(), [](const Operand* tensor) {
        return is_aligned(tensor->const_data_ptr(), kAlignment);
      });
}

// Calls launch with the type, the window and a lane's columns: 16 bytes of them or, in 16 bit, 8.
template <bool kData, bool kWeight, typename Launch>
bool with_traits(const Params& p, Type type, const Launch& launch) {
  return with_scalar_type(type, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    constexpr int kWhole = 16 / sizeof(scalar_t);
    const auto with_columns = [&](auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      if (p.input_width % kColumns != 0) {
        return false;
      }
      switch (p.kernel_width) {
        case 3:
          return launch(StridedTraits<scalar_t, 3, kColumns, kData, kWeight>());
        case 5:
          return launch(StridedTraits<scalar_t, 5, kColumns, kData, kWeight>());
        default:
          return false;
      }
    };
    if (with_columns(std::integral_constant<int, kWhole>())) {
      return true;
    }
    if constexpr (kWhole > 4) {
      return with_columns(std::integral_constant<int, kWhole / 2>());
    }
    return false;
  });
}

template <typename Traits>
StridedStrips strips_of(const Params& p) {
  StridedStrips s{};
  s.batch = p.batch;
  s.channels = p.channels;
  s.height = p.input_height;
  s.width = p.input_width;
  s.small_height = p.output_height;
  s.small_width = p.output_width;
  s.padding = p.padding_height;
  s.lanes = p.input_width / Traits::kColumns;
  s.tiles = s.lanes <= kWarpSize ? 1 : divide_up(s.lanes, kWarpSize - 2);
  s.owned = divide_up(s.lanes, s.tiles);
  s.group_lanes = s.tiles == 1 ? s.lanes : s.owned + 2;
  s.groups = kWarpSize / s.group_lanes;
  // As many warps as make the last ones' share of the time small: 64 and 128 a multiprocessor, forward
  // of 144@56 k5 in float16 49 and 50 us, its gradient 52 and 47, all gradients in float32 146 and 140.
  const int64_t wanted_warps = multiprocessors() * (Traits::kData ? 128 : 64);
  // Where the device is nearly empty, it counts how soon a strip ends: one image 5.8 -> 5.2 us.
  const int64_t few_warps = multiprocessors() * 16;
  constexpr int64_t kLeastRows = 7;
  constexpr int64_t kLeastRowsOfFew = 4;
  constexpr int64_t kMostRows = 64; // also bounds a lane's chain of sums
  const int64_t warps = divide_up(p.batch * s.tiles, s.groups) * p.channels;
  const bool few = warps * divide_up(s.small_height, kLeastRows) < few_warps;
  const int64_t most_bands = s.small_height / (few ? kLeastRowsOfFew : kLeastRows);
  const int64_t bands = std::max<int64_t>(
      {1,
       divide_up(s.small_height, kMostRows),
       std::min(divide_up(wanted_warps, warps), most_bands)});
  s.rows_per_band = divide_up(s.small_height, bands);
  s.bands = divide_up(s.small_height, s.rows_per_band);
  return s;
}

int64_t strips_of_channel(const StridedStrips& s) {
  return static_cast<int64_t>(s.batch) * s.bands * s.tiles;
}

// Blocks of as many warps as there are strips for.
dim3 block_of(const StridedStrips& s) {
  const int64_t warps = divide_up(strips_of_channel(s), s.groups);
  return dim3(std::min<int64_t>(warps, kWarps) * kWarpSize);
}

dim3 grid_of(const StridedStrips& s, const dim3& block) {
  return dim3(s.channels, divide_up(strips_of_channel(s), s.groups * (block.x / kWarpSize)));
}

} // namespace

bool strips_strided_forward(const ForwardPass& pass, const Params& p) {
  if (!applies(p, {&pass.dst, &pass.src})) {
    return false;
  }
  return with_traits<false, false>(p, pass.src.type(), [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    const StridedStrips s = strips_of<Traits>(p);
    const dim3 block = block_of(s);
    const dim3 grid = grid_of(s, block);
    if (grid.y > kMostGridRows) {
      return false;
    }
    launch_kernel(
        strips_strided_kernel<Traits>,
        grid,
        block,
        Traits::kShared,
        pass.dst.mutable_data_ptr<scalar_t>(),
        pass.src.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.bias),
        s);
    return true;
  });
}

bool strips_strided_backward(const BackwardPass& pass, const Params& p) {
  const bool data = pass.grad_input.defined();
  const bool asks_weight = pass.asks_weight();
  const Operand& result = data ? pass.grad_input : pass.input;
  if (!applies(p, {&pass.grad_output, &pass.input, &result})) {
    return false;
  }
  const auto launch = [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    const StridedStrips s = strips_of<Traits>(p);
    const dim3 block = block_of(s);
    const dim3 grid = grid_of(s, block);
    if (grid.y > kMostGridRows) {
      return false;
    }
    Operand partial;
    if constexpr (Traits::kWeight) {
      partial = empty_partial(grid.y, p);
    }
    launch_kernel(
        strips_strided_backward_kernel<Traits>,
        grid,
        block,
        Traits::kShared,
        mutable_pointer_or_null<scalar_t>(pass.grad_input),
        mutable_pointer_or_null<float>(partial),
        pass.grad_output.const_data_ptr<scalar_t>(),
        pass.input.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        s);
    if constexpr (Traits::kWeight) {
      add_partials(pass.grad_weight, pass.grad_bias, partial, grid.y, p);
    }
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
