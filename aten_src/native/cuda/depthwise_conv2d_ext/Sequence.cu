// One object for each DEPTHWISE_TYPE: float, c10::Half, c10::BFloat16
// Windows of one dimension: the choice for both memory orders, and contiguous lines. See Sequence.cuh.
//
// A thread has one or two aligned 16-byte vectors of dst, wherever its line begins, and the window of all of them in
// registers. Windows overlap between threads in the L1.
#include <ATen/native/cuda/depthwise_conv2d_ext/Sequence.cuh>
#include <limits>
#include <utility>

namespace at::native::depthwise_conv2d_ext_cuda {

template <typename scalar_t>
constexpr int kVectorSize = 16 / static_cast<int>(sizeof(scalar_t));

// How many elements an address is behind a multiple of kBytes.
template <int kBytes, typename scalar_t>
__device__ __forceinline__ int elements_past(const scalar_t* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kBytes / sizeof(scalar_t));
}

// A line, and the tensor that it is in.
template <typename scalar_t>
struct Line {
  const scalar_t* data;
  int length;
  const scalar_t* begin;
  const scalar_t* end;
};

// Elements first .. first + kCount of a line, zero outside it; whether all are inside. They come in aligned loads
// of kBytes, and are shifted to where the window begins. Loads of 16 bytes are fewer, so that the L1 is less in
// the way of long windows; loads of 4 bytes need fewer instructions, and lines may begin anywhere.
template <int kBytes, int kCount, typename scalar_t>
__device__ __forceinline__ bool load_window(
    float (&to)[kCount],
    const Line<scalar_t>& line,
    int first) {
  constexpr int kSize = kBytes / static_cast<int>(sizeof(scalar_t));
  constexpr int kLoads = (kCount + 2 * kSize - 2) / kSize;
  constexpr int kWords = kLoads * kBytes / 4;
  constexpr int kWordSize = 4 / static_cast<int>(sizeof(scalar_t));
  const int past = elements_past<kBytes>(line.data + first);
  const scalar_t* const from = line.data + first - past;
  const bool inside = first >= 0 && first + kCount <= line.length;
  if (from < line.begin || from + kLoads * kSize > line.end) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = first + i;
      to[i] = at >= 0 && at < line.length ? static_cast<float>(line.data[at]) : 0.0f;
    }
    return inside;
  }
  uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (i % (kBytes / 4) == 0) {
      const auto loaded = load_vector<scalar_t, kSize>(from + i * kWordSize);
#pragma unroll
      for (int j = 0; j < loaded.kWords; ++j) {
        words[i + j] = loaded.words[j];
      }
    }
  }
#pragma unroll
  for (int by = kBytes / 8; by > 0; by /= 2) {
    const bool shift = past / kWordSize & by;
#pragma unroll
    for (int i = 0; i + by < kWords; ++i) {
      words[i] = shift ? words[i + by] : words[i];
    }
  }
  Packed<scalar_t, kWordSize> word;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = i / kWordSize;
    word.words[0] = kWordSize == 1
        ? words[at]
        : __funnelshift_r(words[at], words[at + 1 < kWords ? at + 1 : at], past % 2 * 16);
    to[i] = unpack(word, i % kWordSize);
  }
  if (!inside) { // neighbours of the line
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = first + i >= 0 && first + i < line.length ? to[i] : 0.0f;
    }
  }
  return inside;
}

// Elements of a line from a multiple of 16 bytes on, zero outside it.
template <int kCount, typename scalar_t>
__device__ __forceinline__ void load_aligned(
    float (&to)[kCount],
    const scalar_t* line,
    int first,
    int length) {
  constexpr int kSize = kVectorSize<scalar_t>;
  const bool inside = first >= 0 && first + kCount <= length;
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kSize) {
    Packed<scalar_t, kSize> vector;
    if (inside) {
      vector = load_vector<scalar_t, kSize>(line + first + begin);
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const int at = first + begin + i;
      to[begin + i] = inside       ? unpack(vector, i)
          : at >= 0 && at < length ? static_cast<float>(line[at])
                                   : 0.0f;
    }
  }
}

// Stores kCount elements from a multiple of 16 bytes on, those inside the line.
template <int kCount, typename scalar_t>
__device__ __forceinline__ void store_aligned(
    scalar_t* line,
    const float (&values)[kCount],
    int first,
    int length) {
  constexpr int kSize = kVectorSize<scalar_t>;
  const bool inside = first >= 0 && first + kCount <= length;
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kSize) {
    float vector[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      vector[i] = values[begin + i];
    }
    if (inside) {
      store_vector<scalar_t>(line + first + begin, vector);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const int at = first + begin + i;
        if (at >= 0 && at < length) {
          line[at] = static_cast<scalar_t>(vector[i]);
        }
      }
    }
  }
}

