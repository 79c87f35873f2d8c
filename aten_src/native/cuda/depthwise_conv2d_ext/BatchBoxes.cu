// Forward of depthwise_conv2d_ext on planes of 28 and 56 columns in float16 and bfloat16 by boxes
// (sm_90), and grad_input, which is the forward on grad_output with flipped taps.
//
// As in BatchMarch.cuh the same row of 16 images is a matrix, a row of taps lies
// along the diagonals of others, T, and octets of dst begin four columns before those of src. Here
// a warp has whole rows: it marches down a strip of 16 images alone, with the rows of src that a
// row of dst meets in its registers, and waits for no other warp. Lines of src come into a ring of
// its own, each by one request of one lane to the tensor copy engine, and lines of dst leave the
// same way. A line is a row of 56 columns, or two of 28, so that lines begin at multiples of 16
// bytes, as the engine wants (a box too: one that begins four columns before the image is an
// illegal instruction). The swizzle of 128 bytes spreads the images of a line over all banks.
//
// Of a second row of 28 columns octets lie across blocks of 16 bytes, and come by words instead of
// matrices. What is behind a first row is the begin of the second, and masked.
//
// Rows outside the image come as zeros. A zero is multiplied where a column or a tap does not
// exist: at the end of a strip, results that are NaN are taken again, tap by tap.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

// How a pass is cut: strips of rows of a phase, of 16 images of a channel.
struct StripPlan : Batch {
  int32_t strips; // of a phase
  int32_t strip_rows;
  int32_t phases; // of rows
  int32_t items; // of 16 images: one a warp
};

template <typename scalar_t_, int kWidth_, int kReach_, int kLeft_>
struct StripTraits {
  using scalar_t = scalar_t_;
  static constexpr int kWidth = kWidth_; // of a row
  static constexpr int kReach = kReach_; // rows of taps on each side of the middle one, at most
  static constexpr int kLeft = kLeft_; // columns on each side that a column meets, at most
  static constexpr int kTapRows = 2 * kReach + 1;
  // The matrices T: so many octets of src meet an octet of dst.
  static constexpr int kFirstColumn = -kLeft;
  static constexpr int kDiagonals = (2 * kLeft + kOctet) / kOctet;
  static constexpr int kMiddle = 0;
  static constexpr bool kDilated = kDiagonals > 2;
  static constexpr int kLineColumns = 56;
  static constexpr int kLineRows = kLineColumns / kWidth;
  static constexpr int kSrcOctets = (kWidth + kOctet - 1) / kOctet;
  static constexpr int kDstOctets = (kWidth + kOctet / 2 + kOctet - 1) / kOctet;
  static constexpr int kBeside = kDiagonals / 2; // octets of src that begin before one of dst
  static constexpr int kGroup = 4; // octets of dst at a time
  // A line in shared memory is 16 images of so many blocks of 16 bytes.
  static constexpr int kLineBlocks = 8;
  static constexpr int kImageBytes = kLineBlocks * kBlockBytes;
  static constexpr int kLineBytes = kTileImages * kImageBytes;
  static constexpr int kRing = kTapRows; // lines, so that all places are known
  static constexpr int kDstImageBytes = kLineColumns * 2;
  static constexpr int kDstLineBytes = kTileImages * kDstImageBytes;
  static constexpr int kRingBytes = kRing * kLineBytes;
  static constexpr int kAlign = 1024; // where a swizzle may begin
  static constexpr int kBarriers = kRingBytes + 2 * kDstLineBytes;
  static constexpr int kWarpBytes =
      (kBarriers + kRing * static_cast<int>(sizeof(uint64_t)) + kAlign - 1) / kAlign * kAlign;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  // Blocks on a multiprocessor, by their registers and shared memory.
  static constexpr int kBlocks = kWidth == 28 && kReach == 2 ? 4 : 3;
  static constexpr int kShared = kWarps * kWarpBytes;
  // Rows of src in the first line that the first row of dst does not meet.
  static constexpr int kSkip = kReach % kLineRows;
  static constexpr int kBefore = 2 * kReach + kSkip; // rows of lines before the last that it meets
  static_assert(kLineBytes % kBoxBytes == 0 && kDstLineBytes % kBoxBytes == 0);
  static_assert(
      kSrcOctets <= kLineBlocks && kDstOctets % kGroup == 0 && (kLineRows == 1 || !kDilated));
};

