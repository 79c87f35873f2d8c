// One object for each DEPTHWISE_TYPE: float, c10::Half, c10::BFloat16
// Windows of one dimension along lines whose positions are `inner` elements apart: channels-last order. See
// Sequence.cuh.
//
// A block is `lanes` across channels, four to a lane, by ways along the lines. A thread has a tile of positions
// of its channels, `dilation` apart, and the window of all of them in registers; taps are in shared memory.
#include <ATen/native/cuda/depthwise_conv2d_ext/Sequence.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kVector = 4; // channels of a lane
constexpr int kMostLanes = 32;

// A share of the lines of a block's channels; with kSums kTaps taps of them from the block's first on, else all.
template <typename scalar_t, int kTaps, int kTile, bool kWrite, bool kSums>
__global__ __launch_bounds__(kSequenceThreads) void channels_kernel(
    scalar_t* __restrict__ dst,
    float* __restrict__ partial,
    const scalar_t* __restrict__ src,
    const scalar_t* __restrict__ values,
    const scalar_t* __restrict__ weight,
    const scalar_t* __restrict__ bias,
    const Sequence s,
    const Tiles tiles) {
  extern __shared__ float taps[]; // [tap][channel of the block]
  const int width = blockDim.x * kVector;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int groups = kSums ? (s.taps + kTaps - 1) / kTaps : 1;
  const int first_tap = blockIdx.x % groups * kTaps;
  const int64_t block_channel = static_cast<int64_t>(blockIdx.x / groups) * width;
  bool finite = true;
  if constexpr (kWrite) {
    for (int i = thread; i < width * s.taps; i += kSequenceThreads) {
      const int64_t of = block_channel + i / s.taps;
      const int k = i % s.taps;
      const float tap = of < s.inner
          ? static_cast<float>(weight[of % s.channels * s.taps + (s.flip ? s.taps - 1 - k : k)])
          : 0.0f;
      taps[k * width + i / s.taps] = tap;
      finite &= is_finite(tap);
    }
    finite = __syncthreads_and(finite);
  }
  const int64_t channel = block_channel + threadIdx.x * kVector;
  const bool exists = channel < s.inner;
  const float* const lane_taps = taps + threadIdx.x * kVector;
  float start[kVector] = {};
  if (bias && exists) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      start[v] = static_cast<float>(bias[(channel + v) % s.channels]);
    }
  }
  float sums[kTaps][kVector] = {};
  float total[kVector] = {}; // of src
  float excess[kVector] = {};
  // Calls visit(line of src, offset of the line of dst, first position) for each of the thread's tiles.
  const auto for_each_tile = [&](const auto& visit) {
    for (uint32_t index = blockIdx.y * blockDim.y + threadIdx.y; index < tiles.count && exists;
         index += gridDim.y * blockDim.y) {
      const auto tile = tiles.per_line.divmod(index);
      const int phase = static_cast<int>(tile.mod) % s.dilation;
      const int first = phase + static_cast<int>(tile.mod) / s.dilation * kTile * s.dilation;
      const int64_t line = tile.div;
      visit(
          src + line * s.src_length * s.inner + channel,
          line * s.dst_length * s.inner + channel,
          first);
    }
  };
  using Loaded = Packed<scalar_t, kVector>;
  // The channels at a position, zero where that is not wanted or outside the line, which clears `inside`.
  const auto load = [&](bool& inside, const scalar_t* line, int at, int length, bool wanted) {
    const bool exists = at >= 0 && at < length;
    inside &= exists || !wanted;
    return exists && wanted ? load_vector<scalar_t, kVector>(line + at * s.inner)
                            : packed_zero<scalar_t, kVector>();
  };
  for_each_tile([&](const scalar_t* line, int64_t to, int first) {
    float results[kTile][kVector];
    Loaded beside[kTile];
    bool inside = true;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        results[t][v] = start[v];
      }
      if constexpr (kSums) {
        bool any = true;
        beside[t] = load(any, values + to, first + t * s.dilation, s.dst_length, true);
      }
    }
    for (int begin = first_tap; begin < s.taps; begin += kTaps) {
      const int from = first + begin * s.dilation - s.padding;
      const int count = kTile + min(kTaps, s.taps - begin) - 1;
      Loaded loaded[kTile + kTaps - 1];
      float window[kTile + kTaps - 1][kVector];
#pragma unroll
      for (int u = 0; u < kTile + kTaps - 1; ++u) {
        loaded[u] = load(inside, line, from + u * s.dilation, s.src_length, u < count);
      }
#pragma unroll
      for (int u = 0; u < kTile + kTaps - 1; ++u) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          window[u][v] = unpack(loaded[u], v);
        }
      }
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        if (begin + k < s.taps) {
          float tap[kVector];
          if constexpr (kWrite) {
            read_four(tap, lane_taps + (begin + k) * width);
          }
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) {
              if constexpr (kWrite) {
                results[t][v] += tap[v] * window[t + k][v];
              }
              if constexpr (kSums) {
                sums[k][v] += unpack(beside[t], v) * window[t + k][v];
              }
            }
          }
        }
      }
      if constexpr (kSums) {
        if (begin == 0) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            float all = 0.0f;
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              all += window[t][v];
            }
            add_to_sequence_bias<scalar_t>(total[v], excess[v], all);
          }
        }
        break;
      }
    }
    if constexpr (kWrite) {
      if (!inside && !finite) {
#pragma unroll 1
        for (int i = 0; i < kTile * kVector; ++i) {
          const int position = first + i / kVector * s.dilation;
          const int of = i % kVector;
          const float again = redo_output(line + of, s.inner, lane_taps + of, width, s, position);
#pragma unroll
          for (int j = 0; j < kTile * kVector; ++j) {
            float& result = results[j / kVector][j % kVector];
            result = i == j ? start[j % kVector] + again : result;
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const int at = first + t * s.dilation;
        if (at < s.dst_length) {
          store_vector<scalar_t>(dst + to + at * s.inner, results[t]);
        }
      }
    }
  });
  if constexpr (kSums) {
    // The ways' sums are added and written a row of the partial at a time. The columns of a plane of lines have
    // the same channels, and a partial each. Whether all are finite.
    __shared__ double of_ways[kSequenceThreads * kVector];
    const auto write = [&](int row, const auto& value_of) {
      __syncthreads();
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        of_ways[threadIdx.y * width + threadIdx.x * kVector + v] = value_of(v);
      }
      __syncthreads();
      bool all_finite = true;
      for (int i = thread; i < width && block_channel + i < s.inner; i += kSequenceThreads) {
        double sum = 0;
        for (int way = 0; way < static_cast<int>(blockDim.y); ++way) {
          sum += of_ways[way * width + i];
        }
        all_finite &= is_finite(static_cast<float>(sum));
        const int64_t of = block_channel + i;
        const int64_t chunk = blockIdx.y * (s.inner / s.channels) + of / s.channels;
        float* const to =
            partial + (chunk * (s.taps + kBiasRows) + row) * s.channels + of % s.channels;
        if (row == s.taps) {
          write_bias(to, s.channels, sum);
        } else {
          *to = static_cast<float>(sum);
        }
      }
      return static_cast<bool>(__syncthreads_and(all_finite));
    };
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      const int tap = first_tap + k;
      if (tap < s.taps && !write(s.taps - 1 - tap, [&](int v) { return sums[k][v]; })) {
        float again[kVector] = {};
        for_each_tile([&](const scalar_t* line, int64_t to, int first) {
          for (int t = 0; t < kTile; ++t) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) {
              again[v] +=
                  product(values + to + v, line + v, s.inner, s, first + t * s.dilation, tap);
            }
          }
        });
        write(s.taps - 1 - tap, [&](int v) { return again[v]; });
      }
    }
    if (first_tap == 0) {
      write(s.taps, [&](int v) { return static_cast<double>(total[v]) - excess[v]; });
    }
  }
}

} // namespace

