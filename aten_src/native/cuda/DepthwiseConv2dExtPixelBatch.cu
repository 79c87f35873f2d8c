// Forward of depthwise_conv2d_ext in channels-last order at stride 1 in float16 and bfloat16, on the tensor
// cores, with segments of rows as rows of matrices (DepthwiseConv2dExtPixelBatch.cuh), and grad_input, which
// is the forward on grad_output with flipped taps.
//
// A warp has four channels of 16 segments and marches down the rows: a row of src is one left matrix a
// channel, and adds to the kTapRows rows of dst that it meets, whose sums are in registers. So each row is
// read once, and its products do not wait for one another. The warps of a block share boxes of src and
// of results, both rings of rows in shared memory, and meet once a row; blocks side by side on a
// multiprocessor fill what the meeting leaves idle.
//
// Rows outside the image are never asked for. Columns outside it are zeros that are multiplied: after each run
// of rows, results that are NaN are taken again, tap by tap.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/DepthwiseConv2dExtPixelBatch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

template <typename scalar_t_, int kWindow_, int kChannelBytes_, int kRows_>
struct PixelBatchTraits {
  using scalar_t = scalar_t_;
  using Taps = PaddedTaps<kWindow_>;
  static constexpr int kWindow = kWindow_;
  static constexpr int kTapRows = kWindow;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kRows = kRows_; // of a stage, after which the warps meet
  static constexpr int kChannelBytes = kChannelBytes_; // of a block
  static constexpr int kWarps = kChannelBytes / kQuadBytes;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kWarpsResident = 8; // of a multiprocessor, as registers allow
  static constexpr int kBlocks = kWarpsResident / kWarps;
  static constexpr int kAsker = kWarpSize; // the thread that asks for boxes; thread 0 sends others
  static constexpr int kResults =
      2 * kRows; // rows of results: some are written, others on their way out
  static constexpr int kHead = 1024; // of shared memory, where a swizzle of any size may begin
  static_assert(kHead >= kRingHead && kHead % kBoxBytes == 0);
};

// Sums of the rows of dst under way, and what they are made of.
template <typename Traits>
struct PixelMarch {
  using scalar_t = typename Traits::scalar_t;
  using Fragments = PixelFragments<Traits::kChannelBytes>;
  static constexpr int kTapRows = Traits::kTapRows;
  using Words = uint2[2][2]; // packed results: [segment and the eighth after it][column, next]

  uint32_t bands[kQuad][kTapRows][2];
  float begin[kQuad];
  float sums[kTapRows][kQuad][4];

  __device__ __forceinline__ void restart() {
#pragma unroll
    for (int row = 0; row < kTapRows; ++row) {
#pragma unroll
      for (int c = 0; c < kQuad; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[row][c][i] = 0.0f;
        }
      }
    }
  }

  // The row of dst that begins with this row of src has slot kSlot; that which ends with it the next.
  template <int kSlot>
  __device__ __forceinline__ void step(Words& words, const Fragments& row, bool inside) {
    constexpr int kDone = (kSlot + 1) % kTapRows;
    if (inside) {
#pragma unroll
      for (int kh = kTapRows - 1; kh >= 0; --kh) {
        constexpr int kBefore = kSlot + kTapRows;
#pragma unroll
        for (int c = 0; c < kQuad; ++c) {
          float (&sum)[4] = sums[(kBefore - kh) % kTapRows][c];
          if (kh == 0) {
            sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
          }
          const uint32_t (&a)[4] = row.words[c];
          multiply_16<scalar_t>(sum, a[0], a[1], a[2], a[3], bands[c][kh][0], bands[c][kh][1]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto result = [&](int c) {
          return sums[kDone][c][2 * half + i] + begin[c];
        };
        words[half][i].x = pack_two<scalar_t>(result(0), result(1));
        words[half][i].y = pack_two<scalar_t>(result(2), result(3));
      }
    }
  }

  // The same for a slot that changes from row to row: which registers a slot has must be known.
  __device__ __forceinline__ void step_of(
      int slot,
      Words& words,
      const Fragments& row,
      bool inside) {
    static_assert(kTapRows == 5 || kTapRows == 7);
    switch (slot) {
      case 0:
        return step<0>(words, row, inside);
      case 1:
        return step<1>(words, row, inside);
      case 2:
        return step<2>(words, row, inside);
      case 3:
        return step<3>(words, row, inside);
      case 4:
        return step<4>(words, row, inside);
      case 5:
        return step<5 % kTapRows>(words, row, inside);
      default:
        return step<6 % kTapRows>(words, row, inside);
    }
  }
};

// Whether either of two packed values is NaN or infinite stays in `seen`, as NaN.
template <typename scalar_t>
__device__ __forceinline__ void look_at(uint32_t& seen, uint32_t word) {
  if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(seen) : "r"(word), "r"(0));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(seen) : "r"(word), "r"(0));
  }
}

