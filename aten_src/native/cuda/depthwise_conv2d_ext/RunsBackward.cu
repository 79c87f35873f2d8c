// All gradients of depthwise_conv2d_ext on planes of 7 x 7 (windows of 3 x 3, 5 x 5, 7 x 7) and of
// 14 x 14 (3 x 3) in float16 and bfloat16 in one kernel, or those of weight and bias, on the tensor
// cores, with runs of whole planes as columns of the matrices.
//
// A run is 8 neighbouring planes of 7 x 7, or 2 of 14 x 14, of an image: 392 elements, 49 octets of
// them, one piece of memory. A block owns the same run of all images, so that the weight's
// gradients of its channels are complete when it ends, and no second kernel adds anything up.
// Sixteen images are a step. Two warps copy their runs into a ring in shared memory, some steps
// ahead; there they are used as they lie in memory. Seven warps have grad_input, seven octets each,
// and seven others the weight's gradient: what both keep in registers is too much for one warp, and
// twice the warps hide more of one another's waits (960@7 k3 16.4 us by one role, 15.4 by two).
//
// grad_input of 16 images is a product of matrices,
//   dst[image][element] = sum of src[image][element'] · T[element'][element],
// where a tap lies if the elements are as far apart in memory as it says, in a row of the same
// plane. An octet of dst meets kHalo octets of src on each side of its own. T differs from octet to
// octet, and a warp keeps that of its own in registers.
//
// In the weight's gradient the images are the inner dimension: of an octet of grad_output and the
// octets of the input around it, the products of any two elements are summed over the images, each
// pair by itself. What belongs to a tap is picked out and added up at the end, so that no zeros
// outside an image are multiplied. A row of ones beside the input gives the bias.
//
// T has zeros, and they are multiplied: a result that is NaN is taken again, tap by tap.
//
// Microseconds of an H200 in float16, all gradients by other kernels and by this: 128 images of
// 960@7 k3 19.1 and 14.7, 1152@7 k5 31.6 and 23.7, 264@14 k3 27.0 and 15.6, 64 images of 768@7 k7
// 16.3 and 11.7; the weight's alone 13.8 and 11.7, 18.9 and 17.3, 15.8 and 12.9, 12.5 and 9.6.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Bulk.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kRunElements = 392;
// Bytes from image to image: the blocks of 16 of 8 images fall into different banks.
constexpr int kRunPitch = kRunElements * 2;
constexpr int kRunOctets = kRunElements / kOctet;
constexpr int kRoleWarps = 7; // for grad_input, and for the weight's gradient
constexpr int kRoleThreads = kRoleWarps * kWarpSize;
constexpr int kOwnOctets = kRunOctets / kRoleWarps; // of a warp
constexpr int kCopyWarps = 2;
constexpr int kCopyThreads = kCopyWarps * kWarpSize;
static_assert(kOwnOctets * kRoleWarps == kRunOctets && kRunPitch == kRunOctets * kBlockBytes);

