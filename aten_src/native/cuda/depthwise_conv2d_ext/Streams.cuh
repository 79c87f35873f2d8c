// depthwise_conv2d_ext with windows of 3 x 3 in plane order at stride 1 and the usual padding, on rows that fall
// into no whole vectors (odd widths), by warps that stream rows through shared memory each by itself.
//
// A warp keeps one channel, or a few neighbouring ones where rows are short, and takes a share of all rows
// of its planes, in order. Chunks of rows, each a single run of memory, enter a ring of its own by bulk
// copies, some ahead, and no warp waits for another. A lane owns a tile of neighbouring columns and walks down
// them with the last rows of src in registers, so nothing is read twice but at the ends of a share. Tiles have
// an odd number of words, so that lanes side by side read from different banks. The last of a row begins where
// it has columns enough, so that only the first and the last values of a lane can lie outside the image.
//
// In 16 bit an odd width makes rows begin at even and at odd elements in turns. A lane's columns are chosen so
// that its tile begins with a whole word in the first row of each pair; in the second all is half a word off,
// which is known when the kernel is compiled. With a dilation of 2 the lanes of the two phases of rows
// have columns of their own, and their rows all begin alike.
//
// Results take the place of the rows that they belong to, of the input where the weight's gradient is
// wanted, and leave by a copy a chunk, but for the few elements that share their 16 bytes with others.
//
// The weight's gradient: src is grad_output, and rows of the input come with it: row h of the input meets the
// rows of grad_output around it, which serve grad_input as well. A lane adds up its share, in float by chunks,
// the warp adds its lanes in order and writes a partial.
//
// What lies outside src is zeros that are multiplied, which is the same only for finite values: lanes with other
// taps take their results tap by tap, and a sum that ends as NaN is taken again so.
//
// Microseconds of an H200 by columns and by this, forward, the weight's gradient and all gradients (floors 65, 65,
// 98; 46, 46, 70): 33@128x513 float 84, 85, 123 and 77, 70, 112, half 53, 65, 99 and 44, 45, 74; 728@65 dilated
// by 2 float 74, 78, 99 and 59, 54, 89, half 40, 44 and 36, 42.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Bulk.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kStreamWarps = 4; // of a block, which share nothing
constexpr int kStreamThreads = kStreamWarps * kWarpSize;
constexpr int kMostStreamStages = 8;
constexpr int64_t kMostStreamGroup = 8; // channels of a warp
// Of a warp, before its buffers: barriers, zeros, which rows outside the image are read from, and sums of its
// lanes.
constexpr int kStreamZeros = 128;
constexpr int kStreamSums = 256;
static_assert(kMostStreamStages * sizeof(uint64_t) <= kStreamZeros);

struct StreamPlan : UnitStridePass { // of multiplier 1, of one size in and out
  int32_t group; // channels of a warp
  int32_t groups;
  int32_t lanes; // across a row
  int32_t group_rows; // of all images
  int32_t share; // rows of a warp, of as many groups as that takes
  int32_t shares;
  int32_t slots; // partials of a group
  int32_t chunk_rows;
  int32_t run_bytes; // room for a chunk of a plane
  int32_t stages;
};

// kDilation: of the window, 1 or 2. kData: dst is wanted; kWeight: the weight's gradient is.
template <typename scalar_t_, int kDilation_, int kTile_, bool kData_, bool kWeight_>
struct StreamTraits {
  using scalar_t = scalar_t_;
  static constexpr int kSize = sizeof(scalar_t);
  static constexpr int kDilation = kDilation_;
  static constexpr bool kData = kData_;
  static constexpr bool kWeight = kWeight_;
  static constexpr int kTensors = kWeight ? 2 : 1;
  static constexpr int kTile = kTile_;
  static constexpr int kValues = kTile + 2 * kDilation;
  static constexpr int kInWord = sizeof(uint32_t) / kSize;
  static constexpr bool kPairs = kInWord == 2;
  // Whether rows of a lane begin with a whole word and with half of one in turns.
  static constexpr bool kAlternates = kPairs && kDilation == 1;
  // Values at either end that may lie outside the image.
  static constexpr int kEdge = kDilation + (kPairs ? 1 : 0);
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window<3, 3, 1>>;
  // Rounding to 16 bits would hide what bounded chains and an exact bias give.
  static constexpr bool kExact = kSize == sizeof(float);
  static constexpr int kBlocks = kWeight ? 2
      : kSize == 2 && kDilation == 1     ? 4
                                         : 3; // a multiprocessor, for which registers are bounded
  static_assert(kTile / kInWord % 2 == 1 && kTile % kInWord == 0);
  static constexpr int kSums = 9 + 2; // of the taps, and the bias, which is one less the other
  static constexpr int kHead =
      kStreamSums + (kWeight ? kSums * kWarpSize * static_cast<int>(sizeof(float)) : 0);
  static_assert((kValues + 4) * kSize <= kStreamSums - kStreamZeros && kHead % kLineBytes == 0);
};

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t read_shared_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