// sums = begin + a[16][8] . b[8][8].
template <typename scalar_t>
__device__ __forceinline__ void multiply_8_from(
    float (&sums)[4],
    const float (&begin)[4],
    uint32_t a0,
    uint32_t a1,
    uint32_t b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(begin[0]), "f"(begin[1]), "f"(begin[2]), "f"(begin[3]));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(begin[0]), "f"(begin[1]), "f"(begin[2]), "f"(begin[3]));
  }
#endif
}

// Which strip is a warp's.
struct Strip {
  int channel;
  int first_image;
  int row_phase;
  int first_row; // in steps of the dilation
  int rows;

  static __device__ __forceinline__ Strip of(int item, const StripPlan& p) {
    Strip s;
    int rest = item / p.strips;
    s.first_row = (item - rest * p.strips) * p.strip_rows;
    item = rest;
    rest = item / p.phases;
    s.row_phase = item - rest * p.phases;
    s.channel = rest;
    s.first_image = blockIdx.y * kTileImages;
    const int rows = (p.dst_height - s.row_phase + p.dilation_height - 1) / p.dilation_height;
    s.rows = min(p.strip_rows, rows - s.first_row);
    return s;
  }
};

// Reads rows of src from a line, as octets of left matrices.
template <typename Traits>
struct LineReader {
  static constexpr int kPairs = (Traits::kSrcOctets + 1) / 2;
  static constexpr int kWordOctets = Traits::kLineRows > 1 ? Traits::kSrcOctets : 1;
  uint32_t matrices[kPairs]; // where the lane's image has two octets
  uint32_t words[kWordOctets]; // where its word of an octet is, of a second row
  uint32_t mask; // of the last octet of a first row

  __device__ __forceinline__ LineReader(uint32_t ring, const Lane& at) {
    const int lane = threadIdx.x % kWarpSize;
    const int image = lane % kMatrixRows;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      matrices[i] = ring + image * Traits::kImageBytes +
          ((2 * i + lane / kMatrixRows) ^ image % kOctet) * kBlockBytes;
    }
    if constexpr (Traits::kLineRows > 1) {
#pragma unroll
      for (int i = 0; i < kWordOctets; ++i) {
        const int column = Traits::kWidth + i * kOctet + 2 * at.pair;
        words[i] = ring + at.row * Traits::kImageBytes +
            ((column / kOctet) ^ at.row) * kBlockBytes + column % kOctet * 2;
      }
      mask = at.pair < Traits::kWidth % kOctet / 2 ? ~0u : 0;
    }
  }

  // The row of this number of the line in this place of the ring.
  template <int kPlace, int kRow>
  __device__ __forceinline__ void load(uint32_t (&octets)[Traits::kSrcOctets][2]) const {
    constexpr int kOffset = kPlace * Traits::kLineBytes;
    if constexpr (kRow == 0) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        uint32_t two[4];
        load_matrices(two, matrices[i] + kOffset);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (2 * i + j / 2 < Traits::kSrcOctets) {
            octets[2 * i + j / 2][j % 2] = two[j];
          }
        }
      }
      if constexpr (Traits::kLineRows > 1) {
        octets[Traits::kSrcOctets - 1][0] &= mask;
        octets[Traits::kSrcOctets - 1][1] &= mask;
      }
    } else {
#pragma unroll
      for (int i = 0; i < Traits::kSrcOctets; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t word;
          asm volatile("ld.shared.b32 %0, [%1];"
                       : "=r"(word)
                       : "r"(words[i] + kOffset + half * kOctet * Traits::kImageBytes)
                       : "memory");
          octets[i][half] = word;
        }
      }
    }
  }
};

