// Forward of depthwise_conv2d_ext at stride 1 in channels-last order out of shared memory, and grad_input,
// which is the forward on grad_output with the taps flipped and the padding mirrored. A channel of the input
// may have two of the output, of 3 x 3: then a thread has two of dst for each of src, or one for two.
//
// A block has the taps of a group of channels in the registers of its threads and streams rows of src
// through a ring of boxes (Boxes.cuh), each of which is a row of a stretch of columns with
// what the window reaches on either side. A thread owns a few channels of a few columns and marches down the
// rows (Boxes.cuh). Warps ask for boxes in turn: one that always asks is the slowest, and
// all wait for it (240@28 k5 in half 45 and 43 us, 96@56 k7 61 and 55, 728@65 k3 dilated by 2 42 and 35).
//
// Rows outside the image are never asked for. Columns outside it are zeros that are multiplied by taps, which
// is the same only for finite taps: a block that has others takes its results tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

// The tile of a thread: registers bound it, sums and taps and a row of src.
template <
    typename scalar_t_,
    typename Window,
    int kVector_,
    int kTile_,
    int kThreads_,
    int kBlocks_ = 2,
    bool kOwnAsker_ = false,
    int kOutputs_ = 1,
    int kSources_ = 1>
struct BoxTraits : RowMarchTraits<scalar_t_, Window, kVector_, kTile_, kSources_> {
  using scalar_t = scalar_t_;
  static constexpr int kOutputs = kOutputs_; // dst channels of a src channel
  static constexpr int kSrcVector = kVector_ * kSources_ / kOutputs;
  static constexpr int kSrcBytes = kSrcVector * static_cast<int>(sizeof(scalar_t));
  static constexpr int kAllTaps = kSources_ * Window::kHeight * Window::kWidth; // of a dst channel
  static_assert(kSrcVector * kOutputs == kVector_ * kSources_);
  static constexpr int kThreads = kThreads_; // that compute
  static constexpr bool kOwnAsker = kOwnAsker_; // a warp more that asks for boxes
  static constexpr int kAllThreads = kThreads + (kOwnAsker ? kWarpSize : 0);
  static constexpr int kBlocks = kBlocks_; // a multiprocessor, for which registers are bounded
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
C10_LAUNCH_BOUNDS_2(Traits::kAllThreads, Traits::kBlocks)
__global__ void boxes_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ CUtensorMap map,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ BoxPlan b) {
#if __CUDA_ARCH__ >= 900
  using scalar_t = typename Traits::scalar_t;
  constexpr int kHeight = Traits::kHeight;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kVector = Traits::kVector;
  constexpr int kSources = Traits::kSources;
  constexpr int kOutputs = Traits::kOutputs;
  constexpr int kSrcVector = Traits::kSrcVector;
  constexpr int kAllTaps = Traits::kAllTaps;
  extern __shared__ __align__(kBoxBytes) char shared_boxes[];
  const int asker = Traits::kOwnAsker ? b.threads : 0;
  BoxRing ring(shared_boxes, b.stages, b.stage_bytes, b.threads / kWarpSize, asker);
  scalar_t* const shared_taps = // [channel of the block][tap]
      reinterpret_cast<scalar_t*>(ring.boxes + b.stages * b.stage_bytes);

  const BoxPlace place(b);
  const int dst_channels = p.channels / kSources * kOutputs;
  const int block_channels = b.lanes * kVector;
  const int block_channel = place.group * block_channels;
  const int lane = threadIdx.x % b.lanes;
  const int tile = threadIdx.x / b.lanes % b.tiles;
  const int image = threadIdx.x / b.lanes / b.tiles;
  const int channel = block_channel + lane * kVector;
  const int tile_column =
      tile % p.dilation_width + tile / p.dilation_width * kTile * p.dilation_width;
  const int column = place.stretch * b.stretch + tile_column;
  const bool works = image < b.images && channel < dst_channels;

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
      const SrcRows rows(run, kHeight, 1, p.padding_height, p.dilation_height, p.src_height);
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
          place.group * b.lanes * kSrcVector,
          place.stretch * b.stretch - p.padding_width,
          feed.row,
          feed.image);
    });
    feed.row += b.box_rows * p.dilation_height;
    feed.rows -= b.box_rows;
  };
  if (threadIdx.x == asker) {
    prefetch_map(map);
    const int bytes = min(block_channels, dst_channels - block_channel) * kAllTaps *
        static_cast<int>(sizeof(scalar_t));
    arrive_and_expect(ring.taps(), bytes);
    load_run(shared_taps, ring.taps(), weight + block_channel * kAllTaps, bytes);
    BoxFeed feed{0, 0, 0, BoxRuns(b, place)};
    for (int i = 0; i < b.stages - 1 && feed.image >= 0; ++i) {
      fill_next(feed);
    }
    ring.feed() = feed;
  }
  float begin[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    begin[v] = bias && channel < dst_channels ? static_cast<float>(bias[channel + v]) : 0.0f;
  }
  __syncthreads();
  wait_for(ring.taps(), 0);
  float taps[kSources][kTaps][kVector];
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kVector * kSources; ++i) {
    const int v = i / kSources;
    const int q = i % kSources;
    const scalar_t* from =
        shared_taps + (lane * kVector * kSources + i) * kTaps + (p.flip ? kTaps - 1 : 0);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[q][tap][v] = works ? static_cast<float>(*from) : 0.0f;
      finite = finite && is_finite(taps[q][tap][v]);
      from += p.flip ? -1 : 1;
    }
  }
  const bool careful = __syncthreads_or(!finite);

  if (careful) {
    if (threadIdx.x == asker) {
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
          float sum = bias ? static_cast<float>(bias[c]) : 0.0f;
#pragma unroll 1
          for (int q = c * kSources; q < (c + 1) * kSources; ++q) {
            sum = careful_output<true>(
                src + n * p.src_height * p.src_width * p.channels + q / kOutputs,
                weight + q * kTaps,
                sum,
                p,
                row,
                w);
          }
          dst[((n * p.dst_height + row) * p.dst_width + w) * dst_channels + c] =
              static_cast<scalar_t>(sum);
        }
      }
    }
    return;
  }

  if (Traits::kOwnAsker && threadIdx.x >= asker) {
    if (threadIdx.x == asker) {
      BoxFeed feed = ring.feed();
      while (feed.image >= 0) {
        ring.wait_for_room();
        fill_next(feed);
      }
    }
    return;
  }

  const int box_offset = min(image, b.images - 1) * b.box_rows * b.row_bytes +
      (tile_column * b.lanes + lane) * Traits::kSrcBytes;

  int turn = threadIdx.x / kWarpSize;
  BoxRun run = ring.run_of_warp(0); // there since the barrier
