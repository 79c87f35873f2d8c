// What the patch kernels of depthwise_conv2d_ext share: their geometry, the flat copies between
// device memory and shared memory, and the convolution of one patch.
//
// A block takes whole planes that lie one after the other in memory or, of a large plane, a band of
// rows. Either way what it reads and what it writes are single runs of memory, which it copies flat,
// 16 bytes at a time wherever they begin: neither the width nor the padding matters to the memory.
//
// A thread computes a patch of a few rows of seven columns. It walks down the rows of src in shared
// memory; each is read once and feeds the dst rows that it belongs to, whose sums are in registers.
// With seven rows and seven columns to a patch, neighbouring threads read elements 7 apart along a
// row and 7 W apart down a plane, which never meet in a bank (in 16 bit: not more than two) where W
// is 7 times a power of two up to 16: 7, 14, 28, 56 and 112, where there is also nothing left over.
//
// Everything is as wide in shared memory as in device memory: 16-bit elements converted on the way in
// would halve the number of blocks that fit, and cost a third more time than their bank conflicts do.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kPatchTile = 7;
// Elements of shared memory before the first buffer and after each: a patch reads what lies beside
// its image too, of which nothing is used.
constexpr int kMargin = 32;
static_assert(kMargin >= kPatchTile * 2 + 7);

// What a block may have of shared memory: all devices from sm_75 on give that much when asked.
constexpr size_t kMostPatchShared = 64 * 1024;

// Elements that a flat copy moves at once.
template <typename scalar_t>
constexpr int kFlatVector = 16 / sizeof(scalar_t);

// dst is computed from src of the same number of planes.
struct Patches {
  int32_t planes;
  int32_t channels;
  int32_t src_height;
  int32_t src_width;
  int32_t dst_height;
  int32_t dst_width;
  int32_t padding_height;
  int32_t padding_width;
  bool flip; // the taps are read backwards
  int32_t planes_per_block; // 1 where a plane has several bands
  int32_t bands;
  int32_t rows_per_band; // of dst
  int32_t rows_per_patch;
  int32_t strips; // patches down a band
  int32_t tiles; // patches along a row
  int32_t src_elements; // room for what a block reads, and for what it writes
  int32_t dst_elements;

  C10_HOST_DEVICE int32_t tasks() const {
    return planes_per_block * strips * tiles;
  }
};

// kRows: of a patch, if the kernel is unrolled for them; 0: the plan says.
template <typename scalar_t_, typename Window, int kRows_ = 0>
struct PatchTraits {
  using scalar_t = scalar_t_;
  static constexpr int kRows = kRows_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kStride = Window::kStride;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kAlike = kTaps; // sums that are added as taps are
  static constexpr int kTile = kPatchTile;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kSlots = (kHeight + kStride - 1) / kStride;
  static constexpr int kColumns = (kTile - 1) * kStride + kWidth;
  // A round takes as many dst rows as there are sums under way, which so stay in their registers.
  static constexpr int kRound = kRows > 0 ? kRows + kSlots - 1 : kSlots;
  // Once there are many taps, rows of neighbouring patches are not worth their products.
  static constexpr bool kAsksWanted = kRows > 0 || kTaps > 9;

  // Rows of which a kernel knows at compile time that they belong to the patch.
  static constexpr C10_HOST_DEVICE int rows(int planned) {
    return kRows > 0 ? kRows : planned;
  }
  // Taps and bias of a plane in shared memory: an odd number of words, for the banks.
  static constexpr int kTapWords = kTaps + 2;
  static_assert(kTapWords % 2 == 1);
  static_assert(kColumns <= 32, "a mask of 32 bits tells the columns inside the image");

  // Where the sums are, `row` rows into a round, of the dst row that began `age` rows before.
  static constexpr C10_HOST_DEVICE int slot(int row, int age) {
    return (row - age + kSlots) % kSlots;
  }
};

