// depthwise_conv2d_ext on small square planes in float16 and bfloat16: on the tensor cores, with the
// batch as the rows of the matrices.
//
// A warp takes one channel of 16 images. For a row of dst, the same row of these images is a matrix
// [16 images][columns], and so is every row of src that its taps meet:
//   dst row[image][column] = sum over rows of taps of src row[image][column'] · T[column'][column],
// where T holds one row of taps along its diagonals. Such a matrix of src is loaded once and used for
// every row of taps, and the matrices T stay in registers for all images: what is left is about one
// instruction a matrix product, and the kernel waits for memory. Columns are taken in octets. T is as
// wide as the plane, so that a window larger than the image costs no more than what is in the image.
//
// The weight's gradient is, for a row of taps, the product of grad_output rows, transposed, with input
// rows, whose inner dimension is the batch: entry (column of grad_output, column of input) belongs to
// the tap that lies their difference away, so that all rows and images are added into the same
// registers and the diagonals once, at the end. A column of ones beside the input's gives the bias.
//
// A tile is 16 images of a group of neighbouring channels, one run of memory an image; it comes into
// shared memory as it is, by asynchronous copies, some tiles ahead. Results take the place of what
// they were computed from and leave the same way. With all gradients wanted, one pass over input and
// grad_output does everything: the result takes the input's place.
//
// Where a column or a tap does not exist there is a zero, and a zero is multiplied: a result that is NaN
// is taken again, tap by tap.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Bands.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kTileImages = 16; // rows of a matrix
constexpr int kOctet = 8;

struct Batch : UnitStridePass { // of multiplier 1
  int32_t tiles;
};

// src and dst are those of the forward, or of grad_input: grad_output and grad_input. Where the
// weight's gradient is wanted, src is grad_output. Of `partial` and the two gradients of the weight
// either is given.
template <typename scalar_t>
struct BatchOperands {
  scalar_t* dst;
  const scalar_t* src;
  const scalar_t* weight;
  const scalar_t* bias;
  const scalar_t* input;
  float* partial;
  scalar_t* grad_weight;
  scalar_t* grad_bias;
};

// Bytes from image to image of a tile: 4 or 20 banks, which spreads 8 images by 4 words, and 4 pairs
// of images by 8 words, over all of them.
constexpr int image_pitch(int run_bytes) {
  constexpr int kWordBytes = 4;
  int pitch = run_bytes;
  while (pitch / kWordBytes % 16 != 4) {
    pitch += kBlockBytes;
  }
  return pitch;
}

