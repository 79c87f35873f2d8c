// CUDA kernels of lltm_cell: one for the whole forward of a small problem, products included, one for
// the gates after the product, one for them backward and one that adds the partial bias gradients.
// All accumulate in float (double for double).
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/LltmCell.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/TensorBase.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/native/cuda/MemoryAccess.cuh>
#include <algorithm>
#include <array>

namespace at::native {
namespace {

constexpr int kForwardThreads = 128;
constexpr int kForwardVector = 4; // elements a thread, where the layout allows
// The backward's thread block: columns, and rows that share the work of a block of rows.
constexpr int kColumns = 32;
constexpr int kRowLanes = 8;
static_assert(kLltmRowsPerPartial % kRowLanes == 0);
constexpr int kBiasThreads = 128;
constexpr int64_t kMaxGridY = 65535;

// A [B, S] operand of any strides, or none.
template <typename scalar_t>
struct Rows {
  const scalar_t* data;
  int64_t row_stride;
  int64_t stride;

  explicit Rows(const TensorBase& tensor) : data(nullptr), row_stride(0), stride(0) {
    if (tensor.defined()) {
      data = tensor.const_data_ptr<scalar_t>();
      row_stride = tensor.stride(0);
      stride = tensor.stride(1);
    }
  }

  template <typename T>
  __device__ T load(int64_t row, int64_t column) const {
    return data == nullptr ? T(0) : static_cast<T>(data[row * row_stride + column * stride]);
  }
};

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
constexpr int kSmallRows = 16;
constexpr int kSmallUnits = 4;
constexpr int kSmallSlices = 4;
constexpr int kSmallDepth = 128;
constexpr int kSmallPitch = kSmallDepth + 1; // neighbouring rows fall into different banks
constexpr int kSmallThreads = kSmallRows * kSmallUnits * kSmallSlices;
constexpr int kGates = 3;
static_assert(kSmallThreads % kSmallDepth == 0 && kSmallDepth % kSmallSlices == 0);

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
__global__ void __launch_bounds__(kSmallThreads) small_kernel(SmallParams<scalar_t> p) {
  using T = opmath_type<scalar_t>;
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
        value = is_hidden ? p.old_h.template load<T>(at, column)
                          : p.input.template load<T>(at, column - p.state);
      }
      operand[r][load_column] = value;
    }
#pragma unroll
    for (int r = load_row; r < kGates * kSmallUnits; r += kLoadRows) {
      const auto at = first_unit + r % kSmallUnits;
      const bool exists = at < p.state && column < depth;
      factor[r][load_column] =
          exists ? p.weight.template load<T>(r / kSmallUnits * p.state + at, column) : T(0);
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
  const T cell = p.old_cell.template load<T>(at, column) + elu(sums[2]) * sigmoid(sums[0]);
  p.new_cell[at * p.state + column] = static_cast<scalar_t>(cell);
  p.new_h[at * p.state + column] = static_cast<scalar_t>(std::tanh(cell) * sigmoid(sums[1]));
}

template <typename scalar_t>
struct ForwardParams {
  scalar_t* new_h;
  scalar_t* new_cell;
  const scalar_t* gates;
  Rows<scalar_t> old_cell;
  int64_t batch;
  int64_t state;
};

// A thread computes kVector neighbouring hidden units of one row. With kVector > 1 the state is a
// multiple of it, old_cell's columns are neighbours in memory and every pointer is aligned.
template <typename scalar_t, int kVector>
__global__ void __launch_bounds__(kForwardThreads) forward_kernel(ForwardParams<scalar_t> p) {
  using T = opmath_type<scalar_t>;
  using Vector = memory::aligned_vector<scalar_t, kVector>;
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
      const T cell = static_cast<T>(old_cell.val[k]) +
          elu(static_cast<T>(candidate.val[k])) * sigmoid(static_cast<T>(i_gate.val[k]));
      new_cell.val[k] = static_cast<scalar_t>(cell);
      new_h.val[k] =
          static_cast<scalar_t>(std::tanh(cell) * sigmoid(static_cast<T>(o_gate.val[k])));
    }
    *reinterpret_cast<Vector*>(p.new_h + row * p.state + column) = new_h;
    *reinterpret_cast<Vector*>(p.new_cell + row * p.state + column) = new_cell;
  }
}

