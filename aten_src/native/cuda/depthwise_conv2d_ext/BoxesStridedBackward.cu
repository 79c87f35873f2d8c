// The gradients of depthwise_conv2d_ext at stride 2 in channels-last order out of boxes
// (BoxesStrided.cuh), all that are wanted in one pass.
//
// It is rows of grad_output that a thread keeps: an element of the input meets the same elements of
// grad_output for the weight's gradient as its own gradient is gathered from. So every row of the three
// tensors is moved once, and what lies beside a stretch is needed of grad_output alone. A stage of the
// ring is a row of grad_output and, for the weight, a pair of rows of the input. What is not wanted is
// left out.
//
// Much of grad_input by 3 x 3, where it is wanted alone, leaves by boxes of two rows, too.
//
// A thread has a sum a tap. A block's are added up in order through shared memory at its end, and
// blocks' by add_partials(). Where taps are not finite, a block takes grad_input tap by tap; one whose
// sums of the weight hold a NaN takes them again so.
//
// Microseconds of an H200 (a copy of what is moved), grad_input, the weight's and all gradients, before
// by marches and now, 128 images, float32: 96@112 k3 257, 209, 465 became 224, 188, 361 (183, 183,
// 330); 144@56 k5 114, 129, 243 97, 89, 157 (69, 69, 124); 672@14 k5 41, 44, 85 29, 41, 58 (20, 20,
// 36). Float16: 144, 150, 292 113, 106, 188 (92, 92, 165); 83, 90, 171 50, 58, 89 (34, 34, 62); 35, 37,
// 71 20, 31, 40 (10, 10, 18).
#include <ATen/native/cuda/depthwise_conv2d_ext/BoxesStrided.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

// Either of grad_input and partial may be null where it is not taken.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void boxes_strided_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    float* __restrict__ partial,
    const __grid_constant__ CUtensorMap grads_map,
    const __grid_constant__ CUtensorMap input_map,
    const __grid_constant__ CUtensorMap result_map,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ StridedBoxes p,
    const __grid_constant__ BoxPlan b) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  using bias_t = typename Traits::bias_t;
  constexpr int kSlots = Traits::kSlots;
  constexpr int kTile = Traits::kTile;
  constexpr int kOwn = Traits::kOwn;
  constexpr int kVector = Traits::kVector;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kMet = Traits::kMet;
  constexpr int kBefore = Traits::kBefore;
  extern __shared__ __align__(kBoxBytes) char shared_boxes[];
  BoxRing ring(shared_boxes, b.stages, p.stage_bytes);
  char* const outs = ring.boxes + b.stages * p.stage_bytes;
  auto* const shared_taps = reinterpret_cast<scalar_t*>(outs + 2 * p.out_bytes);
  const BoxPlace place(b);
  const BoxThread<Traits> thread(b, place, p.channels);
  const int block_channels = b.lanes * kVector;
  const int have = min(block_channels, p.channels - thread.block_channel);
  __shared__ StageAsker<Traits> asker;
  if (threadIdx.x == 0) {
    prefetch_map(grads_map);
    if constexpr (Traits::kWeight) {
      prefetch_map(input_map);
    }
    if constexpr (Traits::kData) {
      ThreadTaps<Traits>::ask(ring, shared_taps, weight, thread.block_channel, have);
    }
    asker.begin(b, place);
    for (int i = 0; i < b.stages - 1; ++i) {
      asker.ask(ring, b, place, p, input_map, grads_map);
    }
  }
  __syncthreads();
  ThreadTaps<Traits> taps;
  bool careful = false;
  if constexpr (Traits::kData) {
    auto* const as_floats = reinterpret_cast<float*>(shared_taps + block_channels * kTaps);
    careful = !taps.read(ring, shared_taps, as_floats, thread, have, b.lanes);
    if (careful) {
      if (!Traits::kWeight && threadIdx.x == 0) {
        ring.drain();
      }
#pragma unroll 1
      for (BoxRuns runs(b, place); thread.works && runs.more();) {
        const BoxRun run = runs.next(b, 1);
        const int n = run.image + thread.image;
        const int last = min(2 * run.last_row, p.height);
#pragma unroll 1
        for (int i = 2 * run.first_row * kOwn; n < p.batch && i < last * kOwn; ++i) {
          const int h = i / kOwn;
          const int w = 2 * thread.column + i % kOwn;
#pragma unroll 1
          for (int v = 0; w < p.width && v < kVector; ++v) {
            const int channel = thread.channel + v;
            grad_input[((n * p.height + h) * p.width + w) * p.channels + channel] =
                static_cast<scalar_t>(careful_grad_input(
                    grad_output + n * p.small_height * p.small_width * p.channels + channel,
                    weight + channel * kTaps,
                    p,
                    h,
                    w,
                    p.channels));
          }
        }
      }
      if constexpr (!Traits::kWeight) {
        return;
      }
    }
  }

  const int pixel = b.lanes * Traits::kBytes; // of a box
  const int large_offset = thread.offset(b, 2 * p.large_columns, kOwn);
  const int small_offset = p.small_offset + thread.offset(b, p.small_columns, kTile);
  float sums[Traits::kWeight ? kTaps : 1][kVector] = {};
  bias_t bias[kVector] = {};
  int turn = threadIdx.x / kWarpSize;
  BoxSender sender(outs, p.out_bytes, large_offset);
  const auto hand_over = [&]() {
    sender.hand_over(result_map, b.threads, thread.block_channel, 2 * place.stretch * b.stretch);
  };
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, 1);
    const int n = run.image + thread.image;
    const int column = 2 * thread.column;
    const int columns =
        Traits::kData && thread.works && n < p.batch && !careful ? p.width - column : 0;
    scalar_t* to = nullptr;
    if constexpr (Traits::kData && !Traits::kSends) {
      to = grad_input +
          (((n * p.height + 2 * run.first_row) * p.width + column) * p.channels + thread.channel);
    }
    // Row o of grad_output, counted from the run's first less kBefore, is in slot o % kSlots.
    float rows[kSlots][kMet][kVector];
    const auto read_grads = [&](float (&row)[kMet][kVector], const char* stage) {
#pragma unroll
      for (int t = 0; t < kMet; ++t) {
        read_vector<Traits>(row[t], stage + small_offset + t * pixel);
      }
    };
    const auto release = [&]() {
      asker.release(ring, turn, b, place, p, input_map, grads_map);
    };
