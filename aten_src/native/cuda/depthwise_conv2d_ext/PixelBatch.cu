// Forward of depthwise_conv2d_ext in channels-last order at stride 1 in float16 and bfloat16, on the tensor
// cores, with segments of rows as rows of matrices (PixelBatch.cuh), and grad_input, which
// is the forward on grad_output with flipped taps.
//
// A warp has four channels of 16 segments and marches down the rows: a row of src is one left matrix a
// channel, and adds to the kTapRows rows of dst that it meets, whose sums are in registers. So each row is
// read once, and its products do not wait for one another. A round of kTapRows rows is unrolled without a
// branch around what they do, so that the results of one row and the reading of the next are woven into the
// products of this one: two warps a scheduler hide no more than that (96@56 k7 in half 40.5 us with a switch
// over the slots of sums, 33.8 without).
//
// The warps of a block share boxes of src and of results in shared memory. They meet twice a round; then each
// of four, one of each scheduler, asks for a box and sends one, as the tensor copy engine keeps waiting who
// asks for several, while the others go on (96@56 k7 28.2 us where each of all eight did either, 26.8 so).
// There are two areas of results: one is sent while the other is written. A block has 64 bytes of channels
// rather than 32: 96@56 k7 27.6 us and 33.8, 240@28 k5 31.4 and 41.5.
//
// Rows above and below the image are never asked for: the last results of a run that ends there are handed
// on without products. Columns beside it come as zeros, and are multiplied: at the end of a block, results
// that are NaN are taken again, tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/PixelBatch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

// What is asked for next, as BoxFeed has it, and whether it is the second part of a round.
struct PixelFeed {
  int32_t row;
  int32_t rows;
  int32_t image;
  int32_t second;
  BoxRuns runs;
};

template <typename scalar_t_, int kWindow_, int kChannelBytes_>
struct PixelBatchTraits {
  using scalar_t = scalar_t_;
  using Taps = PaddedTaps<kWindow_>;
  static constexpr int kWindow = kWindow_;
  static constexpr int kTapRows = kWindow;
  static constexpr int kChannelBytes = kChannelBytes_; // of a block
  static constexpr int kChannels = kChannelBytes / 2;
  static constexpr int kWarps = kChannelBytes / kQuadBytes;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kMovers = 4; // warps that ask and send
  static constexpr int kWarpsResident = 8; // of a multiprocessor, as registers allow
  static constexpr int kBlocks = kWarpsResident / kWarps;
  // A round of the march is kTapRows rows, all unrolled, in two parts. A stage of the ring is the rows of a
  // part, and so is an area of results.
  static constexpr int kFirstRows = (kTapRows + 1) / 2;
  static constexpr int kHead = 1024; // of shared memory, where a swizzle of any size may begin
  static constexpr int kResultBytes = kMatrixRows * kSegment * kChannelBytes; // of a row
  static constexpr int kAreaBytes = kFirstRows * kResultBytes;
  // Before the first results padded taps lie there.
  static constexpr int kResultsBytes = 2 * kAreaBytes;
  static_assert(kHead >= kRingHead + 2 * sizeof(PixelFeed) && kHead % kBoxBytes == 0);
  static_assert(kChannels * Taps::kChannelBytes <= kResultsBytes);
  static_assert(kChannels * kWindow <= kThreads); // a row of taps each
};

// Sums of the rows of dst under way, and what they are made of.
template <typename Traits>
struct PixelMarch {
  using scalar_t = typename Traits::scalar_t;
  using Fragments = PixelFragments<Traits::kChannelBytes>;
  static constexpr int kTapRows = Traits::kTapRows;
  using Words = uint2[2][2]; // packed results: [segment and the eighth after it][column, next]

  uint32_t bands[kQuad][kTapRows][2];
  float begin[kQuad];
  float sums[kTapRows][kQuad][4];