// A warp's results that are NaN again, tap by tap, when they are in device memory.
template <typename Traits>
__device__ __noinline__ void retake_strip(
    typename Traits::scalar_t* dst,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    float begin,
    const Strip& strip,
    const StripPlan& p) {
  using scalar_t = typename Traits::scalar_t;
  const int multiplier = p.flip ? 1 : p.multiplier;
  const int last_image = min(p.batch, strip.first_image + kTileImages);
#pragma unroll 1
  for (int n = strip.first_image; n < last_image; ++n) {
    const int plane = n * p.channels + strip.channel;
    const int source = n * (p.channels / multiplier) + strip.channel / multiplier;
#pragma unroll 1
    for (int i = threadIdx.x % kWarpSize; i < strip.rows * p.dst_width; i += kWarpSize) {
      const int row = strip.row_phase + (strip.first_row + i / p.dst_width) * p.dilation_height;
      const int column = i % p.dst_width;
      scalar_t* const to = dst + (plane * p.dst_height + row) * p.dst_width + column;
      scalar_t result;
      result.x = *reinterpret_cast<volatile unsigned short*>(to);
      retake(
          result,
          src + source * p.src_height * p.src_width,
          weight + strip.channel * p.kernel_height * p.kernel_width,
          begin,
          p,
          row,
          column);
      *to = result;
    }
  }
}

// grid: groups of strips, tiles of images.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void strip_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ CUtensorMap dst_map,
    const typename Traits::scalar_t* __restrict__ src,
    const __grid_constant__ CUtensorMap src_map,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ StripPlan p) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kTapRows = Traits::kTapRows;
  constexpr int kLineRows = Traits::kLineRows;
  constexpr int kRing = Traits::kRing;
  constexpr int kBefore = Traits::kBefore;
  constexpr int kSkip = Traits::kSkip;
  constexpr int kDstOctets = Traits::kDstOctets;
  extern __shared__ __align__(1024) char shared_lines[];
  const Lane at;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int item = blockIdx.x * Traits::kWarps + warp;
  if (item >= p.items) {
    return;
  }
  const Strip strip = Strip::of(item, p);
  if (strip.rows <= 0) {
    return;
  }
  char* const mine = shared_lines + warp * Traits::kWarpBytes;
  const uint32_t ring = shared_address(mine);
  const uint32_t barriers = ring + Traits::kBarriers;
  const auto barrier = [&](int place) {
    return barriers + place * static_cast<int>(sizeof(uint64_t));
  };
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  const int src_channel = p.flip ? strip.channel : strip.channel / p.multiplier;
  const int lines = (strip.rows + kBefore + kLineRows - 1) / kLineRows;
  // Of src: in lines from the strip's first.
  const int first_src =
      strip.row_phase + (strip.first_row - Traits::kReach - kSkip) / kLineRows * p.dilation_height;
  const auto load = [&](int line, int place) {
    arrive_and_expect(barrier(place), Traits::kLineBytes);
    load_box(
        ring + place * Traits::kLineBytes,
        barrier(place),
        src_map,
        0,
        first_src + line * p.dilation_height,
        src_channel,
        strip.first_image);
  };
  if (first_lane) {
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
      init_barrier(barrier(i), 1);
    }
    fence_barriers();