#pragma unroll
    for (int s = 0; s < kSlots - 1; ++s) {
      read_grads(rows[s], ring.wait());
      release();
    }
#pragma unroll 1
    for (int base = run.first_row; base < run.last_row; base += kSlots) {
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
        const int row = base + u;
        if (row >= run.last_row) {
          break;
        }
        const char* const stage = ring.wait();
        read_grads(rows[(u + kSlots - 1) % kSlots], stage);
        if constexpr (Traits::kWeight) {
          const float (&own)[kMet][kVector] = rows[(u + kBefore) % kSlots];
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              sum += own[kBefore + t][v];
            }
            bias[v] += sum;
          }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float values[kOwn][kVector];
          float result[kOwn][kVector] = {};
          if constexpr (Traits::kWeight) {
#pragma unroll
            for (int c = 0; c < kOwn; ++c) {
              read_vector<Traits>(values[c], stage + large_offset + j * p.large_row + c * pixel);
            }
          }
#pragma unroll
          for (int s = 0; s < kSlots; ++s) {
            const int kh = Traits::tap(j, s);
            if (kh < 0 || kh >= Traits::kWindow) {
              continue;
            }
            const float (&grad)[kMet][kVector] = rows[(u + s) % kSlots];
            // As in StripsStrided.cu: in float what a row of grad_output gives is summed
            // by itself, but for the first and where there are two products of each of two.
            const bool by_itself = Traits::kData && sizeof(scalar_t) == 4 && Traits::kWindow > 3 &&
                kh + 2 < Traits::kWindow;
            float row_result[kOwn][kVector] = {};
#pragma unroll
            for (int kw = 0; kw < Traits::kWindow; ++kw) {
              const int at = kh * Traits::kWindow + kw;
              float tap[kVector];
              if constexpr (Traits::kData) {
                taps.get(tap, at);
              }
#pragma unroll
              for (int t = 0; t < kMet; ++t) {
                // That which meets column t by kw.
                const int c = kw - Traits::kReach + 2 * (t - kBefore);
                if (c < 0 || c >= kOwn) {
                  continue;
                }
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                  if constexpr (Traits::kWeight) {
                    sums[at][v] = fmaf(values[c][v], grad[t][v], sums[at][v]);
                  }
                  if constexpr (Traits::kData) {
                    float& sum = by_itself ? row_result[c][v] : result[c][v];
                    sum = fmaf(grad[t][v], tap[v], sum);
                  }
                }
              }
            }
            if (by_itself) {
#pragma unroll
              for (int c = 0; c < kOwn; ++c) {
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                  result[c][v] += row_result[c][v];
                }
              }
            }
          }
          if constexpr (Traits::kData) {
            if constexpr (Traits::kSends) {
              if (j == 0) {
                hand_over();
              }
              if (thread.works) {
                write_columns<Traits>(sender.to + j * p.large_row, result, pixel);
              }
              if (j == 1) {
                sender.advance(2 * row, run.image);
              }
            } else {
              if (2 * row + j < p.height) {
                store_columns<Traits>(to, result, columns, p.channels);
              }
              to += p.width * p.channels;
            }
          }
        }
        release();
      }
    }
  }

  if constexpr (Traits::kSends) {
    hand_over();
    sender.finish();
  }
  if constexpr (Traits::kWeight) {
    bool spoilt = false;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        spoilt = spoilt || isnan(sums[tap][v]);
      }
    }
    // All boxes have been read, so that their room is free: [tap][tile of an image][channel of the block]. The
    // barriers' is not: who writes there must invalidate them first.
    const bool again = __syncthreads_or(spoilt);
    const int tiles = b.tiles * b.images;
    const int row = threadIdx.x / b.lanes; // of the sums
    float* const shared = reinterpret_cast<float*>(ring.boxes);
    if (row < tiles) {
      if (again) {
#pragma unroll 1
        for (int i = 0; i < kTaps * kVector; ++i) {
          const int tap = i / kVector;
          const int channel = thread.channel + i % kVector;
          float sum = 0.0f;
#pragma unroll 1
          for (BoxRuns runs(b, place); thread.works && runs.more();) {
            const BoxRun run = runs.next(b, 1);
            const int n = run.image + thread.image;
            const int column = 2 * thread.column;
            if (n < p.batch) {
              sum += careful_products(
                  grad_output + n * p.small_height * p.small_width * p.channels + channel,
                  input + n * p.height * p.width * p.channels + channel,
                  p,
                  2 * run.first_row,
                  2 * run.last_row,
                  column,
                  column + kOwn,
                  tap,
                  p.channels);
            }
          }
          shared[(tap * tiles + row) * block_channels + thread.lane * kVector + i % kVector] = sum;
        }
      } else {
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            shared[(tap * tiles + row) * block_channels + thread.lane * kVector + v] = sums[tap][v];
          }
        }
      }
    }
    // Those of a stretch and a share make a chunk.
    float* const sums_to = partial +
        static_cast<int>(blockIdx.x) / b.groups * (kTaps + kBiasRows) * p.channels +
        thread.block_channel;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < kTaps * block_channels; i += blockDim.x) {
      const int tap = i / block_channels;
      const int channel = i % block_channels;
      if (channel < have) {
        float sum = 0.0f;
        for (int other = 0; other < tiles; ++other) {
          sum += shared[(tap * tiles + other) * block_channels + channel];
        }
        sums_to[tap * p.channels + channel] = sum;
      }
    }
    __syncthreads();
    bias_t* const shared_bias = reinterpret_cast<bias_t*>(ring.boxes);
    if (row < tiles) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        shared_bias[row * block_channels + thread.lane * kVector + v] = bias[v];
      }
    }
    __syncthreads();
    for (int channel = threadIdx.x; channel < have; channel += blockDim.x) {
      double sum = 0.0;
      for (int other = 0; other < tiles; ++other) {
        sum += shared_bias[other * block_channels + channel];
      }
      write_bias(sums_to + kTaps * p.channels + channel, p.channels, sum);
    }
  }
