// Forward of depthwise_conv2d_ext at stride 1 in channels-last order where channels are no whole vectors, or
// where an input channel has several output channels; and grad_input, which is the forward on grad_output
// with the taps flipped and the padding mirrored, and adds up several channels of grad_output.
//
// Rows come as PixelRows.cuh has it. A thread owns a channel of dst and some columns, keeps
// its taps in registers and marches down the rows (RowMarch.cuh). Results leave element by
// element, of neighbouring lanes side by side.
//
// Rows outside the image are never asked for. Columns outside it are zeros that are multiplied by taps, which
// is the same only for finite taps: a block that has others takes its results tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/PixelRows.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/RowMarch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// kSources: src channels that a dst channel adds up.
template <typename scalar_t_, typename Window, int kTile_, int kMostThreads_, int kSources_>
struct PixelRowsTraits : RowMarchTraits<scalar_t_, Window, 1, kTile_, kSources_> {
  using scalar_t = scalar_t_;
  static constexpr int kMostThreads = kMostThreads_; // that compute
  static constexpr int kThreads = kMostThreads + kWarpSize;
  static constexpr int kBlocks = 2; // a multiprocessor, for which registers are bounded
};

// Asks for all rows of a block's share; by a warp.
template <typename Traits>
__device__ __forceinline__ void ask_rows(
    BoxRing ring,
    const BoxPlace& place,
    const UnitStridePass& p,
    const PixelPlan& b,
    const PixelSource& source,
    const PixelReach<typename Traits::scalar_t>& reach) {
  const int runs_of_row = reach.runs();
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
    const SrcRows rows(run, Traits::kHeight, 1, p.padding_height, p.dilation_height, p.src_height);
#pragma unroll 1
    for (int first = rows.begin; first < rows.end; first += b.box_rows) {
      fill_stage(ring, [&](const auto& function) {
        const int all = min(b.box_rows, rows.end - first) * runs_of_row;
#pragma unroll 1
        for (int i = threadIdx.x % kWarpSize; i < all; i += kWarpSize) {
          const int row = i / runs_of_row;
          const int h = rows.top + (first + row) * p.dilation_height;
          function(reach, source, row * b.row_bytes, run.image, h, i - row * runs_of_row);
        }
      });
    }
  }
}

// One result, tap by tap, of taps inside the image only.
template <typename Traits>
__device__ __noinline__ typename Traits::scalar_t careful_pixel(
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    float sum,
    UnitStridePass p,
    const PixelPlan& b,
    int src_channels,
    int image,
    int row,
    int column,
    int channel) {
  p.channels = src_channels; // from a pixel to the next
  src += image * p.src_height * p.src_width * src_channels;
  for (int i = 0; i < Traits::kSources; ++i) {
    sum = careful_output<true>(
        src + channel * b.per_result / b.per_source + i,
        weight + (channel * Traits::kSources + i) * Traits::kTaps,
        sum,
        p,
        row,
        column);
  }
  return static_cast<typename Traits::scalar_t>(sum);
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void pixel_rows_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ PixelPlan b,
    const __grid_constant__ PixelSource source) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kWidth = Traits::kWidth;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kSources = Traits::kSources;
  extern __shared__ __align__(kBoxBytes) char shared_rows[];
  const BoxPlace place(b);
  const PixelPlace mine(b, place.group, kTile, p.dilation_width);
  const int computing = blockDim.x - kWarpSize;
  BoxRing ring(shared_rows, b.stages, b.stage_bytes, computing / kWarpSize);
  clear_slot_heads(ring, b, 0);
  const int first_channel = place.group * b.lanes;
  const auto source_channel = [&](int channel) {
    return channel * kSources / b.per_source;
  };
  const int block_sources = min(first_channel + b.lanes, p.channels) - first_channel;
  const PixelReach<scalar_t> reach(
      src,
      source,
      place.stretch * b.stretch - p.padding_width,
      b.stretch + (kWidth - 1) * p.dilation_width,
      source_channel(first_channel),
      b.whole() ? 0
                : source_channel(first_channel + block_sources - 1) + kSources -
              source_channel(first_channel));
  const int column = place.stretch * b.stretch + mine.column;
  const bool works = mine.computes && mine.channel < p.channels;

  float taps[kSources][kTaps][1];
  float begin[1] = {0.0f};
  bool finite = true;
