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

// grad_weight and grad_bias of depthwise_conv2d_ext with large windows in float16 and bfloat16: on the
// tensor cores, with images and rows as the inner dimension.
//
// For a row of taps kh the product of grad_output row h, transposed, with input row h + kh - padding,
//   [columns of grad_output][images] · [images][columns of the input],
// holds the products of all its taps, along the diagonals: an entry belongs to the tap that lies its
// columns' difference away, so that all 16 x 8 parts of it that are as far from the middle, all rows and
// all images are added into the same registers, and the diagonals once, at the end. The inner dimension
// of an instruction is 16 images, or, where two tiles of them have no room, 8 images of two neighbouring
// rows.
//
// A block has the planes of so many images of one channel of both tensors in shared memory, and the
// next under way. A warp keeps the sums of kTapRows rows of taps, and sweeps down the rows of
// grad_output: of both tensors the next rows are read, transposed, for some 25 to 60 matrix products;
// the input's rows that were read before are in registers still. Where there are few rows of taps
// several warps share them, with a strip of grad_output each. The bias is a product with ones, of a warp
// of its own.
//
// Rows and columns outside the image are zeros, and a zero is multiplied: a tap that ends as NaN is
// summed again, of positions inside the image.

namespace {

constexpr int kMostWarps = 12;
constexpr int kMostThreads = kMostWarps * kWarpSize;
constexpr int kZeroBytes = 128; // a row of zeros
constexpr int kSlackBytes = kBlockBytes; // the octet behind the last row is read
constexpr int kStages = 2;

// kReachOctets: of input columns that the window reaches, to the left and to the right; kRowsAtOnce: of
// grad_output, in the inner dimension of an instruction.
template <typename scalar_t_, int kOctets_, int kReachOctets_, int kRowsAtOnce_, int kTapRows_>
struct SweepWeightTraits {
  using scalar_t = scalar_t_;
  static constexpr int kOctets = kOctets_; // of a row
  static constexpr int kReachOctets = kReachOctets_;
  static constexpr int kTapRows = kTapRows_; // of a warp
  static constexpr int kGrads = (kOctets + 1) / 2; // matrices of a row of grad_output
  static constexpr int kDiagonals = 2 * kReachOctets + 2;
  static constexpr int kRowPitch = kOctets * kBlockBytes;
  static constexpr int kRowsAtOnce = kRowsAtOnce_;
  static constexpr int kTileImages = kMatrixRows / kRowsAtOnce;
  static constexpr int kRing = kTapRows + kRowsAtOnce - 1; // rows of the input in registers
  static constexpr int kMatrix = kMatrixRows * kOctet; // floats
  static constexpr int kRowSums = kDiagonals * kMatrix; // of a row of taps
  static constexpr int kSums = kTapRows * kRowSums; // of a warp
  static_assert(
      kRing % kRowsAtOnce == 0 && 2 % kRowsAtOnce == 0 && kOctets * kBlockBytes <= kZeroBytes);

  static constexpr bool takes_width(int64_t width) {
    return width > (kOctets - 1) * kOctet && width <= kOctets * kOctet && width % 4 == 0;
  }
  static constexpr bool takes_reach(int64_t reach) {
    return kReachOctets + 2 >= kOctets || reach <= kReachOctets * kOctet;
  }
};

// The forward's geometry, of multiplier 1: src is the input, dst grad_output.
struct SweepWeight : UnitStridePass {
  int32_t tiles; // groups of images
  int32_t tap_groups;
  int32_t parts; // warps that share a group of taps
  int32_t part_rows; // of grad_output
  int32_t piece; // bytes that travel at once
  int32_t src_pitch; // bytes from image to image
  int32_t dst_pitch;
  Divider by_src_pieces; // of a plane
  Divider by_dst_pieces;
  Divider by_src_row; // pieces of a row
  Divider by_dst_row;
};

// Half a block.
__device__ __forceinline__ void copy_half_or_zeros(char* to, const void* from, bool exists) {
#if __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(from), "r"(exists ? 8 : 0)
      : "memory");
#endif
}

