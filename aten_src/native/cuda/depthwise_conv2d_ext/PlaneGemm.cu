// Small planes in NCHW order as matrix products on the tensor cores: all passes, any window.
//
// One channel of the images is a matrix, and so is what a pass does to it:
//   dst[images][dst elements] = src[images][src elements] · T[src elements][dst elements],
// where T holds the tap that takes one element to the other, or zero. T is never stored: one plane of taps, spread by
// the dilation and with zeros around them, has all its elements, and the place of one is offset(src element) -
// offset(dst element). A lane looks its part of T up once and multiplies it by kTiles groups of 16 images; rows that
// no tap takes to the warp's dst rows are left out. The weight's gradient is src^T · grad_output, a plane by a plane,
// of which each element is added to the place of its tap.
//
// A block takes some channels of some images, which are one run of memory of each image, copied as it lies. Where a
// channel begins between two multiples of 16 bytes, its matrix begins at the first, with rows of T that are zero.
//
// float32 is three products of tf32: of the value's upper eleven bits and of what they leave. Each step's products
// are added up by themselves, since the tensor cores cut sums off where float32 rounds.
//
// Zeros of T are multiplied, also by the neighbouring channel's elements. A result that is NaN is taken again.
#include <ATen/native/cuda/depthwise_conv2d_ext/Bands.cuh>
#include <numeric>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kMostWarps = 16;
constexpr int kUsualUnits = 8; // of a block
constexpr int64_t kUsualTiles = 64 * 1024; // bytes, so that several blocks fit
constexpr int kColumnTiles = 4; // of 8 dst elements, of a warp
constexpr int kUnit = kColumnTiles * kBlock;
constexpr int kChunkBytes = 16;
constexpr int kCopies = 4; // of a warp's sums of taps

template <typename scalar_t_, int kTiles_>
struct GemmTraits {
  using scalar_t = scalar_t_;
  static constexpr bool kSplit = sizeof(scalar_t) == 4;
  static constexpr int kTiles = kTiles_; // of 16 images, of a block
  static constexpr int kImages = kTiles * kMatrixRows;
  static constexpr int kChunk = kChunkBytes / sizeof(scalar_t); // elements
  static constexpr int kDepth = 2 * kChunk; // src elements, or images, of a matrix instruction
  static constexpr int kTogether = kSplit ? 1 : 2; // src elements of a register of T
  static constexpr int kEntries = 8; // of the table, of a step
  // Two neighbouring taps of 16 bits, or the two parts of one.
  using Word = std::conditional_t<kSplit, uint2, uint32_t>;
};

// One of the two tensors.
struct Side {
  int32_t height;
  int32_t width;
  int32_t step; // in the plane of taps, from a row to the next and from a column
  int32_t pitch; // bytes of a block's tile, from image to image
  Divider by_width;

  __host__ __device__ int32_t plane() const {
    return height * width;
  }
  __device__ __forceinline__ int32_t row_of(int32_t element) const {
    return by_width.quotient(min(max(element, 0), plane() - 1));
  }
};

struct PlaneGemm {
  int32_t batch;
  int32_t channels;
  bool grad;
  Side src;
  Side dst;
  // The plane of taps.
  int32_t taps_pitch;
  int32_t taps_rows;
  int32_t words; // of a channel and kind
  int32_t kinds; // 2: of neighbours in a row, and of a row's last element and the next row's first
  int32_t block_channels;
  int32_t table_entries; // of a channel
  int32_t padding; // of rows
  int32_t reach; // rows from the window's first to its last
  Divider by_src_step;
  Divider by_taps;
  Divider by_kernel_width;
  Divider by_entries;
  Divider by_units; // of a channel: groups of kUnit dst elements
  int32_t piece; // bytes of which a run of results is a multiple
  // Bytes of shared memory, after the tiles.
  int32_t words_bytes;
  int32_t tables_bytes;
  int32_t sums_bytes;
  // The weight's gradient.
  int32_t parts; // warps of a channel
  int32_t grad_units; // groups of kUnit elements of grad_output
  int32_t sums_first; // the place in the plane of taps
  int32_t sums; // a window's
  int32_t sums_pitch;
  int32_t places; // of one kind

