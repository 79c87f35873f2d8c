// Forward, grad_input and the weight's gradient of depthwise_conv2d_ext in plane order at stride 1 where rows
// fall into no whole vectors: odd widths, and sequences, whose planes are single rows or columns.
//
// Such planes begin anywhere in memory, but a few of them side by side, or a band of rows of one, are a
// single run of it, which bulk copies bring into shared memory and take out of it
// (Columns.cuh). There a thread owns a column, of 16-bit types two or four a dilation
// apart, and walks down its rows element by element, with the last rows of src in registers: threads side by
// side read side by side, whatever the width. Of a sequence it owns positions as far apart as its plane has
// threads.
//
// Where the weight's gradient is wanted, src is grad_output, and a run of the input comes with each: row h of
// it meets all the rows of grad_output that it belongs to, which serve twice,
//   sum[kh][kw] += input[h][s] * grad_output[h + padding - kh][s + padding - kw],
// and with the taps they make the row of grad_input. In float the sums of a run go to totals, which bounds
// the chains; the bias is compensated. A block adds its threads up in a fixed order and writes one partial.
//
// What lies outside src is zeros that are multiplied, which is the same only for finite values: a thread with
// other taps takes its results tap by tap, and a sum that ends as NaN is taken again so.
//
// Microseconds of an H200 before and by this, forward, dgrad, wgrad and all gradients (floors 150, 150, 150,
// 225; 46, 46, 46, 70): 3072@1x202 k1x3 float 645, 667, 992, 1,648 and 158, 158, 171, 263; half 633, 661,
// 972, 1,630 and 94, 95, 105, 159; 728@65 k3 dilated by 2 float 112, 115, 139, 251 and 76, 76, 82, 102; half
// 65, 70, 129, 191 and 40, 40, 44, 65.
#include <ATen/native/cuda/depthwise_conv2d_ext/Columns.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

// kDilation: 0 where p says.
template <
    typename scalar_t_,
    int kHeight_,
    int kWidth_,
    bool kSequence_,
    int kDilation_,
    int kTile_,
    bool kData_,
    bool kWeight_>
struct ColumnsTraits {
  using scalar_t = scalar_t_;
  using Taps = Window<kHeight_, kWidth_, 1>;
  static constexpr int kHeight = kHeight_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kTaps = kHeight * kWidth;
  static constexpr int kSize = sizeof(scalar_t);
  static constexpr bool kSequence = kSequence_; // its window is along the rows, but one row here
  static constexpr int kDilation = kDilation_;
  static constexpr bool kData = kData_; // dst is wanted
  static constexpr bool kWeight = kWeight_; // the weight's gradient is
  // Columns of a thread, a dilation apart: of 16 bits a pair has no more bank conflicts than one, and
  // shares what its windows overlap.
  static constexpr int kTile = kTile_;
  static constexpr int kValues = kWidth + kTile - 1;
  static constexpr int kOwnRow = kFirstOwnRow<scalar_t, Taps>;
  // Rounding to 16 bits would hide what bounded chains and an exact bias give.
  static constexpr bool kExact = kSize == sizeof(float);
  using Stream = ColumnStream<scalar_t, kWeight, kData>;
  // Of a multiprocessor, for which registers are bounded.
  static constexpr int kBlocks = kTile > 2 || (kWeight && !kSequence) ? 2 : 3;
};

// Where a thread begins, by planes, rows and columns of a run.
struct ColumnPlace {
  int32_t plane;
  int32_t row;
  int32_t column;
  bool owns;
};

template <typename Traits>
__device__ __forceinline__ ColumnPlace column_place(const ColumnsPlan& s, int task, int dilation) {
  constexpr int kTile = Traits::kTile;
  const int of_plane = s.lanes * s.strips;
  const int index = min(task, s.planes * of_plane - 1);
  ColumnPlace place;
  place.owns = index == task;
  place.plane = index / of_plane;
  const int rest = index - place.plane * of_plane;
  const int strip = rest / s.lanes;
  const int lane = rest - strip * s.lanes;
  // Tiles of columns a dilation apart.
  const int across = kTile == 1 ? lane : lane / dilation * dilation * kTile + lane % dilation;
  place.row = Traits::kSequence ? across : strip / dilation * s.rows * dilation + strip % dilation;
  place.column = Traits::kSequence ? 0 : across;
  return place;
}