template <typename scalar_t_, int kSide_, int kReach_, bool kData_>
struct RunTraits {
  using scalar_t = scalar_t_;
  static constexpr int kSide = kSide_; // of the planes
  static constexpr int kReach = kReach_; // of a window of 2 kReach + 1
  static constexpr bool kData = kData_; // whether grad_input is wanted
  static constexpr int kWindow = 2 * kReach + 1;
  static constexpr int kTaps = kWindow * kWindow;
  static constexpr int kPixels = kSide * kSide;
  static constexpr int kChannels = kRunElements / kPixels;
  // Octets on each side of its own that an octet meets: to the farthest tap.
  static constexpr int kHalo = (kReach * (kSide + 1) + kOctet - 1) / kOctet;
  static constexpr int kMet = 2 * kHalo + 1;
  // Of two octets at a time, those around a warp's own among them.
  static constexpr int kLoads = (kOwnOctets + 2 * kHalo + 1) / 2;
  static constexpr int kThreads = (kData ? 2 : 1) * kRoleThreads + kCopyThreads;
  static constexpr int kStages = 4; // as fast by three or five
  // Zeros in front of each tensor's runs, and behind the last: octets outside are read, and
  // multiplied by zeros.
  static constexpr int kPadBytes = (kHalo + 1) * kBlockBytes;
  static constexpr int kTileBytes = kPadBytes + kTileImages * kRunPitch;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kRingBytes = kStages * kStageBytes + kPadBytes;
  // Where a warp has results before they leave.
  static constexpr int kResultPitch = kOwnOctets * kBlockBytes;
  static constexpr int kResultBytes = kTileImages * kResultPitch;
  static constexpr int kResultsAt = kRingBytes;
  static constexpr int kBarriersAt = kResultsAt + (kData ? kRoleWarps * kResultBytes : 0);
  // A full one and an empty one a stage, and one for the end.
  static constexpr int kBarriers = 2 * kStages + 1;
  static constexpr int kShared = kBarriersAt + kBarriers * static_cast<int>(sizeof(uint64_t));
  static constexpr int kReaders = kThreads - kCopyThreads;
  // Distances between two elements of octets that meet.
  static constexpr int kFarthest = kHalo * kOctet + kOctet - 1;
  static constexpr int kDistances = 2 * kFarthest + 1;
  // What T is made of: taps of two neighbouring distances as words, places of two neighbouring
  // elements.
  static constexpr int kTapWords = kChannels * kDistances;
  static constexpr int kPlaceWords = (kRunOctets + 2 * kHalo) * (kOctet / 2);
  static_assert((kTapWords + kPlaceWords) * 4 <= kRoleWarps * kResultBytes);
  // Once the sums are complete, those of each element of grad_output by distance, behind them
  // biases. What is beyond kHalo octets is no tap's: it may lie on what is of the next element, so
  // that the places of a warp's elements fall into different banks.
  static constexpr int kSums = kDistances - 2;
  static_assert(kSums - kFarthest > kHalo * kOctet && (2 * kSums - 2) % 32 == 24);
  static constexpr int kSumBytes = (kRunElements * (kSums + 1) + kDistances) * 4;
  static_assert(kSumBytes <= kRingBytes);
  static constexpr int kBiasesAt = kRunElements * kSums + kDistances;
  static_assert(kPixels * kChannels == kRunElements && 2 * kReach < kSide);
};

// How many lanes side by side have a result: a power of two, as far as there are threads.
constexpr int lanes_of_result(int threads, int results) {
  int lanes = 1;
  while (lanes < kWarpSize / 2 && 2 * lanes * results <= threads) {
    lanes *= 2;
  }
  return lanes;
}

// Until `threads` threads have come to the barrier, from wherever they come.
__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

constexpr int kDataBarrier = 1; // of those of grad_input

// Which stages of the ring have their runs, and which have been read: so the roles meet while they
// march. By bar.sync, which each role meets at a place of its own, they are as fast, but
// compute-sanitizer takes that for an error, be it of all threads or of those of two roles.
template <typename Traits>
struct RingBarriers {
  static constexpr int kStages = Traits::kStages;

  const uint32_t first;
  int stage = 0; // the next, and the parity of its round
  uint32_t parity;

  __device__ __forceinline__ RingBarriers(const char* shared, uint32_t first_parity)
      : first(shared_address(shared + Traits::kBarriersAt)), parity(first_parity) {}

  __device__ __forceinline__ uint32_t full() const {
    return first + stage * static_cast<int>(sizeof(uint64_t));
  }

  __device__ __forceinline__ uint32_t empty() const {
    return full() + kStages * static_cast<int>(sizeof(uint64_t));
  }

  // That nobody reads the ring any more.
  __device__ __forceinline__ uint32_t unused() const {
    return first + 2 * kStages * static_cast<int>(sizeof(uint64_t));
  }

