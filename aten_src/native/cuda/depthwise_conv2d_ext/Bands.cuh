// What Bands.cu and PlaneGemm.cu share, matrix instructions and copies, and the tiles of whole image rows
// in shared memory of Bands.cu, and how they get there and back.
//
// A tensor's tile is [image][plane][row], rows of `pitch` bytes, an odd number of 16-byte blocks, so
// that the eight rows that ldmatrix reads at once fall into different banks; for the same reason an
// image takes an odd number of blocks. Rows and columns outside the image are in the tile as zeros,
// written once, so that reading needs no look at borders.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kBlock = 8; // columns of a block: one row of an 8 x 8 matrix
constexpr int kBlockBytes = 16;
constexpr int kMatrixRows = 16; // of one matrix instruction

// Divides by a number that the host knows, while value * by < 2^32.
struct Divider {
  uint32_t by = 1;
  uint32_t magic = 0;
  Divider() = default;
  explicit Divider(int64_t divisor)
      : by(divisor), magic(static_cast<uint32_t>((uint64_t{1} << 32) / divisor + 1)) {}
  __device__ __forceinline__ int quotient(int value) const {
    return by == 1 ? value : static_cast<int>(__umulhi(static_cast<uint32_t>(value), magic));
  }
};

// The rows of one tensor that a block of threads has in shared memory.
struct Span {
  bool whole_blocks; // rows travel by blocks, else 16-byte vectors of a run of elements by steps
  int32_t channels; // of the tensor
  int32_t height;
  int32_t width;
  int32_t rows; // of one plane of the tile, those outside the image included
  int32_t left; // blocks of zeros before column 0
  int32_t pitch; // bytes from row to row
  int32_t image_pitch; // bytes from image to image
  bool pairs; // elements travel in twos
  Divider by_image; // rows of one image of the tile, or steps
  Divider by_row; // blocks of one row, or elements

  __host__ __device__ int32_t plane_pitch() const {
    return rows * pitch;
  }
};

inline int32_t blocks_of(int64_t columns) {
  return static_cast<int32_t>(divide_up(columns, kBlock));
}

inline int32_t odd(int64_t count) {
  return static_cast<int32_t>(count | 1);
}

// A tile of `planes` planes of `rows` rows, of which at most `image_rows` are in the image, with room
// for blocks [-left, end) of columns.
inline Span make_span(
    int64_t channels,
    int64_t height,
    int64_t width,
    int64_t planes,
    int64_t rows,
    int64_t image_rows,
    int64_t left,
    int64_t end,
    const void* data) {
  Span s{};
  s.channels = channels;
  s.height = height;
  s.width = width;
  s.rows = rows;
  s.left = left;
  s.pitch = odd(left + std::max<int64_t>(end, blocks_of(width))) * kBlockBytes;
  s.image_pitch = odd(planes * rows * s.pitch / kBlockBytes) * kBlockBytes;
  s.pairs = width % 2 == 0 && is_aligned(data, 4);
  s.whole_blocks = width % kBlock == 0 && is_aligned(data, kBlockBytes);
  // One step more where the first element is not aligned.
  s.by_image =
      Divider(s.whole_blocks ? image_rows : divide_up(image_rows * width + kBlock - 1, kBlock));
  s.by_row = Divider(s.whole_blocks ? width / kBlock : width);
  return s;
}

// Which part of a tensor a tile is at.
struct Place {
  int image;
  int images; // that exist, from it on
  int plane;
  int row; // the first that the tile has of the image
  int rows; // of the image
  int shared_row; // where the first is in the tile
};

