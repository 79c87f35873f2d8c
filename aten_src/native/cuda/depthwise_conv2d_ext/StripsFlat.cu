// Forward of depthwise_conv2d_ext in plane order by strips out of shared memory, and grad_input at stride 1,
// which is the forward on grad_output with flipped taps.
//
// A warp takes chunks: a few whole planes that lie one after the other in memory or, of a large plane, a
// band of rows. Either way what it reads and what it writes are single runs of memory. A warp has its own
// buffers in shared memory: while it computes one chunk, the runs of the next come in and that of the one
// before goes out, each by one bulk copy, and no warp ever waits for another. So memory sees long runs, in
// order, whatever the width: 144@56 k3 in fp16 takes 67 us, where patches, which do one after the other,
// take 79, and strips that load rows of 112 bytes from all over the tensor 80; a copy takes 59.
//
// Lanes own vectors of columns of strips, as in Strips.cuh, and walk down their rows.
// Each row of src feeds all the dst rows that it belongs to, whose sums are in registers: slot s holds
// the dst row that this row reaches with the taps of kernel row s. With the first product of a row the
// sums move on a slot, so that the shift costs nothing.
//
// Where a plane of src has two of dst, a lane computes both: a chunk leaves as two runs, or one of whole planes.
//
// Columns outside the image are zeros that are multiplied by taps, which is the same only for finite
// taps: a warp that has others takes the results of a chunk tap by tap.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Bands.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Bulk.cuh>
#include <ATen/native/cuda/depthwise_conv2d_ext/Strips.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kWarps = 4; // of a block: as many to each of a multiprocessor's four schedulers
constexpr int kThreads = kWarps * kWarpSize;

// A chunk has planes * strips strips side by side in the lanes of its warp. Planes are those of src.
struct FlatStrips {
  int32_t all_planes;
  int32_t lanes; // vectors of a row
  int32_t planes; // of a chunk; 1 where a plane has several bands
  int32_t strips; // of a band, one below the other
  int32_t rows; // of a strip
  int32_t bands; // of a plane
  int32_t chunks;
  int32_t first_step; // chunks from a warp's first to that of the next warp
  int32_t step; // from a warp's chunk to its next
  int32_t share; // chunks of a warp, of which some may not exist
  int32_t src_bytes; // room for what a chunk reads, and for what it writes
  int32_t dst_bytes;
};

template <typename scalar_t_, typename Window, int kVector_, int kOutputs_ = 1>
struct FlatTraits {
  using scalar_t = scalar_t_;
  static constexpr int kOutputs = kOutputs_; // dst planes of a src plane
  using Own = Packed<scalar_t, kVector_>;
  static constexpr int kVector = kVector_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kReach = (kWidth - 1) / 2; // columns on either side
  static constexpr int kPadding = (kHeight - 1) / 2; // rows above and below
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  using Row = StripRow<scalar_t, kVector, kReach, kReach>;
  // Chunks in shared memory that are computed or under way. A third takes the room of other warps: the same
  // within 3 % in float, 68 -> 73 us at 5 x 5 in 16 bit.
  static constexpr int kStages = 2;
  static constexpr int kBlocks = 4; // a multiprocessor, for which registers are bounded
  static constexpr int kHead = 128; // bytes of shared memory in front of the buffers
  // Of a chunk of src, without what it reads twice. With the next chunk and the result some 20 KB a warp: 8 or
  // 12 warps a multiprocessor have 50 KB and more under way. 13 KB leave 4 warps (144@56 k3 fp16 67 -> 82 us);
  // with 3 KB more rows are read twice. With two results 32@112 takes 44.8, 44.5, 46.3 us by 4, 6, 8 KB.
  static constexpr int kMostBytes = (kOutputs > 1 ? 6 : 8) * 1024;
  static_assert(kWarps * kStages * sizeof(uint64_t) <= kHead);
};

// Planes from `plane` on, rows from first_row on; src rows from src_row on.
struct FlatChunk {
  int32_t plane;
  int32_t planes;
  int32_t first_row;
  int32_t rows;
  int32_t src_row;
  int32_t src_rows;