  // By one thread. All lanes of a warp will arrive: it takes as long as if one did.
  __device__ __forceinline__ void init() const {
#pragma unroll
    for (int i = 0; i < Traits::kBarriers; ++i) {
      init_barrier(
          first + i * static_cast<int>(sizeof(uint64_t)),
          i < kStages ? kCopyThreads : Traits::kReaders);
    }
  }

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Bytes from image to image.
template <typename Traits>
__device__ __forceinline__ int image_bytes(const Batch& p) {
  return p.channels * (Traits::kPixels * 2);
}

// Where the lane's part of matrices begins in a stage, with the octet kHalo before the warp's own:
// it has one image of one of two octets.
template <typename Traits>
__device__ __forceinline__ uint32_t matrices_of(const char* stage, int warp) {
  const int lane = threadIdx.x % kWarpSize;
  return static_cast<uint32_t>(__cvta_generic_to_shared(stage)) + Traits::kPadBytes +
      lane % kTileImages * kRunPitch +
      (warp * kOwnOctets - Traits::kHalo + lane / kTileImages) * kBlockBytes;
}

// Octets around a warp's own ones, as halves of matrices, loaded two by two when the first is
// wanted.
template <typename Traits, bool kTransposed>
struct Octets {
  uint32_t words[2 * Traits::kLoads][2];

  // Those that the warp's octet i meets, of which it has those that i - 1 meets. `from` is
  // matrices_of().
  __device__ __forceinline__ void load(int i, uint32_t from) {
#pragma unroll
    for (int j = 0; j < Traits::kLoads; ++j) {
      const int last = i + Traits::kMet - 1;
      if (2 * j <= last && (i == 0 || 2 * j == last)) {
        uint32_t got[4];
        if constexpr (kTransposed) {
          load_matrices_transposed(got, from + j * (2 * kBlockBytes));
        } else {
          load_matrices(got, from + j * (2 * kBlockBytes));
        }
        words[2 * j][0] = got[0];
        words[2 * j][1] = got[1];
        words[2 * j + 1][0] = got[2];
        words[2 * j + 1][1] = got[3];
      }
    }
  }
};

// Asks for the runs of a step, of grad_output and the input. Eight lanes have an image, and ask for
// one line of memory at a time: of lines by halves an SM takes half as many bytes a cycle.
template <typename Traits>
__device__ __forceinline__ void load_runs(
    char* stage,
    const BatchOperands<typename Traits::scalar_t>& t,
    const Batch& p,
    int thread,
    int step) {
  constexpr int kLanes = 8;
  constexpr int kAtOnce = kCopyThreads / kLanes; // images
  static_assert(kLanes * kBlockBytes == kLineBytes);
  constexpr int kLines = (kRunOctets + kLanes - 1 + kLanes - 1) / kLanes; // that a run may meet
  const int lane = thread % kLanes;
#pragma unroll
  for (int i = 0; i < kTileImages / kAtOnce; ++i) {
    const int of_step = i * kAtOnce + thread / kLanes;
    const int image = step * kTileImages + of_step;
    const bool exists = image < p.batch;
    const int run = (exists ? image : 0) * image_bytes<Traits>(p) + blockIdx.x * kRunPitch;
    const int phase = run / kBlockBytes % kLanes; // in the line of its begin
    const int first = (lane - phase) * kBlockBytes;
    const char* const src = reinterpret_cast<const char*>(t.src) + run + first;
    const char* const input = reinterpret_cast<const char*>(t.input) + run + first;
    char* const to = stage + Traits::kPadBytes + of_step * kRunPitch + first;
#pragma unroll
    for (int line = 0; line < kLines; ++line) {
      const int vector = line * kLanes - phase + lane;
      if ((line > 0 || vector >= 0) && ((line + 1) * kLanes <= kRunOctets || vector < kRunOctets)) {
        copy_block_or_zeros(to + line * kLineBytes, src + line * kLineBytes, exists);
        copy_block_or_zeros(
            to + Traits::kTileBytes + line * kLineBytes, input + line * kLineBytes, exists);
      }
    }
  }
}

template <typename Traits>
__device__ __forceinline__ void clear_pads(char* ring) {
  constexpr int kVectors = Traits::kPadBytes / kBlockBytes;
  constexpr int kPads = 2 * Traits::kStages + 1;
  static_assert(kPads * kVectors <= kRoleThreads);
  const int i = threadIdx.x;
  if (i < kPads * kVectors) {
    *reinterpret_cast<uint4*>(
        ring + i / kVectors * Traits::kTileBytes + i % kVectors * kBlockBytes) =
        make_uint4(0, 0, 0, 0);
  }
}

// The lane's results in an image that are NaN again, tap by tap. `results` are the warp's of this
// image.
template <typename Traits>
__device__ __noinline__ void retake_elements(
    typename Traits::scalar_t* results,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    int image,
    int warp,
    const Batch& p) {
  const Lane at;
  for (int i = 0; i < 2 * kOwnOctets; ++i) {
    const int own = i / 2 * kOctet + 2 * at.pair + i % 2;
    const int element = warp * (kOwnOctets * kOctet) + own;
    const int channel = blockIdx.x * Traits::kChannels + element / Traits::kPixels;
    const int pixel = element % Traits::kPixels;
    retake(
        results[own],
        src + (image * p.channels + channel) * Traits::kPixels,
        weight + channel * Traits::kTaps,
        0.0f,
        p,
        pixel / Traits::kSide,
        pixel % Traits::kSide);
  }
}

// grad_input, by a warp of those that have it: dst from src, which is grad_output.
template <typename Traits>
struct DataRole {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kSide = Traits::kSide;
  static constexpr int kReach = Traits::kReach;
  static constexpr int kHalo = Traits::kHalo;
  static constexpr int kMet = Traits::kMet;

