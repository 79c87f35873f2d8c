// depthwise_conv2d_ext on planes of 28 columns, or in tiles of 56, in float16 and bfloat16: on the
// tensor cores, with the batch as rows of matrices as in Batch.cuh, where 16 planes at a
// time do not fit into shared memory.
//
// A block takes 16 streams of one channel, which are images or parts of images, and marches down their rows,
// which come into a ring of stages by asynchronous copies. A warp has two octets of columns of all streams;
// the rows of src that a row of dst meets stay in its registers.
//
// For dst the left matrices are octets of src, [16 streams][8 columns]: an octet of dst begins four columns
// before an octet of src, so that two of them are all that windows up to nine wide meet:
//   dst row [stream][column] += src row [stream][8 columns] · T[8 columns][column], twice a row of taps.
// For the weight's gradient the streams are the inner dimension: of a row of taps
//   [16 columns][column] += input row, transposed, · grad_output row
// with an octet of grad_output and the 16 columns of input that begin four before it. These sums stay in
// registers for the whole march; entry (m, n) belongs to the tap that lies m - n - 4 columns off, and the
// diagonals are added once, at the end. A product with ones is the bias. In both, all that a row leaves in
// registers is pairs as the instructions take them: overlapping left matrices of 16 columns would be moved
// into place for every product (96@56 k7: 120 moves for 28 products).
//
// Warps have either work: in a block that takes all gradients half are for grad_input, the others for the
// weight, all from the same stages. So input and grad_output are read once for all gradients.
//
// Where a column or a tap does not exist there is a zero, and a zero is multiplied: a result that is NaN
// is taken again, tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

// A stream is a part of one image: a strip of rows or, with a dilation, every dilation'th row, of a tile of
// columns. Sums of the weight's gradient belong to the stream that has the input's row and grad_output's
// column.
struct BatchMarch : Batch {
  int32_t column_tiles;
  int32_t row_parts;
  int32_t part_step; // from the first row of a part to that of the next
  int32_t part_rows; // of the longest part
  int32_t lead; // rows of src before a part's first that belong to the part before
  int32_t streams;
};

template <typename scalar_t_, int kWidth_, int kReach_, int kLeft_, bool kData_, bool kWeight_>
struct BatchMarchTraits {
  using scalar_t = scalar_t_;
  static constexpr int kWidth = kWidth_; // of a tile
  static constexpr int kReach = kReach_; // rows of taps on each side of the middle one, at most
  static constexpr int kLeft = kLeft_; // columns on each side that a column meets, at most
  static constexpr bool kData = kData_; // whether dst is wanted
  static constexpr bool kWeight = kWeight_; // whether the weight's gradient is
  static constexpr int kTapRows = 2 * kReach + 1;
  // The matrices T: so many octets of src meet an octet of dst.
  static constexpr int kFirstColumn = -kLeft;
  static constexpr int kDiagonals = (2 * kLeft + kOctet) / kOctet;
  static constexpr int kMiddle = 0;
  static constexpr bool kDilated = kDiagonals > 2;
  static constexpr int kMatrices = kDiagonals / 2; // of a row of taps' sums
  // A tile of 28 columns is a whole plane: it has nothing on its sides, and is in one part.
  static constexpr bool kWholeRow = kWidth == 28;
  static constexpr int kOctets = (kWidth + kOctet - 1) / kOctet;
  static constexpr int kDstOctets = (kWidth + kOctet / 2 + kOctet - 1) / kOctet;
  // Of a warp: with four there were too few warps to hide what a step waits for.
  // The weight's gradient of 7 x 7 alone has registers for twice as many again: 192@28 37.5 -> 33.9 us.
  static constexpr int kWarpOctets = kWholeRow && kReach == 3 && !kData ? 1 : 2;
  static constexpr int kGroups = kDstOctets / kWarpOctets; // warps along a row
  static constexpr int kBeside = kDiagonals / 2; // octets of src on the left
  static constexpr int kSrcOctets = kOctets + (kWholeRow ? 1 : 2) * kBeside;
  static constexpr int kRowOctets = kWarpOctets + kDiagonals - 1; // of a warp's src
  // The input begins kLeft columns before the tile.
  static constexpr int kInputOctets = kOctets + kDiagonals - 1;
  static constexpr int kInputPairs =
      kWarpOctets + kDiagonals - 2; // of a warp: neighbours, overlapping
  // Whether all octets of all warps are there.
  static constexpr bool kAllOctets = kOctets % kWarpOctets == 0 && kOctets == kDstOctets;
  // Whether all rows of a stage are taken, without a branch between them: zeros before the first and
  // after the last of a part, whose results go nowhere. 240@28 k5 wgrad 49.6 -> 43.5 us, all gradients 74
  // -> 63; but dst alone of 96@56 k7 34 -> 38, and a dilated window 49 -> 51.
  static constexpr bool kStraight = kWeight && !kDilated;
  static constexpr int kRoles = (kData ? 1 : 0) + (kWeight ? 1 : 0);
  static constexpr int kThreads = kRoles * kGroups * kWarpSize;
  // Blocks on a multiprocessor, by their registers.
  static constexpr int kBlocks = kThreads == 256 ? (kReach > 1 ? 2 : 3)
      : kThreads == 128 && kWarpOctets == 2      ? (kDilated ? 3 : 4)
                                                 : 6;
  // A stage has so many rows of either tensor, one for each row of registers, so that all places are known.
  // For 3 x 3 two times as many: 64 channels of 112 x 112, of 32, in four stages of three 45 us, so 35.
  static constexpr int kRows = kTapRows > 3 ? kTapRows : 2 * kTapRows;
  static constexpr int kStages = kTapRows == 5 ? 3 : 2;
  // It travels as vectors of four elements, since rows do not begin with larger ones.
  static constexpr int kVector = 4;
  static constexpr int kFirstSrcColumn = kWholeRow ? 0 : -kLeft; // that travels
  static constexpr int kRowVectors =
      kWholeRow ? kOctets * kOctet / kVector : (kWidth + 2 * kLeft) / kVector;
  static constexpr int kRowThreads = kRowVectors <= 8 ? 8 : kRowVectors <= 16 ? 16 : 32;
  static constexpr int kStreamsAtOnce = kThreads / kRowThreads;
  static constexpr int kThreadStreams = kTileImages / kStreamsAtOnce;
  static constexpr int odd_blocks(int bytes) {
    return (bytes / kBlockBytes | 1) * kBlockBytes;
  }
  // The eight streams that ldmatrix reads at once fall into different banks.
  static constexpr int kSrcRow = kSrcOctets * kBlockBytes;
  static constexpr int kSrcPitch = odd_blocks(kRows * kSrcRow);
  // And an octet: one beyond the last row is read, for nothing, not where others write meanwhile.
  static constexpr int kSrcBytes = kTileImages * kSrcPitch + kBlockBytes;
  static constexpr int kInputRow = kInputOctets * kBlockBytes;
  static constexpr int kInputPitch = odd_blocks(kRows * kInputRow);
  static constexpr int kInputBytes = kWeight ? kTileImages * kInputPitch : 0;
  static constexpr int kStageBytes = kSrcBytes + kInputBytes;
  // Rows of dst lie there as in device memory, until a stage is done.
  static constexpr int kDstThreads = kWidth <= 8 * kVector ? 8 : 16; // of a row
  static constexpr int kDstStreams = kTileImages * kDstThreads / kThreads; // of a thread
  static constexpr int kDstRow = kWidth * 2;
  static constexpr int kDstPitch = image_pitch(round_up_bytes(kRows * kDstRow));
  static constexpr int kDstBytes = kData ? kTileImages * kDstPitch : 0;
  static constexpr int kShared = kStages * kStageBytes + kDstBytes;
  // Of a warp, once its sums are complete: matrices for each row of taps, and the bias.
  static constexpr int kTapMatrix = kMatrices * kMatrixRows * kOctet;
  static constexpr int kScratch = kTapRows * kTapMatrix + kOctet;
  static_assert(kWidth % kVector == 0 && kLeft % kOctet == kOctet / 2);
  static_assert(kTileImages % kStreamsAtOnce == 0 && kDstOctets % kWarpOctets == 0);
  static_assert(!(kDilated && kData && kWeight)); // too many registers
  static_assert(kGroups * kScratch * 4 <= kStages * kStageBytes);
};