#pragma unroll 1
  while (run.image >= 0) {
    const SrcRows rows(run, kHeight, 1, p.padding_height, p.dilation_height, p.src_height);
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
             dst_channels +
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
        Packed<scalar_t, kSrcVector> row[Traits::kColumns];
        const char* at = from;
#pragma unroll
        for (int c = 0; c < Traits::kColumns; ++c) {
          row[c] = read_vector<scalar_t, kSrcVector>(at);
          at += b.column_bytes;
        }
        from += b.row_bytes;
        if (i + 1 == next) {
          if (!Traits::kOwnAsker) {
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
          }
          ring.release();
        }
        float values[kSources][Traits::kColumns][kVector];
#pragma unroll
        for (int c = 0; c < Traits::kColumns; ++c) {
#pragma unroll
          for (int i = 0; i < kVector * kSources; ++i) {
            values[i % kSources][c][i / kSources] = unpack(row[c], i / kOutputs);
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
bool launch_boxes(const ForwardPass& pass, const UnitStridePass& p) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = boxes_kernel<Traits>;
  const BoxRequest request{
      p.batch,
      p.channels,
      p.dst_height,
      p.dst_width,
      p.kernel_width,
      /*stride=*/1,
      p.dilation_height,
      p.dilation_width,
      Traits::kSrcVector,
      Traits::kTile,
      sizeof(scalar_t),
      Traits::kThreads,
      Traits::kThreads * Traits::kBlocks / kWarpSize,
      Traits::kHeight};
  BoxPlan plan{};
  CUtensorMap map;
  if (!compiled_for_sm_90<kernel>() || !plan_boxes(plan, request)) {
    return false;
  }
  plan_ring(plan, request);
  if (!map_boxes(
          map,
          pass.src,
          plan.lanes * Traits::kSrcVector,
          plan.box_columns,
          plan.box_rows,
          plan.images)) {
    return false;
  }
  const int64_t pixel = pass.dst.size(1) * static_cast<int64_t>(sizeof(scalar_t));
  plan.dst_column = p.dilation_width * pixel;
  plan.dst_row = p.dilation_height * p.dst_width * pixel;
  const int64_t shared = kRingHead + plan.stages * plan.stage_bytes +
      Traits::kAllTaps * plan.lanes * Traits::kVector * static_cast<int64_t>(sizeof(scalar_t));
  if (!has_shared(shared)) {
    return false;
  }
  const int threads = plan.threads + Traits::kAllThreads - Traits::kThreads;
  const auto grid = static_cast<unsigned int>(
      plan_box_shares(plan, resident_blocks(kernel, threads, shared), Traits::kHeight - 1));
  launch_kernel(
      kernel,
      grid,
      threads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      map,
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      plan);
  return true;
}

template <typename scalar_t, typename Window>
bool launch_window(const ForwardPass& pass, const UnitStridePass& p) {
  if constexpr (Window::kHeight == 1) {
    return launch_boxes<BoxTraits<scalar_t, Window, 4, 8, 256>>(pass, p);
  } else if constexpr (Window::kHeight == 3) {
    // Few channels of wide rows: twice the warps, and one that asks (32@112 fp32 113 and 109 us, fp16 62 and
    // 58); others have short runs of memory or columns twice (384@14 22 and 24).
    constexpr int kFewChannels = 32;
    constexpr int kWideRow = 112;
    if (p.channels <= kFewChannels && p.dst_width >= kWideRow) {
      return launch_boxes<BoxTraits<scalar_t, Window, 2, 4, 224, 3, true>>(pass, p);
    }
    return launch_boxes<BoxTraits<scalar_t, Window, 4, 4, 256>>(pass, p);
  } else if constexpr (Window::kHeight == 5) {
    // 672@14 fp32 41 us by the second, 38 by the first, fp16 36 and 37; 240@28 60 and 59, 46 and 52.
    if constexpr (sizeof(scalar_t) == sizeof(float)) {
      return launch_boxes<BoxTraits<scalar_t, Window, 2, 7, 320, 1, true>>(pass, p);
    } else {
      return launch_boxes<BoxTraits<scalar_t, Window, 2, 7, 192>>(pass, p);
    }
  } else {
    return launch_boxes<BoxTraits<scalar_t, Window, 1, 7, 192>>(pass, p);
  }
}

// Where a channel of the input has two of the output: four of the output's, or two of grad_input's, a thread.
// A warp more that asks for boxes, or twice the warps of half as many channels, take the same time within 4 %.
template <typename scalar_t, typename Window>
bool launch_two(const ForwardPass& pass, const UnitStridePass& p) {
  if constexpr (Window::kHeight != 3) {
    return false; // not tried
  } else if (p.flip) {
    return launch_boxes<BoxTraits<scalar_t, Window, 2, 4, 256, 2, false, 1, 2>>(pass, p);
  } else {
    return launch_boxes<BoxTraits<scalar_t, Window, 4, 4, 256, 2, false, 2, 1>>(pass, p);
  }
}

bool boxes_pass(const ForwardPass& pass, const Params& window, const UnitStridePass& p) {
  // A window that lies outside the image altogether would be a row of results that no row of src reaches.
  if (p.padding_height < 0 || p.padding_height > p.dilation_height * (p.kernel_height - 1) ||
      p.dilation_height > p.src_height || !boxes_take(pass.src) || !boxes_take(pass.dst) ||
      !is_aligned(pass.weight.const_data_ptr(), 16) || !device_has_boxes()) {
    return false;
  }
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_window(window, [&](auto fixed) {
      if constexpr (decltype(fixed)::kStride > 1) {
        return false;
      } else {
        using scalar_t = decltype(scalar);
        using Fixed = decltype(fixed);
        return window.multiplier == 1 ? launch_window<scalar_t, Fixed>(pass, p)
                                      : launch_two<scalar_t, Fixed>(pass, p);
      }
    });
  });
}

#else

bool boxes_pass(const ForwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

bool boxes_take_pass(const Params& p, const Operand& dst, const Operand& src) {
  constexpr int64_t kMostOutputs = 2; // of an input channel
  // Of a pixel of src; with two outputs of a channel runs are faster of less (64 images of 8@112 in half 24 us
  // and 25 here).
  constexpr int64_t kLeastBytes = 32;
  const int64_t pixel = src.size(1) * static_cast<int64_t>(src.element_size());
  return p.channels_last && p.multiplier <= kMostOutputs &&
      (p.multiplier == 1 || pixel >= kLeastBytes) && march_fits_32_bits(p) && dst.numel() > 0;
}

// A pass whose channels are those of src.
bool boxes_pass_of(const ForwardPass& pass, const Params& p, UnitStridePass unit) {
  unit.channels = pass.src.size(1);
  return boxes_pass(pass, p, unit);
}

} // namespace

bool boxes_forward(const ForwardPass& pass, const Params& p) {
  return boxes_take_pass(p, pass.dst, pass.src) &&
      boxes_pass_of(pass, p, unit_stride_pass(p, pass.grad_input));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
