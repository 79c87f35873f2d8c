// Forward and grad_input of depthwise_conv2d_ext with large windows in float16 and bfloat16: on the tensor
// cores, with the batch as rows of the matrices. grad_input is the forward on grad_output with flipped
// taps.
//
// As in Batch.cuh a row of src of 16 images is a matrix [16 images][columns], and
//   dst row[image][column] = sum over rows of taps of src row[image][column'] · T[column'][column],
// where T has one row of taps along its diagonals. There are too many rows of taps for the registers,
// and too many rows of dst. So a warp takes kRows rows of four octets of dst columns, whose sums are
// in its registers, and sweeps down the rows of src that they meet: a row of src is loaded once for
// the kRows rows of taps that it meets, whose matrices T move on by one from row to row. One row of src
// and one T, some 15 words a lane, are loaded for some 32 matrix products, so that the tensor cores are
// what is waited for. Of T only the octets are multiplied that the window reaches; a window that reaches
// 4 columns has octets of src that begin 4 to the left, two for an octet of dst.
//
// A block has the planes of one channel of some groups of 16 images in shared memory, as they are in
// device memory, and its warps take strips of rows from the middle on, where most is to do, until none
// is left. A T is read from the pairs of neighbouring taps of one row: the 14 words that lanes of one
// octet want are neighbours.
//
// Where a column or a tap does not exist there is a zero, and a zero is multiplied: a result that is NaN
// is taken again, tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kSweepThreads = 256;
constexpr int kSweepBlocks = 2; // on a multiprocessor
constexpr int kUnitOctets = 4; // of dst columns, of a warp

struct Sweep : UnitStridePass { // of multiplier 1
  int32_t groups; // of 16 images, of a block
  int32_t strips; // of rows of dst
  int32_t units; // strips, parts of columns and groups
  int32_t pitch; // bytes from image to image
  int32_t table_words; // of the taps
  Divider by_vectors; // 16-byte vectors of a plane
  Divider by_groups;
};

// kShift: columns that octets of src begin left of those of dst; kBefore, kAfter: octets of src that
// an octet of dst meets, beside the one of the same number.
template <typename scalar_t_, int kOctets_, int kShift_, int kBefore_, int kAfter_>
struct SweepTraits {
  using scalar_t = scalar_t_;
  static constexpr int kOctets = kOctets_; // of columns of dst
  static constexpr int kShift = kShift_;
  static constexpr int kBefore = kBefore_;
  static constexpr int kAfter = kAfter_;
  static constexpr int kRows = 4; // of dst, of a warp
  static constexpr int kSources = kOctets + (kShift > 0 ? 1 : 0); // octets of src
  static constexpr int kDiagonals = kBefore + kAfter + 1;
  static constexpr int kParts = (kOctets + kUnitOctets - 1) / kUnitOctets;
  static constexpr int kLeastWidth = (kOctets - 1) * kOctet + 2;
  // Pairs of neighbouring taps of a row: of 8 columns of dst, of 4 pairs of columns of src.
  static constexpr int kTapWords = kDiagonals * kOctet + kOctet;

  static constexpr bool takes_width(int64_t width) {
    return width >= kLeastWidth && width <= kOctets * kOctet && width % 2 == 0;
  }
  // Whether every tap is in T: it reaches so many columns to the left and to the right.
  static constexpr bool takes_reach(int64_t left, int64_t right) {
    return (kBefore + 1 >= kSources || left <= kBefore * kOctet + kShift) &&
        (kAfter + 1 >= kSources || right <= kAfter * kOctet - kShift);
  }
};

// [rows of taps, with kRows - 1 of zeros on both sides][pairs of neighbouring taps]
template <typename Traits>
__device__ __forceinline__ void make_pairs(
    uint32_t* to,
    const typename Traits::scalar_t* weight,
    const Sweep& p) {
  constexpr int kWords = Traits::kTapWords;
  const int last = p.kernel_height * p.kernel_width - 1;
#pragma unroll 4
  for (int i = threadIdx.x; i < p.table_words; i += kSweepThreads) {
    const int kh = i / kWords - (Traits::kRows - 1);
    const int kw =
        i % kWords - (kOctet - 1) - Traits::kBefore * kOctet - Traits::kShift + p.padding_width;
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (kh >= 0 && kh < p.kernel_height && kw + j >= 0 && kw + j < p.kernel_width) {
        const int tap = kh * p.kernel_width + kw + j;
        const uint32_t bits =
            __ldg(reinterpret_cast<const unsigned short*>(weight) + (p.flip ? last - tap : tap));
        word |= bits << (16 * j);
      }
    }
    to[i] = word;
  }
}