// The sum of a block's values in all of its threads, in a fixed order.
template <typename T>
__device__ T sum_of_block(T value) {
  __shared__ T sums[kSequenceThreads / kWarpSize];
  value = sum_of_warp(value);
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) {
    sums[threadIdx.x / kWarpSize] = value;
  }
  __syncthreads();
  T total = 0;
  for (const T& sum : sums) {
    total += sum;
  }
  return total;
}

// One channel's share of lines; with kSums kTaps taps of it from the block's first on, else all.
// kLoadBytes: of a load, see load_window().
template <typename scalar_t, int kTaps, bool kWrite, bool kSums, bool kDilated, int kLoadBytes = 4>
__global__ __launch_bounds__(kSequenceThreads) void planes_kernel(
    scalar_t* __restrict__ dst,
    float* __restrict__ partial,
    const scalar_t* __restrict__ src,
    const scalar_t* __restrict__ values,
    const scalar_t* __restrict__ weight,
    const scalar_t* __restrict__ bias,
    const Sequence s,
    const Tiles tiles,
    const int chunks) {
  constexpr int kTile = kTaps / 4 * kVectorSize<scalar_t>;
  __shared__ __align__(16) float taps[kMostTaps];
  const int groups = kSums ? (s.taps + kTaps - 1) / kTaps : 1;
  const int first_tap = blockIdx.x % groups * kTaps;
  const int chunk = blockIdx.x / groups % chunks;
  const int channel = blockIdx.x / groups / chunks;
  bool finite = true;
  if constexpr (kWrite) {
    for (int k = threadIdx.x; k < s.taps; k += kSequenceThreads) {
      taps[k] = static_cast<float>(
          weight[static_cast<int64_t>(channel) * s.taps + (s.flip ? s.taps - 1 - k : k)]);
      finite = is_finite(taps[k]);
    }
    finite = __syncthreads_and(finite);
  }
  const float start = bias ? static_cast<float>(bias[channel]) : 0.0f;
  float sums[kTaps] = {};
  float total = 0.0f; // of src
  float excess = 0.0f;
  const int64_t lines = s.images * s.channels * s.rows * s.src_length;
  // Calls visit(line of src, offset of the line of dst, first position) for each of the thread's tiles.
  const auto for_each_tile = [&](const auto& visit) {
    for (uint32_t index = chunk * kSequenceThreads + threadIdx.x; index < tiles.count;
         index += chunks * kSequenceThreads) {
      const auto tile = tiles.per_line.divmod(index);
      const uint32_t rows = static_cast<uint32_t>(s.rows);
      const int64_t line =
          (static_cast<int64_t>(tile.div / rows) * s.channels + channel) * rows + tile.div % rows;
      const int64_t to = line * s.dst_length;
      const int past = elements_past<16>((kWrite ? dst : values) + to);
      const Line<scalar_t> from{src + line * s.src_length, s.src_length, src, src + lines};
      visit(from, to, static_cast<int>(tile.mod) * kTile - past);
    }
  };
  for_each_tile([&](const Line<scalar_t>& line, int64_t to, int first) {
    float results[kTile];
    float beside[kTile];
    bool inside = true;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      results[t] = start;
    }
    if constexpr (kSums) {
      load_aligned(beside, values + to, first, s.dst_length);
    }
    for (int begin = first_tap; begin < s.taps; begin += kTaps) {
      const int from = first + begin * s.dilation - s.padding;
      float window[kTile + kTaps - 1];
      if constexpr (!kDilated) {
        inside &= load_window<kLoadBytes>(window, line, from);
      }
      float group[kTaps];
#pragma unroll
      for (int k = 0; k < kTaps && kWrite; k += 4) {
        read_four(group + k, taps + begin + k);
      }
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        if (begin + k < s.taps) {
          if constexpr (kDilated) {
            float apart[kTile];
            inside &= load_window<kLoadBytes>(apart, line, from + k * s.dilation);
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              window[t + k] = apart[t];
            }
          }
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
            if constexpr (kWrite) {
              results[t] += group[k] * window[t + k];
            }
            if constexpr (kSums) {
              sums[k] += beside[t] * window[t + k];
            }
          }
          if (kSums && begin + k == 0) {
            float all = 0.0f;
#pragma unroll
            for (int t = 0; t < kTile; ++t) {
              all += window[t];
            }
            add_to_sequence_bias<scalar_t>(total, excess, all);
          }
        }
      }
      if constexpr (kSums) {
        break;
      }
    }
    if constexpr (kWrite) {
      if (!inside && !finite) {
#pragma unroll 1
        for (int t = 0; t < kTile; ++t) {
          const float again = start + redo_output(line.data, 1, taps, 1, s, first + t);
#pragma unroll
          for (int i = 0; i < kTile; ++i) {
            results[i] = i == t ? again : results[i];
          }
        }
      }
      store_aligned(dst + to, results, first, s.dst_length);
    }
  });
  if constexpr (kSums) {
    float* const to =
        partial + static_cast<int64_t>(chunk) * (s.taps + kBiasRows) * s.channels + channel;
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      const int tap = first_tap + k;
      if (tap < s.taps) {
        float sum = sum_of_block(sums[k]);
        if (!is_finite(sum)) {
          float again = 0.0f;
          for_each_tile([&](const Line<scalar_t>& line, int64_t at, int first) {
            for (int t = 0; t < kTile; ++t) {
              again += product(values + at, line.data, 1, s, first + t, tap);
            }
          });
          sum = sum_of_block(again);
        }
        if (threadIdx.x == 0) {
          to[static_cast<int64_t>(s.taps - 1 - tap) * s.channels] = sum;
        }
      }
    }
    if (first_tap == 0) {
      const double sum = sum_of_block(static_cast<double>(total) - excess);
      if (threadIdx.x == 0) {
        write_bias(to + static_cast<int64_t>(s.taps) * s.channels, s.channels, sum);
      }
    }
  }
}