  // The place in the plane of taps of src element 0 and dst element 0.
  __host__ __device__ int32_t origin() const {
    return dst.step * ((dst.height - 1) * taps_pitch + dst.width - 1);
  }
  // What an element adds to or takes from it.
  __device__ __forceinline__ int32_t offset(const Side& side, int32_t element) const {
    return side.step * (side.by_width.quotient(element) * (taps_pitch - side.width) + element);
  }
  // Of a tap, or -1 where no element of src and dst meet it.
  __device__ __forceinline__ int32_t place(const Params& call, int32_t tap) const {
    const int32_t kh = by_kernel_width.quotient(tap);
    const int32_t kw = tap - kh * static_cast<int32_t>(by_kernel_width.by);
    const int32_t down = static_cast<int32_t>(kh * call.dilation_height - call.padding_height);
    const int32_t right = static_cast<int32_t>(kw * call.dilation_width - call.padding_width);
    const int32_t row = (grad ? -down : down) + dst.step * (dst.height - 1);
    const int32_t column = (grad ? -right : right) + dst.step * (dst.width - 1);
    const bool meets = row >= 0 && row < taps_rows && column >= 0 && column < taps_pitch;
    return meets ? row * taps_pitch + column : -1;
  }
};

template <typename scalar_t>
struct Tensors {
  scalar_t* dst; // or null
  const scalar_t* src;
  const scalar_t* weight;
  const scalar_t* bias; // or null
  // Of the weight's gradient, of which src is grad_output; else null.
  const scalar_t* input;
  float* partial;
};

// Which word of taps, less the dst element's offset, a register of T is, and which of its halves count.
struct Entry {
  int32_t word;
  uint32_t mask;
};

// float32 as two numbers of tf32.
__device__ __forceinline__ uint2 split(float value) {
  uint2 parts = make_uint2(0, 0);
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(parts.x) : "f"(value));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(parts.y) : "f"(value - __uint_as_float(parts.x)));
  return parts;
}

// As multiply_16, of 16 x 8 by 8 x 8: of `a` a lane has columns lane % 4 and + 4, of `b` these rows.
__device__ __forceinline__ void multiply_tf32(
    float (&sums)[4],
    const uint32_t (&a)[4],
    uint32_t b0,
    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One side of the products, 16 rows of a lane's kind: of 16 bits, or of float32 in numbers of tf32.
template <typename scalar_t>
struct Matrix {
  uint32_t a[4];

  __device__ __forceinline__ explicit Matrix(const uint32_t (&bits)[4])
      : a{bits[0], bits[1], bits[2], bits[3]} {}
  static __device__ __forceinline__ uint32_t other(uint32_t bits) {
    return bits;
  }
  __device__ __forceinline__ void multiply(float (&sums)[4], uint32_t b0, uint32_t b1) const {
    multiply_16<scalar_t>(sums, a[0], a[1], a[2], a[3], b0, b1);
  }
};

template <>
struct Matrix<float> {
  uint32_t upper[4];
  uint32_t lower[4];

  __device__ __forceinline__ explicit Matrix(const uint32_t (&bits)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 parts = other(bits[i]);
      upper[i] = parts.x;
      lower[i] = parts.y;
    }
  }
  static __device__ __forceinline__ uint2 other(uint32_t bits) {
    return split(__uint_as_float(bits));
  }
  __device__ __forceinline__ void multiply(float (&sums)[4], const uint2& b0, const uint2& b1)
      const {
    float products[4] = {};
    multiply_tf32(products, lower, b0.x, b1.x);
    multiply_tf32(products, upper, b0.y, b1.y);
    multiply_tf32(products, upper, b0.x, b1.x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += products[i];
    }
  }
};

__device__ __forceinline__ uint2 operator&(const uint2& word, uint32_t mask) {
  return make_uint2(word.x & mask, word.y & mask);
}

// Four registers of a matrix of images by elements, which is stored that way, as the products of elements by images
// take it: of `a`, 16 elements, or of `b`, twice 8; of float32 8 images of 16 elements.
template <bool kA, bool kSplit>
__device__ __forceinline__ void load_by_images(uint32_t (&to)[4], const char* from, int pitch) {
  const int lane = threadIdx.x % kWarpSize;
  if constexpr (kSplit) {
    // Of `a` elements lane / 4 and + 8 of images lane % 4, then of + 4; of `b` the images come first.
    const char* const mine = from + lane % 4 * pitch + lane / 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int image = (kA ? i / 2 : i % 2) * 4;
      const int element = (kA ? i % 2 : i / 2) * 8;
      to[i] = *reinterpret_cast<const uint32_t*>(mine + image * pitch + element * 4);
    }
  } else {
    const int image = kA ? lane % 8 + lane / 16 * 8 : lane % 16;
    const int chunk = kA ? lane / 8 % 2 : lane / 16;
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(from));
    load_matrices_transposed(to, address + image * pitch + chunk * kChunkBytes);
  }
}

// Some channels of some images: a block's, and what it has in shared memory.
template <typename Traits>
struct Block {
  using scalar_t = typename Traits::scalar_t;
  using Word = typename Traits::Word;
  static constexpr int kBytes = sizeof(scalar_t);
  static constexpr int kTiles = Traits::kTiles;

