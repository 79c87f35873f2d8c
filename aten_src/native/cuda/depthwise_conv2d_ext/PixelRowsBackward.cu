// grad_weight and grad_bias of depthwise_conv2d_ext in channels-last where channels are no whole vectors, or
// where an input channel has several output channels, and grad_input in the same pass where it is wanted, of
// windows of 3 x 3, at stride 1.
//
// Rows come as PixelRows.cuh has it, those of grad_output and of the input side by side.
// A thread owns a channel and some columns and marches down the rows of the input; a row of it meets all rows
// of grad_output that it belongs to, which stay in registers and serve twice: their products with the input
// go into one sum a tap, those with the taps make the row of grad_input,
//   sum[kh][kw] += input[h][s] * grad_output[h + padding - kh][s + padding - kw].
// A stage of the ring has as many rows as a window, so that it is known which of them are in which registers.
//
// In float the sums of a stage go to totals in shared memory, which bounds the chains. A block's tiles are
// added up in order; it writes one partial, and add_partials() adds the blocks' in a fixed order. A float
// bias is compensated in a lane and added in double beyond, as in GradWeight.cu.
//
// Zeros outside the image are multiplied with the other tensor, which is right only while that is finite: a
// sum that ends as NaN is taken again tap by tap, of positions inside the image only. So is grad_input
// where a tap is not finite.
#include <ATen/native/cuda/depthwise_conv2d_ext/PixelRows.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// Elements of the input. Of fewer in float the march begins and ends sooner (the weight's gradient of 128
// images of 33@14 k3 15 us and 18 here, of 64 of 9@56 32 and 20); all gradients go with it, so that a
// gradient of few elements has the same bits whatever else is wanted.
constexpr int64_t kFewPixels = 1024 * 1024;

template <typename scalar_t_, typename Window, int kTile_, bool kData_>
struct PixelBackwardTraits {
  using scalar_t = scalar_t_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kReachHeight = (kHeight - 1) / 2;
  static constexpr int kReachWidth = (kWidth - 1) / 2;
  static constexpr int kBefore = kHeight - 1; // rows of grad_output before the first of the input
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kTile = kTile_;
  static constexpr int kColumns = kTile + kWidth - 1;
  static constexpr bool kData = kData_; // grad_input too
  // Rounding to 16 bits would hide what bounded chains and an exact bias give.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  static constexpr int kMostThreads = kTaps > 25 ? 352 : kTaps > 9 ? 224 : 288; // that compute
  static constexpr int kThreads = kMostThreads + kWarpSize;
  static constexpr int kBlocks =
      kTaps > 25 ? 1 : 2; // a multiprocessor, for which registers are bounded
};

// What the kernel knows of the two tensors.
struct PixelSources {
  PixelSource grads;
  PixelSource input;
};

// The rows of grad_output and of the input that the steps of a run take.
template <typename Traits>
struct RunRows {
  int32_t steps;
  int32_t input; // of step 0; the first kBefore do not exist for this run
  int32_t grads;

  __device__ __forceinline__ RunRows(const BoxRun& run, const UnitStridePass& p)
      : steps(run.last_row > run.first_row ? run.last_row - run.first_row + Traits::kBefore : 0),
        input(run.row_phase + (run.first_row - Traits::kBefore) * p.dilation_height),
        grads(input + p.padding_height) {}
};