  const Lane at;
  const int thread = threadIdx.x - kRoleThreads;
  const int warp = thread / kWarpSize;
  // T: of each of the warp's octets, parts with the octets from kHalo before it on.
  uint32_t bands[kOwnOctets][kMet];

  // A number of an element's channel and column, of 15 bits: of two elements it differs by at most
  // kReach where a row of taps may reach from one to the other, and by far more where they are of
  // different channels.
  static constexpr int kApart = 64; // from channel to channel
  static __device__ __forceinline__ uint32_t place_of(int element) {
    const int from = element + Traits::kPixels; // none is negative
    return from / Traits::kPixels * kApart + from % kSide;
  }

  // The bits of each half whose sign is set.
  static __device__ __forceinline__ uint32_t halves_of_signs(uint32_t word) {
    uint32_t halves; // __byte_perm() would leave the signs out of the selector
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(halves) : "r"(word));
    return halves;
  }

  // Makes T, by way of tables in `scratch`.
  __device__ __forceinline__ void make_bands(char* scratch, const scalar_t* weight) {
    constexpr int kTaps = Traits::kChannels * Traits::kTaps;
    constexpr int kTapsOfThread = (kTaps + kRoleThreads - 1) / kRoleThreads;
    uint32_t* const tap_words = reinterpret_cast<uint32_t*>(scratch);
    uint32_t* const place_words = tap_words + Traits::kTapWords;
    unsigned short* const halves = reinterpret_cast<unsigned short*>(scratch);
    unsigned short taps[kTapsOfThread];
#pragma unroll
    for (int i = 0; i < kTapsOfThread; ++i) {
      const int tap = i * kRoleThreads + thread;
      if (tap < kTaps) {
        taps[i] = reinterpret_cast<const unsigned short*>(weight)[blockIdx.x * kTaps + tap];
      }
    }
#pragma unroll 1
    for (int i = thread; i < Traits::kTapWords; i += kRoleThreads) {
      tap_words[i] = 0;
    }
#pragma unroll 1
    for (int i = thread; i < Traits::kPlaceWords; i += kRoleThreads) {
      const int element = 2 * i - kHalo * kOctet;
      place_words[i] = place_of(element) | place_of(element + 1) << 16;
    }
    meet(kDataBarrier, kRoleThreads);
#pragma unroll
    for (int i = 0; i < kTapsOfThread; ++i) {
      const int tap = i * kRoleThreads + thread;
      if (tap < kTaps) {
        const int channel = tap / Traits::kTaps;
        const int of_channel = tap - channel * Traits::kTaps;
        const int row = of_channel / Traits::kWindow;
        // From the element of dst to that of src, whose taps are flipped.
        const int distance = (kReach - row) * kSide + kReach - (of_channel - row * Traits::kWindow);
        unsigned short* const to =
            halves + 2 * (channel * Traits::kDistances + distance + Traits::kFarthest);
        to[0] = taps[i];
        to[-1] = taps[i];
      }
    }
    meet(kDataBarrier, kRoleThreads);
    constexpr uint32_t kTwice = 0x10001;
    constexpr uint32_t kSigns = 0x8000 * kTwice;
    const uint32_t* const places = place_words + warp * (kOwnOctets * kOctet / 2);
    uint32_t met[kOwnOctets + 2 * kHalo];
#pragma unroll
    for (int i = 0; i < kOwnOctets + 2 * kHalo; ++i) {
      met[i] = places[i * (kOctet / 2) + at.pair];
    }
#pragma unroll
    for (int i = 0; i < kOwnOctets; ++i) {
      const uint32_t place =
          reinterpret_cast<const unsigned short*>(places)[(kHalo + i) * kOctet + at.row];
      const uint32_t* const of_channel =
          tap_words + (place / kApart - 1) * Traits::kDistances + kOctet - 1 + 2 * at.pair - at.row;
      // Their differences' signs say of each half that its element is not too far to the left, or
      // to the right.
      const uint32_t least = (place - kReach) * kTwice;
      const uint32_t most = (place + kReach) * kTwice | kSigns;
#pragma unroll
      for (int j = 0; j < kMet; ++j) {
        bands[i][j] = of_channel[j * kOctet] &
            halves_of_signs(((met[i + j] | kSigns) - least) & (most - met[i + j]));
      }
    }
    meet(kDataBarrier, kRoleThreads); // before results take the tables' place
  }

