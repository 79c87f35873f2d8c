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

template <typename scalar_t_, int kWindow_, int kChannelBytes_>
struct PixelBatchTraits {
  using scalar_t = scalar_t_;
  using Taps = PaddedTaps<kWindow_>;
  static constexpr int kWindow = kWindow_;
  static constexpr int kTapRows = kWindow;
  static constexpr int kChannelBytes = kChannelBytes_; // of a block
  static constexpr int kChannels = kChannelBytes / 2;
  static constexpr int kWarps = kChannelBytes / kQuadBytes;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kWarpsResident = 8; // of a multiprocessor, as registers allow
  static constexpr int kBlocks = kWarpsResident / kWarps;
  static constexpr int kAsker = kWarpSize; // the thread that asks for boxes; thread 0 sends others
  // A round of the march is kTapRows rows, all unrolled, in two parts, after each of which the warps meet: a
  // stage of the ring is the rows of a part.
  static constexpr int kFirstRows = (kTapRows + 1) / 2;
  static constexpr int kHead = 1024; // of shared memory, where a swizzle of any size may begin
  // Of taps, as words that a thread loads.
  static constexpr int kTapWords = kChannels * kWindow * kWindow / 2;
  static constexpr int kThreadWords = (kTapWords + kThreads - 1) / kThreads;
  static constexpr int kResultBytes = kMatrixRows * kSegment * kChannelBytes; // of a row
  // Before the first results padded taps lie there.
  static constexpr int kResultsBytes = kTapRows * kResultBytes;
  static_assert(kHead >= kRingHead && kHead % kBoxBytes == 0);
  static_assert(kChannels * Taps::kChannelBytes <= kResultsBytes);
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

  // Adds a row of src. The row of dst that begins with it has slot kSlot.
  template <int kSlot>
  __device__ __forceinline__ void multiply(const Fragments& row) {
#pragma unroll
    for (int kh = kTapRows - 1; kh >= 0; --kh) {
#pragma unroll
      for (int c = 0; c < kQuad; ++c) {
        float (&sum)[4] = sums[(kSlot + kTapRows - kh) % kTapRows][c];
        if (kh == 0) {
          sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        }
        const uint32_t (&a)[4] = row.words[c];
        multiply_16<scalar_t>(sum, a[0], a[1], a[2], a[3], bands[c][kh][0], bands[c][kh][1]);
      }
    }
  }