// Asks for all rows of a block's share; by a warp.
template <typename Traits>
__device__ __forceinline__ void ask_rows(
    BoxRing ring,
    const BoxPlace& place,
    const UnitStridePass& p,
    const PixelPlan& b,
    const PixelSources& sources,
    const PixelReach<typename Traits::scalar_t>& grads,
    const PixelReach<typename Traits::scalar_t>& input) {
  const int grads_runs = grads.runs();
  const int input_runs = input.runs();
#pragma unroll 1
  for (BoxRuns runs(b, place); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
    const RunRows<Traits> rows(run, p);
#pragma unroll 1
    for (int first = 0; first < rows.steps; first += Traits::kHeight) {
      const int steps = min(Traits::kHeight, rows.steps - first);
      fill_stage(ring, [&](const auto& function) {
#pragma unroll 1
        for (int i = threadIdx.x % kWarpSize; i < steps * grads_runs; i += kWarpSize) {
          const int u = i / grads_runs;
          const int row = rows.grads + (first + u) * p.dilation_height;
          if (row >= 0 && row < p.dst_height) {
            function(grads, sources.grads, u * b.row_bytes, run.image, row, i - u * grads_runs);
          }
        }
#pragma unroll 1
        for (int i = threadIdx.x % kWarpSize; i < steps * input_runs; i += kWarpSize) {
          const int u = i / input_runs;
          const int row = rows.input + (first + u) * p.dilation_height;
          if (first + u >= Traits::kBefore) {
            const int at = u * b.row_bytes + sources.grads.slot_bytes;
            function(input, sources.input, at, run.image, row, i - u * input_runs);
          }
        }
      });
    }
  }
}

// One tap (kTaps: the bias) of a thread's part of a share, inside the image only.
template <typename Traits>
__device__ __noinline__ float careful_sum(
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* input,
    const UnitStridePass& p,
    const PixelPlan& b,
    int first_column,
    int channel,
    int tap) {
  const bool bias = tap == Traits::kTaps;
  const int kh = bias ? Traits::kReachHeight : tap / Traits::kWidth;
  const int kw = bias ? Traits::kReachWidth : tap % Traits::kWidth;
  const int channels = p.channels / p.multiplier;
  float sum = 0.0f;
#pragma unroll 1
  for (BoxRuns runs(b, BoxPlace(b)); runs.more();) {
    const BoxRun run = runs.next(b, p.dilation_height);
#pragma unroll 1
    for (int i = run.first_row * Traits::kTile; i < run.last_row * Traits::kTile; ++i) {
      const int h = run.row_phase + i / Traits::kTile * p.dilation_height;
      const int w = first_column + i % Traits::kTile * p.dilation_width;
      const int row = h + p.padding_height - kh * p.dilation_height;
      const int column = w + p.padding_width - kw * p.dilation_width;
      if (w < p.src_width && row >= 0 && row < p.dst_height && column >= 0 &&
          column < p.dst_width) {
        const int at = (run.image * p.dst_height + row) * p.dst_width + column;
        const int from = (run.image * p.src_height + h) * p.src_width + w;
        const float grad = static_cast<float>(grad_output[at * p.channels + channel]);
        sum += bias ? grad
                    : grad * static_cast<float>(input[from * channels + channel / p.multiplier]);
      }
    }
  }
  return sum;
}

// grad_input of a thread's part of a run, tap by tap; `p` is the pass of grad_input.
template <typename Traits>
__device__ __noinline__ void careful_rows(
    typename Traits::scalar_t* grad_input,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* weight,
    const UnitStridePass& p,
    const BoxRun& run,
    int first_column,
    int channel) {
#pragma unroll 1
  for (int i = run.first_row * Traits::kTile; i < run.last_row * Traits::kTile; ++i) {
    const int h = run.row_phase + i / Traits::kTile * p.dilation_height;
    const int w = first_column + i % Traits::kTile * p.dilation_width;
    if (w < p.dst_width) {
      const int to = (run.image * p.dst_height + h) * p.dst_width + w;
      grad_input[to * p.channels + channel] =
          static_cast<typename Traits::scalar_t>(careful_output<true>(
              grad_output + run.image * p.src_height * p.src_width * p.channels + channel,
              weight + channel * Traits::kTaps,
              0.0f,
              p,
              h,
              w));
    }
  }
}