  // A step. `results` are the warp's own, in shared memory.
  __device__ __forceinline__ void convolve(
      char* results,
      const char* stage,
      int step,
      const BatchOperands<scalar_t>& t,
      const Batch& p) const {
    const uint32_t from = matrices_of<Traits>(stage, warp);
    Octets<Traits, false> src;
    float check = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwnOctets; ++i) {
      src.load(i, from);
      float sums[4] = {};
#pragma unroll
      for (int j = 0; j < kMet; j += 2) {
        const uint32_t (&low)[2] = src.words[i + j];
        if (j + 1 < kMet) {
          const uint32_t (&high)[2] = src.words[i + j + 1];
          multiply_16<scalar_t>(
              sums, low[0], low[1], high[0], high[1], bands[i][j], bands[i][j + 1]);
        } else {
          multiply_8<scalar_t>(sums, low[0], low[1], bands[i][j]);
        }
      }
      // NaN where one of them is; a difference of infinities is too, which costs time only.
      check += (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint32_t*>(
            results + (half * kOctet + at.row) * Traits::kResultPitch + i * kBlockBytes +
            at.pair * 4) = pack_two<scalar_t>(sums[2 * half], sums[2 * half + 1]);
      }
    }
    if (isnan(check)) {
      for (int image = at.row; image < kTileImages; image += kOctet) {
        if (step * kTileImages + image < p.batch) {
          retake_elements<Traits>(
              reinterpret_cast<scalar_t*>(results + image * Traits::kResultPitch),
              t.src,
              t.weight,
              step * kTileImages + image,
              warp,
              p);
        }
      }
    }
    __syncwarp();
    // Eight lanes have an image, and seven of them a vector each.
    constexpr int kLanes = 8;
    constexpr int kAtOnce = kWarpSize / kLanes;
    const int lane = threadIdx.x % kLanes;
    const int first = threadIdx.x % kWarpSize / kLanes; // image
    char* const dst = reinterpret_cast<char*>(t.dst) + blockIdx.x * kRunPitch +
        warp * Traits::kResultPitch + lane * kBlockBytes;
    const char* const of_lane = results + first * Traits::kResultPitch + lane * kBlockBytes;
#pragma unroll
    for (int i = 0; i < kTileImages / kAtOnce; ++i) {
      const int image = step * kTileImages + i * kAtOnce + first;
      if (lane < kOwnOctets && image < p.batch) {
        *reinterpret_cast<uint4*>(dst + image * image_bytes<Traits>(p)) =
            *reinterpret_cast<const uint4*>(of_lane + i * (kAtOnce * Traits::kResultPitch));
      }
    }
    __syncwarp(); // before they are written again
  }
};

