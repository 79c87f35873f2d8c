// Forward of depthwise_conv2d_ext in float32 at stride 1 in channels-last order, for windows of
// many taps, and grad_input, which is the forward on grad_output with the taps flipped and the
// padding mirrored.
//
// A lane is a channel, whose taps its registers keep, and a warp marches ALONG some rows of dst at
// once: at each column of src it reads one value a row out of shared memory, each of which feeds
// the results of all rows and columns that it belongs to. Their sums are in registers: of a row
// slot k holds the dst column that this src column reaches with kernel column k. With the first
// product of a column the sums move on a slot, so that the shift costs nothing. Of seven rows by 7
// x 7 a column is 343 products, 13 loads and 7 stores of whole lines. Columns outside the image are
// never visited.
//
// A unit of work is a tile of rows of one or a few images by a group of channels: the warps of a
// block have seven rows each. Its columns come, a few at a time, through a ring of boxes
// (Boxes.cuh) with zeros for rows outside the image. Blocks side by side are
// groups of channels of the same rows.
//
// Those zeros are multiplied by taps, which is the same only for finite taps: a block that has
// others takes its results tap by tap.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

// How a pass is cut. Warps of a block are tiles of rows innermost, then images.
struct AlongPlan {
  int32_t groups; // of channels
  int32_t row_warps; // of an image
  int32_t images; // of a block
  int32_t tiles; // of rows, of an image
  int32_t units;
  int32_t image_bytes; // of a box
  int32_t box_bytes;
  int32_t stages;
  int32_t stage_bytes; // of a box and a column, which is read behind its last for nothing
};

template <typename Window, int kColumns_, bool kPlane_>
struct AlongTraits {
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kRows = 7; // of dst, of a warp
  // Whether planes are of kRows rows, which a warp has by itself; else rows outside the image are
  // zeros.
  static constexpr bool kPlane = kPlane_;
  static constexpr int kAbove =
      kPlane ? (kHeight - 1) / 2 : 0; // rows of taps that row 0 does not meet
  static constexpr int kSrcRows = kPlane ? kRows : kRows + kHeight - 1;
  // Columns of taps from here on are summed by themselves.
  static constexpr int kOwnColumn = kFirstOwnRow<float, Window>;
  static constexpr int kChannels = kWarpSize; // of a box
  static constexpr int kColumns = kColumns_; // of a box
  static constexpr int kColumnBytes = kChannels * static_cast<int>(sizeof(float));
  static constexpr int kRowBytes = kColumns * kColumnBytes;
  static constexpr int kWarps = kHeight > 5 ? 12 : 16; // of a multiprocessor
  static constexpr int kThreads = kWarps * kWarpSize;
};

// The sums of a warp's rows.
template <typename Traits>
struct AlongMarch {
  static constexpr int kHeight = Traits::kHeight;
  static constexpr int kWidth = Traits::kWidth;
  static constexpr int kRows = Traits::kRows;

  float slots[kRows][kWidth];

