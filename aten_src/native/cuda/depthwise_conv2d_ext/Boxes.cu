// Forward of depthwise_conv2d_ext at stride 1 in channels-last order out of shared memory, and grad_input,
// which is the forward on grad_output with the taps flipped and the padding mirrored.
//
// A block has the taps of a group of channels in the registers of its threads and streams rows of src
// through a ring of boxes (Boxes.cuh), each of which is a few rows of a stretch of columns with what the window
// reaches on either side. A thread owns a few channels of a few columns and marches down the rows (RowMarch).
// Warps ask for boxes in turn: one that always asks is the slowest, and all wait for it.
//
// Rows outside the image are never asked for. Columns outside it are zeros that are multiplied by taps, which
// is the same only for finite taps: a block that has others takes its results tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

// The tile of a thread: registers bound it, sums and taps and a row of src.
template <typename scalar_t_, typename Window, int kVector_, int kTile_, int kThreads_>
struct BoxTraits : RowMarchTraits<scalar_t_, Window, kVector_, kTile_> {
  using scalar_t = scalar_t_;
  static constexpr int kVectorBytes = kVector_ * static_cast<int>(sizeof(scalar_t));
  static constexpr int kThreads = kThreads_;
  static constexpr int kBlocks = 2; // a multiprocessor, for which registers are bounded
};

// A vector of a box.
template <typename scalar_t, int kSize>
__device__ __forceinline__ Packed<scalar_t, kSize> read_vector(const char* from) {
  Packed<scalar_t, kSize> to;
  if constexpr (to.kBytes == 2) {
    to.words[0] = *reinterpret_cast<const unsigned short*>(from);
  } else {
    to = *reinterpret_cast<const Packed<scalar_t, kSize>*>(from);
  }
  return to;
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void boxes_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ CUtensorMap map,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ Params call,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ BoxPlan b) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kVector = Traits::kVector;
  extern __shared__ __align__(kBoxBytes) char shared_boxes[];
  BoxRing ring(shared_boxes, b.stages, b.stage_bytes);
  scalar_t* const shared_taps = // [channel of the block][tap]
      reinterpret_cast<scalar_t*>(ring.boxes + b.stages * b.stage_bytes);

  const BoxPlace place(b);
  const int block_channels = b.lanes * kVector;
  const int block_channel = place.group * block_channels;
  const int lane = threadIdx.x % b.lanes;
  const int tile = threadIdx.x / b.lanes % b.tiles;
  const int image = threadIdx.x / b.lanes / b.tiles;
  const int channel = block_channel + lane * kVector;
  const int tile_column =
      tile % p.dilation_width + tile / p.dilation_width * kTile * p.dilation_width;
  const int column = place.stretch * b.stretch + tile_column;
  const bool works = image < b.images && channel < p.channels;

  // By one thread, where there is room, while there is more to ask for, as feed.image tells. At the end, a
  // stage without a run.
  const auto fill_next = [&](BoxFeed& feed) {
    while (feed.rows <= 0) {
      if (!feed.runs.more()) {
        feed.image = -1;
        ring.run(ring.filled).image = -1;
        ring.fill(0, [](uint32_t, uint32_t) {});
        return;
      }
      const BoxRun run = feed.runs.next(b, p.dilation_height);
      const SrcRows rows(run, kHeight, p.padding_height, p.dilation_height, p.src_height);
      ring.run(ring.filled) = run;
      feed.image = run.image;
      feed.row = rows.top + rows.begin * p.dilation_height;
      feed.rows = rows.end - rows.begin;
    }
    ring.fill(b.box_bytes, [&](uint32_t to, uint32_t barrier) {
      load_box(
          to,
          barrier,
          map,
          block_channel,
          place.stretch * b.stretch - p.padding_width,
          feed.row,
          feed.image);
    });
    feed.row += b.box_rows * p.dilation_height;
    feed.rows -= b.box_rows;
  };
  if (threadIdx.x == 0) {
    prefetch_map(map);
    const int bytes = min(block_channels, p.channels - block_channel) * kTaps *
        static_cast<int>(sizeof(scalar_t));
    arrive_and_expect(ring.taps(), bytes);
    load_run(shared_taps, ring.taps(), weight + block_channel * kTaps, bytes);
    BoxFeed feed{0, 0, 0, BoxRuns(b, place)};
    for (int i = 0; i < b.stages - 1 && feed.image >= 0; ++i) {
      fill_next(feed);
    }
    ring.feed() = feed;
  }
  float begin[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    begin[v] = bias && channel < p.channels ? static_cast<float>(bias[channel + v]) : 0.0f;
  }
  __syncthreads();
  wait_for(ring.taps(), 0);
  float taps[kTaps][kVector];
  bool finite = true;
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const scalar_t* from = shared_taps + (lane * kVector + v) * kTaps + (p.flip ? kTaps - 1 : 0);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap][v] = works ? static_cast<float>(*from) : 0.0f;
      finite = finite && is_finite(taps[tap][v]);
      from += p.flip ? -1 : 1;
    }
  }
  const bool careful = __syncthreads_or(!finite);

  if (careful) {
    if (threadIdx.x == 0) {
      ring.drain();
    }
#pragma unroll 1
    for (BoxRuns runs(b, place); works && runs.more();) {
      const BoxRun run = runs.next(b, p.dilation_height);
      const int n = run.image + image;
#pragma unroll 1
      for (int i = run.first_row * kTile; n < p.batch && i < run.last_row * kTile; ++i) {
        const int row = run.row_phase + i / kTile * p.dilation_height;
        const int w = column + i % kTile * p.dilation_width;
#pragma unroll 1
        for (int c = channel; w < p.dst_width && c < channel + kVector; ++c) {
          dst[((n * p.dst_height + row) * p.dst_width + w) * p.channels + c] = static_cast<
              scalar_t>(mended(
              src, weight, bias ? static_cast<float>(bias[c]) : 0.0f, call, p.flip, n, c, row, w));
        }
      }
    }
    return;
  }

  const int box_offset = min(image, b.images - 1) * b.box_rows * b.row_bytes +
      (tile_column * b.lanes + lane) * Traits::kVectorBytes;

  int turn = threadIdx.x / kWarpSize;
  BoxRun run = ring.run_of_warp(0); // there since the barrier
