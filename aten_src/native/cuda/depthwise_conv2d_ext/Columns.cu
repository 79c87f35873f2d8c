// How runs of memory come to the blocks of Columns.cu, and go.
//
// A run is what lies in one piece: a few planes side by side or a band of rows of one. A block stays with its
// channels and takes a share of their runs, in order. One warp of it does nothing but ask for runs, by bulk
// copies into a ring in shared memory, and send their results: it computes nothing, so that what is under way
// does not wait for who computes. Runs begin at any element: copies begin with the 16 bytes that have the
// first, and results leave by a copy but for the few elements at both ends that share their 16 with others.
#include <ATen/native/cuda/depthwise_conv2d_ext/Boxes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

constexpr int kColumnThreads = 288; // of a block that compute, at most
// Stages of the ring. Three leave too few blocks: forward of 728@65 k3 dilated by 2 in half 40 us and 41, of
// 57 columns 57 and 63, of 113 in float 76 and 86.
constexpr int kRunStages = 2;
// Bytes of shared memory before the buffers: the barriers, and zeros, which rows outside the image are read
// from.
constexpr int kMarginBytes = 256;
constexpr int kZeros = 128;
constexpr int kZeroBytes = kMarginBytes - kZeros;
static_assert(2 * kRunStages * sizeof(uint64_t) <= kZeros);

// Of a sequence the rows are its positions, one element each.
struct ColumnsPlan : UnitStridePass { // of multiplier 1
  int32_t planes; // of a run: channels side by side; 1 where a plane has several bands
  int32_t groups; // of as many channels
  int32_t bands; // of a plane
  int32_t band_rows;
  bool goes_on; // a thread's rows go on from band to band, and what they read with them
  int32_t items; // runs of a group: bands of images
  int32_t share; // of a block
  int32_t lanes; // threads across a row; of a sequence those of a plane
  int32_t strips; // of a band; phases of the dilation innermost
  int32_t rows; // steps of a thread
  int32_t rounds; // of all threads of the block to get through a run; 1 where it has several planes
  int32_t src_bytes; // room for what a run reads
  int32_t dst_bytes; // for its part of the input, and of the results
  int32_t totals_at; // of shared memory
};

// What a plan of runs depends on beside the pass.
struct ColumnsRequest {
  int64_t tile; // columns of a thread
  int64_t bytes; // of an element
  int64_t most_bytes; // of a run of dst
  int64_t beside_bytes; // that a window reads beside a run
  bool sequence;
};

// Threads across a row, of `tile` columns a dilation apart each.
inline int64_t row_lanes(int64_t width, int64_t tile, int64_t dilation) {
  return width / (tile * dilation) * dilation + std::min(width % (tile * dilation), dilation);
}