  __device__ __forceinline__ FlatChunk(const FlatStrips& s, int chunk, int height, int padding) {
    int band = 0;
    if (s.bands > 1) { // spares most calls the division
      band = chunk % s.bands;
      chunk /= s.bands;
    }
    plane = chunk * s.planes;
    planes = min(s.planes, s.all_planes - plane);
    first_row = band * s.strips * s.rows;
    rows = min(s.strips * s.rows, height - first_row);
    src_row = max(first_row - padding, 0);
    src_rows = min(first_row + rows + padding, height) - src_row;
  }
};

// The strip of a lane, by planes and rows of the chunk.
struct FlatLane {
  int32_t plane;
  int32_t first_row;
  StripLane strip; // its vector and what is beside it

  __device__ __forceinline__ explicit FlatLane(const FlatStrips& s) {
    const int used = s.planes * s.strips * s.lanes;
    const int lane = threadIdx.x;
    const int index = min(lane, used - 1);
    const int group = index / s.lanes;
    plane = group / s.strips;
    first_row = group % s.strips * s.rows;
    strip = {};
    strip.vector = index % s.lanes;
    strip.lanes = s.lanes;
    find_neighbours(strip);
    strip.owns = lane == index;
  }
};

// Calls function(std::integral_constant<int, i>()) for i from 0 to kCount - 1.
template <int kCount, typename Function>
__device__ __forceinline__ void with_each(const Function& function) {
  if constexpr (kCount > 0) {
    with_each<kCount - 1>(function);
    function(std::integral_constant<int, kCount - 1>());
  }
}

