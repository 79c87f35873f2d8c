// Loops over TensorIterator's runs that pass every element through one vector function.
//
// at::native::cpu_kernel_vec computes what is left of a run, and all strided operands, with a scalar
// function. Where that rounds otherwise than the vector function, as exp and 16-bit arithmetic do, an
// element's value depends on where the threads' shares end. Here a partial vector is a vector with
// unused lanes, and a strided operand is gathered into one: results are equal bit for bit for any
// strides and any number of threads.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

namespace at::native {
inline namespace CPU_CAPABILITY {

// exp of every lane. The plain x86-64 capability has no vector functions and calls the C library,
// whose exp(double) got a new version in glibc 2.29: one use of it would ask that glibc of everybody
// who installs the wheel. Its long double sister is as old as x86-64.
template <typename T>
inline vec::Vectorized<T> exp_of(const vec::Vectorized<T>& x) {
#if defined(CPU_CAPABILITY_DEFAULT) && defined(__x86_64__) && defined(__GLIBC__)
  if constexpr (std::is_same_v<T, double>) {
    return x.map([](double value) -> double {
      return static_cast<double>(std::exp(static_cast<long double>(value)));
    });
  }
#endif
  return x.exp();
}

// Applies f, a function of Vectorized<opmath_t>, to values of scalar_t: as they are, or, for the
// 16-bit types, in two halves of float.
template <typename scalar_t, typename func_t, typename... Vectors>
inline vec::Vectorized<scalar_t> in_opmath(const func_t& f, const Vectors&... values) {
  if constexpr (vec::is_reduced_floating_point_v<scalar_t>) {
    const auto halves = std::make_tuple(vec::convert_to_float<scalar_t>(values)...);
    return std::apply(
        [&f](const auto&... pair) {
          return vec::convert_from_float<scalar_t>(
              f(std::get<0>(pair)...), f(std::get<1>(pair)...));
        },
        halves);
  } else {
    return f(values...);
  }
}

// One operand of a run: contiguous, one repeated element, or any stride.
template <typename scalar_t>
struct RunOperand {
  using Vec = vec::Vectorized<scalar_t>;

  RunOperand(const char* data, int64_t stride) : data_(data), stride_(stride) {
    if (stride == 0) {
      repeated_ = Vec(*reinterpret_cast<const scalar_t*>(data));
    }
  }

  // `count` elements from the `first`; the other lanes are unspecified.
  Vec load(int64_t first, int64_t count) const {
    if (stride_ == sizeof(scalar_t)) {
      const auto* from = reinterpret_cast<const scalar_t*>(data_) + first;
      return count == Vec::size() ? Vec::loadu(from) : Vec::loadu(from, count);
    }
    if (stride_ == 0) {
      return repeated_;
    }
    __at_align__ std::array<scalar_t, Vec::size()> gathered{};
    for (int64_t lane = 0; lane < count; ++lane) {
      gathered[lane] = *reinterpret_cast<const scalar_t*>(data_ + (first + lane) * stride_);
    }
    return Vec::loadu(gathered.data());
  }

 private:
  const char* data_;
  int64_t stride_;
  Vec repeated_{};
};

template <typename scalar_t>
inline void store_run(
    const vec::Vectorized<scalar_t>& value,
    char* data,
    int64_t stride,
    int64_t first,
    int64_t count) {
  using Vec = vec::Vectorized<scalar_t>;
  if (stride == sizeof(scalar_t)) {
    value.store(reinterpret_cast<scalar_t*>(data) + first, count);
    return;
  }
  __at_align__ std::array<scalar_t, Vec::size()> lanes;
  value.store(lanes.data());
  for (int64_t lane = 0; lane < count; ++lane) {
    *reinterpret_cast<scalar_t*>(data + (first + lane) * stride) = lanes[lane];
  }
}

// How far ahead of the arithmetic memory is asked for, in bytes. Without, the arithmetic of a vector fills
// what the processor looks ahead by: sigmoid_ext of 16,000,000 bfloat16 12.1 ms, with 512, 1,024 and
// 2,048 bytes 6.9, 6.6 and 6.5; axpy_ext 4.8, 4.1 and 4.2; in the caches no difference.
constexpr uintptr_t kBytesAhead = 1024;

// Asks for the two vectors that lie kBytesAhead behind `data`, past its end too.
template <typename scalar_t>
C10_ALWAYS_INLINE void ask_ahead(const scalar_t* data) {
  const auto ahead = reinterpret_cast<uintptr_t>(data) + kBytesAhead;
  __builtin_prefetch(reinterpret_cast<const void*>(ahead));
  __builtin_prefetch(reinterpret_cast<const void*>(ahead + sizeof(vec::Vectorized<scalar_t>)));
}

// One run of n elements: out = f(in...), f a function of as many Vectorized<scalar_t> as Indices.
template <typename scalar_t, typename func_t, size_t... Indices>
inline void vector_run(
    char** data,
    const int64_t* strides,
    int64_t n,
    const func_t& f,
    std::index_sequence<Indices...> /*inputs*/) {
  using Vec = vec::Vectorized<scalar_t>;
  constexpr int64_t kLanes = Vec::size();
  int64_t i = 0;
  if (strides[0] == sizeof(scalar_t) && (... && (strides[Indices + 1] == sizeof(scalar_t)))) {
    auto* out = reinterpret_cast<scalar_t*>(data[0]);
    const auto value = [&](int64_t first) {
      return f(Vec::loadu(reinterpret_cast<const scalar_t*>(data[Indices + 1]) + first)...);
    };
    // Two at a time: their arithmetic overlaps.
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const auto low = value(i);
      const auto high = value(i + kLanes);
      (ask_ahead(reinterpret_cast<const scalar_t*>(data[Indices + 1]) + i), ...);
      ask_ahead(out + i);
      low.store(out + i);
      high.store(out + i + kLanes);
    }
  }
  if (i < n) {
    const auto operands =
        std::make_tuple(RunOperand<scalar_t>(data[Indices + 1], strides[Indices + 1])...);
    for (; i < n; i += kLanes) {
      const auto count = std::min(kLanes, n - i);
      store_run<scalar_t>(
          f(std::get<Indices>(operands).load(i, count)...), data[0], strides[0], i, count);
    }
  }
}

// All of iter, in parallel: one output and kInputs inputs, all of dtype scalar_t.
template <typename scalar_t, size_t kInputs, typename func_t>
void vector_kernel(TensorIteratorBase& iter, const func_t& f) {
  iter.for_each([&f](char** data, const int64_t* strides, int64_t n) {
    vector_run<scalar_t>(data, strides, n, f, std::make_index_sequence<kInputs>());
  });
  iter.cast_outputs();
}

} // namespace CPU_CAPABILITY
} // namespace at::native