#pragma unroll 1
  while (run.image >= 0) {
    const SrcRows rows(run, kHeight, p.padding_height, p.dilation_height, p.src_height);
    const int n = run.image + image;
    int columns = 0; // inside the image
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      columns += works && n < p.batch && column + t * p.dilation_width < p.dst_width;
    }
    char* to = reinterpret_cast<char*>(
        dst +
        (((n * p.dst_height + run.row_phase + run.first_row * p.dilation_height) * p.dst_width +
          column) *
             p.channels +
         channel));
    const auto store_row = [&](const float (&row)[kTile][kVector], int) {
      char* at = to;
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        store_vector_if<scalar_t, kVector>(t < columns, reinterpret_cast<scalar_t*>(at), row[t]);
        at += b.dst_column;
      }
      to += b.dst_row;
    };
    RowMarch<Traits> march(begin);
    int i = rows.begin;
#pragma unroll 1
    while (i < rows.end) {
      const char* from = ring.wait() + box_offset;
      const int next = min(i + b.box_rows, rows.end);
#pragma unroll 1
      for (; i < next; ++i) {
        Packed<scalar_t, kVector> row[Traits::kColumns];
        const char* at = from;
#pragma unroll
        for (int c = 0; c < Traits::kColumns; ++c) {
          row[c] = read_vector<scalar_t, kVector>(at);
          at += b.column_bytes;
        }
        from += b.row_bytes;
        if (i + 1 == next) {
          if (turn == 0) {
            turn = b.threads / kWarpSize;
            if (threadIdx.x % kWarpSize == 0) {
              ring.take_turn();
              BoxFeed feed = ring.feed();
              if (feed.image >= 0) {
                fill_next(feed);
                ring.feed() = feed;
              }
            }
          }
          --turn;
          ring.release();
        }
        float values[Traits::kColumns][kVector];
#pragma unroll
        for (int c = 0; c < Traits::kColumns; ++c) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            values[c][v] = unpack(row[c], v);
          }
        }
        // Rows of other runs are not worth their products once there are many taps.
        if (kTaps <= 9 || (i - (kHeight - 1) >= run.first_row && i < run.last_row)) {
          march.template add<true>(i, run.first_row, run.last_row, values, taps, begin, store_row);
        } else {
          march.template add<false>(i, run.first_row, run.last_row, values, taps, begin, store_row);
        }
      }
    }
    march.finish(rows.end, run.first_row, run.last_row, store_row);
    ring.wait();
    run = ring.run_of_warp(ring.used);
  }
