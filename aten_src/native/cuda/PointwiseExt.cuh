// The loop of the element-wise CUDA kernels: out = op(inputs) over a TensorIterator.
//
// ATen's gpu_kernel makes about ten kernels of a functor and a type, and three functors of a binary operator
// whose operands may be scalars: axpy_ext took nvcc 341 s for six architectures so, and takes 30 s with the
// three kernels here. They are as general:
// - contiguous: 16-byte accesses, one or two of an operand on their way in each thread;
// - strided: any strides of operands that have the type that is computed with;
// - converting: any strides and any types. One for all types that compute in the same opmath type.
// A 0-d CPU tensor as operand becomes an argument of the kernel; 64-bit sizes are split into 32-bit pieces.
#pragma once

#include <ATen/native/cuda/PointwiseExt.h>
#include <c10/core/DynamicCast.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>
#include <cstdint>
#include <type_traits>

namespace at::native::pointwise_ext {

// Vectors of each operand that a thread loads before it computes.
template <typename scalar_t>
constexpr int kVectorsOf = sizeof(scalar_t) < 4 ? 1 : 2;

// An op has `opmath_t`, which it computes in, `kInputs` (1 or 2), and operator() of so many opmath_t.
template <typename Op>
__device__ __forceinline__ typename Op::opmath_t apply(
    const Op& op,
    const typename Op::opmath_t (&inputs)[Op::kInputs]) {
  if constexpr (Op::kInputs == 1) {
    return op(inputs[0]);
  } else {
    return op(inputs[0], inputs[1]);
  }
}

template <typename Op>
using OperandsOf = Operands<typename Op::opmath_t, Op::kInputs>;

template <typename scalar_t>
struct alignas(kVectorBytes) Vector {
  static constexpr int kSize = kVectorBytes / sizeof(scalar_t);
  scalar_t values[kSize];
};

template <typename scalar_t, typename Op>
__global__ __launch_bounds__(
    kThreads) void contiguous_kernel(uint32_t count, OperandsOf<Op> operands, Op op) {
  using opmath_t = typename Op::opmath_t;
  using Packed = Vector<scalar_t>;
  constexpr int kInputs = Op::kInputs;
  constexpr int kVectors = kVectorsOf<scalar_t>;
  const uint32_t whole = count / Packed::kSize * Packed::kSize;
  const auto first = [](int v) {
    return ((blockIdx.x * kVectors + v) * kThreads + threadIdx.x) * Packed::kSize;
  };
  const auto input = [&](int k) {
    return reinterpret_cast<const scalar_t*>(operands.inputs[k]);
  };
  auto* const output = reinterpret_cast<scalar_t*>(operands.output);
  Packed loaded[kInputs][kVectors];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (operands.inputs[k] && first(v) < whole) {
        loaded[k][v] = *reinterpret_cast<const Packed*>(input(k) + first(v));
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first(v) < whole) {
      Packed result;
#pragma unroll
      for (int i = 0; i < Packed::kSize; ++i) {
        opmath_t values[kInputs];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) {
          values[k] = operands.inputs[k] ? static_cast<opmath_t>(loaded[k][v].values[i])
                                         : operands.scalars[k];
        }
        result.values[i] = static_cast<scalar_t>(apply(op, values));
      }
      *reinterpret_cast<Packed*>(output + first(v)) = result;
    }
  }
  // What is left of a vector, in the last block.
  const uint32_t at = whole + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && at < count) {
    opmath_t values[kInputs];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      values[k] = operands.inputs[k] ? static_cast<opmath_t>(input(k)[at]) : operands.scalars[k];
    }
    output[at] = static_cast<scalar_t>(apply(op, values));
  }
}

// Element by element: load(k, byte offset) of an input, store(byte offset, value) of the output.
template <int kElements, typename Op, typename Load, typename Store>
__device__ __forceinline__ void for_each_element(
    uint32_t count,
    const Offsets<1 + Op::kInputs>& offsets,
    const OperandsOf<Op>& operands,
    const Op& op,
    const Load& load,
    const Store& store) {
  constexpr int kTensors = 1 + Op::kInputs;
  const uint32_t first = blockIdx.x * (kThreads * kElements) + threadIdx.x;
  uint32_t rest[kElements];
  uint32_t at[kElements][kTensors] = {};
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    rest[e] = first + e * kThreads;
  }
  // ATen's OffsetCalculator unrolls this for each element and each of 25 dimensions.