struct Stream {
  int image; // -1: there is none
  int first_row;
  int first_column;

  template <typename Traits>
  static __device__ __forceinline__ Stream of(int index, const BatchMarch& p) {
    Stream s;
    const int part = index / p.column_tiles;
    s.image = index < p.streams ? part / p.row_parts : -1;
    s.first_row = part % p.row_parts * p.part_step;
    s.first_column = index % p.column_tiles * Traits::kWidth;
    return s;
  }

  // Of part_rows, those that exist.
  __device__ __forceinline__ int rows(const BatchMarch& p) const {
    return min(p.part_rows, (p.dst_height - first_row + p.dilation_height - 1) / p.dilation_height);
  }
};

// Octets of columns of one row of 16 streams as matrices [octet][first or second 8 streams]; transposed,
// streams are the inner dimension. `row` is where stream lane % 16 has its first octet or, for the upper
// half of the lanes, its second.
template <bool kTransposed, int kCount, int kRoom>
__device__ __forceinline__ void load_octets(uint32_t (&octets)[kRoom][2], uint32_t row) {
  static_assert(kCount <= kRoom);
#pragma unroll
  for (int first = 0; first < kCount; first += 2) {
    uint32_t two[4];
    if constexpr (kTransposed) {
      load_matrices_transposed(two, row + first * kBlockBytes);
    } else {
      load_matrices(two, row + first * kBlockBytes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i / 2 < kCount) {
        octets[first + i / 2][i % 2] = two[i];
      }
    }
  }
}

// A thread's vectors: the same columns of all rows of some streams.
template <typename Traits>
struct StageCopies {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kMine = Traits::kThreadStreams;
  int src[kMine]; // offsets of the rows of step 0
  int input[kMine];
  int first_row[kMine];
  uint32_t has_src = 0; // whether the columns exist, a bit each
  uint32_t has_input = 0;
  int src_shared;
  int input_shared;
  bool works; // whether the thread has a vector

