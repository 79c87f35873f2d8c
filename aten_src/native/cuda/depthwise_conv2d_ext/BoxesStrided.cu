// Forward of depthwise_conv2d_ext at stride 2 in channels-last order out of boxes
// (BoxesStrided.cuh).
//
// A stage of the ring is a pair of rows of the input, with what the window reaches beside a stretch of
// columns. A thread scatters its columns of both into the rows of the output that they belong to, whose
// sums are in registers, as its taps are. Where taps are not finite, a block goes tap by tap.
//
// Microseconds of an H200 (a copy of what is moved), before by marches and now, 128 images, float32 and
// float16: 96@112 k3 217, 191 (183); 133, 102 (92). 144@56 k5 112, 85 (69); 83, 55 (34). 672@14 k5 36,
// 31 (20); 33, 23 (10).
#include <ATen/native/cuda/depthwise_conv2d_ext/BoxesStrided.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void boxes_strided_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ CUtensorMap map,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ StridedBoxes p,
    const __grid_constant__ BoxPlan b) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kSlots = Traits::kSlots;
  constexpr int kTile = Traits::kTile;
  constexpr int kVector = Traits::kVector;
  constexpr int kTaps = Traits::kTaps;
  extern __shared__ __align__(kBoxBytes) char shared_boxes[];
  BoxRing ring(shared_boxes, b.stages, p.stage_bytes);
  auto* const shared_taps = reinterpret_cast<scalar_t*>(ring.boxes + b.stages * p.stage_bytes);
  const BoxPlace place(b);
  const BoxThread<Traits> thread(b, place, p.channels);
  const int block_channels = b.lanes * kVector;
  const int have = min(block_channels, p.channels - thread.block_channel);
  __shared__ StageAsker<Traits> asker;
  if (threadIdx.x == 0) {
    prefetch_map(map);
    ThreadTaps<Traits>::ask(ring, shared_taps, weight, thread.block_channel, have);
    asker.begin(b, place);
    for (int i = 0; i < b.stages - 1; ++i) {
      asker.ask(ring, b, place, p, map, map);
    }
  }
  float begin[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    begin[v] =
        bias && thread.channel < p.channels ? static_cast<float>(bias[thread.channel + v]) : 0.0f;
  }
  __syncthreads();
  ThreadTaps<Traits> taps;
  if (!taps.read(ring, shared_taps, nullptr, thread, have, b.lanes)) {
    if (threadIdx.x == 0) {
      ring.drain();
    }
#pragma unroll 1
    for (BoxRuns runs(b, place); thread.works && runs.more();) {
      const BoxRun run = runs.next(b, 1);
      const int n = run.image + thread.image;
#pragma unroll 1
      for (int i = run.first_row * kTile; n < p.batch && i < run.last_row * kTile; ++i) {
        const int row = i / kTile;
        const int column = thread.column + i % kTile;
#pragma unroll 1
        for (int v = 0; column < p.small_width && v < kVector; ++v) {
          const int channel = thread.channel + v;
          dst[((n * p.small_height + row) * p.small_width + column) * p.channels + channel] =
              static_cast<scalar_t>(careful_forward(
                  src + n * p.height * p.width * p.channels + channel,
                  weight + channel * kTaps,
                  bias ? static_cast<float>(bias[channel]) : 0.0f,
                  p,
                  row,
                  column,
                  p.channels));
        }
      }
    }
    return;
  }

  const int pixel = b.lanes * Traits::kBytes; // of a box
  const int offset = thread.offset(b, 2 * p.large_columns, Traits::kOwn);
  int turn = threadIdx.x / kWarpSize;
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, 1);
    const int first = first_step<Traits>(run);
    const int end = end_step<Traits>(run);
    const int n = run.image + thread.image;
    const int columns = thread.works && n < p.batch ? p.small_width - thread.column : 0;
    // Of the row that the first step ends.
    scalar_t* to = dst +
        (((n * p.small_height + first - Traits::kBefore) * p.small_width + thread.column) *
             p.channels +
         thread.channel);
    // Row o, counted from the first step's, has its sums in slot o % kSlots.
    float sums[kSlots][kTile][kVector];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sums[s][t][v] = begin[v];
        }
      }
    }
#pragma unroll 1
    for (int base = first; base < end; base += kSlots) {
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
        if (base + u >= end) {
          break;
        }
        const char* const from = ring.wait() + offset;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float values[Traits::kSpan][kVector];
#pragma unroll
          for (int c = 0; c < Traits::kSpan; ++c) {
            read_vector<Traits>(values[c], from + j * p.large_row + c * pixel);
          }
#pragma unroll
          for (int s = 0; s < kSlots; ++s) {
            const int kh = Traits::tap(j, s);
            if (kh < 0 || kh >= Traits::kWindow) {
              continue;
            }
            RowSums<kTile, kVector> row_sums(sums[(u + s) % kSlots], kh >= Traits::kOwnRow);
#pragma unroll
            for (int kw = 0; kw < Traits::kWindow; ++kw) {
              float tap[kVector];
              taps.get(tap, kh * Traits::kWindow + kw);
#pragma unroll
              for (int t = 0; t < kTile; ++t) {
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                  row_sums.add(kw, t, v, values[2 * t + kw][v], tap[v]);
                }
              }
            }
            row_sums.finish();
          }
        }
        asker.release(ring, turn, b, place, p, map, map);
        // The row that no later step belongs to.
        const int row = base + u - Traits::kBefore;
        float (&finished)[kTile][kVector] = sums[u % kSlots];
        if (row >= run.first_row) {
          store_columns<Traits>(to, finished, columns, p.channels);
        }
        to += p.small_width * p.channels;
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            finished[t][v] = begin[v];
          }
        }
      }
    }
  }
#endif
}

#endif

} // namespace

bool boxes_strided_forward(const ForwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  // Of less the march is faster by 3 x 3: 8@224 fp16 of 64 images 34 us, by boxes 47; 24@112 27 and 29.
  const int64_t least_bytes = p.kernel_width == 3 ? 64 : 32;
  if (!boxes_strided_apply(p, least_bytes, pass.weight, {&pass.dst, &pass.src})) {
    return false;
  }
  return with_traits<false, false>(p, pass.src.type(), [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    constexpr auto kernel = boxes_strided_kernel<Traits>;
    StridedLaunch launch;
    CUtensorMap map;
    if (!plan_strided<Traits, kernel>(launch, p)) {
      return false;
    }
    const BoxPlan& b = launch.plan;
    if (!map_boxes(
            map, pass.src, b.lanes * Traits::kVector, launch.boxes.large_columns, 2, b.images)) {
      return false;
    }
    launch_kernel(
        kernel,
        launch.blocks,
        b.threads,
        launch.shared,
        pass.dst.mutable_data_ptr<scalar_t>(),
        map,
        pass.src.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.bias),
        launch.boxes,
        b);
    return true;
  });
#else
  return false;
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