// What a warp does next.
struct Unit {
  int first_row; // of dst
  int group;
  int part;
  template <typename Traits>
  static __device__ __forceinline__ Unit of(const Sweep& p, int index) {
    Unit u;
    int rest = p.by_groups.quotient(index);
    u.group = index - rest * static_cast<int>(p.by_groups.by);
    u.part = rest % Traits::kParts;
    rest /= Traits::kParts;
    // The strips from the middle on.
    const int away = (rest + 1) / 2;
    u.first_row = (p.strips / 2 + (rest % 2 == 0 ? away : -away)) * Traits::kRows;
    return u;
  }
};

// Octets of columns of a row of src, of the lane's images `row` and `row` + 8.
template <typename Traits, int kFirst, int kCount>
struct Sources {
  uint32_t words[kCount][2];

  // `from` is where the lane's first column is in its first image.
  __device__ __forceinline__ void load(const char* from, const Lane& at, const Sweep& p) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int first = (kFirst + i) * kOctet - Traits::kShift;
      const int column = first + 2 * at.pair;
      const bool exists = (first >= 0 || column >= 0) &&
          (first + kOctet <= Traits::kLeastWidth || column < p.src_width);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[i][half] = exists ? read_word(from + half * kOctet * p.pitch + first * 2) : 0;
      }
    }
  }
};

// The lane's results of a unit that are NaN again, tap by tap.
template <typename scalar_t>
__device__ __noinline__ void retake_unit(
    scalar_t* dst,
    const scalar_t* src,
    const scalar_t* taps,
    float begin,
    int image,
    int channel,
    int first_row,
    int rows,
    int first_column,
    int octets,
    const Sweep& p) {
#pragma unroll 1
  for (int half = 0; half < 2 && image < p.batch; ++half, image += kOctet) {
    const int plane = image * p.channels + channel;
#pragma unroll 1
    for (int i = 0; i < rows * octets * 2; ++i) {
      const int row = first_row + i / (octets * 2);
      const int column = first_column + i / 2 % octets * kOctet + i % 2;
      if (row < p.dst_height && column < p.dst_width) {
        retake(
            dst[(plane * p.dst_height + row) * p.dst_width + column],
            src + plane * p.src_height * p.src_width,
            taps,
            begin,
            p,
            row,
            column);
      }
    }
  }
}

// `tile` is where the unit's first image begins.
template <typename Traits, int kPart>
__device__ __forceinline__ void sweep_rows(
    const BatchOperands<typename Traits::scalar_t>& t,
    const uint32_t* pairs,
    const char* tile,
    int image,
    int first_row,
    const Lane& at,
    const Sweep& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kRows = Traits::kRows;
  constexpr int kDiagonals = Traits::kDiagonals;
  constexpr int kFirst = kPart * kUnitOctets;
  constexpr int kEnd =
      kFirst + kUnitOctets < Traits::kOctets ? kFirst + kUnitOctets : Traits::kOctets;
  constexpr int kCount = kEnd - kFirst;
  constexpr int kFirstSource = kFirst > Traits::kBefore ? kFirst - Traits::kBefore : 0;
  constexpr int kLastSource = kEnd - 1 + Traits::kAfter < Traits::kSources
      ? kEnd - 1 + Traits::kAfter
      : Traits::kSources - 1;
  const int channel = blockIdx.x;

  float sums[kRows][kCount][4] = {};
  const int top = first_row - p.padding_height;
  int row = max(0, top);
  const int last = min(p.src_height, top + kRows + p.kernel_height - 1) - 1;
  if (row <= last) {
    const char* from = tile + at.row * p.pitch + (row * p.src_width + 2 * at.pair) * 2;
    const uint32_t* taps =
        pairs + (row - top + kRows - 1) * Traits::kTapWords + 2 * at.pair - at.row + kOctet - 1;
    // T of a row of dst is at (row of src - row of dst) modulo kRows.
    uint32_t bands[kRows][kDiagonals];
    const auto load_bands = [&](uint32_t (&to)[kDiagonals], const uint32_t* words) {
#pragma unroll
      for (int i = 0; i < kDiagonals; ++i) {
        to[i] = words[i * kOctet];
      }
    };
#pragma unroll
    for (int r = 1; r < kRows; ++r) {
      load_bands(bands[kRows - r], taps - r * Traits::kTapWords);
    }
    while (true) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        load_bands(bands[i], taps);
        Sources<Traits, kFirstSource, kLastSource - kFirstSource + 1> sources;
        sources.load(from, at, p);
        // Sums that do not wait for one another are next to each other.
#pragma unroll
        for (int step = 0; step < kDiagonals; step += 2) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const uint32_t (&band)[kDiagonals] = bands[(i + kRows - r) % kRows];
#pragma unroll
            for (int n = 0; n < kCount; ++n) {
              const int octet = kFirst + n;
              const int first = octet > Traits::kBefore ? octet - Traits::kBefore : 0;
              const int end = octet + Traits::kAfter < Traits::kSources ? octet + Traits::kAfter + 1
                                                                        : Traits::kSources;
              const int source = first + step;
              const int d = source - octet + Traits::kBefore;
              const auto& words = sources.words;
              const int at_word = source - kFirstSource;
              if (source + 1 < end) {
                multiply_16<scalar_t>(
                    sums[r][n],
                    words[at_word][0],
                    words[at_word][1],
                    words[at_word + 1][0],
                    words[at_word + 1][1],
                    band[d],
                    band[d + 1]);
              } else if (source < end) {
                multiply_8<scalar_t>(sums[r][n], words[at_word][0], words[at_word][1], band[d]);
              }
            }
          }
        }
        taps += Traits::kTapWords;
        from += p.src_width * 2;
        if (++row > last) {
          break;
        }
      }
      if (row > last) {
        break;
      }
    }
  }

  const float begin = t.bias ? static_cast<float>(t.bias[channel]) : 0.0f;
  bool spoilt = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int n = image + at.row + half * kOctet;
    if (n >= p.batch) {
      continue;
    }
    scalar_t* const plane = t.dst +
        ((n * p.channels + channel) * p.dst_height + first_row) * p.dst_width + kFirst * kOctet +
        2 * at.pair;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= p.dst_height) {
        continue;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (kFirst + i + 1 < Traits::kOctets || (kFirst + i) * kOctet + 2 * at.pair < p.dst_width) {
          const float low = sums[r][i][2 * half] + begin;
          const float high = sums[r][i][2 * half + 1] + begin;
          spoilt = spoilt || isnan(low) || isnan(high);
          *reinterpret_cast<uint32_t*>(plane + r * p.dst_width + i * kOctet) =
              pack_two<scalar_t>(low, high);
        }
      }
    }
  }
  if (spoilt) {
    retake_unit(
        t.dst,
        t.src,
        t.weight + channel * p.kernel_height * p.kernel_width,
        begin,
        image + at.row,
        channel,
        first_row,
        kRows,
        kFirst * kOctet + 2 * at.pair,
        kCount,
        p);
  }
}

