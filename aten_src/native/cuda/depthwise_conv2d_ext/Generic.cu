// One object for each DEPTHWISE_TYPE: float, c10::Half, c10::BFloat16, double
// Any window, stride, dilation, number of outputs of a channel, type, memory order and size: what no other kernel
// takes. Forward and grad_input by a gather.
//
// Along one dimension, results that are dst_step apart meet the same taps, and src moves by src_of_next from
// one to the next; so it does from a tap to the next that is link_step further. A thread has kRows such results
// of a column (in channels-last order of a vector of channels), or of two: each row of src that it loads meets
// up to kTaps taps of them, a column of the window after the other, each of which the second column of results
// meets one step later. In grad_input a result meets the taps of its phase only, and nothing is divided between
// taps. Taps are read through the L1 in plane order, where a warp asks for one, and from shared memory in
// channels-last, where it asks for many. The products of kTaps rows of taps are summed by themselves first, for
// the sake of large kernels' rounding error. Zeros stand for taps and for places outside the image that only the
// neighbouring results meet: mended() has the rest.
#include <ATen/native/cuda/depthwise_conv2d_ext/Generic.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

// In an unnamed namespace nvcc makes each of these kernels a hundredth longer.

// Blocks of a multiprocessor in channels-last order, each of which looks its taps up once.
constexpr int kStagedBlocks = 8;
constexpr int64_t kStagedBytes = 48 * 1024;
// Channels whose taps a block must hold at least: a sector of memory.
constexpr int kLeastStaged = 8;
// Rows of taps that a row of src meets at once, at most: what registers hold.
template <int kVector>
constexpr int kTaps = kVector > 1 ? 2 : 4;

template <typename Loaded, typename scalar_t>
__device__ __forceinline__ Loaded load(const scalar_t* from) {
  using Word = std::conditional_t<
      sizeof(Loaded) == 2,
      unsigned short,
      std::conditional_t<
          sizeof(Loaded) == 4,
          unsigned int,
          std::conditional_t<sizeof(Loaded) == 8, uint2, uint4>>>;
  static_assert(sizeof(Word) == sizeof(Loaded));
  const Word word = __ldg(reinterpret_cast<const Word*>(from));
  return reinterpret_cast<const Loaded&>(word);
}

// The taps that a result meets, from one to the next, and the position in src where it meets the first.
template <typename index_t>
struct Meeting {
  index_t tap;
  index_t src;
  index_t count;
};

// One dimension of a gather.
template <typename index_t>
struct Axis {
  index_t dst_size;
  index_t src_size;
  index_t taps;
  index_t padding;
  // Forward: dst * stride - padding + tap * dilation = src.
  // By phase: src * stride - padding + tap * dilation = dst.
  bool by_phase;
  index_t stride;
  Divider<index_t> strides;
  index_t dilation;
  index_t whole_dilation; // dilation / stride and what is left
  index_t rest_dilation;
  index_t link_step;
  index_t links; // classes of taps that a result meets; of columns one, as they need no order
  index_t dst_step;
  index_t src_of_next;

  __device__ __forceinline__ index_t taps_from(index_t tap) const {
    return (taps - tap + link_step - 1) / link_step;
  }

  // In the order in which src ascends: by phase the taps descend.
  __device__ __forceinline__ Meeting<index_t> meet(index_t dst, index_t link) const {
    if (!by_phase) {
      return {link, dst * stride - padding + link * dilation, taps_from(link)};
    }
    const auto reach = strides.divmod(dst + padding);
    Meeting<index_t> at{0, static_cast<index_t>(reach.div), 0};
    index_t rest = reach.mod;
    while (rest != 0) {
      at.src -= whole_dilation;
      rest -= rest_dilation;
      if (rest < 0) {
        rest += stride;
        --at.src;
      }
      if (++at.tap >= link_step) {
        return {0, 0, 0}; // a result that meets none
      }
    }
    at.count = taps_from(at.tap);
    at.tap += (at.count - 1) * link_step;
    at.src -= (at.count - 1) * src_of_next;
    return at;
  }

