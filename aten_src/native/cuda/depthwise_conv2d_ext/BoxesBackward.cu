// grad_weight and grad_bias of depthwise_conv2d_ext in channels-last at stride 1, out of boxes in shared memory
// (Boxes.cuh), and grad_input in the same pass where it is wanted.
//
// A block owns a group of channels. Positions a dilation apart make planes of their own, whose columns the
// boxes pick, as do stretches of columns and groups of images side by side. The rows of all planes are
// counted through, and each block takes an even share of them, so that its rings never run dry and all blocks
// end together. A stage is a row of grad_output with what the window reaches on either side and, but for
// the first rows of a piece, the row of the input that is the last to meet it. Zeros come for what lies
// outside the image: every element comes from device memory once, however small the planes.
//
// A lane owns a channel and seven columns, a block some tiles of columns and images side by side. All march
// down the rows, and a row of the input meets all rows of grad_output that it belongs to, which serve twice:
// their products with the input go into one sum a tap, those with the taps make the row of grad_input,
//   sum[kh][kw] += input[h][s] * grad_output[h + padding - kh][s + padding - kw],
// so that grad_output is needed beside a tile and the input is not.
//
// In float the sums of some rows go to totals in shared memory, which bounds the chains. Warps are added up
// in order; a block writes one partial, and add_partials() adds the blocks' in a fixed order. A float bias is
// compensated in a lane and added in double beyond, as in MarchGradWeight.cu.
//
// Zeros outside the image are multiplied with the other tensor, which is right only while that is finite: a
// sum that ends as NaN is taken again tap by tap, of positions inside the image only. So is grad_input
// where a tap is not finite.
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

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