  const Tensors<scalar_t>& tensors;
  const Params& call;
  const PlaneGemm& p;
  char* const src_tile;
  const int first_channel = blockIdx.x * p.block_channels;
  const int channels = min(p.block_channels, p.channels - first_channel);
  const int first_image = blockIdx.y * Traits::kImages;
  const int images = min(Traits::kImages, p.batch - first_image);
  const int warp = threadIdx.x / kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  char* const dst_tile = src_tile + Traits::kImages * p.src.pitch;
  char* const begin = dst_tile + Traits::kImages * p.dst.pitch; // of what is zeros at first
  Word* const words = reinterpret_cast<Word*>(begin);
  Entry* const tables = reinterpret_cast<Entry*>(begin + p.words_bytes);
  float* const sums = reinterpret_cast<float*>(begin + p.words_bytes + p.tables_bytes);
  // Of elements of grad_output and, p.places later, of the input: their parts of a place, kUnit of each
  // kind before element 0.
  int* const places = reinterpret_cast<int*>(sums + p.sums_bytes / 4) + kUnit;

  // Where a channel begins in a tile.
  struct Begin {
    int shift; // elements after the last multiple of 16 bytes
    int bytes; // of that multiple
  };
  __device__ __forceinline__ Begin begin_of(const Side& side, int channel) const {
    const int at = first_channel * side.plane() % Traits::kChunk + channel * side.plane();
    return {at % Traits::kChunk, (at - at % Traits::kChunk) * kBytes};
  }

  // A run of each image, and zeros after it and for images that do not exist.
  __device__ __forceinline__ void load(char* tile, const scalar_t* tensor, const Side& side) const {
    const int lead = first_channel * side.plane() % Traits::kChunk;
    const int chunks = side.pitch / kChunkBytes;
    const int of_run = (lead + channels * side.plane() + Traits::kChunk - 1) / Traits::kChunk;
    const int image_size = p.channels * side.plane();
    for (int chunk = lane; chunk < chunks; chunk += kWarpSize) {
      char* to = tile + warp * side.pitch + chunk * kChunkBytes;
      const scalar_t* from = tensor + (first_image + warp) * image_size +
          first_channel * side.plane() - lead + chunk * Traits::kChunk;
#pragma unroll 4
      for (int image = warp; image < Traits::kImages; image += warps) {
        if (image < images && chunk < of_run) {
          copy_block(to, from);
        } else {
          *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        }
        to += warps * side.pitch;
        from += warps * image_size;
      }
    }
  }

