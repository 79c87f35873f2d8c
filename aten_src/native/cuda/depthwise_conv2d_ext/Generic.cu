// Any window, stride, dilation, number of outputs of a channel, type, memory order and size: what no other kernel
// takes.
//
// 16-bit values are converted to float before any arithmetic and rounded once at the end. Only positions
// inside the image are read or multiplied. Without atomics: the same bits on every run.
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>
#include <algorithm>
#include <limits>
#include <numeric>

// After those that it needs.
#include <ATen/cuda/detail/IntegerDivider.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
// Loops stride over the grid, so that this bounds launches without bounding sizes.
constexpr int64_t kMaxBlocks = 1 << 20;
// Results of a thread of a gather.
constexpr int kRows = 4;

// What values are added up in.
template <typename scalar_t>
using opmath_type = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

// Channels that travel together in channels-last order.
template <typename scalar_t>
constexpr int kVectorOf = sizeof(scalar_t) == 8 ? 2 : 4;

// Whether 32 bits hold every offset and every coordinate, with room for one step over the grid and
// for one more dilated tap.
bool fits_32_bits(const Params& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  static_assert(kMaxBlocks * kThreads < kLimit);
  return p.batch * p.channels * p.input_height * p.input_width < kLimit &&
      p.batch * p.output_channels() * p.output_height * p.output_width < kLimit &&
      p.output_channels() * (p.kernel_size() + 1) < kLimit &&
      p.input_height + 2 * p.padding_height + p.dilation_height < kLimit &&
      p.input_width + 2 * p.padding_width + p.dilation_width < kLimit &&
      p.stride_height < kLimit / kRows && p.stride_width < kLimit / kRows;
}

template <typename index_t>
using Divider = at::cuda::detail::IntDivider<std::make_unsigned_t<index_t>>;

template <typename index_t>
Divider<index_t> divider(int64_t by) {
  return Divider<index_t>(std::max<int64_t>(1, by));
}

// From one element of a dense tensor to its neighbours.
template <typename index_t>
struct Steps {
  index_t image;
  index_t channel;
  index_t row;
  index_t column;
};

template <typename index_t>
Steps<index_t> steps_of(bool channels_last, int64_t channels, int64_t height, int64_t width) {
  Steps<index_t> steps;
  steps.image = channels * height * width;
  steps.channel = channels_last ? 1 : height * width;
  steps.row = channels_last ? width * channels : width;
  steps.column = channels_last ? channels : 1;
  return steps;
}

// 0 <= at < size.
template <typename index_t>
__device__ __forceinline__ bool is_within(index_t at, index_t size) {
  using unsigned_t = std::make_unsigned_t<index_t>;
  return static_cast<unsigned_t>(at) < static_cast<unsigned_t>(size);
}

template <typename scalar_t, int kVector>
struct alignas(sizeof(scalar_t) * kVector) Elements {
  scalar_t values[kVector];
};

unsigned int blocks_for(int64_t items, int64_t items_per_block) {
  return static_cast<unsigned int>(std::min(kMaxBlocks, divide_up(items, items_per_block)));
}

template <typename scalar_t>
bool takes_vectors(const Params& p, const Operand& a, const Operand& b) {
  constexpr int kVector = kVectorOf<scalar_t>;
  constexpr size_t kBytes = sizeof(scalar_t) * kVector;
  return p.channels_last && p.multiplier == 1 && p.channels % kVector == 0 &&
      is_aligned(a.const_data_ptr(), kBytes) && is_aligned(b.const_data_ptr(), kBytes);
}

// Forward and grad_input by a gather.
//
// A result is the sum of its taps, and what is a step of the window in the one pass is a step of
// stride / gcd(stride, dilation) taps in the other, from a first tap that depends on the result's phase. A
// thread has kRows results of one column (in channels-last order of a vector of channels) that are a phase
// apart, so that they meet the same taps: a tap is looked up and its column is tested once for all of them,
// and nothing is divided between taps. Taps are read through the L1 in plane order, where a warp asks for
// one, and from shared memory in channels-last, where it asks for many. Those of each kernel row are summed
// by themselves first, for the sake of large kernels' rounding error.

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