#pragma unroll
  for (int q = 0; q < kSources; ++q) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const int at = (mine.channel * kSources + q) * kTaps + (p.flip ? kTaps - 1 - tap : tap);
      taps[q][tap][0] = works ? static_cast<float>(weight[at]) : 0.0f;
      finite = finite && is_finite(taps[q][tap][0]);
    }
  }
  if (bias && works) {
    begin[0] = static_cast<float>(bias[mine.channel]);
  }
  const bool careful = __syncthreads_or(!finite); // the ring is there for all

  if (careful) {
#pragma unroll 1
    for (BoxRuns runs(b, place); works && runs.more();) {
      const BoxRun run = runs.next(b, p.dilation_height);
#pragma unroll 1
      for (int i = run.first_row * kTile; i < run.last_row * kTile; ++i) {
        const int row = run.row_phase + i / kTile * p.dilation_height;
        const int w = column + i % kTile * p.dilation_width;
        if (w < p.dst_width) {
          dst[((run.image * p.dst_height + row) * p.dst_width + w) * p.channels + mine.channel] =
              careful_pixel<Traits>(
                  src, weight, begin[0], p, b, source.channels, run.image, row, w, mine.channel);
        }
      }
    }
    return;
  }
  if (static_cast<int>(threadIdx.x) >= computing) {
    ask_rows<Traits>(ring, place, p, b, source, reach);
    return;
  }

  int offsets[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int w = column - p.padding_width + c * p.dilation_width;
    offsets[c] = works ? reach.offset(source, w, source_channel(mine.channel)) : -kZeroBytes;
  }
  const uint32_t src_step = // of the places where rows begin, in elements
      static_cast<uint32_t>(p.dilation_height * source.width) * source.channels;
  int64_t column_step = static_cast<int64_t>(p.dilation_width) * p.channels;
  int64_t row_step = static_cast<int64_t>(p.dilation_height) * p.dst_width * p.channels;
  keep(column_step);
  keep(row_step);
  int columns = 0; // inside the image
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    columns += works && column + t * p.dilation_width < p.dst_width;
  }
  keep(columns);

#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
    const SrcRows rows(run, kHeight, 1, p.padding_height, p.dilation_height, p.src_height);
    scalar_t* to = dst +
        (((run.image * p.dst_height + run.row_phase + run.first_row * p.dilation_height) *
              p.dst_width +
          column) *
             p.channels +
         mine.channel);
    const auto store_row = [&](const float (&row)[kTile][1], int) {
      scalar_t* at = to;
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        store_vector_if(t < columns, at, row[t]);
        at += column_step;
      }
      to += row_step;
    };
    RowMarch<Traits> march(begin);
    uint32_t first = reach.first(source, run.image, rows.top + rows.begin * p.dilation_height);
    int i = rows.begin;
#pragma unroll 1
    while (i < rows.end) {
      uint32_t slot = shared_address(ring.wait()) + kZeroBytes;
      const int next = min(i + b.box_rows, rows.end);
#pragma unroll 1
      for (; i < next; ++i) {
        uint32_t from = slot + reach.lead_of(first);
        keep(from);
        slot += b.row_bytes;
        first += src_step;
        float values[kSources][kColumns][1];
#pragma unroll
        for (int q = 0; q < kSources; ++q) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            values[q][c][0] =
                read_shared<scalar_t>(from + offsets[c] + q * static_cast<int>(sizeof(scalar_t)));
          }
        }
        if (i + 1 == next) {
          ring.release();
        }
        march.template add<true>(i, run.first_row, run.last_row, values, taps, begin, store_row);
      }
    }
    march.finish(rows.end, run.first_row, run.last_row, store_row);
  }
