// What the CUDA kernels of depthwise_conv2d_ext share: packed vectors of elements, asynchronous copies into shared
// memory and sums over a warp; partials, results and sums tap by tap; rings of rows, windows as constants.
#pragma once

#include <ATen/native/cuda/depthwise_conv2d_ext/Problem.cuh>
#include <algorithm>
#include <cstdint>
#include <utility>

namespace at::native::depthwise_conv2d_ext_cuda {

// kSize elements that travel together. They stay packed in words of 32 bits until they are used: an
// array of 16-bit elements would be taken apart as soon as it is loaded, and so wait for memory
// where a prefetch must not.
template <typename scalar_t, int kSize>
struct alignas(sizeof(scalar_t) * kSize < 4 ? 4 : sizeof(scalar_t) * kSize) Packed {
  static constexpr int kBytes = sizeof(scalar_t) * kSize;
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  static_assert(kBytes == 2 || kBytes % 4 == 0);
  uint32_t words[kWords];
};

constexpr int kWarpSize = 32;

// Four floats that begin at a multiple of 16 bytes.
__device__ __forceinline__ void read_four(float* to, const void* from) {
  const float4 four = *static_cast<const float4*>(from);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}

// The sum over the lanes, in all of them.
template <typename T>
__device__ __forceinline__ T sum_of_warp(T value) {
#pragma unroll
  for (int partner = kWarpSize / 2; partner > 0; partner /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, partner);
  }
  return value;
}

template <typename scalar_t, int kSize>
__device__ __forceinline__ Packed<scalar_t, kSize> packed_zero() {
  Packed<scalar_t, kSize> zero;
#pragma unroll
  for (int i = 0; i < zero.kWords; ++i) {
    zero.words[i] = 0;
  }
  return zero;
}

// One load of the whole vector; `from` is aligned to it.
template <typename scalar_t, int kSize>
__device__ __forceinline__ Packed<scalar_t, kSize> load_vector(const scalar_t* from) {
  using Words = Packed<scalar_t, kSize>;
  Words to;
  if constexpr (Words::kBytes == 2) {
    to.words[0] = __ldg(reinterpret_cast<const unsigned short*>(from));
  } else if constexpr (Words::kWords == 1) {
    to.words[0] = __ldg(reinterpret_cast<const unsigned int*>(from));
  } else if constexpr (Words::kWords == 2) {
    const uint2 got = __ldg(reinterpret_cast<const uint2*>(from));
    to.words[0] = got.x;
    to.words[1] = got.y;
  } else {
    static_assert(Words::kWords == 4, "a load moves at most 16 bytes");
    const uint4 got = __ldg(reinterpret_cast<const uint4*>(from));
    to.words[0] = got.x;
    to.words[1] = got.y;
    to.words[2] = got.z;
    to.words[3] = got.w;
  }
  return to;
}

// The first `count` elements, one by one; the others are zero.
template <typename scalar_t, int kSize>
__device__ __forceinline__ Packed<scalar_t, kSize> load_elements(const scalar_t* from, int count) {
  Packed<scalar_t, kSize> to = packed_zero<scalar_t, kSize>();
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (i < count) {
      if constexpr (sizeof(scalar_t) == 4) {
        to.words[i] = __ldg(reinterpret_cast<const unsigned int*>(from) + i);
      } else {
        const uint32_t bits = __ldg(reinterpret_cast<const unsigned short*>(from) + i);
        to.words[i / 2] |= bits << (i % 2 * 16);
      }
    }
  }
  return to;
}

__device__ __forceinline__ float element_as_float(uint32_t bits, float /*tag*/) {
  return __uint_as_float(bits);
}
__device__ __forceinline__ float element_as_float(uint32_t bits, c10::Half /*tag*/) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ float element_as_float(uint32_t bits, c10::BFloat16 /*tag*/) {
  return __uint_as_float(bits << 16);
}