// A lane's rows of a chunk, tap by tap.
template <typename Traits>
__device__ __noinline__ void careful_rows(
    typename Traits::scalar_t* to,
    const typename Traits::scalar_t* plane,
    const typename Traits::scalar_t* taps,
    float begin,
    const UnitStridePass& p,
    int first_row,
    int rows,
    int column) {
#pragma unroll 1
  for (int i = 0; i < rows * Traits::kVector; ++i) {
    const int row = i / Traits::kVector;
    const int t = i % Traits::kVector;
    to[row * p.dst_width + t] = static_cast<typename Traits::scalar_t>(
        careful_output(plane, taps, begin, p, first_row + row, column + t));
  }
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void strips_flat_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ FlatStrips s) {
  using scalar_t = typename Traits::scalar_t;
  using Own = typename Traits::Own;
  using Row = typename Traits::Row;
  constexpr int kVector = Traits::kVector;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kPadding = Traits::kPadding;
  constexpr int kStages = Traits::kStages;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kOutputs = Traits::kOutputs;
  extern __shared__ float4 shared[];
  const int warp = threadIdx.y;
  char* const buffers = reinterpret_cast<char*>(shared) + Traits::kHead +
      warp * (kStages * s.src_bytes + s.dst_bytes);
  char* const results = buffers + kStages * s.src_bytes;
  const WarpRuns<kStages> runs(
      reinterpret_cast<char*>(shared) + warp * WarpRuns<kStages>::kBarrierBytes);
  const FlatLane lane(s);
  const int width = p.dst_width;
  const int height = p.dst_height;
  const int column = lane.strip.vector * kVector;
  const int first = (blockIdx.x * kWarps + warp) * s.first_step;
  const int end = min(first + s.share * s.step, s.chunks);
  const auto load = [&](int stage, int index) {
    if (index < end) {
      const FlatChunk chunk(s, index, height, kPadding);
      const int bytes = chunk.planes * chunk.src_rows * width * static_cast<int>(sizeof(scalar_t));
      runs.expect(stage, bytes);
      runs.load(
          stage,
          buffers + stage * s.src_bytes,
          src + (chunk.plane * height + chunk.src_row) * width,
          bytes);
    }
    runs.commit();
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    load(i, first + i * s.step);
  }

  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int index = first; index < end; index += s.step) {
    const FlatChunk chunk(s, index, height, kPadding);
    const int plane = min(lane.plane, chunk.planes - 1);
    const int channel = (chunk.plane + plane) % (p.channels / kOutputs) * kOutputs; // the first
    float taps[kOutputs][kTaps];
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kOutputs * kTaps; ++i) {
      const float tap = static_cast<float>(weight[channel * kTaps + i]);
      taps[i / kTaps][i % kTaps] = tap;
      finite = finite && is_finite(tap);
    }
    float begin[kOutputs];
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
#pragma unroll
      for (int tap = 0; tap < kTaps / 2; ++tap) {
        const float other = taps[q][kTaps - 1 - tap];
        taps[q][kTaps - 1 - tap] = p.flip ? taps[q][tap] : other;
        taps[q][tap] = p.flip ? other : taps[q][tap];
      }
      begin[q] = bias ? static_cast<float>(bias[channel + q]) : 0.0f;
    }
    const bool has_plane = lane.strip.owns && lane.plane < chunk.planes;
    const int stored = has_plane ? max(0, min(s.rows, chunk.rows - lane.first_row)) : 0;
    scalar_t* to = reinterpret_cast<scalar_t*>(results) +
        (plane * kOutputs * chunk.rows + lane.first_row) * width + column;
    const int next_output = chunk.rows * width; // from a dst plane to the next
    runs.wait(stage, parity);
    runs.wait_sent();

    if (__any_sync(0xffffffffu, !finite)) {
#pragma unroll
      for (int q = 0; q < kOutputs; ++q) {
        careful_rows<Traits>(
            to + q * next_output,
            src + (chunk.plane + plane) * height * width,
            weight + (channel + q) * kTaps,
            begin[q],
            p,
            chunk.first_row + lane.first_row,
            stored,
            column);
      }
    } else {
      // Of the rows that are there.
      int row = chunk.first_row + lane.first_row - kPadding - chunk.src_row;
      const scalar_t* from = reinterpret_cast<const scalar_t*>(buffers + stage * s.src_bytes) +
          (plane * chunk.src_rows + row) * width + column;
      Own ahead;
      const auto read_next = [&]() {
        ahead = packed_zero<scalar_t, kVector>();
        if (static_cast<unsigned int>(row) < static_cast<unsigned int>(chunk.src_rows)) {
          ahead = *reinterpret_cast<const Own*>(from);
        }
        row += 1;
        from += width;
      };
      read_next();
      Row next(ahead, lane.strip);
      read_next();
      float slots[kOutputs][kHeight][kVector];
      // One row of src, of which only the slots from first_slot to last_slot are of use.
      const auto add_row = [&](auto first_slot, auto last_slot) {
        const Row values = next;
        next = Row(ahead, lane.strip);
        read_next();
#pragma unroll
        for (int i = 0; i < kOutputs * kHeight; ++i) {
          const int q = i / kHeight;
          const int slot = kHeight - 1 - i % kHeight;
          const bool own = slot >= Traits::kOwnRow;
          if (slot < first_slot.value || slot > last_slot.value) {
            continue;
          }
#pragma unroll
          for (int t = 0; t < kVector; ++t) {
            const float before = slot > 0 ? slots[q][slot > 0 ? slot - 1 : 0][t] : begin[q];
            float sum = before;
#pragma unroll
            for (int kw = 0; kw < Traits::kWidth; ++kw) {
              const float tap = taps[q][slot * Traits::kWidth + kw];
              const float value = values.column(t + kw);
              sum = own && kw == 0 ? value * tap : fmaf(value, tap, sum);
            }
            slots[q][slot][t] = own ? before + sum : sum;
          }
        }
      };
      const auto store_row = [&](int finished) {
        if (finished < stored) {
#pragma unroll
          for (int q = 0; q < kOutputs; ++q) {
            store_vector<scalar_t, kVector>(to + q * next_output, slots[q][kHeight - 1]);
          }
          to += width;
        }
      };
      constexpr auto kFirst = std::integral_constant<int, 0>();
      constexpr auto kLast = std::integral_constant<int, kHeight - 1>();
      with_each<kHeight - 1>([&](auto i) { add_row(kFirst, i); });
      int finished = 0;
#pragma unroll 2
      for (; finished <= s.rows - kHeight; ++finished) {
        add_row(kFirst, kLast);
        store_row(finished);
      }
      with_each<kHeight - 1>([&](auto i) {
        add_row(std::integral_constant<int, i.value + 1>(), kLast);
        store_row(finished + i.value);
      });
    }
    const int bytes = chunk.planes * chunk.rows * width * static_cast<int>(sizeof(scalar_t));
    const int stores = s.bands > 1 ? kOutputs : 1; // bands of two planes are runs of their own
