// The loop of the element-wise CUDA kernels: out = op(inputs) over a TensorIterator.
//
// ATen's gpu_kernel makes about ten kernels of a functor and a type, and three functors of a binary operator
// whose operands may be scalars: axpy_ext took nvcc 341 s for six architectures so, and takes 40 s with the
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
#include <ATen/cuda/detail/IntegerDivider.cuh>
#include <cstdint>
#include <type_traits>

namespace at::native::pointwise_ext {

constexpr int kThreads = 128;
constexpr int kVectorBytes = 16;
// Vectors of each operand that a thread loads before it computes.
template <typename scalar_t>
constexpr int kVectorsOf = sizeof(scalar_t) < 4 ? 1 : 2;
// Elements of a thread with strides, and where it converts: code for 13 types for each of each operand.
constexpr int kStrided = 4;
constexpr int kConverting = 2;

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

// Addresses and types of the operands. An input without an address is `scalars` of it.
template <typename Op>
struct Operands {
  char* output;
  const char* inputs[Op::kInputs];
  typename Op::opmath_t scalars[Op::kInputs];
  ScalarType common_type;
  ScalarType output_type;
  ScalarType input_types[Op::kInputs];
};

// From the number of an element to the operands' offsets in bytes.
template <int kTensors>
struct Offsets {
  int dims;
  at::cuda::detail::IntDivider<uint32_t> sizes[kMostDims];
  uint32_t strides[kMostDims][kTensors];

  explicit Offsets(const Piece& piece) : dims(piece.dims) {
    for (int dim = 0; dim < dims; ++dim) {
      sizes[dim] = at::cuda::detail::IntDivider<uint32_t>(piece.sizes[dim]);
      for (int i = 0; i < kTensors; ++i) {
        strides[dim][i] = piece.tensors[i].strides[dim];
      }
    }
  }
};

template <typename scalar_t>
struct alignas(kVectorBytes) Vector {
  static constexpr int kSize = kVectorBytes / sizeof(scalar_t);
  scalar_t values[kSize];
};

// A block's whole vectors, or with kWhole == false its elements below `count`.
template <bool kWhole, typename scalar_t, typename Op>
__device__ __forceinline__ void contiguous_block(
    uint32_t count,
    const Operands<Op>& operands,
    const Op& op) {
  using opmath_t = typename Op::opmath_t;
  using Packed = Vector<scalar_t>;
  constexpr int kInputs = Op::kInputs;
  constexpr int kVectors = kVectorsOf<scalar_t>;
  const auto first = [](int v) {
    return ((blockIdx.x * kVectors + v) * kThreads + threadIdx.x) * Packed::kSize;
  };
  Packed loaded[kInputs][kVectors];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
    if (operands.inputs[k]) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const auto* const from = reinterpret_cast<const scalar_t*>(operands.inputs[k]) + first(v);
        if constexpr (kWhole) {
          loaded[k][v] = *reinterpret_cast<const Packed*>(from);
        } else {
#pragma unroll
          for (int i = 0; i < Packed::kSize; ++i) {
            loaded[k][v].values[i] = first(v) + i < count ? from[i] : scalar_t();
          }
        }
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
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
    auto* const to = reinterpret_cast<scalar_t*>(operands.output) + first(v);
    if constexpr (kWhole) {
      *reinterpret_cast<Packed*>(to) = result;
    } else {
#pragma unroll
      for (int i = 0; i < Packed::kSize; ++i) {
        if (first(v) + i < count) {
          to[i] = result.values[i];
        }
      }
    }
  }
}

template <typename scalar_t, typename Op>
__global__ __launch_bounds__(
    kThreads) void contiguous_kernel(uint32_t count, Operands<Op> operands, Op op) {
  constexpr uint32_t kPerBlock = kThreads * kVectorsOf<scalar_t> * Vector<scalar_t>::kSize;
  if (count - blockIdx.x * kPerBlock >= kPerBlock) {
    contiguous_block<true, scalar_t>(count, operands, op);
  } else {
    contiguous_block<false, scalar_t>(count, operands, op);
  }
}

// Element by element: load(k, byte offset) of an input, store(byte offset, value) of the output.
template <int kElements, typename Op, typename Load, typename Store>
__device__ __forceinline__ void for_each_element(
    uint32_t count,
    const Offsets<1 + Op::kInputs>& offsets,
    const Operands<Op>& operands,
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
    Operands<Op> operands,
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
    Operands<Op> operands,
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

template <typename... Parameters>
void launch(
    void (*kernel)(uint32_t, Parameters...),
    int64_t count,
    int64_t per_block,
    std::common_type_t<Parameters>... arguments) {
  auto elements = static_cast<uint32_t>(count);
  void* pointers[] = {&elements, &arguments...};
  launch(
      reinterpret_cast<const void*>(kernel),
      (count + per_block - 1) / per_block,
      kThreads,
      pointers);
}

template <typename scalar_t, typename Op>
void run_piece(const Piece& piece, const Op& op) {
  constexpr int kTensors = 1 + Op::kInputs;
  Operands<Op> operands{};
  operands.common_type = piece.common_type;
  operands.output = static_cast<char*>(piece.tensors[0].data);
  operands.output_type = piece.tensors[0].type;
  bool contiguous = piece.dims <= 1;
  bool converts = false;
  for (int i = 0; i < kTensors; ++i) {
    const auto& tensor = piece.tensors[i];
    if (tensor.is_cpu_scalar) {
      operands.scalars[i - 1] =
          c10::fetch_and_cast<typename Op::opmath_t>(tensor.type, tensor.data);
      continue;
    }
    if (i > 0) {
      operands.inputs[i - 1] = static_cast<const char*>(tensor.data);
      operands.input_types[i - 1] = tensor.type;
    }
    converts |= tensor.type != piece.common_type;
    contiguous &= reinterpret_cast<uintptr_t>(tensor.data) % kVectorBytes == 0 &&
        (piece.dims == 0 || tensor.strides[0] == static_cast<int64_t>(elementSize(tensor.type)));
  }
  if (converts) {
    launch(
        converting_kernel<Op>,
        piece.count,
        kThreads * kConverting,
        Offsets<kTensors>(piece),
        operands,
        op);
  } else if (contiguous) {
    constexpr int64_t kPerBlock = kThreads * kVectorsOf<scalar_t> * Vector<scalar_t>::kSize;
    launch(contiguous_kernel<scalar_t, Op>, piece.count, kPerBlock, operands, op);
  } else {
    launch(
        strided_kernel<scalar_t, Op>,
        piece.count,
        kThreads * kStrided,
        Offsets<kTensors>(piece),
        operands,
        op);
  }
}

// out = op(inputs) of operands whose common type is stored as scalar_t.
template <typename scalar_t, typename Op>
void run(TensorIteratorBase& iter, const Op& op) {
  for_each_piece(iter, [&](const Piece& piece) { run_piece<scalar_t>(piece, op); });
}

} // namespace at::native::pointwise_ext