// Asks for the planes of a tile's images of a channel.
template <typename Traits>
__device__ __forceinline__ void load_images(
    char* to,
    const typename Traits::scalar_t* tensor,
    int tile,
    int plane,
    int pitch,
    const Divider& by_plane,
    const Divider& by_row,
    const SweepWeight& p) {
  const int pieces = by_plane.by;
  const int of_row = by_row.by;
#pragma unroll 4
  for (int i = threadIdx.x; i < Traits::kTileImages * pieces; i += blockDim.x) {
    const int image = by_plane.quotient(i);
    const int in_plane = i - image * pieces;
    const int row = by_row.quotient(in_plane);
    const int n = tile * Traits::kTileImages + image;
    char* const target =
        to + image * pitch + row * Traits::kRowPitch + (in_plane - row * of_row) * p.piece;
    const char* const from = reinterpret_cast<const char*>(
                                 tensor + (min(n, p.batch - 1) * p.channels + blockIdx.x) * plane) +
        in_plane * p.piece;
    if (p.piece == kBlockBytes) {
      copy_block_or_zeros(target, from, n < p.batch);
    } else {
      copy_half_or_zeros(target, from, n < p.batch);
    }
  }
}

// Of which matrix of four a lane gives the address of a row, and which row: of two octets of columns
// and the two halves of the inner dimension. On the right the halves of an octet are neighbours.
template <typename Traits, bool kLeft>
struct MatrixLane {
  int image;
  int row;
  int octet;
  __device__ __forceinline__ MatrixLane() {
    const int low = threadIdx.x / kOctet % 2;
    const int high = threadIdx.x % kWarpSize / kMatrixRows;
    const int half = kLeft ? high : low;
    image = threadIdx.x % kOctet + (Traits::kRowsAtOnce == 1 ? half * kOctet : 0);
    row = Traits::kRowsAtOnce == 1 ? 0 : half;
    octet = kLeft ? low : high;
  }
};

// The rows from `row` on of a tile's images, as matrices: [two octets][...].
template <typename Traits, bool kLeft>
__device__ __forceinline__ void load_rows(
    uint32_t (&to)[Traits::kGrads][4],
    uint32_t images,
    uint32_t zeros,
    int row,
    int height,
    int pitch) {
  const MatrixLane<Traits, kLeft> at;
  const int mine = row + at.row;
  const uint32_t address =
      (mine >= 0 && mine < height ? images + at.image * pitch + mine * Traits::kRowPitch : zeros) +
      at.octet * kBlockBytes;
#pragma unroll
  for (int i = 0; i < Traits::kGrads; ++i) {
    load_matrices_transposed(to[i], address + i * 2 * kBlockBytes);
  }
}

// The sums of a warp's rows of taps.
template <typename Traits>
struct TapSums {
  static constexpr int kTapRows = Traits::kTapRows;
  static constexpr int kRing = Traits::kRing;
  static constexpr int kRowsAtOnce = Traits::kRowsAtOnce;
  static constexpr int kHalves = 2 / kRowsAtOnce; // of the inner dimension, of a row
  float sums[kTapRows][Traits::kDiagonals][4] = {};

