// depthwise_conv2d_ext at stride 2 from planes of 14 x 14 to planes of 7 x 7 in float16 and bfloat16: on
// the tensor cores, with the batch as rows of matrices as in Batch.cuh. The windows are
// 3 x 3 and 5 x 5 with the usual padding.
//
// A tile is 16 images of eight neighbouring channels, of both tensors one run of memory an image, which
// comes into shared memory by asynchronous copies and leaves it as it is. A warp takes one channel of it.
// A row of dst is
//   dst row[image][column] = sum over rows of taps of src row[image][column'] · T[column'][column],
// where T holds a tap where the columns are as far apart as the stride and the tap say: two columns of the
// input to one of the output, or, in grad_input, the other way round, where each row of dst meets half of
// the rows of taps.
//
// In the weight's gradient the batch is the inner dimension. Two rows of grad_output, one above the other,
// meet a row of the input; the sums of entry (column of grad_output, column of input) belong to the tap
// that lies their difference away. A column of ones beside the input's gives the bias. With all gradients
// wanted, grad_input takes the input's place.
//
// Where a column or a tap does not exist there is a zero, and a zero is multiplied: a result that is NaN
// is taken again, tap by tap.
//
// Microseconds of an H200, with images as lanes and by this, of 128 images of 672 channels by 5 x 5:
// forward 22.1 and 15.5, grad_input 22.0 and 15.9, the weight's gradient 23.1 and 20.8, all gradients 37.9
// and 30.5; of 576 channels by 3 x 3 forward and grad_input 17.3 and 14.9, 18.2 and 15.7.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Strided.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kStride = 2;
constexpr int kLargeSide = 14; // of the input
constexpr int kSmallSide = 7; // of the output
constexpr int kTileChannels = 8;
constexpr int kThreads = kTileChannels * kWarpSize;

// Planes of the tile's channels, as rows of matrices.
template <typename scalar_t_, int kSide_>
struct BatchPlanes {
  using scalar_t = scalar_t_;
  static constexpr int kSide = kSide_;
  static constexpr int kOctets = (kSide + kOctet - 1) / kOctet;
  static constexpr int kFirstColumn = 0;
  static constexpr int kDiagonals = 1;
  static constexpr bool kOdd = kSide % 2 != 0;
  static constexpr int kPixels = kSide * kSide;
  static constexpr int kPlaneBytes = kPixels * 2;
  static constexpr int kRowBytes = kSide * 2;
  static constexpr int kRunBytes = kTileChannels * kPlaneBytes;
  static constexpr int kPitch = image_pitch(kRunBytes);
  static constexpr int kTileBytes = kTileImages * kPitch;
};

template <typename scalar_t_, int kWindow_, bool kForward_, bool kData_, bool kWeight_>
struct BatchStridedTraits {
  using scalar_t = scalar_t_;
  using Large = BatchPlanes<scalar_t, kLargeSide>;
  using Small = BatchPlanes<scalar_t, kSmallSide>;
  static constexpr int kWindow = kWindow_;
  static constexpr int kReach = kWindow / 2;
  static constexpr bool kForward = kForward_; // whether dst is the output
  static constexpr bool kData = kData_; // whether dst is wanted
  static constexpr bool kWeight = kWeight_; // whether the weight's gradient is
  using Source = std::conditional_t<kForward, Large, Small>; // of dst
  using Result = std::conditional_t<kForward, Small, Large>;
  // Blocks on a multiprocessor, by their registers and shared memory.
  static constexpr int kBlocks = kWeight && kData ? 2 : 3;
  static constexpr int kTapBytes = round_up_bytes(kTileChannels * kWindow * kWindow * 2);
  static constexpr int kLargeAt = kTapBytes; // in shared memory, behind the taps
  static constexpr int kSmallAt = kLargeAt + Large::kTileBytes;
  static constexpr int kSlack = kBlockBytes; // the columns beyond the last row are read
  static constexpr int kShared = kSmallAt + Small::kTileBytes + kSlack;
  // Of a channel, once the sums are complete: a matrix for each row of taps, and the bias.
  static constexpr int kMatrixWidth = Large::kOctets * kOctet;
  static constexpr int kMatrix = kOctet * kMatrixWidth;
  static constexpr int kScratch = kWindow * kMatrix + kOctet;
  static_assert(kTileChannels * kScratch * 4 <= Large::kTileBytes);
  static constexpr int kThreads = at::native::depthwise_conv2d_ext_cuda::kThreads;
};

