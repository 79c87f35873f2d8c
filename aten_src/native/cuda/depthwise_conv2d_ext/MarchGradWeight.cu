// One object for each DEPTHWISE_TYPE: float, c10::Half, c10::BFloat16
// grad_weight and grad_bias of depthwise_conv2d_ext for the windows in with_window().
//
// A thread marches down the rows of the input as the forward does, with the last grad_output rows
// of its columns in registers, so that every row of either tensor is loaded once; each input row
// is multiplied with all the grad_output rows that it belongs to, into one sum a tap. A thread
// walks many images before its sums are added to those of its block, in a fixed order, and written
// as one partial; add_partials() adds the blocks' in a fixed order. The bias comes free.
// A float bias is compensated in a thread and added in double beyond; rounding to 16 bits would hide that.
//
// Columns outside the image are zeros that are multiplied by grad_output, which is right only
// while that is finite. What it spoils it leaves as NaN, and add_partials() takes it again.
#include <ATen/native/cuda/depthwise_conv2d_ext/March.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

constexpr int kThreads = 128;
// Fewer and longer marches where rows are dear.
inline int64_t wanted_threads(bool has_dear_rows = false) {
  return multiprocessors() * (has_dear_rows ? 512 : 1024);
}

template <typename scalar_t>
constexpr bool kExactBias = sizeof(scalar_t) == sizeof(float);

// Sums that are added as taps are.
template <typename scalar_t, int kTaps>
constexpr int kAlikeSums = kExactBias<scalar_t> ? kTaps : kTaps + 1;

// What a block's sums of one channel take at its end, see lay_out_sums().
template <typename Traits>
size_t sums_bytes(int threads) {
  return threads * (sizeof(double) + Traits::kAlike * sizeof(float));
}

template <typename scalar_t_, typename Window>
struct ChannelsLastTraits {
  using scalar_t = scalar_t_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kStride = Window::kStride;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kAlike = kAlikeSums<scalar_t, kTaps>;
  static constexpr int kVector = 2;
  static constexpr int kTile = 4;
  static constexpr int kSlots = (kHeight + kStride - 1) / kStride;
  static constexpr int kColumns = (kTile - 1) * kStride + kWidth;
  static constexpr int kBlocks = kTaps > 25 ? 2 : kTaps > 9 ? 3 : kStride > 1 ? 4 : 5;
  // More stages in float would leave the L1 too small to share the overhang.
  static constexpr int kStages = kTaps > 25 || sizeof(scalar_t) == 4 ? 3 : 4;
  static constexpr int kUnrolled = 1;
  using Rows = RowRing<scalar_t, kVector, kColumns, kStages, kThreads>;
  // As many rounds ahead; of two input rows one brings no row of grad_output.
  using Grads = RowRing<scalar_t, kVector, kTile, kStages, kThreads>;
};

// The src columns of a thread in plane order, packed as they were loaded.
template <typename Traits>
struct PlaneRow {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kOwn = Traits::kTile * Traits::kStride;
  static constexpr int kRight = Traits::kColumns - Traits::kLeft - kOwn;
  static constexpr int halo_vector(int columns) {
    return columns <= 1 ? 1 : columns == 2 ? 2 : 4;
  }
  static constexpr int kLeftVector = halo_vector(Traits::kLeft);
  static constexpr int kRightVector = halo_vector(kRight);

  Packed<scalar_t, kLeftVector> left;
  Packed<scalar_t, 4> own[Traits::kStride];
  Packed<scalar_t, kRightVector> right;

  // `from` is the first own column.
  __device__ __forceinline__ void load(const scalar_t* from, bool has_left, bool has_right) {
    left = packed_zero<scalar_t, kLeftVector>();
    right = packed_zero<scalar_t, kRightVector>();
    if (has_left) {
      left = load_vector<scalar_t, kLeftVector>(from - kLeftVector);
    }
#pragma unroll
    for (int i = 0; i < Traits::kStride; ++i) {
      own[i] = load_vector<scalar_t, 4>(from + i * 4);
    }
    if (kRight > 0 && has_right) {
      right = load_vector<scalar_t, kRightVector>(from + kOwn);
    }
  }