// A block's results of a run that are NaN again, tap by tap. By all threads, after thread 0 knows that they
// are in device memory.
template <typename Traits>
__device__ __noinline__ void retake_pixels(
    typename Traits::scalar_t* dst,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    const typename Traits::scalar_t* bias,
    const UnitStridePass& p,
    const BoxRun& run,
    int images,
    int first_channel,
    int first_column,
    int columns) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kChannels = Traits::kChannelBytes / 2;
  const int last_image = min(p.batch, run.image + images);
  const int pixels = (run.last_row - run.first_row) * columns;
#pragma unroll 1
  for (int n = run.image; n < last_image; ++n) {
#pragma unroll 1
    for (int i = threadIdx.x; i < pixels * kChannels; i += Traits::kThreads) {
      const int c = first_channel + i % kChannels;
      const int row = run.first_row + i / kChannels / columns;
      const int w = first_column + i / kChannels % columns;
      if (c >= p.channels || w >= p.dst_width) {
        continue;
      }
      scalar_t* const to = dst + ((n * p.dst_height + row) * p.dst_width + w) * p.channels + c;
      scalar_t result;
      result.x = *reinterpret_cast<volatile unsigned short*>(to);
      if (isnan(static_cast<float>(result))) {
        *to = static_cast<scalar_t>(careful_output<true>(
            src + n * p.src_height * p.src_width * p.channels + c,
            weight + c * p.kernel_height * p.kernel_width,
            bias ? static_cast<float>(bias[c]) : 0.0f,
            p,
            row,
            w));
      }
    }
  }
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void pixel_batch_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ CUtensorMap dst_map,
    const __grid_constant__ CUtensorMap src_map,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ PixelBatchPlan b) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  using March = PixelMarch<Traits>;
  using Fragments = typename March::Fragments;
  constexpr int kTapRows = Traits::kTapRows;
  constexpr int kChannelBytes = Traits::kChannelBytes;
  constexpr int kChannels = kChannelBytes / 2;
  extern __shared__ __align__(Traits::kHead) char shared_boxes[];
  BoxRing ring(
      shared_boxes + Traits::kHead - kRingHead, b.stages, b.stage_bytes, 1, Traits::kAsker);
  char* const results = ring.boxes + b.stages * b.stage_bytes;
  char* const shared_taps = results + b.results_bytes;

  const int block_channel = blockIdx.x * kChannels;
  const int block_column = blockIdx.y * b.stretch;
  // The same for all lanes, as the compiler sees from this.
  const int quad = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int channel = block_channel + quad * kQuad;

  // By one thread, into a stage that all have read.
  const auto fill_next = [&](BoxFeed& feed) {
    if (feed.rows <= 0) {
      if (!feed.runs.more()) {
        feed.image = -1;
        return;
      }
      const BoxRun run = feed.runs.next(b, 1);
      const SrcRows rows(run, kTapRows, 1, p.padding_height, 1, p.src_height);
      feed.image = run.image;
      feed.row = rows.top + rows.begin;
      feed.rows = rows.end - rows.begin;
    }
    const int count = min(Traits::kRows, feed.rows);
    ring.fill(count * b.box_bytes, [&](uint32_t to, uint32_t barrier) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        load_box(
            to + i * b.slot_bytes,
            barrier,
            src_map,
            block_channel,
            block_column - p.padding_width,
            feed.row + i,
            feed.image);
      }
    });
    feed.row += count;
    feed.rows -= count;
  };
  const int channels = min(kChannels, p.channels - block_channel);
  if (threadIdx.x == Traits::kAsker) {
    prefetch_map(src_map);
    const int bytes = channels * Traits::kTaps * 2;
    arrive_and_expect(ring.taps(), bytes);
    load_run(shared_taps, ring.taps(), weight + block_channel * Traits::kTaps, bytes);
    BoxFeed feed{0, 0, 0, pixel_runs(b, blockIdx.z)};
    for (int i = 0; i < b.stages && feed.image >= 0; ++i) {
      fill_next(feed);
    }
    ring.feed() = feed;
    prefetch_map(dst_map);
  }
  // Padded taps lie where results will.
  using Taps = typename Traits::Taps;
  unsigned short* const padded = reinterpret_cast<unsigned short*>(results);
  for (int i = threadIdx.x * kBlockBytes; i < kChannels * Taps::kChannelBytes;
       i += Traits::kThreads * kBlockBytes) {
    *reinterpret_cast<uint4*>(results + i) = make_uint4(0, 0, 0, 0);
  }
  const Lane at;
  March march;
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    march.begin[c] =
        bias && channel + c < p.channels ? static_cast<float>(bias[channel + c]) : 0.0f;
  }
  const typename Fragments::Places places(b, quad, at);
  // Where the lane's results lie in a row of results; negative: they are none.
  int result_place[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SegmentPlace segment(at.row + half * kOctet, b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 2 * at.pair + i;
      const int pixel = (segment.image * b.segments + segment.segment) * kSegment + column;
      result_place[half][i] = segment.exists && column < kSegment
          ? swizzled<kChannelBytes>(pixel, quad * kQuadBytes)
          : -1;
    }
  }
  __syncthreads();
  wait_for(ring.taps(), 0);
  Taps::template fill<Traits::kThreads>(
      padded, reinterpret_cast<const unsigned short*>(shared_taps), channels, p.flip);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    Taps::read(march.bands[c], padded + (quad * kQuad + c) * Taps::kChannel, at);
  }
  __syncthreads();

  Fragments row;
  typename Fragments::Raw raw;
  const char* next = ring.wait(); // row of src
  raw.load(next, places);
  row.arrange(raw);
  uint32_t seen = 0;
  int first_result = 0; // of the stage's results, of all