// The lane's part of the matrices T of a channel, for an octet of the large plane's columns: taps of two
// neighbouring columns of src, of the dst column `row`.
template <typename Traits>
__device__ __forceinline__ void make_strided_bands(
    uint32_t (&bands)[Traits::kWindow][Traits::Large::kOctets],
    const unsigned short* taps,
    const Lane& at) {
#pragma unroll
  for (int octet = 0; octet < Traits::Large::kOctets; ++octet) {
    const int large = octet * kOctet + (Traits::kForward ? 2 * at.pair : at.row);
    const int small = Traits::kForward ? at.row : 2 * at.pair;
    const int right = large - kStride * small + Traits::kReach;
    const int next = right + (Traits::kForward ? 1 : -kStride);
    const auto tap = [&](int kh, int kw) -> uint32_t {
      return kw >= 0 && kw < Traits::kWindow ? taps[kh * Traits::kWindow + kw] : 0;
    };
#pragma unroll
    for (int kh = 0; kh < Traits::kWindow; ++kh) {
      bands[kh][octet] = tap(kh, right) | tap(kh, next) << 16;
    }
  }
}

// Stores an octet of a row of dst in images `row` and `row` + 8; whether one of the lane's is NaN. `to` is
// where the row begins in the lane's first image.
template <typename Planes>
__device__ __forceinline__ bool store_octet(
    char* to,
    const float (&sums)[4],
    int octet,
    const Lane& at) {
  const int column = octet * kOctet + 2 * at.pair;
  bool spoilt = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Columns outside the plane are sums of taps too, and may be NaN: that costs time only, and so does a
    // difference of infinities.
    spoilt |= isnan(sums[2 * half] + sums[2 * half + 1]);
    const uint32_t word = pack_two<typename Planes::scalar_t>(sums[2 * half], sums[2 * half + 1]);
    char* const where = to + half * kOctet * Planes::kPitch + column * 2;
    if constexpr (Planes::kOdd) {
      *reinterpret_cast<unsigned short*>(where) = static_cast<unsigned short>(word);
      if (column + 1 < Planes::kSide) {
        *reinterpret_cast<unsigned short*>(where + 2) = static_cast<unsigned short>(word >> 16);
      }
    } else if (column < Planes::kSide) {
      *reinterpret_cast<uint32_t*>(where) = word;
    }
  }
  return spoilt;
}

// A channel of dst; whether one of the lane's results is NaN. `to` and `from` are where the channel begins
// in the lane's first image.
template <typename Traits>
__device__ __forceinline__ bool convolve_strided(
    char* to,
    const char* from,
    const uint32_t (&bands)[Traits::kWindow][Traits::Large::kOctets],
    float begin,
    const Lane& at) {
  using scalar_t = typename Traits::scalar_t;
  using Source = typename Traits::Source;
  using Result = typename Traits::Result;
  bool spoilt = false;
  SourceRow<Source> rows[Source::kSide];
  // Fully unrolled: a row lives in registers from its load to its last use.
  int loaded = 0;
#pragma unroll
  for (int row = 0; row < Result::kSide; ++row) {
    const int last =
        Traits::kForward ? kStride * row + Traits::kReach : (row + Traits::kReach) / kStride;
#pragma unroll
    for (int i = 0; i < Source::kSide; ++i) {
      if (i >= loaded && i <= last) {
        rows[i].load(from + i * Source::kRowBytes, at);
      }
    }
    loaded = last + 1;
    float sums[Result::kOctets][4];
#pragma unroll
    for (int i = 0; i < Result::kOctets * 4; ++i) {
      sums[i / 4][i % 4] = begin;
    }
#pragma unroll
    for (int kh = 0; kh < Traits::kWindow; ++kh) {
      const int down = row + Traits::kReach - kh;
      const int source = Traits::kForward ? kStride * row + kh - Traits::kReach : down / kStride;
      if (source < 0 || source >= Source::kSide ||
          (!Traits::kForward && (down < 0 || down % kStride != 0))) {
        continue;
      }
      const auto& words = rows[source].words;
      if constexpr (Traits::kForward) {
        multiply_16<scalar_t>(
            sums[0],
            words[0][0],
            words[0][1],
            words[1][0],
            words[1][1],
            bands[kh][0],
            bands[kh][1]);
      } else {
#pragma unroll
        for (int octet = 0; octet < Result::kOctets; ++octet) {
          multiply_8<scalar_t>(sums[octet], words[0][0], words[0][1], bands[kh][octet]);
        }
      }
    }
#pragma unroll
    for (int octet = 0; octet < Result::kOctets; ++octet) {
      spoilt |= store_octet<Result>(to + row * Result::kRowBytes, sums[octet], octet, at);
    }
  }
  return spoilt;
}

