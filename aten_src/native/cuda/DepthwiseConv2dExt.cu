// CUDA entries of depthwise_conv2d_ext and its generic kernels, which take what the specialised ones
// (DepthwiseConv2dExtForward.cu, ...GradInput.cu, ...GradWeight.cu, ...Large.cu, ...Lanes*.cu,
// ...Bands.cu, ...Sweep*.cu, ...Patches.cu, ...Batch*.cu, ...Strips*.cu, ...Halves*.cu, ...Boxes*.cu,
// ...PixelRows*.cu, ...FewBackward.cu, ...FewPixels*.cu, ...FlatPlanes*.cu) do not: double, other strides and
// windows, sizes beyond 32 bits. The generic kernels:
//
// Forward and grad_input: one thread an element of the result, which gathers its taps. Weight and
// bias gradients: one block a (chunk of pixels, channels, tap), reduced in shared memory; a second
// kernel adds the chunks in order. Every sum has one fixed order, without atomics, so results are
// the same bits on every run. Only positions inside the input are read or multiplied.
//
// 16-bit values are converted to float before any arithmetic and rounded once at the end. The taps
// of each kernel row are summed by themselves first, for the sake of large kernels' rounding error.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DepthwiseConv2dExt.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/DepthwiseConv2dExt.cuh>
#include <algorithm>
#include <limits>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#endif