template <typename scalar_t_, typename Window, bool kData_>
struct BoxesWeightTraits {
  using scalar_t = scalar_t_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kReachHeight = (kHeight - 1) / 2;
  static constexpr int kReachWidth = (kWidth - 1) / 2;
  static constexpr int kTile = 7; // columns of a thread
  static constexpr int kColumns = kTile + kWidth - 1;
  static constexpr int kChannels = kWarpSize; // of a block
  static constexpr int kPixelBytes = kChannels * static_cast<int>(sizeof(scalar_t));
  static constexpr bool kData = kData_; // grad_input too
  // Rounding to 16 bits would hide what bounded chains and an exact bias give.
  static constexpr bool kExact = sizeof(scalar_t) == sizeof(float);
  static constexpr int kAlike = kExact ? kTaps : kTaps + 1; // sums that are added as taps are
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kBefore = kHeight - 1; // rows of grad_output before the first of the input
  // Smaller windows keep the last rows of grad_output in registers, by a march that is unrolled by the rows
  // of a window. Of 7 x 7 they would leave too few warps, and too long a march for the instruction cache: rows are
  // read again from the ring for each row of taps, and those outside the image left out.
  static constexpr bool kKeeps = kTaps <= 25;
  static constexpr bool kTapsInRegisters = kTaps <= 9;
  // Stages of grad_output in use beside the newest.
  static constexpr int kHeld = kKeeps ? 0 : kBefore;
  static constexpr int kUnrolled = kKeeps ? kHeight : 1;
  // Sums go to totals in shared memory after kTurns of the march, some 42 products; where there are none,
  // short shares bound the chains.
  static constexpr bool kTotals = kExact && kKeeps;
  static constexpr int kTurns = kHeight > 3 ? 1 : 2;
  // Rows have a warp of their own to ask for them: one that also computes is the block's slowest. Not
  // where registers would have to make room for it, as for all gradients of 7 x 7.
  static constexpr bool kOwnAsker = kKeeps || (!kData && !kExact);
  // Threads of a multiprocessor that compute, so that few registers are spilt.
  static constexpr int kResident = kTaps > 25 ? 512
      : kTaps > 9                             ? 384
      : kData || !kExact                      ? 512
                                              : 768;
  // One block of all of them where stages are few bytes or have a warp to ask for them: fewer to ask and wait
  // for.
  static constexpr bool kOneBlock = kTaps > 9 ? kOwnAsker : !kExact;
  static constexpr int kMostParts = kOneBlock ? kResident / kChannels : 8;
  static constexpr int kThreads = kMostParts * kChannels + (kOwnAsker ? kWarpSize : 0);
  static constexpr int kBlocks = kResident / (kMostParts * kChannels); // bound registers
  // Bytes of a multiprocessor's rings that are used or under way. More is slower, but what has the most
  // rows to compute for its bytes, and the weight's gradient in 16 bit, wants some.
  static constexpr int kFlight = (kTaps > 9 ? 132 : kData || kExact ? 64 : 96) * 1024;
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
    load_box(to, full, input_map, channel, piece.left, row, piece.image);
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

// grad_input of a thread's part of a share.
template <typename Traits>
__device__ __noinline__ void mend_rows(
    typename Traits::scalar_t* grad_input,
    const typename Traits::scalar_t* grad_output,
    const typename Traits::scalar_t* weight,
    const Params& call,
    const BoxesWeight& p,
    int begin,
    int end) {
  const ThreadPlace place = ThreadPlace::of<Traits>(p);
  Pieces pieces(p, begin, end);
  while (pieces.rows_left > 0) {
    const Piece piece = pieces.next(p, Traits::kTile);
    const PieceColumns columns = PieceColumns::of<Traits>(p, piece, place);
    for (int i = 0; i < piece.rows * columns.count; ++i) {
      const int h = piece.top + i / columns.count * p.dilation_height;
      const int w = columns.left + i % columns.count * p.dilation_width;
      if (h < p.src_height) {
        const int to = (columns.image * p.src_height + h) * p.src_width + w;
        grad_input[to * p.channels + place.channel] = static_cast<typename Traits::scalar_t>(
            mended(grad_output, weight, 0.0f, call, true, columns.image, place.channel, h, w));
      }
    }
  }
}

// grid: groups of channels x shares of the rows. grad_input only where Traits::kData.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void boxes_backward_kernel(
    typename Traits::scalar_t* __restrict__ grad_input,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ CUtensorMap grads_map,
    const __grid_constant__ CUtensorMap input_map,
    const __grid_constant__ Params call,
    const __grid_constant__ BoxesWeight p) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kWidth = Traits::kWidth;
  constexpr int kTile = Traits::kTile;
  constexpr int kColumns = Traits::kColumns;
  constexpr int kChannels = Traits::kChannels;
  extern __shared__ __align__(kBoxBytes) char shared[];
  RingsHead* const head = reinterpret_cast<RingsHead*>(shared);
  const ThreadPlace mine = ThreadPlace::of<Traits>(p);
  const int lane = threadIdx.x % kChannels;
  const int parts = p.tiles * p.images;
  const int threads = parts * kChannels; // that compute
  const bool computes = static_cast<int>(threadIdx.x) < threads;
  const uint32_t computing = __ballot_sync(0xffffffffu, computes); // lanes of the warp
  const int begin = static_cast<int64_t>(p.all_rows) * blockIdx.y / gridDim.y;
  const int end = static_cast<int64_t>(p.all_rows) * (blockIdx.y + 1) / gridDim.y;
  const auto ask = [&]() {
    if (!Traits::kOwnAsker && threadIdx.x == 0) {
      RowFeed feed = head->feed;
      if (feed.piece.rows > 0) {
        ask_rows<Traits>(feed, head, p, grads_map, input_map);
        head->feed = feed;
      }
    }
  };
  if (threadIdx.x == 0) {
    prefetch_map(grads_map);
    prefetch_map(input_map);
    for (int i = 0; i < p.grads_stages; ++i) {
      init_barrier(shared_address(&head->full[i]), 1);
      init_barrier(shared_address(&head->empty[i]), (threads + kWarpSize - 1) / kWarpSize);
    }
    fence_barriers();
    RowFeed feed;
    feed.pieces = Pieces(p, begin, end);
    feed.piece = feed.pieces.next(p, kTile);
    feed.place = RingPlace();
    feed.step = 0;
    head->feed = feed;
#pragma unroll 1
    for (int i = 0; i < p.input_stages - 1; ++i) {
      ask();
    }
  }

  char* const rings = shared + kHeadBytes;
  char* const input_ring = rings + p.grads_stages * p.grads_stage;
  char* const behind = input_ring + p.input_stages * p.input_stage;
  // [tap][channel], and [sum][thread]: totals all along, or sums at the end in the ring's place.
  float* const sums_of_block =
      reinterpret_cast<float*>(Traits::kTotals ? behind : rings) + threadIdx.x;
  float* const shared_taps =
      reinterpret_cast<float*>(behind) + (Traits::kTotals ? Traits::kAlike * threads : 0) + lane;
  float taps[Traits::kTapsInRegisters ? kTaps : 1];
  bool finite = true;
  if (Traits::kData && computes) {
    const bool exists = mine.channel < p.channels;
    const scalar_t* const from = weight + mine.channel * kTaps;
    if constexpr (Traits::kTapsInRegisters) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        taps[tap] = exists ? static_cast<float>(from[tap]) : 0.0f;
        finite = finite && is_finite(taps[tap]);
      }
    } else {
#pragma unroll 8
      for (int tap = mine.part; tap < kTaps; tap += parts) {
        const float value = exists ? static_cast<float>(from[tap]) : 0.0f;
        shared_taps[tap * kChannels] = value;
        finite = finite && is_finite(value);
      }
    }
  }
  if (Traits::kTotals && computes) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      sums_of_block[tap * threads] = 0.0f;
    }
  }
  finite = __syncthreads_and(finite); // barriers and taps are there for all

  if (Traits::kOwnAsker && threadIdx.x == blockDim.x - kWarpSize) {
    RowFeed feed = head->feed;
    while (feed.piece.rows > 0) {
      ask_rows<Traits>(feed, head, p, grads_map, input_map);
    }
  }

  // The thread's columns in a stage.
  const int tile_at = mine.tile * kTile + mine.image * p.tiles * kTile;
  constexpr int kSize = sizeof(scalar_t);
  const char* const my_grads =
      rings + (tile_at + mine.image * (kWidth - 1)) * Traits::kPixelBytes + lane * kSize;
  const char* const my_input = input_ring + tile_at * Traits::kPixelBytes + lane * kSize;
  float sums[kTaps + 1] = {};
  float excess = 0.0f;
  int turns = Traits::kTurns;
  int held = 0; // stages behind the newest that still are in use
  RingPlace place;

  const auto wait = [&]() {
    wait_for(shared_address(&head->full[place.grads]), place.parity);
  };
  // Done with the oldest row of grad_output, and the newest of the input.
  const auto release = [&]() {
    __syncwarp(computing);
    if (held == Traits::kHeld) {
      int stage = place.grads - Traits::kHeld;
      stage += stage < 0 ? p.grads_stages : 0;
      if (threadIdx.x % kWarpSize == 0) {
        arrive(shared_address(&head->empty[stage]));
      }
    } else {
      held += 1;
    }
  };
  const auto read_grads = [&](float (&row)[kColumns], int stage) {
    const char* const from = my_grads + stage * p.grads_stage;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      row[c] = read_element<scalar_t>(from + c * Traits::kPixelBytes);
    }
  };
  float values[kTile]; // of the input
  float result[kTile][1]; // of grad_input
  const auto read_input = [&]() {
    const int stage = Traits::kHeld > 0 ? place.input : place.grads;
    const char* const from = my_input + stage * p.input_stage;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      values[t] = read_element<scalar_t>(from + t * Traits::kPixelBytes);
      result[t][0] = 0.0f;
    }
  };
  // The products of a row of grad_output that kernel row kh brings to the input's row.
  const auto add_row = [&](const float (&row)[kColumns], int kh) {
    // The later half of the rows, in the order that they come in.
    const int turn = Traits::kKeeps ? kh : kHeight - 1 - kh;
    RowSums<kTile, 1> products(result, turn >= Traits::kOwnRow);
#pragma unroll
    for (int kw = 0; kw < kWidth; ++kw) {
      const int tap = kh * kWidth + kw;
      float factor = 0.0f;
      if constexpr (Traits::kData) {
        factor = Traits::kTapsInRegisters ? taps[Traits::kTapsInRegisters ? tap : 0]
                                          : shared_taps[tap * kChannels];
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const float grad = row[t + kWidth - 1 - kw];
        sums[tap] = fmaf(values[t], grad, sums[tap]);
        if constexpr (Traits::kData) {
          products.add(kw, t, 0, grad, factor);
        }
      }
    }
    if constexpr (Traits::kData) {
      products.finish();
    }
    if (kh == Traits::kReachHeight) {
      // Each element of grad_output is once beside the window's middle tap.
      const float* const middle = row + Traits::kReachWidth;
      static_assert(kTile == 7);
      const float sum = ((middle[0] + middle[1]) + (middle[2] + middle[3])) +
          ((middle[4] + middle[5]) + middle[6]);
      add_to_bias<Traits::kExact>(sums[kTaps], excess, sum);
    }
  };

