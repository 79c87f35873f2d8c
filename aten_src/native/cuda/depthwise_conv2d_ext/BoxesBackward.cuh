// How the rows of grad_output and of the input come to the blocks that take the weight's gradient, or all
// gradients, of depthwise_conv2d_ext in channels-last at stride 1 (BoxesBackward.cu).
//
// A block owns a group of channels. Positions a dilation apart make planes of their own, whose columns the
// boxes pick, as do stretches of columns and groups of images side by side. The rows of all planes are
// counted through, and each block takes an even share of them, so that its rings never run dry and all blocks
// end together. A stage is a row of grad_output with what the window reaches on either side and, but for
// the first rows of a piece, the row of the input that is the last to meet it. Zeros come for what lies
// outside the image: every element comes from device memory once, however small the planes.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

#if CUDART_VERSION >= 12000

struct BoxesWeight : UnitStridePass {
  // Planes are those of one phase of the dilation, stretch of columns and group of images.
  int32_t tiles; // of a stretch
  int32_t images; // of a group
  int32_t stretches;
  int32_t column_phases;
  int32_t row_phases;
  int32_t rows; // of a plane
  int32_t all_rows; // of all planes
  // The rings: rows of the input stay for a step, those of grad_output for as many as a window has rows
  // where they are read again and again.
  int32_t grads_stages;
  int32_t input_stages;
  int32_t grads_stage; // bytes of one
  int32_t input_stage;
  int32_t box_columns; // of the input's
  int32_t grads_bytes; // that boxes bring
  int32_t input_bytes;
  uint32_t column_bytes; // from a column of grad_input to the next of its phase, and from a row
  uint32_t row_bytes;
};

template <typename scalar_t_, typename Window, int kChannels_, bool kData_, int kOutputs_ = 1>
struct BoxesWeightTraits {
  using scalar_t = scalar_t_;
  static constexpr int kOutputs = kOutputs_; // of an input channel, 1 or 2
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kReachHeight = (kHeight - 1) / 2;
  static constexpr int kReachWidth = (kWidth - 1) / 2;
  static constexpr int kTile = 7; // columns of a thread
  static constexpr int kColumns = kTile + kWidth - 1;
  static constexpr int kChannels = kChannels_; // of grad_output, of a block
  static constexpr int kPixelBytes = kChannels * static_cast<int>(sizeof(scalar_t));
  static constexpr int kInputBytes = kPixelBytes / kOutputs; // of a pixel of the input
  static constexpr bool kData = kData_; // grad_input too
  // Rounding to 16 bits would hide what bounded chains and an exact bias give.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kBefore = kHeight - 1; // rows of grad_output before the first of the input
  // Smaller windows keep the last rows of grad_output in registers, by a march that is unrolled by the rows
  // of a window. Of 7 x 7 they would leave too few warps, and too long a march for the instruction cache (the
  // weight's gradient of 96@56 108 us, 89 here): rows are read again from the ring for each row of taps,
  // and those outside the image left out.
  static constexpr bool kKeeps = kTaps <= 25;
  static constexpr bool kTapsInRegisters = kTaps <= 9;
  // Stages of grad_output in use beside the newest.
  static constexpr int kHeld = kKeeps ? 0 : kBefore;
  static constexpr int kUnrolled = kKeeps ? (kHeight > 1 ? kHeight : 4) : 1;
  // Sums go to totals in shared memory after kTurns of the march, some 42 products; where there are none,
  // short shares bound the chains.
  static constexpr bool kTotals = kExact && kKeeps;
  static constexpr int kTurns = kHeight > 3 ? 1 : 2;
  // Rows have a warp of their own to ask for them: one that also computes is the block's slowest (all
  // gradients of 32@112 k3 in half 123 us, 105 so, of 240@28 k5 98 and 90). Not where registers would have to
  // make room for it, as for all gradients of 7 x 7 (the weight's in float, dilated by 3, 74 us and 81).
  static constexpr bool kOwnAsker = kKeeps || (!kData && !kExact);
  // Threads of a multiprocessor that compute, so that few registers are spilt: all gradients of 32@112 k3 in
  // half 103 us by 768 of 72 registers, 87 by 512 of 96.
  static constexpr bool kSquare = kHeight == 3; // 3 x 3
  static constexpr int kResident = kTaps > 25 ? 512
      : kTaps > 9                             ? 384
      : kSquare && (kData || !kExact)         ? 512
                                              : 768;
  // One block of all of them where stages are few bytes or have a warp to ask for them: fewer to ask and wait
  // for (the weight's gradient in half of 32@112 k3 61 us by blocks of 256, 56 so, of 256@32 27 and 24).
  static constexpr bool kOneBlock = kTaps > 9 ? kOwnAsker : kSquare && !kExact;
  static constexpr int kMostParts = kOneBlock ? kResident / kChannels : 8;
  static constexpr int kThreads = kMostParts * kChannels + (kOwnAsker ? kWarpSize : 0);
  static constexpr int kBlocks = kResident / (kMostParts * kChannels); // bound registers
  // Bytes of a multiprocessor's rings that are used or under way. More is slower: all gradients of 144@56 k3
  // with 64, 96 and 132 KB 213, 223, 225 us, in half 123, 139, 157; but what has the most rows to
  // compute for its bytes, and the weight's gradient in 16 bit (1 x 3 100, 90, 91), wants some.
  static constexpr bool kSome = !kData && !kExact && kChannels == kWarpSize;
  static constexpr int kFlight = (kTaps > 9 ? 132 : kSome ? 96 : 64) * 1024;
};