constexpr int round_up_bytes(int bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

template <typename scalar_t_, int kSide_, int kReach_, bool kData_, bool kWeight_>
struct BatchTraits {
  using scalar_t = scalar_t_;
  static constexpr int kSide = kSide_; // of the planes
  static constexpr int kReach = kReach_; // rows of taps on each side of the middle one, at most
  static constexpr bool kData = kData_; // whether dst is wanted
  static constexpr bool kWeight = kWeight_; // whether the weight's gradient is
  static constexpr int kPixels = kSide * kSide;
  static constexpr int kTapRows = 2 * kReach + 1;
  static constexpr int kOctets = (kSide + kOctet - 1) / kOctet; // of columns
  // On wider planes T is a band: octets of src begin 4 columns to the left, so that an octet of dst
  // meets two of them.
  static constexpr bool kBanded = kOctets > 2;
  static constexpr int kFirstColumn = kBanded ? -kOctet / 2 : 0;
  static constexpr int kDiagonals = kBanded ? 2 : 2 * kOctets - 1; // different 8 x 8 parts of T
  static constexpr int kMiddle = kBanded ? 0 : kOctets - 1; // that of src's and dst's same octet
  static constexpr bool kDilated = false;
  static constexpr bool kOdd = kSide % 2 != 0; // whether columns travel one by one
  static constexpr bool kLarge = kTapRows * kDiagonals > 64;
  // Warps of a channel. The weight's gradient has its rows of taps shared among them, dst its rows.
  static constexpr int kParts = kOctets == 1 || (kLarge && !kWeight) ? 1 : kLarge ? 4 : 2;
  static constexpr int kChannels = kOctets == 1 ? 8 : kWeight || kBanded ? 2 : 4;
  static constexpr int kThreads = kWarpSize * kChannels * kParts;
  // Blocks on a multiprocessor, by their registers.
  static constexpr int kBlocks = kLarge ? (kWeight ? 1 : 2)
      : kThreads < 256                  ? (kBanded && kReach > 2 ? 3 : 4)
      : kWeight || kTapRows > 7         ? 2
      : kOctets == 1 || kTapRows == 3   ? 3
                                        : 2;
  static constexpr int kStages = kWeight ? 3 : 2;
  // Where tiles are large, a block has only one and the next are those of other blocks.
  static constexpr bool kOneTile = kBanded;
  static constexpr int kTensors = kWeight ? 2 : 1;
  static constexpr int kRunBytes = kChannels * kPixels * 2;
  static constexpr int kPitch = image_pitch(kRunBytes);
  static constexpr int kTileBytes = kTileImages * kPitch;
  static constexpr int kStageBytes = kTensors * kTileBytes;
  static constexpr int kMostTaps = kTapRows * (kBanded ? kOctet + 1 : 2 * kSide - 1);
  static constexpr int kTapBytes = kData ? round_up_bytes(kChannels * kMostTaps * 2) : 0;
  // Of a channel, once the sums are complete: a matrix for each row of taps, and the bias.
  static constexpr int kMatrixSide = kOctets * kOctet;
  static constexpr int kScratch = kTapRows * kMatrixSide * kMatrixSide + kOctet;
  static constexpr int kSlack = kBlockBytes; // the columns beyond the last row are read
  static constexpr int kShared = kTapBytes + (kOneTile ? 1 : kStages) * kStageBytes + kSlack;
  static_assert(!kWeight || kChannels * kScratch * 4 <= kStages * kStageBytes);
  static_assert(kRunBytes % kBlockBytes == 0 && !(kBanded && kWeight));
};

#ifdef __CUDACC__

// Where a lane is in the matrices.
struct Lane {
  int row; // and row + 8
  int pair; // columns 2 pair and + 1
  __device__ __forceinline__ Lane()
      : row(threadIdx.x % kWarpSize / 4), pair(threadIdx.x % kWarpSize % 4) {}
};

__device__ __forceinline__ uint32_t read_element(const char* from) {
  return *reinterpret_cast<const unsigned short*>(from);
}

__device__ __forceinline__ uint32_t read_word(const char* from) {
  return *reinterpret_cast<const uint32_t*>(from);
}

template <typename scalar_t>
__device__ __forceinline__ uint32_t pack_two(float low, float high) {
  if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(both);
  } else {
    const __half2 both = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(both);
  }
}

// Calls move(image of the tile, bytes into its run) for the vectors of a tile, of which an image has
// `vectors`.
template <typename Traits, typename Move>
__device__ __forceinline__ void for_each_vector(int vectors, const Move& move) {
  constexpr int kVectors = Traits::kRunBytes / kBlockBytes;
#pragma unroll 4
  for (int i = threadIdx.x; i < kTileImages * kVectors; i += Traits::kThreads) {
    const int vector = i % kVectors;
    if (vector < vectors) {
      move(i / kVectors, vector * kBlockBytes);
    }
  }
}

// Asks for the taps of a block's channels, which are one run of memory.
template <typename Traits>
__device__ __forceinline__ void load_taps(
    char* to,
    const typename Traits::scalar_t* weight,
    int first_channel,
    int channels,
    const Batch& p) {
  constexpr int kWordBytes = 4;
  const int kernel_size = p.kernel_height * p.kernel_width;
  const char* const from = reinterpret_cast<const char*>(weight + first_channel * kernel_size);
  const int bytes = channels * kernel_size * 2;
  for (int at = threadIdx.x * kWordBytes; at < bytes; at += Traits::kThreads * kWordBytes) {
    if (at + kWordBytes <= bytes) {
      copy_word(to + at, from + at, kWordBytes);
    } else { // half a word, behind which the weight may end
      *reinterpret_cast<unsigned short*>(to + at) =
          *reinterpret_cast<const unsigned short*>(from + at);
    }
  }
}

// The lane's part of the matrices T of a channel: taps of two neighbouring columns of src, of the dst
// column `row`.
template <typename Traits>
__device__ __forceinline__ void make_bands(
    uint32_t (&bands)[Traits::kTapRows][Traits::kDiagonals],
    const unsigned short* taps,
    const Lane& at,
    const Batch& p) {
  const int step = p.flip ? -1 : 1;
  const unsigned short* const first = taps + (p.flip ? p.kernel_height * p.kernel_width - 1 : 0);
  const int dilation = Traits::kDilated ? p.dilation_width : 1;
  const int middle = p.padding_height / (Traits::kDilated ? p.dilation_height : 1);
#pragma unroll
  for (int i = 0; i < Traits::kDiagonals; ++i) {
    const int right = Traits::kFirstColumn + (i - Traits::kMiddle) * kOctet + 2 * at.pair - at.row +
        p.padding_width;
#pragma unroll
    for (int row = 0; row < Traits::kTapRows; ++row) {
      const int kh = row - Traits::kReach + middle;
      const auto tap = [&](int distance) -> uint32_t {
        const int kw = distance / dilation;
        const bool has = kh >= 0 && kh < p.kernel_height && distance >= 0 && kw < p.kernel_width &&
            (dilation == 1 || distance % dilation == 0);
        return has ? first[step * (kh * p.kernel_width + kw)] : 0;
      };
      bands[row][i] = tap(right) | tap(right + 1) << 16;
    }
  }
}