  __device__ __forceinline__ void restart() {
#pragma unroll
    for (int row = 0; row < kTapRows; ++row) {
#pragma unroll
      for (int c = 0; c < kQuad; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[row][c][i] = 0.0f;
        }
      }
    }
  }

  // Adds a row of src. The row of dst that begins with it has slot kSlot.
  template <int kSlot>
  __device__ __forceinline__ void multiply(const Fragments& row) {
#pragma unroll
    for (int kh = kTapRows - 1; kh >= 0; --kh) {
#pragma unroll
      for (int c = 0; c < kQuad; ++c) {
        float (&sum)[4] = sums[(kSlot + kTapRows - kh) % kTapRows][c];
        if (kh == 0) {
          sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        }
        const uint32_t (&a)[4] = row.words[c];
        multiply_16<scalar_t>(sum, a[0], a[1], a[2], a[3], bands[c][kh][0], bands[c][kh][1]);
      }
    }
  }

  // The row of dst that ended with the row of src of slot kSlot.
  template <int kSlot>
  __device__ __forceinline__ void pack(Words& words) const {
    constexpr int kDone = (kSlot + 1) % kTapRows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto result = [&](int c) {
          return sums[kDone][c][2 * half + i] + begin[c];
        };
        words[half][i].x = pack_two<scalar_t>(result(0), result(1));
        words[half][i].y = pack_two<scalar_t>(result(2), result(3));
      }
    }
  }
};

// Where a block is: its first channel, its phase of columns, and its first column in it, of dst and of src.
struct PixelPlace {
  int32_t channel;
  int32_t phase;
  int32_t column;
  int32_t src_column;
};

// Rows of src that a run takes, at least one, as SrcRows has them.
struct PixelSrcRows {
  int32_t top;
  int32_t begin;
  int32_t end;

  __device__ __forceinline__
  PixelSrcRows(const BoxRun& run, const UnitStridePass& p, const PixelBatchPlan& b) {
    const auto rows_in = [&](int span) {
      return b.by_dilation.quotient(span + p.dilation_height - 1);
    };
    top = run.row_phase - p.padding_height;
    begin = max(run.first_row, rows_in(-top));
    end = min(run.last_row + p.kernel_height - 1, rows_in(p.src_height - top));
  }
};

// Asks for the next stage, into one that all have read: by one thread of each of `warps` warps, of which this
// is `warp`.
template <typename Traits>
__device__ __forceinline__ void fill_pixel_stage(
    PixelFeed& feed,
    int stage,
    int warp,
    int warps,
    const BoxRing& ring,
    const CUtensorMap& map,
    const PixelPlace& place,
    const UnitStridePass& p,
    const PixelBatchPlan& b) {
  if (feed.rows <= 0) {
    BoxRun run;
    if (!next_pixel_run(run, feed.runs, b, p.dilation_height)) {
      feed.image = -1;
      return;
    }
    const PixelSrcRows rows(run, p, b);
    feed.image = run.image;
    feed.row = rows.top + rows.begin * p.dilation_height;
    feed.rows = rows.end - rows.begin;
    feed.second = 0;
  }
  const int most = feed.second ? Traits::kTapRows - Traits::kFirstRows : Traits::kFirstRows;
  const int count = min(most, feed.rows);
  if (warp == 0) {
    arrive_and_expect(ring.full(stage), count * b.box_bytes);
  }
#pragma unroll 1
  for (int i = warp; i < count; i += warps) {
    load_box(
        shared_address(ring.boxes + stage * b.stage_bytes + i * b.slot_bytes),
        ring.full(stage),
        map,
        place.channel,
        place.src_column,
        feed.row + i * p.dilation_height,
        feed.image);
  }
  feed.row += count * p.dilation_height;
  feed.rows -= count;
  feed.second ^= 1;
}

// A block's results of a run that are NaN again, tap by tap. By all threads, after those that sent them know
// that they are in device memory.
template <typename Traits>
__device__ __noinline__ void retake_pixels(
    typename Traits::scalar_t* dst,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    const typename Traits::scalar_t* bias,
    const UnitStridePass& p,
    const BoxRun& run,
    int images,
    const PixelPlace& place,
    int columns) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kChannels = Traits::kChannels;
  const int last_image = min(p.batch, run.image + images);
  const int pixels = (run.last_row - run.first_row) * columns;
