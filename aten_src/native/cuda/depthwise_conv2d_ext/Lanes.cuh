// What the kernels of depthwise_conv2d_ext share whose lanes are 32 images of one channel: what travels
// between device memory, shared memory and registers, the sums of lanes, and which calls they take.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

// The largest vector that rows of so many columns consist of, up to 16 bytes.
constexpr int lane_words(int columns) {
  return columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
}

#ifdef __CUDACC__
// Asks for a copy into shared memory.
template <int kWords>
__device__ __forceinline__ void copy_words(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address),
               "l"(from),
               "n"(kWords * static_cast<int>(sizeof(float)))
               : "memory");
#else
  *reinterpret_cast<Packed<float, kWords>*>(to) = load_vector<float, kWords>(from);
#endif
}

template <int kWords>
__device__ __forceinline__ void read_words(float* to, const float* from) {
  const auto words = *reinterpret_cast<const Packed<float, kWords>*>(from);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    to[i] = __uint_as_float(words.words[i]);
  }
}

template <int kWords>
__device__ __forceinline__ void write_words(float* to, const float* from) {
  Packed<float, kWords> words;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words.words[i] = __float_as_uint(from[i]);
  }
  *reinterpret_cast<Packed<float, kWords>*>(to) = words;
}

// 32 images' runs of vectors: in device memory they begin at `first` and lie `step` vectors apart, in shared
// memory at 0 and `pitch`. Only `images` of them exist.
struct Runs {
  int first;
  int images;
  int pitch;
  int step;
};

// Calls function(offset in shared memory, offset in device memory, exists) for every vector of runs of kCount
// that falls to this of kThreads threads. Offsets are moved on: to find them by a division costs as much as
// a small plane's arithmetic.
template <int kCount, int kThreads, typename Function>
__device__ __forceinline__ void for_runs(const Runs& runs, const Function& function) {
  constexpr int kSkipped = kThreads / kCount;
  constexpr int kRest = kThreads % kCount;
  static_assert(kWarpSize * kCount % kThreads == 0);
  const int thread = threadIdx.x % kThreads;
  int at = thread % kCount;
  int image = thread / kCount;
  int shared = image * runs.pitch + at;
  int device = runs.first + image * runs.step + at;
#pragma unroll 7
  for (int i = 0; i < kWarpSize * kCount / kThreads; ++i) {
    function(shared, device, image < runs.images);
    at += kRest;
    image += kSkipped;
    shared += kSkipped * runs.pitch + kRest;
    device += kSkipped * runs.step + kRest;
    if (at >= kCount) {
      at -= kCount;
      ++image;
      shared += runs.pitch - kCount;
      device += runs.step - kCount;
    }
  }
}

// Asks for copies of the runs; of lanes without an image zeros. copy_async() has fewer instructions, but
// brought 14 x 14 planes in bursts: 3 x 3 forward 26 us became 30, all gradients of 7 x 7 36 became 38.
template <typename Vector, int kCount, int kThreads>
__device__ __forceinline__ void load_runs(void* to, const void* from, const Runs& runs) {
  constexpr int kWords = sizeof(Vector) / sizeof(float);
  auto* const vectors = static_cast<Vector*>(to);
  const auto* const sources = static_cast<const Vector*>(from);
  for_runs<kCount, kThreads>(runs, [&](int shared, int device, bool exists) {
    if (exists) {
      copy_words<kWords>(
          reinterpret_cast<float*>(vectors + shared),
          reinterpret_cast<const float*>(sources + device));
    } else {
      constexpr float kZeros[kWords] = {};
      write_words<kWords>(reinterpret_cast<float*>(vectors + shared), kZeros);
    }
  });
}

template <typename Vector, int kCount, int kThreads>
__device__ __forceinline__ void store_runs(void* to, const void* from, const Runs& runs) {
  auto* const targets = static_cast<Vector*>(to);
  const auto* const vectors = static_cast<const Vector*>(from);
  for_runs<kCount, kThreads>(runs, [&](int shared, int device, bool exists) {
    if (exists) {
      targets[device] = vectors[shared];
    }
  });
}

// A row of taps, which begins with a whole vector.
template <int kPitch>
__device__ __forceinline__ void read_taps(float (&taps)[kPitch], const float* from) {
#pragma unroll
  for (int i = 0; i < kPitch; i += 4) {
    read_words<4>(taps + i, from + i);
  }
}

// Adds the lanes' sums up: lane l has those from l * kOwn on in `totals`, and all sums are zero again.
template <int kOwn>
__device__ __forceinline__ void add_lanes(
    float (&totals)[kOwn],
    float (&sums)[kOwn * kWarpSize],
    int lane) {
  constexpr int kSums = kOwn * kWarpSize;
  WarpFold<kSums, kWarpSize / 2>::fold(sums, lane);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    totals[i] += sums[i];
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[i] = 0.0f;
  }
}
#endif

// All columns within a tile's reach are multiplied, whatever the window's width; the kernels of
// Large.cu fill windows up to 8 columns. From here on lanes win: 9 x 9 on 28 columns
// 87 -> 49 us, 17 x 17 on 56 columns 519 -> 279.
constexpr int kLeastReach28 = 4;
constexpr int kLeastReach56 = 8;

// Lanes without an image are idle. With all of them large windows are twice as fast as without lanes, on small
// planes four times.
constexpr double kHalfOfLanes = 1.0 / 2;
constexpr double kMostLanes = 2.0 / 3;
inline bool lanes_are_used(int64_t batch, double least) {
  return static_cast<double>(batch) >=
      least * static_cast<double>(divide_up(batch, kWarpSize) * kWarpSize);
}
inline double least_lanes(int64_t width) {
  constexpr int64_t kSmallWidth = 14;
  return width <= kSmallWidth ? kHalfOfLanes : kMostLanes;
}

// Whether the call is one on square planes, in their order, with square windows and the usual padding that
// lanes may take.
inline bool lanes_take_planes(
    const Params& p,
    int64_t stride,
    std::initializer_list<const Operand*> tensors) {
  constexpr size_t kAlignment = 2 * sizeof(float); // of planes of 14 x 14
  return !p.channels_last && p.multiplier == 1 && p.stride_height == stride &&
      p.stride_width == stride && p.dilation_height == 1 && p.dilation_width == 1 &&
      p.kernel_height == p.kernel_width && p.padding_height == p.kernel_height / 2 &&
      p.padding_width == p.padding_height && p.input_height == p.input_width &&
      march_fits_32_bits(p) && lanes_are_used(p.batch, kHalfOfLanes) && has_tensor_cores() &&
      std::all_of(tensors.begin(), tensors.end(), [](const Operand* tensor) {
        return is_aligned(tensor->const_data_ptr(), kAlignment);
      });
}

// The smallest window measured: 9 x 9 at 14 x 14 98 -> 29 us.
constexpr int64_t kLeastLaneTaps = 81;

// Whether lanes can take the call at all.
inline bool lanes_take(const Params& p, Type type, int64_t least_taps) {
  // Devices without tensor cores lack the asynchronous copies, and kMostShared.
  return type == Type::kFloat && !p.channels_last && p.multiplier == 1 && p.stride_height == 1 &&
      p.stride_width == 1 && p.dilation_height == 1 && p.dilation_width == 1 &&
      p.input_width == p.output_width && p.kernel_size() >= least_taps &&
      p.channels <= kMostGridRows && march_fits_32_bits(p) && has_tensor_cores();
}

} // namespace at::native::depthwise_conv2d_ext_cuda