  __device__ __forceinline__ explicit AlongMarch(float begin) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        slots[r][k] = begin;
      }
    }
  }

  // Adds a column of src to slots kFrom ... kTo - 1; calls row_done(r) with each row of dst that is
  // done, and value_done(y) with each value.
  template <int kFrom, int kTo, typename RowDone, typename ValueDone>
  __device__ __forceinline__ void add_to_slots(
      const float (&values)[Traits::kSrcRows],
      const float (&taps)[Traits::kTaps],
      float begin,
      const RowDone& row_done,
      const ValueDone& value_done) {
    float sums[kRows][kTo];
#pragma unroll
    for (int y = 0; y < Traits::kSrcRows; ++y) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int kh = y - r + Traits::kAbove;
        if (kh < 0 || kh >= kHeight) {
          continue;
        }
        const bool first = kh == 0 || y == 0;
        const bool last = kh == kHeight - 1 || y == Traits::kSrcRows - 1;
#pragma unroll
        for (int k = kTo - 1; k >= kFrom; --k) {
          const bool own = k >= Traits::kOwnColumn;
          const float before = k > 0 ? slots[r][k > 0 ? k - 1 : 0] : begin;
          const float tap = taps[kh * kWidth + k];
          sums[r][k] = !first ? fmaf(values[y], tap, sums[r][k])
              : own           ? values[y] * tap
                              : fmaf(values[y], tap, before);
          if (last) {
            slots[r][k] = own ? before + sums[r][k] : sums[r][k];
          }
        }
        if (last) {
          row_done(r);
        }
      }
      value_done(y);
    }
  }

  // Adds a column of src, of whose values each is read again, for the next column, when it was
  // used; calls done(r) when the dst column of slot kWidth - 1 is complete in row r. The slots that
  // are summed by themselves come first, and what stands between them and the others is a barrier
  // to the compiler alone, which else mixes both so that fewer products in a row share an operand
  // (96@56 k7 60.0 us and 53.7).
  template <typename Read, typename Done>
  __device__ __forceinline__ void add_column(
      float (&values)[Traits::kSrcRows],
      const float (&taps)[Traits::kTaps],
      float begin,
      const Read& read,
      const Done& done) {
    constexpr int kOwn = Traits::kOwnColumn;
    add_to_slots<kOwn, kWidth>(values, taps, begin, done, [](int) {});
    __syncwarp();
    add_to_slots<0, kOwn>(values, taps, begin, [](int) {}, [&](int y) { values[y] = read(y); });
  }
};

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, 1)
__global__ void along_rows_kernel(
    float* __restrict__ dst,
    const __grid_constant__ CUtensorMap map,
    const float* __restrict__ src,
    const float* __restrict__ weight,
    const float* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ AlongPlan b) {
#if __CUDA_ARCH__ >= 900
  constexpr int kWidth = Traits::kWidth;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kRows = Traits::kRows;
  constexpr int kChannels = Traits::kChannels;
  extern __shared__ __align__(kBoxBytes) char shared_boxes[];
  BoxRing ring(shared_boxes, b.stages, b.stage_bytes);
  float* const shared_taps = // [channel of the block][tap]
      reinterpret_cast<float*>(ring.boxes + b.stages * b.stage_bytes);

  const int warps = blockDim.x / kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int row_warp = warp % b.row_warps;
  const int image = warp / b.row_warps;
  const int first_unit = static_cast<int>(blockIdx.x) / b.groups;
  const int unit_step = static_cast<int>(gridDim.x) / b.groups;
  const int block_channel = static_cast<int>(blockIdx.x) % b.groups * kChannels;
  const int channel = block_channel + lane;
  const bool works = channel < p.channels;

  // The next box to ask for; all warps know it.
  int ahead_unit = first_unit;
  int ahead_column = 0;
  const auto ask = [&] {
    ring.fill(b.box_bytes, [&](uint32_t to, uint32_t barrier) {
      const int n = ahead_unit / b.tiles;
      const int row = (ahead_unit - n * b.tiles) * b.row_warps * kRows - p.padding_height;
      load_box(
          to, barrier, map, block_channel, ahead_column, Traits::kPlane ? 0 : row, n * b.images);
    });
  };
  const auto move_on = [&] {
    ahead_column += Traits::kColumns;
    if (ahead_column >= p.src_width) {
      ahead_column = 0;
      ahead_unit += unit_step;
    }
  };
  if (threadIdx.x == 0) {
    prefetch_map(map);
    const int bytes =
        min(kChannels, p.channels - block_channel) * kTaps * static_cast<int>(sizeof(float));
    arrive_and_expect(ring.taps(), bytes);
    load_run(shared_taps, ring.taps(), weight + block_channel * kTaps, bytes);
  }
  for (int i = 0; i < b.stages - 1; ++i) {
    if (threadIdx.x == 0 && ahead_unit < b.units) {
      ask();
    }
    move_on();
  }
  const float begin = bias && works ? static_cast<float>(bias[channel]) : 0.0f;
  __syncthreads();
  wait_for(ring.taps(), 0);
  float taps[kTaps];
  bool finite = true;
  {
    const float* from = shared_taps + lane * kTaps + (p.flip ? kTaps - 1 : 0);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap] = works ? *from : 0.0f;
      finite = finite && is_finite(taps[tap]);
      from += p.flip ? -1 : 1;
    }
  }
  const bool careful = __syncthreads_or(!finite);

  if (careful) {
    if (threadIdx.x == 0) {
      ring.drain();
    }
#pragma unroll 1
    for (int unit = first_unit; unit < b.units; unit += unit_step) {
      const int n = unit / b.tiles * b.images + image;
      const int first_row = (unit % b.tiles * b.row_warps + row_warp) * kRows;
      const int rows = min(kRows, p.dst_height - first_row);
#pragma unroll 1
      for (int i = 0; works && n < p.batch && i < rows * p.dst_width; ++i) {
        const int row = first_row + i / p.dst_width;
        const int w = i % p.dst_width;
        dst[((n * p.dst_height + row) * p.dst_width + w) * p.channels + channel] =
            careful_output<true>(
                src + n * p.src_height * p.src_width * p.channels + channel,
                weight + channel * kTaps,
                begin,
                p,
                row,
                w);
      }
    }
    return;
  }

  const int offset = image * b.image_bytes + row_warp * kRows * Traits::kRowBytes +
      lane * static_cast<int>(sizeof(float));
  const int64_t dst_column = static_cast<int64_t>(p.channels) * sizeof(float);
  const uint32_t dst_row = static_cast<uint32_t>(p.dst_width) * p.channels * sizeof(float);
  int turn = warp;