  // From one of a meeting's taps to the next.
  __device__ __forceinline__ index_t next_tap() const {
    return by_phase ? -link_step : link_step;
  }
};

template <typename index_t>
Axis<index_t> axis_of(bool by_phase, bool rows, const Side<int64_t>& side) {
  const auto& [input, output, taps, stride, padding, dilation] = side;
  const int64_t common = by_phase || rows ? std::gcd(stride, dilation) : stride;
  Axis<index_t> axis;
  axis.dst_size = by_phase ? input : output;
  axis.src_size = by_phase ? output : input;
  axis.taps = taps;
  axis.padding = padding;
  axis.by_phase = by_phase;
  axis.stride = stride;
  axis.strides = divider<index_t>(stride);
  axis.dilation = dilation;
  axis.whole_dilation = dilation / stride;
  axis.rest_dilation = dilation % stride;
  axis.link_step = std::min(stride / common, taps);
  axis.links = by_phase ? 1 : axis.link_step;
  // Steps beyond the image are as good as any that leave it, and do not overflow.
  constexpr int64_t kBeyond = int64_t{1} << 40;
  const int64_t most = std::min(stride / common * dilation, kBeyond);
  axis.dst_step = std::min<int64_t>(by_phase ? most : dilation / common, axis.dst_size);
  axis.src_of_next = by_phase ? dilation / common : most;
  return axis;
}

// Groups of so many results that are dst_step apart.
template <typename index_t>
int64_t groups_of(const Axis<index_t>& axis, int64_t results) {
  return axis.dst_step * divide_up(divide_up(axis.dst_size, axis.dst_step), results);
}

template <typename index_t>
struct Gather {
  Axis<index_t> height;
  Axis<index_t> width;
  ElementSteps<index_t> dst;
  ElementSteps<index_t> src;
  index_t channels; // of dst
  index_t sources; // src channels that a dst channel adds up
  Divider<index_t> multiplier; // dst channels of one src channel
  // Work items: columns innermost, then groups of rows, then images (in plane order channels first).
  index_t items;
  Divider<index_t> column_groups;
  Divider<index_t> column_classes; // where a thread has two
  Divider<index_t> row_groups;
  Divider<index_t> planes; // of an image
  Divider<index_t> classes; // of rows
  int lanes; // vectors of channels that a block covers
};

// What a thread stored as NaN.
template <typename scalar_t, typename index_t, int kVector>
__device__ __noinline__ void mend_results(
    scalar_t* dst,
    const scalar_t* src,
    const scalar_t* weight,
    const scalar_t* bias,
    const Params& call,
    const Gather<index_t>& g,
    index_t image,
    index_t channel,
    index_t row,
    index_t column,
    int rows,
    int columns) {
  using acc_t = opmath_type<scalar_t>;
  for (int i = 0; i < rows * columns * kVector; ++i) {
    const index_t at = row + i / kVector % rows * g.height.dst_step;
    const index_t beside = column + i / kVector / rows * g.width.dst_step;
    const index_t of = channel + i % kVector;
    scalar_t* const result =
        dst + (image * g.dst.image + of * g.dst.channel + at * g.dst.row + beside * g.dst.column);
    if (at < g.height.dst_size && beside < g.width.dst_size &&
        ::isnan(static_cast<acc_t>(*result))) {
      const acc_t begin = bias ? static_cast<acc_t>(bias[of]) : acc_t(0);
      *result = static_cast<scalar_t>(mended(
          src,
          weight,
          begin,
          call,
          g.height.by_phase,
          static_cast<int>(image),
          static_cast<int>(of),
          static_cast<int>(at),
          static_cast<int>(beside)));
    }
  }
}

template <
    typename scalar_t,
    typename index_t,
    int kVector,
    int kRows,
    int kColumns,
    bool kChannelsLast>