  __device__ __forceinline__ StageCopies(int channel, int first_stream, const BatchMarch& p) {
    const int vector = threadIdx.x % Traits::kRowThreads;
    const int first = threadIdx.x / Traits::kRowThreads;
    const int column = vector * Traits::kVector + Traits::kFirstSrcColumn;
    const int input_column = vector * Traits::kVector - Traits::kLeft;
    works = vector < Traits::kRowVectors;
    src_shared = first * Traits::kSrcPitch + (Traits::kBeside * kOctet + column) * 2;
    input_shared = Traits::kSrcBytes + first * Traits::kInputPitch + vector * Traits::kVector * 2;
    // Of the weight's gradient src is grad_output.
    const int src_multiplier = p.flip ? 1 : p.multiplier;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int stream = first + i * Traits::kStreamsAtOnce;
      const Stream s = Stream::of<Traits>(first_stream + stream, p);
      const bool exists = s.image >= 0;
      const auto offset = [&](int multiplier, int step, int of_tile) {
        const int plane = s.image * (p.channels / multiplier) + channel / multiplier;
        return (plane * p.src_height + s.first_row + step * p.dilation_height) * p.src_width +
            s.first_column + of_tile;
      };
      const auto inside = [&](int of_tile) {
        return s.first_column + of_tile >= 0 && s.first_column + of_tile < p.src_width;
      };
      first_row[i] = s.first_row - p.lead * p.dilation_height;
      src[i] = offset(src_multiplier, -p.lead, column);
      has_src |= static_cast<uint32_t>(exists && inside(column)) << i;
      if constexpr (Traits::kWeight) {
        input[i] = offset(p.multiplier, -p.lead - Traits::kReach, input_column);
        has_input |= static_cast<uint32_t>(exists && inside(input_column)) << i;
      }
    }
  }

  // The rows of steps from kRows * stage on; of the input those kReach before. Those outside the image
  // are zeros, and those of the input that belong to other parts.
  __device__ __forceinline__ void load(
      char* to,
      int stage,
      const BatchOperands<scalar_t>& t,
      const BatchMarch& p) const {
    if (!works) {
      return;
    }
    const int row_elements = p.dilation_height * p.src_width;
    const auto in_plane = [&](int h) {
      return static_cast<unsigned int>(h) < static_cast<unsigned int>(p.src_height);
    };
#pragma unroll
    for (int row = 0; row < Traits::kRows; ++row) {
      const int step = stage * Traits::kRows + row;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const int h = first_row[i] + step * p.dilation_height;
        // Where there is nothing nothing is read, whatever the address.
        const bool has = (has_src >> i & 1) && in_plane(h);
        copy_async<Traits::kVector * 2>(
            to + src_shared + i * Traits::kStreamsAtOnce * Traits::kSrcPitch +
                row * Traits::kSrcRow,
            t.src + (Traits::kStraight || has ? src[i] + step * row_elements : 0),
            has);
        if constexpr (Traits::kWeight) {
          const int of_part = step - p.lead - Traits::kReach;
          const bool own =
              Traits::kWholeRow || !Traits::kStraight || (of_part >= 0 && of_part < p.part_rows);
          const bool has_row =
              (has_input >> i & 1) && own && in_plane(h - Traits::kReach * p.dilation_height);
          copy_async<Traits::kVector * 2>(
              to + input_shared + i * Traits::kStreamsAtOnce * Traits::kInputPitch +
                  row * Traits::kInputRow,
              t.input + (Traits::kStraight || has_row ? input[i] + step * row_elements : 0),
              has_row);
        }
      }
    }
  }
};

// The columns that no copy writes, on both sides.
template <typename Traits>
__device__ __forceinline__ void clear_margins(char* stages) {
  constexpr int kFirst = Traits::kBeside * kOctet + Traits::kFirstSrcColumn;
  constexpr int kTravelling = Traits::kRowVectors * Traits::kVector;
  constexpr int kAllRows = kTileImages * Traits::kRows;
  const auto clear = [](char* row, int first, int last) {
    for (int column = first; column < last; column += Traits::kVector) {
      *reinterpret_cast<uint2*>(row + column * 2) = make_uint2(0, 0);
    }
  };
  for (int i = threadIdx.x; i < Traits::kStages * kAllRows; i += Traits::kThreads) {
    char* const stage = stages + i / kAllRows * Traits::kStageBytes;
    const int stream = i % kAllRows / Traits::kRows;
    const int row = i % Traits::kRows;
    char* const src = stage + stream * Traits::kSrcPitch + row * Traits::kSrcRow;
    clear(src, 0, kFirst);
    clear(src, kFirst + kTravelling, Traits::kSrcOctets * kOctet);
    if constexpr (Traits::kWeight) {
      clear(
          stage + Traits::kSrcBytes + stream * Traits::kInputPitch + row * Traits::kInputRow,
          kTravelling,
          Traits::kInputOctets * kOctet);
    }
  }
}

// The rows of src under way: of kTapRows, the one of step s in slot s % kTapRows.
template <typename Traits>
struct SourceRows {
  uint32_t words[Traits::kTapRows][Traits::kRowOctets][2] = {};

  // Of the octet of src on diagonal `diagonal` of the warp's octet `octet` of dst.
  __device__ __forceinline__ uint32_t word(int slot, int octet, int diagonal, int half) const {
    return words[slot][octet + diagonal][half];
  }
};

// What a warp keeps beside its rows of src: the sums of its part of the weight's gradient or, in the same
// registers, the bits of the matrices T.
template <typename Traits>
using MarchState = float[Traits::kTapRows][Traits::kMatrices][4];

