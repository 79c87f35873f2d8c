// One object for each DEPTHWISE_TYPE: float, c10::Half, c10::BFloat16
// Forward in plane order by patches, and grad_input, which is the forward on grad_output with flipped taps; at stride 2
// on grad_output with zeros between its elements, which are neither stored nor multiplied.
//
// A block takes whole planes that lie one after the other in memory or, of a large plane, a band of
// rows. Either way what it reads and what it writes are single runs of memory, which it copies flat,
// 16 bytes at a time wherever they begin: neither the width nor the padding matters to the memory.
//
// A thread computes a patch of a few rows of seven columns. It walks down the rows of src in shared
// memory; each is read once and feeds the dst rows that it belongs to, whose sums are in registers.
// Patches are 7 x 7, so that what neighbouring threads read, 7 apart, falls into different banks.
// Everything is as wide in shared memory as in device memory: 16-bit elements converted on the way in
// would halve the number of blocks that fit.
//
// The planes come into shared memory while the taps are fetched. The taps are staged where the
// results will be, and read into registers before those are written.
//
// Taps that are not finite would turn the zeros around the image into NaN: a block that has one
// takes its sums tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

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
  int32_t strips; // patches down a band
  int32_t tiles; // patches along a row
  int32_t src_elements; // room for what a block reads, and for what it writes
  int32_t dst_elements;

  int32_t patches_of_block() const {
    return planes_per_block * strips * tiles;
  }
};

// kGrad: of grad_input.
template <typename scalar_t_, typename Window, bool kGrad>
struct PatchTraits {
  using scalar_t = scalar_t_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kStride = kGrad ? 1 : Window::kStride;
  static constexpr int kTaps = kHeight * kWidth;
  // Of the rows and columns one in kApart is of src, from kPhase on in a patch: with the padding that keeps the size.
  static constexpr int kApart = kGrad ? Window::kStride : 1;
  static constexpr int kPhase = kApart > 1 ? kHeight / 2 % kApart : 0;
  static constexpr int kTile = kPatchTile * kApart; // columns of a patch
  static constexpr int kRows = kApart > 1 ? 6 : kPatchTile;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kSlots = (kHeight + kStride - 1) / kStride;
  static constexpr int kColumns = (kTile - 1) * kStride + kWidth;
  static constexpr int kLoaded = (kColumns - kPhase + kApart - 1) / kApart;
  static constexpr int kSteps = kRows + kSlots - 1;
  static constexpr int kMostThreads = kTaps > 25 || kApart > 1 ? 128 : 256;
  static constexpr int kBlocks = kTaps > 25 ? 3 : kTaps > 9 && kApart == 1 ? 2 : 4;
  // Patches of a block: one of stride 2 reads four times what it writes.
  static constexpr int kWanted = kStride > 1 ? 64 : 128;
  // Taps and bias of a plane in shared memory: an odd number of words, for the banks.
  static constexpr int kTapWords = kTaps + 2;
  static_assert(kTapWords % 2 == 1);
  static_assert(kLoaded <= 32, "a mask of 32 bits tells the columns inside the image");

  // The src rows that so many dst rows meet.
  static constexpr C10_HOST_DEVICE int src_rows(int rows) {
    return ((rows - 1) * kStride + kHeight - kPhase + kApart - 1) / kApart;
  }

  // Where the sums are, in a step, of the dst row that began `age` steps before.
  static constexpr C10_HOST_DEVICE int slot(int step, int age) {
    return (step - age + kSlots) % kSlots;
  }
};

// One thread's patch.
struct Patch {
  int32_t plane; // of the block
  int32_t row; // of the band
  int32_t column;
  bool exists;
};