// The weight's gradient, by a warp of those that have it.
template <typename Traits>
struct WeightRole {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kHalo = Traits::kHalo;

  const Lane at;
  const int warp = threadIdx.x / kWarpSize;
  // Of each of the warp's octets of grad_output, with pairs of octets of the input from kHalo
  // before it on; the last of them has ones beside it.
  float sums[kOwnOctets][kHalo + 1][4] = {};

  // A step.
  __device__ __forceinline__ void add(const char* stage) {
    constexpr uint32_t kOnes = kTwoOnes<scalar_t>;
    const uint32_t from = matrices_of<Traits>(stage, warp);
    Octets<Traits, true> input;
    uint32_t grads[4];
#pragma unroll
    for (int i = 0; i < kOwnOctets; ++i) {
      input.load(i, from + Traits::kTileBytes);
      if (i % 2 == 0) {
        load_matrices_transposed(grads, from + (i + kHalo) * kBlockBytes);
      }
      const uint32_t* const grad = grads + i % 2 * 2;
#pragma unroll
      for (int j = 0; j < kHalo; ++j) {
        const uint32_t (&low)[2] = input.words[i + 2 * j];
        const uint32_t (&high)[2] = input.words[i + 2 * j + 1];
        multiply_16<scalar_t>(sums[i][j], low[0], high[0], low[1], high[1], grad[0], grad[1]);
      }
      const uint32_t (&last)[2] = input.words[i + 2 * kHalo];
      multiply_16<scalar_t>(sums[i][kHalo], last[0], kOnes, last[1], kOnes, grad[0], grad[1]);
    }
  }

  // All sums by element of grad_output and distance, behind them the biases of elements.
  __device__ __forceinline__ void write(float* to) const {
    const int element = warp * (kOwnOctets * kOctet) + 2 * at.pair;
    float* const biases = to + Traits::kBiasesAt + element;
    to += element * Traits::kSums + at.row - 2 * at.pair - kHalo * kOctet + Traits::kFarthest;
#pragma unroll
    for (int i = 0; i < kOwnOctets; ++i) {
#pragma unroll
      for (int j = 0; j < Traits::kMet; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          to[(i * kOctet + odd) * Traits::kSums + j * kOctet - odd] =
              sums[i][j / 2][j % 2 * 2 + odd];
        }
      }
      if (at.row == 0) {
        biases[i * kOctet] = sums[i][kHalo][2];
        biases[i * kOctet + 1] = sums[i][kHalo][3];
      }
    }
  }
};

// The gradients of the block's taps and biases out of what WeightRole::write() wrote. Where there
// are more threads than results, several lanes have one, each some rows of a plane.
template <typename Traits>
__device__ __forceinline__ void write_gradients(
    const float* sums,
    const BatchOperands<typename Traits::scalar_t>& t) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kSide = Traits::kSide;
  constexpr int kOfChannel = Traits::kTaps + 1;
  constexpr int kResults = Traits::kChannels * kOfChannel;
  constexpr int kLanes = lanes_of_result(Traits::kThreads, kResults);
  constexpr int kAtOnce = Traits::kThreads / kLanes;
  const int lane = threadIdx.x % kLanes;