// A row of src as the left matrix: octets of columns of images `row` and `row` + 8. `from` is where
// the plane's row begins in the lane's first image.
template <typename Traits>
struct SourceRow {
  uint32_t words[Traits::kOctets][2];

  __device__ __forceinline__ void load(const char* from, const Lane& at) {
#pragma unroll
    for (int octet = 0; octet < Traits::kOctets; ++octet) {
      const int first = Traits::kFirstColumn + octet * kOctet;
      const int column = first + 2 * at.pair;
      const bool has = (first >= 0 || column >= 0) &&
          (first + kOctet <= Traits::kSide || column < Traits::kSide);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const char* const where = from + i * kOctet * Traits::kPitch + column * 2;
        if constexpr (Traits::kOdd) {
          const uint32_t high = column + 1 < Traits::kSide ? read_element(where + 2) : 0;
          words[octet][i] = read_element(where) | high << 16;
        } else {
          words[octet][i] = has ? read_word(where) : 0;
        }
      }
    }
  }

  // sums += this row · T, for one octet of dst columns.
  __device__ __forceinline__ void multiply(
      float (&sums)[4],
      const uint32_t (&bands)[Traits::kDiagonals],
      int octet) const {
    const int first = Traits::kBanded ? octet : 0;
    const int band = Traits::kMiddle + first - octet;
    if (first + 1 == Traits::kOctets) {
      multiply_8<typename Traits::scalar_t>(sums, words[first][0], words[first][1], bands[band]);
    } else {
      multiply_16<typename Traits::scalar_t>(
          sums,
          words[first][0],
          words[first][1],
          words[first + 1][0],
          words[first + 1][1],
          bands[band],
          bands[band + 1]);
    }
  }
};

// Whether warps share a channel whose results take the place of what they are computed from.
template <typename Traits>
constexpr bool kShares = Traits::kParts > 1 && !Traits::kWeight;

// The rows of src that a part's first row of dst meets.
template <typename Traits>
struct FirstRows {
  SourceRow<Traits> rows[Traits::kTapRows];

  // `from` is where the channel begins in the lane's first image.
  __device__ __forceinline__ void load(const char* from, int first, const Lane& at) {
#pragma unroll
    for (int i = 0; i < Traits::kTapRows; ++i) {
      rows[i].load(from + (first + i) * Traits::kSide * 2, at);
    }
  }
};

// Rows [kBegin, kEnd) of dst in one channel of a tile, downwards (kStep = 1) or upwards (-1); whether
// one of the lane's results is NaN. Both `to`, which may be `from`, and `from` are where the channel
// begins in the lane's first image.
//
// Warps that share a channel in place begin at the rows where they meet. All of them must have read
// these before any is overwritten, so they are handed over, loaded before a barrier.
template <typename Traits, int kBegin, int kEnd, int kStep>
__device__ __forceinline__ bool convolve_rows(
    char* to,
    const char* from,
    const FirstRows<Traits>* first,
    const uint32_t (&bands)[Traits::kTapRows][Traits::kDiagonals],
    float begin,
    const Lane& at) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kSide = Traits::kSide;
  constexpr int kReach = Traits::kReach;
  constexpr int kFirst = kStep > 0 ? kBegin : kEnd - 1;
  constexpr int kRowBytes = kSide * 2;
  // Sums that do not wait for one another, where there are few octets.
  constexpr int kChains = Traits::kTapRows > 3 && !Traits::kBanded ? 2 : 1;
  bool spoilt = false;
  // Fully unrolled: a row lives in registers from its load to its last use.
  SourceRow<Traits> rows[kSide];