// One thread's patch.
struct Patch {
  int32_t plane; // of the block
  int32_t row; // of the band
  int32_t column;
  bool exists;
};

#ifdef __CUDACC__
__device__ __forceinline__ Patch patch_of(const Patches& p, int planes) {
  Patch patch;
  patch.column = threadIdx.x % p.tiles * kPatchTile;
  patch.row = threadIdx.x / p.tiles % p.strips * p.rows_per_patch;
  patch.plane = threadIdx.x / p.tiles / p.strips;
  patch.exists = patch.plane < planes;
  return patch;
}

// A run of elements in device memory and where it falls into vectors of 16 bytes. In shared memory
// it lies as far from a vector's boundary, at element lead().
template <typename scalar_t>
struct Run {
  static constexpr int kVector = kFlatVector<scalar_t>;
  scalar_t* base; // on a boundary
  int begin;
  int end;
  int first; // of the whole vectors
  int last; // exclusive; not after `first` where there are none

  __device__ __forceinline__ Run(scalar_t* from, int count) {
    begin = static_cast<int>(
        reinterpret_cast<uintptr_t>(from) / sizeof(scalar_t) % static_cast<unsigned int>(kVector));
    base = from - begin;
    end = begin + count;
    first = (begin + kVector - 1) / kVector * kVector;
    last = end / kVector * kVector;
  }

  __device__ __forceinline__ int lead() const {
    return begin;
  }

  // The few elements before and after the whole vectors, a thread each.
  template <typename Function>
  __device__ __forceinline__ void edges(const Function& function) const {
    const int thread = threadIdx.x;
    const int head_end = min(first, end);
    const bool head = thread < kVector;
    const int i = head ? begin + thread : max(last, head_end) + thread - kVector;
    if (thread < 2 * kVector && i < (head ? head_end : end)) {
      function(i);
    }
  }

  // Asks for the run; it is there after wait_for_copies() and a barrier.
  __device__ __forceinline__ void load(std::remove_const_t<scalar_t>* to) const {
#pragma unroll 4
    for (int i = first + threadIdx.x * kVector; i < last; i += blockDim.x * kVector) {
#if __CUDA_ARCH__ >= 800
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       static_cast<uint32_t>(__cvta_generic_to_shared(to + i))),
                   "l"(base + i)
                   : "memory");
#else
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(base + i);
#endif
    }
    edges([&](int i) { to[i] = base[i]; });
  }

  __device__ __forceinline__ void store(const scalar_t* from) const {
#pragma unroll 4
    for (int i = first + threadIdx.x * kVector; i < last; i += blockDim.x * kVector) {
      *reinterpret_cast<uint4*>(base + i) = *reinterpret_cast<const uint4*>(from + i);
    }
    edges([&](int i) { base[i] = from[i]; });
  }
};

// Which of a patch's src columns are inside the image, from `left` on.
template <typename Traits>
__device__ __forceinline__ uint32_t columns_inside(int left, int width) {
  uint32_t inside = 0;
#pragma unroll
  for (int c = 0; c < Traits::kColumns; ++c) {
    inside |= static_cast<uint32_t>(left + c >= 0 && left + c < width) << c;
  }
  return inside;
}

// All bits of a word if bit `index` of `bits` is set, else none. As an instruction that the compiler
// does not see through: what it makes of thirteen conditions is predicates, of which there are seven.
__device__ __forceinline__ uint32_t mask_of(uint32_t bits, int index) {
  uint32_t mask;
  asm("bfe.s32 %0, %1, %2, 1;" : "=r"(mask) : "r"(bits), "r"(index));
  return mask;
}

__device__ __forceinline__ float masked(float value, uint32_t mask) {
  return __uint_as_float(__float_as_uint(value) & mask);
}

// One src row of a patch; what is outside the image is zero, whatever lies there.
template <typename Traits>
__device__ __forceinline__ void load_columns(
    float (&columns)[Traits::kColumns],
    const typename Traits::scalar_t* from,
    uint32_t inside) {
#pragma unroll
  for (int c = 0; c < Traits::kColumns; ++c) {
    columns[c] = masked(static_cast<float>(from[c]), mask_of(inside, c));
  }
}