  __device__ __forceinline__ float value(int c, int) const {
    if (c < Traits::kLeft) {
      return unpack(left, kLeftVector - Traits::kLeft + c);
    }
    if (c < Traits::kLeft + kOwn) {
      return unpack(own[(c - Traits::kLeft) / 4], (c - Traits::kLeft) % 4);
    }
    return unpack(right, c - Traits::kLeft - kOwn);
  }
};

template <typename scalar_t_, typename Window, bool kAligned_>
struct PlanesTraits {
  using scalar_t = scalar_t_;
  static constexpr bool kAligned = kAligned_;
  static constexpr int kHeight = Window::kHeight;
  static constexpr int kWidth = Window::kWidth;
  static constexpr int kStride = Window::kStride;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kAlike = kAlikeSums<scalar_t, kTaps>;
  static constexpr int kVector = 1;
  static constexpr int kTile = kAligned ? 4 : 1;
  static constexpr int kSlots = (kHeight + kStride - 1) / kStride;
  static constexpr int kColumns = (kTile - 1) * kStride + kWidth;
  static constexpr int kLeft = (kWidth - 1) / 2;
  // Float keeps the bias's compensation too; without a bound that costs the small kernel a block.
  static constexpr int kSmall = !kAligned && sizeof(scalar_t) == sizeof(float) ? 9 : 6;
  static constexpr int kBlocks = kTaps > 25 ? 3 : kTaps > 9 ? 4 : kSmall;
  // Rows of either tensor under way while one is used, in registers whose number must be known: the
  // march takes kUnrolled steps at a time.
  static constexpr bool kFew = kTaps <= 9 && kStride == 1 && (!kAligned || sizeof(scalar_t) == 2);
  static constexpr int kUnrolled = kFew ? 2 : 1;
  static constexpr int kAhead = kUnrolled * kStride;
};

// Lays the sums of channel v out in shared memory, which is free, for write_block_sums().
template <typename Traits>
__device__ __forceinline__ BlockSums lay_out_sums(
    void* shared,
    const float (&sums)[Traits::kTaps + 1][Traits::kVector],
    const float (&excess)[Traits::kVector],
    int v,
    int part,
    int parts,
    int lanes,
    bool works) {
  double* const biases = static_cast<double*>(shared);
  const int threads = blockDim.x;
  float* const mine = reinterpret_cast<float*>(biases + threads) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < Traits::kAlike; ++k) {
    mine[k * threads] = sums[k][v];
  }
  biases[threadIdx.x] = static_cast<double>(sums[Traits::kTaps][v]) - excess[v];
  __syncthreads();
  return {mine, biases + threadIdx.x, threads, part, parts, lanes, works};
}

