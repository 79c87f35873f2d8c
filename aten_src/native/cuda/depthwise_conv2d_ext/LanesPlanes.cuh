// depthwise_conv2d_ext on planes of 7 x 7 and 14 x 14 in float32, of the same size in and out, many images
// at a time: the lanes of a warp are 32 images of one channel, as in Lanes.cu. The
// windows are 3 x 3, 5 x 5 and 7 x 7, so that the kernels wait for memory, and what counts is that many
// loads are under way and that blocks are at different stages.
//
// A lane has seven rows of its plane and marches over them. Every row is taken into registers once and
// meets the rows that its taps reach, whose sums are in registers; a tap is one broadcast of shared
// memory for 32 images. The march goes from the middle of a plane of 14 rows outwards, for one of its
// two warps upwards, so that which rows exist is the same for both and known when the kernel is
// compiled: all of it is unrolled, and nothing outside the image is loaded or multiplied. So nothing
// spoils what is not finite.
//
// No other lane reads what a lane computes from but the other warp's first rows, so that results take
// the place of their sources, warps meet no more than twice, and those of different channels never.
//
// All gradients are taken in one pass: a row of the input meets the rows of grad_output around it in the
// weight's gradient, one sum a tap, and they give the same row of grad_input, which takes the input's
// place. A block has all images of its channels; its sums are the result, without partials.
//
// Microseconds of an H200, forward and all gradients, by patches and by this (a copy of the input):
// 128 images of 960 planes of 7 x 7, 3 x 3, 23 and 46, 21 and 37 (16); of 1,152, 5 x 5, 35 and 89,
// 25 and 46 (18); 64 of 768, 7 x 7, 18 and 49, 13 and 24 (9); 128 of 384 planes of 14 x 14, 3 x 3,
// 31 and 58, 26 and 57 (22); 64 of 384, 7 x 7, 30 and 83, 23 and 61 (13).
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Lanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kWarpRows = 7; // of a warp
constexpr int kPlanesWarps = 4; // of a block
constexpr int kPlanesThreads = kPlanesWarps * kWarpSize;

struct LanesPlanes {
  int32_t batch;
  int32_t channels;
  int32_t block_channels;
  int32_t ways; // warps, or pairs of them, that share the images of a channel
  bool flip;
};

template <int kSide_, int kWindow_, bool kData_, bool kWeight_>
struct LanesPlanesTraits {
  static constexpr int kSide = kSide_;
  static constexpr int kWindow = kWindow_;
  static constexpr bool kData = kData_; // whether dst is wanted
  static constexpr bool kWeight = kWeight_; // whether the weight's gradient is
  static constexpr int kReach = kWindow / 2;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kPixels = kSide * kSide;
  static constexpr int kWarps = kSide / kWarpRows; // of a plane
  static constexpr int kOwnRow = kFirstOwnRow<float, Window<kWindow, kWindow, 1>>;
  // Rows of the march: those before the first of its own that exist, its own, and no more.
  static constexpr int kFirst = kWarps == 1 ? kReach : 0;
  static constexpr int kEnd = kReach + kWarpRows;
  static constexpr int kWords = lane_words(kSide);
  static constexpr int kVectors = kPixels / kWords;
  // An odd number of vectors, for the banks.
  static constexpr int kPitch = (kVectors | 1) * kWords;
  static constexpr int kPlaneWords = kWarpSize * kPitch;
  static constexpr int kTapPitch = kWindow > 4 ? 8 : 4;
  static constexpr int kTapWords = kWindow * kTapPitch; // for each warp of a plane, in its order
  static constexpr int kTensors = kWeight ? 2 : 1;
  static constexpr int kUnitWords = kTensors * kPlaneWords + kWarps * kTapWords;
  static constexpr int kMostUnits = kPlanesWarps / kWarps; // planes of 32 images, of a block
  static constexpr int kSums = (kTaps + kWarpSize - 1) / kWarpSize * kWarpSize;
  static constexpr int kOwn = kSums / kWarpSize; // of a lane, once added up
  // By the registers and shared memory.
  static constexpr bool kManyTaps = kTaps > 25;
  static constexpr int kWeightBlocks = kWarps == 2 ? 2 : kManyTaps ? 3 : 4;
  static constexpr int kDataBlocks = kWarps == 1 && kTaps == 9 ? 6
      : kWarps == 2 && kManyTaps                               ? 3
                                                               : 4;
  static constexpr int kBlocks = kWeight ? kWeightBlocks : kDataBlocks;
  static constexpr int kChain = 8; // groups of images until a lane's sums are added to the others'
  static_assert(kSide % kWarpRows == 0);
};

