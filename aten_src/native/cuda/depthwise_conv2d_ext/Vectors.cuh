// What the CUDA kernels of depthwise_conv2d_ext do with elements: packed vectors of them, sums over a warp,
// asynchronous copies into shared memory, compensated sums.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <cstdint>
#include <type_traits>

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
  *static_cast<Packed<float, kWords>*>(to) = exists
      ? load_vector<float, kWords>(static_cast<const float*>(from))
      : packed_zero<float, kWords>();
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

} // namespace at::native::depthwise_conv2d_ext_cuda