#pragma unroll 1
    for (int i = 0; i < min(kRing, lines); ++i) {
      load(i, i);
    }
  }
  __syncwarp();

  uint32_t bands[kTapRows][Traits::kDiagonals];
  make_bands<Traits>(
      bands,
      reinterpret_cast<const unsigned short*>(weight) +
          strip.channel * p.kernel_height * p.kernel_width,
      at,
      p);
  const float begin = bias ? static_cast<float>(bias[strip.channel]) : 0.0f;
  const float begins[4] = {begin, begin, begin, begin}; // as sums do
  const LineReader<Traits> reader(ring, at);
  uint32_t rows[kTapRows][Traits::kSrcOctets][2];
  uint32_t seen = 0;
  uint32_t parity = 0; // of the round of the ring in which the march's first line is

  // The row of lines of this number; a row of src is in slot (kAt - kSkip) % kTapRows.
  const auto read = [&](auto number) {
    constexpr int kAt = decltype(number)::value;
    constexpr int kPlace = kAt / kLineRows % kRing;
    if constexpr (kAt % kLineRows == 0 || kAt == kSkip) {
      wait_for(barrier(kPlace), parity ^ (kAt / kLineRows / kRing % 2));
    }
    reader.template load<kPlace, kAt % kLineRows>(rows[(kAt - kSkip) % kTapRows]);
  };
  // Those before the last that the first row of dst meets.
  take_steps<0, 2 * Traits::kReach>([&](auto number) {
    read(std::integral_constant<int, decltype(number)::value + kSkip>());
    return true;
  });
  int refilled = 0; // lines whose places have been used
  __syncwarp();
  if (first_lane) {
#pragma unroll
    for (int i = 0; i < kBefore / kLineRows; ++i) {
      if (kRing + i < lines) {
        load(kRing + i, i);
      }
    }
  }
  refilled = kBefore / kLineRows;

  const uint32_t results =
      ring + Traits::kRingBytes + at.row * Traits::kDstImageBytes + at.pair * 4;
  // Octets of dst begin half an octet before column 0.
  constexpr int kHalf = kOctet / 2;
  const bool has_first = at.pair >= kHalf / 2;
  const bool has_last = Traits::kDstOctets * kOctet == Traits::kWidth + kHalf || !has_first;
  int row = 0;
  const int dst_first = strip.row_phase + strip.first_row / kLineRows * p.dilation_height;
  const auto step = [&](auto number) {
    constexpr int kI = decltype(number)::value;
    constexpr int kAt = kI + kBefore;
    constexpr int kLast = (kAt - kSkip) % kTapRows; // slot
    constexpr int kOfLine = kI % kLineRows;
    // kTapRows is odd: areas of results alternate over two rounds.
    read(std::integral_constant<int, kAt>());
    const uint32_t to =
        results + (row / kLineRows % 2) * Traits::kDstLineBytes + kOfLine * Traits::kWidth * 2;
#pragma unroll
    for (int first = 0; first < kDstOctets; first += Traits::kGroup) {
      float sums[Traits::kGroup][4];
#pragma unroll
      for (int i = 0; i < kTapRows; ++i) {
        const uint32_t (&from)[Traits::kSrcOctets][2] = rows[(kLast + 1 + i) % kTapRows];
#pragma unroll
        for (int d = 0; d < Traits::kDiagonals; ++d) {
#pragma unroll
          for (int o = 0; o < Traits::kGroup; ++o) {
            const int octet = first + o + d - Traits::kBeside;
            if (octet >= 0 && octet < Traits::kSrcOctets) {
              if (i == 0 && (d == 0 || octet == 0)) {
                multiply_8_from<scalar_t>(
                    sums[o], begins, from[octet][0], from[octet][1], bands[i][d]);
              } else {
                multiply_8<scalar_t>(sums[o], from[octet][0], from[octet][1], bands[i][d]);
              }
            }
          }
        }
      }
#pragma unroll
      for (int o = 0; o < Traits::kGroup; ++o) {
        const bool has = first + o == 0 ? has_first : first + o + 1 == kDstOctets ? has_last : true;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word = pack_two<scalar_t>(sums[o][2 * half], sums[o][2 * half + 1]);
          look_at<scalar_t>(seen, word);
          if (has) {
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(
                             to + (first + o) * kBlockBytes - kHalf * 2 +
                             half * kOctet * Traits::kDstImageBytes),
                         "r"(word)
                         : "memory");
          }
        }
      }
    }
    ++row;
    constexpr bool kSends = kOfLine + 1 == kLineRows;
    constexpr bool kRefills = (kAt + 1) % kLineRows == 0;
    if constexpr (kSends || kRefills) {
      if (kSends && first_lane) {
        wait_until_sent(); // the line before, whose place the next is for
      }
      if (kSends) {
        fence_for_copies();
      }
      __syncwarp();
      if (first_lane) {
        if (kRefills && refilled + kRing < lines) {
          load(refilled + kRing, kAt / kLineRows % kRing);
        }
        if (kSends) {
          const int line = row / kLineRows - 1;
          store_box(
              dst_map,
              mine + Traits::kRingBytes + line % 2 * Traits::kDstLineBytes,
              0,
              dst_first + line * p.dilation_height,
              strip.channel,
              strip.first_image);
        }
      }
      refilled += kRefills;
    }
    return !kSends || row < strip.rows;
  };