#pragma unroll
    for (int q = 0; q < stores; ++q) {
      runs.store(
          dst + ((chunk.plane * kOutputs + q) * height + chunk.first_row) * width,
          results + q * bytes,
          kOutputs / stores * bytes);
    }
    load(stage, index + kStages * s.step);
    stage += 1;
    if (stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  runs.finish();
}

// Chunks of at most kMostBytes where rows of `lanes` vectors allow, that take the fewest rows of a
// warp in all; false where none keep least_lanes lanes at work.
template <typename Traits>
bool plan_chunks(FlatStrips& s, const UnitStridePass& p, int64_t least_lanes) {
  constexpr int64_t kMostBytes = Traits::kMostBytes;
  constexpr int64_t kBegin = 4; // rows that a chunk takes to begin and end
  const int64_t lanes = p.dst_width / Traits::kVector;
  const int64_t row_bytes = p.dst_width * sizeof(typename Traits::scalar_t);
  const int64_t height = p.dst_height;
  const int64_t plane_bytes = height * row_bytes;
  const int64_t overhang = 2 * p.padding_height;
  const int64_t groups = kWarpSize / lanes;
  double least = std::numeric_limits<double>::max();
  for (int64_t planes = 1; planes <= groups; ++planes) {
    const int64_t strips = std::min(groups / planes, height);
    if ((planes > 1 && planes * plane_bytes > kMostBytes) ||
        planes * strips * lanes < least_lanes) {
      continue;
    }
    const int64_t wanted = planes > 1 ? 1 : divide_up(plane_bytes, kMostBytes);
    const int64_t rows = divide_up(divide_up(height, wanted), strips);
    const int64_t bands = divide_up(height, rows * strips);
    const double time = static_cast<double>(bands * (rows + overhang + kBegin)) / planes;
    // The march begins and ends with `overhang` rows that are steps of their own.
    if (rows >= overhang && time < least) {
      least = time;
      s.planes = planes;
      s.strips = strips;
      s.rows = rows;
      s.bands = bands;
    }
  }
  if (least == std::numeric_limits<double>::max() ||
      (s.bands == 1 ? plane_bytes : row_bytes) % kBulkBytes != 0) {
    return false;
  }
  const int64_t rows = std::min<int64_t>(s.rows * s.strips, height);
  s.all_planes = p.batch * (p.channels / Traits::kOutputs);
  s.lanes = lanes;
  s.chunks = divide_up(s.all_planes, s.planes) * s.bands;
  s.src_bytes = s.planes * std::min(rows + overhang, height) * row_bytes;
  s.dst_bytes = Traits::kOutputs * s.planes * rows * row_bytes;
  return true;
}

// Which chunks go to which warp: in turns to as many warps as are resident, or a few that follow each other,
// so that faster multiprocessors get more of them. That is better where there is little to compute for
// what is copied (k3 fp32 144@56 124 -> 119 us, 32@112 111 -> 106), and else is not (k5 fp32 96@56
// 94 -> 103, k3 fp16 32@112 60 -> 69).
template <typename Traits>
void plan_shares(FlatStrips& s, int64_t resident) {
  constexpr bool kCopies = Traits::kTaps == 9 && sizeof(typename Traits::scalar_t) == sizeof(float);
  constexpr int64_t kManyRounds = 20;
  constexpr int32_t kFewChunks = 2;
  const int64_t rounds = divide_up(s.chunks, resident);
  if (kCopies && rounds >= kManyRounds) {
    s.share = kFewChunks;
    s.first_step = kFewChunks;
    s.step = 1;
  } else {
    s.share = rounds;
    s.first_step = 1;
    s.step = divide_up(divide_up(s.chunks, rounds), kWarps) * kWarps;
  }
}

template <typename Traits>
bool launch_flat(const ForwardPass& pass, const UnitStridePass& p, int64_t least_lanes) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  FlatStrips s{};
  if (p.padding_height != Traits::kPadding || p.padding_width != Traits::kReach ||
      !strips_aligned(pass, p.dst_width, kVector, kBulkBytes) ||
      !plan_chunks<Traits>(s, p, least_lanes)) {
    return false;
  }
  const size_t shared = Traits::kHead + kWarps * (Traits::kStages * s.src_bytes + s.dst_bytes);
  if (!has_shared(shared)) {
    return false;
  }
  const auto kernel = strips_flat_kernel<Traits>;
  plan_shares<Traits>(s, resident_blocks(kernel, kThreads, shared) * kWarps);
  const unsigned int grid = divide_up(divide_up(s.chunks, s.share), kWarps);
  kernel<<<grid, dim3(kWarpSize, kWarps), shared, c10::cuda::getCurrentCUDAStream()>>>(
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      s);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