#endif
}

#endif

} // namespace

bool boxes_strided_backward(const BackwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  const bool data = pass.grad_input.defined();
  const bool asks_weight = pass.asks_weight();
  constexpr int64_t kLeastBytes = 32;
  const Operand& result = data ? pass.grad_input : pass.input;
  if (!boxes_strided_apply(
          p, kLeastBytes, pass.weight, {&pass.grad_output, &pass.input, &result})) {
    return false;
  }
  const auto launch_traits = [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    constexpr auto kernel = boxes_strided_backward_kernel<Traits>;
    StridedLaunch launch;
    CUtensorMap grads_map;
    CUtensorMap input_map;
    CUtensorMap result_map{};
    if (!plan_strided<Traits, kernel>(launch, p)) {
      return false;
    }
    const BoxPlan& b = launch.plan;
    const StridedBoxes& s = launch.boxes;
    const int64_t channels = b.lanes * Traits::kVector;
    if (!map_boxes(grads_map, pass.grad_output, channels, s.small_columns, 1, b.images) ||
        !map_boxes(input_map, pass.input, channels, s.large_columns, 2, b.images) ||
        (Traits::kSends &&
         !map_boxes(result_map, pass.grad_input, channels, s.large_columns, 2, b.images))) {
      return false;
    }
    const int64_t chunks = launch.blocks / b.groups;
    Operand partial;
    if constexpr (Traits::kWeight) {
      partial = empty_partial(chunks, p);
    }
    launch_kernel(
        kernel,
        launch.blocks,
        b.threads,
        launch.shared,
        mutable_pointer_or_null<scalar_t>(pass.grad_input),
        mutable_pointer_or_null<float>(partial),
        grads_map,
        input_map,
        result_map,
        pass.grad_output.const_data_ptr<scalar_t>(),
        pass.input.const_data_ptr<scalar_t>(),
        pass.weight.const_data_ptr<scalar_t>(),
        s,
        b);
    if constexpr (Traits::kWeight) {
      add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, p);
    }
    return true;
  };
  const Type type = pass.input.type();
  if (data && asks_weight) {
    return with_traits<true, true>(p, type, launch_traits);
  }
  return data ? with_traits<true, false>(p, type, launch_traits)
              : with_traits<false, true>(p, type, launch_traits);
#else
  return false;
#endif
}

} // namespace at::native::depthwise_conv2d_ext_cuda