#pragma unroll 1
  while (take_steps<0, kTapRows * kLineRows>(step)) {
    parity ^= 1;
  }

  constexpr uint32_t kNoSigns = 0x7fff7fff; // zeros may have either
  if (__any_sync(0xffffffffu, (seen & kNoSigns) != 0)) {
    if (first_lane) {
      wait_until_stored();
    }
    __syncwarp();
    retake_strip<Traits>(dst, src, weight, begin, strip, p);
  } else if (first_lane) {
    wait_until_sent();
  }
#endif
}

// The map of a tensor in plane order in lines; false where it has none.
bool map_lines(
    CUtensorMap& map,
    const TensorBase& tensor,
    int64_t line_rows,
    int64_t columns,
    CUtensorMapSwizzle swizzle) {
  const auto size = [&](int dim) {
    return static_cast<cuuint64_t>(tensor.size(dim));
  };
  const auto bytes = static_cast<cuuint64_t>(tensor.element_size());
  const cuuint64_t sizes[] = {size(3) * line_rows, size(2) / line_rows, size(1), size(0)};
  const cuuint64_t line = sizes[0] * bytes;
  const cuuint64_t strides[] = {line, line * sizes[1], line * sizes[1] * sizes[2]};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), 1, 1, kTileImages};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  return encode_map(map, tensor, sizes, strides, box, steps, swizzle);
}

