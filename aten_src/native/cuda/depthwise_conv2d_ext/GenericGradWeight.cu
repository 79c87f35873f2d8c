// The weight's and the bias's gradient of any call, as Generic.cu. Without atomics: the same bits on every run.
//
// A warp sums a group of taps of one row, or of one column where that makes fewer groups, for a chunk of
// pixels, so that grad_output is read once for the group; the warps of a block have neighbouring groups of
// the same chunk, and find its values in the L1. The bias is a group of its own. Chunks, and so the bits,
// depend on the sizes only.
#include <ATen/native/cuda/depthwise_conv2d_ext/Generic.cuh>
#include <algorithm>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kWarps = kThreads / kWarpSize;
// Taps of a group.
constexpr int kGroup = 4;
// Products that a lane of the weights' gradients adds in a chain.
constexpr int kChain = 64;
// Pixels that a lane of the weights' gradients has at least; where that leaves multiprocessors with few warps,
// fewer, down to kFewestPixels, up to so many chunks.
constexpr int64_t kLeastPixels = 16;
constexpr int64_t kFewestPixels = 2;
constexpr int64_t kFewChunks = 128;
constexpr int64_t kMostChunks = 1024;

// The weights' gradients: what a warp sums, and for which pixels.
template <typename index_t>
struct Weights {
  ElementSteps<index_t> grad; // grad_output
  index_t channels; // of it
  Divider<index_t> multiplier;
  index_t height;
  index_t width;
  index_t src_image;
  index_t src_channel;
  Side<index_t> across; // from line of taps to line
  Side<index_t> along;
  index_t across_step; // from one element of src to the next
  index_t along_step;
  index_t pixels;
  index_t chunk; // pixels of one
  // A step of a lane, in images, rows and columns.
  index_t next_image;
  index_t next_row;
  index_t next_column;
  // Warps: groups of taps innermost, of which the last is the bias, then channels, then chunks.
  int64_t warps;
  index_t groups;
  index_t line_groups; // groups of a line of taps
  index_t channel_groups;
  int lanes; // vectors of channels that a warp covers, a power of two
};

// Writes a chunk's rows of what add_partials() adds. Lines of taps are the columns of the window where kUpright,
// else its rows.
template <typename scalar_t, typename index_t, int kVector, bool kUpright>
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
    const index_t group = static_cast<index_t>(warp % g.groups);
    const index_t rest = static_cast<index_t>(warp / g.groups);
    const index_t chunk = rest / g.channel_groups;
    const index_t channel = (rest % g.channel_groups * g.lanes + channel_lane) * kVector;
    const index_t line = group / g.line_groups;
    const index_t first_tap = group % g.line_groups * kGroup;
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

    acc_t sums[kGroup][kVector] = {};
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
      const index_t live = ::min(static_cast<index_t>(kGroup), g.along.taps - first_tap);
      const index_t next = g.along.dilation * g.along_step;
      while (has_channel && pixel < end) {
        acc_t chain[kGroup][kVector] = {};
        for (int i = 0; i < kChain && pixel < end; ++i, advance()) {
          const index_t a = (kUpright ? column : row) * g.across.stride + first_across;
          if (!is_within(a, g.across.input)) {
            continue;
          }
          const Loaded grad = load_grad();
          const index_t b = (kUpright ? row : column) * g.along.stride + first_along;
          const index_t at = plane + image * g.src_image + a * g.across_step + b * g.along_step;
#pragma unroll
          for (int t = 0; t < kGroup; ++t) {
            const index_t from = b + t * g.along.dilation;
            if (t < live && is_within(from, g.along.input)) {
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
        for (int t = 0; t < kGroup; ++t) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sums[t][v] += chain[t][v];
          }
        }
      }
    }

    for (int partner = g.lanes; partner < kWarpSize; partner *= 2) {
#pragma unroll
      for (int t = 0; t < kGroup; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sums[t][v] += __shfl_xor_sync(0xffffffffu, sums[t][v], partner);
        }
      }
    }
    if (pixel_lane == 0 && has_channel) {
      const int64_t kernel_size = g.across.taps * g.along.taps;
      const index_t line_step = kUpright ? 1 : g.along.taps;
      const index_t tap_step = kUpright ? g.across.taps : 1;
      const int64_t tap = is_bias ? kernel_size : line * line_step + first_tap * tap_step;
      acc_t* const to = partial + (chunk * (kernel_size + kBiasRows) + tap) * g.channels + channel;
      const index_t count =
          is_bias ? 1 : ::min(static_cast<index_t>(kGroup), g.along.taps - first_tap);
#pragma unroll
      for (int t = 0; t < kGroup; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          if (t < count) {
            to[t * tap_step * g.channels + v] = sums[t][v];
          }
          if (is_bias && t == 0) {
            to[g.channels + v] = 0;
          }
        }
      }
    }
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