  // The planes of taps: [channel][kind][word], which are zeros before. A word's first tap is the one
  // src.step places before it.
  __device__ __forceinline__ void make_words() const {
    constexpr int kAtOnce = 4; // so that their loads overlap
    const int taps = static_cast<int>(p.by_taps.by);
    for (int first = threadIdx.x; first < channels * taps; first += kAtOnce * blockDim.x) {
      const auto index = [&](int i) {
        return min(first + i * static_cast<int>(blockDim.x), channels * taps - 1);
      };
      scalar_t values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        values[i] = tensors.weight[first_channel * taps + index(i)];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int channel = p.by_taps.quotient(index(i));
        const int place = p.place(call, index(i) - channel * taps);
        Word* const to = words + channel * p.words * p.kinds + place;
        if (place < 0) {
          continue;
        }
        if constexpr (Traits::kSplit) {
          to[p.src.step] = split(values[i]);
        } else {
          unsigned short* const halves = reinterpret_cast<unsigned short*>(to);
          halves[2 * p.src.step] = values[i].x;
          halves[1] = values[i].x;
          if (p.kinds > 1) {
            const int before = p.src.step * (p.taps_pitch - p.src.width);
            halves[2 * (p.words + p.src.step)] = values[i].x;
            if (place >= before) {
              halves[2 * (p.words - before) + 1] = values[i].x;
            }
          }
        }
      }
    }
  }

  __device__ __forceinline__ void make_tables() const {
    const int plane = p.src.plane();
    for (int at = threadIdx.x; at < channels * p.table_entries; at += blockDim.x) {
      const int channel = p.by_entries.quotient(at);
      const int first =
          (at - channel * p.table_entries) * Traits::kTogether - begin_of(p.src, channel).shift;
      Entry entry{p.origin(), 0};
      if (first > -Traits::kTogether && first < plane) {
        const bool has_next = Traits::kTogether == 1 || first + 1 < plane;
        const bool in_row = p.src.row_of(first) == p.src.row_of(first + 1);
        entry.word += p.offset(p.src, max(first, 0)) + (first < 0 ? 0 : p.src.step) +
            (Traits::kTogether == 1 || in_row ? 0 : p.words);
        entry.mask = (has_next ? 0xffff0000u : 0u) | (first < 0 ? 0u : 0xffffu);
      }
      tables[at] = entry;
    }
  }

  // The first and after the last step of the sum of kUnit dst elements, of a channel that begins `shift`
  // elements late.
  __device__ __forceinline__ int2 steps_of(int first_element, int shift) const {
    const int top = p.dst.row_of(first_element) * p.dst.step;
    const int bottom = p.dst.row_of(first_element + kUnit - 1) * p.dst.step;
    // Rows of src times its step that a row of taps takes to these.
    const int least = p.grad ? top + p.padding - p.reach : top - p.padding;
    const int most = p.grad ? bottom + p.padding : bottom - p.padding + p.reach;
    const int above = p.by_src_step.quotient(max(least, 0) + p.src.step - 1);
    const int end = min(p.by_src_step.quotient(max(most, -1) + p.src.step), p.src.height);
    return make_int2(
        (shift + above * p.src.width) / Traits::kDepth,
        above < end ? (shift + end * p.src.width + Traits::kDepth - 1) / Traits::kDepth : 0);
  }

  // kUnit dst elements of a channel and all images, by one warp, into dst's tile.
  __device__ __forceinline__ void multiply(int unit) const {
    const int channel = p.by_units.quotient(unit);
    // So that pairs of results are where pairs are stored.
    const int odd_begin = channel * p.dst.plane() % 2;
    const int first_element =
        (unit - channel * static_cast<int>(p.by_units.by)) * kUnit - odd_begin;
    const Begin from = begin_of(p.src, channel);
    const int2 steps = steps_of(first_element, from.shift);
    const float bias =
        tensors.bias ? static_cast<float>(tensors.bias[first_channel + channel]) : 0.0f;
    float results[kTiles][kColumnTiles][4];
    const Word* of_column[kColumnTiles];
#pragma unroll
    for (int t = 0; t < kColumnTiles; ++t) {
      const int element = first_element + t * kBlock + lane / 4;
      of_column[t] = words + channel * p.words * p.kinds -
          p.offset(p.dst, min(max(element, 0), p.dst.plane() - 1));
    }
#pragma unroll
    for (int i = 0; i < kTiles * kColumnTiles * 4; ++i) {
      results[i / (kColumnTiles * 4)][i / 4 % kColumnTiles][i % 4] = bias;
    }
    const Entry* entries =
        tables + channel * p.table_entries + steps.x * Traits::kEntries + lane % 4;
    uint32_t row = static_cast<uint32_t>(__cvta_generic_to_shared(src_tile)) + from.bytes +
        lane % kMatrixRows * p.src.pitch + lane / kMatrixRows * kChunkBytes +
        steps.x * (2 * kChunkBytes);
#pragma unroll 1
    for (int step = steps.x; step < steps.y; ++step) {
      const Entry upper = entries[0];
      const Entry lower = entries[Traits::kEntries / 2];
      Word b[kColumnTiles][2];
#pragma unroll
      for (int t = 0; t < kColumnTiles; ++t) {
        b[t][0] = of_column[t][upper.word] & upper.mask;
        b[t][1] = of_column[t][lower.word] & lower.mask;
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        uint32_t a[4];
        load_matrices(a, row + m * kMatrixRows * p.src.pitch);
        const Matrix<scalar_t> matrix(a);
#pragma unroll
        for (int t = 0; t < kColumnTiles; ++t) {
          matrix.multiply(results[m][t], b[t][0], b[t][1]);
        }
      }
      entries += Traits::kEntries;
      row += 2 * kChunkBytes;
    }
#pragma unroll
    for (int t = 0; t < kColumnTiles; ++t) {
      const int element = first_element + t * kBlock + lane % 4 * 2;
      const bool has_left = element >= 0 && element < p.dst.plane();
      const bool has_right = element + 1 < p.dst.plane();
      scalar_t* const to = reinterpret_cast<scalar_t*>(dst_tile + lane / 4 * p.dst.pitch) +
          channel * p.dst.plane() + element;
      const auto store_all = [&](const auto& store_one) {
#pragma unroll
        for (int half = 0; half < 2 * kTiles; ++half) {
          const float* const both = results[half / 2][t] + half % 2 * 2;
          const float pair[2] = {both[0], both[1]};
          store_one(to + half * (kBlock * p.dst.pitch / kBytes), pair);
        }
      };
      if (has_left && has_right) {
        store_all(
            [](scalar_t* at, const float (&pair)[2]) { store_vector<scalar_t, 2>(at, pair); });
      } else if (has_left != has_right) {
        store_all([&](scalar_t* at, const float (&pair)[2]) {
          at[has_left ? 0 : 1] = static_cast<scalar_t>(has_left ? pair[0] : pair[1]);
        });
      }
    }
  }

  // From dst's tile to memory, kWords at a time. Whether any is not finite.
  template <int kWords>
  __device__ __forceinline__ bool store() const {
    using Piece = Packed<float, kWords>;
    constexpr int kElements = sizeof(Piece) / kBytes;
    const int image_size = p.channels * p.dst.plane();
    uint32_t zeros[kWords] = {};
    for (int piece = lane; piece < channels * p.dst.plane() / kElements; piece += kWarpSize) {
      const char* from = dst_tile + warp * p.dst.pitch + piece * sizeof(Piece);
      scalar_t* to = tensors.dst + (first_image + warp) * image_size +
          first_channel * p.dst.plane() + piece * kElements;
#pragma unroll 4
      for (int image = warp; image < images; image += warps) {
        const Piece results = *reinterpret_cast<const Piece*>(from);
        *reinterpret_cast<Piece*>(to) = results;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          zeros[i] = add_zero_times<scalar_t>(zeros[i], results.words[i]);
        }
        from += warps * p.dst.pitch;
        to += warps * image_size;
      }
    }
    bool spoilt = false;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      spoilt = spoilt || has_nan(zeros[i]);
    }
    return spoilt;
  }

  // Takes what is NaN of a block's results again.
  static __device__ __noinline__ void repair(const Block block) {
    const PlaneGemm& p = block.p;
    const Tensors<scalar_t>& t = block.tensors;
    const int run = block.channels * p.dst.plane();
#pragma unroll 1
    for (int at = threadIdx.x; at < run * block.images; at += blockDim.x) {
      const int image = block.first_image + at / run;
      const int channel = block.first_channel + at % run / p.dst.plane();
      const int place = at % p.dst.plane();
      scalar_t& result = t.dst[(image * p.channels + channel) * p.dst.plane() + place];
      if (isnan(static_cast<float>(result))) {
        const float begin = t.bias ? static_cast<float>(t.bias[channel]) : 0.0f;
        const int row = place / p.dst.width;
        const int column = place % p.dst.width;
        result = static_cast<scalar_t>(
            mended(t.src, t.weight, begin, block.call, p.grad, image, channel, row, column));
      }
    }
  }

  __device__ __forceinline__ void compute() const {
    for (int unit = warp; unit < channels * static_cast<int>(p.by_units.by); unit += warps) {
      multiply(unit);
    }
    __syncthreads();
    const bool spoilt = p.piece == 16 ? store<4>() : p.piece == 8 ? store<2>() : store<1>();
    if (__syncthreads_or(spoilt)) {
      repair(*this);
    }
  }

  // Adds the products of all images, of kUnit input elements by kUnit of grad_output of one channel, to the sums of
  // their places in the plane of taps: mine[lane % 4][place], so that no two lanes add to the same.
  __device__ __forceinline__ void correlate(
      float* mine,
      const Begin& of_input,
      const Begin& of_grad,
      int input_unit,
      int grad_unit) const {
    constexpr int kRowTiles = kUnit / kMatrixRows;
    constexpr int kPairs = kColumnTiles / 2;
    const char* const input = dst_tile + of_input.bytes + input_unit * kBytes;
    const char* const grad = src_tile + of_grad.bytes + grad_unit * kBytes;
    float products[kRowTiles][kColumnTiles][4] = {};
#pragma unroll 2
    for (int image = 0; image < Traits::kImages; image += Traits::kDepth) {
      uint32_t b[kPairs][4];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        load_by_images<false, Traits::kSplit>(
            b[i], grad + image * p.src.pitch + i * kMatrixRows * kBytes, p.src.pitch);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        uint32_t a[4];
        load_by_images<true, Traits::kSplit>(
            a, input + image * p.dst.pitch + m * kMatrixRows * kBytes, p.dst.pitch);
        const Matrix<scalar_t> matrix(a);
#pragma unroll
        for (int t = 0; t < kColumnTiles; ++t) {
          const uint32_t* const words = b[t / 2] + t % 2 * 2;
          matrix.multiply(products[m][t], matrix.other(words[0]), matrix.other(words[1]));
        }
      }
    }
    int of_row[2 * kRowTiles];
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      of_row[i] = places[p.places + input_unit - of_input.shift + i * kBlock + lane / 4];
    }
    mine += lane % 4 * p.sums_pitch;