// One tap (kTaps: the bias), or what is between src and the other tensor at that place of the window, of a
// block's share of one plane's positions, inside src only; all lanes of a warp.
template <typename Traits>
__device__ __noinline__ float careful_sum(
    const typename Traits::scalar_t* src,
    const typename Traits::scalar_t* other,
    const ColumnsPlan& s,
    int plane,
    int place,
    int first,
    int end) {
  const bool bias = place == Traits::kTaps;
  if (bias) {
    place /= 2; // the middle of the window meets all of src
  }
  float sum = 0.0f;
  ColumnRun run(s, first);
#pragma unroll 1
  for (int item = first; item < end; ++item, run.next()) {
#pragma unroll 1
    for (int i = threadIdx.x % kWarpSize; i < run.rows * s.dst_width; i += kWarpSize) {
      const int row = run.first_row + i / s.dst_width;
      const int column = i % s.dst_width;
      const int h = row - s.padding_height + place / s.kernel_width * s.dilation_height;
      const int w = column - s.padding_width + place % s.kernel_width * s.dilation_width;
      if (h >= 0 && h < s.src_height && w >= 0 && w < s.src_width) {
        const float value =
            static_cast<float>(src[((run.plane + plane) * s.src_height + h) * s.src_width + w]);
        const int at = ((run.plane + plane) * s.dst_height + row) * s.dst_width + column;
        sum += bias ? value : value * static_cast<float>(other[at]);
      }
    }
  }
  return sum_of_warp(sum);
}

// A thread's sums: of the taps, and of the bias, which is sums[kTaps] - excess.
template <typename Traits>
struct ColumnSums {
  static constexpr int kTaps = Traits::kTaps;
  float sums[kTaps + 1] = {};
  float excess = 0.0f;

  // To the thread's totals in shared memory, which begin with `set`.
  __device__ __forceinline__ void add_to_totals(float* totals, int threads, bool set) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      float* const total = totals + i * threads;
      *total = set ? sums[i] : *total + sums[i];
      sums[i] = 0.0f;
    }
  }
};

// A thread's way through a run.
template <typename Traits>
struct ColumnMarch {
  using scalar_t = typename Traits::scalar_t;
  static constexpr int kSize = Traits::kSize;
  static constexpr int kTile = Traits::kTile;
  static constexpr int kValues = Traits::kValues;
  static constexpr bool kSequence = Traits::kSequence;

  const int dilation;
  const int row_step; // from a row of the thread to its next
  const int src_step; // the same in bytes
  const int dst_step;
  const int apart; // bytes from a column of the thread to its next
  // In a run: the first row, bytes to its first column in src and dst, and to where dst's plane begins.
  int first_row;
  int src_at;
  int dst_at;
  int dst_plane;
  int columns; // that exist; none where the thread owns nothing
  int src_row; // the next, by those of the run
  int src_rows;
  uint32_t from; // where its first column is
  uint32_t to; // the same of dst
  uint32_t ends[kTile]; // of dst's plane in the run, for each column; 0 where there is none

  __device__ __forceinline__ ColumnMarch(const ColumnsPlan& s, int dilated)
      : dilation(dilated),
        row_step(kSequence ? s.lanes * kTile : dilated),
        src_step(row_step * s.src_width * kSize),
        dst_step(row_step * s.dst_width * kSize),
        apart(dilated * kSize) {}