// What a patch is computed from: `from` is where its first tap falls, in row `top` of the image, of
// which rows below `end` are there; it is read inside the image only.
template <typename scalar_t>
struct Source {
  const scalar_t* from;
  uint32_t inside;
  int left;
  int top;
  int end;
  int width;

  __device__ __forceinline__ bool has_row(int row) const {
    return top + row >= 0 && top + row < end;
  }
};

// Where a patch goes, and how much of it exists.
template <typename scalar_t>
struct Target {
  scalar_t* to;
  int width;
  int rows;
  int columns;
};

template <typename Traits>
__device__ __forceinline__ void convolve_patch(
    const Target<typename Traits::scalar_t>& target,
    const Source<typename Traits::scalar_t>& source,
    const float (&taps)[Traits::kTaps],
    float begin) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kTile = Traits::kTile;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kStride = Traits::kStride;
  float slots[Traits::kSlots][kTile][1] = {};
  const int rows = Traits::rows(target.rows);
  const int steps = rows + Traits::kSlots - 1;
#pragma unroll 1
  for (int first = 0; first < steps; first += Traits::kRound) {
#pragma unroll
    for (int u = 0; u < Traits::kRound; ++u) {
      const int step = Traits::kRows > 0 ? u : first + u;
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        slots[Traits::slot(u, 0)][t][0] = begin;
      }
#pragma unroll
      for (int i = 0; i < kStride; ++i) {
        const int row = step * kStride + i;
        if (!source.has_row(row)) {
          continue;
        }
        float values[Traits::kColumns];
        load_columns<Traits>(values, source.from + row * source.width, source.inside);
#pragma unroll
        for (int age = 0; age < Traits::kSlots; ++age) {
          const int kh = age * kStride + i;
          const bool wanted = !Traits::kAsksWanted || (step >= age && step - age < rows);
          if (kh < kHeight && wanted) {
            RowSums<kTile, 1> sums(slots[Traits::slot(u, age)], kh >= Traits::kOwnRow);
#pragma unroll
            for (int kw = 0; kw < Traits::kWidth; ++kw) {
              const int tap = kh * Traits::kWidth + kw;
#pragma unroll
              for (int t = 0; t < kTile; ++t) {
                sums.add(kw, t, 0, values[t * kStride + kw], taps[tap < Traits::kTaps ? tap : 0]);
              }
            }
            sums.finish();
          }
        }
      }
      const int done = step - (Traits::kSlots - 1);
      if (done >= 0 && done < target.rows) {
        // Looked at anew for each row, or else it takes seven predicates throughout.
        int columns = target.columns;
        asm volatile("" : "+r"(columns));
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
          if (t < columns) {
            target.to[done * target.width + t] =
                static_cast<scalar_t>(slots[Traits::slot(u, Traits::kSlots - 1)][t][0]);
          }
        }
      }
    }
  }
}

// Taps and bias of the block's planes into shared memory, kTapWords a plane, several loads under way;
// whether all taps are finite. The planes' channels follow each other, and so do their taps.
template <typename Traits>
__device__ __forceinline__ bool stage_patch_taps(
    float* to,
    const typename Traits::scalar_t* weight,
    const typename Traits::scalar_t* bias,
    int plane,
    int planes,
    const Patches& p) {
  constexpr int kTaps = Traits::kTaps;
  constexpr int kAtOnce = 8;
  const int channel = plane % p.channels;
  const int all = p.channels * kTaps;
  const int count = planes * kTaps;
  bool finite = true;
  for (int first = threadIdx.x; first < count; first += kAtOnce * blockDim.x) {
    float values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      int from = channel * kTaps + min(first + j * static_cast<int>(blockDim.x), count - 1);
      if (from >= all) {
        from %= all;
      }
      values[j] = static_cast<float>(weight[from]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = min(first + j * static_cast<int>(blockDim.x), count - 1);
      const int tap = i % kTaps;
      finite = finite && is_finite(values[j]);
      to[i / kTaps * Traits::kTapWords + (p.flip ? kTaps - 1 - tap : tap)] = values[j];
    }
  }
  for (int i = threadIdx.x; i < planes; i += blockDim.x) {
    to[i * Traits::kTapWords + kTaps] =
        bias ? static_cast<float>(bias[(channel + i) % p.channels]) : 0.0f;
  }
  return finite;
}
#endif

