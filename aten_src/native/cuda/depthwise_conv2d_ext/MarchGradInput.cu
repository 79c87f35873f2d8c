// grad_input of depthwise_conv2d_ext at stride 2 for the windows in with_window().
//
// The march of the forward, turned round: a thread walks down the rows of grad_output, and every
// row, loaded once, is scattered into the k rows of grad_input that it reaches, whose sums are in
// registers. After each row the first two of them are finished, and the others move up by two.
// Columns are gathered: which taps reach a column depends on its parity alone, and a thread's tile
// begins at a known parity, so that the compiler sees exactly the taps that exist; nothing is
// divided and nothing multiplied by zero, where a gather over all taps would waste three in four.
#include <ATen/native/cuda/depthwise_conv2d_ext/March.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kThreads = 128;
inline int64_t wanted_threads() {
  return multiprocessors() * 2048;
}
constexpr int kStride = 2;

// kParity: of (first column of a tile + padding).
template <typename scalar_t_, int kSize_, int kTile_, int kVector_, int kParity_>
struct GradInputTraits {
  using scalar_t = scalar_t_;
  static constexpr int kSize = kSize_;
  static constexpr int kTaps = kSize * kSize;
  static constexpr int kTile = kTile_;
  static constexpr int kVector = kVector_;
  static constexpr int kParity = kParity_;
  static constexpr int kBefore = (kSize - 1) / 2 - kParity; // columns left of the tile's own
  static constexpr int kColumns = kTile / kStride + (kSize - 1) / 2;
  static constexpr int kBlocks = kTaps > 25 ? 2 : kTaps > 9 ? 3 : 4;
  static_assert(kSize % 2 == 1 && kTile % kStride == 0);
};

// The march `m` counts its rows in steps of grad_output rows, from first_step on.
struct Strided {
  March m;
  int32_t first_step;
  int32_t height; // of grad_input
  int32_t width;
  int32_t column_offset; // what a tile's first column is short of a multiple of the tile
};

// kChannelsLast: kVector channels a thread, their taps from shared memory. Planes: one channel,
// its taps in registers.
template <typename Traits, bool kChannelsLast, bool kVectorStore>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void grad_input_strided_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const __grid_constant__ Params call,
    const __grid_constant__ Strided s) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kSize = Traits::kSize;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kVector = Traits::kVector;
  constexpr bool kTapsInRegisters = !kChannelsLast || kTaps <= 9;
  static_assert(kChannelsLast || kVector == 1);
  const March& m = s.m;
  extern __shared__ float shared_taps[]; // [tap][channel of the block]

  int index = blockIdx.x * blockDim.x + threadIdx.x;
  int channel = 0;
  int lane = 0;
  const int block_channels = m.lanes * kVector;
  bool finite = true;
  if constexpr (kChannelsLast) {
    const int block_channel = blockIdx.x % m.groups * block_channels;
    finite = stage_taps<kTaps>(shared_taps, weight, block_channel, block_channels, m);
    finite = !__syncthreads_or(!finite);
    lane = threadIdx.x % m.lanes;
    index = blockIdx.x / m.groups * (blockDim.x / m.lanes) + threadIdx.x / m.lanes;
    channel = block_channel + lane * kVector;
    if (channel >= m.channels) {
      return;
    }
  }
  if (index >= m.items) {
    return;
  }
  const Item item = item_of(m, index, kTile);
  float taps[kTapsInRegisters ? kTaps : 1][kVector];
  if constexpr (!kChannelsLast) {
    channel = item.image % m.channels;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      taps[tap][0] = static_cast<float>(weight[channel * kTaps + tap]);
      finite = finite && is_finite(taps[tap][0]);
    }
  } else if constexpr (kTapsInRegisters) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        taps[tap][v] = shared_taps[tap * block_channels + lane * kVector + v];
      }
    }
  }

  // Elements from one column to the next, and where the image (of the plane) begins.
  const int step = kChannelsLast ? m.channels : 1;
  const int src_base =
      item.image * m.src_height * m.src_width * step + (kChannelsLast ? channel : 0);
  const int dst_base = item.image * s.height * s.width * step + (kChannelsLast ? channel : 0);
  const int valid = kChannelsLast ? min(kVector, m.channels - channel) : 1;
  const int first_column = item.first_column - s.column_offset;
  const int first_row = item.first_row + s.first_step;
  const int last_row = item.last_row + s.first_step;

  if (!finite) {
    const int image = kChannelsLast ? item.image : item.image / m.channels;
#pragma unroll 1
    for (int h = max(0, kStride * first_row - m.padding_height);
         h < min(s.height, kStride * last_row - m.padding_height);
         ++h) {
#pragma unroll 1
      for (int w = max(0, first_column); w < min(s.width, first_column + kTile); ++w) {
#pragma unroll 1
        for (int v = 0; v < valid; ++v) {
          dst[dst_base + (h * s.width + w) * step + v] = static_cast<scalar_t>(
              mended(src, weight, 0.0f, call, true, image, channel + v, h, w));
        }
      }
    }
    return;
  }

  const int left = (first_column + m.padding_width - Traits::kParity) / kStride - Traits::kBefore;
  uint32_t inside = 0;