template <typename scalar_t, int kVector>
void launch_forward(const ForwardParams<scalar_t>& params) {
  // Enough blocks to fill the device several times over; the kernel's loop does the rest.
  const auto* device = at::cuda::getCurrentDeviceProperties();
  const int64_t most = int64_t(device->multiProcessorCount) *
      (device->maxThreadsPerMultiProcessor / kForwardThreads) * 4;
  const auto threads = params.batch * (params.state / kVector);
  const auto blocks = std::min((threads + kForwardThreads - 1) / kForwardThreads, most);
  forward_kernel<scalar_t, kVector>
      <<<static_cast<unsigned>(blocks), kForwardThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
          params);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename scalar_t>
bool can_vectorize(const ForwardParams<scalar_t>& p) {
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % (kForwardVector * sizeof(scalar_t)) == 0;
  };
  return p.state % kForwardVector == 0 && p.old_cell.stride == 1 &&
      p.old_cell.row_stride % kForwardVector == 0 && aligned(p.old_cell.data) && aligned(p.gates) &&
      aligned(p.new_h) && aligned(p.new_cell);
}

template <typename scalar_t>
struct BackwardParams {
  scalar_t* grad_of_gates;
  scalar_t* grad_old_cell;
  opmath_type<scalar_t>* partials; // or null
  Rows<scalar_t> grad_h;
  Rows<scalar_t> grad_cell;
  Rows<scalar_t> grad_gates;
  const scalar_t* new_cell;
  const scalar_t* gates;
  int64_t batch;
  int64_t state;
  int64_t row_blocks;
};

// A thread block walks over blocks of rows for kColumns hidden units; cpu/PointwiseExtKernel.cpp has the
// formulas. Thread (x, y) takes every kRowLanes-th row from y on and adds up its bias gradients;
// then the kRowLanes sums are added in the order of y. Nothing depends on the launch.
template <typename scalar_t>
__global__ void __launch_bounds__(kColumns* kRowLanes) backward_kernel(BackwardParams<scalar_t> p) {
  using T = opmath_type<scalar_t>;
  __shared__ T shared[kRowLanes][3][kColumns];
  const auto column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const bool inside = column < p.state;
  for (int64_t block = blockIdx.y; block < p.row_blocks; block += gridDim.y) {
    T sums[3] = {T(0), T(0), T(0)};
    const auto first_row = block * kLltmRowsPerPartial;
    const auto end_row =
        first_row + kLltmRowsPerPartial < p.batch ? first_row + kLltmRowsPerPartial : p.batch;
    for (auto row = first_row + threadIdx.y; inside && row < end_row; row += kRowLanes) {
      const auto* gates = p.gates + row * 3 * p.state + column;
      const auto i = sigmoid(static_cast<T>(gates[0]));
      const auto o = sigmoid(static_cast<T>(gates[p.state]));
      const auto x = static_cast<T>(gates[2 * p.state]);
      const auto t = std::tanh(static_cast<T>(p.new_cell[row * p.state + column]));
      const auto dh = p.grad_h.template load<T>(row, column);
      const auto g = p.grad_cell.template load<T>(row, column) + dh * o * (T(1) - t * t);
      const T slope = x > T(0) ? T(1) : std::exp(x);
      const T grads[3] = {g * elu(x) * i * (T(1) - i), dh * t * o * (T(1) - o), g * i * slope};
      p.grad_old_cell[row * p.state + column] = static_cast<scalar_t>(g);
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        const auto at = part * p.state + column;
        const auto grad = grads[part] + p.grad_gates.template load<T>(row, at);
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
__global__ void __launch_bounds__(kBiasThreads) bias_kernel(
    scalar_t* grad_bias,
    const opmath_type<scalar_t>* partials,
    int64_t blocks,
    int64_t columns) {
  const auto column = static_cast<int64_t>(blockIdx.x) * kBiasThreads + threadIdx.x;
  if (column >= columns) {
    return;
  }
  opmath_type<scalar_t> total(0);
  for (int64_t block = 0; block < blocks; ++block) {
    total += partials[block * columns + column];
  }
  grad_bias[column] = static_cast<scalar_t>(total);
}

void lltm_cell_kernel_cuda(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& old_cell) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_cuda", [&] {
    const ForwardParams<scalar_t> params{
        new_h.mutable_data_ptr<scalar_t>(),
        new_cell.mutable_data_ptr<scalar_t>(),
        gates.const_data_ptr<scalar_t>(),
        Rows<scalar_t>(old_cell),
        new_h.size(0),
        new_h.size(1)};
    if (can_vectorize(params)) {
      launch_forward<scalar_t, kForwardVector>(params);
    } else {
      launch_forward<scalar_t, 1>(params);
    }
  });
}

