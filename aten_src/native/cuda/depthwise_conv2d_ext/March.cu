// One object for each DEPTHWISE_TYPE: float, c10::Half, c10::BFloat16
// Forward of depthwise_conv2d_ext for the windows in with_window(), and grad_input at stride 1,
// which is the forward on grad_output with the taps flipped and the padding mirrored.
//
// Channels-last. A thread owns a few channels of a few columns and walks down the rows of src. Every src row is
// loaded once and feeds all the dst rows that it belongs to, whose sums are in registers: slot s holds the dst
// row that this step's rows reach with the taps s * stride ... Each step shifts the slots by one and the last
// becomes a finished row. The next rows are loaded, and stay packed, while this one is multiplied.
//
// Neighbouring threads are neighbouring channels, so every access is a full sector whatever the width, padding
// or dilation. On sm_90 what lies in whole vectors of channels at stride 1 is for boxes (Boxes.cu).
//
// In float the taps of each later kernel row are summed by themselves and then added, which takes an
// addition more a row and leaves about half the rounding error at k = 7. The first rows are added
// tap by tap, since their sums are still small; rounding to 16 bits would hide the difference.
//
// Rows outside the image are skipped. Columns outside it are zeros that are multiplied by taps,
// which is the same only for finite taps: a thread that has others takes its sums tap by tap.
#include <ATen/native/cuda/depthwise_conv2d_ext/March.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kThreads = 128;

// The tile of a thread. A wider one reads less overhang; registers bound it: the sums are
// slots x tile x vector, and small windows hold their taps in registers as well.
template <typename scalar_t_, typename Window>
struct ChannelsLastTraits {
  using scalar_t = scalar_t_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kStride = Window::kStride;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr bool kTapsInRegisters = kTaps <= 9;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Window>;
  static constexpr int kVector = kTapsInRegisters && sizeof(scalar_t) == 2 ? 4 : 2;
  static constexpr int kTile = kTapsInRegisters || kStride > 1 ? 4 : 7;
  static constexpr int kBlocks = kTaps > 25 ? 2
      : kTaps > 9 || kVector > 2            ? 3
      : kStride > 1                         ? 4
                                            : 5;
  static constexpr int kSlots = (kHeight + kStride - 1) / kStride;
  static constexpr int kColumns = (kTile - 1) * kStride + kWidth;
  static constexpr int kStages = kTaps > 9 || sizeof(scalar_t) == 4 ? 3 : 4;
  // Enough threads to cover memory latency on the largest devices; a smaller problem is cut into shorter
  // marches until it has as many. Long ones where rows are dear.
  static int64_t wanted_threads() {
    return multiprocessors() * (kTaps > 25 ? 768 : 1024);
  }
  using Ring = RowRing<scalar_t, kVector, kColumns, kStages, kThreads>;
  static_assert(kColumns <= 32, "a mask of 32 bits tells the columns inside the image");
};

// Taps of a block's channels into shared memory as [tap][channel], several loads in flight;
// whether all of them are finite.
template <int kTaps, typename scalar_t>
__device__ __forceinline__ bool stage_taps(
    float* to,
    const scalar_t* weight,
    int block_channel,
    int block_channels,
    const March& m) {
  constexpr int kAtOnce = 8;
  const int have = min(block_channels, m.channels - block_channel) * kTaps;
  bool finite = true;
  for (int first = threadIdx.x; first < kTaps * block_channels; first += kAtOnce * blockDim.x) {
    float values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * blockDim.x;
      values[j] = i < have ? static_cast<float>(weight[block_channel * kTaps + i]) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * blockDim.x;
      const int tap = i % kTaps;
      finite = finite && is_finite(values[j]);
      if (i < kTaps * block_channels) {
        to[(m.flip ? kTaps - 1 - tap : tap) * block_channels + i / kTaps] = values[j];
      }
    }
  }
  return finite;
}