// grad_input only where Traits::kData.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void pixel_rows_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ UnitStridePass turned, // the pass of grad_input
    const __grid_constant__ PixelPlan b,
    const __grid_constant__ PixelSources sources) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kWidth = Traits::kWidth;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kColumns = Traits::kColumns;
  extern __shared__ __align__(kBoxBytes) char shared_rows[];
  const BoxPlace place(b);
  const PixelPlace mine(b, place.group, kTile, p.dilation_width);
  const int computing = blockDim.x - kWarpSize;
  BoxRing ring(shared_rows, b.stages, b.stage_bytes, computing / kWarpSize);
  clear_slot_heads(ring, b, 0);
  clear_slot_heads(ring, b, sources.grads.slot_bytes);
  const int first_channel = place.group * b.lanes;
  const int last_channel = min(first_channel + b.lanes, p.channels) - 1;
  const auto input_channel = [&](int channel) {
    return channel / p.multiplier;
  };
  const int left = place.stretch * b.stretch;
  const int reach_width = (kWidth - 1) * p.dilation_width;
  const PixelReach<scalar_t> grads_reach(
      grad_output,
      sources.grads,
      left + p.padding_width - reach_width,
      b.stretch + reach_width,
      first_channel,
      b.whole() ? 0 : last_channel - first_channel + 1);
  const PixelReach<scalar_t> input_reach(
      input,
      sources.input,
      left,
      b.stretch,
      input_channel(first_channel),
      b.whole() ? 0 : input_channel(last_channel) - input_channel(first_channel) + 1);
  const int column = left + mine.column;
  const bool works = mine.computes && mine.channel < p.channels;

  // [sum][thread]: totals all along, or sums at the end in the ring's place.
  char* const behind = ring.boxes + b.stages * b.stage_bytes;
  float* const sums_of_block =
      reinterpret_cast<float*>(Traits::kExact ? behind : ring.boxes) + threadIdx.x;
  float taps[kTaps];
  bool finite = true;
  if constexpr (Traits::kData) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap] = works ? static_cast<float>(weight[mine.channel * kTaps + tap]) : 0.0f;
      finite = finite && is_finite(taps[tap]);
    }
  }
  if (Traits::kExact && static_cast<int>(threadIdx.x) < computing) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      sums_of_block[tap * computing] = 0.0f;
    }
  }
  __syncthreads(); // the ring is there for all

  float sums[kTaps + 1] = {};
  float excess = 0.0f;
  if (static_cast<int>(threadIdx.x) >= computing) {
    ask_rows<Traits>(ring, place, p, b, sources, grads_reach, input_reach);
  } else {
    int grads_offsets[kColumns];
    int input_offsets[kTile];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int w = column + p.padding_width - reach_width + c * p.dilation_width;
      grads_offsets[c] = works ? grads_reach.offset(sources.grads, w, mine.channel) : -kZeroBytes;
    }
    int columns = 0; // inside the image
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      const int w = column + t * p.dilation_width;
      input_offsets[t] =
          works ? input_reach.offset(sources.input, w, input_channel(mine.channel)) : -kZeroBytes;
      columns += works && w < p.src_width;
    }
    keep(columns);
    int64_t column_step = static_cast<int64_t>(p.dilation_width) * p.channels;
    int64_t row_step = static_cast<int64_t>(p.dilation_height) * p.src_width * p.channels;
    keep(column_step);
    keep(row_step);

#pragma unroll 1
    for (BoxRuns runs(b, place); runs.more();) {
      const BoxRun run = runs.next(b, p.dilation_height);
      const RunRows<Traits> rows(run, p);
      // Places where rows begin, of which the lowest bits count.
      uint32_t grads_first = grads_reach.first(sources.grads, run.image, rows.grads);
      uint32_t input_first = input_reach.first(sources.input, run.image, rows.input);
      const uint32_t grads_step = p.dilation_height * sources.grads.width * sources.grads.channels;
      const uint32_t input_step = p.dilation_height * sources.input.width * sources.input.channels;
      int grads_row = rows.grads;
      scalar_t* to = grad_input +
          (((run.image * p.src_height + run.row_phase + run.first_row * p.dilation_height) *
                p.src_width +
            column) *
               p.channels +
           mine.channel);
      float grads[kHeight][kColumns];
#pragma unroll 1
      for (int first = 0; first < rows.steps; first += kHeight) {
        uint32_t slot = shared_address(ring.wait()) + kZeroBytes;
#pragma unroll
        for (int u = 0; u < kHeight; ++u) {
          if (first + u >= rows.steps) {
            break;
          }
          uint32_t grads_from = slot + grads_reach.lead_of(grads_first);
          uint32_t input_from = slot + sources.grads.slot_bytes + input_reach.lead_of(input_first);
          keep(grads_from);
          keep(input_from);
          const bool exists =
              static_cast<uint32_t>(grads_row) < static_cast<uint32_t>(p.dst_height);
          slot += b.row_bytes;
          grads_first += grads_step;
          input_first += input_step;
          grads_row += p.dilation_height;
          if (exists) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
              grads[u][c] = read_shared<scalar_t>(grads_from + grads_offsets[c]);
            }
          } else {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
              grads[u][c] = 0.0f;
            }
          }
          if (u < Traits::kBefore && first == 0) {
            continue;
          }
          float values[kTile];
          float result[kTile][1] = {};
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
            values[t] = read_shared<scalar_t>(input_from + input_offsets[t]);
          }
          // In the order of grad_input alone.