#pragma unroll 1
  for (BoxRuns runs = pixel_runs(b, blockIdx.z); runs.more();) {
    const BoxRun run = runs.next(b, 1);
    const SrcRows rows(run, kTapRows, 1, p.padding_height, 1, p.src_height);
    const int last = run.last_row + kTapRows - 1;
    march.restart();
    int slot = 0;
    int of_stage = 0;
#pragma unroll 1
    for (int i = rows.begin; i < last; ++i) {
      const bool inside = i < rows.end;
      // The next row is read while this one is multiplied.
      if (i + 1 < rows.end ? of_stage + 1 == Traits::kRows : inside && runs.more()) {
        ring.advance(ring.used, ring.used_parity);
        next = ring.wait();
      } else if (i + 1 < rows.end) {
        next += b.slot_bytes;
      }
      raw.load(next, places);
      typename March::Words words;
      march.step_of(slot, words, row, inside);
      row.arrange(raw);
      if (i - (kTapRows - 1) >= run.first_row) {
        char* const where = results + (first_result + of_stage) * b.result_bytes;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            look_at<scalar_t>(seen, words[half][j].x);
            look_at<scalar_t>(seen, words[half][j].y);
            if (result_place[half][j] >= 0) {
              *reinterpret_cast<uint2*>(where + result_place[half][j]) = words[half][j];
            }
          }
        }
      }
      slot = slot + 1 == kTapRows ? 0 : slot + 1;
      ++of_stage;
      if (of_stage < Traits::kRows && i + 1 < last) {
        continue;
      }
      fence_for_copies();
      if (threadIdx.x == 0) {
        wait_until_sent(); // from where the next stage's results will be written
      }
      __syncthreads();
      if (threadIdx.x == 0) {
#pragma unroll 1
        for (int j = max(0, run.first_row + kTapRows - 1 - (i + 1 - of_stage)); j < of_stage; ++j) {
          store_box(
              dst_map,
              results + (first_result + j) * b.result_bytes,
              block_channel,
              block_column,
              i + 1 - of_stage + j - (kTapRows - 1),
              run.image);
        }
      }
      if (threadIdx.x == Traits::kAsker && i + 1 - of_stage < rows.end) {
        BoxFeed feed = ring.feed();
        if (feed.image >= 0) {
          fill_next(feed);
          ring.feed() = feed;
        }
      }
      first_result = Traits::kRows - first_result;
      of_stage = 0;
    }
    if (__syncthreads_or(seen != 0)) {
      if (threadIdx.x == 0) {
        wait_until_stored();
      }
      __syncthreads();
      retake_pixels<Traits>(
          dst, src, weight, bias, p, run, b.images, block_channel, block_column, b.stretch);
      seen = 0;
    }
  }
  if (threadIdx.x == 0) {
    wait_until_sent();
  }