#pragma unroll 1
  for (int first = 0; first < kResults; first += kAtOnce) {
    const int result = first + threadIdx.x / kLanes;
    const int channel = result / kOfChannel;
    const int tap = result - channel * kOfChannel;
    const bool is_bias = tap == Traits::kTaps;
    const int tap_row = tap / Traits::kWindow;
    const int down = is_bias ? 0 : tap_row - Traits::kReach;
    const int right = is_bias ? 0 : tap - tap_row * Traits::kWindow - Traits::kReach;
    const int next = is_bias ? 1 : Traits::kSums; // to the sum of the next element
    const float* const from = sums + channel * (Traits::kPixels * next) +
        (is_bias ? Traits::kBiasesAt : down * kSide + right + Traits::kFarthest);
    float sum = 0.0f;
    if (result < kResults) {
      const int end = min(kSide, kSide - down);
#pragma unroll 2
      for (int row = max(0, -down) + lane; row < end; row += kLanes) {
        float values[kSide]; // read together; what belongs to columns outside is there too
#pragma unroll
        for (int column = 0; column < kSide; ++column) {
          values[column] = from[(row * kSide + column) * next];
        }
        float of_row = 0.0f;
#pragma unroll
        for (int column = 0; column < kSide; ++column) {
          const bool has = column + right >= 0 && column + right < kSide;
          of_row += has ? values[column] : 0.0f;
        }
        sum += of_row;
      }
    }
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    }
    if (result < kResults && lane == 0) {
      const int of = blockIdx.x * Traits::kChannels + channel;
      if (is_bias && t.grad_bias) {
        t.grad_bias[of] = static_cast<scalar_t>(sum);
      } else if (!is_bias && t.grad_weight) {
        t.grad_weight[of * Traits::kTaps + tap] = static_cast<scalar_t>(sum);
      }
    }
  }
}

// A block for each run.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, 1)
__global__ void runs_kernel(
    const __grid_constant__ BatchOperands<typename Traits::scalar_t> t,
    const __grid_constant__ Batch p) {
  extern __shared__ uint4 shared_blocks[];
  char* const ring = reinterpret_cast<char*>(shared_blocks);
  const int copier = threadIdx.x - Traits::kReaders; // negative: none
  const bool copies = copier >= 0;
  RingBarriers<Traits> barriers(ring, copies ? 1 : 0); // at first all stages are empty
  // The first step's runs are on their way before the barriers are there: all gradients of 64
  // images of 528@14 in half 19.8 us otherwise, 18.7 so, of 32 of 960@7 9.0 and 8.8.
  if (copies) {
    load_runs<Traits>(ring, t, p, copier, 0);
  } else {
    if (threadIdx.x == 0) {
      barriers.init();
    }
    clear_pads<Traits>(ring);
  }
  __syncthreads();
  if (threadIdx.x < kRoleThreads) {
    WeightRole<Traits> role;
#pragma unroll 1
    for (int step = 0; step < p.tiles; ++step) {
      wait_for(barriers.full(), barriers.parity);
      role.add(ring + barriers.stage * Traits::kStageBytes);
      arrive(barriers.empty());
      barriers.advance();
    }
    arrive(barriers.unused());
    wait_for(barriers.unused(), 0); // before sums take the ring's place
    role.write(reinterpret_cast<float*>(ring));
  } else if (copies) {
    arrive_when_copied(barriers.full());
    barriers.advance();
#pragma unroll 1
    for (int step = 1; step < p.tiles; ++step) {
      wait_for(barriers.empty(), barriers.parity);
      load_runs<Traits>(ring + barriers.stage * Traits::kStageBytes, t, p, copier, step);
      arrive_when_copied(barriers.full());
      barriers.advance();
    }
  } else if constexpr (Traits::kData) {
    char* const results = ring + Traits::kResultsAt;
    DataRole<Traits> role;
    role.make_bands(results, t.weight);
#pragma unroll 1
    for (int step = 0; step < p.tiles; ++step) {
      wait_for(barriers.full(), barriers.parity);
      role.convolve(
          results + role.warp * Traits::kResultBytes,
          ring + barriers.stage * Traits::kStageBytes,
          step,
          t,
          p);
      arrive(barriers.empty());
      barriers.advance();
    }
    arrive(barriers.unused());
  }
  __syncthreads();
  write_gradients<Traits>(reinterpret_cast<const float*>(ring), t);
}