// The march over one item, adding to sums[tap][v]; sums[kTaps] - excess is the bias. take_row(row, r) gives input
// row r, the rows in order from item.first_row * kStride; take_grad(grad, o) gives grad_output row o, or zeros.
// Their third argument counts rows of theirs modulo Traits::kUnrolled steps.
template <typename Traits, typename Row, typename Grad, typename TakeRow, typename TakeGrad>
__device__ __forceinline__ void march_item(
    float (&sums)[Traits::kTaps + 1][Traits::kVector],
    float (&excess)[Traits::kVector],
    const March& m,
    const Item& item,
    const TakeGrad& take_grad,
    const TakeRow& take_row) {
  constexpr int kVector = Traits::kVector;
  constexpr int kTile = Traits::kTile;
  constexpr int kStride = Traits::kStride;
  const int top = item.row_phase - m.padding_height;
  // Rows behind the last that a gradient of the item meets were not loaded: what lies in their place in
  // shared memory may be NaN, and times the zeros that stand for gradients behind the item still is.
  const int rows_end = (item.last_row - 1) * kStride + Traits::kHeight;
  const int bottom = ::min(m.src_height, top + (rows_end - 1) * m.dilation_height + 1);
  float grads[Traits::kSlots][kTile][kVector] = {};
  const int steps = item.last_row + Traits::kSlots - 1;
  for (int first_step = item.first_row; first_step < steps; first_step += Traits::kUnrolled) {
#pragma unroll
    for (int u = 0; u < Traits::kUnrolled; ++u) {
      const int step = first_step + u;
      if (step >= steps) {
        break;
      }
      Grad grad;
      take_grad(grad, step, u);
#pragma unroll
      for (int s = Traits::kSlots - 1; s >= 0; --s) {
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            if (s > 0) {
              grads[s][t][v] = grads[s > 0 ? s - 1 : 0][t][v];
            } else {
              grads[0][t][v] = grad.value(t, v);
            }
          }
        }
      }
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        static_assert(kTile == 1 || kTile == 4);
        float row = grads[0][0][v];
        if constexpr (kTile == 4) {
          row = (row + grads[0][1][v]) + (grads[0][2][v] + grads[0][3][v]);
        }
        add_to_bias<kExactBias<typename Traits::scalar_t>>(sums[Traits::kTaps][v], excess[v], row);
      }
#pragma unroll
      for (int i = 0; i < kStride; ++i) {
        const int r = step * kStride + i;
        Row row;
        take_row(row, r, u * kStride + i);
        float values[Traits::kColumns][kVector];
#pragma unroll
        for (int c = 0; c < Traits::kColumns; ++c) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            values[c][v] = row.value(c, v);
          }
        }
        const int h = top + r * m.dilation_height;
        if (h < 0 || h >= bottom) {
          continue;
        }
#pragma unroll
        for (int s = 0; s < Traits::kSlots; ++s) {
          const int kh = s * kStride + i;
          const bool wanted =
              Traits::kTaps <= 9 || (step - s >= item.first_row && step - s < item.last_row);
          if (kh < Traits::kHeight && wanted) {
#pragma unroll
            for (int kw = 0; kw < Traits::kWidth; ++kw) {
              const int tap = kh * Traits::kWidth + kw;
#pragma unroll
              for (int t = 0; t < kTile; ++t) {
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                  float& sum = sums[tap < Traits::kTaps ? tap : 0][v];
                  sum = fmaf(values[t * kStride + kw][v], grads[s][t][v], sum);
                }
              }
            }
          }
        }
      }
    }
  }
}

// march_item() with the next rows of either tensor loaded into registers while one is used.
template <typename Traits, typename Row, typename Grad, typename LoadRow, typename LoadGrad>
__device__ __forceinline__ void march_planes(
    float (&sums)[Traits::kTaps + 1][Traits::kVector],
    float (&excess)[Traits::kVector],
    const March& m,
    const Item& item,
    const LoadRow& load_row,
    const LoadGrad& load_grad) {
  Row rows[Traits::kAhead];
  Grad grads[Traits::kUnrolled];
#pragma unroll
  for (int i = 0; i < Traits::kUnrolled; ++i) {
    load_grad(grads[i], item.first_row + i);
  }
#pragma unroll
  for (int i = 0; i < Traits::kAhead; ++i) {
    load_row(rows[i], item.first_row * Traits::kStride + i);
  }
  march_item<Traits, Row, Grad>(
      sums,
      excess,
      m,
      item,
      [&](Grad& grad, int o, int at) {
        grad = grads[at];
        load_grad(grads[at], o + Traits::kUnrolled);
      },
      [&](Row& row, int r, int at) {
        row = rows[at];
        load_row(rows[at], r + Traits::kAhead);
      });
}