  __device__ __forceinline__ void set_place(
      const ColumnsPlan& s,
      const ColumnPlace& place,
      int planes) {
    const int plane = min(place.plane, planes - 1);
    first_row = place.row;
    src_at =
        ((plane * s.src_height + place.row) * s.src_width + place.column - s.padding_width) * kSize;
    dst_plane = plane * s.dst_height * s.dst_width * kSize;
    dst_at = dst_plane + (place.row * s.dst_width + place.column) * kSize;
    columns = 0;
    if (place.owns && place.plane < planes) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        columns += kSequence || place.column + t * dilation < s.dst_width;
      }
    }
  }

  __device__ __forceinline__ void begin(const ColumnRun& run, uint32_t src, uint32_t dst) {
    src_row = first_row + run.shift;
    src_rows = run.src_rows;
    from = src + src_at + run.shift * run.s.src_width * kSize;
    // Threads without a place read what nobody writes.
    to = Traits::Stream::kInPlace && columns == 0 ? from : dst + dst_at;
    const uint32_t end = dst + dst_plane + run.rows * run.s.dst_width * kSize;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      ends[t] = t < columns ? end : 0;
    }
  }

  // The columns of the next row of src as they are stored, zeros for those outside.
  __device__ __forceinline__ void read_row(
      uint32_t (&bits)[kValues],
      const uint32_t (&inside)[kValues],
      uint32_t zeros) {
    const uint32_t place =
        static_cast<unsigned int>(src_row) < static_cast<unsigned int>(src_rows) ? from : zeros;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      bits[i] = read_bits<scalar_t>(place + i * apart) & inside[i];
    }
    src_row += row_step;
    from += src_step;
  }

  // The same of a sequence; kInside: all are.
  template <bool kInside>
  __device__ __forceinline__ void read_positions(float (&row)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const uint32_t at = from + i * apart;
      row[i] = element_as_float(
          kInside ? read_bits<scalar_t>(at)
                  : read_bits<scalar_t>(at, src_row + i * dilation, src_rows),
          scalar_t());
    }
    src_row += row_step;
    from += src_step;
  }

  // Column t exists where this is less than the end that belongs to it.
  __device__ __forceinline__ uint32_t place_of(int t) const {
    return kSequence ? to + t * apart : to;
  }

  __device__ __forceinline__ uint32_t end_of(int t) const {
    return ends[kSequence ? 0 : t];
  }

  __device__ __forceinline__ bool owns(int t) const {
    return place_of(t) < end_of(t);
  }

  // `beyond`: bytes from the row.
  template <bool kInside>
  __device__ __forceinline__ void read_input(float (&values)[kTile], int beyond) const {
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      const uint32_t at = to + beyond + t * apart;
      values[t] = element_as_float(
          kInside ? read_bits<scalar_t>(at) : read_bits<scalar_t>(at, place_of(t), end_of(t)),
          scalar_t());
    }
  }

  template <bool kInside>
  __device__ __forceinline__ void write(const float (&sum)[kTile][1]) const {
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      // Threads without a place do what the last one does, which must find its input.
      write_bits<scalar_t>(
          to + t * apart,
          bits_of<scalar_t>(sum[t][0]),
          kInside ? 0 : place_of(t),
          kInside ? (Traits::Stream::kInPlace ? ends[0] : 1) : end_of(t));
    }
  }
};

// The products of one row of a thread: to its results, and to the sums of the taps. row_of(kh) has the
// columns of src that kernel row kh meets.
template <typename Traits, typename RowOf>
__device__ __forceinline__ void add_products(
    float (&results)[Traits::kTile][1],
    ColumnSums<Traits>& sums,
    const float (&values)[Traits::kTile],
    const float (&taps)[Traits::kTaps],
    float begin,
    const RowOf& row_of) {
  constexpr int kTile = Traits::kTile;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    results[t][0] = begin;
  }
#pragma unroll
  for (int kh = 0; kh < Traits::kHeight; ++kh) {
    const float (&row)[Traits::kValues] = row_of(kh);
    RowSums<kTile, 1> products(results, kh >= Traits::kOwnRow);
#pragma unroll
    for (int kw = 0; kw < Traits::kWidth; ++kw) {
      const int tap = kh * Traits::kWidth + kw;
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        if constexpr (Traits::kData) {
          products.add(kw, t, 0, row[t + kw], taps[tap]);
        }
        if constexpr (Traits::kWeight) {
          sums.sums[tap] = fmaf(values[t], row[t + kw], sums.sums[tap]);
        }
      }
    }
    if constexpr (Traits::kData) {
      products.finish();
    }
  }
}

template <typename Traits, int kSteps, bool kInside>
__device__ __forceinline__ void step_along(
    ColumnMarch<Traits>& m,
    ColumnSums<Traits>& sums,
    const float (&taps)[Traits::kTaps],
    float begin) {
  constexpr int kTile = Traits::kTile;
  float rows[kSteps][Traits::kValues];
  float values[kSteps][kTile];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    m.template read_positions<kInside>(rows[i]);
    if constexpr (Traits::kWeight) {
      m.template read_input<kInside>(values[i], i * m.dst_step);
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    float results[kTile][1];
    add_products(results, sums, values[i], taps, begin, [&](int) -> auto& { return rows[i]; });
    if constexpr (Traits::kWeight) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const float middle = rows[i][t + Traits::kWidth / 2];
        add_to_bias<Traits::kExact>(
            sums.sums[Traits::kTaps], sums.excess, kInside || m.owns(t) ? middle : 0.0f);
      }
    }
    if constexpr (Traits::kData) {
      m.template write<kInside>(results);
    }
    m.to += m.dst_step;
  }
}