#pragma unroll
    for (int j = 0; j < 2 * kColumnTiles; ++j) {
      const int of_column =
          places[grad_unit - of_grad.shift + j / 2 * kBlock + lane % 4 * 2 + j % 2];
      // Rows of different elements have different places.
      float sums[2 * kRowTiles];
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int place = of_row[i] + of_column;
        sums[i] = products[i / 2][j / 2][i % 2 * 2 + j % 2];
        if (static_cast<uint32_t>(place) < static_cast<uint32_t>(p.sums)) {
          sums[i] += mine[place];
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int place = of_row[i] + of_column;
        if (static_cast<uint32_t>(place) < static_cast<uint32_t>(p.sums)) {
          mine[place] = sums[i];
        }
      }
      __syncwarp();
    }
  }

  // Whether any row of taps takes an element of kUnit of the input to one of kUnit of grad_output.
  __device__ __forceinline__ bool meet(int first_input, int first_grad) const {
    const int last = kUnit - 1;
    const int highest = p.src.row_of(first_grad) * p.src.step;
    const int lowest = p.src.row_of(first_grad + last) * p.src.step;
    return first_input < p.dst.plane() && first_grad < p.src.plane() &&
        p.dst.row_of(first_input + last) + p.padding >= highest &&
        p.dst.row_of(first_input) + p.padding - lowest <= p.reach;
  }

  __device__ __forceinline__ void make_places() const {
    constexpr int kNowhere = -(1 << 30); // below all, of elements that do not exist
    for (int at = threadIdx.x; at < 2 * p.places; at += blockDim.x) {
      const Side& side = at < p.places ? p.src : p.dst;
      const int element = at % p.places - kUnit;
      const int offset = p.offset(side, max(element, 0));
      places[at - kUnit] = element < 0 || element >= side.plane() ? kNowhere
          : at < p.places                                         ? offset
                          : p.origin() - p.sums_first - offset;
    }
  }

  // The weight's gradient by a block's images: a warp has every p.parts-th unit of a channel.
  __device__ __forceinline__ void add_up(double* biases) const {
    const int sums_of_warp = kCopies * p.sums_pitch;
    float bias = 0.0f;
    const int part = warp % p.parts;
    if (warp / p.parts < channels) {
      const Begin of_grad = begin_of(p.src, warp / p.parts);
      const Begin of_input = begin_of(p.dst, warp / p.parts);
      const int input_units = p.by_units.by;
      for (int unit = part; unit < p.grad_units * input_units; unit += p.parts) {
        const int j = p.by_units.quotient(unit);
        const int i = unit - j * input_units;
        if (meet(i * kUnit - of_input.shift, j * kUnit - of_grad.shift)) {
          correlate(sums + warp * sums_of_warp, of_input, of_grad, i * kUnit, j * kUnit);
        }
      }
      for (int i = lane; i < p.src.plane(); i += kWarpSize) {
        const char* const column = src_tile + of_grad.bytes + (of_grad.shift + i) * kBytes;
#pragma unroll 8
        for (int image = part; image < images; image += p.parts) {
          bias +=
              static_cast<float>(*reinterpret_cast<const scalar_t*>(column + image * p.src.pitch));
        }
      }
    }
    const double bias_of_warp = sum_of_warp(static_cast<double>(bias));
    if (lane == 0) {
      biases[warp] = bias_of_warp;
    }
    __syncthreads();
    const int taps = static_cast<int>(p.by_taps.by);
    float* const to =
        tensors.partial + int64_t{blockIdx.y} * (taps + kBiasRows) * p.channels + first_channel;
    for (int at = threadIdx.x; at < channels * taps; at += blockDim.x) {
      const int channel = p.by_taps.quotient(at);
      const int tap = at - channel * taps;
      const int place = p.place(call, tap);
      float sum = 0.0f;
#pragma unroll 8
      for (int i = 0; i < (place >= 0 ? kCopies * p.parts : 0); ++i) {
        sum += sums[(channel * p.parts * kCopies + i) * p.sums_pitch + place - p.sums_first];
      }
      to[tap * p.channels + channel] = sum;
    }
    if (threadIdx.x < channels) {
      double sum = 0.0;
      for (int i = 0; i < p.parts; ++i) {
        sum += biases[threadIdx.x * p.parts + i];
      }
      write_bias(to + taps * p.channels + threadIdx.x, p.channels, sum);
    }
  }
};

