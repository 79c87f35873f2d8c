// CPU kernels of lltm_cell; compiled once for each CPU capability.
//
// Work is cut into segments: kSegment neighbouring hidden units of one row. A segment's operands are
// brought into small arrays of the accumulation type (float for 16-bit types), whatever their strides
// and dtype, and all arithmetic is done there by at::vec over whole vectors. No element is computed
// by other code than its neighbours, so no bit depends on where threads divide the work.
#define TORCH_ASSERT_NO_OPERATORS
#include <ATen/native/LltmCell.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/TensorBase.h>
#include <ATen/native/cpu/VectorLoops.h>
#include <algorithm>
#include <array>

namespace at::native {
namespace {

// A multiple of every vector length; ten arrays of it stay in the first-level cache.
constexpr int64_t kSegment = 128;
// Transcendentals of a segment cost about as much as this many elements of a plain loop.
constexpr int64_t kSegmentsPerTask = 8;
constexpr int64_t kBiasElementsPerTask = 32768;
// Bias gradients are summed in two steps: the error of a sum grows with the number of its terms.
constexpr int64_t kRowsPerSum = 8;
static_assert(kLltmRowsPerPartial % kRowsPerSum == 0);

template <typename T>
struct alignas(64) Buffer {
  static_assert(kSegment % vec::Vectorized<T>::size() == 0);

  std::array<T, kSegment> data;

  vec::Vectorized<T> load(int64_t i) const {
    return vec::Vectorized<T>::loadu(data.data() + i);
  }
  void store(int64_t i, const vec::Vectorized<T>& value) {
    value.store(data.data() + i);
  }

  // n elements at the given stride; zeros after them, and zeros for no tensor.
  template <typename scalar_t>
  void read(const scalar_t* from, int64_t stride, int64_t n) {
    if (from == nullptr) {
      n = 0;
    } else if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) {
        data[i] = static_cast<T>(from[i]);
      }
    } else {
      for (int64_t i = 0; i < n; ++i) {
        data[i] = static_cast<T>(from[i * stride]);
      }
    }
    std::fill(data.begin() + n, data.end(), T(0));
  }

  template <typename scalar_t>
  void write(scalar_t* to, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<scalar_t>(data[i]);
    }
  }
};

// A [B, S] operand of any strides, or none.
template <typename scalar_t>
struct Rows {
  const scalar_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t stride = 0;

  explicit Rows(const TensorBase& tensor) {
    if (tensor.defined()) {
      data = tensor.const_data_ptr<scalar_t>();
      row_stride = tensor.stride(0);
      stride = tensor.stride(1);
    }
  }
  const scalar_t* at(int64_t row, int64_t column) const {
    return data == nullptr ? nullptr : data + row * row_stride + column * stride;
  }
};

// exp(-|x|) never overflows.
template <typename Vec>
Vec sigmoid(const Vec& x) {
  const Vec one(1);
  const auto e = exp_of(x.abs().neg());
  return Vec::blendv(e, one, x >= Vec(0)) / (one + e);
}

template <typename Vec>
Vec elu(const Vec& x) {
  return Vec::blendv(x.expm1(), x, x > Vec(0));
}

template <typename scalar_t>
void forward_kernel(
    const TensorBase& new_h_tensor,
    const TensorBase& new_cell_tensor,
    const TensorBase& gates_tensor,
    const TensorBase& old_cell_tensor) {
  using T = opmath_type<scalar_t>;
  using Vec = vec::Vectorized<T>;
  const auto state = new_h_tensor.size(1);
  const auto segments = (state + kSegment - 1) / kSegment;
  auto* new_h = new_h_tensor.mutable_data_ptr<scalar_t>();
  auto* new_cell = new_cell_tensor.mutable_data_ptr<scalar_t>();
  const auto* gates = gates_tensor.const_data_ptr<scalar_t>();
  const Rows<scalar_t> old_cell(old_cell_tensor);

  const auto work = [&](int64_t begin, int64_t end) {
    Buffer<T> i_gate, o_gate, candidate, cell;
    for (int64_t task = begin; task < end; ++task) {
      const auto row = task / segments;
      const auto first = task % segments * kSegment;
      const auto n = std::min(kSegment, state - first);
      const auto* row_gates = gates + row * 3 * state + first;
      i_gate.read(row_gates, 1, n);
      o_gate.read(row_gates + state, 1, n);
      candidate.read(row_gates + 2 * state, 1, n);
      cell.read(old_cell.at(row, first), old_cell.stride, n);
      for (int64_t k = 0; k < n; k += Vec::size()) {
        const auto c = vec::fmadd(elu(candidate.load(k)), sigmoid(i_gate.load(k)), cell.load(k));
        cell.store(k, c);
        o_gate.store(k, c.tanh() * sigmoid(o_gate.load(k)));
      }
      cell.write(new_cell + row * state + first, n);
      o_gate.write(new_h + row * state + first, n);
    }
  };
  at::parallel_for(0, new_h_tensor.size(0) * segments, kSegmentsPerTask, work);
}