#pragma unroll 1
  for (int unit = first_unit; unit < b.units; unit += unit_step) {
    const int n = unit / b.tiles * b.images + image;
    const int first_row = (unit % b.tiles * b.row_warps + row_warp) * kRows;
    const bool mine = works && n < p.batch && first_row < p.dst_height;
    // The dst column of the last slot.
    int column = p.padding_width - (kWidth - 1);
    char* to = reinterpret_cast<char*>(
        dst + ((n * p.dst_height + first_row) * p.dst_width + column) * p.channels + channel);
    const auto store = [&](bool wanted, int r, float value) {
      const float result[1] = {value};
      store_vector_if<float, 1>(
          wanted, reinterpret_cast<float*>(to + static_cast<uint64_t>(dst_row) * r), result);
    };
    AlongMarch<Traits> march(begin);
#pragma unroll 1
    for (int x = 0; x < p.src_width; x += Traits::kColumns) {
      const char* from = ring.wait() + offset;
      float values[Traits::kSrcRows];
      const auto read = [&](int y) {
        return *reinterpret_cast<const float*>(from + y * Traits::kRowBytes);
      };
#pragma unroll
      for (int y = 0; y < Traits::kSrcRows; ++y) {
        values[y] = read(y);
      }
      const int columns = min(Traits::kColumns, p.src_width - x);
      // After the first column: by then the others have left the stage before.
      const int asks_at = turn == 0 ? max(columns - 1, 1) : 0;
      turn = (turn == 0 ? warps : turn) - 1;
#pragma unroll 1
      for (int left = columns; left > 0; --left) {
        if (left == asks_at && lane == 0 && ahead_unit < b.units) {
          ring.take_turn();
          ask();
        }
        // Of the last column what is read is not used.
        from += Traits::kColumnBytes;
        const bool wanted =
            static_cast<unsigned>(column) < static_cast<unsigned>(p.dst_width) && mine;
        march.add_column(values, taps, begin, read, [&](int r) {
          store(wanted, r, march.slots[r][kWidth - 1]);
        });
        to += dst_column;
        ++column;
      }
      move_on();
      ring.release();
    }
    // Columns that the last of src leaves.
#pragma unroll
    for (int k = kWidth - 2; k >= 0; --k) {
      if (column >= p.dst_width) {
        break;
      }
      const bool wanted = column >= 0 && mine;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        store(wanted, r, march.slots[r][k]);
      }
      to += dst_column;
      ++column;
    }
  }
#endif
}

