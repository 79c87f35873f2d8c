// Forward and grad_input of depthwise_conv2d_ext by a gather of any window, see Generic.cuh.
//
// A result is the sum of its taps, and what is a step of the window in the one pass is a step of
// stride / gcd(stride, dilation) taps in the other, from a first tap that depends on the result's phase. A
// thread has kRows results of one column (in channels-last order of a vector of channels) that are a phase
// apart, so that they meet the same taps: a tap is looked up and its column is tested once for all of them,
// and nothing is divided between taps. Taps are read through the L1 in plane order, where a warp asks for
// one, and from shared memory in channels-last, where it asks for many. Those of each kernel row are summed
// by themselves first, for the sake of large kernels' rounding error.
#include <ATen/native/cuda/depthwise_conv2d_ext/Generic.cuh>
#include <numeric>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// Blocks of a multiprocessor in channels-last order, each of which looks its taps up once.
constexpr int kStagedBlocks = 8;
constexpr int64_t kStagedBytes = 48 * 1024;
// Channels whose taps a block must hold at least: a sector of memory.
constexpr int kLeastStaged = 8;

// The first tap that a result meets, and the position in src where it does.
template <typename index_t>
struct Meeting {
  index_t tap;
  index_t src;
};

// One dimension of a gather.
template <typename index_t>
struct Axis {
  index_t dst_size;
  index_t src_size;
  index_t taps;
  index_t padding;
  // Forward: dst * stride - padding + tap * dilation = src.
  // By phase: src * stride - padding + tap * dilation = dst.
  bool by_phase;
  index_t stride;
  Divider<index_t> strides;
  index_t whole_dilation; // dilation / stride and what is left
  index_t rest_dilation;
  index_t tap_step; // between taps that one result meets; all taps, if it meets one at most
  index_t src_step; // what src moves by with one
  index_t phases; // results that meet the same taps are so far apart
  index_t src_of_next; // what src moves by from one of them to the next

  __device__ __forceinline__ Meeting<index_t> first(index_t dst) const {
    if (!by_phase) {
      return {0, dst * stride - padding};
    }
    const auto reach = strides.divmod(dst + padding);
    Meeting<index_t> at{0, static_cast<index_t>(reach.div)};
    index_t rest = reach.mod;
    while (rest != 0) {
      at.src -= whole_dilation;
      rest -= rest_dilation;
      if (rest < 0) {
        rest += stride;
        --at.src;
      }
      if (++at.tap >= tap_step) {
        return {taps, 0}; // a result that meets none
      }
    }
    return at;
  }
};

template <typename index_t>
Axis<index_t> axis_of(
    bool by_phase,
    int64_t input,
    int64_t output,
    int64_t taps,
    int64_t stride,
    int64_t padding,
    int64_t dilation) {
  const int64_t common = std::gcd(stride, dilation);
  Axis<index_t> axis;
  axis.dst_size = by_phase ? input : output;
  axis.src_size = by_phase ? output : input;
  axis.taps = taps;
  axis.padding = padding;
  axis.by_phase = by_phase;
  axis.stride = stride;
  axis.strides = divider<index_t>(stride);
  axis.whole_dilation = dilation / stride;
  axis.rest_dilation = dilation % stride;
  axis.tap_step = by_phase ? std::min(stride / common, taps) : 1;
  axis.src_step = by_phase ? -(dilation / common) : dilation;
  axis.phases = by_phase ? stride : 1;
  axis.src_of_next = by_phase ? 1 : stride;
  return axis;
}

template <typename index_t>
struct Gather {
  Axis<index_t> height;
  Axis<index_t> width;
  Steps<index_t> dst;
  Steps<index_t> src;
  index_t channels; // of dst
  index_t sources; // src channels that a dst channel adds up
  Divider<index_t> multiplier; // dst channels of one src channel
  // Work items: columns innermost, then groups of rows, then images (in plane order channels first).
  index_t items;
  Divider<index_t> columns;
  Divider<index_t> row_groups;
  Divider<index_t> planes; // of an image
  Divider<index_t> phases; // of rows
  int rows; // results of a thread, at most kRows
  int lanes; // vectors of channels that a block covers
};