// Whether groups of taps are of columns of the window. In channels-last order, where neighbouring taps of a row
// lie in neighbouring lines anyway, those are slower.
bool is_upright(const Params& p) {
  return !p.channels_last &&
      p.kernel_width * divide_up(p.kernel_height, kGroup) <
      p.kernel_height * divide_up(p.kernel_width, kGroup);
}

template <typename scalar_t, typename index_t, int kVector, bool kUpright>
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
  g.across = side_of<index_t>(p, !kUpright);
  g.along = side_of<index_t>(p, kUpright);
  g.across_step = kUpright ? src.column : src.row;
  g.along_step = kUpright ? src.row : src.column;
  g.lanes = p.channels_last ? channel_lanes(divide_up(g.channels, kVector)) : 1;
  g.channel_groups = divide_up(g.channels, static_cast<int64_t>(g.lanes) * kVector);
  g.line_groups = divide_up(g.along.taps, kGroup);
  g.groups = g.across.taps * g.line_groups + 1;
  const int64_t pixels = p.batch * p.output_height * p.output_width;
  const int64_t pixel_lanes = kWarpSize / g.lanes;
  const int64_t of_chunk = static_cast<int64_t>(g.groups) * g.channel_groups; // warps
  const int64_t few = std::min(
      {multiprocessors() * 32 / of_chunk,
       divide_up(pixels, pixel_lanes * kFewestPixels),
       kFewChunks});
  const int64_t many = std::min(
      {divide_up(multiprocessors() * 128, of_chunk), // the largest devices filled twice
       divide_up(pixels, pixel_lanes * kLeastPixels),
       kMostChunks});
  const int64_t wanted = divide_up(pixels, std::max<int64_t>({1, few, many}));
  const int64_t step = wanted < kWarpSize ? pixel_lanes : kWarpSize;
  g.pixels = pixels;
  g.chunk = divide_up(wanted, step) * step;
  const int64_t chunks = pixels == 0 ? 0 : divide_up(pixels, g.chunk);
  const Operand partial =
      empty_partial(chunks, p, sizeof(acc_t) == sizeof(double) ? Type::kDouble : Type::kFloat);
  if (chunks == 0) {
    return partial;
  }
  g.next_column = pixel_lanes % p.output_width;
  g.next_row = pixel_lanes / p.output_width % p.output_height;
  g.next_image = pixel_lanes / p.output_width / p.output_height;
  g.warps = chunks * of_chunk;
  launch_kernel(
      grad_weight_partial_kernel<scalar_t, index_t, kVector, kUpright>,
      std::min(kMaxBlocks, divide_up(g.warps, kWarps)),
      kThreads,
      0,
      partial.mutable_data_ptr<acc_t>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      g);
  return partial;
}

template <typename scalar_t>
Operand partial_of(const BackwardPass& pass, const Params& p) {
  constexpr int kVector = kVectorOf<scalar_t>;
  return !has_short_steps(p) ? launch_partial<scalar_t, int64_t, 1, false>(pass, p)
      : is_upright(p)        ? launch_partial<scalar_t, int32_t, 1, true>(pass, p)
      : takes_vectors<scalar_t>(p, pass.grad_output, pass.input)
      ? launch_partial<scalar_t, int32_t, kVector, false>(pass, p)
      : launch_partial<scalar_t, int32_t, 1, false>(pass, p);
}

} // namespace

template <typename scalar_t>
bool generic_grad_weight(const BackwardPass& pass, const Params& p) {
  if (p.output_channels() > 0) {
    add_partials<scalar_t>(pass, partial_of<scalar_t>(pass, p), p);
  }
  return true;
}

DEPTHWISE_INSTANTIATE(generic_grad_weight, const BackwardPass&);
template bool generic_grad_weight<double>(const BackwardPass&, const Params&);

} // namespace at::native::depthwise_conv2d_ext_cuda