// grid: groups of channels, groups of images.
template <typename Traits>
C10_LAUNCH_BOUNDS_1(kMostWarps* kWarpSize)
__global__ void plane_gemm_kernel(
    const __grid_constant__ Tensors<typename Traits::scalar_t> tensors,
    const __grid_constant__ Params call,
    const __grid_constant__ PlaneGemm p) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 shared_blocks[];
  __shared__ double biases[kMostWarps];
  const Block<Traits> block{tensors, call, p, reinterpret_cast<char*>(shared_blocks)};
  block.load(block.src_tile, tensors.src, p.src);
  if (tensors.partial) {
    block.load(block.dst_tile, tensors.input, p.dst);
    block.make_places();
  }
  clear_shared(block.begin, p.words_bytes + p.tables_bytes + p.sums_bytes);
  __syncthreads();
  if (tensors.dst) {
    block.make_tables();
    block.make_words();
  }
  wait_for_copies();
  __syncthreads();
  if (tensors.partial) {
    block.add_up(biases);
  }
  if (tensors.dst) {
    block.compute();
  }
#endif
}

// The geometry of a pass and its blocks.
template <typename Traits>
PlaneGemm plane_gemm_of(const Params& p, bool grad) {
  constexpr int64_t kBytes = sizeof(typename Traits::scalar_t);
  PlaneGemm g{};
  g.batch = p.batch;
  g.channels = p.channels;
  g.grad = grad;
  for (Side* side : {&g.src, &g.dst}) {
    const bool is_output = grad == (side == &g.src);
    side->height = is_output ? p.output_height : p.input_height;
    side->width = is_output ? p.output_width : p.input_width;
    side->step = is_output ? p.stride_height : 1;
    side->by_width = Divider(side->width);
  }
  g.padding = p.padding_height;
  g.reach = p.dilation_height * (p.kernel_height - 1);
  g.by_src_step = Divider(g.src.step);
  g.by_taps = Divider(p.kernel_size());
  g.by_kernel_width = Divider(p.kernel_width);
  g.taps_pitch = g.src.step * (g.src.width - 1) + g.dst.step * (g.dst.width - 1) + 1;
  g.taps_rows = g.src.step * (g.src.height - 1) + g.dst.step * (g.dst.height - 1) + 1;
  g.words = g.taps_rows * g.taps_pitch + g.src.step;
  g.kinds = !Traits::kSplit && g.src.width % 2 == 1 ? 2 : 1;
  // All that may be read of a channel, which begins up to this late after a multiple of 16 bytes.
  const auto read = [](const Side& side) {
    const int64_t plane = side.plane();
    return Traits::kChunk - std::gcd<int64_t>(plane, Traits::kChunk) + plane;
  };
  const int64_t units = divide_up(read(g.dst), kUnit);
  g.by_units = Divider(units);
  g.grad_units = divide_up(read(g.src), kUnit);
  g.table_entries = divide_up(read(g.src), Traits::kDepth) * Traits::kEntries;
  g.by_entries = Divider(g.table_entries);
  // Channels until their units are some for each warp, or their results are whole vectors.
  const int64_t channel_bytes = Traits::kImages * (g.src.plane() + g.dst.plane()) * kBytes;
  g.block_channels = g.dst.plane() * kBytes % 4 == 0 ? 1 : 2; // for pieces of whole words
  while (g.block_channels * 2 <= g.channels &&
         g.block_channels * 2 * channel_bytes <= kUsualTiles &&
         g.block_channels * 2 * units <=
             (g.block_channels * g.dst.plane() * kBytes % kChunkBytes ? 2 : 1) * kUsualUnits) {
    g.block_channels *= 2;
  }
  // A run of results begins and ends at multiples of this.
  g.piece = std::gcd(
      std::gcd<int64_t>(g.block_channels, g.channels) * g.dst.plane() * kBytes,
      int64_t{kChunkBytes});
  for (Side* side : {&g.src, &g.dst}) {
    const int64_t elements = read(*side) - side->plane() + (g.block_channels - 1) * side->plane() +
        divide_up(read(*side), kUnit) * kUnit;
    side->pitch = odd(divide_up(elements, Traits::kChunk)) * kChunkBytes;
  }
  // Also where only the weight's gradient is wanted, whose bits do not depend on what else is.
  const int64_t words = g.block_channels * g.words * g.kinds;
  g.words_bytes = divide_up(words * sizeof(typename Traits::Word), kChunkBytes) * kChunkBytes;
  g.tables_bytes = g.block_channels * g.table_entries * sizeof(Entry);
  return g;
}