#endif
}

template <typename Traits>
bool launch_pixel_rows(const ForwardPass& pass, const UnitStridePass& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = pixel_rows_kernel<Traits>;
  const PixelRequest request{
      p.batch,
      p.channels,
      p.dst_height,
      p.dst_width,
      Traits::kHeight,
      Traits::kWidth,
      p.dilation_height,
      p.dilation_width,
      Traits::kTile,
      Traits::kMostThreads,
      Traits::kBlocks};
  PixelPlan plan{};
  if (!compiled_for_sm_90<kernel>() || !plan_pixels(plan, request)) {
    return false;
  }
  // Many taps take the march as long where it loads vectors (514@14 k7 45 us, 53 here by groups).
  if (!plan.whole() && Traits::kTaps > 9 && p.channels % 2 == 0) {
    return false;
  }
  plan.per_result = Traits::kSources;
  plan.per_source = p.multiplier;
  const PixelSource source = pixel_source(
      pass.src,
      plan.stretch + (Traits::kWidth - 1) * p.dilation_width,
      divide_up(plan.lanes * Traits::kSources, p.multiplier) + 1,
      plan.whole());
  constexpr int64_t kRingBytes = 100 * 1024; // of a multiprocessor
  plan_pixel_ring(plan, source.slot_bytes, kRingBytes);
  const int64_t shared = kRingHead + plan.stages * plan.stage_bytes;
  if (!has_shared(shared)) {
    return false;
  }
  const auto grid = static_cast<unsigned int>(
      plan_box_shares(plan, resident_blocks(kernel, plan.threads, shared), Traits::kHeight - 1));
  launch_kernel(
      kernel,
      grid,
      plan.threads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      plan,
      source);
  return true;
}

template <typename scalar_t, typename Window, int kSources>
bool launch_window(const ForwardPass& pass, const UnitStridePass& p) {
  // Wider tiles read less, but their lanes meet in banks of shared memory: 33@128x513 k3 in half 66 us by
  // tiles of eight columns, 55 by four.
  constexpr int kTile = Window::kHeight == 1 ? 8 : 4;
  constexpr int kMostThreads = Window::kHeight > 5 ? 224 : 352;
  return launch_pixel_rows<PixelRowsTraits<scalar_t, Window, kTile, kMostThreads, kSources>>(
      pass, p);
}

// `sources`: src channels that a dst channel adds up.
bool pixel_rows_pass(
    const ForwardPass& pass,
    const Params& window,
    const UnitStridePass& p,
    int64_t sources) {
  // As of boxes: each row of results is reached by a row of src.
  if (p.padding_height < 0 || p.padding_height > p.dilation_height * (p.kernel_height - 1) ||
      p.dilation_height > p.src_height || !begins_a_run(pass.src) || !device_has_boxes()) {
    return false;
  }
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_window(window, [&](auto fixed) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(fixed);
      if constexpr (Fixed::kStride > 1) {
        return false;
      } else if constexpr (Fixed::kHeight == 3) {
        return sources == 2 ? launch_window<scalar_t, Fixed, 2>(pass, p)
                            : launch_window<scalar_t, Fixed, 1>(pass, p);
      } else {
        return sources == 1 && launch_window<scalar_t, Fixed, 1>(pass, p);
      }
    });
  });
}

} // namespace

bool pixel_rows_forward(const ForwardPass& pass, const Params& p) {
  constexpr int64_t kMostSources = 2;
  if (!pixel_rows_take(p, pass.src) || (pass.grad_input && p.multiplier > kMostSources)) {
    return false;
  }
  UnitStridePass unit = unit_stride_pass(p, pass.grad_input);
  if (pass.grad_input) {
    unit.channels = p.channels;
    unit.multiplier = 1;
  }
  return pixel_rows_pass(pass, p, unit, pass.grad_input ? p.multiplier : 1);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