template <typename scalar_t, int kColumns, int kVector>
struct Columns {
  Packed<scalar_t, kVector> at[kColumns];
  __device__ __forceinline__ float value(int column, int v) const {
    return unpack(at[column], v);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      at[c] = packed_zero<scalar_t, kVector>();
    }
  }
  __device__ __forceinline__ void load(const scalar_t* from, uint32_t inside, int step) {
    clear();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (inside >> c & 1) {
        at[c] = load_vector<scalar_t, kVector>(from + c * step);
      }
    }
  }
};

__device__ __forceinline__ uint32_t columns_inside(int first, int count, int step, int width) {
  uint32_t inside = 0;
  for (int c = 0; c < count; ++c) {
    const int w = first + c * step;
    inside |= static_cast<uint32_t>(w >= 0 && w < width) << c;
  }
  return inside;
}

// grid: groups of channels x chunks.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void grad_weight_channels_last_kernel(
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const __grid_constant__ March m) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  constexpr int kTaps = Traits::kTaps;
  extern __shared__ float4 shared_rows[];
  typename Traits::Rows rows(shared_rows);
  typename Traits::Grads grads(reinterpret_cast<char*>(shared_rows) + Traits::Rows::kBytes);

  const int lane = threadIdx.x % m.lanes;
  const int tile = threadIdx.x / m.lanes;
  const int tiles = blockDim.x / m.lanes;
  const int channel = (blockIdx.x * m.lanes + lane) * kVector;
  const int valid = ::min(kVector, m.channels - channel);
  float sums[kTaps + 1][kVector] = {};
  float excess[kVector] = {};

  for (int index = blockIdx.y * tiles + tile; index < m.items && valid > 0;
       index += gridDim.y * tiles) {
    const Item item = item_of(m, index, Traits::kTile);
    const int left = item.column_phase - m.padding_width +
        item.first_column * Traits::kStride * m.dilation_width;
    const int first = item.column_phase + item.first_column * m.dilation_width;
    const uint32_t inside = columns_inside(left, Traits::kColumns, m.dilation_width, m.src_width);
    const uint32_t grad_inside =
        columns_inside(first, Traits::kTile, m.dilation_width, m.dst_width);
    const int top = item.row_phase - m.padding_height;
    const int step = m.dilation_width * m.channels;
    const scalar_t* const corner =
        input + (item.image * m.src_height * m.src_width + left) * m.channels + channel;
    const scalar_t* const grad_corner =
        grad_output + (item.image * m.dst_height * m.dst_width + first) * m.channels + channel;
    using Row = Columns<scalar_t, Traits::kColumns, kVector>;
    using Grad = Columns<scalar_t, Traits::kTile, kVector>;
    // A step's grad_output row travels with its first input row.
    const int last_row = (item.last_row - 1) * Traits::kStride + Traits::kHeight - 1;
    const auto fill = [&](int r) {
      const int h = top + r * m.dilation_height;
      rows.fill(
          corner + h * m.src_width * m.channels,
          r <= last_row && h >= 0 && h < m.src_height,
          inside,
          step,
          m.aligned,
          valid);
      const int o = r / Traits::kStride;
      if (r % Traits::kStride == 0) {
        grads.fill(
            grad_corner + (item.row_phase + o * m.dilation_height) * m.dst_width * m.channels,
            o < item.last_row,
            grad_inside,
            step,
            m.aligned,
            valid);
      }
      Traits::Rows::commit();
    };
    rows.restart();
    grads.restart();
#pragma unroll
    for (int i = 0; i < Traits::kStages - 1; ++i) {
      fill(item.first_row * Traits::kStride + i);
    }
    march_item<Traits, Row, Grad>(
        sums,
        excess,
        m,
        item,
        [&](Grad& grad, int o, int) {
          Traits::Rows::wait();
          grads.use(grad.at);
          if (o >= item.last_row) {
            grad.clear();
          }
        },
        [&](Row& row, int r, int) {
          Traits::Rows::wait();
          rows.use(row.at);
          fill(r + Traits::kStages - 1);
        });
  }

  wait_for_copies();
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    __syncthreads();
    const BlockSums block =
        lay_out_sums<Traits>(shared_rows, sums, excess, v, tile, tiles, m.lanes, v < valid);
    float* const to = partial + blockIdx.y * (kTaps + kBiasRows) * m.channels + channel + v;
    write_block_sums<Traits>(block, to, m.channels);
  }
}