void lltm_cell_small_kernel_cuda(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& input,
    const TensorBase& weight,
    const TensorBase& bias,
    const TensorBase& old_h,
    const TensorBase& old_cell) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_cuda", [&] {
    const SmallParams<scalar_t> params{
        new_h.mutable_data_ptr<scalar_t>(),
        new_cell.mutable_data_ptr<scalar_t>(),
        gates.mutable_data_ptr<scalar_t>(),
        Rows<scalar_t>(input),
        Rows<scalar_t>(weight),
        bias.const_data_ptr<scalar_t>(),
        bias.stride(0),
        Rows<scalar_t>(old_h),
        Rows<scalar_t>(old_cell),
        input.size(0),
        input.size(1),
        old_h.size(1)};
    const dim3 grid(
        static_cast<unsigned>((params.batch + kSmallRows - 1) / kSmallRows),
        static_cast<unsigned>((params.state + kSmallUnits - 1) / kSmallUnits));
    small_kernel<scalar_t><<<grid, kSmallThreads, 0, at::cuda::getCurrentCUDAStream()>>>(params);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

void lltm_cell_backward_kernel_cuda(
    const TensorBase& grad_of_gates,
    const TensorBase& grad_old_cell,
    const TensorBase& bias_partials,
    const TensorBase& grad_new_h,
    const TensorBase& grad_new_cell,
    const TensorBase& grad_gates,
    const TensorBase& new_cell,
    const TensorBase& gates) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_backward_cuda", [&] {
        const auto batch = new_cell.size(0);
        const auto state = new_cell.size(1);
        const auto row_blocks = (batch + kLltmRowsPerPartial - 1) / kLltmRowsPerPartial;
        const BackwardParams<scalar_t> params{
            grad_of_gates.mutable_data_ptr<scalar_t>(),
            grad_old_cell.mutable_data_ptr<scalar_t>(),
            bias_partials.defined() ? bias_partials.mutable_data_ptr<opmath_type<scalar_t>>()
                                    : nullptr,
            Rows<scalar_t>(grad_new_h),
            Rows<scalar_t>(grad_new_cell),
            Rows<scalar_t>(grad_gates),
            new_cell.const_data_ptr<scalar_t>(),
            gates.const_data_ptr<scalar_t>(),
            batch,
            state,
            row_blocks};
        const dim3 grid(
            static_cast<unsigned>((state + kColumns - 1) / kColumns),
            static_cast<unsigned>(std::min(row_blocks, kMaxGridY)));
        backward_kernel<scalar_t>
            <<<grid, dim3(kColumns, kRowLanes), 0, at::cuda::getCurrentCUDAStream()>>>(params);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      });
}

void lltm_cell_bias_kernel_cuda(const TensorBase& grad_bias, const TensorBase& bias_partials) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, grad_bias.scalar_type(), "lltm_cell_backward_cuda", [&] {
        const auto columns = grad_bias.size(0);
        bias_kernel<scalar_t>
            <<<static_cast<unsigned>((columns + kBiasThreads - 1) / kBiasThreads),
               kBiasThreads,
               0,
               at::cuda::getCurrentCUDAStream()>>>(
                grad_bias.mutable_data_ptr<scalar_t>(),
                bias_partials.const_data_ptr<opmath_type<scalar_t>>(),
                bias_partials.size(0),
                columns);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      });
}

} // namespace

REGISTER_DISPATCH(lltm_cell_stub, &lltm_cell_kernel_cuda)
REGISTER_DISPATCH(lltm_cell_small_stub, &lltm_cell_small_kernel_cuda)
REGISTER_DISPATCH(lltm_cell_backward_stub, &lltm_cell_backward_kernel_cuda)
REGISTER_DISPATCH(lltm_cell_bias_stub, &lltm_cell_bias_kernel_cuda)

} // namespace at::native