template <typename scalar_t>
bool run_channels(const SequencePass& pass, const Sequence& s, const Params& p) {
  constexpr int kFew = kTapGroup / 2;
  const bool write = pass.dst.defined();
  const bool sums = pass.values.defined();
  const int taps = s.taps <= kFew ? kFew : kTapGroup;
  const int tile = sums ? 4 : taps;
  int lanes = kMostLanes;
  while (lanes > 1 && lanes / 2 * kVector >= s.inner) {
    lanes /= 2;
  }
  const dim3 block(lanes, kSequenceThreads / lanes);
  const int64_t width = lanes * kVector;
  // A tile's positions are `dilation` apart.
  const int64_t per_phase = divide_up(divide_up(s.positions, s.dilation), tile);
  const Tiles tiles = tiles_of(s.images * s.rows, per_phase * s.dilation);
  const int64_t blocks = divide_up(s.inner, width) * (sums ? divide_up(s.taps, taps) : 1);
  const int64_t chunks = shares_of(blocks, divide_up(tiles.count, block.y));
  const int64_t partials = chunks * (s.inner / s.channels);
  const Operand partial = sums ? empty_partial(partials, p) : Operand();
  const auto launch = [&](auto* kernel) {
    launch_kernel(
        kernel,
        dim3(blocks, chunks),
        block,
        write ? s.taps * width * sizeof(float) : 0,
        mutable_pointer_or_null<scalar_t>(pass.dst),
        mutable_pointer_or_null<float>(partial),
        pass.src.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.values),
        pointer_or_null<scalar_t>(pass.weight),
        pointer_or_null<scalar_t>(pass.bias),
        s,
        tiles);
  };
  if (write && sums) {
    launch(channels_kernel<scalar_t, kFew, 4, true, true>);
  } else if (write) {
    launch(
        taps == kFew ? channels_kernel<scalar_t, kFew, kFew, true, false>
                     : channels_kernel<scalar_t, kTapGroup, kTapGroup, true, false>);
  } else {
    launch(
        taps == kFew ? channels_kernel<scalar_t, kFew, 4, false, true>
                     : channels_kernel<scalar_t, kTapGroup, 4, false, true>);
  }
  if (sums) {
    add_partials<scalar_t>(
        {pass.dst, pass.grad_weight, pass.grad_bias, pass.src, pass.values, pass.weight},
        partial,
        p);
  }
  return true;
}

DEPTHWISE_INSTANTIATE(run_channels, const SequencePass&, const Sequence&);

} // namespace at::native::depthwise_conv2d_ext_cuda
