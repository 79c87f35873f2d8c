// Between the element-wise CUDA kernels (PointwiseExt.cuh), which nvcc compiles, and the host's half of them
// (PointwiseExt.cpp): TensorIterator's header takes nvcc longer than the kernels, once for each architecture.
#pragma once

#include <c10/core/ScalarType.h>
#include <ATen/cuda/detail/IntegerDivider.cuh>
#include <cstdint>

namespace c10 {
class Scalar;
}

namespace at {
struct TensorIteratorBase;
}

namespace at::native::pointwise_ext {

constexpr int kMostDims = 25;
constexpr int kThreads = 128;
constexpr int kVectorBytes = 16;
// Elements of a thread with strides, and where it converts: code for 21 types for each of each operand.
constexpr int kStrided = 4;
constexpr int kConverting = 2;

// Addresses and types of the operands. An input without an address is `scalars` of it.
template <typename opmath_t, int kInputs>
struct Operands {
  char* output;
  const char* inputs[kInputs];
  opmath_t scalars[kInputs];
  ScalarType common_type; // what is computed with, as it is stored
  ScalarType output_type;
  ScalarType input_types[kInputs];
};

// From the number of an element to the operands' offsets in bytes, the output's first.
template <int kTensors>
struct Offsets {
  int dims;
  at::cuda::detail::IntDivider<uint32_t> sizes[kMostDims];
  uint32_t strides[kMostDims][kTensors];
};

// The kernels of an op and a type. Arguments: elements, Offsets (but of contiguous), Operands, op.
struct Kernels {
  const void* contiguous;
  const void* strided;
  const void* converting;
  int64_t contiguous_per_block; // elements
};

// The type that the operands have in common.
ScalarType common_type(const TensorIteratorBase& iter);

// As an opmath type.
template <typename T>
T value_of(const c10::Scalar& scalar);

// Runs a kernel for each part of the iterator whose offsets fit 32 bits; none where it has no elements.
template <typename opmath_t, int kInputs>
void run_kernels(TensorIteratorBase& iter, const Kernels& kernels, const void* op);

} // namespace at::native::pointwise_ext