// The lane's results that are NaN again, tap by tap.
template <typename Traits>
__device__ __noinline__ void retake_strided(
    char* to,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* taps,
    float begin,
    int image,
    int channel,
    const StridedPlanes& planes) {
  using scalar_t = typename Traits::scalar_t;
  using Source = typename Traits::Source;
  using Result = typename Traits::Result;
  const Lane at;
  for (int i = 0; i < 2 && image + i * kOctet < planes.batch; ++i) {
    const scalar_t* const plane =
        src + ((image + i * kOctet) * planes.channels + channel) * Source::kPixels;
    for (int row = 0; row < Result::kSide; ++row) {
      for (int column = 2 * at.pair; column < Result::kSide;
           column += column % 2 == 0 ? 1 : kOctet - 1) {
        scalar_t& result = *reinterpret_cast<scalar_t*>(
            to + i * kOctet * Result::kPitch + (row * Result::kSide + column) * 2);
        if (isnan(static_cast<float>(result))) {
          result = static_cast<scalar_t>(
              Traits::kForward ? careful_forward(plane, taps, begin, planes, row, column, 1)
                               : careful_grad_input(plane, taps, planes, row, column, 1));
        }
      }
    }
  }
}

// The weight's gradient: sums of distance d have row d of taps above and d - 2 below.
template <typename Traits>
struct StridedSums {
  using Large = typename Traits::Large;
  using Small = typename Traits::Small;
  static constexpr int kRows = Traits::kWindow + kStride;
  // [distance][even or odd columns of the input]
  float sums[kRows][2][4] = {};

  // `grads` and `inputs` are where the channel begins in the image 2 pair.
  __device__ __forceinline__ void add(const char* grads, const char* inputs, const Lane& at) {
    BatchRow<Large> rows[kLargeSide];
    int loaded = 0;
#pragma unroll
    for (int row = 0; row < kSmallSide; row += 2) {
      const bool two = row + 1 < kSmallSide;
      BatchRow<Small> above;
      BatchRow<Small> below{};
      above.load(grads + row * Small::kRowBytes, at);
      if (two) {
        below.load(grads + (row + 1) * Small::kRowBytes, at);
      }
#pragma unroll
      for (int i = 0; i < (two ? kRows : Traits::kWindow); ++i) {
        const int source = kStride * row + i - Traits::kReach;
        if (source < 0 || source >= kLargeSide) {
          continue;
        }
        if (source >= loaded) {
          rows[source].load_with_ones(inputs + source * Large::kRowBytes, at);
          loaded = source + 1;
        }
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          multiply_16<typename Traits::scalar_t>(
              sums[i][odd],
              above.words[0][0],
              below.words[0][0],
              above.words[0][1],
              below.words[0][1],
              rows[source].words[odd][0],
              rows[source].words[odd][1]);
        }
      }
    }
  }

  __device__ __forceinline__ void write(float* matrices, float* bias, const Lane& at) const {
#pragma unroll
    for (int kh = 0; kh < Traits::kWindow; ++kh) {
      float* const to = matrices + kh * Traits::kMatrix + at.row * Traits::kMatrixWidth;
#pragma unroll
      for (int j = 0; j < 4; ++j) { // of the input's columns 4 pair and after it
        to[4 * at.pair + j] = sums[kh][j % 2][j / 2] + sums[kh + kStride][j % 2][j / 2 + 2];
      }
    }
    if (at.pair == 3) {
      bias[at.row] = sums[Traits::kReach][0][1] + sums[Traits::kReach + kStride][0][3];
    }
  }
};