// The results of a thread in a run tap by tap.
template <typename Traits>
__device__ __noinline__ void careful_columns(
    ColumnMarch<Traits> m,
    const typename Traits::scalar_t* plane,
    const typename Traits::scalar_t* taps,
    float begin,
    const ColumnsPlan& s,
    int row,
    int column) {
#pragma unroll 1
  for (int i = 0; i < s.rows; ++i) {
#pragma unroll 1
    for (int t = 0; t < Traits::kTile; ++t) {
      if (m.owns(t)) {
        const int down = row + (Traits::kSequence ? t * m.dilation : 0);
        const int right = column + (Traits::kSequence ? 0 : t * m.dilation);
        const float sum = careful_output(plane, taps, begin, s, down, right);
        write_bits<typename Traits::scalar_t>(
            m.to + t * m.apart, bits_of<typename Traits::scalar_t>(sum), 0, 1);
      }
    }
    row += m.row_step;
    m.to += m.dst_step;
  }
}

template <typename Traits>
C10_LAUNCH_BOUNDS_2(kColumnThreads + kWarpSize, Traits::kBlocks)
__global__ void columns_kernel(
    typename Traits::scalar_t* __restrict__ dst,
    float* __restrict__ partial,
    const typename Traits::scalar_t* __restrict__ src,
    const typename Traits::scalar_t* __restrict__ other,
    const typename Traits::scalar_t* __restrict__ weight,
    const typename Traits::scalar_t* __restrict__ bias,
    const __grid_constant__ ColumnsPlan s) {
  using scalar_t = typename Traits::scalar_t;
  constexpr int kTaps = Traits::kTaps;
  constexpr int kTile = Traits::kTile;
  constexpr int kValues = Traits::kValues;
  constexpr int kHeight = Traits::kHeight;
  extern __shared__ float4 shared_vectors[];
  char* const shared = reinterpret_cast<char*>(shared_vectors);
  const typename Traits::Stream stream(s, shared);
  const int threads = blockDim.x - kWarpSize; // that compute
  const int thread = threadIdx.x;
  const int lane = thread % kWarpSize;
  const int planes = min(s.planes, s.channels - static_cast<int>(blockIdx.x) * s.planes);
  float* const totals = reinterpret_cast<float*>(shared + s.totals_at); // [sum][thread]
  if (thread == 0) {
    stream.begin(threads);
  }
  if (thread < kZeroBytes / static_cast<int>(sizeof(uint32_t))) {
    reinterpret_cast<uint32_t*>(shared + kZeros)[thread] = 0;
  }
  __syncthreads();

  if (thread >= threads) {
    stream.run(dst, src, other);
  } else {
    const int dilation = Traits::kDilation > 0 ? Traits::kDilation : s.dilation_height;
    ColumnPlace place = column_place<Traits>(s, thread, dilation);
    ColumnMarch<Traits> m(s, dilation);
    m.set_place(s, place, planes);
    const int channel = static_cast<int>(blockIdx.x) * s.planes + min(place.plane, planes - 1);
    float taps[kTaps] = {};
    bool finite = true;
    if constexpr (Traits::kData) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        taps[tap] = static_cast<float>(weight[channel * kTaps + (s.flip ? kTaps - 1 - tap : tap)]);
        finite = finite && is_finite(taps[tap]);
      }
    }
    const float begin = bias ? static_cast<float>(bias[channel]) : 0.0f;
    ColumnSums<Traits> sums;
    const uint32_t zeros = shared_address(shared) + kZeros;
    float window[kHeight][kValues];
    uint32_t inside[kValues] = {};
    const auto find_inside = [&]() {
      if constexpr (!Traits::kSequence) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          const int column = place.column - s.padding_width + i * dilation;
          inside[i] =
              static_cast<unsigned int>(column) < static_cast<unsigned int>(s.src_width) ? ~0u : 0;
          // As words that the compiler knows nothing of: it would make conditions of them again in each row.
          asm volatile("" : "+r"(inside[i]));
        }
      }
    };
    find_inside();

    ColumnRun run(s, stream.first);
    int stage = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int item = stream.first; item < stream.end; ++item) {
      using Extent = ColumnExtent<scalar_t>;
      const uint32_t source = shared_address(stream.src(stage)) + Extent::of_src(run).lead_bytes();
      // Of the results, and of the input.
      const uint32_t to = shared_address(stream.dst(stage)) + Extent::of_dst(run).lead_bytes();
      wait_for(stream.full(stage), parity);
#pragma unroll 1
      for (int round = 0; round < s.rounds; ++round) {
        if (s.rounds > 1) {
          place = column_place<Traits>(s, thread + round * threads, dilation);
          m.set_place(s, place, planes);
          find_inside();
        }
        m.begin(run, source, to);
        if constexpr (Traits::kSequence) {
          // Of the steps that have all they meet.
          const int most =
              min(run.rows, run.src_rows - run.shift - (Traits::kWidth - 1) * dilation);
          const int least = run.shift >= 0 ? 0 : -run.shift > m.row_step ? s.rows : 1;
          int i = 0;
#pragma unroll 1
          while (i < s.rows) {
            if (i >= least && (i + 2) * m.row_step <= most) {
              step_along<Traits, 2, true>(m, sums, taps, begin);
              i += 2;
            } else {
              step_along<Traits, 1, false>(m, sums, taps, begin);
              i += 1;
            }
          }
        } else {
          uint32_t ahead[kValues];
          const auto take_row = [&](float (&row)[kValues]) {
#pragma unroll
            for (int i = 0; i < kValues; ++i) {
              row[i] = element_as_float(ahead[i], scalar_t());
            }
          };
          m.read_row(ahead, inside, zeros);
          if (!s.goes_on || run.band == 0 || item == stream.first) {
#pragma unroll
            for (int i = 0; i < kHeight - 1; ++i) {
              take_row(window[i]);
              m.read_row(ahead, inside, zeros);
            }
          }
#pragma unroll 1
          for (int i = 0; i < s.rows; i += kHeight) {
#pragma unroll
            for (int u = 0; u < kHeight; ++u) {
              if (u > 0 && i + u >= s.rows) {
                break;
              }
              take_row(window[(u + kHeight - 1) % kHeight]);
              float values[kTile];
              if constexpr (Traits::kWeight) {
                m.template read_input<false>(values, 0);
              }
              m.read_row(ahead, inside, zeros);
              float results[kTile][1];
              add_products(results, sums, values, taps, begin, [&](int kh) -> auto& {
                return window[(u + kh) % kHeight];
              });
              if constexpr (Traits::kWeight) {
#pragma unroll
                for (int t = 0; t < kTile; ++t) {
                  const float middle = window[(u + kHeight / 2) % kHeight][t + Traits::kWidth / 2];
                  add_to_bias<Traits::kExact>(
                      sums.sums[Traits::kTaps], sums.excess, m.owns(t) ? middle : 0.0f);
                }
              }
              if constexpr (Traits::kData) {
                m.template write<false>(results);
              }
              m.to += m.dst_step;
            }
          }
        }
        if (Traits::kData && !finite) {
          m.begin(run, source, to);
          const int plane = run.plane + min(place.plane, planes - 1);
          careful_columns<Traits>(
              m,
              src + plane * s.src_height * s.src_width,
              weight + channel * kTaps,
              begin,
              s,
              run.first_row + place.row,
              place.column);
        }
      }
      if constexpr (Traits::kWeight && Traits::kExact) {
        sums.add_to_totals(totals + thread, threads, item == stream.first);
      }
      if constexpr (Traits::kData) {
        fence_for_copies();
      }
      arrive(stream.done(stage));
      run.next();
      stream.advance(stage, parity);
    }
    if constexpr (Traits::kWeight) {
      if constexpr (!Traits::kExact) {
        sums.add_to_totals(totals + thread, threads, true);
      }
      totals[kTaps * threads + thread] = sums.sums[kTaps];
      totals[(kTaps + 1) * threads + thread] = sums.excess;
    }
  }

  if constexpr (Traits::kWeight) {
    __syncthreads();
    const int of_plane = s.rounds > 1 ? threads : s.lanes * s.strips;
    const int warps = blockDim.x / kWarpSize;
#pragma unroll 1
    for (int i = thread / kWarpSize; i < planes * (kTaps + 1); i += warps) {
      const int plane = i / (kTaps + 1);
      const int at = i % (kTaps + 1); // of the window; kTaps: the bias
      const float* const from = totals + at * threads + plane * of_plane;
      double sum = 0;
#pragma unroll 1
      for (int t = lane; t < of_plane; t += kWarpSize) {
        sum += from[t];
        if (Traits::kExact && at == kTaps) {
          sum -= from[t + threads];
        }
      }
      sum = sum_of_warp(sum);
      if (isnan(sum)) {
        sum = careful_sum<Traits>(src, other, s, plane, at, stream.first, stream.end);
      }
      if (lane == 0) {
        const int row = at == kTaps ? kTaps : kTaps - 1 - at;
        float* const result = partial +
            (static_cast<int64_t>(blockIdx.y) * (kTaps + kBiasRows) + row) * s.channels +
            static_cast<int>(blockIdx.x) * s.planes + plane;
        if (at == kTaps) {
          write_bias(result, s.channels, sum);
        } else {
          *result = static_cast<float>(sum);
        }
      }
    }
  }
}