#pragma unroll 1
  for (int n = run.image; n < last_image; ++n) {
#pragma unroll 1
    for (int i = threadIdx.x; i < pixels * kChannels; i += Traits::kThreads) {
      const int c = place.channel + i % kChannels;
      const int row = run.row_phase + (run.first_row + i / kChannels / columns) * p.dilation_height;
      const int w = place.phase + (place.column + i / kChannels % columns) * p.dilation_width;
      if (c >= p.channels || w >= p.dst_width) {
        continue;
      }
      scalar_t* const to = dst + ((n * p.dst_height + row) * p.dst_width + w) * p.channels + c;
      scalar_t result;
      result.x = *reinterpret_cast<volatile unsigned short*>(to);
      if (isnan(static_cast<float>(result))) {
        *to = static_cast<scalar_t>(careful_output<true>(
            src + n * p.src_height * p.src_width * p.channels + c,
            weight + c * p.kernel_height * p.kernel_width,
            bias ? static_cast<float>(bias[c]) : 0.0f,
            p,
            row,
            w));
      }
    }
  }
}

// Calls function(kValue as a constant) for a value from kFirst on, below kEnd.
template <int kFirst, int kEnd, typename Function>
__device__ __forceinline__ void with_constant(int value, const Function& function) {
  if constexpr (kFirst < kEnd) {
    if (value == kFirst) {
      function(std::integral_constant<int, kFirst>());
    } else {
      with_constant<kFirst + 1, kEnd>(value, function);
    }
  }
}

// A warp's march down the rows of the block's share. What is NaN or infinite of its results stays in `seen`.
template <typename Traits>
__device__ __forceinline__ void march_pixel_rows(
    uint32_t (&seen)[2],
    BoxRing& ring,
    char* shared,
    const ColumnPhases<>& maps,
    const typename Traits::scalar_t* weight,
    const typename Traits::scalar_t* bias,
    const PixelPlace& place,
    int quad,
    const UnitStridePass& p,
    const PixelBatchPlan& b) {
  using scalar_t = typename Traits::scalar_t;
  using March = PixelMarch<Traits>;
  using Fragments = typename March::Fragments;
  using Taps = typename Traits::Taps;
  constexpr int kTapRows = Traits::kTapRows;
  constexpr int kFirstRows = Traits::kFirstRows;
  constexpr int kChannelBytes = Traits::kChannelBytes;
  constexpr int kChannels = Traits::kChannels;
  constexpr int kMovers = Traits::kMovers;
  char* const results = shared + Traits::kHead;
  PixelFeed* const feeds = reinterpret_cast<PixelFeed*>(shared); // this one, the next
  const CUtensorMap& dst_map = maps.dst[place.phase];
  const CUtensorMap& src_map = maps.src[place.phase];
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  const auto fill = [&](PixelFeed& feed, int stage, int warp, int warps) {
    fill_pixel_stage<Traits>(feed, stage, warp, warps, ring, src_map, place, p, b);
  };
  // A row of a channel's taps is a thread's. They travel while the boxes are asked for.
  const int tap_channel = threadIdx.x / Traits::kWindow;
  const bool has_taps = tap_channel < min(kChannels, p.channels - place.channel);
  const auto* const from = reinterpret_cast<const unsigned short*>(
      weight + place.channel * Taps::kTaps + threadIdx.x * Traits::kWindow);
  unsigned short taps[Traits::kWindow];
#pragma unroll
  for (int i = 0; i < Traits::kWindow; ++i) {
    taps[i] = has_taps ? __ldg(from + i) : 0;
  }
  if (threadIdx.x == 0) {
    PixelFeed feed{0, 0, 0, 0, pixel_runs(b, blockIdx.z)};
    fill(feed, 0, 0, 1);
    feeds[0] = feed;
  }
  // Padded taps lie where results will.
  unsigned short* const padded = reinterpret_cast<unsigned short*>(results);
#pragma unroll 1
  for (int i = threadIdx.x * kBlockBytes; i < kChannels * Taps::kChannelBytes;
       i += Traits::kThreads * kBlockBytes) {
    *reinterpret_cast<uint4*>(results + i) = make_uint4(0, 0, 0, 0);
  }
  const int channel = place.channel + quad * kQuad;
  const Lane at;
  March march;
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    march.begin[c] =
        bias && channel + c < p.channels ? static_cast<float>(bias[channel + c]) : 0.0f;
  }
  const typename Fragments::Places places(b, quad, at);
  // Where the lane's results lie in a row of results. Matrix rows of no segment are the first segment's, and
  // write what that does; the last of a lane's eight columns is the next segment's.
  char* result_place[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SegmentPlace segment(at.row + half * kOctet, b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pixel = (segment.image * b.segments + segment.segment) * kSegment + 2 * at.pair + i;
      result_place[half][i] = results + swizzled<kChannelBytes>(pixel, quad * kQuadBytes);
    }
  }
  const bool has_odd = 2 * at.pair + 1 < kSegment;
  __syncthreads();
  if (has_taps) {
    const int row = threadIdx.x - tap_channel * Traits::kWindow;
    Taps::put(padded + tap_channel * Taps::kChannel, row, taps, p.flip);
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    Taps::read(march.bands[c], padded + (quad * kQuad + c) * Taps::kChannel, at);
  }
  __syncthreads();
  // Not before the taps are there: they would wait for the boxes.
  if (first_lane) {
    PixelFeed feed = feeds[0];
#pragma unroll 1
    for (int stage = 1; stage < b.stages && feed.image >= 0; ++stage) {
      fill(feed, stage, quad, Traits::kWarps);
    }
    if (quad == 0) {
      feeds[1] = feed;
    }
  }

  int turn = 1; // which of the feeds is next
  int part = 0; // of all of the share
  int other = Traits::kAreaBytes; // from this area of results to the other

  BoxRuns runs = pixel_runs(b, blockIdx.z);
  BoxRun run;