template <typename Traits>
bool launch_strips(const ForwardPass& pass, const UnitStridePass& pass_shape) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = strip_kernel<Traits>;
  if (!compiled_for_sm_90<kernel>()) {
    return false;
  }
  StripPlan p{};
  static_cast<UnitStridePass&>(p) = pass_shape;
  p.phases = std::min(p.dilation_height, p.dst_height);
  const int64_t tiles = divide_up(p.batch, kTileImages);
  const int64_t phase_rows = divide_up(p.dst_height, p.dilation_height);
  const int64_t warps =
      int64_t{Traits::kBlocks} * Traits::kWarps * device_attribute(cudaDevAttrMultiProcessorCount);
  // Strips of the least time: each reads kReach rows of its neighbours' on both sides.
  const int64_t whole = tiles * p.channels * p.phases;
  constexpr double kBegin = 3 + Traits::kReach;
  double least = std::numeric_limits<double>::max();
  for (int64_t strips = 1; strips <= divide_up(phase_rows, Traits::kTapRows); ++strips) {
    const int64_t rows =
        divide_up(divide_up(phase_rows, strips), Traits::kLineRows) * Traits::kLineRows;
    const int64_t count = divide_up(phase_rows, rows);
    const double time = static_cast<double>(divide_up(whole * count, warps)) * (rows + kBegin);
    if (time < least) {
      least = time;
      p.strips = count;
      p.strip_rows = rows;
    }
  }
  p.items = int64_t{p.channels} * p.phases * p.strips;
  CUtensorMap src_map;
  CUtensorMap dst_map;
  if (tiles > kMostGridRows || !has_shared(Traits::kShared) ||
      !map_lines(
          src_map,
          pass.src,
          Traits::kLineRows,
          Traits::kLineBlocks * kOctet,
          CU_TENSOR_MAP_SWIZZLE_128B) ||
      !map_lines(
          dst_map, pass.dst, Traits::kLineRows, Traits::kLineColumns, CU_TENSOR_MAP_SWIZZLE_NONE)) {
    return false;
  }
  allow_shared(kernel, Traits::kShared);
  const dim3 grid(divide_up(p.items, Traits::kWarps), tiles);
  kernel<<<grid, Traits::kThreads, Traits::kShared, c10::cuda::getCurrentCUDAStream()>>>(
      pass.dst.mutable_data_ptr<scalar_t>(),
      dst_map,
      pass.src.const_data_ptr<scalar_t>(),
      src_map,
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

// Whether strips are faster than what else takes the call, of so many planes of 16 images, or
// phases of their rows. One H200, float16, forward, before and now: 96@56 k7 of 8 to 32 images (96
// to 192) 17.3, 18.0, 24.0 us and 13.1, 14.0, 20.2, of 64 (384) both 32, of 128 55 and 62; 96@56 k5
// of 8 images 10.5 and 12.5, of 16 to 64 17.0, 25.5, 31.4 and 13.6, 18.7, 30.4, of 128 57 and 61;
// 192@28 k7 of 8 to 32 12.3, 12.7, 13.9 and 9.9, 10.2, 13.3, of 64 (768) 18.3 and 18.7, of 128 33.2
// and 30.4; 240@28 k5 of 8 to 32 (240, 480) 11.4, 12.2, 13.8 and 9.5, 10.3, 13.6, of 128 both 37;
// 24@28 k7 of 8 (24) 11.0 and 7.5. Dilated: 64@56 k7d3 of 8 to 32 images (192, 384) 14.1, 23.5,
// 27.9 and 20.8, 21.5, 27.9, of 64 50.6 and 33.5, of 128 95 and 50; 32@56 k7d2 of 32 (128) 19.3 and
// 21.3, of 128 (512) 49 and 34.
bool strips_are_faster(int64_t planes, int64_t batch, bool narrow, int64_t reach, bool dilated) {
  constexpr int64_t kLeast = 24; // fewer were not measured
  if (dilated) {
    return planes >= 512;
  }
  if (planes < kLeast) {
    return false;
  }
  if (narrow) {
    return reach == 3 ? planes <= 384 || planes >= 1536 : planes <= 480;
  }
  return reach == 3 ? planes <= 192 : planes <= 384 && batch >= kTileImages;
}

bool strips_pass(const ForwardPass& pass, const Params& params, const UnitStridePass& p) {
  constexpr int64_t kNarrow = 4; // columns on each side
  constexpr int64_t kWide = 12;
  constexpr int64_t kTile = 56;
  constexpr int64_t kPlane = 28;
  constexpr int64_t kLeastImages = kOctet;
  constexpr int64_t kLeastRows = 28; // fewer were not measured
  const ScalarType type = pass.src.scalar_type();
  const bool plane = p.dst_width == kPlane && p.dst_height % (kTile / kPlane) == 0;
  if (params.channels_last || !is_16_bit(type) || params.stride_height != 1 ||
      params.stride_width != 1 || p.src_height != p.dst_height || p.src_width != p.dst_width ||
      p.batch < kLeastImages || !(plane || p.dst_width == kTile) || pass.dst.numel() == 0 ||
      p.padding_height % p.dilation_height != 0 || !march_fits_32_bits(params) ||
      !is_aligned(pass.src.const_data_ptr(), kBlockBytes) ||
      !is_aligned(pass.dst.const_data_ptr(), kBlockBytes) || !device_has_boxes()) {
    return false;
  }
  const int64_t reach = p.padding_height / p.dilation_height;
  const bool undilated = p.dilation_height == 1 && p.dilation_width == 1;
  const int64_t planes = divide_up(p.batch, kTileImages) * p.channels * p.dilation_height;
  if (!strips_are_faster(planes, p.batch, plane, reach, !undilated || p.padding_width > kNarrow)) {
    return false;
  }
  const auto with_scalar = [&](auto scalar) {
    using scalar_t = decltype(scalar);
    if (undilated && p.padding_width <= kNarrow) {
      if (reach == 3) {
        return plane ? launch_strips<StripTraits<scalar_t, kPlane, 3, kNarrow>>(pass, p)
                     : launch_strips<StripTraits<scalar_t, kTile, 3, kNarrow>>(pass, p);
      }
      if (reach == 2) {
        return plane ? launch_strips<StripTraits<scalar_t, kPlane, 2, kNarrow>>(pass, p)
                     : launch_strips<StripTraits<scalar_t, kTile, 2, kNarrow>>(pass, p);
      }
    } else if (!plane && p.padding_width <= kWide && reach == 3) {
      return launch_strips<StripTraits<scalar_t, kTile, 3, kWide>>(pass, p);
    }
    return false;
  };
  return type == kHalf ? with_scalar(c10::Half()) : with_scalar(c10::BFloat16());
}

#else

bool strips_pass(const ForwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

} // namespace

bool batch_boxes_forward(const ForwardPass& pass, const Params& p) {
  return strips_pass(pass, p, unit_stride_forward(p));
}

bool batch_boxes_grad_input(const ForwardPass& pass, const Params& p) {
  return p.multiplier == 1 && strips_pass(pass, p, unit_stride_grad_input(p));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