#pragma unroll 1
  for (int left = computes ? end - begin : 0; left > 0;) {
    wait();
    const Piece piece = piece_of_warp(head->pieces[place.grads], computing);
    PieceColumns columns = PieceColumns::of<Traits>(p, piece, mine);
    left -= piece.rows;
    int h = piece.top;
    // Bytes, of which 32 bits hold as many as fits_32_bits() lets there be.
    uint32_t to =
        static_cast<uint32_t>(
            ((columns.image * p.src_height + h) * p.src_width + columns.left) * p.channels +
            mine.channel) *
        static_cast<uint32_t>(sizeof(scalar_t));
    // As words that the compiler knows nothing of: it would count the columns again in each row.
    asm volatile("" : "+r"(columns.count), "+r"(to));
    const auto store_row = [&]() {
      if constexpr (Traits::kData) {
        const int count = h < p.src_height ? columns.count : 0;
        char* const base = reinterpret_cast<char*>(grad_input);
        const auto store = [&](int t) {
          *reinterpret_cast<scalar_t*>(base + (to + t * p.column_bytes)) =
              static_cast<scalar_t>(result[t][0]);
        };
        if (count == kTile) {
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
            store(t);
          }
        } else {
#pragma unroll
          for (int t = 0; t < kTile - 1; ++t) {
            if (t < count) {
              store(t);
            }
          }
        }
        to += p.row_bytes;
      }
      h += p.dilation_height;
    };
    if constexpr (Traits::kKeeps) {
      float grads[kHeight][kColumns];
      const auto next_row = [&](int i) {
        wait();
        ask();
        read_grads(grads[i % kHeight], place.grads);
        if (i >= Traits::kBefore) {
          read_input();
        }
        release();
        place.advance(p);
      };
#pragma unroll
      for (int i = 0; i < Traits::kBefore; ++i) {
        next_row(i);
      }
#pragma unroll 1
      for (int first = 0; first < piece.rows; first += Traits::kUnrolled) {
#pragma unroll
        for (int u = 0; u < Traits::kUnrolled; ++u) {
          if (first + u >= piece.rows) {
            break;
          }
          const int i = Traits::kBefore + u;
          next_row(i);
#pragma unroll
          for (int kh = 0; kh < kHeight; ++kh) {
            add_row(grads[(i - kh + kHeight) % kHeight], kh);
          }
          store_row();
        }
        if constexpr (Traits::kTotals) {
          turns -= 1;
          if (turns == 0) {
            turns = Traits::kTurns;
#pragma unroll
            for (int tap = 0; tap < kTaps; ++tap) {
              sums_of_block[tap * threads] += sums[tap];
              sums[tap] = 0.0f;
            }
          }
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < Traits::kBefore; ++i) {
        wait();
        release();
        ask();
        place.advance(p);
      }
#pragma unroll 1
      for (int i = 0; i < piece.rows; ++i) {
        wait();
        ask();
        read_input();
#pragma unroll
        for (int kh = kHeight - 1; kh >= 0; --kh) {
          const int row = h + p.padding_height - kh * p.dilation_height;
          if (row >= 0 && row < p.dst_height) {
            int stage = place.grads - kh;
            stage += stage < 0 ? p.grads_stages : 0;
            float grads[kColumns];
            read_grads(grads, stage);
            add_row(grads, kh);
          }
          if (kh == kHeight - 1) {
            release();
          }
        }
        store_row();
        place.advance(p);
      }
    }
  }

  // A block's sums: those of its tiles and images, in order.
  __syncthreads();
  static_assert(!Traits::kTotals || Traits::kAlike == kTaps);
  double* const biases =
      reinterpret_cast<double*>(
          rings + (Traits::kTotals ? 0 : Traits::kAlike * threads * sizeof(float))) +
      threadIdx.x;
  if (computes) {
#pragma unroll
    for (int k = 0; k < Traits::kAlike; ++k) {
      float* const to = sums_of_block + k * threads;
      *to = Traits::kTotals ? *to + sums[k] : sums[k];
    }
    if constexpr (Traits::kExact) {
      *biases = static_cast<double>(sums[kTaps]) - excess;
    }
  }
  __syncthreads();
  const BlockSums block{
      sums_of_block,
      biases,
      threads,
      mine.part,
      parts,
      kChannels,
      computes && mine.channel < p.channels};
  write_block_sums<Traits>(
      block,
      partial + static_cast<int64_t>(blockIdx.y) * (kTaps + kBiasRows) * p.channels + mine.channel,
      p.channels);
  // Here, where nothing else needs registers.
  if (Traits::kData && computes && !finite) {
    mend_rows<Traits>(grad_input, grad_output, weight, call, p, begin, end);
  }