// The taps of a channel from its matrices, by the lanes of a warp.
template <typename Traits>
__device__ __forceinline__ void write_strided_taps(
    const BatchOperands<typename Traits::scalar_t>& t,
    const float* matrices,
    const float* bias,
    int channel,
    const Batch& p,
    const StridedPlanes& planes) {
  constexpr int kTaps = Traits::kWindow * Traits::kWindow;
  const int tap = threadIdx.x % kWarpSize;
  if (tap > kTaps) {
    return;
  }
  float sum = 0.0f;
  if (tap == kTaps) {
    for (int i = 0; i < kSmallSide; ++i) {
      sum += bias[i];
    }
  } else {
    const int right = tap % Traits::kWindow - Traits::kReach;
    const float* const matrix = matrices + tap / Traits::kWindow * Traits::kMatrix;
    for (int i = 0; i < kSmallSide; ++i) {
      const int column = kStride * i + right;
      if (column >= 0 && column < kLargeSide) {
        sum += matrix[i * Traits::kMatrixWidth + column];
      }
    }
    if (isnan(sum)) {
      sum = 0.0f;
      for (int tile = blockIdx.y; tile < p.tiles; tile += gridDim.y) {
        for (int n = tile * kTileImages; n < min((tile + 1) * kTileImages, p.batch); ++n) {
          const int plane = n * p.channels + channel;
          sum += careful_products(
              t.src + plane * Traits::Small::kPixels,
              t.input + plane * Traits::Large::kPixels,
              planes,
              0,
              kLargeSide,
              0,
              kLargeSide,
              tap,
              1);
        }
      }
    }
  }
  write_tap(t, sum, tap, channel, p);
}

// grid: groups of channels, groups of tiles. src: the input of a forward, else grad_output.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void batch_strided_kernel(
    const BatchOperands<typename Traits::scalar_t> t,
    const __grid_constant__ Batch p,
    const __grid_constant__ StridedPlanes planes) {
  using scalar_t = typename Traits::scalar_t;
  using Large = typename Traits::Large;
  using Small = typename Traits::Small;
  using Source = typename Traits::Source;
  using Result = typename Traits::Result;
  using Sums = std::conditional_t<Traits::kWeight, StridedSums<Traits>, NoSums>;
  constexpr int kTaps = Traits::kWindow * Traits::kWindow;
  extern __shared__ uint4 shared_blocks[];
  char* const shared = reinterpret_cast<char*>(shared_blocks);
  char* const large = shared + Traits::kLargeAt;
  char* const small = shared + Traits::kSmallAt;
  const Lane at;
  const int warp = threadIdx.x / kWarpSize;
  const int first_channel = blockIdx.x * kTileChannels;
  const int channel = first_channel + warp; // there are whole groups
  if constexpr (Traits::kData) {
    load_taps<Traits>(shared, t.weight, first_channel, kTileChannels, p);
  }
  commit_copies();

  // Calls move(place in shared memory, place in device memory, whether the image exists) for all vectors of
  // a tile's planes.
  const auto for_each_block = [&](auto like, char* to, auto* tensor, int tile, const auto& move) {
    using Planes = decltype(like);
    constexpr int kBlocks = Planes::kRunBytes / kBlockBytes;
    auto* const first = tensor + first_channel * Planes::kPixels;
#pragma unroll 4
    for (int i = threadIdx.x; i < kTileImages * kBlocks; i += kThreads) {
      const int image = i / kBlocks;
      const int bytes = i % kBlocks * kBlockBytes;
      const int n = tile * kTileImages + image;
      const bool exists = n < p.batch;
      move(
          to + image * Planes::kPitch + bytes,
          first + (exists ? n : 0) * p.channels * Planes::kPixels + bytes / 2,
          exists);
    }
  };
  const auto load = [&](auto like, char* to, const scalar_t* tensor, int tile) {
    for_each_block(like, to, tensor, tile, [](char* shared, const scalar_t* device, bool exists) {
      copy_block_or_zeros(shared, device, exists);
    });
  };
  const auto load_tile = [&](int tile) {
    if (tile < p.tiles) {
      load(Source(), Traits::kForward ? large : small, t.src, tile);
      if constexpr (Traits::kWeight) {
        load(Large(), large, t.input, tile);
      }
    }
    commit_copies();
  };
  load_tile(blockIdx.y);

  uint32_t bands[Traits::kWindow][Large::kOctets];
  float begin = 0.0f;
  if constexpr (Traits::kData) {
    begin = t.bias ? static_cast<float>(t.bias[channel]) : 0.0f;
    wait_for_groups<1>();
  }
  __syncthreads();
  if constexpr (Traits::kData) {
    make_strided_bands<Traits>(
        bands, reinterpret_cast<const unsigned short*>(shared) + warp * kTaps, at);
  }
  char* const from = (Traits::kForward ? large : small) + warp * Source::kPlaneBytes;
  char* const to = (Traits::kForward ? small : large) + warp * Result::kPlaneBytes;
  Sums sums;
#pragma unroll 1
  for (int tile = blockIdx.y; tile < p.tiles; tile += gridDim.y) {
    wait_for_groups<0>();
    __syncthreads();
    if constexpr (Traits::kWeight) {
      sums.add(
          small + warp * Small::kPlaneBytes + 2 * at.pair * Small::kPitch,
          large + warp * Large::kPlaneBytes + 2 * at.pair * Large::kPitch,
          at);
      __syncwarp(); // before grad_input takes the input's place
    }
    if constexpr (Traits::kData) {
      char* const to_image = to + at.row * Result::kPitch;
      if (convolve_strided<Traits>(to_image, from + at.row * Source::kPitch, bands, begin, at)) {
        retake_strided<Traits>(
            to_image,
            t.src,
            t.weight + channel * kTaps,
            begin,
            tile * kTileImages + at.row,
            channel,
            planes);
      }
      __syncthreads();
      char* const results = Traits::kForward ? small : large;
      for_each_block(
          Result(), results, t.dst, tile, [](const char* shared, scalar_t* device, bool exists) {
            if (exists) {
              *reinterpret_cast<uint4*>(device) = *reinterpret_cast<const uint4*>(shared);
            }
          });
    }
    __syncthreads();
    load_tile(tile + gridDim.y);
  }

  if constexpr (Traits::kWeight) {
    float* const matrices = reinterpret_cast<float*>(large) + warp * Traits::kScratch;
    float* const bias = matrices + Traits::kScratch - kOctet;
    sums.write(matrices, bias, at);
    __syncwarp();
    write_strided_taps<Traits>(t, matrices, bias, channel, p, planes);
  }
}