template <typename scalar_t>
void run_planes(const SequencePass& pass, const Sequence& s, const Params& p) {
  constexpr int kFew = kTapGroup / 2;
  const bool write = pass.dst.defined();
  const bool sums = pass.values.defined();
  const int taps = s.taps <= kFew && s.dilation == 1 ? kFew : kTapGroup;
  // A line may begin anywhere behind a multiple of 16 bytes.
  const Operand& aligned = write ? pass.dst : pass.values;
  const bool all_aligned =
      is_aligned(aligned.const_data_ptr(), 16) && s.dst_length % kVectorSize<scalar_t> == 0;
  const int64_t lead = all_aligned ? 0 : kVectorSize<scalar_t> - 1;
  const bool wide = all_aligned && is_aligned(pass.src.const_data_ptr(), 16) &&
      s.src_length % kVectorSize<scalar_t> == 0;
  const int tile = taps / 4 * kVectorSize<scalar_t>;
  const Tiles tiles = tiles_of(s.images * s.rows, divide_up(s.positions + lead, tile));
  const int64_t blocks = s.channels * (sums ? divide_up(s.taps, taps) : 1);
  const int64_t chunks = shares_of(blocks, divide_up(tiles.count, kSequenceThreads));
  const Operand partial = sums ? empty_partial(chunks, p) : Operand();
  const auto launch = [&](auto* kernel) {
    launch_kernel(
        kernel,
        dim3(blocks * chunks),
        dim3(kSequenceThreads),
        0,
        mutable_pointer_or_null<scalar_t>(pass.dst),
        mutable_pointer_or_null<float>(partial),
        pass.src.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.values),
        pointer_or_null<scalar_t>(pass.weight),
        pointer_or_null<scalar_t>(pass.bias),
        s,
        tiles,
        static_cast<int>(chunks));
  };
  if (write && sums) {
    launch(
        taps == kFew ? planes_kernel<scalar_t, kFew, true, true, false>
                     : planes_kernel<scalar_t, kTapGroup, true, true, false>);
  } else if (write) {
    launch(
        s.dilation > 1     ? planes_kernel<scalar_t, kTapGroup, true, false, true>
            : taps == kFew ? planes_kernel<scalar_t, kFew, true, false, false>
            : wide         ? planes_kernel<scalar_t, kTapGroup, true, false, false, 16>
                           : planes_kernel<scalar_t, kTapGroup, true, false, false>);
  } else {
    launch(
        s.dilation > 1     ? planes_kernel<scalar_t, kTapGroup, false, true, true>
            : taps == kFew ? planes_kernel<scalar_t, kFew, false, true, false>
                           : planes_kernel<scalar_t, kTapGroup, false, true, false>);
  }
  if (sums) {
    add_partials<scalar_t>(
        {pass.dst, pass.grad_weight, pass.grad_bias, pass.src, pass.values, pass.weight},
        partial,
        p);
  }
}