// One segment of one row backward, in place: gates become their gradients, cell becomes the old
// cell's.
//   g = ∂cell + ∂h · o · (1 - tanh²(cell)): the gradient of new_cell and of old_cell
//   ∂i = g · c · i · (1 - i), ∂o = ∂h · tanh(cell) · o · (1 - o), ∂c = g · i · elu'
// and the gradients that arrive for the gates themselves are added.
template <typename T>
struct BackwardSegment {
  using Vec = vec::Vectorized<T>;

  Buffer<T> i_gate, o_gate, candidate, cell, grad_h, grad_cell;
  std::array<Buffer<T>, 3> grad_gates;

  void compute(int64_t n) {
    const Vec one(1), zero(0);
    for (int64_t k = 0; k < n; k += Vec::size()) {
      const auto x = candidate.load(k);
      const auto i = sigmoid(i_gate.load(k));
      const auto o = sigmoid(o_gate.load(k));
      const auto t = cell.load(k).tanh();
      const auto slope = Vec::blendv(exp_of(x), one, x > zero);
      const auto dh = grad_h.load(k);
      const auto g = vec::fmadd(dh * o, one - t * t, grad_cell.load(k));
      cell.store(k, g);
      i_gate.store(k, g * elu(x) * i * (one - i) + grad_gates[0].load(k));
      o_gate.store(k, dh * t * o * (one - o) + grad_gates[1].load(k));
      candidate.store(k, g * i * slope + grad_gates[2].load(k));
    }
  }
};

template <typename scalar_t>
void backward_kernel(
    const TensorBase& grad_of_gates_tensor,
    const TensorBase& grad_old_cell_tensor,
    const TensorBase& partials_tensor,
    const TensorBase& grad_h_tensor,
    const TensorBase& grad_cell_tensor,
    const TensorBase& grad_gates_tensor,
    const TensorBase& new_cell_tensor,
    const TensorBase& gates_tensor) {
  using T = opmath_type<scalar_t>;
  using Vec = vec::Vectorized<T>;
  const auto batch = new_cell_tensor.size(0);
  const auto state = new_cell_tensor.size(1);
  const auto segments = (state + kSegment - 1) / kSegment;
  const auto row_blocks = (batch + kLltmRowsPerPartial - 1) / kLltmRowsPerPartial;
  auto* grad_of_gates = grad_of_gates_tensor.mutable_data_ptr<scalar_t>();
  auto* grad_old_cell = grad_old_cell_tensor.mutable_data_ptr<scalar_t>();
  auto* partials = partials_tensor.defined() ? partials_tensor.mutable_data_ptr<T>() : nullptr;
  const auto* gates = gates_tensor.const_data_ptr<scalar_t>();
  const auto* new_cell = new_cell_tensor.const_data_ptr<scalar_t>();
  const Rows<scalar_t> grad_h(grad_h_tensor), grad_cell(grad_cell_tensor);
  const Rows<scalar_t> grad_gates(grad_gates_tensor);

  // A task is a segment of the columns for one block of rows, whose bias gradients it sums.
  const auto work = [&](int64_t begin, int64_t end) {
    BackwardSegment<T> segment;
    std::array<Buffer<T>, 3> sums, few;
    const auto add = [](Buffer<T>& sum, const Buffer<T>& terms, int64_t n) {
      for (int64_t k = 0; k < n; k += Vec::size()) {
        sum.store(k, sum.load(k) + terms.load(k));
      }
    };
    for (int64_t task = begin; task < end; ++task) {
      const auto block = task / segments;
      const auto first = task % segments * kSegment;
      const auto n = std::min(kSegment, state - first);
      const auto end_row = std::min(batch, (block + 1) * kLltmRowsPerPartial);
      for (int64_t part = 0; part < 3; ++part) {
        sums[part].data.fill(T(0));
        few[part].data.fill(T(0));
      }
      for (int64_t row = block * kLltmRowsPerPartial; row < end_row; ++row) {
        const std::array<Buffer<T>*, 3> parts = {
            &segment.i_gate, &segment.o_gate, &segment.candidate};
        for (int64_t part = 0; part < 3; ++part) {
          const auto column = part * state + first;
          parts[part]->read(gates + row * 3 * state + column, 1, n);
          segment.grad_gates[part].read(grad_gates.at(row, column), grad_gates.stride, n);
        }
        segment.cell.read(new_cell + row * state + first, 1, n);
        segment.grad_h.read(grad_h.at(row, first), grad_h.stride, n);
        segment.grad_cell.read(grad_cell.at(row, first), grad_cell.stride, n);
        segment.compute(n);
        segment.cell.write(grad_old_cell + row * state + first, n);
        for (int64_t part = 0; part < 3; ++part) {
          parts[part]->write(grad_of_gates + row * 3 * state + part * state + first, n);
          add(few[part], *parts[part], n);
          if ((row + 1) % kRowsPerSum == 0 || row + 1 == end_row) {
            add(sums[part], few[part], n);
            few[part].data.fill(T(0));
          }
        }
      }
      if (partials != nullptr) {
        for (int64_t part = 0; part < 3; ++part) {
          sums[part].write(partials + (block * 3 + part) * state + first, n);
        }
      }
    }
  };
  at::parallel_for(0, row_blocks * segments, 1, work);
}