__device__ __forceinline__ void write_shared_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word));
}

__device__ __forceinline__ void write_shared_half(uint32_t address, uint32_t bits) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<uint16_t>(bits)));
}

// kCount elements from `address` on, which begins a word where kOffset is 0 and is its second half where 1;
// kept as words.
template <typename scalar_t, int kCount, int kOffset>
struct StreamRow {
  static constexpr int kInWord = sizeof(uint32_t) / sizeof(scalar_t);
  static constexpr int kWords = (kCount + kOffset + kInWord - 1) / kInWord;
  Packed<scalar_t, kInWord> words[kWords];

  __device__ __forceinline__ explicit StreamRow(uint32_t address) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i].words[0] = read_shared_word(
          address - kOffset * static_cast<int>(sizeof(scalar_t)) +
          i * static_cast<int>(sizeof(uint32_t)));
    }
  }

  __device__ __forceinline__ float operator[](int i) const {
    return unpack(words[(i + kOffset) / kInWord], (i + kOffset) % kInWord);
  }
};

// Rows of src from `at` on that come as one run, for rows [first, end) of dst of an image.
struct StreamChunk {
  const StreamPlan& s;
  const int dilation;
  int32_t left; // rows of dst of the share after this image's
  int32_t group;
  int32_t image;
  int32_t first;
  int32_t end;
  int32_t at;

  __device__ __forceinline__ StreamChunk(const StreamPlan& plan, int dilated, int share)
      : s(plan), dilation(dilated) {
    const int from = share * s.share;
    left = min(s.share, s.groups * s.group_rows - from);
    group = from / s.group_rows;
    const int row = from - group * s.group_rows;
    image = row / s.dst_height;
    begin_image(row - image * s.dst_height);
  }

  __device__ __forceinline__ StreamChunk& operator=(const StreamChunk& other) {
    left = other.left;
    group = other.group;
    image = other.image;
    first = other.first;
    end = other.end;
    at = other.at;
    return *this;
  }

  __device__ __forceinline__ StreamChunk(const StreamChunk& other) = default;

  __device__ __forceinline__ void begin_image(int row) {
    first = row;
    end = min(row + left, s.dst_height);
    left -= end - first;
    at = first - dilation;
  }

  __device__ __forceinline__ bool exists() const {
    return end > first;
  }

  __device__ __forceinline__ bool begins() const {
    return at + dilation == first;
  }

  __device__ __forceinline__ void next() {
    at += s.chunk_rows;
    if (at >= end + dilation) {
      image += 1;
      if (image == s.batch) {
        image = 0;
        group += 1;
      }
      begin_image(0);
    }
  }

  __device__ __forceinline__ int channels() const {
    return min(s.group, s.channels - group * s.group);
  }

  // Of src that are there.
  __device__ __forceinline__ int src_first() const {
    return max(at, 0);
  }

  __device__ __forceinline__ int src_end() const {
    return min(min(at + s.chunk_rows, end + dilation), s.src_height);
  }

  // Of dst.
  __device__ __forceinline__ int dst_first() const {
    return max(at, first);
  }

  __device__ __forceinline__ int dst_end() const {
    return min(at + s.chunk_rows, end);
  }

  // The first element of a row of a channel of the group; of rows before the first it may be negative.
  __device__ __forceinline__ int element(int of_group, int row) const {
    return ((image * s.channels + group * s.group + of_group) * s.src_height + row) * s.src_width;
  }
};

// A warp's ring.
template <typename Traits>
struct StreamRing {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kSize = Traits::kSize;
  static constexpr int kGranule = kBulkBytes / kSize;

  const StreamPlan& s;
  const int lane;
  const uint32_t shared; // where the warp's begins
  const int stage_bytes;