// Cuts the planes into blocks of about Block::kWanted patches of Block::kRows rows, of planes out of
// `together` that follow each other; false where a row has more patches than a block has threads.
template <typename Traits, typename Block>
bool plan_patches(Patches& p, int64_t together) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int wanted = Block::kWanted;
  p.rows_per_patch = Traits::rows(std::min(Block::kRows, p.dst_height));
  p.tiles = divide_up(p.dst_width, Traits::kTile);
  const int32_t strips = divide_up(p.dst_height, p.rows_per_patch);
  if (p.tiles > Block::kMostThreads) {
    return false;
  }
  const int64_t in_plane = static_cast<int64_t>(strips) * p.tiles;
  p.planes_per_block = 1;
  p.bands = 1;
  if (in_plane <= wanted) {
    // Fewer planes a block where there would be too few blocks for the largest devices.
    const int64_t blocks_to_fill = multiprocessors() * 2;
    const int64_t planes = std::max<int64_t>(
        1, std::min<int64_t>(wanted / in_plane, divide_up(p.planes, blocks_to_fill)));
    p.planes_per_block = divide_up(together, divide_up(together, planes));
    p.strips = strips;
  } else {
    p.bands = divide_up(strips, std::max(1, wanted / p.tiles));
    p.strips = divide_up(strips, p.bands);
    p.bands = divide_up(strips, p.strips);
  }
  p.rows_per_band = p.bands == 1 ? p.dst_height : p.strips * p.rows_per_patch;
  const int64_t src_rows = p.bands == 1
      ? p.src_height
      : std::min<int64_t>(p.src_height, (p.rows_per_band - 1) * Traits::kStride + Traits::kHeight);
  // Whole vectors and one for each end, between margins.
  constexpr int kVector = kFlatVector<scalar_t>;
  static_assert(kMargin % kVector == 0);
  const auto room = [](int64_t count) {
    return static_cast<int32_t>(divide_up(count, kVector) + 1) * kVector + kMargin;
  };
  p.src_elements = room(p.planes_per_block * src_rows * p.src_width);
  constexpr int kTapElements = Traits::kTapWords * (sizeof(float) / sizeof(scalar_t));
  p.dst_elements = room(
      static_cast<int64_t>(p.planes_per_block) *
      std::max<int64_t>(static_cast<int64_t>(p.rows_per_band) * p.dst_width, kTapElements));
  return true;
}

inline Patches patches_of(const Params& p) {
  Patches patches{};
  patches.planes = p.batch * p.channels;
  patches.channels = p.channels;
  set_forward_sizes(patches, p);
  return patches;
}

// Whether patches can take the call: what a patch reads beside its image must fit the margins.
inline bool patches_take(const Params& p) {
  return march_fits_32_bits(p) && !p.channels_last && p.multiplier == 1 && p.dilation_height == 1 &&
      p.dilation_width == 1 && p.padding_height < p.kernel_height &&
      p.padding_width < p.kernel_width;
}

// Whether the patches over a plane of dst hold little else.
inline bool patches_fit(int64_t height, int64_t width) {
  constexpr double kLeastFill = .6;
  const int64_t covered = divide_up(height, kPatchTile) * divide_up(width, kPatchTile);
  return static_cast<double>(height * width) >= kLeastFill * covered * kPatchTile * kPatchTile;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