// Whether it is faster than the others for so many images and runs. Microseconds of an H200 in
// float16, by those and by this.
template <typename Traits>
bool runs_pay(const Params& p) {
  constexpr bool kData = Traits::kData;
  const int64_t runs = p.channels / Traits::kChannels;
  // All gradients of 16 images of 960@7 k3 8.1, 7.1, k5 8.1, 8.1; the weight's of 16 k5 6.6, 7.0,
  // of 32 7.9, 7.7.
  constexpr int64_t kLeastImages = kData ? 16 : 32;
  if (p.batch < kLeastImages) {
    return false;
  }
  if (runs <= device_attribute(cudaDevAttrMultiProcessorCount)) {
    // A block takes its images one after the other, the others share them: all of 192@7 k3, 24
    // runs, of 64 images 9.0, 8.8, of 128 10.2, 11.7; of 384@7 k3 13.5, 12.0, of 256 images 17.4,
    // 17.7.
    constexpr int64_t kFewImages = 64;
    constexpr int64_t kImagesOfRun = 4; // for each run there is
    return p.batch <= std::max(kFewImages, kImagesOfRun * runs);
  }
  // Some multiprocessors have two runs, one after the other.
  if constexpr (!kData) {
    // 1152@7 k3 of 64 images 11.5, 11.1, of 128 15.9, 15.0; k5 12.1, 13.2 and 18.9, 17.0; k7 15.2,
    // 15.4 and 22.6, 20.5; 384@14 11.7, 13.3 and 17.1, 17.8.
    constexpr int64_t kManyImages = Traits::kWindow == 3 ? 64 : 128;
    return Traits::kSide == 7 && p.batch >= kManyImages;
  } else {
    // 1152@7 k5 of 32 images 13.2, 13.3, of 64 19.4, 17.8, of 128 31.7, 24.1; k7 13.5, 14.8, 20.3,
    // 19.3 and 34.0, 28.2; k3 11.2, 11.1, 18.6, 15.1 and 21.2, 21.2, of 256 29.6, 33.9.
    constexpr int64_t kManyImages = 64;
    // With more, flat planes: 288@14 k3 of 128 images 30.5, 23.1, 384@14 23.7, 24.2.
    constexpr int64_t kMostOfSmallWindows = 20000;
    return p.batch >= kManyImages && (Traits::kWindow > 3 || p.batch * runs <= kMostOfSmallWindows);
  }
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& p) {
  using scalar_t = typename Traits::scalar_t;
  if (!runs_pay<Traits>(p) || !has_shared(Traits::kShared)) {
    return false;
  }
  Batch b = batch_of(p);
  b.flip = true; // of grad_input
  BatchOperands<scalar_t> operands{};
  operands.dst = mutable_pointer_or_null<scalar_t>(pass.grad_input);
  operands.src = pass.grad_output.const_data_ptr<scalar_t>();
  operands.weight = pass.weight.const_data_ptr<scalar_t>();
  operands.input = pass.input.const_data_ptr<scalar_t>();
  operands.grad_weight = mutable_pointer_or_null<scalar_t>(pass.grad_weight);
  operands.grad_bias = mutable_pointer_or_null<scalar_t>(pass.grad_bias);
  allow_shared(runs_kernel<Traits>, Traits::kShared);
  runs_kernel<Traits>
      <<<p.channels / Traits::kChannels,
         Traits::kThreads,
         Traits::kShared,
         c10::cuda::getCurrentCUDAStream()>>>(operands, b);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

template <bool kData>
bool launch_any(const BackwardPass& pass, const Params& p) {
  return with_scalar_type(pass.input.scalar_type(), [&](auto scalar) {
    using scalar_t = decltype(scalar);
    return with_small_plane(p, [&](auto side, auto window) {
      constexpr int kSide = decltype(side)::value;
      constexpr int kWindow = decltype(window)::value;
      using Traits = RunTraits<scalar_t, kSide, kWindow / 2, kData>;
      // Of 14 x 14 larger windows reach over too many octets.
      if constexpr (sizeof(scalar_t) == 2 && (kSide == 7 || kWindow == 3)) {
        return launch<Traits>(pass, p);
      } else {
        return false;
      }
    });
  });
}

} // namespace

bool runs_backward(const BackwardPass& pass, const Params& p) {
  const bool data = pass.grad_input.defined();
  if (batch_side(p, {&pass.grad_output, &pass.input, &pass.weight}, true) == 0 ||
      (data && batch_side(p, {&pass.grad_input}, true) == 0) || p.kernel_height != p.kernel_width) {
    return false;
  }
  return data ? launch_any<true>(pass, p) : launch_any<false>(pass, p);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