namespace at::native {

namespace {

namespace fast = depthwise_conv2d_ext_cuda;
using Params = DepthwiseConv2dExtParams;
using fast::BackwardEntry;
using fast::BackwardPass;
using fast::divide_up;
using fast::ForwardEntry;
using fast::ForwardPass;
using fast::GradInputEntry;
using fast::GradWeightEntry;
using fast::mutable_pointer_or_null;
using fast::pointer_or_null;

constexpr int kThreads = 256;
// Loops stride over the grid, so that this bounds launches without bounding sizes.
constexpr int64_t kMaxBlocks = 1 << 20;
// Output pixels that one block of the weight gradient sums. Each thread adds at most
// kPixelsPerChunk / kPixelLanes products, which also bounds the rounding error of a chunk.
constexpr int64_t kPixelsPerChunk = 8192;
// Channels that one block of the weight gradient covers in channels-last order: a warp reads
// neighbours. In plane order a block covers one channel and a warp reads neighbouring pixels.
constexpr int kChannelLanes = 32;
static_assert(kThreads % kChannelLanes == 0);
static_assert((kThreads & (kThreads - 1)) == 0, "the shared-memory reduction halves the block");

// Whether 32 bits hold every offset and every coordinate, with room for one step over the grid and
// for one more dilated tap.
bool fits_32_bits(const Params& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  static_assert(kMaxBlocks * kThreads < kLimit);
  return p.batch * p.channels * p.input_height * p.input_width < kLimit &&
      p.batch * p.output_channels() * p.output_height * p.output_width < kLimit &&
      p.output_channels() * (p.kernel_size() + 1) < kLimit &&
      p.input_height + 2 * p.padding_height + p.dilation_height < kLimit &&
      p.input_width + 2 * p.padding_width + p.dilation_width < kLimit;
}

// A position in a dense 4-d tensor in either memory order.
template <typename index_t>
struct Position {
  index_t n;
  index_t c;
  index_t h;
  index_t w;
};

template <bool kChannelsLast, typename index_t>
__device__ __forceinline__ Position<index_t> position_of(
    index_t offset,
    index_t channels,
    index_t height,
    index_t width) {
  Position<index_t> at;
  if constexpr (kChannelsLast) {
    at.c = offset % channels;
    offset /= channels;
    at.w = offset % width;
    offset /= width;
    at.h = offset % height;
    at.n = offset / height;
  } else {
    at.w = offset % width;
    offset /= width;
    at.h = offset % height;
    offset /= height;
    at.c = offset % channels;
    at.n = offset / channels;
  }
  return at;
}

template <bool kChannelsLast, typename index_t>
__device__ __forceinline__ index_t
offset_of(const Position<index_t>& at, index_t channels, index_t height, index_t width) {
  if constexpr (kChannelsLast) {
    return ((at.n * height + at.h) * width + at.w) * channels + at.c;
  } else {
    return ((at.n * channels + at.c) * height + at.h) * width + at.w;
  }
}

template <typename scalar_t, typename index_t, bool kChannelsLast>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void forward_kernel(
    scalar_t* __restrict__ output,
    const scalar_t* __restrict__ input,
    const scalar_t* __restrict__ weight,
    const scalar_t* __restrict__ bias,
    index_t count,
    Params p) {
  using acc_t = opmath_type<scalar_t>;
  const index_t channels = p.channels;
  const index_t height = p.input_height;
  const index_t width = p.input_width;
  const index_t kernel_height = p.kernel_height;
  const index_t kernel_width = p.kernel_width;
  const index_t step = static_cast<index_t>(gridDim.x) * kThreads;
  for (index_t i = static_cast<index_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const auto at = position_of<kChannelsLast, index_t>(
        i, p.output_channels(), p.output_height, p.output_width);
    const index_t top = at.h * static_cast<index_t>(p.stride_height) - p.padding_height;
    const index_t left = at.w * static_cast<index_t>(p.stride_width) - p.padding_width;
    const scalar_t* const taps = weight + at.c * kernel_height * kernel_width;
    const index_t channel = at.c / static_cast<index_t>(p.multiplier);
    acc_t sum = bias ? static_cast<acc_t>(bias[at.c]) : acc_t(0);
    index_t ih = top;
    for (index_t kh = 0; kh < kernel_height; ++kh, ih += p.dilation_height) {
      if (ih < 0 || ih >= height) {
        continue;
      }
      acc_t row = 0;
      index_t iw = left;
      for (index_t kw = 0; kw < kernel_width; ++kw, iw += p.dilation_width) {
        if (iw < 0 || iw >= width) {
          continue;
        }
        const Position<index_t> from{at.n, channel, ih, iw};
        row += static_cast<acc_t>(
                   input[offset_of<kChannelsLast, index_t>(from, channels, height, width)]) *
            static_cast<acc_t>(taps[kh * kernel_width + kw]);
      }
      sum += row;
    }
    output[i] = static_cast<scalar_t>(sum);
  }
}

template <typename scalar_t, typename index_t, bool kChannelsLast>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void grad_input_kernel(
    scalar_t* __restrict__ grad_input,
    const scalar_t* __restrict__ grad_output,
    const scalar_t* __restrict__ weight,
    index_t count,
    Params p) {
  using acc_t = opmath_type<scalar_t>;
  const index_t output_channels = p.output_channels();
  const index_t height = p.output_height;
  const index_t width = p.output_width;
  const index_t kernel_height = p.kernel_height;
  const index_t kernel_width = p.kernel_width;
  const index_t stride_height = p.stride_height;
  const index_t stride_width = p.stride_width;
  const index_t multiplier = p.multiplier;
  const index_t step = static_cast<index_t>(gridDim.x) * kThreads;
  for (index_t i = static_cast<index_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const auto at =
        position_of<kChannelsLast, index_t>(i, p.channels, p.input_height, p.input_width);
    acc_t sum = 0;
    for (index_t j = 0; j < multiplier; ++j) {
      const index_t channel = at.c * multiplier + j;
      const scalar_t* const taps = weight + channel * kernel_height * kernel_width;
      // oh * stride - padding + kh * dilation = h, where an output row oh exists.
      index_t down = at.h + p.padding_height;
      for (index_t kh = 0; kh < kernel_height && down >= 0; ++kh, down -= p.dilation_height) {
        if (down % stride_height != 0 || down / stride_height >= height) {
          continue;
        }
        acc_t row = 0;
        index_t right = at.w + p.padding_width;
        for (index_t kw = 0; kw < kernel_width && right >= 0; ++kw, right -= p.dilation_width) {
          if (right % stride_width != 0 || right / stride_width >= width) {
            continue;
          }
          const Position<index_t> from{at.n, channel, down / stride_height, right / stride_width};
          row += static_cast<acc_t>(grad_output[offset_of<kChannelsLast, index_t>(
                     from, output_channels, height, width)]) *
              static_cast<acc_t>(taps[kh * kernel_width + kw]);
        }
        sum += row;
      }
    }
    grad_input[i] = static_cast<scalar_t>(sum);
  }
}

// The sums that are wanted for one output channel: taps [begin, end), where tap kernel_size() is
// the bias.
struct Taps {
  int64_t begin;
  int64_t end;
  int64_t size() const {
    return end - begin;
  }
};

// partial[chunk][output channel][tap]. `blocks` = chunks × channel groups × taps, taps innermost,
// so that blocks that run together read the same pixels.
template <typename scalar_t, typename index_t, bool kChannelsLast>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void grad_weight_partial_kernel(
    opmath_type<scalar_t>* __restrict__ partial,
    const scalar_t* __restrict__ grad_output,
    const scalar_t* __restrict__ input,
    int64_t blocks,
    Taps wanted,
    Params p) {
  using acc_t = opmath_type<scalar_t>;
  constexpr int kLanes = kChannelsLast ? kChannelLanes : 1;
  constexpr int kPixelLanes = kThreads / kLanes;
  __shared__ acc_t sums[kThreads];

  const index_t output_channels = p.output_channels();
  const index_t channels = p.channels;
  const index_t height = p.output_height;
  const index_t width = p.output_width;
  const index_t kernel_width = p.kernel_width;
  const index_t pixels = static_cast<index_t>(p.batch) * height * width;
  const int64_t taps = wanted.end - wanted.begin;
  const int64_t groups = (p.output_channels() + kLanes - 1) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int pixel_lane = threadIdx.x / kLanes;

  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t chunk = block / taps / groups;
    const index_t tap = wanted.begin + block % taps;
    const index_t channel = block / taps % groups * kLanes + lane;
    const bool is_bias = tap == p.kernel_height * p.kernel_width;
    const index_t down = tap / kernel_width * p.dilation_height - p.padding_height;
    const index_t right = tap % kernel_width * p.dilation_width - p.padding_width;
    const index_t begin = chunk * kPixelsPerChunk;
    const index_t end = min(static_cast<int64_t>(pixels), begin + kPixelsPerChunk);

    acc_t sum = 0;
    // A bias has no products whose rounding would hide that of its sum: plainly added, double's was
    // 1.05 to 1.2 times as far off as upstream's, in the mean square.
    acc_t excess = 0;
    if (channel < output_channels) {
      for (index_t pixel = begin + pixel_lane; pixel < end; pixel += kPixelLanes) {
        const index_t ow = pixel % width;
        const index_t oh = pixel / width % height;
        const index_t n = pixel / width / height;
        const Position<index_t> at{n, channel, oh, ow};
        const index_t from = offset_of<kChannelsLast, index_t>(at, output_channels, height, width);
        if (is_bias) {
          fast::add_compensated(sum, excess, static_cast<acc_t>(grad_output[from]));
          // An infinite sum less itself is NaN, which the next term would bring into the sum.
          excess = isfinite(excess) ? excess : 0;
          continue;
        }
        const Position<index_t> source{
            n,
            channel / static_cast<index_t>(p.multiplier),
            oh * static_cast<index_t>(p.stride_height) + down,
            ow * static_cast<index_t>(p.stride_width) + right};
        if (source.h >= 0 && source.h < p.input_height && source.w >= 0 &&
            source.w < p.input_width) {
          sum += static_cast<acc_t>(grad_output[from]) *
              static_cast<acc_t>(input[offset_of<kChannelsLast, index_t>(
                  source, channels, p.input_height, p.input_width)]);
        }
      }
    }

    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kPixelLanes / 2; half > 0; half /= 2) {
      if (pixel_lane < half) {
        sums[threadIdx.x] += sums[threadIdx.x + half * kLanes];
      }
      __syncthreads();
    }
    if (pixel_lane == 0 && channel < output_channels) {
      partial[(chunk * p.output_channels() + channel) * taps + block % taps] = sums[lane];
    }
    // The next round writes `sums` again.
    __syncthreads();
  }
}