template <typename Traits>
struct MarchSums {
  using scalar_t = typename Traits::scalar_t;
  MarchState<Traits>& taps;
  float bias[4] = {};

  __device__ __forceinline__ explicit MarchSums(MarchState<Traits>& state) : taps(state) {}

  // The row of grad_output that the step brought; zeros of it where it belongs to another part.
  __device__ __forceinline__ void add_bias(
      const SourceRows<Traits>& rows,
      int slot,
      int octets,
      bool own) {
    const uint32_t ones = own ? kTwoOnes<scalar_t> : 0;
#pragma unroll
    for (int o = 0; o < Traits::kWarpOctets; ++o) {
      if (Traits::kAllOctets || o < octets) {
        const uint32_t (&grad)[2] = rows.words[slot][o];
        multiply_16<scalar_t>(bias, ones, ones, ones, ones, grad[0], grad[1]);
      }
    }
  }

  // `row` is where the lane's image has its first octet of the input, of the row kReach before that which
  // the step brought: image lane % 8 + lane / 16 * 8 or, where lane / 8 is odd, its second octet.
  __device__ __forceinline__ void add(
      const SourceRows<Traits>& rows,
      int last_slot,
      uint32_t row,
      int octets) {
    constexpr int kTapRows = Traits::kTapRows;
    uint32_t pairs[Traits::kInputPairs][4];
#pragma unroll
    for (int i = 0; i < Traits::kInputPairs; ++i) {
      load_matrices_transposed(pairs[i], row + i * kBlockBytes);
    }
#pragma unroll
    for (int o = 0; o < Traits::kWarpOctets; ++o) {
      if (!Traits::kAllOctets && o >= octets) {
        continue;
      }
#pragma unroll
      for (int i = 0; i < kTapRows; ++i) {
        const uint32_t (&grad)[2] = rows.words[(last_slot - i + kTapRows) % kTapRows][o];
#pragma unroll
        for (int m = 0; m < Traits::kMatrices; ++m) {
          const uint32_t (&from)[4] = pairs[o + 2 * m];
          multiply_16<scalar_t>(taps[i][m], from[0], from[1], from[2], from[3], grad[0], grad[1]);
        }
      }
    }
  }

  __device__ __forceinline__ void write(float* to, const Lane& at) const {
#pragma unroll
    for (int i = 0; i < Traits::kTapRows * Traits::kMatrices; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[(i * kMatrixRows + at.row + j / 2 * kOctet) * kOctet + 2 * at.pair + j % 2] =
            taps[i / Traits::kMatrices][i % Traits::kMatrices][j];
      }
    }
    if (at.row == 0) {
      to[Traits::kTapRows * Traits::kTapMatrix + 2 * at.pair] = bias[0];
      to[Traits::kTapRows * Traits::kTapMatrix + 2 * at.pair + 1] = bias[1];
    }
  }
};

// The first column of an octet of dst, in its tile.
__device__ __forceinline__ int dst_column(int octet) {
  return octet * kOctet - kOctet / 2;
}

// A lane's results of a stage, from row first_index of the parts on, that are NaN again, tap by tap.
template <typename Traits>
__device__ __noinline__ void retake_results(
    char* results,
    const BatchOperands<typename Traits::scalar_t>& t,
    const BatchMarch& p,
    int first_stream,
    int channel,
    int first_octet,
    int first_index,
    float bias) {
  using scalar_t = typename Traits::scalar_t;
  const Lane at;
  const int multiplier = p.flip ? 1 : p.multiplier;
#pragma unroll 1
  for (int i = 0; i < 4 * Traits::kWarpOctets * Traits::kRows; ++i) {
    const int of_stage = i / (4 * Traits::kWarpOctets);
    const int index = first_index + of_stage;
    const int of_block = at.row + i % 2 * kOctet;
    const int octet = first_octet + i / 4 % Traits::kWarpOctets;
    const int of_tile = dst_column(octet) + 2 * at.pair + i / 2 % 2;
    const Stream s = Stream::of<Traits>(first_stream + of_block, p);
    const int column = s.first_column + of_tile;
    if (s.image < 0 || index < 0 || index >= s.rows(p) || of_tile < 0 ||
        of_tile >= Traits::kWidth || column >= p.dst_width) {
      continue;
    }
    scalar_t& result = *reinterpret_cast<scalar_t*>(
        results + of_block * Traits::kDstPitch + of_stage * Traits::kDstRow + of_tile * 2);
    const int source = s.image * (p.channels / multiplier) + channel / multiplier;
    retake(
        result,
        t.src + source * p.src_height * p.src_width,
        t.weight + channel * p.kernel_height * p.kernel_width,
        bias,
        p,
        s.first_row + index * p.dilation_height,
        column);
  }
}

// What a warp needs for its part of dst.
template <typename Traits>
struct TargetRows {
  using scalar_t = typename Traits::scalar_t;
  MarchState<Traits>& bands;
  float begin = 0.0f;
  int channel;
  int first_octet;
  bool has_column[Traits::kWarpOctets]; // whether the lane's columns of the octet are in the tile
  bool spoilt = false; // whether the lane has met a NaN