// Runs that take the threads the fewest steps for what they have; false where none fit.
inline bool plan_runs(ColumnsPlan& s, const ColumnsRequest& r) {
  constexpr int64_t kMostGroup = 64;
  const int64_t height = s.dst_height;
  const int64_t dilation = s.dilation_height;
  const int64_t row_bytes = s.dst_width * r.bytes;
  const int64_t overhang = (s.kernel_height - 1) * dilation;
  // Steps that a run takes to begin and end, and of a row that is only read.
  constexpr double kBegin = 4;
  constexpr double kReadRow = 0.4;
  double least = std::numeric_limits<double>::max();
  const auto consider = [&](int64_t planes,
                            int64_t band_rows,
                            int64_t lanes,
                            int64_t strips,
                            int64_t rows,
                            bool goes_on) {
    const int64_t tasks = planes * lanes * strips;
    const int64_t rounds = divide_up(tasks, kColumnThreads);
    if (rounds > 1 && (planes > 1 || goes_on)) {
      return;
    }
    const int64_t warps = divide_up(divide_up(tasks, rounds), kWarpSize);
    const int64_t bands = divide_up(height, band_rows);
    const int64_t twice = bands > 1 && !goes_on ? overhang : 0;
    const double first_rows = r.sequence || goes_on ? 0 : kReadRow * (s.kernel_height - 1);
    const double time = static_cast<double>(divide_up(s.channels, planes) * bands * warps) *
        (rounds * (rows + first_rows) + kBegin) * (1 + twice / (2.0 * (band_rows + twice)));
    if (time < least) {
      least = time;
      s.planes = planes;
      s.groups = divide_up(s.channels, planes);
      s.bands = bands;
      s.band_rows = band_rows;
      s.lanes = lanes;
      s.strips = strips;
      s.rows = rows;
      s.rounds = rounds;
      s.goes_on = goes_on;
    }
  };
  const int64_t most_planes = std::clamp<int64_t>(
      r.most_bytes / (height * row_bytes), 1, std::min<int64_t>(s.channels, kMostGroup));
  const int64_t bands = divide_up(height * row_bytes, r.most_bytes);
  const int64_t band_rows = divide_up(height, bands);
  if (r.sequence) {
    constexpr int64_t kMostSteps = 16;
    const int64_t tiles = divide_up(band_rows, r.tile);
    for (int64_t steps = 1; steps <= kMostSteps; ++steps) {
      const int64_t lanes = divide_up(divide_up(tiles, steps), dilation) * dilation;
      for (int64_t planes = 1; planes <= most_planes && planes * lanes <= kColumnThreads;
           ++planes) {
        consider(planes, band_rows, lanes, 1, steps, false);
      }
    }
  } else {
    const int64_t lanes = row_lanes(s.dst_width, r.tile, dilation);
    for (int64_t planes = 1; planes <= most_planes; ++planes) {
      for (int64_t parts = 1; parts <= band_rows; ++parts) {
        const int64_t strips = parts * dilation;
        if (parts > 1 && strips * lanes * planes > kColumnThreads) {
          break;
        }
        consider(planes, band_rows, lanes, strips, divide_up(band_rows, strips), false);
      }
    }
    if (bands > 1) {
      // So that a thread's last rows of a band lie where the next begins.
      const int64_t unit = dilation * s.kernel_height;
      const int64_t rows = divide_up(band_rows, unit) * unit;
      consider(1, rows, lanes, dilation, rows / dilation, true);
    }
  }
  if (least == std::numeric_limits<double>::max()) {
    return false;
  }
  // What lies beside a run is read, and not used; nobody writes there meanwhile.
  const auto room = [&](int64_t elements) {
    return (divide_up(elements * r.bytes + r.beside_bytes, kLineBytes) + 1) * kLineBytes;
  };
  const int64_t src_rows = s.bands > 1 ? s.band_rows + overhang : s.src_height;
  s.src_bytes = room(s.planes * std::min<int64_t>(src_rows, s.src_height) * s.src_width);
  s.dst_bytes = room(s.planes * std::min<int64_t>(s.band_rows, height) * s.dst_width);
  s.items = s.batch * s.bands;
  return true;
}

// By addresses in shared memory, which cost no instructions beside the loads where offsets are known.
template <typename scalar_t>
__device__ __forceinline__ uint32_t read_bits(uint32_t address) {
  uint32_t bits;
  if constexpr (sizeof(scalar_t) == sizeof(uint32_t)) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(address));
  } else {
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(bits) : "r"(address));
  }
  return bits;
}

// If place < end, else zero. So that it is no branch: the compiler made one of every condition.
template <typename scalar_t>
__device__ __forceinline__ uint32_t read_bits(uint32_t address, uint32_t place, uint32_t end) {
  uint32_t bits = 0;
  if constexpr (sizeof(scalar_t) == sizeof(uint32_t)) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.u32 p, %2, %3;\n@p ld.shared.u32 %0, [%1];\n}"
                 : "+r"(bits)
                 : "r"(address), "r"(place), "r"(end));
  } else {
    asm volatile("{\n.reg .pred p;\nsetp.lt.u32 p, %2, %3;\n@p ld.shared.u16 %0, [%1];\n}"
                 : "+r"(bits)
                 : "r"(address), "r"(place), "r"(end));
  }
  return bits;
}

template <typename scalar_t>
__device__ __forceinline__ void write_bits(
    uint32_t address,
    uint32_t bits,
    uint32_t place,
    uint32_t end) {
  if constexpr (sizeof(scalar_t) == sizeof(uint32_t)) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.u32 p, %2, %3;\n@p st.shared.u32 [%0], %1;\n}" ::"r"(address),
        "r"(bits),
        "r"(place),
        "r"(end));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.u32 p, %2, %3;\n@p st.shared.u16 [%0], %1;\n}" ::"r"(address),
        "h"(static_cast<uint16_t>(bits)),
        "r"(place),
        "r"(end));
  }
}

// Rows [first_row, first_row + rows) of dst and of the input, of planes from `plane` on, and the rows of src
// that they meet. The runs of a block in order, by next().
struct ColumnRun {
  const ColumnsPlan& s;
  int32_t plane;
  int32_t planes;
  int32_t band;
  int32_t first_row;
  int32_t rows;
  int32_t src_row;
  int32_t src_rows;
  int32_t
      shift; // from a row of dst, by those of the run, to the first of src that it has yet to read

