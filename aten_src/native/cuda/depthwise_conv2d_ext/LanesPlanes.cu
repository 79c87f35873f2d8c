// Forward of depthwise_conv2d_ext on planes of 7 x 7 and 14 x 14 in float32 with images as lanes
// (LanesPlanes.cuh), and grad_input, which is the forward on grad_output with flipped
// taps.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/LanesPlanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// grid: groups of channels x groups of images.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kPlanesThreads, Traits::kBlocks)
__global__ void lanes_planes_kernel(
    float* __restrict__ dst,
    const float* __restrict__ src,
    const float* __restrict__ weight,
    const float* __restrict__ bias,
    const __grid_constant__ LanesPlanes p) {
  constexpr int kSide = Traits::kSide;
  constexpr int kWindow = Traits::kWindow;
  constexpr int kReach = Traits::kReach;
  extern __shared__ uint4 shared_blocks[];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int unit = warp / Traits::kWarps;
  const int channel = blockIdx.x * p.block_channels + unit;
  if (channel >= p.channels) {
    return; // with all warps of a plane
  }
  float* const plane = reinterpret_cast<float*>(shared_blocks) + unit * Traits::kUnitWords;
  float* const taps = plane + Traits::kPlaneWords;
  const int first_image = blockIdx.y * kWarpSize;
  const int images = min(kWarpSize, p.batch - first_image);
  const int step = p.channels * Traits::kPixels;
  const Runs runs =
      plane_runs<Traits>(first_image * step + channel * Traits::kPixels, images, step);

  load_planes<Traits>(plane, src, runs);
  commit_copies();
  stage_plane_taps<Traits>(taps, weight + channel * Traits::kTaps, p.flip);
  const float begin = bias ? bias[channel] : 0.0f;
  wait_for_groups<0>();
  meet<Traits>(unit);

  const Part<Traits> part(warp % Traits::kWarps);
  float* const mine = plane + lane * Traits::kPitch;
  const float* const my_taps = taps + warp % Traits::kWarps * Traits::kTapWords;
  float sums[kWindow][kSide]; // of the rows under way
#pragma unroll
  for (int i = Traits::kFirst; i < Traits::kEnd; ++i) {
    float row[kSide];
    read_row<Traits>(row, mine + part.offset(i, kReach));
#pragma unroll
    for (int kh = 0; kh < kWindow; ++kh) {
      const int o = i - kh;
      if (o < 0 || o >= kWarpRows) {
        continue;
      }
      float (&to)[kSide] = sums[o % kWindow];
      if (kh == 0 || i == Traits::kFirst) {
#pragma unroll
        for (int t = 0; t < kSide; ++t) {
          to[t] = begin;
        }
      }
      add_row<Traits>(to, row, my_taps + kh * Traits::kTapPitch, kh >= Traits::kOwnRow);
    }
    if (Traits::kWarps > 1 && i == 2 * kReach) {
      meet<Traits>(unit); // the other warp has read its first rows, in whose place results go
    }
#pragma unroll
    for (int o = 0; o < kWarpRows; ++o) {
      const int done = o + 2 * kReach < Traits::kEnd ? o + 2 * kReach : Traits::kEnd - 1;
      if (i == done) {
#pragma unroll
        for (int t = 0; t < kSide; t += Traits::kWords) {
          write_words<Traits::kWords>(mine + part.offset(o, 0) + t, sums[o % kWindow] + t);
        }
      }
    }
  }
  meet<Traits>(unit);
  store_planes<Traits>(dst, plane, runs);
}

bool lanes_planes_pass(const ForwardPass& pass, const Params& p, bool flip) {
  // With half of the lanes idle and 384 channels of 14 x 14, 3 x 3 takes 9.3 us and 9.4 backwards, by
  // patches 9.3 and 8.8.
  const double least = p.input_width == kWarpRows ? kHalfOfLanes : kMostLanes;
  if (!lanes_planes_take(p, {&pass.dst, &pass.src}) || !lanes_are_used(p.batch, least)) {
    return false;
  }
  return with_lanes_planes<true, false>(p, [&](auto traits) {
    using Traits = decltype(traits);
    LanesPlanes l{};
    l.batch = p.batch;
    l.channels = p.channels;
    l.block_channels = Traits::kMostUnits;
    l.flip = flip;
    const dim3 grid(divide_up(l.channels, l.block_channels), divide_up(l.batch, kWarpSize));
    constexpr size_t kShared = sizeof(float) * Traits::kMostUnits * Traits::kUnitWords;
    if (grid.y > kMostGridRows || !has_shared(kShared)) {
      return false;
    }
    allow_shared(lanes_planes_kernel<Traits>, kShared);
    lanes_planes_kernel<Traits>
        <<<grid, kPlanesThreads, kShared, c10::cuda::getCurrentCUDAStream()>>>(
            pass.dst.mutable_data_ptr<float>(),
            pass.src.const_data_ptr<float>(),
            pass.weight.const_data_ptr<float>(),
            pointer_or_null<float>(pass.bias),
            l);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return true;
  });
}

} // namespace

bool lanes_planes_forward(const ForwardPass& pass, const Params& p) {
  return lanes_planes_pass(pass, p, false);
}

bool lanes_planes_grad_input(const ForwardPass& pass, const Params& p) {
  return lanes_planes_pass(pass, p, true);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