  __device__ __forceinline__
  TargetRows(MarchState<Traits>& state, int of_channel, int group, const Lane& at)
      : bands(state), channel(of_channel), first_octet(group * Traits::kWarpOctets) {
#pragma unroll
    for (int o = 0; o < Traits::kWarpOctets; ++o) {
      const int column = dst_column(first_octet + o) + 2 * at.pair;
      has_column[o] = column >= 0 && column < Traits::kWidth;
    }
  }

  __device__ __forceinline__ void read_taps(
      const BatchOperands<scalar_t>& t,
      const Lane& at,
      const BatchMarch& p) {
    uint32_t words[Traits::kTapRows][Traits::kDiagonals];
    make_bands<Traits>(
        words,
        reinterpret_cast<const unsigned short*>(t.weight) +
            channel * p.kernel_height * p.kernel_width,
        at,
        p);
#pragma unroll
    for (int i = 0; i < Traits::kTapRows; ++i) {
#pragma unroll
      for (int j = 0; j < Traits::kDiagonals; ++j) {
        bands[i][j / 2][j % 2] = __uint_as_float(words[i][j]);
      }
    }
    begin = t.bias ? static_cast<float>(t.bias[channel]) : 0.0f;
  }

  // One row, from the rows of src that end with the one that the step brought. `to` is where the first of
  // the lane's streams has the row.
  __device__ __forceinline__ void compute(
      char* to,
      const SourceRows<Traits>& rows,
      int last_slot,
      const Lane& at) {
    constexpr int kTapRows = Traits::kTapRows;
    constexpr int kWarpOctets = Traits::kWarpOctets;
    constexpr int kChains = 2; // of sums that do not wait for one another
    float sums[kWarpOctets][kChains][4] = {};
#pragma unroll
    for (int i = 0; i < kTapRows; ++i) {
      const int slot = (last_slot + 1 + i) % kTapRows;
#pragma unroll
      for (int d = 0; d < Traits::kDiagonals; ++d) {
#pragma unroll
        for (int o = 0; o < kWarpOctets; ++o) {
          multiply_8<scalar_t>(
              sums[o][d % kChains],
              rows.word(slot, o, d, 0),
              rows.word(slot, o, d, 1),
              __float_as_uint(bands[i][d / 2][d % 2]));
        }
      }
    }
#pragma unroll
    for (int o = 0; o < kWarpOctets; ++o) {
      const int column = dst_column(first_octet + o) + 2 * at.pair;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float low = sums[o][0][2 * half] + sums[o][1][2 * half];
        float high = sums[o][0][2 * half + 1] + sums[o][1][2 * half + 1];
        if constexpr (!Traits::kWeight) { // grad_input has no bias
          low += begin;
          high += begin;
        }
        spoilt = spoilt | isnan(low) | isnan(high);
        if (has_column[o]) {
          *reinterpret_cast<uint32_t*>(to + half * kOctet * Traits::kDstPitch + column * 2) =
              pack_two<scalar_t>(low, high);
        }
      }
    }
  }
};

// How the results of a stage leave: a thread has the same four columns of all rows of some streams.
template <typename Traits>
struct ResultCopies {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kStreamsAtOnce = Traits::kThreads / Traits::kDstThreads;
  int offset[Traits::kDstStreams]; // of the first row
  int last[Traits::kDstStreams]; // row, exclusive

  __device__ __forceinline__ ResultCopies(int channel, int first_stream, const BatchMarch& p) {
    const int column = threadIdx.x % Traits::kDstThreads * Traits::kVector;
#pragma unroll
    for (int i = 0; i < Traits::kDstStreams; ++i) {
      const int stream = threadIdx.x / Traits::kDstThreads + i * kStreamsAtOnce;
      const Stream s = Stream::of<Traits>(first_stream + stream, p);
      offset[i] = ((s.image * p.channels + channel) * p.dst_height + s.first_row) * p.dst_width +
          s.first_column + column;
      last[i] = s.image >= 0 && column < Traits::kWidth && s.first_column + column < p.dst_width
          ? s.rows(p)
          : 0;
    }
  }

  // The rows from first_index of the parts on.
  __device__ __forceinline__ void store(
      scalar_t* dst,
      const char* results,
      int first_index,
      const BatchMarch& p) const {
    const int vector = threadIdx.x % Traits::kDstThreads;
    const int row_elements = p.dilation_height * p.dst_width;
#pragma unroll
    for (int i = 0; i < Traits::kDstStreams; ++i) {
      const int stream = threadIdx.x / Traits::kDstThreads + i * kStreamsAtOnce;
      const char* const from = results + stream * Traits::kDstPitch + vector * Traits::kVector * 2;
#pragma unroll
      for (int row = 0; row < Traits::kRows; ++row) {
        const int index = first_index + row;
        if (index >= 0 && index < last[i]) {
          *reinterpret_cast<uint2*>(dst + (offset[i] + index * row_elements)) =
              *reinterpret_cast<const uint2*>(from + row * Traits::kDstRow);
        }
      }
    }
  }
};

