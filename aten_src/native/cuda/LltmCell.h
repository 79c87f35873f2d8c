// Between the CUDA kernels of lltm_cell (LltmCell.cu) and the host's half of them (LltmCell.cpp), which no nvcc
// compiles: ATen's headers would take it longer than the kernels, once for each architecture.
#pragma once

#include <cstdint>
#include <type_traits>

namespace at::native::lltm_cuda {

constexpr int kForwardThreads = 128;
constexpr int kForwardVector = 4; // elements a thread, where the layout allows
// The backward's thread block: columns, and rows that share the work of a block of rows.
constexpr int kColumns = 32;
constexpr int kRowLanes = 8;
constexpr int kBiasThreads = 128;
// The small forward's thread block: rows, hidden units, and threads that share a result's products.
constexpr int kSmallRows = 16;
constexpr int kSmallUnits = 4;
constexpr int kSmallSlices = 4;
constexpr int kSmallThreads = kSmallRows * kSmallUnits * kSmallSlices;

// What sums are in.
template <typename scalar_t>
using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

// A [B, S] operand of any strides, or none.
template <typename scalar_t>
struct Rows {
  const scalar_t* data;
  int64_t row_stride;
  int64_t stride;
};

template <typename scalar_t>
struct SmallParams {
  scalar_t* new_h;
  scalar_t* new_cell;
  scalar_t* gates;
  Rows<scalar_t> input;
  Rows<scalar_t> weight;
  const scalar_t* bias;
  int64_t bias_stride;
  Rows<scalar_t> old_h;
  Rows<scalar_t> old_cell;
  int64_t batch;
  int64_t features;
  int64_t state;
};

template <typename scalar_t>
struct ForwardParams {
  scalar_t* new_h;
  scalar_t* new_cell;
  const scalar_t* gates;
  Rows<scalar_t> old_cell;
  int64_t batch;
  int64_t state;
};

template <typename scalar_t>
struct BackwardParams {
  scalar_t* grad_of_gates;
  scalar_t* grad_old_cell;
  Sum<scalar_t>* partials; // or null
  Rows<scalar_t> grad_h;
  Rows<scalar_t> grad_cell;
  Rows<scalar_t> grad_gates;
  const scalar_t* new_cell;
  const scalar_t* gates;
  int64_t batch;
  int64_t state;
  int64_t rows_per_block; // whose bias gradients one partial sum holds
  int64_t row_blocks;
};

template <typename scalar_t>
struct BiasParams {
  scalar_t* grad_bias;
  const Sum<scalar_t>* partials;
  int64_t blocks;
  int64_t columns;
};

// The kernels of a type. Each has its parameters as its one argument.
struct Kernels {
  const void* small;
  const void* forward; // an element a thread
  const void* forward_vectors;
  const void* backward;
  const void* bias;
};

template <typename scalar_t>
Kernels kernels();

} // namespace at::native::lltm_cuda