#endif
}

template <typename Traits>
bool launch_boxes(const ForwardPass& pass, const Params& call, const UnitStridePass& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = boxes_kernel<Traits>;
  const BoxRequest request{
      p.batch,
      p.channels,
      p.dst_height,
      p.dst_width,
      p.kernel_width,
      p.dilation_height,
      p.dilation_width,
      Traits::kVector,
      Traits::kTile,
      sizeof(scalar_t),
      Traits::kThreads,
      Traits::kThreads * Traits::kBlocks / kWarpSize,
      Traits::kHeight};
  BoxPlan plan{};
  CUtensorMap map;
  if (!is_compiled_for(reinterpret_cast<const void*>(kernel), 9) || !plan_boxes(plan, request)) {
    return false;
  }
  plan_ring(plan, request);
  if (!map_boxes(
          map,
          pass.src,
          plan.lanes * Traits::kVector,
          plan.box_columns,
          plan.box_rows,
          plan.images)) {
    return false;
  }
  const int64_t pixel = pass.dst.size(1) * static_cast<int64_t>(sizeof(scalar_t));
  plan.dst_column = p.dilation_width * pixel;
  plan.dst_row = p.dilation_height * p.dst_width * pixel;
  const int64_t shared = kRingHead + plan.stages * plan.stage_bytes +
      Traits::kTaps * plan.lanes * Traits::kVector * static_cast<int64_t>(sizeof(scalar_t));
  if (!has_shared(shared)) {
    return false;
  }
  const auto grid = static_cast<unsigned int>(plan_box_shares(
      plan,
      resident_blocks(reinterpret_cast<const void*>(kernel), plan.threads, shared),
      Traits::kHeight - 1));
  launch_kernel(
      kernel,
      grid,
      plan.threads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      map,
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      call,
      p,
      plan);
  return true;
}

// The vector of channels, the tile and the threads of a block by the window.
template <typename scalar_t, typename Window>
using TraitsOf = std::conditional_t<
    Window::kHeight == 3,
    BoxTraits<scalar_t, Window, 4, 4, 256>,
    BoxTraits<scalar_t, Window, Window::kHeight == 5 ? 2 : 1, 7, 192>>;

#endif

} // namespace

template <typename scalar_t>
bool boxes_forward(const ForwardPass& pass, const Params& params) {
#if CUDART_VERSION >= 12000
  const UnitStridePass p = unit_stride_pass(params, pass.grad_input);
  // A window that lies outside the image altogether would be a row of results that no row of src reaches.
  if (!params.channels_last || params.multiplier != 1 || !fits_32_bits(params) ||
      pass.dst.numel() == 0 || p.padding_height < 0 ||
      p.padding_height > p.dilation_height * (p.kernel_height - 1) ||
      p.dilation_height > p.src_height || !boxes_take(pass.src) || !boxes_take(pass.dst) ||
      !is_aligned(pass.weight.const_data_ptr(), 16) || !device_has_boxes()) {
    return false;
  }
  return with_window(params, [&](auto window) {
    using Fixed = decltype(window);
    if constexpr (Fixed::kStride > 1) {
      return false;
    } else {
      return launch_boxes<TraitsOf<scalar_t, Fixed>>(pass, params, p);
    }
  });
#else
  return false;
#endif
}

DEPTHWISE_INSTANTIATE(boxes_forward, const ForwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