// Element `index` of a packed vector; `index` is known when the loop around it is unrolled.
template <typename scalar_t, int kSize>
__device__ __forceinline__ float unpack(const Packed<scalar_t, kSize>& from, int index) {
  if constexpr (sizeof(scalar_t) == 4) {
    return element_as_float(from.words[index], scalar_t());
  } else {
    const uint32_t word = from.words[index / 2];
    if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
      return index % 2 ? __uint_as_float(word & 0xffff0000u) : __uint_as_float(word << 16);
    } else {
      return element_as_float(index % 2 ? word >> 16 : word & 0xffffu, scalar_t());
    }
  }
}

template <typename scalar_t>
__device__ __forceinline__ uint32_t bits_of(float value) {
  if constexpr (sizeof(scalar_t) == 4) {
    return __float_as_uint(value);
  } else {
    return static_cast<scalar_t>(value).x;
  }
}

template <typename scalar_t, int kSize>
__device__ __forceinline__ Packed<scalar_t, kSize> pack(const float (&values)[kSize]) {
  Packed<scalar_t, kSize> to = packed_zero<scalar_t, kSize>();
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if constexpr (sizeof(scalar_t) == 4) {
      to.words[i] = bits_of<scalar_t>(values[i]);
    } else {
      to.words[i / 2] |= bits_of<scalar_t>(values[i]) << (i % 2 * 16);
    }
  }
  return to;
}

template <typename scalar_t, int kSize>
__device__ __forceinline__ void store_vector(scalar_t* to, const float (&values)[kSize]) {
  using Words = Packed<scalar_t, kSize>;
  const Words from = pack<scalar_t>(values);
  if constexpr (Words::kBytes == 2) {
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(from.words[0]);
  } else if constexpr (Words::kWords == 1) {
    *reinterpret_cast<unsigned int*>(to) = from.words[0];
  } else if constexpr (Words::kWords == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(from.words[0], from.words[1]);
  } else {
    static_assert(Words::kWords == 4, "a store moves at most 16 bytes");
    *reinterpret_cast<uint4*>(to) =
        make_uint4(from.words[0], from.words[1], from.words[2], from.words[3]);
  }
}

template <typename scalar_t, int kSize>
__device__ __forceinline__ void store_elements(
    scalar_t* to,
    const float (&values)[kSize],
    int count) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (i < count) {
      to[i] = static_cast<scalar_t>(values[i]);
    }
  }
}

// Asks for a copy of kBytes (4, 8 or 16) into shared memory, or of zeros.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool exists) {
#if __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address),
               "l"(from),
               "n"(kBytes),
               "r"(exists ? kBytes : 0)
               : "memory");
#else
  constexpr int kWords = kBytes / static_cast<int>(sizeof(float));
  Packed<float, kWords> loaded = packed_zero<float, kWords>();
  if constexpr (kWords == 1) {
    // Of a row of nine such copies ptxas would give each a predicate, of which there are seven, and fail.
    asm volatile(
        "{ .reg .pred exists; setp.ne.b32 exists, %2, 0; @exists ld.global.nc.b32 %0, [%1]; }"
        : "+r"(loaded.words[0])
        : "l"(from), "r"(static_cast<int>(exists)));
  } else if (exists) {
    loaded = load_vector<float, kWords>(static_cast<const float*>(from));
  }
  *static_cast<Packed<float, kWords>*>(to) = loaded;
#endif
}

// Ends a group of copies, those since the last.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all of the thread's groups but the last kPending are there.
template <int kPending>
__device__ __forceinline__ void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Until all of the thread's copies are there.
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ __forceinline__ bool is_finite(float value) {
  return fabsf(value) < __uint_as_float(0x7f800000u);
}

// Adds `value` to a sum whose exact value is about sum - excess.
template <typename acc_t>
__device__ __forceinline__ void add_compensated(acc_t& sum, acc_t& excess, acc_t value) {
  const acc_t term = value - excess;
  const acc_t total = sum + term;
  excess = (total - sum) - term;
  sum = total;
}

// Adds to the sum of a bias, which is `sum` less `excess`: compensated where kExact.
template <bool kExact>
__device__ __forceinline__ void add_to_bias(float& sum, float& excess, float value) {
  if constexpr (kExact) {
    add_compensated(sum, excess, value);
  } else {
    sum += value;
  }
}