#endif
}

template <typename Traits>
bool launch_pixel_batch(const ForwardPass& pass, const UnitStridePass& p) {
  using scalar_t = typename Traits::scalar_t;
  const auto kernel = pixel_batch_kernel<Traits>;
  static const bool compiled = compiled_for_boxes(kernel);
  PixelBatchPlan plan{};
  if (!compiled || !plan_pixel_batch(plan, p, Traits::kChannelBytes, Traits::kRows)) {
    return false;
  }
  constexpr int64_t kMostBytes = 224 * 1024; // of a multiprocessor
  const int64_t taps = Traits::kTaps * Traits::kChannelBytes;
  const int64_t results = std::max<int64_t>(
      Traits::kResults * plan.result_bytes,
      Traits::Taps::kChannelBytes * (Traits::kChannelBytes / 2));
  plan.results_bytes = results;
  const int64_t rest = Traits::kHead + results + taps;
  const int64_t of_block = kMostBytes / Traits::kBlocks;
  plan.stages = std::clamp<int64_t>((of_block - rest) / plan.stage_bytes, 2, kMostStages);
  const int64_t shared = rest + plan.stages * plan.stage_bytes;
  CUtensorMap src_map;
  CUtensorMap dst_map;
  if (!has_shared(shared) ||
      !map_pixel_rows<Traits::kChannelBytes>(src_map, pass.src, plan.box_columns, plan.images) ||
      !map_pixel_rows<Traits::kChannelBytes>(dst_map, pass.dst, plan.stretch, plan.images)) {
    return false;
  }
  const int64_t across = int64_t{plan.groups} * plan.stretches;
  const int64_t blocks = plan_box_shares(
      plan, resident_blocks(kernel, Traits::kThreads, shared), Traits::kTapRows - 1);
  if (plan.stretches > kMostGridRows || blocks / across > kMostGridRows) {
    return false;
  }
  const dim3 grid(plan.groups, plan.stretches, blocks / across);
  kernel<<<grid, Traits::kThreads, shared, c10::cuda::getCurrentCUDAStream()>>>(
      pass.dst.mutable_data_ptr<scalar_t>(),
      dst_map,
      src_map,
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      plan);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

bool pixel_batch_pass(const ForwardPass& pass, const Params& params, const UnitStridePass& p) {
  const ScalarType type = pass.src.scalar_type();
  if (!params.channels_last || params.multiplier != 1 || params.stride_height != 1 ||
      params.stride_width != 1 || params.dilation_height != 1 || params.dilation_width != 1 ||
      (type != kHalf && type != kBFloat16) || pass.dst.numel() == 0 || pass.src.numel() == 0 ||
      p.padding_height < 0 || p.padding_height >= p.kernel_height || !march_fits_32_bits(params) ||
      !boxes_take(pass.src) || !boxes_take(pass.dst) ||
      !is_aligned(pass.weight.const_data_ptr(), kBlockBytes) || !device_has_boxes()) {
    return false;
  }
  const auto with_square = [&](auto scalar) {
    using scalar_t = decltype(scalar);
    constexpr int kBytes = 32;
    constexpr int kRows = 4;
    if (p.kernel_height != p.kernel_width) {
      return false;
    }
    switch (p.kernel_height) {
      case 5:
        return launch_pixel_batch<PixelBatchTraits<scalar_t, 5, kBytes, kRows>>(pass, p);
      case 7:
        return launch_pixel_batch<PixelBatchTraits<scalar_t, 7, kBytes, kRows>>(pass, p);
      default:
        return false;
    }
  };
  return type == kHalf ? with_square(c10::Half()) : with_square(c10::BFloat16());
}

#else

bool pixel_batch_pass(const ForwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

} // namespace

bool pixel_batch_forward(const ForwardPass& pass, const Params& p) {
  return pixel_batch_pass(pass, p, unit_stride_forward(p));
}

bool pixel_batch_grad_input(const ForwardPass& pass, const Params& p) {
  return pixel_batch_pass(pass, p, unit_stride_grad_input(p));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