__device__ __forceinline__ void copy_block(char* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// Where the first element of a tile's image `image` is in a tensor in plane order.
template <typename scalar_t>
__device__ __forceinline__ scalar_t* run_of(
    scalar_t* tensor,
    const Span& s,
    const Place& at,
    int image) {
  return tensor + (((at.image + image) * s.channels + at.plane) * s.height + at.row) * s.width;
}

// Calls move(address in shared memory, tensor's address) for every block of a tile.
template <typename scalar_t, typename Move>
__device__ __forceinline__ void walk_blocks(
    char* tile,
    scalar_t* tensor,
    const Span& s,
    const Place& at,
    const Move& move) {
  const int width = s.by_row.by; // in blocks
  const int first = s.by_row.quotient(threadIdx.x);
  const int block = threadIdx.x - first * width;
  const int step = s.by_row.quotient(blockDim.x);
  if (first >= step) {
    return;
  }
  char* const shared = tile + at.shared_row * s.pitch + (s.left + block) * kBlockBytes;
  scalar_t* const run = run_of(tensor, s, at, 0) + block * kBlock;
  if (at.images == 1) {
    char* to = shared + first * s.pitch;
    scalar_t* from = run + first * s.width;
#pragma unroll 4
    for (int row = first; row < at.rows; row += step) {
      move(to, from);
      to += step * s.pitch;
      from += step * s.width;
    }
    return;
  }
  for (int row = first; row < at.images * static_cast<int>(s.by_image.by); row += step) {
    const int image = s.by_image.quotient(row);
    const int in_image = row - image * static_cast<int>(s.by_image.by);
    if (in_image < at.rows) {
      move(
          shared + image * s.image_pitch + in_image * s.pitch,
          run + (image * s.channels * s.height + in_image) * s.width);
    }
  }
}

// Calls move(address in shared memory, i) for the elements first + i of a run that exist, kStep at
// a time.
template <int kStep, typename Move>
__device__ __forceinline__ void walk_elements(
    const Span& s,
    const Place& at,
    char* image,
    int first,
    int length,
    const Move& move) {
  const int begin = max(first, 0);
  const int row = s.by_row.quotient(begin);
  int column = begin - row * s.width;
  char* where = image + (at.shared_row + row) * s.pitch + s.left * kBlockBytes + column * 2;
#pragma unroll
  for (int i = 0; i < kBlock; i += kStep) {
    if (first + i >= 0 && first + i < length) {
      move(where, i);
      column += kStep;
      where += 2 * kStep;
      if (column == s.width) {
        column = 0;
        where += s.pitch - 2 * s.width;
      }
    }
  }
}

__device__ __forceinline__ uint32_t word_of(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// Not inlined, nor is the way back: their registers would be taken from the products'.
template <typename scalar_t>
__device__ __noinline__ void load_elements_tile(
    char* to,
    const scalar_t* tensor,
    const Span& s,
    const Place& at) {
  constexpr int kAtOnce = 4;
  const int length = at.rows * s.width;
  const int steps = at.images * static_cast<int>(s.by_image.by);
  for (int first = threadIdx.x; first < steps; first += kAtOnce * blockDim.x) {
    uint4 got[kAtOnce];
    int begin[kAtOnce];
    int image[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int step = first + j * blockDim.x;
      image[j] = s.by_image.quotient(step);
      begin[j] = length;
      if (step < steps) {
        const scalar_t* const run = run_of(tensor, s, at, image[j]);
        const int head = static_cast<int>(reinterpret_cast<uintptr_t>(run) % kBlockBytes) / 2;
        begin[j] = (step - image[j] * static_cast<int>(s.by_image.by)) * kBlock - head;
        if (begin[j] >= 0 && begin[j] + kBlock <= length) {
          got[j] = __ldg(reinterpret_cast<const uint4*>(run + begin[j]));
        } else {
          uint32_t words[kBlock / 2] = {};
#pragma unroll
          for (int i = 0; i < kBlock; ++i) {
            if (begin[j] + i >= 0 && begin[j] + i < length) {
              const uint32_t bits =
                  __ldg(reinterpret_cast<const unsigned short*>(run) + begin[j] + i);
              words[i / 2] |= bits << (i % 2 * 16);
            }
          }
          got[j] = make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      char* const target = to + image[j] * s.image_pitch;
      if (begin[j] >= length) {
        continue;
      }
      if (s.pairs) {
        walk_elements<2>(s, at, target, begin[j], length, [&](char* where, int i) {
          *reinterpret_cast<uint32_t*>(where) = word_of(got[j], i / 2);
        });
      } else {
        walk_elements<1>(s, at, target, begin[j], length, [&](char* where, int i) {
          *reinterpret_cast<unsigned short*>(where) =
              static_cast<unsigned short>(word_of(got[j], i / 2) >> (i % 2 * 16));
        });
      }
    }
  }
}

template <typename scalar_t>
__device__ __noinline__ void store_elements_tile(
    scalar_t* tensor,
    char* from,
    const Span& s,
    const Place& at) {
  const int length = at.rows * s.width;
  const int steps = at.images * static_cast<int>(s.by_image.by);
  for (int step = threadIdx.x; step < steps; step += blockDim.x) {
    const int image = s.by_image.quotient(step);
    scalar_t* const run = run_of(tensor, s, at, image);
    const int head = static_cast<int>(reinterpret_cast<uintptr_t>(run) % kBlockBytes) / 2;
    const int begin = (step - image * static_cast<int>(s.by_image.by)) * kBlock - head;
    if (begin >= length) {
      continue;
    }
    char* const source = from + image * s.image_pitch;
    uint32_t words[kBlock / 2] = {};
    if (s.pairs) {
      walk_elements<2>(s, at, source, begin, length, [&](char* where, int i) {
        words[i / 2] = *reinterpret_cast<const uint32_t*>(where);
      });
    } else {
      walk_elements<1>(s, at, source, begin, length, [&](char* where, int i) {
        const uint32_t bits = *reinterpret_cast<const unsigned short*>(where);
        words[i / 2] |= bits << (i % 2 * 16);
      });
    }
    if (begin >= 0 && begin + kBlock <= length) {
      *reinterpret_cast<uint4*>(run + begin) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        if (begin + i >= 0 && begin + i < length) {
          reinterpret_cast<unsigned short*>(run)[begin + i] =
              static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16));
        }
      }
    }
  }
}

// Asks for a tile; it is there after wait_for_copies() and a barrier. Only places inside the image are
// written: clear_shared() must have been there before.
template <typename scalar_t>
__device__ __forceinline__ void load_tile(
    char* to,
    const scalar_t* tensor,
    const Span& s,
    const Place& at) {
  if (s.whole_blocks) {
    walk_blocks(
        to, tensor, s, at, [](char* shared, const scalar_t* from) { copy_block(shared, from); });
  } else {
    load_elements_tile(to, tensor, s, at);
  }
}

template <typename scalar_t>
__device__ __forceinline__ void store_tile(
    scalar_t* tensor,
    char* from,
    const Span& s,
    const Place& at) {
  if (s.whole_blocks) {
    walk_blocks(from, tensor, s, at, [](char* shared, scalar_t* to) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(shared);
    });
  } else {
    store_elements_tile(tensor, from, s, at);
  }
}