#pragma unroll
          for (int turn = 0; turn < kHeight; ++turn) {
            const int kh = kHeight - 1 - turn;
            const float (&row)[kColumns] = grads[(u - kh + kHeight) % kHeight];
            RowSums<kTile, 1> products(result, turn >= Traits::kOwnRow);
#pragma unroll
            for (int c = 0; c < kWidth; ++c) {
              const int kw = kWidth - 1 - c;
              const int tap = kh * kWidth + kw;
#pragma unroll
              for (int t = 0; t < kTile; ++t) {
                const float grad = row[t + c];
                sums[tap] = fmaf(values[t], grad, sums[tap]);
                if constexpr (Traits::kData) {
                  products.add(c, t, 0, grad, taps[tap]);
                }
              }
            }
            if constexpr (Traits::kData) {
              products.finish();
            }
            if (kh == Traits::kReachHeight) {
              // Each element of grad_output is once beside the window's middle tap.
              float sum = 0.0f;
#pragma unroll
              for (int t = 0; t < kTile; t += 2) {
                sum += row[t + Traits::kReachWidth] + row[t + 1 + Traits::kReachWidth];
              }
              add_to_bias<Traits::kExact>(sums[kTaps], excess, sum);
            }
          }
          if constexpr (Traits::kData) {
            scalar_t* at = to;
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              store_if(t < columns, at, result[t][0]);
              at += column_step;
            }
            to += row_step;
          }
        }
        ring.release();
        if constexpr (Traits::kExact) {
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap) {
            sums_of_block[tap * computing] += sums[tap];
            sums[tap] = 0.0f;
          }
        }
      }
      if (Traits::kData && !finite) {
        careful_rows<Traits>(grad_input, grad_output, weight, turned, run, column, mine.channel);
      }
    }
  }

  // A block's sums: those of its tiles, in order.
  __syncthreads();
  double* const biases =
      reinterpret_cast<double*>(ring.boxes) + threadIdx.x; // of float, whose sums are elsewhere
  if (static_cast<int>(threadIdx.x) < computing) {
#pragma unroll
    for (int k = 0; k < Traits::kAlike; ++k) {
      float* const to = sums_of_block + k * computing;
      *to = Traits::kExact ? *to + sums[k] : sums[k];
    }
    if constexpr (Traits::kExact) {
      *biases = static_cast<double>(sums[kTaps]) - excess;
    }
  }
  __syncthreads();
  const BlockSums block{
      sums_of_block,
      biases,
      computing,
      mine.tile,
      b.tiles,
      b.lanes,
      static_cast<int>(threadIdx.x) < computing,
      works};
  write_block_sums<Traits>(
      block,
      partial + static_cast<int64_t>(blockIdx.x / b.groups) * (kTaps + kBiasRows) * p.channels +
          mine.channel,
      p.channels,
      [&](int k) {
        return careful_sum<Traits>(grad_output, input, p, b, column, mine.channel, k);
      });
#endif
}