#pragma unroll
  for (int c = 0; c < Traits::kColumns; ++c) {
    inside |= static_cast<uint32_t>(left + c >= 0 && left + c < m.src_width) << c;
  }
  const scalar_t* const corner = src + src_base + left * step;
  using Row = Packed<scalar_t, kVector>[Traits::kColumns];
  const auto load_row = [&](Row& row, int r) {
    if (r < 0 || r >= m.src_height) {
      return;
    }
    const scalar_t* const from = corner + r * m.src_width * step;
    if (kVector == 1 || m.aligned) {
#pragma unroll
      for (int c = 0; c < Traits::kColumns; ++c) {
        row[c] = packed_zero<scalar_t, kVector>();
        if (inside >> c & 1) {
          row[c] = load_vector<scalar_t, kVector>(from + c * step);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < Traits::kColumns; ++c) {
        row[c] = load_elements<scalar_t, kVector>(from + c * step, inside >> c & 1 ? valid : 0);
      }
    }
  };

  float sums[kSize][kTile][kVector] = {};
  Row next;
  constexpr int kWarmUp = (kSize - 1) / kStride;
  load_row(next, first_row - kWarmUp);
  for (int r = first_row - kWarmUp; r < last_row; ++r) {
    Row row;
#pragma unroll
    for (int c = 0; c < Traits::kColumns; ++c) {
      row[c] = next[c];
    }
    load_row(next, r + 1);
    if (r >= 0 && r < m.src_height) {
#pragma unroll
      for (int kh = 0; kh < kSize; ++kh) {
        if (kTaps > 9 && (r + kh / kStride < first_row || r + kh / kStride >= last_row)) {
          continue;
        }
#pragma unroll
        for (int kw = 0; kw < kSize; ++kw) {
          const int tap = kh * kSize + kw;
          float factor[kVector];
          if constexpr (kTapsInRegisters) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) {
              factor[v] = taps[tap][v];
            }
          } else {
            static_assert(kVector == 2 || kTapsInRegisters);
            const float2 pair = *reinterpret_cast<const float2*>(
                &shared_taps[tap * block_channels + lane * kVector]);
            factor[0] = pair.x;
            factor[kVector - 1] = pair.y;
          }
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
            if ((t + Traits::kParity - kw) % 2 == 0) {
              const int c = (t + Traits::kParity - kw) / kStride + Traits::kBefore;
#pragma unroll
              for (int v = 0; v < kVector; ++v) {
                sums[kh][t][v] = fmaf(unpack(row[c], v), factor[v], sums[kh][t][v]);
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
      const int h = kStride * r - m.padding_height + i;
      if (r < first_row || h < 0 || h >= s.height) {
        continue;
      }
      scalar_t* const to = dst + dst_base + (h * s.width + first_column) * step;
      if constexpr (kVectorStore && !kChannelsLast) {
        float values[kTile];
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
          values[t] = sums[i][t][0];
        }
        store_vector<scalar_t, kTile>(to, values);
      } else {
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
          if (first_column + t >= 0 && first_column + t < s.width) {
            if (kVector == 1 || m.aligned) {
              store_vector<scalar_t, kVector>(to + t * step, sums[i][t]);
            } else {
              store_elements<scalar_t, kVector>(to + t * step, sums[i][t], valid);
            }
          }
        }
      }
    }
#pragma unroll
    for (int kh = 0; kh < kSize; ++kh) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sums[kh][t][v] =
              kh + kStride < kSize ? sums[kh + kStride < kSize ? kh + kStride : 0][t][v] : 0.0f;
        }
      }
    }
  }
}