// The results of an item.
template <typename Traits>
__device__ __noinline__ void mend_item(
    typename Traits::scalar_t* dst,
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* weight,
    const typename Traits::scalar_t* bias,
    const Params& call,
    const March& m,
    const Item& item,
    int first_channel) {
  const int end_channel = min(first_channel + Traits::kVector, m.channels);
  for (int channel = first_channel; channel < end_channel; ++channel) {
    const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
    for (int i = item.first_row * Traits::kTile; i < item.last_row * Traits::kTile; ++i) {
      const int row = item.row_phase + i / Traits::kTile * m.dilation_height;
      const int column =
          item.column_phase + (item.first_column + i % Traits::kTile) * m.dilation_width;
      if (column < m.dst_width) {
        dst[((item.image * m.dst_height + row) * m.dst_width + column) * m.channels + channel] =
            static_cast<typename Traits::scalar_t>(
                mended(src, weight, begin, call, m.flip, item.image, channel, row, column));
      }
    }
  }
}

// slots[s] is what slots[s - 1] was; a new row begins in slots[0].
template <int kSlots, int kTile, int kVector>
__device__ __forceinline__ void shift_slots(
    float (&slots)[kSlots][kTile][kVector],
    const float (&begin)[kVector]) {
#pragma unroll
  for (int s = kSlots - 1; s >= 0; --s) {
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        slots[s][t][v] = s > 0 ? slots[s > 0 ? s - 1 : 0][t][v] : begin[v];
      }
    }
  }
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void forward_channels_last_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ Params call,
    const __grid_constant__ March m) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  constexpr int kTile = Traits::kTile;
  constexpr int kStride = Traits::kStride;
  extern __shared__ float4 shared_rows[];
  float* const shared_taps = // [tap][channel of the block]
      reinterpret_cast<float*>(shared_rows) + Traits::Ring::kBytes / sizeof(float);

  const int block_channels = m.lanes * kVector;
  const int block_channel = blockIdx.x % m.groups * block_channels;
  const int lane = threadIdx.x % m.lanes;
  const int index = blockIdx.x / m.groups * (blockDim.x / m.lanes) + threadIdx.x / m.lanes;
  const int channel = block_channel + lane * kVector;
  const int valid = min(kVector, m.channels - channel);
  const bool works = index < m.items && valid > 0;
  const Item item = item_of(m, works ? index : 0, kTile);

  const int left =
      item.column_phase - m.padding_width + item.first_column * kStride * m.dilation_width;
  uint32_t inside = 0;
#pragma unroll
  for (int c = 0; c < Traits::kColumns; ++c) {
    const int w = left + c * m.dilation_width;
    inside |= static_cast<uint32_t>(w >= 0 && w < m.src_width) << c;
  }
  const int top = item.row_phase - m.padding_height;
  const int column_step = m.dilation_width * m.channels;
  const scalar_t* const corner =
      src + (item.image * m.src_height * m.src_width + left) * m.channels + channel;
  using Ring = typename Traits::Ring;
  Ring ring(shared_rows);
  const int last_row = (item.last_row - 1) * kStride + Traits::kHeight - 1;
  const auto fill_row = [&](int r) {
    const int h = top + r * m.dilation_height;
    const bool exists = r <= last_row && h >= 0 && h < m.src_height;
    ring.fill(corner + h * m.src_width * m.channels, exists, inside, column_step, m.aligned, valid);
    Ring::commit();
  };
  // The first rows are on their way while the taps are fetched.
  if (works) {
#pragma unroll
    for (int i = 0; i < Traits::kStages - 1; ++i) {
      fill_row(item.first_row * kStride + i);
    }
  }
  const bool finite =
      stage_taps<Traits::kTaps>(shared_taps, weight, block_channel, block_channels, m);
  const bool careful = __syncthreads_or(!finite);
  if (!works) {
    return;
  }
  if (careful) {
    mend_item<Traits>(dst, src, weight, bias, call, m, item, channel);
    return;
  }

  float begin[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    begin[v] = bias && v < valid ? static_cast<float>(bias[channel + v]) : 0.0f;
  }
  float taps[Traits::kTapsInRegisters ? Traits::kTaps : 1][kVector];
  if constexpr (Traits::kTapsInRegisters) {
#pragma unroll
    for (int tap = 0; tap < Traits::kTaps; ++tap) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        taps[tap][v] = shared_taps[tap * block_channels + lane * kVector + v];
      }
    }
  }

  float slots[Traits::kSlots][kTile][kVector] = {};
  const int steps = item.last_row + Traits::kSlots - 1;
  for (int step = item.first_row; step < steps; ++step) {
    shift_slots(slots, begin);
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
      const int r = step * kStride + i;
      Packed<scalar_t, kVector> row[Traits::kColumns];
      Ring::wait();
      ring.use(row);
      fill_row(r + Traits::kStages - 1);
      float values[Traits::kColumns][kVector];
#pragma unroll
      for (int c = 0; c < Traits::kColumns; ++c) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          values[c][v] = unpack(row[c], v);
        }
      }
      const int h = top + r * m.dilation_height;
      if (h < 0 || h >= m.src_height) {
        continue;
      }