// One tap (kernel size: the bias) of one channel over a block's streams, inside the image only.
template <typename Traits>
__device__ __noinline__ float careful_march_tap(
    const BatchOperands<typename Traits::scalar_t>& t,
    const BatchMarch& p,
    int first_stream,
    int channel,
    int tap) {
  const bool is_bias = tap == p.kernel_height * p.kernel_width;
  const int down = tap / p.kernel_width * p.dilation_height - p.padding_height;
  const int right = tap % p.kernel_width * p.dilation_width - p.padding_width;
  float sum = 0.0f;
#pragma unroll 1
  for (int stream = 0; stream < kTileImages; ++stream) {
    const Stream s = Stream::of<Traits>(first_stream + stream, p);
    if (s.image < 0) {
      continue;
    }
    const auto* const grads = t.src + (s.image * p.channels + channel) * p.dst_height * p.dst_width;
    const auto* const input = t.input +
        (s.image * (p.channels / p.multiplier) + channel / p.multiplier) * p.src_height *
            p.src_width;
#pragma unroll 1
    for (int i = 0; i < s.rows(p) * Traits::kWidth; ++i) {
      const int row = s.first_row + i / Traits::kWidth * p.dilation_height;
      const int w = s.first_column + i % Traits::kWidth;
      if (w >= p.dst_width) {
        continue;
      }
      if (is_bias) {
        sum += static_cast<float>(grads[row * p.dst_width + w]);
      } else if (
          row - down >= 0 && row - down < p.dst_height && w + right >= 0 &&
          w + right < p.src_width) {
        sum += static_cast<float>(grads[(row - down) * p.dst_width + w]) *
            static_cast<float>(input[row * p.src_width + w + right]);
      }
    }
  }
  return sum;
}

// The taps of a block's channel from its warps' matrices.
template <typename Traits>
__device__ __forceinline__ void write_march_taps(
    const BatchOperands<typename Traits::scalar_t>& t,
    const float* matrices,
    int first_stream,
    int channel,
    const BatchMarch& p) {
  const int kernel_size = p.kernel_height * p.kernel_width;
  float* const partial = t.partial + blockIdx.y * (kernel_size + kBiasRows) * p.channels + channel;
  for (int tap = threadIdx.x; tap <= kernel_size; tap += Traits::kThreads) {
    const bool is_bias = tap == kernel_size;
    const int tap_row =
        tap / p.kernel_width - p.padding_height / p.dilation_height + Traits::kReach;
    const int first = Traits::kLeft + tap % p.kernel_width * p.dilation_width - p.padding_width;
    float sum = 0.0f;
    for (int group = 0; group < Traits::kGroups; ++group) {
      const float* const from = matrices + group * Traits::kScratch;
      for (int n = 0; n < kOctet; ++n) {
        sum += from
            [is_bias ? Traits::kTapRows * Traits::kTapMatrix + n
                     : tap_row * Traits::kTapMatrix + (first + n) * kOctet + n];
      }
    }
    if (isnan(sum)) {
      sum = careful_march_tap<Traits>(t, p, first_stream, channel, tap);
    }
    if (is_bias) {
      write_bias(partial + kernel_size * p.channels, p.channels, sum);
    } else {
      partial[tap * p.channels] = sum;
    }
  }
}

// grid: channels, tiles of streams.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void batch_march_kernel(
    const __grid_constant__ BatchOperands<typename Traits::scalar_t> t,
    const __grid_constant__ BatchMarch p) {
  constexpr int kTapRows = Traits::kTapRows;
  constexpr int kRows = Traits::kRows;
  constexpr int kStages = Traits::kStages;
  extern __shared__ uint4 shared_blocks[];
  char* const stages = reinterpret_cast<char*>(shared_blocks);
  char* const results = stages + kStages * Traits::kStageBytes;

  const Lane at;
  const int lane = threadIdx.x % kWarpSize;
  // The same for all lanes, as the compiler sees from this.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  const int group = warp % Traits::kGroups;
  const bool weighs = Traits::kWeight && (!Traits::kData || warp < Traits::kGroups);
  const int channel = blockIdx.x;
  const int first_stream = blockIdx.y * kTileImages;
  const int grad_octets = Traits::kOctets - group * Traits::kWarpOctets; // at least, of the warp

  const StageCopies<Traits> copies(channel, first_stream, p);
  const ResultCopies<Traits> result_copies(channel, first_stream, p);
  // Step s brings row s - p.lead of the parts; those of dst and of the input are kReach behind.
  const int behind = p.lead + Traits::kReach;
  const int steps = p.part_rows + behind;
  const int all_stages = (steps + kRows - 1) / kRows;
  const auto load = [&](int stage) {
    if (stage < all_stages) {
      copies.load(stages + stage % kStages * Traits::kStageBytes, stage, t, p);
    }
    commit_copies();
  };
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    load(stage);
  }
  clear_margins<Traits>(stages);

  MarchState<Traits> state = {};
  MarchSums<Traits> sums(state);
  TargetRows<Traits> target(state, channel, group, at);
  if constexpr (Traits::kData) {
    if (!weighs) {
      target.read_taps(t, at, p);
    }
  }
  SourceRows<Traits> rows;
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(stages)) +
      group * Traits::kWarpOctets * kBlockBytes;
  const int src_octet = lane / kMatrixRows + (weighs ? Traits::kBeside : 0);
  const uint32_t src_first =
      shared + src_octet * kBlockBytes + lane % kMatrixRows * Traits::kSrcPitch;
  const uint32_t input_first = shared + Traits::kSrcBytes + lane / kOctet % 2 * kBlockBytes +
      (lane / kMatrixRows * kOctet + lane % kOctet) * Traits::kInputPitch;