namespace {

// Whether the window is along a dimension whose other dimension it leaves alone.
bool is_along(int64_t kernel, int64_t padding, int64_t stride, int64_t size) {
  return kernel == 1 && padding == 0 && (stride == 1 || size == 1);
}

// The forward of a call.
Sequence sequence_of(const Params& p) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 4;
  Sequence s{};
  const bool by_width =
      is_along(p.kernel_height, p.padding_height, p.stride_height, p.input_height);
  const bool by_height = is_along(p.kernel_width, p.padding_width, p.stride_width, p.input_width);
  const int64_t taps = p.kernel_size();
  const int64_t stride = by_width ? p.stride_width : p.stride_height;
  const int64_t padding = by_width ? p.padding_width : p.padding_height;
  const int64_t dilation = by_width ? p.dilation_width : p.dilation_height;
  const int64_t src = by_width ? p.input_width : p.input_height;
  const int64_t dst = by_width ? p.output_width : p.output_height;
  // Columns of planes are lines of neither kind.
  const bool has_lines = p.channels_last || by_width || p.input_width == 1;
  // Tiles are counted in 32 bits.
  const int64_t lines =
      p.batch * (by_width ? p.input_height : 1) * (p.channels_last ? 1 : p.channels);
  const int64_t length = std::max(src, dst) + padding + kTapGroup * dilation;
  if (by_width == by_height || !has_lines || p.multiplier != 1 || taps < 2 || taps > kMostTaps ||
      stride != 1 || padding > dilation * (taps - 1) || dst == 0 || lines == 0 || p.channels == 0 ||
      lines > kLimit || length > kLimit || lines * length / 2 > kLimit ||
      dilation > kLimit / kMostTaps ||
      // Nearly all of such a window is outside; in channels-last order that costs no more than the rest.
      (!p.channels_last && dilation > 1 && dilation * (taps - 1) >= src)) {
    return s;
  }
  s.taps = static_cast<int32_t>(taps);
  s.dilation = static_cast<int32_t>(dilation);
  s.padding = static_cast<int32_t>(padding);
  s.src_length = static_cast<int32_t>(src);
  s.dst_length = static_cast<int32_t>(dst);
  s.positions = s.dst_length;
  s.channels = static_cast<int32_t>(p.channels);
  s.images = p.batch;
  s.rows = by_width ? p.input_height : 1;
  s.inner = p.channels * (by_width ? 1 : p.input_width);
  return s;
}

// grad_input as a pass over grad_output, with sums as far as the last tap meets it. Its length says how far that is:
// padding need not be the same on both sides once Select.cpp has left out taps.
Sequence reversed(const Sequence& s, bool sums) {
  Sequence r = s;
  r.padding = s.dilation * (s.taps - 1) - s.padding;
  std::swap(r.src_length, r.dst_length);
  r.positions = sums ? std::max(r.dst_length, r.padding + r.src_length) : r.dst_length;
  r.flip = true;
  return r;
}

// In channels-last order four channels travel together.
bool has_vectors(const Params& p, const Operand& operand) {
  return !operand.defined() || !p.channels_last ||
      (p.channels % 4 == 0 && is_aligned(operand.const_data_ptr(), 4 * operand.element_size()));
}

template <typename scalar_t>
bool run(const SequencePass& pass, const Sequence& s, const Params& p) {
  if (p.channels_last) {
    return run_channels<scalar_t>(pass, s, p);
  }
  run_planes<scalar_t>(pass, s, p);
  return true;
}

} // namespace

template <typename scalar_t>
bool sequence_forward(const ForwardPass& pass, const Params& p) {
  const Sequence s = sequence_of(p);
  if (s.taps == 0 || !has_vectors(p, pass.dst) || !has_vectors(p, pass.src)) {
    return false;
  }
  const Operand none;
  return run<scalar_t>(
      {pass.dst, pass.src, pass.weight, pass.bias, none, none, none},
      pass.grad_input ? reversed(s, false) : s,
      p);
}

template <typename scalar_t>
bool sequence_backward(const BackwardPass& pass, const Params& p) {
  const Sequence s = sequence_of(p);
  // Both at once: windows of one group of taps, and lines that both begin a vector where one does. In
  // channels-last order of half a group, since two passes are faster beyond.
  const bool fits_both = p.channels_last ? s.taps <= kTapGroup / 2
                                         : s.taps <= kTapGroup && s.dilation == 1 &&
          is_aligned(pass.grad_input.const_data_ptr(), 16) &&
          is_aligned(pass.input.const_data_ptr(), 16);
  if (s.taps == 0 || (pass.grad_input.defined() && !fits_both) ||
      !has_vectors(p, pass.grad_input) || !has_vectors(p, pass.grad_output) ||
      !has_vectors(p, pass.input)) {
    return false;
  }
  const Operand none;
  return run<scalar_t>(
      {pass.grad_input,
       pass.grad_output,
       pass.weight,
       none,
       pass.input,
       pass.grad_weight,
       pass.grad_bias},
      reversed(s, true),
      p);
}

DEPTHWISE_INSTANTIATE(sequence_forward, const ForwardPass&);
DEPTHWISE_INSTANTIATE(sequence_backward, const BackwardPass&);

} // namespace at::native::depthwise_conv2d_ext_cuda