// The weight's and the bias's gradient.
//
// A warp sums a group of taps of one row, or of one column where that makes fewer groups, for a chunk of
// pixels, so that grad_output is read once for the group; the warps of a block have neighbouring groups of
// the same chunk, and find its values in the L1. The bias is a group of its own. Chunks, and so the bits,
// depend on the sizes only. A second kernel adds the chunks in order.

namespace {

// Products that a lane of the weights' gradients adds in a chain.
constexpr int kChain = 64;
// Warps of the weights' gradients that fill the largest devices twice, and pixels that a lane has at least.
inline int64_t wanted_warps() {
  return multiprocessors() * 64 * 2;
}
constexpr int64_t kLeastPixels = 16;
// Where that leaves multiprocessors with few warps, a lane has fewer, down to these, up to so many warps and
// chunks.
constexpr int64_t kFewestPixels = 2;
inline int64_t few_warps() {
  return multiprocessors() * 32;
}
constexpr int64_t kFewChunks = 128;
constexpr int64_t kMostChunks = 1024;
// Threads of a block that share the chunks of one sum where there are few of them, and where there are many.
constexpr int kChunkLanes = 8;
constexpr int kManyChunkLanes = 32;
constexpr int64_t kManyChunks = 64;

// One dimension of the weights' gradients: src = dst * stride - padding + tap * dilation.
template <typename index_t>
struct Side {
  index_t src_size;
  index_t src_step; // from one element of src to the next
  index_t taps;
  index_t stride;
  index_t padding;
  index_t dilation;
};

// The weights' gradients: what a warp sums, and for which pixels.
template <typename index_t>
struct Weights {
  Steps<index_t> grad; // grad_output
  index_t channels; // of it
  Divider<index_t> multiplier;
  index_t height;
  index_t width;
  index_t src_image;
  index_t src_channel;
  Side<index_t> across; // from line of taps to line
  Side<index_t> along;
  index_t pixels;
  index_t chunk; // pixels of one
  // A step of a lane, in images, rows and columns.
  index_t next_image;
  index_t next_row;
  index_t next_column;
  // Warps: groups of taps innermost, of which the last is the bias, then channels, then chunks.
  int64_t warps;
  index_t first_group;
  index_t wanted_groups;
  index_t line_groups; // groups of a line of taps
  index_t channel_groups;
  int lanes; // vectors of channels that a warp covers, a power of two
};

// partial[chunk][output channel][tap], where tap kernel_size() is the bias. Lines of taps are the columns of
// the window where kUpright, else its rows.
template <typename scalar_t, typename index_t, int kVector, int kTaps, bool kUpright>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void grad_weight_partial_kernel(
    opmath_type<scalar_t>* __restrict__ partial,
    const scalar_t* __restrict__ grad_output,
    const scalar_t* __restrict__ input,
    const Weights<index_t> g) {
  using acc_t = opmath_type<scalar_t>;
  using Loaded = Elements<scalar_t, kVector>;
  const int lane = threadIdx.x % kWarpSize;
  const int channel_lane = lane % g.lanes;
  const int pixel_lane = lane / g.lanes;
  const int pixel_lanes = kWarpSize / g.lanes;
  for (int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
       warp < g.warps;
       warp += static_cast<int64_t>(gridDim.x) * kWarps) {
    const index_t group = g.first_group + static_cast<index_t>(warp % g.wanted_groups);
    const index_t rest = static_cast<index_t>(warp / g.wanted_groups);
    const index_t chunk = rest / g.channel_groups;
    const index_t channel = (rest % g.channel_groups * g.lanes + channel_lane) * kVector;
    const index_t line = group / g.line_groups;
    const index_t first_tap = group % g.line_groups * kTaps;
    const bool is_bias = line == g.across.taps;
    const index_t end = ::min(g.pixels, (chunk + 1) * g.chunk);
    index_t pixel = chunk * g.chunk + pixel_lane;
    index_t column = pixel % g.width;
    index_t row = pixel / g.width % g.height;
    index_t image = pixel / g.width / g.height;
    const bool has_channel = channel < g.channels;
    const index_t grads = channel * g.grad.channel;
    const index_t plane = static_cast<index_t>(g.multiplier.div(channel)) * g.src_channel;
    const auto advance = [&] {
      pixel += pixel_lanes;
      image += g.next_image;
      row += g.next_row;
      column += g.next_column;
      if (column >= g.width) {
        column -= g.width;
        ++row;
      }
      if (row >= g.height) {
        row -= g.height;
        ++image;
      }
    };
    const auto load_grad = [&] {
      const index_t from = grads + image * g.grad.image + row * g.grad.row + column * g.grad.column;
      return *reinterpret_cast<const Loaded*>(grad_output + from);
    };

    acc_t sums[kTaps][kVector] = {};
    if (is_bias) {
      // A bias has no products whose rounding would hide that of its sum: plainly added, double's was
      // 1.05 to 1.2 times as far off as upstream's, in the mean square.
      acc_t excess[kVector] = {};
      for (; has_channel && pixel < end; advance()) {
        const Loaded grad = load_grad();
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          add_compensated(sums[0][v], excess[v], static_cast<acc_t>(grad.values[v]));
          // An infinite sum less itself is NaN, which the next term would bring into the sum.
          excess[v] = ::isfinite(excess[v]) ? excess[v] : acc_t(0);
        }
      }
    } else {
      const index_t first_across = line * g.across.dilation - g.across.padding;
      const index_t first_along = first_tap * g.along.dilation - g.along.padding;
      const index_t live = ::min(static_cast<index_t>(kTaps), g.along.taps - first_tap);
      const index_t next = g.along.dilation * g.along.src_step;
      while (has_channel && pixel < end) {
        acc_t chain[kTaps][kVector] = {};
        for (int i = 0; i < kChain && pixel < end; ++i, advance()) {
          const index_t a = (kUpright ? column : row) * g.across.stride + first_across;
          if (!is_within(a, g.across.src_size)) {
            continue;
          }
          const Loaded grad = load_grad();
          const index_t b = (kUpright ? row : column) * g.along.stride + first_along;
          const index_t at =
              plane + image * g.src_image + a * g.across.src_step + b * g.along.src_step;
#pragma unroll
          for (int t = 0; t < kTaps; ++t) {
            const index_t from = b + t * g.along.dilation;
            if (t < live && is_within(from, g.along.src_size)) {
              const Loaded loaded = *reinterpret_cast<const Loaded*>(input + (at + t * next));
#pragma unroll
              for (int v = 0; v < kVector; ++v) {
                chain[t][v] +=
                    static_cast<acc_t>(grad.values[v]) * static_cast<acc_t>(loaded.values[v]);
              }
            }
          }
        }
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sums[t][v] += chain[t][v];
          }
        }
      }
    }

    for (int partner = g.lanes; partner < kWarpSize; partner *= 2) {
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sums[t][v] += __shfl_xor_sync(0xffffffffu, sums[t][v], partner);
        }
      }
    }
    if (pixel_lane == 0 && has_channel) {
      const index_t of_channel = g.across.taps * g.along.taps + 1;
      const index_t line_step = kUpright ? 1 : g.along.taps;
      const index_t tap_step = kUpright ? g.across.taps : 1;
      acc_t* const to = partial +
          (static_cast<int64_t>(chunk) * g.channels + channel) * of_channel +
          (is_bias ? of_channel - 1 : line * line_step + first_tap * tap_step);
      const index_t count =
          is_bias ? 1 : ::min(static_cast<index_t>(kTaps), g.along.taps - first_tap);
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          if (t < count) {
            to[v * of_channel + t * tap_step] = sums[t][v];
          }
        }
      }
    }
  }
}