// The sums of the weight's gradient, by some warps of each channel.
void add_sums(PlaneGemm& g, int64_t shared) {
  constexpr int kBanks = 32;
  // The rows of the plane of taps that have the window's.
  const int32_t lowest = g.padding + g.dst.height - 1;
  const int32_t top = std::max(0, lowest - g.reach);
  g.sums_first = top * g.taps_pitch;
  g.sums = std::max(0, std::min(g.taps_rows - 1, lowest) - top + 1) * g.taps_pitch;
  // Of the lanes that add at once, those of the next copy are in the next eight banks.
  const int32_t wanted = kBlock - 2 * g.src.step - g.sums;
  g.sums_pitch = g.sums + (wanted % kBanks + kBanks) % kBanks;
  g.places = std::max(g.src.plane(), g.dst.plane()) + 2 * kUnit;
  const int64_t of_part = g.block_channels * kCopies * g.sums_pitch * sizeof(float);
  g.parts = 1;
  while (g.block_channels * g.parts * 2 <= kUsualUnits &&
         2 * (shared + g.parts * 2 * of_part) <= device().multiprocessor_shared) {
    g.parts *= 2;
  }
  g.sums_bytes = g.parts * of_part;
}

template <typename Traits>
bool launch(const ForwardPass& data, const BackwardPass* weights, const Params& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int64_t kReserved = 2048; // of a block, and what the kernel declares
  PlaneGemm g = plane_gemm_of<Traits>(p, data.grad_input);
  int64_t shared = Traits::kImages * (int64_t{g.src.pitch} + g.dst.pitch) + g.words_bytes +
      g.tables_bytes + kReserved;
  const int64_t units = g.block_channels * int64_t{g.by_units.by};
  int64_t warps = divide_up(units, divide_up(units, kMostWarps));
  if (weights) {
    add_sums(g, shared);
    shared += g.sums_bytes + 2 * g.places * static_cast<int64_t>(sizeof(int32_t));
    warps = g.block_channels * g.parts;
  }
  constexpr auto kernel = plane_gemm_kernel<Traits>;
  if (!has_shared(shared) || !is_compiled_for(reinterpret_cast<const void*>(kernel), 8)) {
    return false;
  }
  const dim3 grid(divide_up(g.channels, g.block_channels), divide_up(g.batch, Traits::kImages));
  const Operand partial = weights ? empty_partial(grid.y, p) : Operand();
  const Tensors<scalar_t> tensors{
      mutable_pointer_or_null<scalar_t>(data.dst),
      data.src.const_data_ptr<scalar_t>(),
      data.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(data.bias),
      weights ? weights->input.const_data_ptr<scalar_t>() : nullptr,
      partial.mutable_data_ptr<float>()};
  launch_kernel(kernel, grid, warps * kWarpSize, shared - kReserved, tensors, p, g);
  if (weights) {
    add_partials<scalar_t>(*weights, partial, p);
  }
  return true;
}

