// CUDA kernels of lltm_cell: one for the whole forward of a small problem, products included, one for
// the gates after the product, one for them backward and one that adds the partial bias gradients.
// All accumulate in float (double for double).
#include <ATen/native/cuda/LltmCell.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <cmath>

namespace at::native::lltm_cuda {
namespace {

template <typename T, typename scalar_t>
__device__ T load(const Rows<scalar_t>& rows, int64_t row, int64_t column) {
  return rows.data == nullptr
      ? T(0)
      : static_cast<T>(rows.data[row * rows.row_stride + column * rows.stride]);
}

// As SigmoidExt: exp never overflows.
template <typename T>
__device__ T sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

template <typename T>
__device__ T elu(T x) {
  return x > T(0) ? x : std::expm1(x);
}

// The whole forward. A block computes kSmallUnits hidden units of kSmallRows rows, all three gates. The
// columns of [old_h, input] and of the weight pass through shared memory, kSmallDepth at a time, where
// they are joined without a copy of their own; kSmallSlices threads share the columns of one result
// and their sums are added in order. So the bits depend neither on strides nor on the launch, and
// the cell is computed from gates that were not rounded yet.
constexpr int kSmallDepth = 128;
constexpr int kSmallPitch = kSmallDepth + 1; // neighbouring rows fall into different banks
constexpr int kGates = 3;
static_assert(kSmallThreads % kSmallDepth == 0 && kSmallDepth % kSmallSlices == 0);

template <typename scalar_t>
__global__ void __launch_bounds__(kSmallThreads) small_kernel(SmallParams<scalar_t> p) {
  using T = Sum<scalar_t>;
  constexpr int kLoadRows = kSmallThreads / kSmallDepth;
  __shared__ T operand[kSmallRows][kSmallPitch];
  __shared__ T factor[kGates * kSmallUnits][kSmallPitch];
  __shared__ T shared_sums[kSmallSlices][kGates][kSmallRows * kSmallUnits];
  const int result = threadIdx.x % (kSmallRows * kSmallUnits);
  const int slice = threadIdx.x / (kSmallRows * kSmallUnits);
  const int unit = result % kSmallUnits;
  const int row = result / kSmallUnits;
  const auto first_row = static_cast<int64_t>(blockIdx.x) * kSmallRows;
  const auto first_unit = static_cast<int64_t>(blockIdx.y) * kSmallUnits;
  const auto depth = p.state + p.features;
  const int load_column = threadIdx.x % kSmallDepth;
  const int load_row = threadIdx.x / kSmallDepth;
  T sums[kGates] = {};
  for (int64_t first = 0; first < depth; first += kSmallDepth) {
    const auto column = first + load_column;
    const bool is_hidden = column < p.state;
#pragma unroll
    for (int r = load_row; r < kSmallRows; r += kLoadRows) {
      const auto at = first_row + r;
      T value(0);
      if (at < p.batch && column < depth) {
        value = is_hidden ? load<T>(p.old_h, at, column) : load<T>(p.input, at, column - p.state);
      }
      operand[r][load_column] = value;
    }
#pragma unroll
    for (int r = load_row; r < kGates * kSmallUnits; r += kLoadRows) {
      const auto at = first_unit + r % kSmallUnits;
      const bool exists = at < p.state && column < depth;
      factor[r][load_column] =
          exists ? load<T>(p.weight, r / kSmallUnits * p.state + at, column) : T(0);
    }
    __syncthreads();
    // Only columns that exist: a zero in place of one would make NaN of an infinite partner.
    const auto columns =
        static_cast<int>(depth - first < kSmallDepth ? depth - first : kSmallDepth);
#pragma unroll 8
    for (int k = slice; k < columns; k += kSmallSlices) {
      const T value = operand[row][k];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        sums[gate] += value * factor[gate * kSmallUnits + unit][k];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    shared_sums[slice][gate][result] = sums[gate];
  }
  __syncthreads();
  const auto column = first_unit + unit;
  const auto at = first_row + row;
  if (slice != 0 || column >= p.state || at >= p.batch) {
    return;
  }
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    T sum = sums[gate];
#pragma unroll
    for (int other = 1; other < kSmallSlices; ++other) {
      sum += shared_sums[other][gate][result];
    }
    const auto of_gates = gate * p.state + column;
    sum += static_cast<T>(p.bias[of_gates * p.bias_stride]);
    p.gates[at * kGates * p.state + of_gates] = static_cast<scalar_t>(sum);
    sums[gate] = sum;
  }
  const T cell = load<T>(p.old_cell, at, column) + elu(sums[2]) * sigmoid(sums[0]);
  p.new_cell[at * p.state + column] = static_cast<scalar_t>(cell);
  p.new_h[at * p.state + column] = static_cast<scalar_t>(std::tanh(cell) * sigmoid(sums[1]));
}

// A thread computes kVector neighbouring hidden units of one row. With kVector > 1 the state is a
// multiple of it, old_cell's columns are neighbours in memory and every pointer is aligned.
template <typename scalar_t, int kVector>
__global__ void __launch_bounds__(kForwardThreads) forward_kernel(ForwardParams<scalar_t> p) {
  using T = Sum<scalar_t>;
  struct alignas(kVector * sizeof(scalar_t)) Vector {
    scalar_t values[kVector];
  };
  const auto vectors = p.state / kVector;
  const auto total = p.batch * vectors;
  const auto step = static_cast<int64_t>(gridDim.x) * kForwardThreads;
  for (auto index = static_cast<int64_t>(blockIdx.x) * kForwardThreads + threadIdx.x; index < total;
       index += step) {
    const auto row = index / vectors;
    const auto column = (index - row * vectors) * kVector;
    const auto* gates = p.gates + row * 3 * p.state + column;
    const auto i_gate = *reinterpret_cast<const Vector*>(gates);
    const auto o_gate = *reinterpret_cast<const Vector*>(gates + p.state);
    const auto candidate = *reinterpret_cast<const Vector*>(gates + 2 * p.state);
    const auto old_cell = *reinterpret_cast<const Vector*>(
        p.old_cell.data + row * p.old_cell.row_stride + column * p.old_cell.stride);
    Vector new_h, new_cell;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const T cell = static_cast<T>(old_cell.values[k]) +
          elu(static_cast<T>(candidate.values[k])) * sigmoid(static_cast<T>(i_gate.values[k]));
      new_cell.values[k] = static_cast<scalar_t>(cell);
      new_h.values[k] =
          static_cast<scalar_t>(std::tanh(cell) * sigmoid(static_cast<T>(o_gate.values[k])));
    }
    *reinterpret_cast<Vector*>(p.new_h + row * p.state + column) = new_h;
    *reinterpret_cast<Vector*>(p.new_cell + row * p.state + column) = new_cell;
  }
}

// A thread block walks over blocks of rows for kColumns hidden units; cpu/LltmCellKernel.cpp has the
// formulas. Thread (x, y) takes every kRowLanes-th row from y on and adds up its bias gradients;
// then the kRowLanes sums are added in the order of y. Nothing depends on the launch.
template <typename scalar_t>
__global__ void __launch_bounds__(kColumns* kRowLanes) backward_kernel(BackwardParams<scalar_t> p) {
  using T = Sum<scalar_t>;
  __shared__ T shared[kRowLanes][3][kColumns];
  const auto column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const bool inside = column < p.state;
  for (int64_t block = blockIdx.y; block < p.row_blocks; block += gridDim.y) {
    T sums[3] = {T(0), T(0), T(0)};
    const auto first_row = block * p.rows_per_block;
    const auto end_row =
        first_row + p.rows_per_block < p.batch ? first_row + p.rows_per_block : p.batch;
    for (auto row = first_row + threadIdx.y; inside && row < end_row; row += kRowLanes) {
      const auto* gates = p.gates + row * 3 * p.state + column;
      const auto i = sigmoid(static_cast<T>(gates[0]));
      const auto o = sigmoid(static_cast<T>(gates[p.state]));
      const auto x = static_cast<T>(gates[2 * p.state]);
      const auto t = std::tanh(static_cast<T>(p.new_cell[row * p.state + column]));
      const auto dh = load<T>(p.grad_h, row, column);
      const auto g = load<T>(p.grad_cell, row, column) + dh * o * (T(1) - t * t);
      const T slope = x > T(0) ? T(1) : std::exp(x);
      const T grads[3] = {g * elu(x) * i * (T(1) - i), dh * t * o * (T(1) - o), g * i * slope};
      p.grad_old_cell[row * p.state + column] = static_cast<scalar_t>(g);
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        const auto at = part * p.state + column;
        const auto grad = grads[part] + load<T>(p.grad_gates, row, at);
        p.grad_of_gates[row * 3 * p.state + at] = static_cast<scalar_t>(grad);
        sums[part] += grad;
      }
    }
    if (p.partials == nullptr) {
      continue;
    }
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      shared[threadIdx.y][part][threadIdx.x] = sums[part];
    }
    __syncthreads();
    if (threadIdx.y < 3 && inside) {
      const auto part = threadIdx.y;
      T total = T(0);
#pragma unroll
      for (int lane = 0; lane < kRowLanes; ++lane) {
        total += shared[lane][part][threadIdx.x];
      }
      p.partials[(block * 3 + part) * p.state + column] = total;
    }
    __syncthreads();
  }
}

template <typename scalar_t>
__global__ void __launch_bounds__(kBiasThreads) bias_kernel(BiasParams<scalar_t> p) {
  const auto column = static_cast<int64_t>(blockIdx.x) * kBiasThreads + threadIdx.x;
  if (column >= p.columns) {
    return;
  }
  Sum<scalar_t> total(0);
  for (int64_t block = 0; block < p.blocks; ++block) {
    total += p.partials[block * p.columns + column];
  }
  p.grad_bias[column] = static_cast<scalar_t>(total);
}

} // namespace

template <typename scalar_t>
Kernels kernels() {
  const auto address = [](auto* kernel) {
    return reinterpret_cast<const void*>(kernel);
  };
  return {
      address(small_kernel<scalar_t>),
      address(forward_kernel<scalar_t, 1>),
      address(forward_kernel<scalar_t, kForwardVector>),
      address(backward_kernel<scalar_t>),
      address(bias_kernel<scalar_t>)};
}

template Kernels kernels<double>();
template Kernels kernels<float>();
template Kernels kernels<Half>();
template Kernels kernels<BFloat16>();

} // namespace at::native::lltm_cuda
