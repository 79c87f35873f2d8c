// The weight's and the bias's gradient of depthwise_conv2d_ext for any window, see
// Generic.cuh.
//
// A warp sums a group of taps of one row, or of one column where that makes fewer groups, for a chunk of
// pixels, so that grad_output is read once for the group; the warps of a block have neighbouring groups of
// the same chunk, and find its values in the L1. The bias is a group of its own. Chunks, and so the bits,
// depend on the sizes only. A second kernel adds the chunks in order.
#include <ATen/native/cuda/depthwise_conv2d_ext/Generic.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// Products that a lane of the weights' gradients adds in a chain.
constexpr int kChain = 64;
// Warps of the weights' gradients that fill the largest devices twice, and pixels that a lane has at least.
inline int64_t wanted_warps() {
  return multiprocessors() * 64 * 2;
}
constexpr int64_t kLeastPixels = 16;
// Where that leaves multiprocessors with few warps, a lane has fewer, down to these, up to so many warps and
// chunks: N=1 64@56 of 4 x 4 at stride 2 14.5 us and 6.1.
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
// slower: 64 images of 64@56 by 3 x 1 151 us for 95, in plane order 98 for 155.
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
