// What the kernels of depthwise_conv2d_ext at stride 2 share in plane order and in channels-last order: the
// planes of a pass, and its sums tap by tap, which go where some tap or sum is not finite.
#pragma once

#include <cstdint>

namespace at::native::depthwise_conv2d_ext_cuda {

// The input, or its gradient, is the large plane, the output, or its gradient, the small one.
struct StridedPlanes {
  int32_t batch;
  int32_t channels;
  int32_t height; // of the large plane
  int32_t width;
  int32_t small_height;
  int32_t small_width;
  int32_t padding; // on all sides, half a window
};

#ifdef __CUDACC__
// In all of these `step` is from an element to the next of its row: 1, or the channels.

// One result, tap by tap, of taps inside the image only.
template <typename scalar_t>
__device__ __noinline__ float careful_forward(
    const scalar_t* large,
    const scalar_t* taps,
    float sum,
    const StridedPlanes& p,
    int row,
    int column,
    int step) {
  const int window = 2 * p.padding + 1;
#pragma unroll 1
  for (int tap = 0; tap < window * window; ++tap) {
    const int h = 2 * row - p.padding + tap / window;
    const int w = 2 * column - p.padding + tap % window;
    if (h >= 0 && h < p.height && w >= 0 && w < p.width) {
      sum += static_cast<float>(large[(h * p.width + w) * step]) * static_cast<float>(taps[tap]);
    }
  }
  return sum;
}

// What an element of the large plane meets of the small one by a tap; null if there is nothing.
template <typename scalar_t>
__device__ __forceinline__ const scalar_t* met(
    const scalar_t* small,
    const StridedPlanes& p,
    int h,
    int w,
    int tap,
    int step) {
  const int window = 2 * p.padding + 1;
  const int down = h + p.padding - tap / window;
  const int right = w + p.padding - tap % window;
  const bool exists = down >= 0 && right >= 0 && down % 2 == 0 && right % 2 == 0 &&
      down / 2 < p.small_height && right / 2 < p.small_width;
  return exists ? small + (down / 2 * p.small_width + right / 2) * step : nullptr;
}

// One element of grad_input.
template <typename scalar_t>
__device__ __noinline__ float careful_grad_input(
    const scalar_t* grads,
    const scalar_t* taps,
    const StridedPlanes& p,
    int h,
    int w,
    int step) {
  float sum = 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < (2 * p.padding + 1) * (2 * p.padding + 1); ++tap) {
    if (const scalar_t* const grad = met(grads, p, h, w, tap, step)) {
      sum += static_cast<float>(*grad) * static_cast<float>(taps[tap]);
    }
  }
  return sum;
}

// The products of one tap with some rows and columns of the large plane.
template <typename scalar_t>
__device__ __noinline__ float careful_products(
    const scalar_t* grads,
    const scalar_t* large,
    const StridedPlanes& p,
    int first_row,
    int last_row,
    int first_column,
    int last_column,
    int tap,
    int step) {
  float sum = 0.0f;
#pragma unroll 1
  for (int h = first_row; h < min(last_row, p.height); ++h) {
#pragma unroll 1
    for (int w = first_column; w < min(last_column, p.width); ++w) {
      if (const scalar_t* const grad = met(grads, p, h, w, tap, step)) {
        sum += static_cast<float>(*grad) * static_cast<float>(large[(h * p.width + w) * step]);
      }
    }
  }
  return sum;
}
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