#pragma unroll 1
  for (int stage = 0; stage < all_stages; ++stage) {
    wait_for_groups<kStages - 2>();
    __syncthreads();
    // Into the stage that was used before this barrier.
    load(stage + kStages - 1);
    const int stage_offset = stage % kStages * Traits::kStageBytes;
    // Unrolled: a row stays in the registers of its slot.
    if (weighs) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int step = stage * kRows + i;
        const int slot = i % kTapRows;
        if (!Traits::kStraight && step >= steps) {
          continue;
        }
        load_octets<true, Traits::kWarpOctets>(
            rows.words[slot], src_first + stage_offset + i * Traits::kSrcRow);
        const bool own = Traits::kWholeRow || (step >= p.lead && step < p.lead + p.part_rows);
        if (Traits::kStraight || own) {
          sums.add_bias(rows, slot, grad_octets, own);
        }
        if (Traits::kStraight || step >= behind) {
          sums.add(rows, slot, input_first + stage_offset + i * Traits::kInputRow, grad_octets);
        }
      }
    } else if constexpr (Traits::kData) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int step = stage * kRows + i;
        const int slot = i % kTapRows;
        if (!Traits::kStraight && step >= steps) {
          continue;
        }
        load_octets<false, Traits::kRowOctets>(
            rows.words[slot], src_first + stage_offset + i * Traits::kSrcRow);
        if (Traits::kStraight || step >= behind) {
          target.compute(
              results + at.row * Traits::kDstPitch + i * Traits::kDstRow, rows, slot, at);
        }
      }
    }
    if constexpr (Traits::kData) {
      const int first_index = stage * kRows - behind;
      if (target.spoilt) {
        retake_results<Traits>(
            results, t, p, first_stream, channel, target.first_octet, first_index, target.begin);
        target.spoilt = false;
      }
      __syncthreads();
      result_copies.store(t.dst, results, first_index, p);
    }
  }

  if constexpr (Traits::kWeight) {
    wait_for_groups<0>();
    __syncthreads();
    float* const matrices = reinterpret_cast<float*>(stages);
    if (weighs) {
      sums.write(matrices + group * Traits::kScratch, at);
    }
    __syncthreads();
    write_march_taps<Traits>(t, matrices, first_stream, channel, p);
  }
}

// Whether these kernels take the call, for dst, the weight's gradient or both, and in which parts. What they
// need: same sizes of input and output, rows of whole vectors, enough streams to fill a matrix by half,
// enough blocks.
inline bool plan_batch_march(
    BatchMarch& b,
    const Params& p,
    std::initializer_list<const Operand*> tensors,
    bool data,
    bool weight) {
  constexpr int64_t kLeastStreams = kOctet;
  // With half of them all gradients of 24@56 k3 26 -> 30 us.
  const int64_t least_blocks = multiprocessors() * 3 / 4;
  constexpr int64_t kMostReach = 3;
  constexpr int64_t kMostBeside = 12; // columns
  constexpr double kLeastFill = .75;
  constexpr int64_t kTileWidth = 56;
  const int64_t width = p.input_width;
  const int64_t height = p.input_height;
  const int64_t tile = width == 28 ? 28 : kTileWidth;
  const bool wide = p.padding_width > kOctet / 2;
  b.column_tiles = divide_up(width, tile);
  if (width % 4 != 0 || width < kLeastFill * b.column_tiles * tile || p.output_width != width ||
      p.output_height != height || p.stride_height != 1 || p.stride_width != 1 || p.channels_last ||
      p.padding_height > kMostReach * p.dilation_height || p.padding_width > kMostBeside ||
      p.padding_height % p.dilation_height != 0 ||
      (wide ? tile != kTileWidth || p.padding_height != kMostReach * p.dilation_height
            : p.dilation_height != 1 || p.dilation_width != 1) ||
      !march_fits_32_bits(p) || !has_tensor_cores()) {
    return false;
  }
  // Strips of rows where a march would be long and blocks few.
  const int64_t wanted_blocks = multiprocessors() * 8;
  constexpr int64_t kLeastRows = 64;
  set_unit_stride_pass(b, p);
  b.lead = 0;
  b.row_parts = std::min(p.dilation_height, height);
  b.part_step = 1;
  b.part_rows = divide_up(height, p.dilation_height);
  const int64_t blocks = divide_up(p.batch * b.column_tiles, kTileImages) * p.output_channels();
  if (p.dilation_height == 1 && blocks > 0 && height >= 2 * kLeastRows && tile == kTileWidth) {
    const int64_t strips =
        std::clamp<int64_t>(divide_up(wanted_blocks, blocks), 1, height / kLeastRows);
    b.part_rows = divide_up(height, strips);
    b.row_parts = divide_up(height, b.part_rows);
    b.part_step = b.part_rows;
    b.lead = b.row_parts > 1 ? (p.padding_height > 1 ? p.padding_height : 1) : 0;
  }
  b.streams = p.batch * b.row_parts * b.column_tiles;
  b.tiles = divide_up(b.streams, kTileImages);
  if (b.streams < kLeastStreams || b.tiles > kMostGridRows ||
      b.tiles * p.output_channels() < least_blocks) {
    return false;
  }
  // What others do faster. Of dst alone: 3 x 3 (144@56 80 us by patches, 87 here), 28 columns (240@28 k5 41
  // by whole planes, 52 here), few blocks of 5 x 5 (96@56 of 8 images 11 and 19; of 32 27 and 26). Of the
  // weight alone: 3 x 3 on planes that patches have whole (144@56 97 and 108).
  const int64_t many_blocks = multiprocessors() * 2;
  constexpr int64_t kWholePlane = 56; // columns
  const bool small_window = p.padding_height <= 1;
  const bool many = b.tiles * p.output_channels() >= many_blocks;
  const bool seven = p.padding_height == kMostReach && !wide;
  if (p.multiplier == 1 &&
      ((!weight && (small_window || width == 28 || !(seven || many))) ||
       (!data && small_window && width <= kWholePlane))) {
    return false;
  }
  return std::all_of(tensors.begin(), tensors.end(), [](const Operand* tensor) {
    return is_16_bit(tensor->type()) && is_aligned(tensor->const_data_ptr(), kBlockBytes);
  });
}