  __device__ __forceinline__ ColumnRun(const ColumnsPlan& plan, int item) : s(plan) {
    const int image = item / s.bands;
    const int channel = static_cast<int>(blockIdx.x) * s.planes;
    band = item - image * s.bands;
    plane = image * s.channels + channel;
    planes = min(s.planes, s.channels - channel);
    find_rows(false);
  }

  __device__ __forceinline__ void next() {
    band += 1;
    if (band == s.bands) {
      band = 0;
      plane += s.channels;
    }
    if (s.bands > 1) {
      find_rows(s.goes_on && band > 0);
    }
  }

  // goes_on: from the run before, whose last rows of src are not among these.
  __device__ __forceinline__ void find_rows(bool goes_on) {
    first_row = band * s.band_rows;
    rows = min(s.band_rows, s.dst_height - first_row);
    src_row = 0;
    src_rows = s.src_height;
    const int overhang = (s.kernel_height - 1) * s.dilation_height;
    const int from = first_row - s.padding_height;
    const int unread = goes_on ? from + overhang : from;
    if (s.bands > 1) {
      src_row = min(max(unread, 0), s.src_height);
      src_rows = max(min(from + rows + overhang, s.src_height) - src_row, 0);
    }
    shift = unread - src_row;
  }
};

// Elements [first, end) of a tensor, which lie in shared memory as far from where a line begins.
template <typename scalar_t>
struct ColumnExtent {
  static constexpr int kSize = sizeof(scalar_t);
  static constexpr int kGranule = kBulkBytes / kSize;
  int32_t first;
  int32_t end;

  __device__ __forceinline__ ColumnExtent(int first_element, int count)
      : first(first_element), end(first_element + count) {}

  static __device__ __forceinline__ ColumnExtent of_src(const ColumnRun& run) {
    const ColumnsPlan& s = run.s;
    return {
        (run.plane * s.src_height + run.src_row) * s.src_width,
        run.planes * run.src_rows * s.src_width};
  }

  static __device__ __forceinline__ ColumnExtent of_dst(const ColumnRun& run) {
    const ColumnsPlan& s = run.s;
    return {
        (run.plane * s.dst_height + run.first_row) * s.dst_width,
        run.planes * run.rows * s.dst_width};
  }

  // Where the 16 bytes begin that have the first element.
  __device__ __forceinline__ int begin() const {
    return first & ~(kGranule - 1);
  }

  // From where its buffer begins.
  __device__ __forceinline__ int lead_bytes() const {
    return static_cast<uint32_t>(first) * kSize % kLineBytes;
  }

  // The place of the tensor's first element, were all of it in the buffer.
  __device__ __forceinline__ char* origin(char* buffer) const {
    return buffer + lead_bytes() - static_cast<int64_t>(first) * kSize;
  }

  // That a copy brings, of a tensor of `all` elements, with the last of which its 16 bytes may not end.
  __device__ __forceinline__ int bytes(int all) const {
    const int last = min((end + kGranule - 1) & ~(kGranule - 1), all & ~(kGranule - 1));
    return max(last - begin(), 0) * kSize;
  }

  // By one thread, before it arrives at the barrier.
  __device__ __forceinline__ void copy_last(char* buffer, const scalar_t* from, int all) const {
    auto* const to = reinterpret_cast<scalar_t*>(origin(buffer));
    for (int i = max(all & ~(kGranule - 1), begin()); i < end; ++i) {
      to[i] = from[i];
    }
  }

  __device__ __forceinline__ void load(
      char* buffer,
      uint32_t barrier,
      const scalar_t* from,
      int all) const {
    const int count = bytes(all);
    if (count > 0) {
      load_run(
          reinterpret_cast<scalar_t*>(origin(buffer)) + begin(), barrier, from + begin(), count);
    }
  }
};

// The ring. kInput: a run of the input comes with each of src. kResults: there are results; where the input
// comes, they lie in its place, for the threads that read an element of it write that one.
template <typename scalar_t, bool kInput, bool kResults>
struct ColumnStream {
  using Extent = ColumnExtent<scalar_t>;
  static constexpr bool kInPlace = kInput && kResults;
  static constexpr bool kBuffered = kResults && !kInput;

  const ColumnsPlan& s;
  char* const shared;
  const uint32_t barriers; // of stages that are full, then of those that are done
  const int stage_bytes;
  const int first; // of the block's items
  const int end;

  __device__ __forceinline__ ColumnStream(const ColumnsPlan& plan, void* memory)
      : s(plan),
        shared(static_cast<char*>(memory)),
        barriers(shared_address(memory)),
        stage_bytes(plan.src_bytes + plan.dst_bytes),
        first(blockIdx.y * plan.share),
        end(min(first + plan.share, plan.items)) {}

  __device__ __forceinline__ uint32_t full(int stage) const {
    return barriers + stage * static_cast<int>(sizeof(uint64_t));
  }