template <typename scalar_t, typename index_t, int kVector, bool kChannelsLast, bool kStaged>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void gather_kernel(
    scalar_t* __restrict__ dst,
    const scalar_t* __restrict__ src,
    const scalar_t* __restrict__ weight,
    const scalar_t* __restrict__ bias,
    const Gather<index_t> g) {
  using acc_t = opmath_type<scalar_t>;
  using Loaded = Elements<scalar_t, kVector>;
  using Factors = Elements<acc_t, kVector>;
  extern __shared__ __align__(16) unsigned char shared[];
  acc_t* const staged = reinterpret_cast<acc_t*>(shared);
  const index_t taps = g.height.taps * g.width.taps;
  const index_t sources = g.sources;
  const int lane = kChannelsLast ? threadIdx.x % g.lanes : 0;
  const int workers = kChannelsLast ? blockDim.x / g.lanes : kThreads;
  const int worker = kChannelsLast ? threadIdx.x / g.lanes : threadIdx.x;
  // The channels of a block beside each other, a vector apart from tap to tap for the sake of banks.
  const int block_channels = g.lanes * kVector;
  const int pitch = block_channels + kVector;
  const index_t block_channel = static_cast<index_t>(blockIdx.y) * block_channels;
  if constexpr (kStaged) {
    const int of_channel = sources * taps;
    const int have =
        ::min(static_cast<index_t>(block_channels), g.channels - block_channel) * of_channel;
    for (int i = threadIdx.x; i < have; i += blockDim.x) {
      const int channel = i / of_channel;
      const int rest = i - channel * of_channel;
      const int source = rest / static_cast<int>(taps);
      const int tap = rest - source * static_cast<int>(taps);
      staged[(tap * static_cast<int>(sources) + source) * pitch + channel] =
          static_cast<acc_t>(weight[block_channel * of_channel + i]);
    }
    __syncthreads();
  }
  const index_t lane_channel = block_channel + lane * kVector;
  if (kChannelsLast && lane_channel >= g.channels) {
    return;
  }

  const index_t step = static_cast<index_t>(gridDim.x) * workers;
  for (index_t item = static_cast<index_t>(blockIdx.x) * workers + worker; item < g.items;
       item += step) {
    const auto by_column = g.columns.divmod(item);
    const auto by_group = g.row_groups.divmod(by_column.div);
    const auto by_phase = g.phases.divmod(by_group.mod);
    index_t image = by_group.div;
    index_t channel = lane_channel;
    if constexpr (!kChannelsLast) {
      const auto by_plane = g.planes.divmod(by_group.div);
      image = by_plane.div;
      channel = by_plane.mod;
    }
    const index_t column = by_column.mod;
    const index_t row = by_phase.div * g.rows * g.height.phases + by_phase.mod;
    const auto first_row = g.height.first(row);
    const auto first_column = g.width.first(column);
    bool live[kRows];
    acc_t sums[kRows][kVector];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      live[r] = r < g.rows && row + r * g.height.phases < g.height.dst_size;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        sums[r][v] = bias ? static_cast<acc_t>(bias[channel + v]) : acc_t(0);
      }
    }

    for (index_t source = 0; source < sources; ++source) {
      const index_t source_channel =
          sources > 1 ? channel * sources + source : g.multiplier.div(channel);
      // Indices into whole tensors: one instruction makes an address of one.
      const index_t plane = image * g.src.image + source_channel * g.src.channel;
      const index_t unstaged = (channel * sources + source) * taps;
      const acc_t* const factors = staged + source * pitch + lane * kVector;
      index_t h = first_row.src;
      for (index_t kh = first_row.tap; kh < g.height.taps;
           kh += g.height.tap_step, h += g.height.src_step) {
        bool exists[kRows];
        index_t offsets[kRows];
        acc_t sum[kRows][kVector] = {};
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const index_t from = h + r * g.height.src_of_next;
          exists[r] = live[r] && is_within(from, g.height.src_size);
          offsets[r] = plane + (exists[r] ? from * g.src.row : 0);
        }
        index_t w = first_column.src;
        index_t at = w * g.src.column;
        const index_t at_step = g.width.src_step * g.src.column;
#pragma unroll 2
        for (index_t kw = first_column.tap; kw < g.width.taps;
             kw += g.width.tap_step, w += g.width.src_step, at += at_step) {
          if (!is_within(w, g.width.src_size)) {
            continue;
          }
          Factors factor;
          if constexpr (kStaged) {
            factor = *reinterpret_cast<const Factors*>(
                factors + static_cast<int>((kh * g.width.taps + kw) * sources) * pitch);
          } else {
            factor.values[0] = static_cast<acc_t>(weight[unstaged + kh * g.width.taps + kw]);
          }
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (exists[r]) {
              const Loaded loaded = *reinterpret_cast<const Loaded*>(src + (offsets[r] + at));
#pragma unroll
              for (int v = 0; v < kVector; ++v) {
                sum[r][v] += static_cast<acc_t>(loaded.values[v]) * factor.values[v];
              }
            }
          }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sums[r][v] += sum[r][v];
          }
        }
      }
    }

    scalar_t* const to =
        dst + image * g.dst.image + channel * g.dst.channel + column * g.dst.column;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (live[r]) {
        Loaded result;
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          result.values[v] = static_cast<scalar_t>(sums[r][v]);
        }
        *reinterpret_cast<Loaded*>(to + (row + r * g.height.phases) * g.dst.row) = result;
      }
    }
  }
}