// Calls launch(scalar, width, reach, left) with the smallest that are enough.
template <typename Launch>
void with_batch_march_kernel(const Params& p, Type type, const Launch& launch) {
  const auto with_shape = [&](auto scalar) {
    using Narrow = std::integral_constant<int, 4>;
    using Wide = std::integral_constant<int, 12>;
    using Tile = std::integral_constant<int, 56>;
    const auto with_reach = [&](auto width) {
      if (p.padding_height <= 1) {
        launch(scalar, width, std::integral_constant<int, 1>(), Narrow());
      } else if (p.padding_height == 2) {
        launch(scalar, width, std::integral_constant<int, 2>(), Narrow());
      } else {
        launch(scalar, width, std::integral_constant<int, 3>(), Narrow());
      }
    };
    if (p.padding_width > Narrow::value) {
      launch(scalar, Tile(), std::integral_constant<int, 3>(), Wide());
    } else if (p.input_width == 28) {
      with_reach(std::integral_constant<int, 28>());
    } else {
      with_reach(Tile());
    }
  };
  return type == Type::kHalf ? with_shape(c10::Half()) : with_shape(c10::BFloat16());
}

template <typename Traits>
void launch_batch_march(
    const BatchOperands<typename Traits::scalar_t>& operands,
    const BatchMarch& b) {
  const dim3 grid(b.channels, b.tiles);
  launch_kernel(batch_march_kernel<Traits>, grid, Traits::kThreads, Traits::kShared, operands, b);
}

namespace {

bool batch_march_pass(const ForwardPass& pass, const Params& p, bool flip) {
  BatchMarch b{};
  if ((flip && p.multiplier != 1) ||
      !plan_batch_march(b, p, {&pass.dst, &pass.src, &pass.weight}, true, false)) {
    return false;
  }
  b.flip = flip;
  with_batch_march_kernel(p, pass.src.type(), [&](auto scalar, auto width, auto reach, auto left) {
    using scalar_t = decltype(scalar);
    BatchOperands<scalar_t> operands{};
    operands.dst = pass.dst.mutable_data_ptr<scalar_t>();
    operands.src = pass.src.const_data_ptr<scalar_t>();
    operands.weight = pass.weight.const_data_ptr<scalar_t>();
    operands.bias = pointer_or_null<scalar_t>(pass.bias);
    launch_batch_march<BatchMarchTraits<
        scalar_t,
        decltype(width)::value,
        decltype(reach)::value,
        decltype(left)::value,
        true,
        false>>(operands, b);
  });
  return true;
}

} // namespace

bool batch_march_forward(const ForwardPass& pass, const Params& p) {
  return batch_march_pass(pass, p, pass.grad_input);
}

bool batch_march_backward(const BackwardPass& pass, const Params& p) {
  BatchMarch b{};
  const bool data = pass.grad_input.defined();
  // A wide window's sums leave no registers for grad_input.
  const bool together = p.multiplier == 1 && p.padding_width <= kOctet / 2 &&
      is_aligned(data ? pass.grad_input.const_data_ptr() : nullptr, kBlockBytes);
  if ((data && !together) ||
      !plan_batch_march(b, p, {&pass.grad_output, &pass.input, &pass.weight}, data, true)) {
    return false;
  }
  b.flip = true; // of grad_input
  const Operand partial = empty_partial(b.tiles, p);
  with_batch_march_kernel(
      p, pass.input.type(), [&](auto scalar, auto width, auto reach, auto left) {
        using scalar_t = decltype(scalar);
        constexpr int kWidth = decltype(width)::value;
        constexpr int kReach = decltype(reach)::value;
        constexpr int kLeft = decltype(left)::value;
        BatchOperands<scalar_t> operands{};
        operands.dst = mutable_pointer_or_null<scalar_t>(pass.grad_input);
        operands.src = pass.grad_output.const_data_ptr<scalar_t>();
        operands.weight = pass.weight.const_data_ptr<scalar_t>();
        operands.input = pass.input.const_data_ptr<scalar_t>();
        operands.partial = partial.mutable_data_ptr<float>();
        if (!data) {
          launch_batch_march<BatchMarchTraits<scalar_t, kWidth, kReach, kLeft, false, true>>(
              operands, b);
        } else if constexpr (kLeft <= kOctet) {
          launch_batch_march<BatchMarchTraits<scalar_t, kWidth, kReach, kLeft, true, true>>(
              operands, b);
        }
      });
  add_partials(pass.grad_weight, pass.grad_bias, partial, b.tiles, p);
  return true;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