// Adds partial[chunk][row][channel] over the chunks, always in the same order, and writes
// grad_weight[channel][row] and, from the kBiasRows rows after the taps, grad_bias[channel]. The
// bias has two rows, a sum and, in float, what rounding took from it (write_bias()): it is the
// longest sum of all, and has no products whose rounding would hide its error.
constexpr int kBiasRows = 2;
// A partial of doubles is for tensors of them.
Operand empty_partial(int64_t chunks, const Params& params, Type type = Type::kFloat);
template <typename scalar_t>
void add_partials(const BackwardPass& pass, const Operand& partial, const Params& params);

// Of a grid's second and third dimension.
constexpr int64_t kMostGridRows = 65535;

// A pass at stride 1, as boxes see it: dst[h][w] = sum of
// src[h + kh * dilation_height - padding_height][w + kw * dilation_width - padding_width] * tap[kh][kw],
// with `flip` the taps of grad_input.
struct UnitStridePass {
  int32_t batch;
  int32_t channels; // of the output
  int32_t multiplier;
  int32_t src_height;
  int32_t src_width;
  int32_t dst_height;
  int32_t dst_width;
  int32_t kernel_height;
  int32_t kernel_width;
  int32_t padding_height;
  int32_t padding_width;
  int32_t dilation_height;
  int32_t dilation_width;
  bool flip;
};

// What values are added up in.
template <typename scalar_t>
using opmath_type = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

// The two bias rows of a partial, `next` apart.
template <typename acc_t>
__device__ __forceinline__ void write_bias(acc_t* to, int64_t next, double sum) {
  const acc_t rounded = static_cast<acc_t>(sum);
  to[0] = rounded;
  to[next] = ::isfinite(rounded) ? static_cast<acc_t>(sum - rounded) : acc_t(0);
}

// What is not finite. Kernels multiply zeros that stand for places outside the image; a result that may have met
// another's infinity or NaN there is computed again, of places inside the image only: by mended(), and sums over
// the output by add_partials().

// One element of the output or, where `grad`, of grad_input: `sum` is what it begins with.
template <typename scalar_t, typename acc_t>
__device__ __noinline__ acc_t mended(
    const scalar_t* src,
    const scalar_t* weight,
    acc_t sum,
    const Params& p,
    bool grad,
    int image,
    int channel,
    int row,
    int column) {
  const int64_t height = grad ? p.output_height : p.input_height;
  const int64_t width = grad ? p.output_width : p.input_width;
  const int64_t channels = grad ? p.output_channels() : p.channels;
  for (int source = 0; source < (grad ? p.multiplier : 1); ++source) {
    const int64_t from = grad ? channel * p.multiplier + source : channel / p.multiplier;
    const scalar_t* const taps = weight + (grad ? from : channel) * p.kernel_size();
    for (int tap = 0; tap < p.kernel_size(); ++tap) {
      const int64_t down = tap / p.kernel_width * p.dilation_height - p.padding_height;
      const int64_t right = tap % p.kernel_width * p.dilation_width - p.padding_width;
      int64_t h = grad ? row - down : row * p.stride_height + down;
      int64_t w = grad ? column - right : column * p.stride_width + right;
      if (grad && (h % p.stride_height != 0 || w % p.stride_width != 0)) {
        continue;
      }
      h /= grad ? p.stride_height : 1;
      w /= grad ? p.stride_width : 1;
      if (h >= 0 && h < height && w >= 0 && w < width) {
        const int64_t at = p.channels_last ? ((image * height + h) * width + w) * channels + from
                                           : ((image * channels + from) * height + h) * width + w;
        sum += static_cast<acc_t>(src[at]) * static_cast<acc_t>(taps[tap]);
      }
    }
  }
  return sum;
}

// Where a block's sums of a channel lie at its end: each tap's (kTaps: the bias') of all threads, in shared
// memory, of those that share the channel, in order.
struct BlockSums {
  float* mine; // of this thread
  const double* biases; // of this thread, where taps' are added up otherwise
  int32_t threads; // from a sum to the next
  int32_t part; // of this thread
  int32_t parts;
  int32_t lanes; // threads from a part to the next
  bool works; // this thread has sums, of a channel that exists
};