  __device__ __forceinline__ uint32_t done(int stage) const {
    return full(kRunStages + stage);
  }

  __device__ __forceinline__ char* src(int stage) const {
    return shared + kMarginBytes + stage * stage_bytes;
  }

  // Of the input, and of the results.
  __device__ __forceinline__ char* dst(int stage) const {
    return src(stage) + s.src_bytes;
  }

  __device__ __forceinline__ void advance(int& stage, uint32_t& parity) const {
    if (++stage == kRunStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // By one thread, before a barrier of the block. All threads that compute arrive when they are done with a
  // run, not one of each warp: it takes no longer, and racecheck sees that what they wrote is there.
  __device__ __forceinline__ void begin(int threads) const {
    for (int i = 0; i < kRunStages; ++i) {
      init_barrier(full(i), kBuffered ? 2 : 1);
      init_barrier(done(i), threads);
    }
    fence_barriers();
  }

  __device__ __forceinline__ void ask(
      int stage,
      const ColumnRun& run,
      const scalar_t* from,
      const scalar_t* input) const {
    const Extent extent = Extent::of_src(run);
    const int all = s.batch * s.channels * s.src_height * s.src_width;
    extent.copy_last(src(stage), from, all);
    if constexpr (kInput) {
      const Extent also = Extent::of_dst(run);
      const int all_inputs = s.batch * s.channels * s.dst_height * s.dst_width;
      also.copy_last(dst(stage), input, all_inputs);
      arrive_and_expect(full(stage), extent.bytes(all) + also.bytes(all_inputs));
      also.load(dst(stage), full(stage), input, all_inputs);
    } else {
      arrive_and_expect(full(stage), extent.bytes(all));
    }
    extent.load(src(stage), full(stage), from, all);
  }

  // By all threads of the warp.
  __device__ __forceinline__ void send(int stage, const ColumnRun& run, scalar_t* to) const {
    constexpr int kGranule = Extent::kGranule;
    const Extent extent = Extent::of_dst(run);
    const int lane = threadIdx.x % kWarpSize;
    const int inner = (extent.first + kGranule - 1) & ~(kGranule - 1);
    const int inner_end = extent.end & ~(kGranule - 1);
    const auto* const from = reinterpret_cast<const scalar_t*>(extent.origin(dst(stage)));
    if (lane == 0 && inner < inner_end) {
      store_run(to + inner, from + inner, (inner_end - inner) * static_cast<int>(sizeof(scalar_t)));
    }
    // What shares its 16 bytes with other runs.
    static_assert(2 * kGranule <= kWarpSize);
    const int i = lane < kGranule ? extent.first + lane : max(inner_end, inner) + lane - kGranule;
    if (lane < 2 * kGranule && i < (lane < kGranule ? min(inner, extent.end) : extent.end)) {
      to[i] = from[i];
    }
  }

  // All that the warp does which does not compute.
  __device__ __forceinline__ void run(
      scalar_t* results,
      const scalar_t* from,
      const scalar_t* input) const {
    const bool asks = threadIdx.x % kWarpSize == 0;
    ColumnRun asked(s, first);
    ColumnRun sent = asked;
    int ahead = first; // the item to ask for next
    const auto ask_next = [&](int stage) {
      if (ahead < end) {
        if (asks) {
          ask(stage, asked, from, input);
        }
        asked.next();
      }
      ++ahead;
    };
    for (int i = 0; i < kRunStages; ++i) {
      ask_next(i);
      if (kBuffered && asks) {
        arrive(full(i));
      }
    }
    int stage = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int item = first; item < end; ++item) {
      wait_for(done(stage), parity);
      if constexpr (kResults) {
        send(stage, sent, results);
        sent.next();
      }
      if constexpr (!kInPlace) {
        ask_next(stage);
      }
      if constexpr (kResults) {
        if (asks) {
          wait_until_sent();
        }
        __syncwarp();
      }
      if constexpr (kInPlace) {
        ask_next(stage);
      }
      if (kBuffered && asks) {
        arrive(full(stage));
      }
      advance(stage, parity);
    }
    if (kResults && asks) {
      wait_until_stored();
    }
  }
};

// Forward, grad_input and the weight's gradient of depthwise_conv2d_ext in plane order at stride 1 where rows
// fall into no whole vectors: odd widths, and sequences, whose planes are single rows or columns.
//
// Such planes begin anywhere in memory, but a few of them side by side, or a band of rows of one, are a
// single run of it, which bulk copies bring into shared memory and take out of it
// (Columns.cu). There a thread owns a column, of 16-bit types two or four a dilation
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