// grid: channels, groups of images, blocks that share the units of such a group.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kSweepThreads, kSweepBlocks)
__global__ void sweep_kernel(
    const BatchOperands<typename Traits::scalar_t> t,
    const __grid_constant__ Sweep p) {
  extern __shared__ uint4 shared_blocks[];
  __shared__ int taken;
  uint32_t* const pairs = reinterpret_cast<uint32_t*>(shared_blocks);
  char* const tile = reinterpret_cast<char*>(pairs + p.table_words);
  const Lane at;
  const int lane = threadIdx.x % kWarpSize;
  const int channel = blockIdx.x;
  const int first_image = blockIdx.y * p.groups * kTileImages;

  const int plane = p.src_height * p.src_width;
  const int vectors = p.by_vectors.by;
#pragma unroll 4
  for (int i = threadIdx.x; i < p.groups * kTileImages * vectors; i += kSweepThreads) {
    const int image = p.by_vectors.quotient(i);
    const int bytes = (i - image * vectors) * kBlockBytes;
    const int n = first_image + image;
    const auto* const from = t.src + (min(n, p.batch - 1) * p.channels + channel) * plane;
    copy_block_or_zeros(
        tile + image * p.pitch + bytes, reinterpret_cast<const char*>(from) + bytes, n < p.batch);
  }
  make_pairs<Traits>(pairs, t.weight + channel * p.kernel_height * p.kernel_width, p);
  if (threadIdx.x == 0) {
    taken = 0;
  }
  wait_for_copies();
  __syncthreads();

  while (true) {
    int index = 0;
    if (lane == 0) {
      index = atomicAdd(&taken, 1);
    }
    index = __shfl_sync(0xffffffffu, index, 0) * gridDim.z + blockIdx.z;
    if (index >= p.units) {
      return;
    }
    const Unit unit = Unit::of<Traits>(p, index);
    const int image = first_image + unit.group * kTileImages;
    const char* const images = tile + unit.group * kTileImages * p.pitch;
    if (Traits::kParts == 1 || unit.part == 0) {
      sweep_rows<Traits, 0>(t, pairs, images, image, unit.first_row, at, p);
    } else {
      sweep_rows<Traits, Traits::kParts - 1>(t, pairs, images, image, unit.first_row, at, p);
    }
  }
}