C10_LAUNCH_BOUNDS_2(
    kThreads,
    (sizeof(scalar_t) == 8 || kRows * kColumns > 8 ? 2
         : kRows * kColumns > 4 || kVector > 1     ? 3
         : kRows > 2                               ? 4
                                                   : 5))
__global__ void gather_kernel(
    scalar_t* __restrict__ dst,
    const scalar_t* __restrict__ src,
    const scalar_t* __restrict__ weight,
    const scalar_t* __restrict__ bias,
    const __grid_constant__ Params call,
    const __grid_constant__ Gather<index_t> g) {
  using acc_t = opmath_type<scalar_t>;
  using Loaded = Elements<scalar_t, kVector>;
  using Factors = Elements<acc_t, kVector>;
  extern __shared__ __align__(16) unsigned char shared[];
  acc_t* const staged = reinterpret_cast<acc_t*>(shared);
  const index_t taps = g.height.taps * g.width.taps;
  const index_t sources = g.sources;
  const int lane = kChannelsLast ? threadIdx.x % g.lanes : 0;
  const int workers = kChannelsLast ? blockDim.x / g.lanes : kThreads;
  const int worker = kChannelsLast ? threadIdx.x / g.lanes : threadIdx.x;
  // The channels of a block beside each other, a vector apart from tap to tap for the sake of banks.
  const int block_channels = g.lanes * kVector;
  const int pitch = block_channels + kVector;
  const index_t block_channel = static_cast<index_t>(blockIdx.y) * block_channels;
  if constexpr (kChannelsLast) {
    const int of_channel = sources * taps;
    const int have =
        ::min(static_cast<index_t>(block_channels), g.channels - block_channel) * of_channel;
    for (int i = threadIdx.x; i < have; i += blockDim.x) {
      const int channel = i / of_channel;
      const int rest = i - channel * of_channel;
      const int source = rest / static_cast<int>(taps);
      const int tap = rest - source * static_cast<int>(taps);
      staged[(tap * static_cast<int>(sources) + source) * pitch + channel] =
          static_cast<acc_t>(weight[block_channel * of_channel + i]);
    }
    __syncthreads();
  }
  const index_t lane_channel = block_channel + lane * kVector;
  if (kChannelsLast && lane_channel >= g.channels) {
    return;
  }

  const index_t step = static_cast<index_t>(gridDim.x) * workers;
  for (index_t item = static_cast<index_t>(blockIdx.x) * workers + worker; item < g.items;
       item += step) {
    const auto by_column = g.column_groups.divmod(item);
    const auto by_group = g.row_groups.divmod(by_column.div);
    const auto by_class = g.classes.divmod(by_group.mod);
    index_t image = by_group.div;
    index_t channel = lane_channel;
    if constexpr (!kChannelsLast) {
      const auto by_plane = g.planes.divmod(by_group.div);
      image = by_plane.div;
      channel = by_plane.mod;
    }
    index_t column = by_column.mod;
    if constexpr (kColumns > 1) {
      const auto by_column_class = g.column_classes.divmod(by_column.mod);
      column = by_column_class.div * kColumns * g.width.dst_step + by_column_class.mod;
    }
    const index_t row = by_class.div * kRows * g.height.dst_step + by_class.mod;
    const auto columns = g.width.meet(column, 0);
    const index_t at_step = g.width.src_of_next * g.src.column;
    constexpr int kResults = kRows * kColumns; // a column's after the other's
    acc_t sums[kResults][kVector];
#pragma unroll
    for (int r = 0; r < kResults; ++r) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        sums[r][v] = bias ? static_cast<acc_t>(bias[channel + v]) : acc_t(0);
      }
    }