  // Rows [begin, end) of grad_output, `begin` a multiple of kRowsAtOnce.
  __device__ __forceinline__ void add(
      uint32_t grads,
      uint32_t inputs,
      uint32_t zeros,
      int first_tap,
      int begin,
      int end,
      const SweepWeight& p) {
    // The input's row that the first row of taps takes to row 0.
    const int up = first_tap - p.padding_height;
    int row = max(begin, (1 - up - kRing) / kRowsAtOnce * kRowsAtOnce);
    const int last = min(end, p.src_height - up) - 1;
    if (row > last) {
      return;
    }
    uint32_t ring[kRing][Traits::kOctets][kHalves];
    const auto load_inputs = [&](int slot, int source) {
      uint32_t words[Traits::kGrads][4];
      load_rows<Traits, false>(words, inputs, zeros, source, p.src_height, p.src_pitch);
#pragma unroll
      for (int i = 0; i < Traits::kOctets * 2; ++i) {
        ring[slot + i % kRowsAtOnce][i / 2][i % kHalves] = words[i / 4][i % 4];
      }
    };
#pragma unroll
    for (int slot = 0; slot + kRowsAtOnce < kRing; slot += kRowsAtOnce) {
      load_inputs(slot, row + up + slot);
    }
    while (true) {
#pragma unroll
      for (int step = 0; step < kRing; step += kRowsAtOnce) {
        uint32_t grad[Traits::kGrads][4];
        load_rows<Traits, true>(grad, grads, zeros, row, p.dst_height, p.dst_pitch);
        load_inputs((step + kRing - kRowsAtOnce) % kRing, row + up + kRing - kRowsAtOnce);
#pragma unroll
        for (int m = 0; m < Traits::kGrads; ++m) {
          const bool both = 2 * m + 1 < Traits::kOctets;
#pragma unroll
          for (int r = 0; r < kTapRows; ++r) {
#pragma unroll
            for (int d = 0; d < Traits::kDiagonals; ++d) {
              const int octet = 2 * m + d - Traits::kReachOctets;
              if (octet >= 0 && octet < Traits::kOctets) {
                multiply_16<typename Traits::scalar_t>(
                    sums[r][d],
                    grad[m][0],
                    both ? grad[m][1] : 0u,
                    grad[m][2],
                    both ? grad[m][3] : 0u,
                    ring[(step + r) % kRing][octet][0],
                    ring[(step + r + kRowsAtOnce - 1) % kRing][octet][kHalves - 1]);
              }
            }
          }
        }
        row += kRowsAtOnce;
        if (row > last) {
          break;
        }
      }
      if (row > last) {
        break;
      }
    }
  }

  __device__ __forceinline__ void write(float* to, const Lane& at) const {
#pragma unroll
    for (int r = 0; r < kTapRows; ++r) {
#pragma unroll
      for (int d = 0; d < Traits::kDiagonals; ++d) {
        float* const matrix =
            to + r * Traits::kRowSums + d * Traits::kMatrix + at.row * kOctet + 2 * at.pair;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          matrix[i / 2 * kOctet * kOctet + i % 2] = sums[r][d][i];
        }
      }
    }
  }
};