Strided strided_of(const Params& p) {
  Strided s{};
  s.m = march_of(p);
  s.m.src_height = p.output_height;
  s.m.src_width = p.output_width;
  s.height = p.input_height;
  s.width = p.input_width;
  s.first_step = p.padding_height / kStride;
  s.m.dst_height = (p.input_height - 1 + p.padding_height) / kStride - s.first_step + 1;
  return s;
}

template <typename Traits, bool kVectorStore>
void launch_planes(const ForwardPass& pass, const Params& p, Strided s, int column_offset) {
  using scalar_t = typename Traits::scalar_t;
  s.column_offset = column_offset;
  s.m.dst_width = s.width + column_offset;
  plan_items(
      s.m,
      static_cast<int64_t>(s.m.batch) * s.m.channels,
      Traits::kTile,
      1,
      wanted_threads(),
      Traits::kSize);
  launch_kernel(
      grad_input_strided_kernel<Traits, false, kVectorStore>,
      divide_up(s.m.items, kThreads),
      kThreads,
      0,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      p,
      s);
}

template <typename Traits>
void launch_channels_last(const ForwardPass& pass, const Params& p, Strided s) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  auto* const dst = pass.dst.mutable_data_ptr<scalar_t>();
  const auto* const src = pass.src.const_data_ptr<scalar_t>();
  s.column_offset = s.m.padding_width % kStride;
  s.m.dst_width = s.width + s.column_offset;
  const int64_t vectors = divide_up(s.m.channels, kVector);
  s.m.lanes = lanes_for(vectors, kVector * sizeof(scalar_t), kThreads, false);
  s.m.groups = divide_up(vectors, s.m.lanes);
  s.m.aligned = s.m.channels % kVector == 0 && is_aligned(dst, kVector * sizeof(scalar_t)) &&
      is_aligned(src, kVector * sizeof(scalar_t));
  plan_items(s.m, s.m.batch, Traits::kTile, vectors, wanted_threads(), Traits::kSize);
  const int tiles = std::max(1, kThreads / s.m.lanes);
  const unsigned int grid = divide_up(s.m.items, tiles) * s.m.groups;
  const size_t shared = sizeof(float) * Traits::kTaps * s.m.lanes * kVector;
  launch_kernel(
      grad_input_strided_kernel<Traits, true, true>,
      grid,
      s.m.lanes * tiles,
      shared,
      dst,
      src,
      pass.weight.const_data_ptr<scalar_t>(),
      p,
      s);
}

template <typename scalar_t, int kSize>
void launch_strided(const ForwardPass& pass, const Params& p) {
  constexpr int kPadding = (kSize - 1) / 2;
  const Strided s = strided_of(p);
  if (p.channels_last) {
    constexpr int kVector = kSize == 3 && sizeof(scalar_t) == 2 ? 4 : 2;
    launch_channels_last<GradInputTraits<scalar_t, kSize, 4, kVector, 0>>(pass, p, s);
  } else if (
      p.padding_width == kPadding && p.input_width % 4 == 0 &&
      is_aligned(pass.dst.const_data_ptr(), 4 * sizeof(scalar_t))) {
    launch_planes<GradInputTraits<scalar_t, kSize, 4, 1, kPadding % 2>, true>(pass, p, s, 0);
  } else {
    launch_planes<GradInputTraits<scalar_t, kSize, 2, 1, 0>, false>(
        pass, p, s, p.padding_width % kStride);
  }
}

} // namespace

bool march_strided_grad_input(const ForwardPass& pass, const Params& p) {
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_window(p, [&](auto window) {
      if constexpr (decltype(window)::kStride == kStride) {
        launch_strided<decltype(scalar), decltype(window)::kHeight>(pass, p);
        return true;
      } else {
        return false;
      }
    });
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