#pragma unroll 1
    for (index_t source = 0; source < sources; ++source) {
      const index_t source_channel =
          sources > 1 ? channel * sources + source : g.multiplier.div(channel);
      const scalar_t* plane = src + (image * g.src.image + source_channel * g.src.channel);
      const scalar_t* plane_taps = weight + (channel * sources + source) * taps;
#ifdef __CUDA_ARCH__
      // One instruction makes an address of these and an index, unless the compiler takes them apart.
      asm("" : "+l"(plane), "+l"(plane_taps));
#endif
      const acc_t* const factors = staged + source * pitch + lane * kVector;
      const index_t tap_pitch = g.width.taps * g.height.next_tap();
      // The rows of `kCount` taps from `tap` on, of which the first meets src row `first`.
      const auto add_taps = [&](auto count, index_t first, index_t tap) {
        constexpr int kCount = decltype(count)::value;
        constexpr int kLoads = kRows + kCount - 1;
        index_t offsets[kLoads]; // less than 0 outside the image
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const index_t from = first + i * g.height.src_of_next;
          offsets[i] = is_within(from, g.height.src_size) ? from * g.src.row : -1;
        }
        acc_t sum[kResults][kVector] = {};
        index_t w = columns.src;
        index_t at = w * g.src.column;
        index_t tap_column = tap + columns.tap;
        Factors factor[kColumns][kCount] = {};
#pragma unroll 1
        for (index_t left = columns.count + kColumns - 1; left > 0;
             --left, w += g.width.src_of_next, at += at_step, tap_column += g.width.next_tap()) {
          const bool is_inside = is_within(w, g.width.src_size);
          if (kColumns == 1 && !is_inside) {
            continue;
          }
          Loaded loaded[kLoads];
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            loaded[i] = Loaded{};
            if (is_inside && offsets[i] >= 0) {
              loaded[i] = load<Loaded>(plane + (offsets[i] + at));
            }
          }
#pragma unroll
          for (int q = 0; q < kCount; ++q) {
            if constexpr (kColumns > 1) {
              factor[1][q] = factor[0][q];
              factor[0][q] = Factors{};
            }
            const index_t of_tap = tap_column + q * tap_pitch;
            if constexpr (kChannelsLast) {
              factor[0][q] = *reinterpret_cast<const Factors*>(
                  factors + static_cast<int>(of_tap) * static_cast<int>(sources) * pitch);
            } else if (kColumns == 1 || left >= kColumns) {
              factor[0][q].values[0] =
                  static_cast<acc_t>(load<Elements<scalar_t, 1>>(plane_taps + of_tap).values[0]);
            }
          }
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) {
              const acc_t value = static_cast<acc_t>(loaded[i].values[v]);
#pragma unroll
              for (int r = 0; r < kResults; ++r) {
                const int q = i - r % kRows;
                if (q >= 0 && q < kCount) {
                  sum[r][v] += value * factor[r / kRows][q].values[v];
                }
              }
            }
          }
        }
#pragma unroll
        for (int r = 0; r < kResults; ++r) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sums[r][v] += sum[r][v];
          }
        }
      };
#pragma unroll 1
      for (index_t link = 0; link < g.height.links; ++link) {
        const auto meets = g.height.meet(row, link);
        index_t first = meets.src;
        index_t tap = meets.tap * g.width.taps;
#pragma unroll 1
        for (index_t left = meets.count; left > 0; left -= kTaps<kVector>) {
          if (first >= g.height.src_size) {
            break;
          }
          if (first + (kRows + kTaps<kVector> - 2) * g.height.src_of_next < 0) {
            // None of these rows is inside the image.
          } else if (left >= kTaps<kVector>) {
            add_taps(std::integral_constant<int, kTaps<kVector>>(), first, tap);
          } else if (left == 1) {
            add_taps(std::integral_constant<int, 1>(), first, tap);
          } else if (kTaps<kVector> > 2 && left == 2) {
            add_taps(std::integral_constant<int, 2>(), first, tap);
          } else if constexpr (kTaps<kVector> > 2) {
            add_taps(std::integral_constant<int, 3>(), first, tap);
          }
          first += kTaps<kVector> * g.height.src_of_next;
          tap += kTaps<kVector> * tap_pitch;
        }
      }
    }

    scalar_t* const to =
        dst + image * g.dst.image + channel * g.dst.channel + column * g.dst.column;
    bool spoilt = false;