// grid: channels, groups of tiles.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kMostThreads, 1)
__global__ void sweep_grad_weight_kernel(
    const BatchOperands<typename Traits::scalar_t> t,
    const __grid_constant__ SweepWeight p) {
  using scalar_t = typename Traits::scalar_t;
  extern __shared__ uint4 shared_blocks[];
  // A row of zeros and the tiles; once they are done, the warps' sums.
  char* const zeros = reinterpret_cast<char*>(shared_blocks);
  char* const tiles = zeros + kZeroBytes;
  const int src_bytes = Traits::kTileImages * p.src_pitch;
  const int stage_bytes = src_bytes + Traits::kTileImages * p.dst_pitch;
  const int channel = blockIdx.x;
  const int warp = threadIdx.x / kWarpSize;
  const int group = warp / p.parts;
  const int part = warp - group * p.parts;
  const bool is_bias = group == p.tap_groups;
  const int begin = part * p.part_rows;
  const int end = min(p.dst_height, begin + p.part_rows);

  const auto load = [&](int tile, int stage) {
    if (tile < p.tiles) {
      char* const to = tiles + stage * stage_bytes;
      load_images<Traits>(
          to + src_bytes,
          t.src,
          tile,
          p.dst_height * p.dst_width,
          p.dst_pitch,
          p.by_dst_pieces,
          p.by_dst_row,
          p);
      load_images<Traits>(
          to,
          t.input,
          tile,
          p.src_height * p.src_width,
          p.src_pitch,
          p.by_src_pieces,
          p.by_src_row,
          p);
    }
    commit_copies();
  };
  clear_shared(zeros, kZeroBytes + kStages * stage_bytes);
  __syncthreads();
  load(blockIdx.y, 0);

  const uint32_t shared_zeros = static_cast<uint32_t>(__cvta_generic_to_shared(zeros));
  TapSums<Traits> sums;
  float bias[4] = {};
  int stage = 0;
  for (int tile = blockIdx.y; tile < p.tiles; tile += gridDim.y) {
    load(tile + gridDim.y, stage ^ 1);
    wait_for_groups<1>();
    __syncthreads();
    const uint32_t inputs = shared_zeros + kZeroBytes + stage * stage_bytes;
    const uint32_t grads = inputs + src_bytes;
    if (!is_bias) {
      sums.add(grads, inputs, shared_zeros, group * Traits::kTapRows, begin, end, p);
    } else {
      for (int row = begin; row < end; row += Traits::kRowsAtOnce) {
        uint32_t grad[Traits::kGrads][4];
        load_rows<Traits, true>(grad, grads, shared_zeros, row, p.dst_height, p.dst_pitch);
#pragma unroll
        for (int m = 0; m < Traits::kGrads; ++m) {
          const bool both = 2 * m + 1 < Traits::kOctets;
          multiply_16<scalar_t>(
              bias,
              grad[m][0],
              both ? grad[m][1] : 0u,
              grad[m][2],
              both ? grad[m][3] : 0u,
              kTwoOnes<scalar_t>,
              kTwoOnes<scalar_t>);
        }
      }
    }
    __syncthreads();
    stage ^= 1;
  }

  const Lane at;
  float* const matrices = reinterpret_cast<float*>(shared_blocks);
  float* const biases = matrices + p.tap_groups * p.parts * Traits::kSums;
  if (!is_bias) {
    sums.write(matrices + warp * Traits::kSums, at);
  } else if (at.pair == 0) {
    biases[part * kMatrixRows + at.row] = bias[0];
    biases[part * kMatrixRows + kOctet + at.row] = bias[2];
  }
  __syncthreads();
  const int kernel_size = p.kernel_height * p.kernel_width;
  for (int tap = threadIdx.x; tap <= kernel_size; tap += blockDim.x) {
    const int kh = tap / p.kernel_width;
    const int distance = tap - kh * p.kernel_width - p.padding_width;
    const int of_group = kh / Traits::kTapRows;
    float sum = 0.0f;
    for (int i = 0; i < p.parts; ++i) {
      if (tap == kernel_size) {
        for (int m = 0; m < kMatrixRows; ++m) {
          sum += biases[i * kMatrixRows + m];
        }
      } else {
        const float* const from = matrices + (of_group * p.parts + i) * Traits::kSums +
            (kh - of_group * Traits::kTapRows) * Traits::kRowSums;
        for (int m = 0; m < kMatrixRows; ++m) {
          const int column = m + distance + Traits::kReachOctets * kOctet;
          if (column >= 0 && column < Traits::kDiagonals * kOctet) {
            sum += from[column / kOctet * Traits::kMatrix + m * kOctet + column % kOctet];
          }
        }
      }
    }
    if (isnan(sum)) {
      sum = careful_tap(
          t.src,
          t.input,
          p,
          channel,
          tap,
          static_cast<int>(blockIdx.y) * Traits::kTileImages,
          Traits::kTileImages,
          static_cast<int>(gridDim.y) * Traits::kTileImages);
    }
    write_tap(t, sum, tap, channel, p);
  }
}

// Groups of tiles a channel: as few as the multiprocessors() finish soonest with. A block takes half a
// tile's time and more to begin and to end: 192 channels of 28 x 28 x 64 with 7 x 7 in two groups.
int64_t chunks_of(int64_t channels, int64_t tiles) {
  int64_t best = 1;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t chunks = 1; chunks <= std::min(tiles, kMostGridRows); ++chunks) {
    const int64_t halves = 2 * divide_up(tiles, chunks) + 1;
    const int64_t time = divide_up(channels * chunks, multiprocessors()) * halves;
    if (time < least) {
      best = chunks;
      least = time;
    }
  }
  return best;
}