// Where the planes are small enough for T to be worth its zeros, the images enough to use it and their runs aligned.
template <typename scalar_t>
bool run(const ForwardPass& data, const BackwardPass* weights, const Params& p) {
  constexpr int64_t kLeastImages = 8;
  constexpr int64_t kMostTaps = 4096;
  constexpr int64_t kSmallPlane = 16 * 16;
  constexpr int64_t kLargerPlane = 32 * 32; // of windows with many taps
  constexpr int64_t kManyTaps = 36;
  const int64_t input = p.input_height * p.input_width;
  const int64_t output = p.output_height * p.output_width;
  const bool is_small = std::max(input, output) <= kSmallPlane;
  const bool is_larger =
      !weights && p.kernel_size() >= kManyTaps && std::max(input, output) <= kLargerPlane;
  const auto suits = [&](const Operand& tensor) {
    return !tensor.defined() ||
        (tensor.numel() > 0 &&
         tensor.numel() / p.batch * tensor.element_size() % kChunkBytes == 0 &&
         is_aligned(tensor.const_data_ptr(), kChunkBytes));
  };
  if (!fits_32_bits(p) || p.channels_last || p.multiplier != 1 || p.batch < kLeastImages ||
      p.kernel_size() > kMostTaps || p.stride_height != p.stride_width ||
      !(is_small || is_larger) || !suits(data.src) || !suits(data.dst) ||
      (weights && !suits(weights->input))) {
    return false;
  }
  if constexpr (
      sizeof(scalar_t) == 4) { // as many images as registers and, of larger planes, tiles hold
    return is_small ? launch<GemmTraits<scalar_t, 2>>(data, weights, p)
                    : launch<GemmTraits<scalar_t, 1>>(data, weights, p);
  } else {
    return launch<GemmTraits<scalar_t, 4>>(data, weights, p);
  }
}

} // namespace

template <typename scalar_t>
bool plane_gemm_forward(const ForwardPass& pass, const Params& p) {
  return run<scalar_t>(pass, nullptr, p);
}

template <typename scalar_t>
bool plane_gemm_backward(const BackwardPass& pass, const Params& p) {
  return run<scalar_t>({pass.grad_input, pass.grad_output, pass.weight, Operand(), true}, &pass, p);
}

DEPTHWISE_INSTANTIATE(plane_gemm_forward, const ForwardPass&);
DEPTHWISE_INSTANTIATE(plane_gemm_backward, const BackwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