// Adds them up in double, one part after the other, each sum by one thread, and writes them to `to`.
template <typename Traits>
__device__ __forceinline__ void write_block_sums(const BlockSums& sums, float* to, int channels) {
  constexpr int kTaps = Traits::kTaps;
#pragma unroll 1
  for (int k = sums.works ? sums.part : kTaps + 1; k <= kTaps; k += sums.parts) {
    double sum = 0;
    for (int i = 0; i < sums.parts; ++i) {
      const int other = (i - sums.part) * sums.lanes;
      sum += k < Traits::kAlike ? static_cast<double>(sums.mine[k * sums.threads + other])
                                : sums.biases[other];
    }
    if (k == kTaps) {
      write_bias(to + kTaps * channels, channels, sum);
    } else {
      to[k * channels] = static_cast<float>(sum);
    }
  }
}

// A thread's own ring of rows in shared memory, filled by asynchronous copies: what is in flight
// costs no registers, so that kStages - 1 rows are on their way while one is used. Only the thread
// that asked for a row reads it, so nothing needs a barrier. Element (column) of stage s lies at
// [s][column][thread]. A stage is filled again one round after it was read.
template <typename scalar_t, int kVector, int kColumns, int kStages, int kThreads>
struct RowRing {
  using Element = Packed<scalar_t, kVector>;
  static_assert(Element::kBytes == 4 || Element::kBytes == 8 || Element::kBytes == 16);
  static constexpr int kBytes = Element::kBytes * kColumns * kStages * kThreads;

  Element* mine;
  int filled = 0; // the stage to fill next
  int used = 0; // the stage to use next

  __device__ __forceinline__ explicit RowRing(void* shared)
      : mine(static_cast<Element*>(shared) + threadIdx.x) {}

  static __device__ __forceinline__ int after(int stage) {
    return stage + 1 == kStages ? 0 : stage + 1;
  }

  // Before another march, with nothing under way.
  __device__ __forceinline__ void restart() {
    filled = 0;
    used = 0;
  }

  // Whole vectors if `aligned`, else `valid` elements of each; columns not inside become zeros.
  // Nothing is loaded where the row does not exist.
  __device__ __forceinline__ void fill(
      const scalar_t* from,
      bool exists,
      uint32_t inside,
      int step,
      bool aligned,
      int valid) {
    Element* const to = mine + filled * (kColumns * kThreads);
    filled = after(filled);
    if (exists && aligned) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        copy_async<Element::kBytes>(to + c * kThreads, from + c * step, inside >> c & 1);
      }
    } else if (exists && sizeof(scalar_t) == 4) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          copy_async<sizeof(uint32_t)>(
              reinterpret_cast<uint32_t*>(to + c * kThreads) + v,
              from + c * step + v,
              (inside >> c & 1) && v < valid);
        }
      }
    } else if (exists) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        to[c * kThreads] =
            load_elements<scalar_t, kVector>(from + c * step, inside >> c & 1 ? valid : 0);
      }
    }
  }

  // Call once a row, after everything that belongs to it was filled.
  static __device__ __forceinline__ void commit() {
    commit_copies();
  }

  // Until all but the last kStages - 2 committed rows are here.
  static __device__ __forceinline__ void wait() {
    wait_for_groups<kStages - 2>();
  }

  __device__ __forceinline__ void use(Element (&row)[kColumns]) {
    const Element* const from = mine + used * (kColumns * kThreads);
    used = after(used);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      row[c] = from[c * kThreads];
    }
  }
};

// Where the products of one kernel row are added up: the sums themselves or, if `own`, a row of
// their own that finish() adds to them. `own` is known when the loop around it is unrolled; as a
// constant's type it spares the compiler a branch of each product.
template <int kTile, int kVector, typename Own = bool>
struct RowSums {
  float (&sums)[kTile][kVector];
  const Own own;
  float row[kTile][kVector];

  __device__ __forceinline__ RowSums(float (&to)[kTile][kVector], Own by_itself)
      : sums(to), own(by_itself) {}