// Planned: the traits that tell how many blocks there are.
template <typename Traits, typename Planned = Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = pixel_rows_backward_kernel<Traits>;
  UnitStridePass p{};
  set_unit_stride_pass(p, params);
  UnitStridePass turned = p;
  turn_around(turned, params);
  const PixelRequest request{
      p.batch,
      p.channels,
      p.src_height,
      p.src_width,
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
  // By groups of channels the march is as fast, but by single elements of 16 bits (the weight's gradient of
  // 1023@14 k3 in float 34 us, some 50 here); for all gradients it is not (67 and 38).
  if (!plan.whole() && !Traits::kData && params.multiplier == 1 &&
      (Traits::kTaps > 9 || pass.input.numel() >= kFewPixels) &&
      (Traits::kExact || p.channels % 2 == 0)) {
    return false;
  }
  const PixelSources sources{
      pixel_source(
          pass.grad_output,
          plan.stretch + (Traits::kWidth - 1) * p.dilation_width,
          plan.lanes,
          plan.whole()),
      pixel_source(
          pass.input, plan.stretch, divide_up(plan.lanes, p.multiplier) + 1, plan.whole())};
  constexpr int64_t kRingBytes = 160 * 1024; // of a multiprocessor
  constexpr int64_t kLeastStages = 2;
  // Rows: each block begins with some for nothing, and leaves sums for the second kernel to add up.
  constexpr int32_t kLeastShare = 2 * Traits::kBefore;
  plan.box_rows = Traits::kHeight;
  plan.row_bytes = sources.grads.slot_bytes + sources.input.slot_bytes;
  plan.stage_bytes = stage_bytes(plan.box_rows * plan.row_bytes);
  plan.stages =
      std::clamp<int64_t>(kRingBytes / plan.blocks / plan.stage_bytes, kLeastStages, kMostStages);
  const int64_t computing = plan.threads - kWarpSize;
  const int64_t sums = sizeof(float) * Traits::kAlike * computing;
  const int64_t ring = plan.stages * plan.stage_bytes;
  const int64_t shared = kRingHead + (Traits::kExact ? ring + sums : std::max(ring, sums));
  if (!has_shared(shared)) {
    return false;
  }
  // The blocks of the kernel for all gradients, so that sums fall into the same parts.
  const int64_t resident =
      resident_blocks(pixel_rows_backward_kernel<Planned>, plan.threads, shared);
  plan_box_shares(plan, resident, Traits::kHeight - 1);
  plan.share = std::max(plan.share, kLeastShare);
  const int64_t grid =
      divide_up(plan.rows, plan.share) * static_cast<int64_t>(plan.groups) * plan.stretches;
  const int64_t chunks = grid / plan.groups;
  const Operand partial = empty_partial(chunks, params);
  launch_kernel(
      kernel,
      static_cast<unsigned int>(grid),
      plan.threads,
      shared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      p,
      turned,
      plan,
      sources);
  add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, params);
  return true;
}

} // namespace

bool pixel_rows_backward(const BackwardPass& pass, const Params& p) {
  const bool all = pass.grad_input.defined();
  if (!pixel_rows_take(p, pass.input) || !middle_meets_all(p) || pass.grad_output.numel() == 0 ||
      (all && p.multiplier > 1) || !begins_a_run(pass.input) || !begins_a_run(pass.grad_output) ||
      !device_has_boxes()) {
    return false;
  }
  return with_scalar_type(pass.input.type(), [&](auto scalar) {
    return with_window(p, [&](auto window) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(window);
      if constexpr (Fixed::kHeight == 1 || Fixed::kStride > 1) {
        return false;
      } else if constexpr (Fixed::kHeight == 3) {
        using All = PixelBackwardTraits<scalar_t, Fixed, 6, true>;
        using Weight = PixelBackwardTraits<scalar_t, Fixed, 6, false>;
        // All gradients of several outputs of a channel are not taken in one pass. In 16 bit wider tiles are
        // faster (32@112 with two outputs 67 us, 55); in float they would be longer chains.
        using Several = PixelBackwardTraits<scalar_t, Fixed, sizeof(scalar_t) == 2 ? 8 : 6, false>;
        return all              ? launch<All>(pass, p)
            : p.multiplier == 1 ? launch<Weight, All>(pass, p)
                                : launch<Several>(pass, p);
      } else {
        return !all && launch<PixelBackwardTraits<scalar_t, Fixed, 4, false>>(pass, p);
      }
    });
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