template <typename Traits>
bool launch_along_rows(const ForwardPass& pass, const UnitStridePass& p) {
  constexpr auto kernel = along_rows_kernel<Traits>;
  constexpr int64_t kTileWarps = 4; // of a block, one for each scheduler
  constexpr int64_t kSharedBytes = 227 * 1024; // of a multiprocessor
  constexpr int64_t kReservedBytes = 1024; // of a block, by the driver
  AlongPlan plan{};
  const int64_t row_tiles = divide_up(p.dst_height, Traits::kRows);
  plan.tiles = divide_up(row_tiles, kTileWarps);
  plan.row_warps = divide_up(row_tiles, plan.tiles);
  plan.images = kTileWarps / plan.row_warps;
  plan.groups = divide_up(p.channels, Traits::kChannels);
  plan.units = divide_up(p.batch, plan.images) * plan.tiles;
  const int64_t box_rows =
      plan.row_warps * Traits::kRows + (Traits::kPlane ? 0 : Traits::kHeight - 1);
  plan.image_bytes = box_rows * Traits::kRowBytes;
  plan.box_bytes = plan.images * plan.image_bytes;
  plan.stage_bytes = plan.box_bytes + Traits::kColumnBytes;
  const int64_t warps = plan.images * plan.row_warps;
  constexpr int64_t kTapsBytes =
      Traits::kChannels * Traits::kTaps * static_cast<int64_t>(sizeof(float));
  const int64_t room =
      kSharedBytes / (Traits::kWarps / warps) - kReservedBytes - kRingHead - kTapsBytes;
  plan.stages = std::min<int64_t>(kMostStages, room / plan.stage_bytes);
  CUtensorMap map;
  if (plan.stages < 2 || !compiled_for_sm_90<kernel>() ||
      !map_boxes(map, pass.src, Traits::kChannels, Traits::kColumns, box_rows, plan.images)) {
    return false;
  }
  const int64_t shared = kRingHead + plan.stages * plan.stage_bytes + kTapsBytes;
  const int threads = warps * kWarpSize;
  const int64_t resident = resident_blocks(kernel, threads, shared);
  const int64_t most = std::max<int64_t>(1, resident / plan.groups);
  const int64_t turns = divide_up(plan.units, most); // units of a block, all the same
  // Of the multiprocessors' time, for units are long; microseconds by boxes that march down and so:
  // of a fill of .48 96@56 35.5 and 37.0, 192@28 21.2 and 21.4, of .73 52.8 and 54.4, 33.1 and 29.1,
  // 50.3 and 52.3 (twice as many), of .97 62.0 and 54.2, 33.6 and 30.5. Of wide rows those have
  // columns twice: 64@112 with .65 175 and 132. A plane of seven rows alone 8.4 and 6.8.
  constexpr int kWideRow = 64; // more columns than this
  const double least_fill = p.dst_width > kWideRow ? .6 : .75;
  if (!Traits::kPlane &&
      static_cast<double>(plan.units) * plan.groups < least_fill * turns * resident) {
    return false;
  }
  const int64_t shares = divide_up(plan.units, turns);
  kernel<<<shares * plan.groups, threads, shared, c10::cuda::getCurrentCUDAStream()>>>(
      pass.dst.mutable_data_ptr<float>(),
      map,
      pass.src.const_data_ptr<float>(),
      pass.weight.const_data_ptr<float>(),
      pointer_or_null<float>(pass.bias),
      p,
      plan);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

bool along_rows_pass(const ForwardPass& pass, const Params& params, const UnitStridePass& p) {
  if (params.multiplier != 1 || !params.channels_last || pass.src.scalar_type() != kFloat ||
      params.dilation_height != 1 || params.dilation_width != 1 || !march_fits_32_bits(params) ||
      p.padding_height < 0 || p.padding_height >= p.kernel_height || p.padding_width < 0 ||
      p.padding_width >= p.kernel_width || !boxes_take(pass.src) || !boxes_take(pass.dst) ||
      !is_aligned(pass.weight.const_data_ptr(), kBulkBytes) || !device_has_boxes()) {
    return false;
  }
  return with_window(params, [&](auto fixed) {
    using Fixed = decltype(fixed);
    if constexpr (Fixed::kStride == 1 && Fixed::kHeight >= 5) {
      using Plane = AlongTraits<Fixed, 7, true>;
      constexpr int64_t kRows = Plane::kRows;
      constexpr int64_t kFewColumns = 14;
      if (p.src_height == kRows && p.dst_height == kRows &&
          p.padding_height == Fixed::kHeight / 2) {
        return launch_along_rows<Plane>(pass, p);
      }
      // Of 5 x 5 boxes that march down are as fast (240@28 59 us and 55 to 59, of 64 images 26.7
      // and 25.9 to 27.7, 672@14 38.6 and 40.8).
      if constexpr (Fixed::kHeight > 5) {
        if (p.dst_height % kRows != 0) {
          return false;
        }
        // Boxes of four columns and of seven: 384@14 18.0 and 19.2, 192@28 29.3 and 29.5, 96@56
        // 52.8 and 52.0, 64@112 135 and 132.
        return p.src_width <= kFewColumns
            ? launch_along_rows<AlongTraits<Fixed, 4, false>>(pass, p)
            : launch_along_rows<AlongTraits<Fixed, 7, false>>(pass, p);
      }
    }
    return false;
  });
}

#else

bool along_rows_pass(const ForwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

} // namespace

bool along_rows_forward(const ForwardPass& pass, const Params& p) {
  return along_rows_pass(pass, p, unit_stride_forward(p));
}

bool along_rows_grad_input(const ForwardPass& pass, const Params& p) {
  // With fewer elements all gradients are faster in one pass by boxes, and have to have the same
  // bits.
  constexpr int64_t kLeastElements = 1024 * 1024;
  return pass.dst.numel() >= kLeastElements && along_rows_pass(pass, p, unit_stride_grad_input(p));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