#pragma unroll
    for (int r = 0; r < kResults; ++r) {
      const index_t at = row + r % kRows * g.height.dst_step;
      const index_t beside = r / kRows * g.width.dst_step;
      if (at < g.height.dst_size && (kColumns == 1 || column + beside < g.width.dst_size)) {
        Loaded result;
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          spoilt = spoilt || ::isnan(sums[r][v]);
          result.values[v] = static_cast<scalar_t>(sums[r][v]);
        }
        *reinterpret_cast<Loaded*>(to + at * g.dst.row + beside * g.dst.column) = result;
      }
    }
    if (spoilt) {
      mend_results<scalar_t, index_t, kVector>(
          dst, src, weight, bias, call, g, image, channel, row, column, kRows, kColumns);
    }
  }
}

template <typename scalar_t, typename index_t, int kVector, bool kChannelsLast>
void launch_gather(const ForwardPass& pass, const Params& p, bool grad, int lanes, int64_t shared) {
  Gather<index_t> g;
  g.height = axis_of<index_t>(grad, true, side_of<int64_t>(p, true));
  g.width = axis_of<index_t>(grad, false, side_of<int64_t>(p, false));
  const auto input = steps_of<index_t>(p.channels_last, p.channels, p.input_height, p.input_width);
  const auto output =
      steps_of<index_t>(p.channels_last, p.output_channels(), p.output_height, p.output_width);
  g.dst = grad ? input : output;
  g.src = grad ? output : input;
  g.channels = grad ? p.channels : p.output_channels();
  g.sources = grad ? p.multiplier : 1;
  g.multiplier = divider<index_t>(grad ? 1 : p.multiplier);
  g.column_classes = divider<index_t>(g.width.dst_step);
  g.planes = divider<index_t>(g.channels);
  g.classes = divider<index_t>(g.height.dst_step);
  g.lanes = lanes;
  const auto columns_of = [&](int columns) {
    return columns == 1 ? g.width.dst_size : groups_of(g.width, columns);
  };
  // Results a thread: those of the fewest instructions that leave the device full.
  const int64_t link_taps = divide_up(g.height.taps, g.height.link_step);
  const int64_t taps = std::min<int64_t>(kTaps<kVector>, link_taps);
  const int64_t rounds = g.height.links * divide_up(link_taps, taps);
  const int64_t begin = 200 + (grad ? 4 * (g.height.link_step + g.width.link_step) : 0);
  const auto threads = [&](int rows, int columns) {
    return groups_of(g.height, rows) * columns_of(columns);
  };
  const auto cost = [&](int rows, int columns) {
    const int64_t steps = divide_up(g.width.taps, g.width.link_step) + columns - 1;
    return threads(rows, columns) *
        (begin + rounds * steps * (12 + 4 * (rows + taps - 1) + 4 * taps + rows * taps * columns));
  };
  constexpr bool kIsRare = sizeof(scalar_t) == 8 || sizeof(index_t) == 8; // of one kernel
  int best_rows = kIsRare ? 4 : 1;
  int best_columns = 1;
  const int64_t planes = pass.dst.numel() / kVector / g.height.dst_size / g.width.dst_size;
  // Rows and columns that meet one tap each are not loaded once for several, though in grad_input columns of a
  // phase share that tap. Of dst rows shorter than a sector of memory, threads beside each other store whole
  // sectors only if each has one column.
  constexpr int kLeastPairs = 4;
  const bool pairs =
      (p.stride_width == 1 ? p.kernel_width > 1 : grad) && columns_of(2) >= kLeastPairs;
  for (const auto& [rows, columns] : {std::pair(4, 1), {8, 1}, {4, 2}, {8, 2}}) {
    const bool known =
        kChannelsLast ? rows * columns == 4 : (rows < 8 || taps > 1) && (columns == 1 || pairs);
    if (!kIsRare && known && planes * threads(rows, columns) >= 8 * few_threads() &&
        cost(rows, columns) < cost(best_rows, best_columns)) {
      best_rows = rows;
      best_columns = columns;
    }
  }
  auto* kernel = gather_kernel<scalar_t, index_t, kVector, 4, 1, kChannelsLast>;
  if constexpr (!kIsRare) {
    if (best_rows == 1) {
      kernel = gather_kernel<scalar_t, index_t, kVector, 1, 1, kChannelsLast>;
    } else if constexpr (!kChannelsLast) {
      kernel = best_columns > 1
          ? (best_rows == 4 ? gather_kernel<scalar_t, index_t, kVector, 4, 2, kChannelsLast>
                            : gather_kernel<scalar_t, index_t, kVector, 8, 2, kChannelsLast>)
          : best_rows == 8 ? gather_kernel<scalar_t, index_t, kVector, 8, 1, kChannelsLast>
                           : kernel;
    }
  }
  const int workers = kChannelsLast ? kThreads / lanes : kThreads;
  const int64_t channel_blocks =
      kChannelsLast ? divide_up(g.channels, static_cast<int64_t>(lanes) * kVector) : 1;
  const int64_t row_groups = groups_of(g.height, best_rows);
  const int64_t column_groups = columns_of(best_columns);
  g.row_groups = divider<index_t>(row_groups);
  g.column_groups = divider<index_t>(column_groups);
  g.items = p.batch * row_groups * column_groups * (kChannelsLast ? 1 : g.channels);
  const int64_t wanted = kChannelsLast
      ? divide_up(static_cast<int64_t>(kStagedBlocks) * multiprocessors(), channel_blocks)
      : kMaxBlocks;
  launch_kernel(
      kernel,
      dim3(std::min(divide_up(g.items, workers), wanted), channel_blocks),
      workers * lanes,
      shared,
      pass.dst.mutable_data_ptr<scalar_t>(),
      pass.src.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      p,
      g);
}