#pragma unroll
  for (int row = 0; row < kSide; ++row) {
    if (row >= kFirst - kReach && row <= kFirst + kReach) {
      if constexpr (kShares<Traits>) {
        rows[row] = first->rows[row - (kFirst - kReach)];
      } else {
        rows[row].load(from + row * kRowBytes, at);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEnd - kBegin; ++i) {
    const int row = kFirst + i * kStep;
    const int next = row + (kReach + 1) * kStep;
    if (next >= 0 && next < kSide) {
      rows[next].load(from + next * kRowBytes, at);
    }
    float sums[Traits::kOctets][kChains][4] = {};
#pragma unroll
    for (int tap_row = 0; tap_row < Traits::kTapRows; ++tap_row) {
      const int source = row + tap_row - kReach;
      if (source >= 0 && source < kSide) {
#pragma unroll
        for (int octet = 0; octet < Traits::kOctets; ++octet) {
          rows[source].multiply(sums[octet][tap_row % kChains], bands[tap_row], octet);
        }
      }
    }
    __syncwarp(); // before a row of src that another lane has read may be overwritten
#pragma unroll
    for (int octet = 0; octet < Traits::kOctets; ++octet) {
      const int column = octet * kOctet + 2 * at.pair;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float low = sums[octet][0][2 * half] + begin;
        float high = sums[octet][0][2 * half + 1] + begin;
        if constexpr (kChains > 1) {
          low += sums[octet][1][2 * half];
          high += sums[octet][1][2 * half + 1];
        }
        // Columns outside the plane are sums of taps too, and may be NaN: that costs time only.
        spoilt = spoilt || isnan(low) || isnan(high);
        const uint32_t word = pack_two<scalar_t>(low, high);
        char* const where = to + half * kOctet * Traits::kPitch + row * kRowBytes + column * 2;
        if constexpr (Traits::kOdd) {
          *reinterpret_cast<unsigned short*>(where) = static_cast<unsigned short>(word);
          if (column + 1 < kSide) {
            *reinterpret_cast<unsigned short*>(where + 2) = static_cast<unsigned short>(word >> 16);
          }
        } else if (column < kSide) {
          *reinterpret_cast<uint32_t*>(where) = word;
        }
      }
    }
  }
  return spoilt;
}

// A result that is NaN again, tap by tap. `plane` is its src plane, `taps` are its channel's.
template <typename scalar_t>
__device__ __forceinline__ void retake(
    scalar_t& result,
    const scalar_t* plane,
    const scalar_t* taps,
    float begin,
    const UnitStridePass& p,
    int row,
    int column) {
  if (isnan(static_cast<float>(result))) {
    result = static_cast<scalar_t>(careful_output(plane, taps, begin, p, row, column));
  }
}

// The lane's results of rows [begin, end) that are NaN again, tap by tap.
template <typename Traits>
__device__ __noinline__ void retake_rows(
    char* to,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    float bias,
    int image,
    int channel,
    int begin,
    int end,
    const Batch& p) {
  using scalar_t = typename Traits::scalar_t;
  const Lane at;
  for (int i = 0; i < 2 && image + i * kOctet < p.batch; ++i) {
    const int plane = (image + i * kOctet) * p.channels + channel;
    for (int row = begin; row < end; ++row) {
      for (int column = 2 * at.pair; column < Traits::kSide;
           column += column % 2 == 0 ? 1 : kOctet - 1) {
        scalar_t* const where = reinterpret_cast<scalar_t*>(
            to + i * kOctet * Traits::kPitch + (row * Traits::kSide + column) * 2);
        retake(
            *where,
            src + plane * Traits::kPixels,
            weight + channel * p.kernel_height * p.kernel_width,
            bias,
            p,
            row,
            column);
      }
    }
  }
}

// A row of 16 images as words of two images' neighbours, the inner dimension of the weight's gradient.
// With one octet a lane has column `row` of images 2 pair, + 1 and of 8 more; with two, columns
// 2 row and 2 row + 1, as the matrices' rows `row` and `row` + 8 or, on the right, as two matrices.
template <typename Traits>
struct BatchRow {
  uint32_t words[Traits::kOctets][2]; // [even or odd columns][first or second 8 images]

  // `from` is where the row begins in the image 2 pair.
  __device__ __forceinline__ void load(const char* from, const Lane& at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* const where =
          from + half * kOctet * Traits::kPitch + at.row * Traits::kOctets * 2;
      if constexpr (Traits::kOctets == 1) {
        words[0][half] = read_element(where) | read_element(where + Traits::kPitch) << 16;
      } else {
        const uint32_t first = read_word(where);
        const uint32_t second = read_word(where + Traits::kPitch);
        words[0][half] = __byte_perm(first, second, 0x5410);
        words[1][half] = __byte_perm(first, second, 0x7632);
      }
    }
  }

  // The column after the last as ones. Nothing is read there: that place may be another warp's.
  __device__ __forceinline__ void load_with_ones(const char* from, const Lane& at) {
    if (at.row < kOctet - 1) {
      load(from, at);
      return;
    }
#pragma unroll
    for (int octet = 0; octet < Traits::kOctets; ++octet) {
      words[octet][0] = kTwoOnes<typename Traits::scalar_t>;
      words[octet][1] = kTwoOnes<typename Traits::scalar_t>;
    }
  }
};