constexpr int64_t kStaticShared = kBlockBytes;
// So that two blocks are on a multiprocessor.
constexpr int64_t kMostTile = 104 * 1024;
// Blocks that share a tile each load all of it: no more than there are multiprocessors, and half of
// their warps at least are busy. 16 channels of 8 images with 31 x 31 at 56 x 56 40 -> 15 us.
constexpr int64_t kLeastUnits = kSweepThreads / kWarpSize / 2;

template <typename Traits>
bool launch_sweep(const ForwardPass& pass, Sweep s) {
  using scalar_t = typename Traits::scalar_t;
  if (!Traits::takes_width(s.src_width) || !Traits::takes_width(s.dst_width) ||
      !Traits::takes_reach(s.padding_width, s.kernel_width - 1 - s.padding_width)) {
    return false;
  }
  const int64_t vectors = int64_t{s.src_height} * s.src_width * 2 / kBlockBytes;
  s.by_vectors = Divider(vectors);
  // An odd number of vectors, which spreads the words of 8 images over all banks.
  s.pitch = odd(vectors) * kBlockBytes;
  s.table_words = (s.kernel_height + 2 * (Traits::kRows - 1)) * Traits::kTapWords;
  const auto shared_of = [&](int64_t groups) {
    return s.table_words * int64_t{sizeof(uint32_t)} + groups * kTileImages * int64_t{s.pitch};
  };
  const int64_t all = divide_up(s.batch, kTileImages);
  int64_t groups = std::min<int64_t>(all, kMostTile / (kTileImages * s.pitch));
  while (groups > 1 &&
         (s.channels * divide_up(all, groups) < multiprocessors() * kSweepBlocks ||
          !has_shared(shared_of(groups) + kStaticShared))) {
    groups = divide_up(groups, 2);
  }
  if (groups == 0 || !has_shared(shared_of(groups) + kStaticShared) ||
      divide_up(all, groups) > kMostGridRows) {
    return false;
  }
  s.groups = groups;
  s.by_groups = Divider(groups);
  s.strips = divide_up(s.dst_height, Traits::kRows);
  s.units = s.groups * s.strips * Traits::kParts;
  const int64_t shared = shared_of(groups);
  const int64_t blocks = s.channels * divide_up(all, groups);
  const int64_t splits =
      std::clamp<int64_t>(multiprocessors() / blocks, 1, divide_up(s.units, kLeastUnits));
  const dim3 grid(s.channels, divide_up(all, groups), splits);
  BatchOperands<scalar_t> operands{};
  operands.dst = pass.dst.mutable_data_ptr<scalar_t>();
  operands.src = pass.src.const_data_ptr<scalar_t>();
  operands.weight = pass.weight.const_data_ptr<scalar_t>();
  operands.bias = pointer_or_null<scalar_t>(pass.bias);
  launch_kernel(sweep_kernel<Traits>, grid, kSweepThreads, shared, operands, s);
  return true;
}

// The kernel with the fewest octets, and diagonals, that are enough.
template <typename scalar_t>
bool choose_sweep(const ForwardPass& pass, const Sweep& s) {
  return launch_sweep<SweepTraits<scalar_t, 4, 4, 0, 1>>(pass, s) ||
      launch_sweep<SweepTraits<scalar_t, 4, 0, 1, 1>>(pass, s) ||
      launch_sweep<SweepTraits<scalar_t, 4, 0, 2, 2>>(pass, s) ||
      launch_sweep<SweepTraits<scalar_t, 4, 0, 3, 3>>(pass, s) ||
      launch_sweep<SweepTraits<scalar_t, 7, 4, 0, 1>>(pass, s) ||
      launch_sweep<SweepTraits<scalar_t, 7, 0, 1, 1>>(pass, s) ||
      launch_sweep<SweepTraits<scalar_t, 7, 0, 2, 2>>(pass, s);
}

} // namespace

bool sweep_forward(const ForwardPass& pass, const Params& p) {
  // With fewer images most of a matrix would be zeros.
  constexpr int64_t kLeastImages = 8;
  const bool aligned = is_aligned(pass.src.const_data_ptr(), kBlockBytes) &&
      is_aligned(pass.dst.const_data_ptr(), sizeof(uint32_t));
  if (p.stride_height != 1 || p.stride_width != 1 || p.dilation_height != 1 ||
      p.dilation_width != 1 || p.multiplier != 1 || p.batch < kLeastImages || !aligned) {
    return false;
  }
  Sweep s{};
  set_unit_stride_pass(s, p);
  if (pass.grad_input) {
    turn_around(s, p);
  }
  if (s.src_height * s.src_width * 2 % kBlockBytes != 0 || s.padding_height < 0 ||
      s.padding_width < 0) {
    return false;
  }
  return pass.src.type() == Type::kHalf ? choose_sweep<c10::Half>(pass, s)
                                        : choose_sweep<c10::BFloat16>(pass, s);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