  // The row of dst that ended with the row of src of slot kSlot.
  template <int kSlot>
  __device__ __forceinline__ void pack(Words& words) const {
    constexpr int kDone = (kSlot + 1) % kTapRows;
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
};

// What is asked for next, as BoxFeed has it, and whether it is the second part of a round.
struct PixelFeed {
  int32_t row;
  int32_t rows;
  int32_t image;
  int32_t second;
  BoxRuns runs;
};
static_assert(sizeof(PixelFeed) <= kFeedBytes);

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
  constexpr int kChannels = Traits::kChannels;
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

// Steps kFirst to kLast of a round, until one says that it was the last; whether none did.
template <int kFirst, int kLast, typename Step>
__device__ __forceinline__ bool take_steps(const Step& step) {
  if constexpr (kFirst < kLast) {
    return step(std::integral_constant<int, kFirst>()) && take_steps<kFirst + 1, kLast>(step);
  } else {
    return true;
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
  using Taps = typename Traits::Taps;
  constexpr int kTapRows = Traits::kTapRows;
  constexpr int kFirstRows = Traits::kFirstRows;
  constexpr int kChannelBytes = Traits::kChannelBytes;
  constexpr int kChannels = Traits::kChannels;
  extern __shared__ __align__(Traits::kHead) char shared_boxes[];
  char* const results = shared_boxes + Traits::kHead;
  BoxRing ring(
      shared_boxes + Traits::kHead - kRingHead, b.stages, b.stage_bytes, 1, Traits::kAsker);
  ring.boxes = results + Traits::kResultsBytes;
  PixelFeed& shared_feed = *reinterpret_cast<PixelFeed*>(shared_boxes);

  const int block_channel = blockIdx.x * kChannels;
  const int block_column = blockIdx.y * b.stretch;
  const int channels = min(kChannels, p.channels - block_channel);

  // Rows of src that a run takes. Those below the image come as zeros, and end its last rows.
  const auto rows_of = [&](const BoxRun& run) {
    SrcRows rows(run, kTapRows, 1, p.padding_height, 1, p.src_height);
    rows.end = run.last_row + kTapRows - 1;
    return rows;
  };
  // By one thread, into a stage that all have read.
  const auto fill_next = [&](PixelFeed& feed) {
    if (feed.rows <= 0) {
      if (!feed.runs.more()) {
        feed.image = -1;
        return;
      }
      const BoxRun run = feed.runs.next(b, 1);
      const SrcRows rows = rows_of(run);
      feed.image = run.image;
      feed.row = rows.top + rows.begin;
      feed.rows = rows.end - rows.begin;
      feed.second = 0;
    }
    const int count = min(feed.second ? kTapRows - kFirstRows : kFirstRows, feed.rows);
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
    feed.second ^= 1;
  };
  // Taps as words of two; they travel while the boxes are asked for.
  uint32_t words[Traits::kThreadWords];
#pragma unroll
  for (int i = 0; i < Traits::kThreadWords; ++i) {
    const int word = i * Traits::kThreads + threadIdx.x;
    words[i] = word < channels * Taps::kTaps / 2
        ? __ldg(reinterpret_cast<const uint32_t*>(weight + block_channel * Taps::kTaps) + word)
        : 0;
  }
  if (threadIdx.x == Traits::kAsker) {
    PixelFeed feed{0, 0, 0, 0, pixel_runs(b, blockIdx.z)};
#pragma unroll 1
    for (int i = 0; i < b.stages && feed.image >= 0; ++i) {
      fill_next(feed);
    }
    shared_feed = feed;
  }
  // Padded taps lie where results will.
  unsigned short* const padded = reinterpret_cast<unsigned short*>(results);
#pragma unroll 1
  for (int i = threadIdx.x * kBlockBytes; i < kChannels * Taps::kChannelBytes;
       i += Traits::kThreads * kBlockBytes) {
    *reinterpret_cast<uint4*>(results + i) = make_uint4(0, 0, 0, 0);
  }
  // The same for all lanes, as the compiler sees from this.
  const int quad = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int channel = block_channel + quad * kQuad;
  const Lane at;
  March march;
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    march.begin[c] =
        bias && channel + c < p.channels ? static_cast<float>(bias[channel + c]) : 0.0f;
  }
  const typename Fragments::Places places(b, quad, at);
  // Where the lane's results lie in a row of results. Matrix rows of no segment are the first segment's, and
  // write what that does; the last of a lane's eight columns is the next segment's.
  char* result_place[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SegmentPlace segment(at.row + half * kOctet, b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pixel = (segment.image * b.segments + segment.segment) * kSegment + 2 * at.pair + i;
      result_place[half][i] = results + swizzled<kChannelBytes>(pixel, quad * kQuadBytes);
    }
  }
  const bool has_odd = 2 * at.pair + 1 < kSegment;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Traits::kThreadWords; ++i) {
    Taps::put(padded, 2 * (i * Traits::kThreads + threadIdx.x), words[i], channels, p.flip);
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    Taps::read(march.bands[c], padded + (quad * kQuad + c) * Taps::kChannel, at);
  }
  __syncthreads();

