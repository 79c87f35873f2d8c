// Included before each source that sanitizing-g++ instruments. GCC's AddressSanitizer looks at plain
// loads and stores; the masked ones, by which at::vec reads and writes the end of a row, are built-in
// functions to it and pass unseen. Here each is preceded by a look at what it touches.
#pragma once

#if defined(__SANITIZE_ADDRESS__) && defined(__AVX2__)
#include <immintrin.h>
#include <sanitizer/asan_interface.h>
#include <cstddef>
#include <cstdint>

namespace masked_accesses {

// A plain access of the first byte that is not to be touched, which AddressSanitizer reports with the
// stack of whoever called. at::vec's masks are of the first lanes; those between the lowest and the
// highest are taken to be set.
[[gnu::noinline]] inline void look_at(const void* memory, uint64_t mask, size_t lane_bytes) {
  if (mask == 0) {
    return;
  }
  const auto lowest = static_cast<size_t>(__builtin_ctzll(mask));
  const auto highest = static_cast<size_t>(63 - __builtin_clzll(mask));
  auto* begin = static_cast<char*>(const_cast<void*>(memory)) + lowest * lane_bytes;
  if (void* bad = __asan_region_is_poisoned(begin, (highest - lowest + 1) * lane_bytes)) {
    static_cast<void>(*static_cast<volatile char*>(bad));
  }
}

// AVX2's masks: the highest bit of each lane.
[[gnu::always_inline]] inline uint64_t lanes_of_4(__m256i mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}
[[gnu::always_inline]] inline uint64_t lanes_of_8(__m256i mask) {
  return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(mask)));
}

} // namespace masked_accesses

// A macro's own name within it stays: the built-in function follows the look.
#define _mm256_maskload_ps(from, mask)                                   \
  (masked_accesses::look_at(from, masked_accesses::lanes_of_4(mask), 4), \
   _mm256_maskload_ps(from, mask))
#define _mm256_maskload_pd(from, mask)                                   \
  (masked_accesses::look_at(from, masked_accesses::lanes_of_8(mask), 8), \
   _mm256_maskload_pd(from, mask))
#define _mm256_maskload_epi32(from, mask)                                \
  (masked_accesses::look_at(from, masked_accesses::lanes_of_4(mask), 4), \
   _mm256_maskload_epi32(from, mask))
#define _mm256_maskload_epi64(from, mask)                                \
  (masked_accesses::look_at(from, masked_accesses::lanes_of_8(mask), 8), \
   _mm256_maskload_epi64(from, mask))
#define _mm256_maskstore_ps(to, mask, values)                          \
  (masked_accesses::look_at(to, masked_accesses::lanes_of_4(mask), 4), \
   _mm256_maskstore_ps(to, mask, values))
#define _mm256_maskstore_pd(to, mask, values)                          \
  (masked_accesses::look_at(to, masked_accesses::lanes_of_8(mask), 8), \
   _mm256_maskstore_pd(to, mask, values))
#define _mm256_maskstore_epi32(to, mask, values)                       \
  (masked_accesses::look_at(to, masked_accesses::lanes_of_4(mask), 4), \
   _mm256_maskstore_epi32(to, mask, values))
#define _mm256_maskstore_epi64(to, mask, values)                       \
  (masked_accesses::look_at(to, masked_accesses::lanes_of_8(mask), 8), \
   _mm256_maskstore_epi64(to, mask, values))

#if defined(__AVX512F__)
#define _mm512_maskz_loadu_ps(mask, from) \
  (masked_accesses::look_at(from, mask, 4), _mm512_maskz_loadu_ps(mask, from))
#define _mm512_maskz_loadu_pd(mask, from) \
  (masked_accesses::look_at(from, mask, 8), _mm512_maskz_loadu_pd(mask, from))
#define _mm512_maskz_loadu_epi16(mask, from) \
  (masked_accesses::look_at(from, mask, 2), _mm512_maskz_loadu_epi16(mask, from))
#define _mm512_mask_loadu_epi8(others, mask, from) \
  (masked_accesses::look_at(from, mask, 1), _mm512_mask_loadu_epi8(others, mask, from))
#define _mm512_mask_loadu_epi16(others, mask, from) \
  (masked_accesses::look_at(from, mask, 2), _mm512_mask_loadu_epi16(others, mask, from))
#define _mm512_mask_loadu_epi32(others, mask, from) \
  (masked_accesses::look_at(from, mask, 4), _mm512_mask_loadu_epi32(others, mask, from))
#define _mm512_mask_loadu_epi64(others, mask, from) \
  (masked_accesses::look_at(from, mask, 8), _mm512_mask_loadu_epi64(others, mask, from))
#define _mm512_mask_storeu_ps(to, mask, values) \
  (masked_accesses::look_at(to, mask, 4), _mm512_mask_storeu_ps(to, mask, values))
#define _mm512_mask_storeu_pd(to, mask, values) \
  (masked_accesses::look_at(to, mask, 8), _mm512_mask_storeu_pd(to, mask, values))
#define _mm512_mask_storeu_epi8(to, mask, values) \
  (masked_accesses::look_at(to, mask, 1), _mm512_mask_storeu_epi8(to, mask, values))
#define _mm512_mask_storeu_epi16(to, mask, values) \
  (masked_accesses::look_at(to, mask, 2), _mm512_mask_storeu_epi16(to, mask, values))
#define _mm512_mask_storeu_epi32(to, mask, values) \
  (masked_accesses::look_at(to, mask, 4), _mm512_mask_storeu_epi32(to, mask, values))
#define _mm512_mask_storeu_epi64(to, mask, values) \
  (masked_accesses::look_at(to, mask, 8), _mm512_mask_storeu_epi64(to, mask, values))

#endif // AVX-512
#endif // AddressSanitizer and AVX2