template <typename scalar_t, int kLanes>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void grad_weight_total_kernel(
    scalar_t* __restrict__ grad_weight,
    scalar_t* __restrict__ grad_bias,
    const opmath_type<scalar_t>* __restrict__ partial,
    int64_t chunks,
    int64_t output_channels,
    int64_t kernel_size) {
  constexpr int kSums = kThreads / kLanes;
  __shared__ double sums[kWarps][kSums];
  const int64_t count = output_channels * (kernel_size + 1);
  const int lane = threadIdx.x % kSums;
  const int chunk_lane = threadIdx.x / kSums;
  wait_for_kernel_before();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kSums; first < count;
       first += static_cast<int64_t>(gridDim.x) * kSums) {
    const int64_t i = first + lane;
    const int64_t channel = i / (kernel_size + 1);
    const int64_t tap = i % (kernel_size + 1);
    const bool wanted = i < count && (tap == kernel_size ? grad_bias : grad_weight) != nullptr;
    // There are few chunks to a thread, so double costs nothing that shows.
    double sum = 0;
    if (wanted) {
#pragma unroll 4
      for (int64_t chunk = chunk_lane; chunk < chunks; chunk += kLanes) {
        sum += partial[chunk * count + i];
      }
    }
#pragma unroll
    for (int partner = kSums; partner < kWarpSize; partner *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, partner);
    }
    if (threadIdx.x % kWarpSize < kSums) {
      sums[threadIdx.x / kWarpSize][lane] = sum;
    }
    __syncthreads();
    if (chunk_lane == 0 && wanted) {
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) {
        sum += sums[warp][lane];
      }
      if (tap == kernel_size) {
        grad_bias[channel] = static_cast<scalar_t>(sum);
      } else {
        grad_weight[channel * kernel_size + tap] = static_cast<scalar_t>(sum);
      }
    }
    // The next round writes `sums` again.
    __syncthreads();
  }
}

