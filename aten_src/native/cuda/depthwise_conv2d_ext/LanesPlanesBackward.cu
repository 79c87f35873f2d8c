// All gradients of depthwise_conv2d_ext on planes of 7 x 7 and 14 x 14 in float32 in one pass over the
// tensors, or those of weight and bias, with images as lanes (LanesPlanes.cuh).
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/LanesPlanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// grid: groups of channels. Of the gradients any may be null, grad_input where it is not taken.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kPlanesThreads, Traits::kBlocks)
__global__ void lanes_planes_backward_kernel(
    float* __restrict__ grad_input,
    float* __restrict__ grad_weight,
    float* __restrict__ grad_bias,
    const float* __restrict__ grad_output,
    const float* __restrict__ input,
    const float* __restrict__ weight,
    const __grid_constant__ LanesPlanes p) {
  constexpr int kSide = Traits::kSide;
  constexpr int kWindow = Traits::kWindow;
  constexpr int kReach = Traits::kReach;
  extern __shared__ uint4 shared_blocks[];
  float* const shared = reinterpret_cast<float*>(shared_blocks);
  const int lane = threadIdx.x % kWarpSize;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int unit = warp / Traits::kWarps;
  const int way = unit % p.ways;
  const int channel = blockIdx.x * p.block_channels + unit / p.ways;
  float* const inputs = shared + unit * Traits::kUnitWords;
  float* const grads = inputs + Traits::kPlaneWords;
  float* const taps = grads + Traits::kPlaneWords;
  const int step = p.channels * Traits::kPixels;

  const Part<Traits> part(warp % Traits::kWarps);
  const float* const my_taps = taps + warp % Traits::kWarps * Traits::kTapWords;
  float sums[Traits::kSums] = {};
  float totals[Traits::kOwn] = {};
  double bias = 0;
  int pending = 0;
  if (channel < p.channels) {
    if constexpr (Traits::kData) {
      // In the order in which a march over grad_output's rows meets them.
      stage_plane_taps<Traits>(taps, weight + channel * Traits::kTaps, true);
    }
#pragma unroll 1
    for (int first_image = way * kWarpSize; first_image < p.batch;
         first_image += p.ways * kWarpSize) {
      const int images = min(kWarpSize, p.batch - first_image);
      const Runs runs =
          plane_runs<Traits>(first_image * step + channel * Traits::kPixels, images, step);
      meet<Traits>(unit); // nobody stores from here any more
      load_planes<Traits>(grads, grad_output, runs);
      load_planes<Traits>(inputs, input, runs);
      commit_copies();
      wait_for_groups<0>();
      meet<Traits>(unit);
      float* const my_inputs = inputs + lane * Traits::kPitch;
      const float* const my_grads = grads + lane * Traits::kPitch;
      float rows[kWindow][kSide]; // of grad_output
#pragma unroll
      for (int i = Traits::kFirst; i < kWarpRows + 2 * kReach; ++i) {
        if (i < Traits::kEnd) {
          float (&row)[kSide] = rows[i % kWindow];
          read_row<Traits>(row, my_grads + part.offset(i, kReach));
          if (i >= kReach) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < kSide; ++t) {
              sum += row[t];
            }
            bias += sum;
          }
        }
        const int o = i - 2 * kReach;
        if (o < 0) {
          continue;
        }
        // Row o of the input, with all rows of grad_output that it meets at hand.
        float values[kSide];
        read_row<Traits>(values, my_inputs + part.offset(o, 0));
        float result[kSide] = {};
#pragma unroll
        for (int m = 0; m < kWindow; ++m) {
          if (o + m < Traits::kFirst || o + m >= Traits::kEnd) {
            continue;
          }
          const float (&row)[kSide] = rows[(o + m) % kWindow];
#pragma unroll
          for (int kw = 0; kw < kWindow; ++kw) {
            // Of a row by itself first: chains of seven, then of rows.
            float products = 0.0f;
#pragma unroll
            for (int s = 0; s < kSide; ++s) {
              const int t = s + kReach - kw;
              if (t >= 0 && t < kSide) {
                products = fmaf(values[s], row[t], products);
              }
            }
            sums[m * kWindow + kw] += products;
          }
          if constexpr (Traits::kData) {
            add_row<Traits>(result, row, my_taps + m * Traits::kTapPitch, m >= Traits::kOwnRow);
          }
        }
        if constexpr (Traits::kData) {
#pragma unroll
          for (int t = 0; t < kSide; t += Traits::kWords) {
            write_words<Traits::kWords>(my_inputs + part.offset(o, 0) + t, result + t);
          }
        }
      }
      if constexpr (Traits::kData) {
        meet<Traits>(unit);
        store_planes<Traits>(grad_input, inputs, runs);
      }
      if (++pending == Traits::kChain) {
        add_lanes(totals, sums, lane);
        pending = 0;
      }
    }
  }
  add_lanes(totals, sums, lane);
  bias = sum_of_warp(bias);

  // The ways and the warps of a plane in order.
  __syncthreads();
  double* const biases = reinterpret_cast<double*>(shared); // [warp]
  float* const all_sums = shared + 2 * kPlanesWarps; // [warp][sum]