// Whether the planes are as these kernels have them.
bool applies(const Params& p, std::initializer_list<const TensorBase*> tensors) {
  return !p.channels_last && p.multiplier == 1 && p.stride_height == kStride &&
      p.stride_width == kStride && p.dilation_height == 1 && p.dilation_width == 1 &&
      p.kernel_height == p.kernel_width && (p.kernel_width == 3 || p.kernel_width == 5) &&
      p.padding_height == p.kernel_height / 2 && p.padding_width == p.padding_height &&
      p.input_height == kLargeSide && p.input_width == kLargeSide &&
      p.channels % kTileChannels == 0 && p.batch >= kOctet &&
      p.batch <= kMostGridRows * kTileImages && march_fits_32_bits(p) && has_tensor_cores() &&
      std::all_of(tensors.begin(), tensors.end(), [](const TensorBase* tensor) {
        return !tensor->defined() ||
            (is_aligned(tensor->const_data_ptr(), kBlockBytes) && is_16_bit(tensor->scalar_type()));
      });
}

// Whether there are enough planes for dst alone: forward and grad_input of 16 images of 96 channels by 3 x
// 3 take 4.7 and 5.7 us by other kernels, 5.7 and 6.2 by these, of 32 images 6.4 and 6.5, 5.9 and 6.2.
bool are_enough(const Params& p) {
  constexpr int64_t kSomePlanes = 3072;
  return p.batch * p.channels >= kSomePlanes;
}

// Whether the weight's gradient is faster than with images as lanes (LanesStrided.cu),
// which needs channels enough for a block each.
bool weight_pays(const Params& p, bool data) {
  constexpr int64_t kLaneChannels = 132;
  // Of more, a block would have all images, and there would be more than a round of blocks.
  constexpr int64_t kMostChannels = 132 * kTileChannels;
  if (p.channels > kMostChannels) {
    return false;
  }
  if (p.channels < kLaneChannels || p.batch <= kWarpSize) {
    return true;
  }
  // The weight's and all gradients of 64 images of 576 channels by 3 x 3 12.3 and 18.0 us with images as
  // lanes, 13.0 and 19.8 by this, of 128 17.3 and 27.4, 18.0 and 27.8, of 256 29.9 and 48.8, 28.0 and
  // 45.0; of 64 images of 672 channels by 5 x 5 14.2 and 21.3, 15.1 and 20.9, of 96 19.8 and 31.1, 17.9
  // and 24.5.
  const int64_t fewer = p.kernel_width == 3 ? 128 : data ? 0 : 64;
  return p.batch > fewer;
}