// Planes of up to so many bytes in 16 bits are taken whole.
constexpr int64_t kWholeBytes = 12 * 1024;

bool takes_whole(int64_t height, int64_t width) {
  return height * width * 2 <= kWholeBytes;
}

// Bytes of dst that a run may have. Larger ones begin less often and leave fewer blocks: forward of
// 3072@1x202 in float by 6, 8, 12 KB 198, 158, 164 us, of 728@65 dilated by 2 by 8, 12, 17 KB 81, 82, 76, in
// half 41, 40, 44; all gradients of 113 columns in half by 12 and 17 KB 82 and 71, of 513 in float by 17 and
// 25 KB 133 and 128, of 1001 194 and 147.
template <typename Traits>
int64_t most_run_bytes(const UnitStridePass& s) {
  constexpr int64_t kKilo = 1024;
  if (Traits::kSequence) {
    return 8 * kKilo;
  }
  if (Traits::kTile < 4) {
    return 17 * kKilo;
  }
  if (Traits::kExact) {
    return (Traits::kWeight ? 25 : 12) * kKilo;
  }
  return Traits::kWeight || takes_whole(s.dst_height, s.dst_width) ? kWholeBytes : 17 * kKilo;
}

// What one pass of the kernel is about: forward, or the gradients that are wanted.
struct ColumnsPass {
  const Operand& dst; // may be undefined where `other` is not
  const Operand& grad_weight;
  const Operand& grad_bias;
  const Operand& src;
  const Operand& other; // the input, where the weight's gradient is wanted
  const Operand& weight;
  const Operand& bias;
};