#endif
}

// How columns, images and rows fall to boxes and blocks.
template <typename Traits>
void plan_pieces(BoxesWeight& s) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kMostParts = Traits::kMostParts;
  const int64_t tiles = divide_up(divide_up(s.src_width, s.dilation_width), Traits::kTile);
  s.stretches = divide_up(tiles, kMostParts);
  s.tiles = divide_up(tiles, s.stretches);
  s.images = std::max(1, std::min(s.batch, kMostParts / s.tiles));
  s.column_phases = std::min(s.dilation_width, s.src_width);
  s.row_phases = std::min(s.dilation_height, s.src_height);
  s.rows = divide_up(s.src_height, s.dilation_height);
  s.all_rows = divide_up(s.batch, s.images) * s.stretches * s.column_phases * s.row_phases * s.rows;
  const int64_t pixel = s.channels * sizeof(scalar_t); // of grad_input
  s.column_bytes = s.dilation_width * pixel;
  s.row_bytes = s.dilation_height * s.src_width * pixel;
  s.box_columns = s.tiles * Traits::kTile;
  s.grads_bytes = s.images * (s.box_columns + Traits::kWidth - 1) * Traits::kPixelBytes;
  s.input_bytes = s.images * s.box_columns * Traits::kPixelBytes;
  s.grads_stage = stage_bytes(s.grads_bytes);
  s.input_stage = stage_bytes(s.input_bytes);
}

