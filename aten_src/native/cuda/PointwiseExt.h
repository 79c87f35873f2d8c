// Between the loop of the element-wise CUDA kernels (PointwiseExt.cuh), which nvcc compiles, and the host's half of it
// (PointwiseExt.cpp): TensorIterator's header takes nvcc longer than the kernels, once for each architecture.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/FunctionRef.h>
#include <cstdint>

namespace c10 {
class Scalar;
}

namespace at {
struct TensorIteratorBase;
}

namespace at::native::pointwise_ext {

constexpr int kMostTensors = 3;
constexpr int kMostDims = 25;

// Operands whose offsets fit 32 bits, the output first. Strides are in bytes.
struct Piece {
  int64_t count; // elements
  int dims;
  const int64_t* sizes;
  ScalarType common_type; // what is computed with, as it is stored
  struct {
    void* data;
    const int64_t* strides;
    ScalarType type;
    bool is_cpu_scalar; // a 0-d tensor in the host's memory
  } tensors[kMostTensors];
};

// The type that the operands have in common.
ScalarType common_type(const TensorIteratorBase& iter);

// As an opmath type.
template <typename T>
T value_of(const c10::Scalar& scalar);

// Calls visit for each part of the iterator; none where it has no elements.
void for_each_piece(TensorIteratorBase& iter, c10::function_ref<void(const Piece&)> visit);

// A kernel on the current stream.
void launch(const void* kernel, int64_t blocks, int threads, void** arguments);

} // namespace at::native::pointwise_ext