  __device__ __forceinline__ StreamRing(const StreamPlan& plan, void* memory)
      : s(plan),
        lane(threadIdx.x),
        shared(shared_address(memory)),
        stage_bytes(plan.group * Traits::kTensors * plan.run_bytes) {
    if (lane < s.stages) {
      init_barrier(full(lane), s.group * Traits::kTensors);
      fence_barriers();
    }
    if (lane < (kStreamSums - kStreamZeros) / static_cast<int>(sizeof(uint32_t))) {
      write_shared_word(zeros() + lane * sizeof(uint32_t), 0);
    }
    __syncwarp();
  }

  __device__ __forceinline__ uint32_t zeros() const {
    return shared + kStreamZeros;
  }

  __device__ __forceinline__ uint32_t full(int stage) const {
    return shared + stage * static_cast<int>(sizeof(uint64_t));
  }

  __device__ __forceinline__ int after(int stage) const {
    return stage + 1 == s.stages ? 0 : stage + 1;
  }

  // Where the rows of a chunk begin: as far from a line as in their tensor. tensor 1: the input.
  __device__ __forceinline__ uint32_t
  rows(int stage, const StreamChunk& chunk, int of_group, int tensor) const {
    const uint32_t element = chunk.element(of_group, chunk.at);
    return shared + Traits::kHead + stage * stage_bytes +
        (of_group * Traits::kTensors + tensor) * s.run_bytes + element * kSize % kLineBytes;
  }

  static __device__ __forceinline__ scalar_t* pointer(uint32_t address) {
    return static_cast<scalar_t*>(__cvta_shared_to_generic(address));
  }

  // By the first lanes, one a run.
  __device__ __forceinline__ void ask(
      int stage,
      const StreamChunk& chunk,
      const scalar_t* src,
      const scalar_t* input) const {
    if (lane >= s.group * Traits::kTensors) {
      return;
    }
    const int of_group = lane / Traits::kTensors;
    if (of_group >= chunk.channels()) {
      arrive(full(stage));
      return;
    }
    const int tensor = lane % Traits::kTensors;
    const scalar_t* const from = tensor ? input : src;
    const int all = s.batch * s.channels * s.src_height * s.src_width;
    const int at = chunk.element(of_group, chunk.at);
    const int first = at + (chunk.src_first() - chunk.at) * s.src_width;
    const int last = at + (chunk.src_end() - chunk.at) * s.src_width;
    const int begin = first & ~(kGranule - 1);
    const int most = (last + kGranule - 1) & ~(kGranule - 1);
    const int end = min(most, all & ~(kGranule - 1));
    const int bytes = last > first ? max(end - begin, 0) * kSize : 0;
    scalar_t* const to = pointer(rows(stage, chunk, of_group, tensor));
    if (most > end) {
      // The tensor does not end with 16 bytes.
#pragma unroll 1
      for (int i = max(end, begin); i < last; ++i) {
        to[i - at] = from[i];
      }
    }
    arrive_and_expect(full(stage), bytes);
    if (bytes > 0) {
      load_run(to + (begin - at), full(stage), from + begin, bytes);
    }
  }

  // The results of a chunk, by all lanes.
  __device__ __forceinline__ void send(int stage, const StreamChunk& chunk, scalar_t* dst) const {
    const int count = (chunk.dst_end() - chunk.dst_first()) * s.dst_width;
    if (count <= 0) {
      return;
    }
    const int skipped = (chunk.dst_first() - chunk.at) * s.dst_width;
    const int channels = chunk.channels();
    if (lane < channels) {
      const int first = chunk.element(lane, chunk.dst_first());
      const int begin = (first + kGranule - 1) & ~(kGranule - 1);
      const int end = (first + count) & ~(kGranule - 1);
      if (begin < end) {
        const scalar_t* const from =
            pointer(rows(stage, chunk, lane, Traits::kTensors - 1)) + skipped;
        store_run(dst + begin, from + (begin - first), (end - begin) * kSize);
      }
    }
    // What shares its 16 bytes with other runs.
#pragma unroll 1
    for (int i = lane; i < channels * 2 * kGranule; i += kWarpSize) {
      const int of_group = i / (2 * kGranule);
      const int first = chunk.element(of_group, chunk.dst_first());
      const int end = first + count;
      const int begin = min((first + kGranule - 1) & ~(kGranule - 1), end);
      const bool head = i % (2 * kGranule) < kGranule;
      const int at = head ? first + i % kGranule : max(end & ~(kGranule - 1), begin) + i % kGranule;
      if (at < (head ? begin : end)) {
        dst[at] =
            (pointer(rows(stage, chunk, of_group, Traits::kTensors - 1)) + skipped)[at - first];
      }
    }
  }
};
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