// grid: chunks x output channels.
template <typename Traits>
C10_LAUNCH_BOUNDS_2(kThreads, Traits::kBlocks)
__global__ void grad_weight_planes_kernel(
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ grad_output,
    const typename Traits::scalar_t* __restrict__ input,
    const __grid_constant__ March m) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kTaps = Traits::kTaps;
  extern __shared__ float4 shared[];
  const int chunk = blockIdx.x;
  const int channel = blockIdx.y;
  const int channels = m.channels / m.multiplier;
  const int stride = gridDim.x * kThreads;
  float sums[kTaps + 1][1] = {};
  float excess[1] = {};

  for (int index = chunk * kThreads + threadIdx.x; index < m.items; index += stride) {
    const Item item = item_of(m, index, Traits::kTile);
    if (item.column_phase + item.first_column * m.dilation_width >= m.dst_width) {
      continue; // this phase of the dilation has one column less than the first
    }
    const int left = item.column_phase - m.padding_width +
        item.first_column * Traits::kStride * m.dilation_width;
    const int first = item.column_phase + item.first_column * m.dilation_width;
    const int top = item.row_phase - m.padding_height;
    const scalar_t* const corner = input +
        (item.image * channels + channel / m.multiplier) * m.src_height * m.src_width + left;
    const scalar_t* const grad_corner =
        grad_output + (item.image * m.channels + channel) * m.dst_height * m.dst_width + first;
    if constexpr (Traits::kAligned) {
      using Row = PlaneRow<Traits>;
      struct Grad {
        Packed<scalar_t, 4> four;
        __device__ __forceinline__ float value(int t, int) const {
          return unpack(four, t);
        }
      };
      const int own = left + Traits::kLeft;
      march_planes<Traits, Row, Grad>(
          sums,
          excess,
          m,
          item,
          [&](Row& row, int r) {
            const int h = top + r * m.dilation_height;
            if (h >= 0 && h < m.src_height) {
              row.load(
                  corner + Traits::kLeft + h * m.src_width, own > 0, own + Row::kOwn < m.src_width);
            }
          },
          [&](Grad& grad, int o) {
            grad.four = packed_zero<scalar_t, 4>();
            if (o < item.last_row) {
              grad.four = load_vector<scalar_t, 4>(
                  grad_corner + (item.row_phase + o * m.dilation_height) * m.dst_width);
            }
          });
    } else {
      using Row = Columns<scalar_t, Traits::kColumns, 1>;
      using Grad = Columns<scalar_t, 1, 1>;
      const uint32_t inside = columns_inside(left, Traits::kColumns, m.dilation_width, m.src_width);
      march_planes<Traits, Row, Grad>(
          sums,
          excess,
          m,
          item,
          [&](Row& row, int r) {
            const int h = top + r * m.dilation_height;
            if (h >= 0 && h < m.src_height) {
              row.load(corner + h * m.src_width, inside, m.dilation_width);
            }
          },
          [&](Grad& grad, int o) {
            grad.clear();
            if (o < item.last_row) {
              grad.at[0] = load_vector<scalar_t, 1>(
                  grad_corner + (item.row_phase + o * m.dilation_height) * m.dst_width);
            }
          });
    }
  }

  const BlockSums block =
      lay_out_sums<Traits>(shared, sums, excess, 0, threadIdx.x, kThreads, 1, true);
  float* const to = partial + chunk * (kTaps + kBiasRows) * m.channels + channel;
  write_block_sums<Traits>(block, to, m.channels);
}