template <typename scalar_t>
C10_LAUNCH_BOUNDS_1(kThreads)
__global__ void grad_weight_total_kernel(
    scalar_t* __restrict__ grad_weight,
    scalar_t* __restrict__ grad_bias,
    const opmath_type<scalar_t>* __restrict__ partial,
    int64_t chunks,
    int64_t output_channels,
    int64_t kernel_size,
    Taps wanted) {
  const int64_t taps = wanted.end - wanted.begin;
  const int64_t count = output_channels * taps;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    // There are few chunks to an element, so double costs nothing that shows.
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum += partial[chunk * count + i];
    }
    const int64_t channel = i / taps;
    const int64_t tap = wanted.begin + i % taps;
    if (tap == kernel_size) {
      grad_bias[channel] = static_cast<scalar_t>(sum);
    } else {
      grad_weight[channel * kernel_size + tap] = static_cast<scalar_t>(sum);
    }
  }
}

unsigned int blocks_for(int64_t items, int64_t items_per_block) {
  return static_cast<unsigned int>(std::min(kMaxBlocks, divide_up(items, items_per_block)));
}

// Calls launch with the index type and the memory order as compile-time values.
template <typename Launch>
void with_layout(const Params& p, const Launch& launch) {
  const auto with_index = [&](auto index) {
    if (p.channels_last) {
      launch(index, std::true_type());
    } else {
      launch(index, std::false_type());
    }
  };
  if (fits_32_bits(p)) {
    with_index(int32_t());
  } else {
    with_index(int64_t());
  }
}