// The weight's gradient on planes of one octet: the left matrix holds two rows of grad_output, so that
// sums of distance d have row d of taps above and d - 1 below.
template <typename Traits>
struct OctetSums {
  static constexpr int kSide = Traits::kSide;
  static constexpr int kReach = Traits::kReach;
  float sums[Traits::kTapRows + 1][4] = {};

  __device__ __forceinline__ void add(const char* grads, const char* inputs, int, const Lane& at) {
    constexpr int kRowBytes = kSide * 2;
    BatchRow<Traits> rows[kSide];
#pragma unroll
    for (int row = 0; row < kSide; ++row) {
      rows[row].load_with_ones(inputs + row * kRowBytes, at);
    }
#pragma unroll
    for (int row = 0; row < kSide; row += 2) {
      BatchRow<Traits> above;
      BatchRow<Traits> below{};
      above.load(grads + row * kRowBytes, at);
      if (row + 1 < kSide) {
        below.load(grads + (row + 1) * kRowBytes, at);
      }
#pragma unroll
      for (int i = 0; i <= Traits::kTapRows; ++i) {
        const int source = row + i - kReach;
        if (source >= 0 && source < kSide) {
          multiply_16<typename Traits::scalar_t>(
              sums[i],
              above.words[0][0],
              below.words[0][0],
              above.words[0][1],
              below.words[0][1],
              rows[source].words[0][0],
              rows[source].words[0][1]);
        }
      }
    }
  }

  __device__ __forceinline__ void write(float* matrices, float* bias, int, const Lane& at) const {
#pragma unroll
    for (int i = 0; i < Traits::kTapRows; ++i) {
      float* const to = matrices + (i * kOctet + at.row) * kOctet + 2 * at.pair;
      to[0] = sums[i][0] + sums[i + 1][2];
      to[1] = sums[i][1] + sums[i + 1][3];
    }
    if (at.pair == 3) {
      bias[at.row] = sums[kReach][1] + sums[kReach][3];
    }
  }
};

// Which rows of taps a part has, on planes of two octets. Those far from the middle meet few rows.
template <typename Traits>
struct TapRowParts {
  __host__ __device__ static constexpr int first_of(int part) {
    if (Traits::kParts == 4) {
      return part == 0 ? 0 : part == 1 ? 9 : part == 2 ? 13 : part == 3 ? 17 : 27;
    }
    return part == 0 ? 0 : part == 1 ? Traits::kReach : Traits::kTapRows;
  }
  __host__ __device__ static constexpr int most_rows() {
    int most = 0;
    for (int part = 0; part < Traits::kParts; ++part) {
      const int rows = first_of(part + 1) - first_of(part);
      most = rows > most ? rows : most;
    }
    return most;
  }
};

// The same sums on planes of two octets; a warp has the rows of taps of its part.
template <typename Traits>
struct DoubleSums {
  using Parts = TapRowParts<Traits>;
  static constexpr int kSide = Traits::kSide;
  static constexpr int kMostRows = Parts::most_rows();
  static_assert(Parts::first_of(Traits::kParts) == Traits::kTapRows);
  // [row of taps][even or odd columns of the input]
  float sums[kMostRows][2][4] = {};