template <typename Traits>
__device__ __forceinline__ Patch patch_of(const Patches& p, int planes) {
  Patch patch;
  patch.column = threadIdx.x % p.tiles * Traits::kTile;
  patch.row = threadIdx.x / p.tiles % p.strips * Traits::kRows;
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
  for (int c = 0; c < Traits::kLoaded; ++c) {
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
    float (&columns)[Traits::kLoaded],
    const typename Traits::scalar_t* from,
    uint32_t inside) {
#pragma unroll
  for (int c = 0; c < Traits::kLoaded; ++c) {
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
  constexpr int kApart = Traits::kApart;
  float slots[Traits::kSlots][kTile][1] = {};
#pragma unroll
  for (int step = 0; step < Traits::kSteps; ++step) {
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      slots[Traits::slot(step, 0)][t][0] = begin;
    }
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
      const int row = (step * kStride + i) / kApart;
      if ((step * kStride + i) % kApart != Traits::kPhase || !source.has_row(row)) {
        continue;
      }
      float values[Traits::kLoaded];
      load_columns<Traits>(values, source.from + row * source.width, source.inside);
#pragma unroll
      for (int age = 0; age < Traits::kSlots; ++age) {
        const int kh = age * kStride + i;
        const auto add_row = [&](auto own) {
          RowSums<kTile, 1, decltype(own)> sums(slots[Traits::slot(step, age)], own);
#pragma unroll
          for (int kw = 0; kw < Traits::kWidth; ++kw) {
            const int tap = kh * Traits::kWidth + kw;
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              const int c = t * kStride + kw;
              if (c % kApart == Traits::kPhase) {
                sums.add(
                    kw / kApart, t, 0, values[c / kApart], taps[tap < Traits::kTaps ? tap : 0]);
              }
            }
          }
          sums.finish();
        };
        if (kh < kHeight && step >= age && step - age < Traits::kRows) {
          kh < Traits::kOwnRow ? add_row(std::false_type()) : add_row(std::true_type());
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
              static_cast<scalar_t>(slots[Traits::slot(step, Traits::kSlots - 1)][t][0]);
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

// Cuts the planes into blocks of about Traits::kWanted patches; false where a row has more patches than a block
// has threads.
template <typename Traits>
bool plan_patches(Patches& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int wanted = Traits::kWanted;
  p.tiles = divide_up(p.dst_width, Traits::kTile);
  const int32_t strips = divide_up(p.dst_height, Traits::kRows);
  if (p.tiles > Traits::kMostThreads) {
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
    p.planes_per_block = divide_up(p.planes, divide_up(p.planes, planes));
    p.strips = strips;
  } else {
    p.bands = divide_up(strips, std::max(1, wanted / p.tiles));
    p.strips = divide_up(strips, p.bands);
    p.bands = divide_up(strips, p.strips);
  }
  p.rows_per_band = p.bands == 1 ? p.dst_height : p.strips * Traits::kRows;
  const int64_t src_rows =
      p.bands == 1 ? p.src_height : std::min(p.src_height, Traits::src_rows(p.rows_per_band));
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
  return fits_32_bits(p) && !p.channels_last && p.multiplier == 1 && p.dilation_height == 1 &&
      p.dilation_width == 1 && p.padding_height < p.kernel_height &&
      p.padding_width < p.kernel_width;
}

// Whether the patches over a plane of dst hold little else.
template <typename Traits>
bool patches_fit(int64_t height, int64_t width) {
  constexpr double kLeastFill = .6;
  const int64_t patches = divide_up(height, Traits::kRows) * divide_up(width, Traits::kTile);
  return static_cast<double>(height * width) >=
      kLeastFill * patches * Traits::kRows * Traits::kTile;
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kMostThreads, Traits::kBlocks)
__global__ void patches_forward_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ Params call,
    const __grid_constant__ Patches p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kStride = Traits::kStride;
  extern __shared__ float4 shared[];
  scalar_t* const src_shared = reinterpret_cast<scalar_t*>(shared) + kMargin;
  scalar_t* const dst_shared = src_shared + p.src_elements;
  float* const staged = reinterpret_cast<float*>(dst_shared);

  const int band = blockIdx.x % p.bands;
  const int plane = blockIdx.x / p.bands * p.planes_per_block;
  const int planes = min(p.planes_per_block, p.planes - plane);
  const int first_row = band * p.rows_per_band;
  const int rows = min(p.rows_per_band, p.dst_height - first_row);
  const bool all_rows = p.bands == 1;
  const auto of_src = [](int position) { // of a tile's first, and so of a whole number
    return (position + Traits::kPhase) / Traits::kApart;
  };
  const int src_top = of_src(first_row * kStride - p.padding_height);
  const int src_begin = all_rows ? 0 : min(max(src_top, 0), p.src_height);
  const int src_end =
      all_rows ? p.src_height : max(src_begin, min(src_top + Traits::src_rows(rows), p.src_height));
  const int src_plane = (src_end - src_begin) * p.src_width;

  const Run<const scalar_t> from(
      src + (plane * p.src_height + src_begin) * p.src_width, planes * src_plane);
  const Run<scalar_t> to(
      dst + (plane * p.dst_height + first_row) * p.dst_width, planes * rows * p.dst_width);
  from.load(src_shared);
  const bool finite = stage_patch_taps<Traits>(staged, weight, bias, plane, planes, p);
  wait_for_copies();
  const bool careful = __syncthreads_or(!finite);

  const Patch patch = patch_of<Traits>(p, planes);
  Source<scalar_t> source;
  source.top = src_top + patch.row * kStride / Traits::kApart;
  source.left = of_src(patch.column * kStride - p.padding_width);
  source.end = src_end;
  source.width = p.src_width;
  source.inside = columns_inside<Traits>(source.left, p.src_width);
  source.from = src_shared + from.lead() + patch.plane * src_plane +
      (source.top - src_begin) * p.src_width + source.left;
  Target<scalar_t> target;
  target.to = dst_shared + to.lead() + patch.column +
      (patch.plane * p.rows_per_band + patch.row) * p.dst_width;
  target.width = p.dst_width;
  target.rows = patch.exists ? max(0, min(Traits::kRows, rows - patch.row)) : 0;
  target.columns = min(Traits::kTile, p.dst_width - patch.column);

  if (careful) {
    const int of = plane + patch.plane;
    const int channel = of % p.channels;
    const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
#pragma unroll 1
    for (int i = 0; i < target.rows * target.columns; ++i) {
      const int row = first_row + patch.row + i / target.columns;
      const int column = patch.column + i % target.columns;
      dst[(of * p.dst_height + row) * p.dst_width + column] = static_cast<scalar_t>(
          mended(src, weight, begin, call, p.flip, of / p.channels, channel, row, column));
    }
    return;
  }
  float taps[Traits::kTaps];
  float begin = 0.0f;
  if (target.rows > 0) {
#pragma unroll
    for (int tap = 0; tap < Traits::kTaps; ++tap) {
      taps[tap] = staged[patch.plane * Traits::kTapWords + tap];
    }
    begin = staged[patch.plane * Traits::kTapWords + Traits::kTaps];
  }
  __syncthreads();
  if (target.rows > 0) {
    convolve_patch<Traits>(target, source, taps, begin);
  }
  __syncthreads();
  to.store(dst_shared);
}

template <typename Traits>
bool launch(const ForwardPass& pass, const Params& call, Patches p) {
  using scalar_t = typename Traits::scalar_t;
  if (!plan_patches<Traits>(p)) {
    return false;
  }
  const size_t shared = sizeof(scalar_t) * (kMargin + p.src_elements + p.dst_elements);
  if (shared > kMostPatchShared) {
    return false;
  }
  const unsigned int grid = divide_up(p.planes, p.planes_per_block) * p.bands;
  const unsigned int threads = divide_up(p.patches_of_block(), kWarpSize) * kWarpSize;
  launch_kernel(
      patches_forward_kernel<Traits>,
      grid,
      threads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      call,
      p);
  return true;
}

template <typename Traits>
bool launch_window(const ForwardPass& pass, const Params& call, const Patches& p) {
  // Larger planes of float at stride 2 leave too few blocks in a multiprocessor's shared memory.
  constexpr bool kSmallOnly =
      sizeof(typename Traits::scalar_t) == sizeof(float) && Traits::kStride > 1;
  constexpr int32_t kSmall = 28;
  const auto has_phase = [](int padding) {
    return padding % Traits::kApart == Traits::kPhase;
  };
  return patches_fit<Traits>(p.dst_height, p.dst_width) && has_phase(p.padding_height) &&
      has_phase(p.padding_width) && !(kSmallOnly && p.dst_height >= kSmall) &&
      launch<Traits>(pass, call, p);
}

} // namespace

template <typename scalar_t>
bool patches_forward(const ForwardPass& pass, const Params& p) {
  if (!patches_take(p) || pass.dst.numel() == 0 || pass.src.numel() == 0) {
    return false;
  }
  Patches patches = patches_of(p);
  if (pass.grad_input) {
    turn_around(patches, p);
  }
  return with_window(p, [&](auto window) {
    using Fixed = decltype(window);
    if constexpr (Fixed::kStride == 1) {
      return launch_window<PatchTraits<scalar_t, Fixed, false>>(pass, p, patches);
    } else if constexpr (Fixed::kHeight < 7) {
      return pass.grad_input ? launch_window<PatchTraits<scalar_t, Fixed, true>>(pass, p, patches)
                             : launch_window<PatchTraits<scalar_t, Fixed, false>>(pass, p, patches);
    } else {
      return false;
    }
  });
}

DEPTHWISE_INSTANTIATE(patches_forward, const ForwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