#pragma unroll 1
  while (next_pixel_run(run, runs, b, p.dilation_height)) {
    const PixelSrcRows rows(run, p, b);
    march.restart();
    Fragments row;
    typename Fragments::Raw raw;
    const char* next = ring.wait();
    raw.load(next, places);
    row.arrange(raw);
    int i = rows.begin;

    // The results that row `kAt` of a round ends.
    const auto put = [&](auto of_round, const typename March::Words& words) {
      constexpr int kAt = decltype(of_round)::value;
      constexpr int kOfPart = kAt < kFirstRows ? kAt : kAt - kFirstRows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          look_at<scalar_t>(seen[0], words[half][j].x);
          look_at<scalar_t>(seen[1], words[half][j].y);
          if (j == 0 || has_odd) {
            *reinterpret_cast<uint2*>(result_place[half][j] + kOfPart * Traits::kResultBytes) =
                words[half][j];
          }
        }
      }
    };
    // Row `kAt` of a round; whether the run goes on. The next row is read while this one is multiplied.
    const auto step = [&](auto of_round) {
      constexpr int kAt = decltype(of_round)::value;
      const bool goes_on = i + 1 < rows.end;
      if (kAt + 1 == kFirstRows || kAt + 1 == kTapRows) {
        if (goes_on) {
          ring.advance(ring.used, ring.used_parity);
          next = ring.wait();
        }
      } else {
        next += b.slot_bytes;
      }
      raw.load(next, places);
      march.template multiply<kAt>(row);
      typename March::Words words;
      march.template pack<kAt>(words);
      row.arrange(raw);
      put(of_round, words);
      ++i;
      return goes_on;
    };
    // The warps meet after a part of `count` rows; the next one's results are of the other area. Those that
    // move boxes ask for another stage if the part had one.
    const auto meet = [&](int count, bool asks) {
      fence_for_copies();
      if (first_lane) {
        wait_until_sent(); // what the next part's results will be written over
      }
      __syncthreads();
      if (first_lane && (Traits::kWarps == kMovers || quad / kMovers == part % 2)) {
        const int mover = quad % kMovers;
        const int first_row = i - count - (kTapRows - 1); // of dst
        const char* const area = results + part % 2 * Traits::kAreaBytes;
#pragma unroll 1
        for (int j = mover; j < count; j += kMovers) {
          if (first_row + j >= run.first_row) {
            store_box(
                dst_map,
                area + j * Traits::kResultBytes,
                place.channel,
                place.column,
                run.row_phase + (first_row + j) * p.dilation_height,
                run.image);
          }
        }
        if (asks) {
          PixelFeed feed = feeds[turn];
          if (feed.image >= 0) {
            fill(feed, (ring.used == 0 ? ring.stages : ring.used) - 1, mover, kMovers);
          }
          if (mover == 0) {
            feeds[turn ^ 1] = feed;
          }
        }
      }
      turn ^= asks;
      ++part;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          result_place[half][j] += other;
        }
      }
      other = -other;
    };
    const int of_first = i;