template <typename scalar_t, typename index_t, int kVector, bool kChannelsLast, bool kStaged>
void launch_gather(const ForwardPass& pass, const Params& p, bool grad, int lanes, int64_t shared) {
  Gather<index_t> g;
  g.height = axis_of<index_t>(
      grad,
      p.input_height,
      p.output_height,
      p.kernel_height,
      p.stride_height,
      p.padding_height,
      p.dilation_height);
  g.width = axis_of<index_t>(
      grad,
      p.input_width,
      p.output_width,
      p.kernel_width,
      p.stride_width,
      p.padding_width,
      p.dilation_width);
  const auto input = steps_of<index_t>(p.channels_last, p.channels, p.input_height, p.input_width);
  const auto output =
      steps_of<index_t>(p.channels_last, p.output_channels(), p.output_height, p.output_width);
  g.dst = grad ? input : output;
  g.src = grad ? output : input;
  g.channels = grad ? p.channels : p.output_channels();
  g.sources = grad ? p.multiplier : 1;
  g.multiplier = divider<index_t>(grad ? 1 : p.multiplier);
  g.columns = divider<index_t>(g.width.dst_size);
  g.planes = divider<index_t>(g.channels);
  g.phases = divider<index_t>(g.height.phases);
  g.lanes = lanes;
  const int workers = kChannelsLast ? kThreads / lanes : kThreads;
  const int64_t channel_blocks =
      kChannelsLast ? divide_up(g.channels, static_cast<int64_t>(lanes) * kVector) : 1;
  // As many results a thread as leave the device full.
  int64_t threads = 0;
  int64_t row_groups = 0;
  for (g.rows = kRows;; g.rows /= 2) {
    row_groups = std::min<int64_t>(
        divide_up(g.height.dst_size, g.rows * static_cast<int64_t>(g.height.phases)) *
            g.height.phases,
        g.height.dst_size);
    g.items = p.batch * row_groups * g.width.dst_size * (kChannelsLast ? 1 : g.channels);
    threads = g.items * channel_blocks * (kChannelsLast ? lanes : 1);
    if (g.rows == 1 || threads >= 8 * few_threads()) {
      break;
    }
  }
  g.row_groups = divider<index_t>(row_groups);
  const int64_t blocks = divide_up(g.items, workers);
  const int64_t wanted = kStaged
      ? divide_up(static_cast<int64_t>(kStagedBlocks) * multiprocessors(), channel_blocks)
      : kMaxBlocks;
  const dim3 grid(std::min(blocks, wanted), channel_blocks);
  launch_kernel(
      gather_kernel<scalar_t, index_t, kVector, kChannelsLast, kStaged>,
      grid,
      workers * lanes,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      g);
}

template <typename scalar_t, typename index_t>
void gather(const ForwardPass& pass, const Params& p, bool grad) {
  if (pass.dst.numel() == 0) {
    return;
  }
  if (!p.channels_last) {
    launch_gather<scalar_t, index_t, 1, false, false>(pass, p, grad, 1, 0);
    return;
  }
  const int64_t channels = grad ? p.channels : p.output_channels();
  const auto with_vector = [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    const int64_t of_lane = static_cast<int64_t>(sizeof(opmath_type<scalar_t>)) * kVector *
        p.kernel_size() * (grad ? p.multiplier : 1);
    int lanes =
        lanes_for(divide_up(channels, kVector), sizeof(scalar_t) * kVector, kThreads, false);
    while (lanes > 1 && (lanes + 1) * of_lane > kStagedBytes) {
      lanes /= 2;
    }
    const int64_t shared = (lanes + 1) * of_lane;
    if (shared > kStagedBytes || lanes * kVector < std::min<int64_t>(channels, kLeastStaged) ||
        divide_up(channels, lanes * kVector) > kMostGridRows) {
      return false;
    }
    launch_gather<scalar_t, index_t, kVector, true, true>(pass, p, grad, lanes, shared);
    return true;
  };
  if constexpr (sizeof(index_t) == 4) {
    if (takes_vectors<scalar_t>(p, pass.dst, pass.src)
            ? with_vector(std::integral_constant<int, kVectorOf<scalar_t>>())
            : with_vector(std::integral_constant<int, 1>())) {
      return;
    }
  }
  const int lanes = std::min<int64_t>(channels, kWarpSize);
  if (divide_up(channels, lanes) <= kMostGridRows) {
    launch_gather<scalar_t, index_t, 1, true, false>(pass, p, grad, lanes, 0);
  } else {
    launch_gather<scalar_t, index_t, 1, false, false>(pass, p, grad, 1, 0);
  }
}

template <typename scalar_t>
void gather_of_type(const ForwardPass& pass, const Params& p, bool grad) {
  if (fits_32_bits(p)) {
    gather<scalar_t, int32_t>(pass, p, grad);
  } else {
    gather<scalar_t, int64_t>(pass, p, grad);
  }
}

} // namespace

bool generic_forward(const ForwardPass& pass, const Params& p) {
  return with_any_type(pass.src.type(), [&](auto scalar) {
    gather_of_type<decltype(scalar)>(pass, p, pass.grad_input);
    return true;
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