template <typename Traits>
bool launch(const ColumnsPass& pass, const Params& params, ColumnsPlan s) {
  using scalar_t = typename Traits::scalar_t;
  const int64_t beside_bytes =
      (s.padding_width + Traits::kValues * s.dilation_width) * Traits::kSize;
  const ColumnsRequest request{
      Traits::kTile, Traits::kSize, most_run_bytes<Traits>(s), beside_bytes, Traits::kSequence};
  if (beside_bytes > kZeroBytes || !plan_runs(s, request)) {
    return false;
  }
  const int64_t tasks = static_cast<int64_t>(s.planes) * s.lanes * s.strips;
  const int64_t threads = divide_up(divide_up(tasks, s.rounds), kWarpSize) * kWarpSize;
  const int64_t stage_bytes = s.src_bytes + s.dst_bytes;
  s.totals_at = kMarginBytes + kRunStages * stage_bytes;
  const int64_t totals = Traits::kWeight ? (Traits::kTaps + 2) * threads * sizeof(float) : 0;
  const int64_t shared = s.totals_at + totals;
  constexpr auto kernel = columns_kernel<Traits>;
  if (!has_shared(shared) || !compiled_for_sm_90<kernel>()) {
    return false;
  }
  // Short shares, so that faster multiprocessors take more of them: forward of 3072@1x202 in float with 2, 4,
  // 8, 32 runs 157, 157, 163, 176 us. But each of the weight's gradient writes a partial: in half with 4, 8,
  // 16, 32 137, 119, 105, 109.
  constexpr int64_t kShare = !Traits::kWeight ? 4 : Traits::kSequence ? 16 : 8;
  constexpr int64_t kMostParts = 32768;
  const int64_t resident = resident_blocks(kernel, threads + kWarpSize, shared);
  const int64_t few = divide_up(static_cast<int64_t>(s.items) * s.groups, resident);
  s.share = std::max(std::min(kShare, few), divide_up(s.items, kMostParts));
  const int64_t parts = divide_up(s.items, s.share);
  const Operand partial = Traits::kWeight ? empty_partial(parts, params) : Operand();
  launch_kernel(
      kernel,
      dim3(s.groups, parts),
      threads + kWarpSize,
      shared,
      mutable_pointer_or_null<scalar_t>(pass.dst),
      mutable_pointer_or_null<float>(partial),
      pass.src.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.other),
      pass.weight.const_data_ptr<scalar_t>(),
      pointer_or_null<scalar_t>(pass.bias),
      s);
  if constexpr (Traits::kWeight) {
    add_partials(pass.grad_weight, pass.grad_bias, partial, parts, params);
  }
  return true;
}