#ifdef __CUDACC__
// All warps of a plane. Those of others may be elsewhere.
template <typename Traits>
__device__ __forceinline__ void meet(int unit) {
  if constexpr (Traits::kWarps == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(unit + 1), "n"(Traits::kWarps * kWarpSize) : "memory");
  }
}

// Planes of a channel in vectors, from element `first` on, `step` elements apart.
template <typename Traits>
__device__ __forceinline__ Runs plane_runs(int first, int images, int step) {
  return {first / Traits::kWords, images, Traits::kPitch / Traits::kWords, step / Traits::kWords};
}

template <typename Traits>
__device__ __forceinline__ void load_planes(float* to, const float* from, const Runs& runs) {
  load_runs<Packed<float, Traits::kWords>, Traits::kVectors, Traits::kWarps * kWarpSize>(
      to, from, runs);
}

template <typename Traits>
__device__ __forceinline__ void store_planes(float* to, const float* from, const Runs& runs) {
  store_runs<Packed<float, Traits::kWords>, Traits::kVectors, Traits::kWarps * kWarpSize>(
      to, from, runs);
}

// The taps of a channel, for each warp of a plane in the order of its march.
template <typename Traits>
__device__ __forceinline__ void stage_plane_taps(float* to, const float* weight, bool flip) {
  constexpr int kWindow = Traits::kWindow;
  constexpr int kThreads = Traits::kWarps * kWarpSize;
  for (int i = threadIdx.x % kThreads; i < Traits::kWarps * Traits::kTapWords; i += kThreads) {
    const int kw = i % Traits::kTapPitch;
    const int row = i / Traits::kTapPitch % kWindow;
    // The first of two warps marches upwards.
    const bool upwards = i / Traits::kTapWords + 1 < Traits::kWarps;
    const int tap = (upwards ? kWindow - 1 - row : row) * kWindow + kw;
    to[i] = kw < kWindow ? weight[flip ? Traits::kTaps - 1 - tap : tap] : 0.0f;
  }
}

// The place of a warp in a plane.
template <typename Traits>
struct Part {
  int first; // the row that its march's own rows begin with
  int next; // words to the next row
  bool upwards;

  __device__ __forceinline__ explicit Part(int part) {
    upwards = part + 1 < Traits::kWarps;
    first = Traits::kWarps == 1 ? 0 : upwards ? kWarpRows - 1 : kWarpRows;
    next = upwards ? -Traits::kSide : Traits::kSide;
  }

  // Row `i` of the march, whose own rows are from `before` on.
  __device__ __forceinline__ int offset(int i, int before) const {
    return first * Traits::kSide + (i - before) * next;
  }
};

template <typename Traits>
__device__ __forceinline__ void read_row(float (&row)[Traits::kSide], const float* from) {
#pragma unroll
  for (int t = 0; t < Traits::kSide; t += Traits::kWords) {
    read_words<Traits::kWords>(row + t, from + t);
  }
}

// Adds to a row of dst what a row of src gives it by a row of taps, if `own` summed by itself first.
template <typename Traits>
__device__ __forceinline__ void add_row(
    float (&sums)[Traits::kSide],
    const float (&src)[Traits::kSide],
    const float* taps,
    bool own) {
  float factors[Traits::kTapPitch];
  read_taps(factors, taps);
  add_plane_row<Traits::kWindow>(sums, src, own, [&](int kw) { return factors[kw]; });
}
#endif

// Calls launch with the traits of the planes and the window; false where there are none.
template <bool kData, bool kWeight, typename Launch>
bool with_lanes_planes(const Params& p, const Launch& launch) {
  return with_small_plane(p, [&](auto side, auto window) {
    constexpr int kSide = decltype(side)::value;
    return launch(LanesPlanesTraits<kSide, decltype(window)::value, kData, kWeight>());
  });
}

// Whether the planes are as these kernels have them, and many enough.
inline bool lanes_planes_take(const Params& p, std::initializer_list<const TensorBase*> tensors) {
  constexpr int64_t kSomeElements = 132 * 4096; // of fewer shorter chains count
  return lanes_take_planes(p, 1, tensors) &&
      p.batch * p.channels * p.input_height * p.input_width > kSomeElements &&
      std::all_of(tensors.begin(), tensors.end(), [](const TensorBase* tensor) {
           return tensor->scalar_type() == kFloat;
         });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