// Zeros, for the rows and columns that no load writes.
__device__ __forceinline__ void clear_shared(char* from, int bytes) {
  for (int at = threadIdx.x * kBlockBytes; at < bytes; at += blockDim.x * kBlockBytes) {
    *reinterpret_cast<uint4*>(from + at) = make_uint4(0, 0, 0, 0);
  }
}

// Four 8 x 8 matrices; lanes 8 i ... 8 i + 7 give the addresses of the rows of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// sums[16][8] += a[16][16] · b[16][8], in float. In a 16 x 8 half of `a`, a lane has rows lane / 4 and
// + 8 of columns 2 (lane % 4) and + 1; of `b` rows 2 (lane % 4) and + 1 of column lane / 4; of the sums
// the same places as of `a`.
template <typename scalar_t>
__device__ __forceinline__ void multiply_16(
    float (&sums)[4],
    uint32_t a0,
    uint32_t a1,
    uint32_t a2,
    uint32_t a3,
    uint32_t b0,
    uint32_t b1) {
  if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

template <typename scalar_t>
__device__ __forceinline__ void multiply_8(
    float (&sums)[4],
    uint32_t a0,
    uint32_t a1,
    uint32_t b0) {
  if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(b0));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(b0));
  }
}

// Both halves, or the one of float32, of `sum` + 0 * `pair`: NaN where the pair was not finite.
template <typename scalar_t>
__device__ __forceinline__ uint32_t add_zero_times(uint32_t sum, uint32_t pair) {
  if constexpr (sizeof(scalar_t) == sizeof(float)) {
    sum = __float_as_uint(fmaf(__uint_as_float(pair), 0.0f, __uint_as_float(sum)));
  } else if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
  }
  return sum;
}

__device__ __forceinline__ bool has_nan(uint32_t pair) {
  // Sums of zeros have no other bits than the sign's.
  return (pair & 0x7fff7fffu) != 0;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