// How many blocks share the items of one group of channels.
int64_t chunks_for(int64_t items, int64_t items_per_block, int64_t groups, int64_t threads) {
  const int64_t wanted = divide_up(threads, groups * kThreads);
  return std::max<int64_t>(1, std::min(wanted, divide_up(items, items_per_block)));
}

template <typename Traits>
Operand launch_channels_last(const BackwardPass& pass, const Params& p, March m) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kVector = Traits::kVector;
  const auto* const grads = pass.grad_output.const_data_ptr<scalar_t>();
  const auto* const inputs = pass.input.const_data_ptr<scalar_t>();
  const int64_t vectors = divide_up(m.channels, kVector);
  m.lanes = lanes_for(vectors, kVector * sizeof(scalar_t), kThreads, true);
  m.aligned = m.channels % kVector == 0 && is_aligned(grads, kVector * sizeof(scalar_t)) &&
      is_aligned(inputs, kVector * sizeof(scalar_t));
  const int64_t wanted = wanted_threads(Traits::kTaps > 25);
  plan_items(m, Traits::kTile, vectors, wanted, Traits::kHeight);
  int tiles = 1;
  while (tiles * 2 * m.lanes <= kThreads) {
    tiles *= 2;
  }
  const int64_t groups = divide_up(vectors, m.lanes);
  const int64_t chunks = chunks_for(m.items, tiles, groups, wanted);
  const Operand partial = empty_partial(chunks, p);
  const size_t shared = std::max<size_t>(
      sums_bytes<Traits>(m.lanes * tiles), Traits::Rows::kBytes + Traits::Grads::kBytes);
  launch_kernel(
      grad_weight_channels_last_kernel<Traits>,
      dim3(groups, chunks),
      m.lanes * tiles,
      shared,
      partial.mutable_data_ptr<float>(),
      grads,
      inputs,
      m);
  return partial;
}

template <typename Traits>
Operand launch_planes(const BackwardPass& pass, const Params& p, March m) {
  using scalar_t = typename Traits::scalar_t;
  plan_items(m, Traits::kTile, m.channels, wanted_threads(), Traits::kHeight);
  const int64_t chunks = chunks_for(m.items, kThreads, m.channels, wanted_threads());
  const Operand partial = empty_partial(chunks, p);
  launch_kernel(
      grad_weight_planes_kernel<Traits>,
      dim3(chunks, m.channels),
      kThreads,
      sums_bytes<Traits>(kThreads),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      m);
  return partial;
}

template <typename scalar_t, typename Window>
Operand launch_march(const BackwardPass& pass, const Params& p) {
  const March m = march_of(p);
  if (p.channels_last) {
    return launch_channels_last<ChannelsLastTraits<scalar_t, Window>>(pass, p, m);
  }
  using Aligned = PlanesTraits<scalar_t, Window, true>;
  constexpr size_t kBytes = 4 * sizeof(scalar_t);
  if (m.padding_width == Aligned::kLeft && m.dilation_width == 1 && m.dst_width % 4 == 0 &&
      m.src_width == m.dst_width * Window::kStride &&
      is_aligned(pass.grad_output.const_data_ptr(), kBytes) &&
      is_aligned(pass.input.const_data_ptr(), kBytes)) {
    return launch_planes<Aligned>(pass, p, m);
  }
  return launch_planes<PlanesTraits<scalar_t, Window, false>>(pass, p, m);
}

} // namespace

template <typename scalar_t>
bool march_grad_weight(const BackwardPass& pass, const Params& p) {
  // One row of the grid is one channel of a plane-order launch.
  if (!fits_32_bits(p) || p.output_channels() > kMostGridRows ||
      (p.channels_last && p.multiplier != 1) || pass.grad_output.numel() == 0 ||
      pass.input.numel() == 0) {
    return false;
  }
  return with_window(p, [&](auto window) {
    add_partials<scalar_t>(pass, launch_march<scalar_t, decltype(window)>(pass, p), p);
    return true;
  });
}

DEPTHWISE_INSTANTIATE(march_grad_weight, const BackwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