  template <int kPart>
  __device__ __forceinline__ void add_part(const char* grads, const char* inputs, const Lane& at) {
    constexpr int kRowBytes = kSide * 2;
    constexpr int kFirst = Parts::first_of(kPart) - Traits::kReach;
    constexpr int kLast = Parts::first_of(kPart + 1) - 1 - Traits::kReach;
    BatchRow<Traits> rows[kSide];
#pragma unroll
    for (int row = 0; row < kSide; ++row) {
      BatchRow<Traits> grad;
      grad.load(grads + row * kRowBytes, at);
#pragma unroll
      for (int distance = kFirst; distance <= kLast; ++distance) {
        const int source = row + distance;
        if (source < 0 || source >= kSide) {
          continue;
        }
        if (row == 0 || distance == kLast) {
          rows[source].load_with_ones(inputs + source * kRowBytes, at);
        }
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          multiply_16<typename Traits::scalar_t>(
              sums[distance - kFirst][odd],
              grad.words[0][0],
              grad.words[1][0],
              grad.words[0][1],
              grad.words[1][1],
              rows[source].words[odd][0],
              rows[source].words[odd][1]);
        }
      }
    }
  }

  template <int kPart = 0>
  __device__ __forceinline__ void add(
      const char* grads,
      const char* inputs,
      int part,
      const Lane& at) {
    if constexpr (kPart + 1 < Traits::kParts) {
      if (part != kPart) {
        add<kPart + 1>(grads, inputs, part, at);
        return;
      }
    }
    add_part<kPart>(grads, inputs, at);
  }

  __device__ __forceinline__ void write(float* matrices, float* bias, int part, const Lane& at)
      const {
    constexpr int kMatrix = Traits::kMatrixSide;
    const int first = Parts::first_of(part);
    const int count = Parts::first_of(part + 1) - first;
#pragma unroll
    for (int i = 0; i < kMostRows; ++i) {
      if (i >= count) {
        continue;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int grad_column = 2 * at.row + j / 2 % 2;
        const int column = 4 * at.pair + j % 2 * 2 + j / 4;
        matrices[((first + i) * kMatrix + grad_column) * kMatrix + column] = sums[i][j / 4][j % 4];
      }
      if (first + i == Traits::kReach && at.pair == 3) {
        bias[at.row] = sums[i][0][1] + sums[i][0][3];
      }
    }
  }
};

struct NoSums {};

// A tap's gradient, or the bias's (tap kernel size), to where it is wanted.
template <typename scalar_t>
__device__ __forceinline__ void write_tap(
    const BatchOperands<scalar_t>& t,
    float sum,
    int tap,
    int channel,
    const UnitStridePass& p) {
  const int kernel_size = p.kernel_height * p.kernel_width;
  const bool is_bias = tap == kernel_size;
  float* const partial = t.partial
      ? t.partial + blockIdx.y * (kernel_size + kBiasRows) * p.channels + channel
      : nullptr;
  if (partial && is_bias) {
    write_bias(partial + kernel_size * p.channels, p.channels, sum);
  } else if (partial) {
    partial[tap * p.channels] = sum;
  } else if (is_bias && t.grad_bias) {
    t.grad_bias[channel] = static_cast<scalar_t>(sum);
  } else if (!is_bias && t.grad_weight) {
    t.grad_weight[channel * kernel_size + tap] = static_cast<scalar_t>(sum);
  }
}

// The taps of a channel from its matrices, by the lanes of its warps.
template <typename Traits>
__device__ __forceinline__ void write_taps(
    const BatchOperands<typename Traits::scalar_t>& t,
    const float* matrices,
    const float* bias,
    int channel,
    int part,
    const Batch& p) {
  constexpr int kMatrix = Traits::kMatrixSide;
  const int kernel_size = p.kernel_height * p.kernel_width;
  for (int tap = part * kWarpSize + threadIdx.x % kWarpSize; tap <= kernel_size;
       tap += Traits::kParts * kWarpSize) {
    const bool is_bias = tap == kernel_size;
    const int tap_row = tap / p.kernel_width - p.padding_height + Traits::kReach;
    const int right = tap % p.kernel_width - p.padding_width;
    float sum = 0.0f;
    if (is_bias) {
      for (int i = 0; i < Traits::kSide / Traits::kOctets; ++i) {
        sum += bias[i];
      }
    } else if (tap_row >= 0 && tap_row < Traits::kTapRows) {
      const float* const matrix = matrices + tap_row * kMatrix * kMatrix;
      for (int i = max(0, -right); i < min(Traits::kSide, Traits::kSide - right); ++i) {
        sum += matrix[i * kMatrix + i + right];
      }
    }
    if (isnan(sum)) {
      sum = careful_tap(
          t.src,
          t.input,
          p,
          channel,
          tap,
          static_cast<int>(blockIdx.y) * kTileImages,
          kTileImages,
          static_cast<int>(gridDim.y) * kTileImages);
    }
    write_tap(t, sum, tap, channel, p);
  }
}