template <typename Traits>
bool launch_weight(const BackwardPass& pass, const Params& p, SweepWeight s) {
  using scalar_t = typename Traits::scalar_t;
  const int64_t reach = std::max(s.padding_width, s.kernel_width - 1 - s.padding_width);
  if (!Traits::takes_width(s.src_width) || !Traits::takes_width(s.dst_width) ||
      !Traits::takes_reach(reach)) {
    return false;
  }
  s.tap_groups = divide_up(s.kernel_height, Traits::kTapRows);
  s.parts = kMostWarps / (s.tap_groups + 1);
  if (s.parts == 0) {
    return false;
  }
  s.part_rows = divide_up(s.dst_height, s.parts * Traits::kRowsAtOnce) * Traits::kRowsAtOnce;
  s.piece = s.src_width % kBlock == 0 && s.dst_width % kBlock == 0 ? kBlockBytes : kBlockBytes / 2;
  const int64_t src_row = s.src_width * 2 / s.piece;
  const int64_t dst_row = s.dst_width * 2 / s.piece;
  s.by_src_row = Divider(src_row);
  s.by_dst_row = Divider(dst_row);
  s.by_src_pieces = Divider(src_row * s.src_height);
  s.by_dst_pieces = Divider(dst_row * s.dst_height);
  // An odd number of vectors, so that 8 images' rows fall into different banks.
  s.src_pitch = odd(int64_t{s.src_height} * Traits::kOctets) * kBlockBytes;
  s.dst_pitch = odd(int64_t{s.dst_height} * Traits::kOctets) * kBlockBytes;
  s.tiles = divide_up(s.batch, Traits::kTileImages);
  const int warps = s.parts * (s.tap_groups + 1);
  const int64_t sums =
      s.parts * (s.tap_groups * Traits::kSums + kMatrixRows) * int64_t{sizeof(float)};
  const int64_t shared = std::max(
      sums,
      kZeroBytes + int64_t{kStages} * Traits::kTileImages * (s.src_pitch + s.dst_pitch) +
          kSlackBytes);
  if (!has_shared(shared)) {
    return false;
  }
  const int64_t chunks = chunks_of(s.channels, s.tiles);
  BatchOperands<scalar_t> operands{};
  operands.src = pass.grad_output.const_data_ptr<scalar_t>();
  operands.input = pass.input.const_data_ptr<scalar_t>();
  Operand partial;
  if (chunks > 1) {
    partial = empty_partial(chunks, p);
    operands.partial = partial.mutable_data_ptr<float>();
  } else {
    operands.grad_weight = mutable_pointer_or_null<scalar_t>(pass.grad_weight);
    operands.grad_bias = mutable_pointer_or_null<scalar_t>(pass.grad_bias);
  }
  launch_kernel(
      sweep_grad_weight_kernel<Traits>,
      dim3(s.channels, chunks),
      warps * kWarpSize,
      shared,
      operands,
      s);
  if (chunks > 1) {
    add_partials(pass.grad_weight, pass.grad_bias, partial, chunks, p);
  }
  return true;
}

// The kernel with the fewest octets, and diagonals, that are enough.
template <typename scalar_t>
bool choose_weight(const BackwardPass& pass, const Params& p, const SweepWeight& s) {
  return launch_weight<SweepWeightTraits<scalar_t, 4, 1, 1, 5>>(pass, p, s) ||
      launch_weight<SweepWeightTraits<scalar_t, 4, 2, 1, 3>>(pass, p, s) ||
      launch_weight<SweepWeightTraits<scalar_t, 7, 1, 2, 5>>(pass, p, s) ||
      launch_weight<SweepWeightTraits<scalar_t, 7, 2, 2, 3>>(pass, p, s);
}

} // namespace

bool sweep_grad_weight(const BackwardPass& pass, const Params& p) {
  // A tile has room for 8 or 16 images: 500 channels of 28 x 28 with 13 x 13 of one 29 -> 33 us, of 56 x 56
  // with 9 x 9 of three 59 -> 43.
  constexpr int64_t kLeastImages = 3;
  const bool aligned = is_aligned(pass.grad_output.const_data_ptr(), kBlockBytes) &&
      is_aligned(pass.input.const_data_ptr(), kBlockBytes);
  if (p.stride_height != 1 || p.stride_width != 1 || p.dilation_height != 1 ||
      p.dilation_width != 1 || p.multiplier != 1 || p.batch < kLeastImages || !aligned) {
    return false;
  }
  SweepWeight s{};
  set_unit_stride_pass(s, p);
  return pass.input.type() == Type::kHalf ? choose_weight<c10::Half>(pass, p, s)
                                          : choose_weight<c10::BFloat16>(pass, p, s);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