#pragma unroll
  for (int i = 0; i < Traits::kOwn; ++i) {
    all_sums[warp * Traits::kSums + lane * Traits::kOwn + i] = totals[i];
  }
  if (lane == 0) {
    biases[warp] = bias;
  }
  __syncthreads();
  const int warps = p.ways * Traits::kWarps; // of a channel
  const int channels =
      min(p.block_channels, p.channels - static_cast<int>(blockIdx.x) * p.block_channels);
  const int first_channel = blockIdx.x * p.block_channels;
  for (int i = threadIdx.x; i < channels * Traits::kTaps; i += blockDim.x) {
    const int first_warp = i / Traits::kTaps * warps;
    const int kh = i % Traits::kTaps / kWindow;
    const int kw = i % kWindow;
    float sum = 0.0f;
    for (int w = first_warp; w < first_warp + warps; ++w) {
      const bool upwards = w % Traits::kWarps + 1 < Traits::kWarps;
      sum += all_sums[w * Traits::kSums + (upwards ? kh : kWindow - 1 - kh) * kWindow + kw];
    }
    if (grad_weight) {
      grad_weight[first_channel * Traits::kTaps + i] = sum;
    }
  }
  if (grad_bias && threadIdx.x < channels) {
    double sum = 0;
    for (int w = 0; w < warps; ++w) {
      sum += biases[threadIdx.x * warps + w];
    }
    grad_bias[first_channel + threadIdx.x] = static_cast<float>(sum);
  }
}

} // namespace

bool lanes_planes_backward(const BackwardPass& pass, const Params& p) {
  // A channel has one block.
  constexpr int64_t kLeastChannels = 132;
  const TensorBase& result = pass.grad_input.defined() ? pass.grad_input : pass.input;
  if (p.channels < kLeastChannels ||
      !lanes_planes_take(p, {&pass.grad_output, &pass.input, &result})) {
    return false;
  }
  const auto launch = [&](auto traits) {
    using Traits = decltype(traits);
    if constexpr (Traits::kData && Traits::kWarps == 2 && Traits::kTaps > 25) {
      // Too few warps: 82 us in two passes became 58, in one pass 94.
      return false;
    } else {
      LanesPlanes l{};
      l.batch = p.batch;
      l.channels = p.channels;
      l.ways = std::min<int64_t>(Traits::kMostUnits, divide_up(l.batch, kWarpSize));
      l.block_channels = Traits::kMostUnits / l.ways;
      const int units = l.ways * l.block_channels;
      const size_t shared = sizeof(float) * units * Traits::kUnitWords;
      if (!has_shared(shared)) {
        return false;
      }
      const unsigned int grid = divide_up(l.channels, l.block_channels);
      // A plane of 14 rows takes long, so that few channels of many images leave the device half empty: 512
      // images of 140 channels by 3 x 3 83 us by patches, 93 here.
      constexpr int64_t kEnoughBlocks = 132 * Traits::kBlocks * 2 / 3;
      constexpr int64_t kManyRounds = 4;
      if (Traits::kWarps == 2 && grid < kEnoughBlocks &&
          divide_up(l.batch, kWarpSize) > kManyRounds * l.ways) {
        return false;
      }
      allow_shared(lanes_planes_backward_kernel<Traits>, shared);
      lanes_planes_backward_kernel<Traits>
          <<<grid, units * Traits::kWarps * kWarpSize, shared, c10::cuda::getCurrentCUDAStream()>>>(
              mutable_pointer_or_null<float>(pass.grad_input),
              mutable_pointer_or_null<float>(pass.grad_weight),
              mutable_pointer_or_null<float>(pass.grad_bias),
              pass.grad_output.const_data_ptr<float>(),
              pass.input.const_data_ptr<float>(),
              pass.weight.const_data_ptr<float>(),
              l);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      return true;
    }
  };
  if (pass.grad_input.defined()) {
    return with_lanes_planes<true, true>(p, launch);
  }
  return with_lanes_planes<false, true>(p, launch);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