// The stages of the rings of `blocks` blocks a multiprocessor, or of fewer where theirs would be too short;
// `fixed` bytes of a block's shared memory are for others. False where not even one block's are long enough.
template <typename Traits>
bool plan_rings(BoxesWeight& s, int64_t blocks, int64_t fixed) {
  constexpr int64_t kLeastStages = Traits::kTaps > 9 ? 3 : 2;
  constexpr int64_t kMostStages = RingsHead::kMostStages - Traits::kHeld;
  constexpr int64_t kReserved = 1024; // bytes that each block takes beside
  const int64_t shared = device().multiprocessor_shared;
  const int64_t row = s.grads_stage + s.input_stage;
  for (; blocks > 0; --blocks) {
    const int64_t room = shared / blocks - kReserved - fixed - Traits::kHeld * s.grads_stage;
    const int64_t flight = std::max<int64_t>(Traits::kFlight / blocks, kLeastStages * row);
    s.input_stages = std::min(kMostStages, std::min(room, flight) / row);
    if (s.input_stages >= kLeastStages) {
      s.grads_stages = s.input_stages + Traits::kHeld;
      return true;
    }
  }
  return false;
}

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& params) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int64_t kLeastRows = 2; // of a share
  constexpr int64_t kMostRows =
      Traits::kExact && !Traits::kTotals ? 160 : std::numeric_limits<int32_t>::max();
  BoxesWeight s{unit_stride_pass(params, false)};
  plan_pieces<Traits>(s);
  const int64_t threads = s.images * s.tiles * Traits::kChannels; // that compute
  const int64_t all_threads =
      (divide_up(threads, kWarpSize) + (Traits::kOwnAsker ? 1 : 0)) * kWarpSize;
  const int64_t groups = divide_up(s.channels, Traits::kChannels);
  const int64_t most_chunks = divide_up(s.all_rows, kLeastRows);
  const int64_t sums = sizeof(float) * Traits::kAlike * threads;
  const int64_t behind = (Traits::kTotals ? sums : 0) +
      (Traits::kData && !Traits::kTapsInRegisters
           ? sizeof(float) * Traits::kTaps * Traits::kChannels
           : 0);
  const int64_t blocks =
      std::min(Traits::kResident / threads, divide_up(groups * most_chunks, multiprocessors()));
  if (!plan_rings<Traits>(s, blocks, kHeadBytes + behind)) {
    return false;
  }
  const int64_t rings = s.grads_stages * s.grads_stage + s.input_stages * s.input_stage;
  const int64_t ends = (Traits::kTotals ? 0 : sums) + sizeof(double) * threads;
  const size_t shared = kHeadBytes + std::max(rings + behind, ends);
  CUtensorMap grads_map;
  CUtensorMap input_map;
  constexpr auto kernel = boxes_backward_kernel<Traits>;
  if (!has_shared(shared) || !is_compiled_for(reinterpret_cast<const void*>(kernel), 9) ||
      !map_boxes(
          grads_map,
          pass.grad_output,
          Traits::kChannels,
          s.box_columns + Traits::kWidth - 1,
          1,
          s.images,
          s.dilation_width) ||
      !map_boxes(
          input_map, pass.input, Traits::kChannels, s.box_columns, 1, s.images, s.dilation_width)) {
    return false;
  }
  const int64_t resident =
      resident_blocks(reinterpret_cast<const void*>(kernel), all_threads, shared);
  const int64_t chunks = std::max<int64_t>(
      {1, std::min(resident / groups, most_chunks), divide_up(s.all_rows, kMostRows)});
  const Operand partial = empty_partial(chunks, params);
  launch_kernel(
      kernel,
      dim3(groups, chunks),
      all_threads,
      shared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      grads_map,
      input_map,
      params,
      s);
  add_partials<scalar_t>(pass, partial, params);
  return true;
}