// grid: groups of channels, groups of tiles.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void batch_kernel(
    const BatchOperands<typename Traits::scalar_t> t,
    const __grid_constant__ Batch p) {
  using scalar_t = typename Traits::scalar_t;
  using WeightSums =
      std::conditional_t<Traits::kOctets == 1, OctetSums<Traits>, DoubleSums<Traits>>;
  using Sums = std::conditional_t<Traits::kWeight, WeightSums, NoSums>;
  constexpr int kStages = Traits::kStages;
  constexpr int kPlaneBytes = Traits::kPixels * 2;
  constexpr int kRowsOfPart = Traits::kSide / 2;
  extern __shared__ uint4 shared_blocks[];
  char* const taps = reinterpret_cast<char*>(shared_blocks);
  char* const tiles = taps + Traits::kTapBytes;

  const Lane at;
  const int warp = threadIdx.x / kWarpSize;
  const int warp_channel = warp % Traits::kChannels;
  const int part = warp / Traits::kChannels;
  const int first_channel = blockIdx.x * Traits::kChannels;
  const int channels = min(Traits::kChannels, p.channels - first_channel);
  const int channel = first_channel + warp_channel;
  const bool works = warp_channel < channels;
  const int vectors = channels * kPlaneBytes / kBlockBytes;
  const int image_elements = p.channels * Traits::kPixels;

  const auto load_tensor = [&](char* to, const scalar_t* tensor, int tile) {
    const scalar_t* const from = tensor + first_channel * Traits::kPixels;
    for_each_vector<Traits>(vectors, [&](int image, int bytes) {
      const int n = tile * kTileImages + image;
      const bool exists = n < p.batch;
      copy_block_or_zeros(
          to + image * Traits::kPitch + bytes,
          reinterpret_cast<const char*>(from + (exists ? n : 0) * image_elements) + bytes,
          exists);
    });
  };
  const auto load = [&](int tile, int stage) {
    if (tile < p.tiles) {
      char* const to = tiles + stage * Traits::kStageBytes;
      load_tensor(to, t.src, tile);
      if constexpr (Traits::kWeight) {
        load_tensor(to + Traits::kTileBytes, t.input, tile);
      }
    }
    commit_copies();
  };
  if constexpr (Traits::kData) {
    load_taps<Traits>(taps, t.weight, first_channel, channels, p);
    commit_copies();
  }
  const int step = gridDim.y;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    load(static_cast<int>(blockIdx.y) + stage * step, stage);
  }

  uint32_t bands[Traits::kTapRows][Traits::kDiagonals];
  float begin = 0.0f;
  if constexpr (Traits::kData) {
    if (t.bias && works) {
      begin = static_cast<float>(t.bias[channel]);
    }
    wait_for_groups<kStages - 1>();
    __syncthreads();
    make_bands<Traits>(
        bands,
        reinterpret_cast<const unsigned short*>(taps) +
            warp_channel * p.kernel_height * p.kernel_width,
        at,
        p);
  }
  Sums sums;
  int stage = 0;
  for (int tile = blockIdx.y; tile < p.tiles; tile += step) {
    wait_for_groups<kStages - 2>();
    __syncthreads();
    // Into the stage that was used before this barrier.
    load(tile + (kStages - 1) * step, (stage + kStages - 1) % kStages);
    char* const src = tiles + stage * Traits::kStageBytes + warp_channel * kPlaneBytes;
    char* const dst = src + (Traits::kTensors - 1) * Traits::kTileBytes;
    if constexpr (Traits::kWeight) {
      if (works) {
        const int image_bytes = 2 * at.pair * Traits::kPitch;
        sums.add(src + image_bytes, dst + image_bytes, part, at);
      }
      if constexpr (Traits::kData) {
        __syncthreads();
      }
    }
    if constexpr (Traits::kData) {
      const int image_bytes = at.row * Traits::kPitch;
      char* const to_image = dst + image_bytes;
      const char* const from_image = src + image_bytes;
      FirstRows<Traits> first;
      if constexpr (kShares<Traits>) {
        static_assert(Traits::kReach < kRowsOfPart);
        first.load(from_image, kRowsOfPart - (part == 0 ? 1 : 0) - Traits::kReach, at);
        __syncthreads();
      }
      bool spoilt = false;
      if constexpr (Traits::kParts == 1) {
        if (works) {
          spoilt = convolve_rows<Traits, 0, Traits::kSide, 1>(
              to_image, from_image, &first, bands, begin, at);
        }
      } else if (part == 0) {
        spoilt = convolve_rows<Traits, 0, kRowsOfPart, -1>(
            to_image, from_image, &first, bands, begin, at);
      } else {
        spoilt = convolve_rows<Traits, kRowsOfPart, Traits::kSide, 1>(
            to_image, from_image, &first, bands, begin, at);
      }
      if (spoilt && works) {
        retake_rows<Traits>(
            to_image,
            t.src,
            t.weight,
            begin,
            tile * kTileImages + at.row,
            channel,
            part * kRowsOfPart,
            part + 1 < Traits::kParts ? kRowsOfPart : Traits::kSide,
            p);
      }
      __syncthreads();
      scalar_t* const target = t.dst + first_channel * Traits::kPixels;
      const char* const results = dst - warp_channel * kPlaneBytes;
      for_each_vector<Traits>(vectors, [&](int image, int bytes) {
        const int n = tile * kTileImages + image;
        if (n < p.batch) {
          *reinterpret_cast<uint4*>(reinterpret_cast<char*>(target + n * image_elements) + bytes) =
              *reinterpret_cast<const uint4*>(results + image * Traits::kPitch + bytes);
        }
      });
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  if constexpr (Traits::kWeight) {
    __syncthreads();
    float* const matrices = reinterpret_cast<float*>(tiles) + warp_channel * Traits::kScratch;
    float* const bias = matrices + Traits::kScratch - kOctet;
    sums.write(matrices, bias, part, at);
    __syncthreads();
    if (works) {
      write_taps<Traits>(t, matrices, bias, channel, part, p);
    }
  }
}

#endif // __CUDACC__

// The planes' side if these kernels have one for it, and 0 otherwise. What they need: same sizes of
// input and output, whole vectors of memory, enough images to fill a matrix by half.
inline int batch_side(const Params& p, std::initializer_list<const Operand*> tensors, bool weight) {
  // With fewer images the taps and the matrices are most of the work; single elements a thread are
  // faster. The weight's gradient has nothing as fast for a single image.
  const int64_t least_images = weight ? 1 : kOctet;
  const int64_t side = p.input_height;
  const bool square = p.input_width == side && p.output_height == side && p.output_width == side;
  // The band's width.
  const bool banded = side == 28 && !weight && p.padding_height <= 3 && p.padding_width <= 4 &&
      p.batch <= kMostGridRows * kTileImages;
  if ((side != 7 && side != 14 && !banded) || !square || p.stride_height != 1 ||
      p.stride_width != 1 || p.dilation_height != 1 || p.dilation_width != 1 || p.channels_last ||
      p.multiplier != 1 || p.kernel_height >= 2 * side || p.kernel_width >= 2 * side ||
      p.batch < least_images || p.channels * side * side * 2 % kBlockBytes != 0 ||
      !march_fits_32_bits(p) || !has_tensor_cores()) {
    return 0;
  }
  for (const Operand* const tensor : tensors) {
    if (!is_16_bit(tensor->type()) || !is_aligned(tensor->const_data_ptr(), kBlockBytes)) {
      return 0;
    }
  }
  return static_cast<int>(side);
}

inline Batch batch_of(const Params& p) {
  Batch b{};
  set_unit_stride_pass(b, p);
  b.tiles = divide_up(p.batch, kTileImages);
  return b;
}

// Blocks side by side along the batch, with the same number of tiles each, and about `wanted` in all.
template <typename Traits>
dim3 batch_grid(const Batch& b, int64_t wanted) {
  const int64_t groups = divide_up(b.channels, Traits::kChannels);
  const int64_t side_by_side =
      Traits::kOneTile ? b.tiles : std::clamp<int64_t>(wanted / groups, 1, b.tiles);
  return dim3(groups, divide_up(b.tiles, divide_up(b.tiles, side_by_side)));
}

template <typename Traits>
void launch_batch(
    const BatchOperands<typename Traits::scalar_t>& operands,
    const Batch& b,
    const dim3& grid) {
  launch_kernel(batch_kernel<Traits>, grid, Traits::kThreads, Traits::kShared, operands, b);
}

// Calls launch(scalar, side, reach) with the smallest reach that is enough.
template <typename Launch>
bool with_batch_kernel(const Params& p, Type type, int side, const Launch& launch) {
  const int64_t reach = std::min<int64_t>(p.padding_height, side - 1);
  const auto with_reach = [&](auto scalar) {
    const auto choose = [&](auto fixed_side) {
      constexpr int kMost = decltype(fixed_side)::value - 1;
      if (reach <= 1) {
        return launch(scalar, fixed_side, std::integral_constant<int, 1>());
      }
      if constexpr (kMost >= kOctet * 2 || kMost < kOctet) {
        if (reach <= 2) {
          return launch(scalar, fixed_side, std::integral_constant<int, 2>());
        }
      }
      if (reach <= 3) {
        return launch(scalar, fixed_side, std::integral_constant<int, 3>());
      }
      if constexpr (kMost < kOctet * 2) {
        return launch(scalar, fixed_side, std::integral_constant<int, kMost>());
      }
      return false;
    };
    return side == 7 ? choose(std::integral_constant<int, 7>())
        : side == 14 ? choose(std::integral_constant<int, 14>())
                     : choose(std::integral_constant<int, 28>());
  };
  return type == Type::kHalf ? with_reach(c10::Half()) : with_reach(c10::BFloat16());
}

} // namespace at::native::depthwise_conv2d_ext_cuda