#pragma unroll 1
  for (int dim = 0; dim < offsets.dims; ++dim) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const auto divided = offsets.sizes[dim].divmod(rest[e]);
      rest[e] = divided.div;
#pragma unroll
      for (int k = 0; k < kTensors; ++k) {
        at[e][k] += divided.mod * offsets.strides[dim][k];
      }
    }
  }
  typename Op::opmath_t values[kElements][Op::kInputs];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      if (first + e * kThreads < count) {
        values[e][k] = operands.inputs[k] ? load(k, at[e][1 + k]) : operands.scalars[k];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    if (first + e * kThreads < count) {
      store(at[e][0], apply(op, values[e]));
    }
  }
}

template <typename scalar_t, typename Op>
__global__ __launch_bounds__(kThreads) void strided_kernel(
    uint32_t count,
    Offsets<1 + Op::kInputs> offsets,
    OperandsOf<Op> operands,
    Op op) {
  using opmath_t = typename Op::opmath_t;
  for_each_element<kStrided>(
      count,
      offsets,
      operands,
      op,
      [&](int k, uint32_t at) {
        return static_cast<opmath_t>(*reinterpret_cast<const scalar_t*>(operands.inputs[k] + at));
      },
      [&](uint32_t at, opmath_t value) {
        *reinterpret_cast<scalar_t*>(operands.output + at) = static_cast<scalar_t>(value);
      });
}

// What is left of a value in the type that the operands have in common.
template <typename opmath_t>
__device__ __forceinline__ opmath_t in_common_type(opmath_t value, ScalarType type) {
  if constexpr (std::is_same_v<opmath_t, int64_t>) {
    return type == kByte ? static_cast<uint8_t>(value)
        : type == kChar  ? static_cast<int8_t>(value)
        : type == kShort ? static_cast<int16_t>(value)
        : type == kInt   ? static_cast<int32_t>(value)
                         : value;
  } else if constexpr (std::is_same_v<opmath_t, float>) {
    return type == kHalf    ? static_cast<float>(static_cast<Half>(value))
        : type == kBFloat16 ? static_cast<float>(static_cast<BFloat16>(value))
                            : value;
  } else if constexpr (std::is_same_v<opmath_t, c10::complex<float>>) {
    return type == kComplexHalf ? static_cast<opmath_t>(static_cast<c10::complex<Half>>(value))
                                : value;
  } else {
    return value;
  }
}

template <typename Op>
__global__ __launch_bounds__(kThreads) void converting_kernel(
    uint32_t count,
    Offsets<1 + Op::kInputs> offsets,
    OperandsOf<Op> operands,
    Op op) {
  using opmath_t = typename Op::opmath_t;
  for_each_element<kConverting>(
      count,
      offsets,
      operands,
      op,
      [&](int k, uint32_t at) {
        return in_common_type(
            c10::fetch_and_cast<opmath_t>(operands.input_types[k], operands.inputs[k] + at),
            operands.common_type);
      },
      [&](uint32_t at, opmath_t value) {
        c10::cast_and_store<opmath_t>(
            operands.output_type,
            operands.output + at,
            in_common_type(value, operands.common_type));
      });
}

// out = op(inputs) of operands whose common type is stored as scalar_t.
template <typename scalar_t, typename Op>
void run(TensorIteratorBase& iter, const Op& op) {
  const auto address = [](auto* kernel) {
    return reinterpret_cast<const void*>(kernel);
  };
  run_kernels<typename Op::opmath_t, Op::kInputs>(
      iter,
      {address(contiguous_kernel<scalar_t, Op>),
       address(strided_kernel<scalar_t, Op>),
       address(converting_kernel<Op>),
       kThreads * kVectorsOf<scalar_t> * Vector<scalar_t>::kSize},
      &op);
}

} // namespace at::native::pointwise_ext