// Whether the middle tap of an odd window meets all of grad_output, beside which a bias is summed then.
bool middle_meets_all(const Params& p) {
  return 2 * p.padding_height <= p.dilation_height * (p.kernel_height - 1) &&
      2 * p.padding_width <= p.dilation_width * (p.kernel_width - 1);
}

#endif

} // namespace

template <typename scalar_t>
bool boxes_backward(const BackwardPass& pass, const Params& p) {
#if CUDART_VERSION >= 12000
  constexpr int64_t kMostDilation = 8; // of a box's columns
  constexpr int64_t kLeastChannels = 16; // of a warp's 32 lanes; not tried with fewer
  if (!p.channels_last || p.multiplier != 1 || p.channels < kLeastChannels ||
      !middle_meets_all(p) || p.dilation_width > kMostDilation || !fits_32_bits(p) ||
      pass.grad_output.numel() == 0 || pass.input.numel() == 0 || !boxes_take(pass.input) ||
      !boxes_take(pass.grad_output) || !device_has_boxes()) {
    return false;
  }
  return with_window(p, [&](auto window) {
    using Fixed = decltype(window);
    if constexpr (Fixed::kStride != 1) {
      return false;
    } else {
      return pass.grad_input.defined() ? launch<BoxesWeightTraits<scalar_t, Fixed, true>>(pass, p)
                                       : launch<BoxesWeightTraits<scalar_t, Fixed, false>>(pass, p);
    }
  });
#else
  return false;
#endif
}

DEPTHWISE_INSTANTIATE(boxes_backward, const BackwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