template <typename scalar_t, typename index_t>
void gather(const ForwardPass& pass, const Params& p, bool grad) {
  if (pass.dst.numel() == 0) {
    return;
  }
  const int64_t channels = grad ? p.channels : p.output_channels();
  const auto with_vector = [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    const int64_t of_lane = static_cast<int64_t>(sizeof(opmath_type<scalar_t>)) * kVector *
        p.kernel_size() * (grad ? p.multiplier : 1);
    int lanes =
        lanes_for(divide_up(channels, kVector), sizeof(scalar_t) * kVector, kThreads, false);
    while (lanes > 1 && (lanes + 1) * of_lane > kStagedBytes) {
      lanes /= 2;
    }
    const int64_t shared = (lanes + 1) * of_lane;
    if (shared > kStagedBytes || lanes * kVector < std::min<int64_t>(channels, kLeastStaged) ||
        divide_up(channels, lanes * kVector) > kMostGridRows) {
      return false;
    }
    launch_gather<scalar_t, index_t, kVector, true>(pass, p, grad, lanes, shared);
    return true;
  };
  if constexpr (sizeof(index_t) == 4) {
    if (p.channels_last &&
        (takes_vectors<scalar_t>(p, pass.dst, pass.src)
             ? with_vector(std::integral_constant<int, kVectorOf<scalar_t>>())
             : with_vector(std::integral_constant<int, 1>()))) {
      return;
    }
  }
  launch_gather<scalar_t, index_t, 1, false>(pass, p, grad, 1, 0);
}

template <typename scalar_t>
bool generic_forward(const ForwardPass& pass, const Params& p) {
  has_short_steps(p) ? gather<scalar_t, int32_t>(pass, p, pass.grad_input)
                     : gather<scalar_t, int64_t>(pass, p, pass.grad_input);
  return true;
}

DEPTHWISE_INSTANTIATE(generic_forward, const ForwardPass&);
#ifndef DEPTHWISE_TYPE
template bool generic_forward<double>(const ForwardPass&, const Params&);
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
