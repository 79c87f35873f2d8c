// What the strip kernels of depthwise_conv2d_ext share: how strips fall to lanes, the loads, and the
// columns of neighbouring lanes.
//
// In plane order a row that falls into whole vectors belongs to as many lanes of a warp, side by side:
// each owns a vector of neighbouring columns and all walk down the rows together. A src row is so
// loaded once, by one vector a lane, and stays packed while the next ones are under way. What a lane's
// window sees of the vectors beside its own comes by shuffles, a packed word at a time, or is zero
// beyond the border of the image.
//
// A strip is a plane or some rows of it. The vectors of all strips are counted through, and a warp
// takes as many as whole strips of them fill its lanes (28 of 32 where rows have 7, 14 or 28 vectors).
// Where that would leave more lanes idle, or rows are longer, a warp takes any 30 that follow each
// other, and its first and its last lane only load what these see beside them.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Common.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

// The plan. 32 bits hold every index where march_fits_32_bits().
struct Strips {
  int32_t height; // rows of a plane
  int32_t lanes; // vectors of a row
  int32_t rows; // of a strip
  int32_t chunks; // strips of a plane, one below the other
  int32_t vectors; // of all strips
  int32_t owned; // by a warp
  int32_t beside; // lanes on either side that only load
};

// A lane's place: the vector at `column` of rows from first_row on.
struct StripLane {
  int32_t plane;
  int32_t first_row;
  int32_t vector; // of its row
  int32_t lanes; // vectors of that row
  uint32_t has_left; // all bits set if the row has a vector before, and after, its own; else none
  uint32_t has_right;
  bool owns; // else it only loads, what may also be another lane's
};

#ifdef __CUDACC__
__device__ __forceinline__ void find_neighbours(StripLane& lane) {
  lane.has_left = lane.vector > 0 ? ~0u : 0;
  lane.has_right = lane.vector + 1 < lane.lanes ? ~0u : 0;
  // As words that the compiler knows nothing of: it would make conditions of them again in each row.
  asm volatile("" : "+r"(lane.has_left), "+r"(lane.has_right));
}

// False where the whole warp has nothing to do.
__device__ __forceinline__ bool strip_lane(StripLane& lane, const Strips& s, int warp) {
  const int first = warp * s.owned;
  // Lanes without a vector read what the last one reads, which takes no memory traffic.
  const int index = min(static_cast<int>(threadIdx.x) % kWarpSize, s.owned + 2 * s.beside - 1);
  const int at = first + index - s.beside;
  const int vector = min(max(at, 0), s.vectors - 1);
  const int strip = vector / s.lanes;
  lane.plane = strip / s.chunks;
  lane.first_row = strip % s.chunks * s.rows;
  lane.vector = vector % s.lanes;
  lane.lanes = s.lanes;
  find_neighbours(lane);
  lane.owns = at == vector && static_cast<int>(threadIdx.x) % kWarpSize == index &&
      index >= s.beside && index < s.beside + s.owned;
  return first < s.vectors;
}

// kSize elements by as few loads as there can be; `from` is aligned to a load.
template <typename scalar_t, int kSize>
__device__ __forceinline__ void load_strip(Packed<scalar_t, kSize>& to, const scalar_t* from) {
  constexpr int kMostBytes = 16;
  constexpr int kPiece = std::min<int>(kSize, kMostBytes / sizeof(scalar_t));
#pragma unroll
  for (int i = 0; i < kSize / kPiece; ++i) {
    const auto piece = load_vector<scalar_t, kPiece>(from + i * kPiece);
#pragma unroll
    for (int j = 0; j < piece.kWords; ++j) {
      to.words[i * piece.kWords + j] = piece.words[j];
    }
  }
}

// A lane's vector of a row and kLeft columns before it and kRight after it; column 0 is the first of
// those before it. All lanes of the warp make theirs together.
template <typename scalar_t, int kVector, int kLeft, int kRight>
struct StripRow {
  using Own = Packed<scalar_t, kVector>;
  using Word = Packed<scalar_t, sizeof(uint32_t) / sizeof(scalar_t)>;
  static constexpr int kColumns = kLeft + kVector + kRight;
  static constexpr int kInWord = sizeof(uint32_t) / sizeof(scalar_t);
  static constexpr int kOwnWords = Own::kWords;
  static constexpr int kLeftWords = (kLeft + kInWord - 1) / kInWord;
  static constexpr int kRightWords = (kRight + kInWord - 1) / kInWord;
  static_assert(kVector % kInWord == 0);

  uint32_t words[kLeftWords + kOwnWords + kRightWords];

  __device__ __forceinline__ StripRow(const Own& own, const StripLane& lane) {
    constexpr uint32_t kAll = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < kLeftWords; ++i) {
      const int away = i / kOwnWords + 1;
      const uint32_t word = __shfl_up_sync(kAll, own.words[kOwnWords - 1 - i % kOwnWords], away);
      words[kLeftWords - 1 - i] =
          away == 1 ? word & lane.has_left : (lane.vector >= away ? word : 0);
    }
#pragma unroll
    for (int i = 0; i < kOwnWords; ++i) {
      words[kLeftWords + i] = own.words[i];
    }
#pragma unroll
    for (int i = 0; i < kRightWords; ++i) {
      const int away = i / kOwnWords + 1;
      const uint32_t word = __shfl_down_sync(kAll, own.words[i % kOwnWords], away);
      words[kLeftWords + kOwnWords + i] =
          away == 1 ? word & lane.has_right : (lane.vector + away < lane.lanes ? word : 0);
    }
  }

  __device__ __forceinline__ float column(int c) const {
    const int element = kLeftWords * kInWord - kLeft + c;
    Word word;
    word.words[0] = words[element / kInWord];
    return unpack(word, element % kInWord);
  }
};
#endif

// Whether rows of `width` elements, of tensors that begin there, fall into vectors of `bytes`.
inline bool strips_aligned(const ForwardPass& pass, int64_t width, int64_t vector, size_t bytes) {
  return width % vector == 0 && is_aligned(pass.dst.const_data_ptr(), bytes) &&
      is_aligned(pass.src.const_data_ptr(), bytes);
}

// Cuts planes of `height` rows of `lanes` vectors into strips, as long as there are `wanted` warps or
// strips have come down to row_floor rows. `beside`: how many lanes away a window reaches.
inline Strips plan_strips(
    int64_t planes,
    int64_t height,
    int64_t lanes,
    int beside,
    int64_t wanted,
    int64_t row_floor) {
  // Of 30 with lanes beside them, which load what others load as well.
  constexpr int64_t kLeastOwned = 27;
  Strips s{};
  s.height = height;
  s.lanes = lanes;
  const int64_t whole = kWarpSize / lanes * lanes;
  s.beside = whole >= kLeastOwned ? 0 : beside;
  s.owned = whole >= kLeastOwned ? whole : kWarpSize - 2 * beside;
  const int64_t warps = std::max<int64_t>(1, divide_up(planes * lanes, s.owned));
  const int64_t chunks =
      std::max<int64_t>(1, std::min(divide_up(wanted, warps), height / row_floor));
  s.rows = divide_up(height, chunks);
  s.chunks = divide_up(height, s.rows);
  s.vectors = planes * s.chunks * lanes;
  return s;
}

inline int64_t strip_warps(const Strips& s) {
  return divide_up(s.vectors, s.owned);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