  uint32_t seen[2] = {};
#pragma unroll 1
  for (BoxRuns runs = pixel_runs(b, blockIdx.z); runs.more();) {
    const BoxRun run = runs.next(b, 1);
    const SrcRows rows = rows_of(run);
    march.restart();
    Fragments row;
    typename Fragments::Raw raw;
    const char* next = ring.wait();
    raw.load(next, places);
    row.arrange(raw);
    int i = rows.begin;

    // Row `kAt` of a round; whether the run goes on. The next row is read while this one is multiplied.
    const auto step = [&](auto of_round) {
      constexpr int kAt = decltype(of_round)::value;
      const bool goes_on = i + 1 < rows.end;
      if (kAt + 1 == kFirstRows || kAt + 1 == kTapRows) {
        if (goes_on) {
          ring.advance(ring.used, ring.used_parity);
          next = ring.wait();
        }
      } else {
        next += b.slot_bytes;
      }
      raw.load(next, places);
      march.template multiply<kAt>(row);
      typename March::Words words;
      march.template pack<kAt>(words);
      row.arrange(raw);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          look_at<scalar_t>(seen[0], words[half][j].x);
          look_at<scalar_t>(seen[1], words[half][j].y);
          if (j == 0 || has_odd) {
            *reinterpret_cast<uint2*>(result_place[half][j] + kAt * Traits::kResultBytes) =
                words[half][j];
          }
        }
      }
      ++i;
      return goes_on;
    };
    // The warps meet after the part of a round that begins with row `first`.
    const auto meet = [&](int first, int count) {
      fence_for_copies();
      if (threadIdx.x == 0) {
        wait_until_sent(); // what the next part's results will be written over
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        const int first_row = i - count - (kTapRows - 1); // of dst
#pragma unroll 1
        for (int j = max(0, run.first_row - first_row); j < count; ++j) {
          store_box(
              dst_map,
              results + (first + j) * Traits::kResultBytes,
              block_channel,
              block_column,
              first_row + j,
              run.image);
        }
      }
      if (threadIdx.x == Traits::kAsker) {
        PixelFeed feed = shared_feed;
        if (feed.image >= 0) {
          fill_next(feed);
          shared_feed = feed;
        }
      }
    };
    const int of_first = i;
#pragma unroll 1
    while (true) {
      if (!take_steps<0, kFirstRows>(step)) {
        break;
      }
      meet(0, kFirstRows);
      if (!take_steps<kFirstRows, kTapRows>(step)) {
        break;
      }
      meet(kFirstRows, kTapRows - kFirstRows);
    }
    const int in_round = (i - of_first - 1) % kTapRows + 1; // rows
    if (in_round > kFirstRows) {
      meet(kFirstRows, in_round - kFirstRows);
    } else {
      meet(0, in_round);
    }
    ring.advance(ring.used, ring.used_parity);
    const bool spoilt = (seen[0] | seen[1]) != 0;
    if (threadIdx.x == 0) {
      wait_until_sent(); // what the next run's results will be written over
    }
    if (__syncthreads_or(spoilt)) {
      if (threadIdx.x == 0) {
        wait_until_stored();
      }
      __syncthreads();
      retake_pixels<Traits>(
          dst, src, weight, bias, p, run, b.images, block_channel, block_column, b.stretch);
      seen[0] = seen[1] = 0;
    }
  }
#endif
}

template <typename Traits>
bool launch_pixel_batch(const ForwardPass& pass, const UnitStridePass& p) {
  using scalar_t = typename Traits::scalar_t;
  const auto kernel = pixel_batch_kernel<Traits>;
  static const bool compiled = compiled_for_boxes(kernel);
  PixelBatchPlan plan{};
  if (!compiled || !plan_pixel_batch(plan, p, Traits::kChannelBytes, Traits::kFirstRows)) {
    return false;
  }
  constexpr int64_t kMostBytes = 224 * 1024; // of a multiprocessor
  constexpr int64_t kRest = Traits::kHead + Traits::kResultsBytes;
  plan.stages = std::clamp<int64_t>(
      (kMostBytes / Traits::kBlocks - kRest) / plan.stage_bytes, 2, kMostStages);
  const int64_t shared = kRest + plan.stages * plan.stage_bytes;
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
    if (p.kernel_height != p.kernel_width) {
      return false;
    }
    switch (p.kernel_height) {
      case 5:
        return launch_pixel_batch<PixelBatchTraits<scalar_t, 5, kBytes>>(pass, p);
      case 7:
        return launch_pixel_batch<PixelBatchTraits<scalar_t, 7, kBytes>>(pass, p);
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