// Calls launch with the traits of the type and the window.
template <bool kForward, bool kData, bool kWeight, typename Launch>
bool with_traits(const Params& p, ScalarType type, const Launch& launch) {
  const auto with_window = [&](auto scalar) {
    using scalar_t = decltype(scalar);
    return p.kernel_width == 3
        ? launch(BatchStridedTraits<scalar_t, 3, kForward, kData, kWeight>())
        : launch(BatchStridedTraits<scalar_t, 5, kForward, kData, kWeight>());
  };
  return type == kHalf ? with_window(c10::Half()) : with_window(c10::BFloat16());
}

// Parts of the batch, with the same number of tiles each: as many as one round of blocks has. Two tiles
// are one part where the weight's gradient would need a second kernel.
template <typename Traits>
int64_t parts_of(const Batch& b) {
  constexpr int kFewTiles = 2;
  if (Traits::kWeight && b.tiles <= kFewTiles) {
    return 1;
  }
  const int64_t resident =
      resident_blocks(batch_strided_kernel<Traits>, Traits::kThreads, Traits::kShared);
  const int64_t most = std::clamp<int64_t>(resident / (b.channels / kTileChannels), 1, b.tiles);
  return divide_up(b.tiles, divide_up(b.tiles, most));
}

template <typename Traits>
void launch_strided(
    const BatchOperands<typename Traits::scalar_t>& operands,
    const Batch& b,
    int64_t parts) {
  StridedPlanes planes{};
  planes.batch = b.batch;
  planes.channels = b.channels;
  planes.height = planes.width = kLargeSide;
  planes.small_height = planes.small_width = kSmallSide;
  planes.padding = Traits::kReach;
  allow_shared(batch_strided_kernel<Traits>, Traits::kShared);
  batch_strided_kernel<Traits>
      <<<dim3(b.channels / kTileChannels, parts),
         Traits::kThreads,
         Traits::kShared,
         c10::cuda::getCurrentCUDAStream()>>>(operands, b, planes);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

} // namespace

bool batch_strided_forward(const ForwardPass& pass, const Params& p) {
  if (!are_enough(p) || !applies(p, {&pass.dst, &pass.src, &pass.weight})) {
    return false;
  }
  return with_traits<true, true, false>(p, pass.src.scalar_type(), [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    const Batch b = batch_of(p);
    BatchOperands<scalar_t> operands{};
    operands.dst = pass.dst.mutable_data_ptr<scalar_t>();
    operands.src = pass.src.const_data_ptr<scalar_t>();
    operands.weight = pass.weight.const_data_ptr<scalar_t>();
    operands.bias = pointer_or_null<scalar_t>(pass.bias);
    if (!has_shared(Traits::kShared)) {
      return false;
    }
    launch_strided<Traits>(operands, b, parts_of<Traits>(b));
    return true;
  });
}

bool batch_strided_backward(const BackwardPass& pass, const Params& p) {
  const bool data = pass.grad_input.defined();
  const bool asks_weight = pass.asks_weight();
  if (!(asks_weight ? weight_pays(p, data) : are_enough(p)) ||
      !applies(p, {&pass.grad_output, &pass.input, &pass.grad_input, &pass.weight})) {
    return false;
  }
  const auto launch = [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    const Batch b = batch_of(p);
    BatchOperands<scalar_t> operands{};
    operands.dst = mutable_pointer_or_null<scalar_t>(pass.grad_input);
    operands.src = pass.grad_output.const_data_ptr<scalar_t>();
    operands.weight = pass.weight.const_data_ptr<scalar_t>();
    operands.input = pass.input.const_data_ptr<scalar_t>();
    if (!has_shared(Traits::kShared)) {
      return false;
    }
    const int64_t parts = parts_of<Traits>(b);
    TensorBase partial;
    if (Traits::kWeight && parts > 1) {
      partial = empty_partial(pass.input, parts, p);
      operands.partial = partial.mutable_data_ptr<float>();
    } else {
      operands.grad_weight = mutable_pointer_or_null<scalar_t>(pass.grad_weight);
      operands.grad_bias = mutable_pointer_or_null<scalar_t>(pass.grad_bias);
    }
    launch_strided<Traits>(operands, b, parts);
    if (operands.partial) {
      add_partials(pass.grad_weight, pass.grad_bias, partial, parts, p);
    }
    return true;
  };
  const ScalarType type = pass.input.scalar_type();
  if (data && asks_weight) {
    return with_traits<false, true, true>(p, type, launch);
  }
  return data ? with_traits<false, true, false>(p, type, launch)
              : with_traits<false, false, true>(p, type, launch);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