// Lanes of a warp side by side along the channels: the most of which few are left over.
int channel_lanes(int64_t vectors) {
  constexpr int kLeast = 4;
  int best = kLeast;
  int64_t fewest = divide_up(vectors, kLeast) * kLeast;
  for (int lanes = 2 * kLeast; lanes <= kWarpSize; lanes *= 2) {
    const int64_t all = divide_up(vectors, lanes) * lanes;
    if (all * 8 <= fewest * 9) {
      best = lanes;
      fewest = std::min(fewest, all);
    }
  }
  return best;
}

// Groups of taps of the weights' gradients.
struct Groups {
  bool upright; // of columns of the window
  int taps; // of a group
};

// In channels-last order, where neighbouring taps of a row lie in neighbouring lines anyway, columns are
// slower.
Groups groups_of(const Params& p) {
  constexpr int kBeside = 4; // taps, what a pixel costs beside its products
  constexpr int kMost = 4;
  Groups best{false, kMost};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const bool upright : {false, true}) {
    if (upright && p.channels_last) {
      break;
    }
    const int64_t lines = upright ? p.kernel_width : p.kernel_height;
    const int64_t length = upright ? p.kernel_height : p.kernel_width;
    for (int taps = kMost; taps >= 2; --taps) {
      const int64_t cost = lines * divide_up(length, taps) * (taps + kBeside);
      if (cost < least) {
        least = cost;
        best = {upright, taps};
      }
    }
  }
  return best;
}

