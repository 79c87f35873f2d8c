// lltm_cell: checks, allocation and matrix products. The pointwise kernels are in
// cpu/LltmCellKernel.cpp and cuda/LltmCell.cu; LltmCell.h says what they compute.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/LltmCell.h>

#include <ATen/OpMathType.h>
#include <array>
#include <tuple>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lltm_cell_backward_native.h>
#include <ATen/ops/lltm_cell_native.h>
#include <ATen/ops/mm.h>
#endif

namespace at::native {

void check_lltm_dtype(const char* op, const TensorBase& input) {
  const auto dtype = input.scalar_type();
  TORCH_CHECK(
      dtype == kFloat || dtype == kDouble || dtype == kHalf || dtype == kBFloat16,
      op,
      "(): expected input to be float, double, half or bfloat16, but got input of dtype ",
      dtype);
}

void check_lltm_operand_dtype(
    const char* op,
    const char* name,
    const TensorBase& tensor,
    const TensorBase& input) {
  TORCH_CHECK(
      tensor.scalar_type() == input.scalar_type(),
      op,
      "(): expected ",
      name,
      " to have the input's dtype ",
      input.scalar_type(),
      ", but got ",
      name,
      " of dtype ",
      tensor.scalar_type());
}

DEFINE_DISPATCH(lltm_cell_stub);
DEFINE_DISPATCH(lltm_cell_small_stub);
REGISTER_NO_CPU_DISPATCH(lltm_cell_small_stub)
DEFINE_DISPATCH(lltm_cell_backward_stub);
DEFINE_DISPATCH(lltm_cell_bias_stub);

namespace {

constexpr const char* kLltmCell = "lltm_cell";
constexpr const char* kLltmCellBackward = "lltm_cell_backward";

struct Sizes {
  SymInt batch; // B
  SymInt features; // F
  SymInt state; // S
};

void check_rank(const char* op, const char* name, const Tensor& tensor, int64_t rank) {
  TORCH_CHECK(
      tensor.dim() == rank,
      op,
      "(): expected ",
      name,
      " to have ",
      rank,
      rank == 1 ? " dimension" : " dimensions",
      ", but got ",
      name,
      " of size ",
      tensor.sym_sizes());
}

// A symbolic size becomes a guard, or a run-time assertion where no value is known yet.
void check_sizes(
    const char* op,
    const char* name,
    const Tensor& tensor,
    std::initializer_list<SymInt> sizes) {
  const SymIntArrayRef expected(sizes.begin(), sizes.size());
  check_rank(op, name, tensor, static_cast<int64_t>(sizes.size()));
  for (size_t d = 0; d < expected.size(); ++d) {
    TORCH_CHECK(
        tensor.sym_size(static_cast<int64_t>(d))
            .sym_eq(expected[d])
            .expect_true(__FILE__, __LINE__),
        op,
        "(): expected ",
        name,
        " to be of size ",
        expected,
        ", but got ",
        name,
        " of size ",
        tensor.sym_sizes());
  }
}

void check_alike(const char* op, const char* name, const Tensor& tensor, const Tensor& input) {
  TORCH_CHECK(
      tensor.layout() == kStrided,
      op,
      "(): expected ",
      name,
      " to be a strided tensor, but got ",
      name,
      " of layout ",
      tensor.layout());
  TORCH_CHECK(
      tensor.device() == input.device(),
      op,
      "(): expected ",
      name,
      " to be on the input's device ",
      input.device(),
      ", but got ",
      name,
      " on ",
      tensor.device());
  check_lltm_operand_dtype(op, name, tensor, input);
}

// What both directions have: input [B, F], weight [3·S, F + S], old_h [B, S].
Sizes check_step(const char* op, const Tensor& input, const Tensor& weight, const Tensor& old_h) {
  check_lltm_dtype(op, input);
  check_alike(op, "input", input, input);
  check_alike(op, "weight", weight, input);
  check_alike(op, "old_h", old_h, input);
  check_rank(op, "input", input, 2);
  check_rank(op, "old_h", old_h, 2);
  const Sizes sizes{input.sym_size(0), input.sym_size(1), old_h.sym_size(1)};
  check_sizes(op, "old_h", old_h, {sizes.batch, sizes.state});
  check_sizes(op, "weight", weight, {sizes.state * 3, sizes.features + sizes.state});
  return sizes;
}

Sizes check_forward(
    const Tensor& input,
    const Tensor& weight,
    const Tensor& bias,
    const Tensor& old_h,
    const Tensor& old_cell) {
  const auto sizes = check_step(kLltmCell, input, weight, old_h);
  check_alike(kLltmCell, "bias", bias, input);
  check_alike(kLltmCell, "old_cell", old_cell, input);
  check_sizes(kLltmCell, "bias", bias, {sizes.state * 3});
  check_sizes(kLltmCell, "old_cell", old_cell, {sizes.batch, sizes.state});
  return sizes;
}

// An optional tensor as autograd hands it over: undefined when there is none.
Tensor value_or_undefined(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? *tensor : Tensor();
}

Sizes check_backward(
    const Tensor& grad_new_h,
    const Tensor& grad_new_cell,
    const Tensor& grad_gates,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& old_h,
    const Tensor& new_cell,
    const Tensor& gates) {
  const auto sizes = check_step(kLltmCellBackward, input, weight, old_h);
  const auto check = [&](const char* name, const Tensor& tensor, const SymInt& width) {
    if (tensor.defined()) {
      check_alike(kLltmCellBackward, name, tensor, input);
      check_sizes(kLltmCellBackward, name, tensor, {sizes.batch, width});
    }
  };
  check("grad_new_h", grad_new_h, sizes.state);
  check("grad_new_cell", grad_new_cell, sizes.state);
  check("grad_gates", grad_gates, sizes.state * 3);
  check("new_cell", new_cell, sizes.state);
  check("gates", gates, sizes.state * 3);
  return sizes;
}

// The part of the weight that old_h, or input, is multiplied with.
Tensor hidden_weight(const Tensor& weight, int64_t state) {
  return weight.narrow(1, 0, state);
}
Tensor input_weight(const Tensor& weight, int64_t state) {
  return weight.narrow(1, state, weight.size(1) - state);
}

// [old_h, input] · weightᵀ + bias, contiguous.
//
// Two products over two ranges of columns into one result spare the copy that joins old_h and input,
// but they round the result twice. For the 16-bit types that is the error that counts, so there the
// operands are joined and the sum stays in the product's float accumulator.
Tensor compute_gates(
    const Tensor& input,
    const Tensor& weight,
    const Tensor& bias,
    const Tensor& old_h) {
  const auto state = old_h.size(1);
  if (isReducedFloatingType(input.scalar_type())) {
    return at::addmm(bias, at::cat({old_h, input}, 1), weight.t()).contiguous();
  }
  auto gates = at::empty({input.size(0), 3 * state}, input.options());
  at::addmm_out(gates, bias, old_h, hidden_weight(weight, state).t());
  if (input.size(1) > 0) {
    gates.addmm_(input, input_weight(weight, state).t());
  }
  return gates;
}

} // namespace

std::tuple<Tensor, Tensor, Tensor> lltm_cell(
    const Tensor& input,
    const Tensor& weight,
    const Tensor& bias,
    const Tensor& old_h,
    const Tensor& old_cell) {
  check_forward(input, weight, bias, old_h, old_cell);
  auto new_h = at::empty(old_h.sizes(), input.options());
  auto new_cell = at::empty(old_h.sizes(), input.options());
  if (input.is_cuda() && lltm_cell_is_small(input.size(0), input.size(1), old_h.size(1))) {
    auto gates = at::empty({input.size(0), 3 * old_h.size(1)}, input.options());
    if (new_h.numel() > 0) {
      lltm_cell_small_stub(kCUDA, new_h, new_cell, gates, input, weight, bias, old_h, old_cell);
    }
    return {std::move(new_h), std::move(new_cell), std::move(gates)};
  }
  auto gates = compute_gates(input, weight, bias, old_h);
  if (new_h.numel() > 0) {
    lltm_cell_stub(input.device().type(), new_h, new_cell, gates, old_cell);
  }
  return {std::move(new_h), std::move(new_cell), std::move(gates)};
}

std::tuple<Tensor, Tensor, Tensor> lltm_cell_meta(
    const Tensor& input,
    const Tensor& weight,
    const Tensor& bias,
    const Tensor& old_h,
    const Tensor& old_cell) {
  const auto sizes = check_forward(input, weight, bias, old_h, old_cell);
  const auto make = [&](const SymInt& width) {
    return at::empty_symint({sizes.batch, width}, input.options());
  };
  return {make(sizes.state), make(sizes.state), make(sizes.state * 3)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_cell_backward(
    const std::optional<Tensor>& grad_new_h_opt,
    const std::optional<Tensor>& grad_new_cell_opt,
    const std::optional<Tensor>& grad_gates_opt,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& old_h,
    const Tensor& new_cell,
    const Tensor& gates,
    std::array<bool, 5> output_mask) {
  const auto grad_new_h = value_or_undefined(grad_new_h_opt);
  const auto grad_new_cell = value_or_undefined(grad_new_cell_opt);
  const auto grad_gates = value_or_undefined(grad_gates_opt);
  check_backward(grad_new_h, grad_new_cell, grad_gates, input, weight, old_h, new_cell, gates);

  const auto batch = old_h.size(0);
  const auto state = old_h.size(1);
  const auto features = input.size(1);
  const auto [need_input, need_weight, need_bias, need_old_h, need_old_cell] = output_mask;

  auto grad_of_gates = at::empty({batch, 3 * state}, input.options());
  auto grad_old_cell = at::empty({batch, state}, input.options());
  Tensor grad_input, grad_weight, grad_bias, grad_old_h, partials;
  if (need_bias) {
    const auto blocks = (batch + kLltmRowsPerPartial - 1) / kLltmRowsPerPartial;
    partials =
        at::empty({blocks, 3 * state}, input.options().dtype(toOpMathType(input.scalar_type())));
    // Without rows there are no partial sums, and the kernel that adds them writes zeros.
    grad_bias = at::empty({3 * state}, input.options());
  }
  if (grad_old_cell.numel() > 0) {
    // The saved tensors are this operator's own results as a rule, and contiguous.
    lltm_cell_backward_stub(
        input.device().type(),
        grad_of_gates,
        grad_old_cell,
        partials,
        grad_new_h,
        grad_new_cell,
        grad_gates,
        new_cell.contiguous(),
        gates.contiguous());
  }
  if (need_bias && state > 0) {
    lltm_cell_bias_stub(input.device().type(), grad_bias, partials);
  }
  if (need_input) {
    grad_input = at::mm(grad_of_gates, input_weight(weight, state)).contiguous();
  }
  if (need_old_h) {
    grad_old_h = at::mm(grad_of_gates, hidden_weight(weight, state)).contiguous();
  }
  if (need_weight) {
    grad_weight = at::empty({3 * state, features + state}, input.options());
    if (state > 0) {
      const auto transposed = grad_of_gates.t();
      auto hidden_part = hidden_weight(grad_weight, state);
      at::mm_out(hidden_part, transposed, old_h);
      if (features > 0) {
        auto input_part = input_weight(grad_weight, state);
        at::mm_out(input_part, transposed, input);
      }
    }
  }
  return {
      std::move(grad_input),
      std::move(grad_weight),
      std::move(grad_bias),
      std::move(grad_old_h),
      need_old_cell ? std::move(grad_old_cell) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_cell_backward_meta(
    const std::optional<Tensor>& grad_new_h,
    const std::optional<Tensor>& grad_new_cell,
    const std::optional<Tensor>& grad_gates,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& old_h,
    const Tensor& new_cell,
    const Tensor& gates,
    std::array<bool, 5> output_mask) {
  const auto sizes = check_backward(
      value_or_undefined(grad_new_h),
      value_or_undefined(grad_new_cell),
      value_or_undefined(grad_gates),
      input,
      weight,
      old_h,
      new_cell,
      gates);
  const auto make = [&](bool wanted, std::initializer_list<SymInt> shape) {
    return wanted ? at::empty_symint(SymIntArrayRef(shape.begin(), shape.size()), input.options())
                  : Tensor();
  };
  return {
      make(output_mask[0], {sizes.batch, sizes.features}),
      make(output_mask[1], {sizes.state * 3, sizes.features + sizes.state}),
      make(output_mask[2], {sizes.state * 3}),
      make(output_mask[3], {sizes.batch, sizes.state}),
      make(output_mask[4], {sizes.batch, sizes.state})};
}

} // namespace at::native