  __device__ __forceinline__ void add(int kw, int t, int v, float value, float factor) {
    if (!own) {
      sums[t][v] = fmaf(value, factor, sums[t][v]);
    } else {
      row[t][v] = kw == 0 ? value * factor : fmaf(value, factor, row[t][v]);
    }
  }

  __device__ __forceinline__ void finish() {
    if (own) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          sums[t][v] += row[t][v];
        }
      }
    }
  }
};

// Ends a source: its function, whose last parameter is Params, of the types of this object. They are all three, or
// one where the build makes an object for each that the source lists at its head, as nvcc takes minutes for all.
#ifdef DEPTHWISE_TYPE
#define DEPTHWISE_INSTANTIATE(function, ...) \
  template bool function<DEPTHWISE_TYPE>(__VA_ARGS__, const Params&)
#else
#define DEPTHWISE_INSTANTIATE(function, ...)                     \
  template bool function<float>(__VA_ARGS__, const Params&);     \
  template bool function<c10::Half>(__VA_ARGS__, const Params&); \
  template bool function<c10::BFloat16>(__VA_ARGS__, const Params&)
#endif

// The first kernel row whose taps are summed by themselves; kHeight: none.
template <typename scalar_t, typename Window>
constexpr int kFirstOwnRow = sizeof(scalar_t) == 4 ? (Window::kHeight + 2) / 2 : Window::kHeight;

// How many vectors of channels a block of at most `threads` threads covers: whole sectors of memory,
// and as many threads at work as possible; with whole_trees its tiles are a power of two.
inline int lanes_for(int64_t vectors, size_t vector_bytes, int threads, bool whole_trees) {
  constexpr int kSectorBytes = 32;
  constexpr int kMost = 32;
  constexpr int kLeast = 12;
  const int whole = kSectorBytes / static_cast<int>(vector_bytes);
  if (vectors <= whole) {
    return static_cast<int>(vectors);
  }
  int best = whole;
  double most_at_work = 0;
  for (int lanes = kMost; lanes >= std::min(whole, kLeast); lanes -= whole) {
    int tiles = threads / lanes;
    while (whole_trees && (tiles & (tiles - 1)) != 0) {
      --tiles;
    }
    const double at_work = static_cast<double>(tiles) * vectors / divide_up(vectors, lanes);
    if (at_work > most_at_work) {
      best = lanes;
      most_at_work = at_work;
    }
  }
  return best;
}

template <typename scalar_t>
const scalar_t* pointer_or_null(const Operand& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<scalar_t>() : nullptr;
}

template <typename scalar_t>
scalar_t* mutable_pointer_or_null(const Operand& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<scalar_t>() : nullptr;
}

// What every geometry of a forward has: src is the input, dst the output.
template <typename Geometry>
void set_forward_sizes(Geometry& g, const Params& p) {
  g.src_height = p.input_height;
  g.src_width = p.input_width;
  g.dst_height = p.output_height;
  g.dst_width = p.output_width;
  g.padding_height = p.padding_height;
  g.padding_width = p.padding_width;
}

// From the forward's geometry to grad_input's: at stride 1 it is the forward on grad_output, with
// flipped taps.
template <typename Geometry>
void turn_around(Geometry& g, const Params& p) {
  g.flip = true;
  std::swap(g.src_height, g.dst_height);
  std::swap(g.src_width, g.dst_width);
  g.padding_height = p.dilation_height * (p.kernel_height - 1) - p.padding_height;
  g.padding_width = p.dilation_width * (p.kernel_width - 1) - p.padding_width;
}

// The forward at stride 1, or grad_input as a forward on grad_output.
inline UnitStridePass unit_stride_pass(const Params& p, bool grad_input) {
  UnitStridePass pass{};
  pass.batch = p.batch;
  pass.channels = p.output_channels();
  pass.multiplier = p.multiplier;
  set_forward_sizes(pass, p);
  pass.kernel_height = p.kernel_height;
  pass.kernel_width = p.kernel_width;
  pass.dilation_height = p.dilation_height;
  pass.dilation_width = p.dilation_width;
  if (grad_input) {
    turn_around(pass, p);
  }
  return pass;
}

inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Fewer threads than this leave most of the largest devices empty.
inline int64_t few_threads() {
  return multiprocessors() * 64;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