template <typename scalar_t, typename index_t, int kVector, int kTaps, bool kUpright>
Operand launch_partial(const BackwardPass& pass, const Params& p) {
  using acc_t = opmath_type<scalar_t>;
  Weights<index_t> g;
  g.grad = steps_of<index_t>(p.channels_last, p.output_channels(), p.output_height, p.output_width);
  const auto src = steps_of<index_t>(p.channels_last, p.channels, p.input_height, p.input_width);
  g.src_image = src.image;
  g.src_channel = src.channel;
  g.channels = p.output_channels();
  g.multiplier = divider<index_t>(p.multiplier);
  g.height = p.output_height;
  g.width = p.output_width;
  const auto side = [&](int64_t size,
                        int64_t step,
                        int64_t taps,
                        int64_t stride,
                        int64_t padding,
                        int64_t dilation) {
    Side<index_t> s;
    s.src_size = size;
    s.src_step = step;
    s.taps = taps;
    s.stride = stride;
    s.padding = padding;
    s.dilation = dilation;
    return s;
  };
  const auto height = side(
      p.input_height,
      src.row,
      p.kernel_height,
      p.stride_height,
      p.padding_height,
      p.dilation_height);
  const auto width = side(
      p.input_width, src.column, p.kernel_width, p.stride_width, p.padding_width, p.dilation_width);
  g.across = kUpright ? width : height;
  g.along = kUpright ? height : width;
  g.lanes = p.channels_last ? channel_lanes(divide_up(g.channels, kVector)) : 1;
  g.channel_groups = divide_up(g.channels, static_cast<int64_t>(g.lanes) * kVector);
  g.line_groups = divide_up(g.along.taps, kTaps);
  const int64_t groups = static_cast<int64_t>(g.across.taps) * g.line_groups + 1;
  g.first_group = pass.grad_weight.defined() ? 0 : groups - 1;
  g.wanted_groups = (pass.grad_bias.defined() ? groups : groups - 1) - g.first_group;
  const int64_t pixels = p.batch * p.output_height * p.output_width;
  const int64_t pixel_lanes = kWarpSize / g.lanes;
  const int64_t of_chunk = groups * g.channel_groups; // warps
  const int64_t few = std::min(
      {few_warps() / of_chunk, divide_up(pixels, pixel_lanes * kFewestPixels), kFewChunks});
  const int64_t many = std::min(
      {divide_up(wanted_warps(), of_chunk),
       divide_up(pixels, pixel_lanes * kLeastPixels),
       kMostChunks});
  const int64_t wanted = divide_up(pixels, std::max<int64_t>({1, few, many}));
  const int64_t step = wanted < kWarpSize ? pixel_lanes : kWarpSize;
  g.pixels = pixels;
  g.chunk = divide_up(wanted, step) * step;
  const int64_t chunks = pixels == 0 ? 0 : divide_up(pixels, g.chunk);
  const Operand partial = empty(
      {chunks, p.output_channels(), p.kernel_size() + 1, 1},
      sizeof(acc_t) == sizeof(double) ? Type::kDouble : Type::kFloat);
  if (chunks == 0 || g.wanted_groups == 0) {
    return partial;
  }
  g.next_column = pixel_lanes % p.output_width;
  g.next_row = pixel_lanes / p.output_width % p.output_height;
  g.next_image = pixel_lanes / p.output_width / p.output_height;
  g.warps = chunks * g.channel_groups * g.wanted_groups;
  launch_kernel(
      grad_weight_partial_kernel<scalar_t, index_t, kVector, kTaps, kUpright>,
      blocks_for(g.warps, kWarps),
      kThreads,
      0,
      partial.mutable_data_ptr<acc_t>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      g);
  return partial;
}

template <typename scalar_t>
void launch_grad_weight(const BackwardPass& pass, const Params& p) {
  using acc_t = opmath_type<scalar_t>;
  const Groups groups = groups_of(p);
  const auto with_taps = [&](auto vector, auto upright) {
    const auto partial_of = [&](auto taps) {
      return launch_partial<
          scalar_t,
          int32_t,
          decltype(vector)::value,
          decltype(taps)::value,
          decltype(upright)::value>(pass, p);
    };
    switch (groups.taps) {
      case 2:
        return partial_of(std::integral_constant<int, 2>());
      case 3:
        return partial_of(std::integral_constant<int, 3>());
      default:
        return partial_of(std::integral_constant<int, 4>());
    }
  };
  const std::integral_constant<int, 1> one;
  const std::integral_constant<int, kVectorOf<scalar_t>> several;
  const auto partial_of = [&] {
    if (!fits_32_bits(p)) {
      return launch_partial<scalar_t, int64_t, 1, 4, false>(pass, p);
    }
    if (groups.upright) {
      return with_taps(one, std::true_type());
    }
    return takes_vectors<scalar_t>(p, pass.grad_output, pass.input)
        ? with_taps(several, std::false_type())
        : with_taps(one, std::false_type());
  };
  const Operand partial = partial_of();
  const int64_t sums = p.output_channels() * (p.kernel_size() + 1);
  if (sums == 0) {
    return;
  }
  const auto add_chunks = [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    launch_early(
        grad_weight_total_kernel<scalar_t, kLanes>,
        blocks_for(sums, kThreads / kLanes),
        kThreads,
        mutable_pointer_or_null<scalar_t>(pass.grad_weight),
        mutable_pointer_or_null<scalar_t>(pass.grad_bias),
        partial.const_data_ptr<acc_t>(),
        partial.size(0),
        p.output_channels(),
        p.kernel_size());
  };
  if (partial.size(0) < kManyChunks) {
    add_chunks(std::integral_constant<int, kChunkLanes>());
  } else {
    add_chunks(std::integral_constant<int, kManyChunkLanes>());
  }
}

} // namespace

bool generic_grad_weight(const BackwardPass& pass, const Params& p) {
  return with_any_type(pass.input.type(), [&](auto scalar) {
    launch_grad_weight<decltype(scalar)>(pass, p);
    return true;
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