// The rows of a sequence that lies along the width are its positions.
void stand_upright(UnitStridePass& s) {
  std::swap(s.src_height, s.src_width);
  std::swap(s.dst_height, s.dst_width);
  std::swap(s.kernel_height, s.kernel_width);
  std::swap(s.padding_height, s.padding_width);
  std::swap(s.dilation_height, s.dilation_width);
}

// Calls function with the window's traits, of which the type and what is wanted are known.
template <typename scalar_t, bool kData, bool kWeight>
bool with_columns(const ColumnsPass& pass, const Params& params, ColumnsPlan s) {
  const bool lies = s.src_height == 1 && s.dst_height == 1 && s.kernel_height == 1;
  const bool stands = s.src_width == 1 && s.dst_width == 1 && s.kernel_width == 1;
  if (lies || stands) {
    if (lies) {
      stand_upright(s);
    }
    s.dilation_width = 1;
    constexpr int kTile = sizeof(scalar_t) == 2 ? 2 : 1;
    const auto with = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      return s.dilation_height == 1
          ? launch<ColumnsTraits<scalar_t, 1, kWidth, true, 1, kTile, kData, kWeight>>(
                pass, params, s)
          : launch<ColumnsTraits<scalar_t, 1, kWidth, true, 0, kTile, kData, kWeight>>(
                pass, params, s);
    };
    switch (s.kernel_height) {
      case 3:
        return with(std::integral_constant<int, 3>());
      case 5:
        return with(std::integral_constant<int, 5>());
      case 7:
        return with(std::integral_constant<int, 7>());
      default:
        return false;
    }
  }
  if (s.kernel_height != 3 || s.kernel_width != 3 || s.dilation_height != s.dilation_width ||
      s.dilation_height > 2) {
    return false;
  }
  const auto with = [&](auto dilation, auto tile) {
    return launch<ColumnsTraits<
        scalar_t,
        3,
        3,
        false,
        decltype(dilation)::value,
        decltype(tile)::value,
        kData,
        kWeight>>(pass, params, s);
  };
  const auto fits = [&](int64_t tile) {
    return row_lanes(s.dst_width, tile, s.dilation_height) * s.dilation_height <= kColumnThreads;
  };
  constexpr auto kOne = std::integral_constant<int, 1>();
  constexpr auto kTwo = std::integral_constant<int, 2>();
  constexpr auto kFour = std::integral_constant<int, 4>();
  const bool doubled = s.dilation_height == 2;
  if constexpr (sizeof(scalar_t) == 4) {
    if (fits(1)) {
      return doubled ? with(kTwo, kOne) : with(kOne, kOne);
    }
    return !doubled && fits(4) && with(kOne, kFour);
  } else {
    // Four columns take a fifth fewer instructions each than two, and have twice the bank conflicts: forward
    // of 728@65 dilated by 2 52 us by two, 40 by four, of 129 columns 45 and 32. But 113 columns, in bands of
    // which few lanes are at work, 51 and 61, all their gradients 71 and 98.
    constexpr int64_t kLeast = 120;
    if (takes_whole(s.dst_height, s.dst_width) || s.dst_width >= kLeast) {
      return fits(4) && (doubled ? with(kTwo, kFour) : with(kOne, kFour));
    }
    return doubled ? with(kTwo, kTwo) : with(kOne, kTwo);
  }
}