// Rows of a plane that follow each other, in a block's share.
struct Piece {
  int32_t image; // the first of the group
  int32_t top; // of the first row, in the input
  int32_t left; // of the first column
  int32_t rows; // 0: there is none
};

// The pieces of a share, in order.
struct Pieces {
  int32_t rows_left;
  int32_t row;
  int32_t row_phase;
  int32_t column_phase;
  int32_t stretch;
  int32_t image;

  __device__ __forceinline__ Pieces() {}

  __device__ __forceinline__ Pieces(const BoxesWeight& p, int begin, int end) {
    int plane = begin / p.rows;
    row = begin - plane * p.rows;
    rows_left = end - begin;
    stretch = plane % p.stretches;
    plane /= p.stretches;
    column_phase = plane % p.column_phases;
    plane /= p.column_phases;
    row_phase = plane % p.row_phases;
    image = plane / p.row_phases * p.images;
  }

  __device__ __forceinline__ Piece next(const BoxesWeight& p, int tile) {
    Piece piece;
    piece.image = image;
    piece.top = row_phase + row * p.dilation_height;
    piece.left = column_phase + stretch * p.tiles * tile * p.dilation_width;
    piece.rows = min(p.rows - row, rows_left);
    rows_left -= piece.rows;
    row = 0;
    if (++stretch == p.stretches) {
      stretch = 0;
      if (++column_phase == p.column_phases) {
        column_phase = 0;
        if (++row_phase == p.row_phases) {
          row_phase = 0;
          image += p.images;
        }
      }
    }
    return piece;
  }
};

// Where a march, or who asks for its rows, stands in the rings.
struct RingPlace {
  int32_t grads = 0; // the stage of grad_output's row
  uint32_t parity = 0;
  int32_t input = 0;

  __device__ __forceinline__ void advance(const BoxesWeight& p) {
    if (++grads == p.grads_stages) {
      grads = 0;
      parity ^= 1;
    }
    if (++input == p.input_stages) {
      input = 0;
    }
  }
};

// What the one thread that asks remembers.
struct RowFeed {
  Piece piece;
  Pieces pieces;
  RingPlace place;
  int32_t step; // of the piece
};

// In front of the rings.
struct RingsHead {
  static constexpr int kMostStages = 16;
  uint64_t full[kMostStages]; // barriers
  uint64_t empty[kMostStages];
  Piece pieces[kMostStages]; // that begin with a stage
  RowFeed feed;
};
constexpr int kHeadBytes =
    static_cast<int>((sizeof(RingsHead) + kBoxBytes - 1) / kBoxBytes * kBoxBytes);