#pragma unroll
      for (int s = Traits::kSlots - 1; s >= 0; --s) {
        const int kh = s * kStride + i;
        // Rows of the neighbouring chunks are not worth their products once there are many taps.
        const bool wanted =
            Traits::kTapsInRegisters || (step - s >= item.first_row && step - s < item.last_row);
        if (kh < Traits::kHeight && wanted) {
          RowSums<kTile, kVector> sums(slots[s], kh >= Traits::kOwnRow);
#pragma unroll
          for (int kw = 0; kw < Traits::kWidth; ++kw) {
            const int tap = kh * Traits::kWidth + kw;
            float factor[kVector];
            if constexpr (Traits::kTapsInRegisters) {
#pragma unroll
              for (int v = 0; v < kVector; ++v) {
                factor[v] = taps[tap < Traits::kTaps ? tap : 0][v];
              }
            } else {
              static_assert(kVector == 2 || Traits::kTapsInRegisters);
              const float2 pair = *reinterpret_cast<const float2*>(
                  &shared_taps[tap * block_channels + lane * kVector]);
              factor[0] = pair.x;
              factor[1] = pair.y;
            }
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
#pragma unroll
              for (int v = 0; v < kVector; ++v) {
                sums.add(kw, t, v, values[t * kStride + kw][v], factor[v]);
              }
            }
          }
          sums.finish();
        }
      }
    }
    const int finished = step - (Traits::kSlots - 1);
    if (finished < item.first_row) {
      continue;
    }
    const int row = item.row_phase + finished * m.dilation_height;
    scalar_t* const to =
        dst + (item.image * m.dst_height + row) * m.dst_width * m.channels + channel;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      const int w = item.column_phase + (item.first_column + t) * m.dilation_width;
      if (w < m.dst_width) {
        if (m.aligned) {
          store_vector<scalar_t, kVector>(to + w * m.channels, slots[Traits::kSlots - 1][t]);
        } else {
          store_elements<scalar_t, kVector>(
              to + w * m.channels, slots[Traits::kSlots - 1][t], valid);
        }
      }
    }
  }
}

template <typename Traits>
void launch_march(const ForwardPass& pass, const Params& p, March m) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  auto* const dst = pass.dst.mutable_data_ptr<scalar_t>();
  const auto* const src = pass.src.const_data_ptr<scalar_t>();
  const int64_t vectors = divide_up(m.channels, kVector);
  m.lanes = lanes_for(vectors, kVector * sizeof(scalar_t), kThreads, false);
  m.groups = divide_up(vectors, m.lanes);
  m.aligned = m.channels % kVector == 0 && is_aligned(dst, kVector * sizeof(scalar_t)) &&
      is_aligned(src, kVector * sizeof(scalar_t));
  plan_items(m, Traits::kTile, vectors, Traits::wanted_threads(), Traits::kHeight);
  const int tiles = std::max(1, kThreads / m.lanes);
  const unsigned int grid = divide_up(m.items, tiles) * m.groups;
  const size_t shared = Traits::Ring::kBytes + sizeof(float) * Traits::kTaps * m.lanes * kVector;
  launch_kernel(
      forward_channels_last_kernel<Traits>,
      grid,
      m.lanes * tiles,
      shared,
      dst,
      src,
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      m);
}

} // namespace

template <typename scalar_t>
bool march_forward(const ForwardPass& pass, const Params& p) {
  if (!fits_32_bits(p) || !p.channels_last || p.multiplier != 1 ||
      (pass.grad_input && p.stride_height != 1)) {
    return false;
  }
  if (pass.dst.numel() == 0) {
    return true;
  }
  March m = march_of(p);
  if (pass.grad_input) {
    turn_around(m, p);
  }
  return with_window(p, [&](auto window) {
    launch_march<ChannelsLastTraits<scalar_t, decltype(window)>>(pass, p, m);
    return true;
  });
}

DEPTHWISE_INSTANTIATE(march_forward, const ForwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