#pragma unroll 1
    while (true) {
      if (!take_steps<0, kFirstRows>(step)) {
        break;
      }
      meet(kFirstRows, true);
      if (!take_steps<kFirstRows, kTapRows>(step)) {
        break;
      }
      meet(kTapRows - kFirstRows, true);
    }
    ring.advance(ring.used, ring.used_parity);
    // The results that are left; those of a part are taken beside the part's last rows of src.
    const int end = run.last_row + kTapRows - 1;
    int in_round = (i - of_first - 1) % kTapRows + 1; // rows
    bool asks = true;
#pragma unroll 1
    for (bool second = in_round > kFirstRows;; second = !second) {
#pragma unroll 1
      for (const int beyond = second ? kTapRows : kFirstRows; in_round < beyond && i < end;
           ++in_round, ++i) {
        with_constant<0, kTapRows>(in_round, [&](auto of_round) {
          typename March::Words words;
          march.template pack<decltype(of_round)::value>(words);
          put(of_round, words);
        });
      }
      meet(second ? in_round - kFirstRows : in_round, asks);
      if (i >= end) {
        break;
      }
      asks = false;
      in_round = in_round == kTapRows ? 0 : in_round;
    }
  }
  if (first_lane) {
    wait_until_sent(); // before the block ends
  }
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(Traits::kThreads, Traits::kBlocks)
__global__ void pixel_batch_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const __grid_constant__ ColumnPhases<> maps,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ UnitStridePass p,
    const __grid_constant__ PixelBatchPlan b) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(Traits::kHead) char shared_boxes[];
  BoxRing ring(shared_boxes + Traits::kHead - kRingHead, b.stages, b.stage_bytes, 1);
  ring.boxes = shared_boxes + Traits::kHead + Traits::kResultsBytes;
  // The same for all lanes, as the compiler sees from this.
  const int quad = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  PixelPlace place;
  place.channel = blockIdx.x * Traits::kChannels;
  place.phase = blockIdx.y / b.phase_stretches;
  place.column = (blockIdx.y - place.phase * b.phase_stretches) * b.stretch;
  place.src_column = maps.first[place.phase] + place.column;
  uint32_t seen[2] = {};
  march_pixel_rows<Traits>(seen, ring, shared_boxes, maps, weight, bias, place, quad, p, b);
  if (__syncthreads_or((seen[0] | seen[1]) != 0)) {
    wait_until_stored();
    __syncthreads();
    BoxRuns runs = pixel_runs(b, blockIdx.z);
    BoxRun run;
#pragma unroll 1
    while (next_pixel_run(run, runs, b, p.dilation_height)) {
      retake_pixels<Traits>(dst, src, weight, bias, p, run, b.images, place, b.stretch);
    }
  }
#endif
}

// Columns of images, or of a few of them, of a group of channels, from which 64 bytes of channels a block are
// better than 32: 96@56 k7 of 8 images (12) 13.6 us and 12.1, of 32 (48) 19.6 and 19.8, of 64 27.6 and 33.2.
constexpr int64_t kLeastUnits = 48;