// Whether the kernel takes the sizes, and is the fastest there; `weight`: for the weight's gradient.
bool columns_pay(const Params& p, int64_t element_bytes, bool weight) {
  if (p.channels_last || p.multiplier != 1 || p.stride_height != 1 || p.stride_width != 1 ||
      !march_fits_32_bits(p)) {
    return false;
  }
  if (p.kernel_height == 1 || p.kernel_width == 1) {
    // Of 20 positions the weight's gradient takes 45 us in half, 43 by the march; of 50 half of its time.
    constexpr int64_t kLeastLength = 32;
    const bool lies = p.kernel_height == 1 && p.input_height == 1 && p.output_height == 1;
    const bool stands = p.kernel_width == 1 && p.input_width == 1 && p.output_width == 1;
    return (lies || stands) && std::max(p.input_height, p.input_width) >= kLeastLength;
  }
  // Microseconds before and by this, forward without dilation: float 65 columns 69 and 74, 57 68 and 77, 225
  // 39 and 40, 513 92 and 87, 1001 104 and 93; half 33 columns 15 and 17, 57 57 and 57, 65 52 and 38, 113 56
  // and 61, 129 37 and 32, 225 30 and 25. The weight's gradient is faster everywhere, but for 33 columns in
  // half.
  constexpr int64_t kVector = 4;
  constexpr int64_t kLeastColumns = 48;
  constexpr int64_t kLeastForward = 60;
  constexpr int64_t kManyColumns = 120;
  const int64_t width = std::min(p.input_width, p.output_width);
  if (width < kLeastColumns || (p.input_width % kVector == 0 && p.output_width % kVector == 0)) {
    return false;
  }
  if (p.dilation_height > 1) {
    return width < kManyColumns; // of more there are no measurements
  }
  if (weight) {
    return true;
  }
  return element_bytes == 4 ? width > kColumnThreads
                            : width >= kManyColumns ||
          (width >= kLeastForward && takes_whole(p.output_height, p.output_width));
}

ColumnsPlan columns_pass(const Params& p, bool grad) {
  ColumnsPlan s{};
  set_unit_stride_pass(s, p);
  if (grad) {
    turn_around(s, p);
  }
  return s;
}

} // namespace

bool columns_forward(const ForwardPass& pass, const Params& p) {
  if (!columns_pay(p, pass.src.element_size(), false) || pass.dst.numel() == 0 ||
      !begins_a_run(pass.dst) || !begins_a_run(pass.src)) {
    return false;
  }
  const Operand none;
  const ColumnsPass columns{pass.dst, none, none, pass.src, none, pass.weight, pass.bias};
  return with_scalar_type(pass.src.type(), [&](auto scalar) {
    return with_columns<decltype(scalar), true, false>(columns, p, columns_pass(p, false));
  });
}

bool columns_backward(const BackwardPass& pass, const Params& p) {
  const Operand none;
  const bool wants_weight = pass.asks_weight();
  if (!columns_pay(p, pass.grad_output.element_size(), wants_weight) ||
      pass.grad_output.numel() == 0 || !begins_a_run(pass.grad_input) ||
      !begins_a_run(pass.grad_output)) {
    return false;
  }
  if (wants_weight && (!begins_a_run(pass.input) || !middle_meets_all(p))) {
    return false;
  }
  const ColumnsPass columns{
      pass.grad_input,
      pass.grad_weight,
      pass.grad_bias,
      pass.grad_output,
      wants_weight ? pass.input : none,
      pass.weight,
      none};
  return with_scalar_type(pass.input.type(), [&](auto scalar) {
    using scalar_t = decltype(scalar);
    const ColumnsPlan s = columns_pass(p, true);
    if (!wants_weight) {
      return with_columns<scalar_t, true, false>(columns, p, s);
    }
    return pass.grad_input.defined() ? with_columns<scalar_t, true, true>(columns, p, s)
                                     : with_columns<scalar_t, false, true>(columns, p, s);
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
