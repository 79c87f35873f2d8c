// How runs of memory come to the blocks of Columns.cu, and go.
//
// A run is what lies in one piece: a few planes side by side or a band of rows of one. A block stays with its
// channels and takes a share of their runs, in order. One warp of it does nothing but ask for runs, by bulk
// copies into a ring in shared memory, and send their results: it computes nothing, so that what is under way
// does not wait for who computes. Runs begin at any element: copies begin with the 16 bytes that have the
// first, and results leave by a copy but for the few elements at both ends that share their 16 with others.
#pragma once

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

#ifdef __CUDACC__
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
#endif

} // namespace at::native::depthwise_conv2d_ext_cuda