template <typename Traits>
bool launch_pixel_batch(const ForwardPass& pass, const UnitStridePass& p, int64_t least_units) {
  using scalar_t = typename Traits::scalar_t;
  constexpr auto kernel = pixel_batch_kernel<Traits>;
  PixelBatchPlan plan{};
  if (!compiled_for_sm_90<kernel>() ||
      !plan_pixel_batch(plan, p, Traits::kChannelBytes, Traits::kFirstRows)) {
    return false;
  }
  const int64_t across = int64_t{plan.groups} * plan.stretches;
  if (across * divide_up(p.batch, plan.images) < least_units) {
    return false;
  }
  constexpr int64_t kMostBytes = 224 * 1024; // of a multiprocessor
  constexpr int64_t kRest = Traits::kHead + Traits::kResultsBytes;
  plan.stages = std::clamp<int64_t>(
      (kMostBytes / Traits::kBlocks - kRest) / plan.stage_bytes, 2, kMostStages);
  const int64_t shared = kRest + plan.stages * plan.stage_bytes;
  ColumnPhases<> maps;
  if (!has_shared(shared) ||
      !map_column_phases<Traits::kChannelBytes>(
          maps,
          pass.dst,
          plan.stretch,
          pass.src,
          plan.box_columns,
          plan.images,
          p.dilation_width,
          p.padding_width)) {
    return false;
  }
  const int64_t blocks = plan_box_shares(
      plan, resident_blocks(kernel, Traits::kThreads, shared), Traits::kTapRows - 1);
  if (plan.stretches > kMostGridRows || blocks / across > kMostGridRows) {
    return false;
  }
  const dim3 grid(plan.groups, plan.stretches, blocks / across);
  launch_kernel(
      kernel,
      grid,
      Traits::kThreads,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      maps,
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      plan);
  return true;
}

// Dilated 5 x 5 whose phases are no wider: 384@14, dilation 2, of 128 images 22.5 to 23.7 us by boxes, 24 here.
constexpr int64_t kNarrowPhase = kSegment;

bool pixel_batch_pass(const ForwardPass& pass, const Params& params, const UnitStridePass& p) {
  const Type type = pass.src.type();
  if (!params.channels_last || params.multiplier != 1 || params.stride_height != 1 ||
      params.stride_width != 1 || !is_16_bit(type) || pass.dst.numel() == 0 ||
      pass.src.numel() == 0 || p.padding_height < 0 ||
      p.padding_height > p.dilation_height * (p.kernel_height - 1) ||
      p.src_height < p.dilation_height || p.dst_height < p.dilation_height ||
      p.kernel_height != p.kernel_width || !march_fits_32_bits(params) || !boxes_take(pass.src) ||
      !boxes_take(pass.dst) || !device_has_boxes()) {
    return false;
  }
  const bool narrow =
      p.dilation_width > 1 && divide_up(p.dst_width, p.dilation_width) <= kNarrowPhase;
  // By 64 bytes of channels a block, or by 32 where that would leave few blocks.
  const auto with_window = [&](auto scalar, auto window) {
    using scalar_t = decltype(scalar);
    constexpr int kWindow = decltype(window)::value;
    return launch_pixel_batch<PixelBatchTraits<scalar_t, kWindow, 64>>(pass, p, kLeastUnits) ||
        launch_pixel_batch<PixelBatchTraits<scalar_t, kWindow, 32>>(pass, p, 0);
  };
  const auto with_scalar = [&](auto scalar) {
    switch (p.kernel_height) {
      case 5:
        return !narrow && with_window(scalar, std::integral_constant<int, 5>());
      case 7:
        return with_window(scalar, std::integral_constant<int, 7>());
      default:
        return false;
    }
  };
  return type == Type::kHalf ? with_scalar(c10::Half()) : with_scalar(c10::BFloat16());
}

#else

bool pixel_batch_pass(const ForwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

} // namespace

bool pixel_batch_forward(const ForwardPass& pass, const Params& p) {
  return pixel_batch_pass(pass, p, unit_stride_pass(p, pass.grad_input));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
