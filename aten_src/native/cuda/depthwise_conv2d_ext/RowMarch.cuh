// The march of depthwise_conv2d_ext down the rows of src in channels-last order, as kernels have it that find
// rows in shared memory (Boxes.cu, PixelRows.cu): a thread owns a few
// channels and columns of dst. Each row of src feeds all the dst rows that it belongs to, whose sums are in
// registers: slot s holds the dst row that this row reaches with the taps of kernel row s. With the first
// product of a row the sums move on a slot, so that the shift costs nothing.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

#ifdef __CUDACC__
// The window, the tile of columns of a thread with what the window reaches beside it, its channels and, of
// each, how many of src it adds up; rows of taps from kOwnRow on are summed by themselves.
template <typename scalar_t, typename Window, int kVector_, int kTile_, int kSources_>
struct RowMarchTraits {
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kVector = kVector_;
  static constexpr int kTile = kTile_;
  static constexpr int kColumns = kTile + kWidth - 1;
  static constexpr int kSources = kSources_;
};

template <typename Traits>
struct RowMarch {
  static constexpr int kHeight = Traits::kHeight;
  static constexpr int kWidth = Traits::kWidth;
  static constexpr int kTile = Traits::kTile;
  static constexpr int kVector = Traits::kVector;
  static constexpr int kSources = Traits::kSources;
  using Sums = float[kTile][kVector];
  using Values = float[kSources][Traits::kColumns][kVector];
  using Taps = float[kSources][Traits::kTaps][kVector];

  Sums slots[kHeight];

  __device__ __forceinline__ explicit RowMarch(const float (&begin)[kVector]) {
#pragma unroll
    for (int s = 0; s < kHeight; ++s) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          slots[s][t][v] = begin[v];
        }
      }
    }
  }

  // Adds row i of src to the dst rows i - kHeight + 1 ... i: to all, or to those in [first, last), and calls
  // store(sums, row) with that which it is the last of, from `first` on.
  template <bool kEvery, typename Store>
  __device__ __forceinline__ void add(
      int i,
      int first,
      int last,
      const Values& values,
      const Taps& taps,
      const float (&begin)[kVector],
      const Store& store) {
#pragma unroll
    for (int s = kHeight - 1; s >= 0; --s) {
      if (!kEvery && (i - s < first || i - s >= last)) {
        continue;
      }
      const bool own = s >= Traits::kOwnRow;
      Sums sums;
#pragma unroll
      for (int k = 0; k < kSources * kWidth; ++k) {
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            const float before = s > 0 ? slots[s > 0 ? s - 1 : 0][t][v] : begin[v];
            const float value = values[k / kWidth][t + k % kWidth][v];
            const float tap = taps[k / kWidth][s * kWidth + k % kWidth][v];
            sums[t][v] = k > 0 ? fmaf(value, tap, sums[t][v])
                : own          ? value * tap
                               : fmaf(value, tap, before);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const float before = s > 0 ? slots[s > 0 ? s - 1 : 0][t][v] : begin[v];
          slots[s][t][v] = own ? before + sums[t][v] : sums[t][v];
        }
      }
      if (s == kHeight - 1 && i - s >= first) {
        store(slots[s], i - s);
      }
    }
  }

  // Calls store() with the rows of [first, last) that the last row of the image leaves, which was `end` - 1.
  template <typename Store>
  __device__ __forceinline__ void finish(int end, int first, int last, const Store& store) const {
#pragma unroll
    for (int s = kHeight - 2; s >= 0; --s) {
      const int row = end - 1 - s;
      if (row >= first && row < last) {
        store(slots[s], row);
      }
    }
  }
};
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