template <typename scalar_t>
void launch_forward(const ForwardPass& pass, const Params& p) {
  const int64_t count = pass.dst.numel();
  if (count == 0) {
    return;
  }
  with_layout(p, [&](auto index, auto channels_last) {
    using index_t = decltype(index);
    forward_kernel<scalar_t, index_t, decltype(channels_last)::value>
        <<<blocks_for(count, kThreads), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
            pass.dst.mutable_data_ptr<scalar_t>(),
            pass.src.const_data_ptr<scalar_t>(),
            pass.weight.const_data_ptr<scalar_t>(),
            pointer_or_null<scalar_t>(pass.bias),
            static_cast<index_t>(count),
            p);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

template <typename scalar_t>
void launch_grad_input(const ForwardPass& pass, const Params& p) {
  const int64_t count = pass.dst.numel();
  if (count == 0) {
    return;
  }
  with_layout(p, [&](auto index, auto channels_last) {
    using index_t = decltype(index);
    grad_input_kernel<scalar_t, index_t, decltype(channels_last)::value>
        <<<blocks_for(count, kThreads), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
            pass.dst.mutable_data_ptr<scalar_t>(),
            pass.src.const_data_ptr<scalar_t>(),
            pass.weight.const_data_ptr<scalar_t>(),
            static_cast<index_t>(count),
            p);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

// Either of grad_weight and grad_bias may be undefined.
template <typename scalar_t>
void launch_grad_weight(const BackwardPass& pass, const Params& p) {
  using acc_t = opmath_type<scalar_t>;
  const Taps wanted{
      pass.grad_weight.defined() ? 0 : p.kernel_size(),
      pass.grad_bias.defined() ? p.kernel_size() + 1 : p.kernel_size()};
  const int64_t chunks = divide_up(p.batch * p.output_height * p.output_width, kPixelsPerChunk);
  const Tensor partial = at::empty(
      {chunks, p.output_channels(), wanted.size()},
      pass.grad_output.options()
          .dtype(c10::CppTypeToScalarType<acc_t>::value)
          .memory_format(MemoryFormat::Contiguous));
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if (chunks > 0) {
    with_layout(p, [&](auto index, auto channels_last) {
      constexpr bool kChannelsLast = decltype(channels_last)::value;
      const int64_t groups = divide_up(p.output_channels(), kChannelsLast ? kChannelLanes : 1);
      const int64_t blocks = chunks * groups * wanted.size();
      grad_weight_partial_kernel<scalar_t, decltype(index), kChannelsLast>
          <<<blocks_for(blocks, 1), kThreads, 0, stream>>>(
              partial.mutable_data_ptr<acc_t>(),
              pass.grad_output.const_data_ptr<scalar_t>(),
              pass.input.const_data_ptr<scalar_t>(),
              blocks,
              wanted,
              p);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  }
  const int64_t sums = p.output_channels() * wanted.size();
  grad_weight_total_kernel<scalar_t><<<blocks_for(sums, kThreads), kThreads, 0, stream>>>(
      mutable_pointer_or_null<scalar_t>(pass.grad_weight),
      mutable_pointer_or_null<scalar_t>(pass.grad_bias),
      partial.const_data_ptr<acc_t>(),
      chunks,
      p.output_channels(),
      p.kernel_size(),
      wanted);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// The specialised kernels, in the order in which they are asked: the first that takes a call has it. So those
// of few shapes stand before those of many, which would take theirs as well and be slower.
constexpr ForwardEntry* kForward[] = {
    // In plane order at stride 1.
    fast::columns_forward,
    fast::halves_forward,
    fast::strips_flat_forward,
    fast::strips_forward,
    fast::flat_planes_forward,
    fast::batch_march_forward,
    fast::batch_forward,
    // Those at stride 2 among them.
    fast::bands_forward,
    fast::lanes_planes_forward,
    fast::batch_strided_forward,
    fast::lanes_strided_forward,
    fast::strips_strided_forward,
    fast::patches_forward,
    // In channels-last order.
    fast::few_pixels_forward,
    fast::boxes_forward,
    fast::boxes_strided_forward,
    fast::pixel_rows_forward,
    // In either order, whatever is left of windows of fixed sizes.
    fast::march_forward,
    // Large windows in plane order.
    fast::lanes_forward,
    fast::large_forward,
};

// At stride 2, of whichever gradients are wanted.
constexpr BackwardEntry* kStrided[] = {
    fast::batch_strided_backward,
    fast::lanes_strided_backward,
    fast::strips_strided_backward,
    fast::boxes_strided_backward,
};

// Of few elements at stride 1, with or without grad_input. They stand before the kernels of more elements,
// which take some of their calls too.
constexpr BackwardEntry* kFew[] = {
    fast::few_backward,
    fast::few_pixels_backward,
};

// All gradients in one pass over the tensors.
constexpr BackwardEntry* kAllGradients[] = {
    fast::boxes_backward,
    fast::pixel_rows_backward,
    fast::halves_backward,
    fast::strips_backward,
    fast::flat_planes_backward,
    fast::batch_march_backward,
    fast::batch_backward,
    fast::lanes_planes_backward,
    fast::patches_backward,
};

// grad_input in a pass of its own.
constexpr GradInputEntry* kGradInput[] = {
    fast::halves_grad_input,
    fast::strips_flat_grad_input,
    fast::strips_grad_input,
    fast::flat_planes_grad_input,
    fast::batch_march_grad_input,
    fast::batch_grad_input,
    fast::few_pixels_grad_input,
    fast::pixel_rows_grad_input,
    fast::bands_grad_input,
    fast::lanes_planes_grad_input,
    fast::patches_grad_input,
    fast::boxes_grad_input,
    fast::march_grad_input,
    fast::lanes_grad_input,
    fast::large_grad_input,
};

// The gradients of weight and bias in a pass of their own, some by the kernels of all gradients.
constexpr GradWeightEntry* kGradWeight[] = {
    fast::boxes_backward,
    fast::pixel_rows_backward,
    fast::halves_backward,
    fast::strips_backward,
    fast::flat_planes_backward,
    fast::batch_march_backward,
    fast::batch_backward,
    fast::bands_grad_weight,
    fast::lanes_grad_weight,
    fast::lanes_planes_backward,
    fast::patches_backward,
    fast::march_grad_weight,
    fast::large_grad_weight,
};

// Whether one of the entries took the call.
template <typename Entry, size_t kEntries, typename Pass>
bool takes(Entry* const (&entries)[kEntries], const Pass& pass, const Params& p) {
  return std::any_of(entries, entries + kEntries, [&](Entry* entry) { return entry(pass, p); });
}

void forward_in_order(const ForwardPass& pass, const Params& p) {
  if (takes(kForward, pass, p)) {
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, pass.src.scalar_type(), "depthwise_conv2d_ext", [&] {
        launch_forward<scalar_t>(pass, p);
      });
}

void backward(const BackwardPass& pass, const Params& p);
bool grad_input_apart(const ForwardPass& pass, const Params& p);

// One pass for all that is wanted if there is a kernel for that, else grad_input and the others apart.
void backward_in_order(const BackwardPass& pass, const Params& p) {
  const bool data = pass.grad_input.defined();
  const bool asks_weight = pass.asks_weight();
  if (takes(kStrided, pass, p) || (asks_weight && takes(kFew, pass, p)) ||
      fast::columns_backward(pass, p) || (data && asks_weight && takes(kAllGradients, pass, p))) {
    return;
  }
  const TensorBase none;
  const ForwardPass of_input{pass.grad_input, pass.grad_output, pass.weight, none};
  const BackwardPass of_weight{
      none, pass.grad_weight, pass.grad_bias, pass.grad_output, pass.input, pass.weight};
  const bool wants_input =
      data && !takes(kGradInput, of_input, p) && !grad_input_apart(of_input, p);
  const bool wants_weight = asks_weight && !takes(kGradWeight, of_weight, p);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, pass.input.scalar_type(), "depthwise_conv2d_ext_backward", [&] {
        if (wants_input) {
          launch_grad_input<scalar_t>(of_input, p);
        }
        if (wants_weight) {
          launch_grad_weight<scalar_t>(of_weight, p);
        }
      });
}

// Several outputs of a channel, as if each were of a channel of its own; what reaches the channel is then
// added up. It moves more memory than the generic kernel, but that one is bound by its taps (32@56 k3 at stride 2
// with two outputs, 64 images, 295 us and 52). In 16 bit what is added up would be rounded first.
bool grad_input_apart(const ForwardPass& pass, const Params& p) {
  constexpr int64_t kLeastElements = 1 << 16; // with fewer, three kernels are no faster than one
  if (p.multiplier == 1 || pass.dst.scalar_type() != kFloat || pass.dst.numel() < kLeastElements) {
    return false;
  }
  Params apart = p;
  apart.channels = p.output_channels();
  apart.multiplier = 1;
  const Tensor each = at::empty(
      {p.batch, apart.channels, p.input_height, p.input_width},
      pass.dst.options().memory_format(
          p.channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous));
  const TensorBase none;
  const TensorBase& input = each; // which is not read
  backward({each, none, none, pass.src, input, pass.weight}, apart);
  Tensor sum(pass.dst);
  at::sum_out(
      sum, each.view({p.batch, p.channels, p.multiplier, p.input_height, p.input_width}), {2});
  return true;
}

// Calls in channels-last order whose kernels are in plane order, between copies: large windows, and several
// outputs of a channel, of which only rows of pixels take some in that order.
bool by_planes(const Params& p, ScalarType type) {
  const bool marches = fast::with_window(p, [](auto) { return true; });
  const bool unit = p.stride_height == 1 && p.stride_width == 1 && p.dilation_height == 1 &&
      p.dilation_width == 1;
  const bool large =
      type != kDouble && !marches && unit && p.kernel_size() >= fast::kLeastLargeTaps;
  const bool bands = (type == kHalf || type == kBFloat16) && p.kernel_height >= fast::kLargeWindow;
  return p.channels_last && (p.multiplier > 1 || large || bands);
}

Params planes_of(const Params& p) {
  Params planes = p;
  planes.channels_last = false;
  return planes;
}

void forward_cuda(
    const TensorBase& output,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const Params& p) {
  const ForwardPass pass{output, input, weight, bias};
  if (!by_planes(p, input.scalar_type())) {
    forward_in_order(pass, p);
  } else if (!fast::pixel_rows_forward(pass, p)) {
    const TensorBase dst = fast::empty_planes(output);
    const TensorBase src = fast::in_planes(input);
    forward_in_order({dst, src, weight, bias}, planes_of(p));
    fast::copy_planes(output, dst);
  }
}

void backward(const BackwardPass& pass, const Params& p) {
  if (!by_planes(p, pass.input.scalar_type())) {
    backward_in_order(pass, p);
    return;
  }
  const TensorBase none;
  const ForwardPass of_input{pass.grad_input, pass.grad_output, pass.weight, none};
  const BackwardPass of_weight{
      none, pass.grad_weight, pass.grad_bias, pass.grad_output, pass.input, pass.weight};
  const bool wants_input = pass.grad_input.defined() && !fast::pixel_rows_grad_input(of_input, p) &&
      !grad_input_apart(of_input, p);
  const bool wants_weight = pass.asks_weight() && !fast::pixel_rows_backward(of_weight, p);
  if (!wants_input && !wants_weight) {
    return;
  }
  const TensorBase written = wants_input ? fast::empty_planes(pass.grad_input) : none;
  const TensorBase grads = fast::in_planes(pass.grad_output);
  // Of grad_input alone the input is not read.
  const TensorBase inputs = wants_weight ? fast::in_planes(pass.input) : written;
  backward_in_order(
      {written,
       wants_weight ? pass.grad_weight : none,
       wants_weight ? pass.grad_bias : none,
       grads,
       inputs,
       pass.weight},
      planes_of(p));
  if (wants_input) {
    fast::copy_planes(pass.grad_input, written);
  }
}

void backward_cuda(
    const TensorBase& grad_input,
    const TensorBase& grad_weight,
    const TensorBase& grad_bias,
    const TensorBase& grad_output,
    const TensorBase& input,
    const TensorBase& weight,
    const Params& p) {
  backward({grad_input, grad_weight, grad_bias, grad_output, input, weight}, p);
}

} // namespace

REGISTER_DISPATCH(depthwise_conv2d_ext_stub, &forward_cuda)
REGISTER_DISPATCH(depthwise_conv2d_ext_backward_stub, &backward_cuda)

} // namespace at::native