template <typename scalar_t>
void bias_kernel(const TensorBase& grad_bias_tensor, const TensorBase& partials_tensor) {
  using T = opmath_type<scalar_t>;
  const auto columns = grad_bias_tensor.size(0);
  const auto blocks = partials_tensor.size(0);
  const auto* partials = partials_tensor.const_data_ptr<T>();
  auto* grad_bias = grad_bias_tensor.mutable_data_ptr<scalar_t>();
  const auto work = [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kSegment) {
      const auto n = std::min(kSegment, end - first);
      Buffer<T> sum;
      sum.data.fill(T(0));
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t k = 0; k < n; ++k) {
          sum.data[k] += partials[block * columns + first + k];
        }
      }
      sum.write(grad_bias + first, n);
    }
  };
  const auto elements_a_column = std::max<int64_t>(blocks, 1);
  at::parallel_for(
      0, columns, std::max<int64_t>(kBiasElementsPerTask / elements_a_column, kSegment), work);
}

void lltm_cell_kernel(
    const TensorBase& new_h,
    const TensorBase& new_cell,
    const TensorBase& gates,
    const TensorBase& old_cell) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_cpu", [&] {
    forward_kernel<scalar_t>(new_h, new_cell, gates, old_cell);
  });
}

void lltm_cell_backward_kernel(
    const TensorBase& grad_of_gates,
    const TensorBase& grad_old_cell,
    const TensorBase& bias_partials,
    const TensorBase& grad_new_h,
    const TensorBase& grad_new_cell,
    const TensorBase& grad_gates,
    const TensorBase& new_cell,
    const TensorBase& gates) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, gates.scalar_type(), "lltm_cell_backward_cpu", [&] {
        backward_kernel<scalar_t>(
            grad_of_gates,
            grad_old_cell,
            bias_partials,
            grad_new_h,
            grad_new_cell,
            grad_gates,
            new_cell,
            gates);
      });
}

void lltm_cell_bias_kernel(const TensorBase& grad_bias, const TensorBase& bias_partials) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, grad_bias.scalar_type(), "lltm_cell_backward_cpu", [&] {
        bias_kernel<scalar_t>(grad_bias, bias_partials);
      });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(lltm_cell_stub, &lltm_cell_kernel)
ALSO_REGISTER_AVX512_DISPATCH(lltm_cell_backward_stub, &lltm_cell_backward_kernel)
ALSO_REGISTER_AVX512_DISPATCH(lltm_cell_bias_stub, &lltm_cell_bias_kernel)

} // namespace at::native