// A piece in shared memory for the lanes of a warp, the first of which is among them. Only that one
// looks, which will release the stage: racecheck follows no order from other lanes by way of it.
__device__ __forceinline__ Piece piece_of_warp(const Piece& shared, uint32_t lanes) {
  Piece seen{};
  if (threadIdx.x % kWarpSize == 0) {
    seen = shared;
  }
  const auto of_first = [&](int32_t value) {
    return __shfl_sync(lanes, value, 0);
  };
  return {of_first(seen.image), of_first(seen.top), of_first(seen.left), of_first(seen.rows)};
}

// Asks for a row of grad_output and, but before the first of a piece, one of the input.
template <typename Traits>
__device__ __forceinline__ void ask_rows(
    RowFeed& feed,
    RingsHead* head,
    const BoxesWeight& p,
    const CUtensorMap& grads_map,
    const CUtensorMap& input_map) {
  const Piece piece = feed.piece;
  const int stage = feed.place.grads;
  const uint32_t full = shared_address(&head->full[stage]);
  wait_for(shared_address(&head->empty[stage]), feed.place.parity ^ 1);
  if (feed.step == 0) {
    head->pieces[stage] = piece;
  }
  const bool both = feed.step >= Traits::kBefore;
  arrive_and_expect(full, both ? p.grads_bytes + p.input_bytes : p.grads_bytes);
  const uint32_t rings = shared_address(head) + kHeadBytes;
  const int channel = blockIdx.x * Traits::kChannels;
  const int row = piece.top + (feed.step - Traits::kBefore) * p.dilation_height;
  load_box(
      rings + stage * p.grads_stage,
      full,
      grads_map,
      channel,
      piece.left + p.padding_width - (Traits::kWidth - 1) * p.dilation_width,
      row + p.padding_height,
      piece.image);
  if (both) {
    const uint32_t to = rings + p.grads_stages * p.grads_stage + feed.place.input * p.input_stage;
    load_box(to, full, input_map, channel / Traits::kOutputs, piece.left, row, piece.image);
  }
  feed.place.advance(p);
  feed.step += 1;
  if (feed.step == piece.rows + Traits::kBefore) {
    feed.step = 0;
    feed.piece = feed.pieces.next(p, Traits::kTile);
  }
}

template <typename scalar_t>
__device__ __forceinline__ float read_element(const char* from) {
  if constexpr (sizeof(scalar_t) == sizeof(float)) {
    return *reinterpret_cast<const float*>(from);
  } else {
    return element_as_float(*reinterpret_cast<const unsigned short*>(from), scalar_t());
  }
}

// A thread's place: channels innermost, then tiles of columns, then images.
struct ThreadPlace {
  int32_t channel;
  int32_t part; // tile and image
  int32_t image;
  int32_t tile;

  template <typename Traits>
  static __device__ __forceinline__ ThreadPlace of(const BoxesWeight& p) {
    ThreadPlace place;
    place.channel = blockIdx.x * Traits::kChannels + threadIdx.x % Traits::kChannels;
    place.part = threadIdx.x / Traits::kChannels;
    place.image = place.part / p.tiles;
    place.tile = place.part - place.image * p.tiles;
    return place;
  }
};

// A thread's columns of a piece.
struct PieceColumns {
  int32_t image;
  int32_t left;
  int32_t count; // inside the image, and of a channel that exists

  template <typename Traits>
  static __device__ __forceinline__ PieceColumns
  of(const BoxesWeight& p, const Piece& piece, const ThreadPlace& place) {
    PieceColumns c;
    c.image = piece.image + place.image;
    c.left = piece.left + place.tile * Traits::kTile * p.dilation_width;
    c.count = 0;
#pragma unroll
    for (int t = 0; t < Traits::kTile; ++t) {
      c.count += c.left + t * p.dilation_width < p.src_width;
    }
    if (c.image >= p.batch || place.channel >= p.channels) {
      c.count = 0;
    }
    return c;
  }
};

#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