template <typename scalar_t, typename Window>
bool launch_window(const ForwardPass& pass, const UnitStridePass& p) {
  // 144@56 k3 of one image 6.2 us, 5.3 by single elements; of two 7.8 and 8.6.
  constexpr int64_t kFew = 132 * 4 * 1024;
  const int64_t elements = static_cast<int64_t>(p.batch) * p.channels * p.dst_height * p.dst_width;
  if constexpr (Window::kHeight == 3) {
    constexpr int64_t kLeastLanes = 24;
    if (elements <= kFew) {
      return false;
    }
    if (p.multiplier > 1) {
      // In 16 bit strips whose rows come from device memory are faster (32@112 28 us, 31 here), as they are of
      // fewer elements in float (six images of 32@112 12.9 and 13.9, but 64 of 16@56 15.1 and 14.6).
      constexpr int64_t kSome = 132 * 40 * 1024;
      if constexpr (sizeof(scalar_t) == sizeof(float)) {
        return elements > kSome &&
            launch_flat<FlatTraits<scalar_t, Window, 4, 2>>(pass, p, kLeastLanes);
      }
      return false;
    }
    if constexpr (sizeof(scalar_t) == 2) {
      if (launch_flat<FlatTraits<scalar_t, Window, 8>>(pass, p, kLeastLanes)) {
        return true;
      }
    }
    return launch_flat<FlatTraits<scalar_t, Window, 4>>(pass, p, kLeastLanes);
  } else {
    // Where 24 of 32 lanes work, strips of all the columns are faster: 64@96 56 us, 53 there. So they are where
    // there are few elements, in bands above all: 144@56 of 32 images 42 us, 40 there; 256@20 of 128, about
    // as many, 34 and 43.
    constexpr int64_t kLeastLanes = 26;
    constexpr int64_t kSome = 132 * 64 * 1024;
    constexpr int64_t kMany = 132 * 112 * 1024;
    using Traits = FlatTraits<scalar_t, Window, 4>;
    const bool bands = p.dst_height * p.dst_width * sizeof(scalar_t) > Traits::kMostBytes;
    return p.multiplier == 1 && elements > (bands ? kMany : kSome) &&
        launch_flat<Traits>(pass, p, kLeastLanes);
  }
}

bool flat_pass(const ForwardPass& pass, const Params& window, const UnitStridePass& p) {
  return with_scalar_type(pass.src.scalar_type(), [&](auto scalar) {
    return with_window(window, [&](auto fixed) {
      using scalar_t = decltype(scalar);
      using Fixed = decltype(fixed);
      // 5 x 5 in 16 bit is for tensor cores (240@28 40 us, 47 here), 7 x 7 for strips whose rows come from
      // device memory, which read fewer twice (96@56 67 us, 77 here).
      constexpr int kMostWindow = sizeof(scalar_t) == 2 ? 3 : 5;
      if constexpr (
          Fixed::kStride > 1 || Fixed::kHeight != Fixed::kWidth || Fixed::kHeight > kMostWindow) {
        return false;
      } else {
        return launch_window<scalar_t, Fixed>(pass, p);
      }
    });
  });
}

bool flat_takes(const Params& p, int64_t most_outputs) {
  return march_fits_32_bits(p) && keeps_size_of_planes(p) && p.multiplier <= most_outputs &&
      p.dilation_height == 1 && p.dilation_width == 1;
}

} // namespace

bool strips_flat_forward(const ForwardPass& pass, const Params& p) {
  constexpr int64_t kMostOutputs = 2; // of an input channel
  if (!flat_takes(p, kMostOutputs) || pass.dst.numel() == 0) {
    return false;
  }
  return flat_pass(pass, p, unit_stride_forward(p));
}

bool strips_flat_grad_input(const ForwardPass& pass, const Params& p) {
  if (!flat_takes(p, 1) || pass.dst.numel() == 0) {
    return false;
  }
  return flat_pass(pass, p, unit_stride_grad_input(p));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
