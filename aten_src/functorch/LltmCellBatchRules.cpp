// vmap of lltm_cell and its backward.
//
// Rows of a cell know of one another only through the gradients of weight and bias. Where weight and
// bias are shared, a batch is more rows of one cell. Otherwise the matrix products are batched ones,
// and the pointwise half between them (LltmCell.h) is written with upstream's operators, in the
// kernels' type of arithmetic.
#include <ATen/functorch/BatchRulesExtHelper.h>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/LltmCell.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#else
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/lltm_cell.h>
#include <ATen/ops/lltm_cell_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#endif

#include <array>
#include <tuple>

namespace at::functorch {

namespace {

using LltmCellResults = std::tuple<Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim>;
using LltmCellGrads = std::
    tuple<Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim, Tensor, BatchDim>;

// The batch among the rows, and back: [B, N, …] and [B·N, …].
struct BatchedRows {
  c10::SymInt batch;
  c10::SymInt rows;

  Tensor fold(const Tensor& tensor, BatchDim dim) const {
    return with_batch(tensor, dim, batch).flatten(0, 1);
  }

  std::optional<Tensor> fold(const std::optional<Tensor>& tensor, BatchDim dim) const {
    return tensor.has_value() && tensor->defined() ? std::optional<Tensor>(fold(*tensor, dim))
                                                   : std::nullopt;
  }

  BatchedResult unfold(const Tensor& tensor) const {
    return tensor.defined() ? BatchedResult(tensor.unflatten_symint(0, {batch, rows}), 0)
                            : BatchedResult();
  }
};

// What the operator checks, of logical sizes: batched operators would broadcast what does not fit.
void check_size(
    const char* op,
    const char* name,
    const Tensor& tensor,
    BatchDim dim,
    std::initializer_list<c10::SymInt> expected) {
  const auto sizes = logical_sizes(tensor, dim);
  TORCH_CHECK(
      c10::SymIntArrayRef(sizes).equals(c10::SymIntArrayRef(expected.begin(), expected.size())),
      op,
      "(): expected ",
      name,
      " to be of size ",
      c10::SymIntArrayRef(expected.begin(), expected.size()),
      ", but got ",
      name,
      " of size ",
      c10::SymIntArrayRef(sizes));
}

void check_matrix(const char* op, const char* name, const Tensor& tensor, BatchDim dim) {
  check_logical(logical_rank(tensor, dim) == 2, op, name, "have 2 dimensions", tensor, dim);
}

// The activations of gates [B, N, 3·S], in the type of arithmetic.
struct BatchedActivations {
  Tensor i, o, c; // sigmoid, sigmoid, elu
  Tensor candidate; // before elu

  explicit BatchedActivations(const Tensor& gates) {
    const auto wide = gates.to(at::toOpMathType(gates.scalar_type()));
    const auto state = wide.sym_size(-1) / 3;
    i = wide.slice_symint(-1, 0, state).sigmoid();
    o = wide.slice_symint(-1, state, state * 2).sigmoid();
    candidate = wide.slice_symint(-1, state * 2, state * 3);
    c = at::elu(candidate);
  }
};

LltmCellResults lltm_cell_batch_rule(
    const Tensor& input,
    BatchDim input_bdim,
    const Tensor& weight,
    BatchDim weight_bdim,
    const Tensor& bias,
    BatchDim bias_bdim,
    const Tensor& old_h,
    BatchDim old_h_bdim,
    const Tensor& old_cell,
    BatchDim old_cell_bdim) {
  constexpr const char* op = "lltm_cell";
  check_matrix(op, "input", input, input_bdim);
  check_matrix(op, "old_h", old_h, old_h_bdim);
  const auto batch = batch_size_of(
      {{&input, input_bdim},
       {&weight, weight_bdim},
       {&bias, bias_bdim},
       {&old_h, old_h_bdim},
       {&old_cell, old_cell_bdim}});
  const auto input_sizes = logical_sizes(input, input_bdim);
  const BatchedRows rows{batch, input_sizes[0]};

  if (!weight_bdim.has_value() && !bias_bdim.has_value()) {
    const auto [new_h, new_cell, gates] = at::lltm_cell(
        rows.fold(input, input_bdim),
        weight,
        bias,
        rows.fold(old_h, old_h_bdim),
        rows.fold(old_cell, old_cell_bdim));
    return std::tuple_cat(rows.unfold(new_h), rows.unfold(new_cell), rows.unfold(gates));
  }

  const auto state = logical_sizes(old_h, old_h_bdim)[1];
  check_size(op, "old_h", old_h, old_h_bdim, {rows.rows, state});
  check_size(op, "old_cell", old_cell, old_cell_bdim, {rows.rows, state});
  check_size(op, "weight", weight, weight_bdim, {state * 3, input_sizes[1] + state});
  check_size(op, "bias", bias, bias_bdim, {state * 3});
  native::check_lltm_dtype(op, input);
  native::check_lltm_operand_dtype(op, "weight", weight, input);
  native::check_lltm_operand_dtype(op, "bias", bias, input);
  native::check_lltm_operand_dtype(op, "old_h", old_h, input);
  native::check_lltm_operand_dtype(op, "old_cell", old_cell, input);

  const auto joined =
      at::cat({with_batch(old_h, old_h_bdim, batch), with_batch(input, input_bdim, batch)}, 2);
  const auto gates = at::baddbmm(
      with_batch(bias, bias_bdim, batch).unsqueeze(1),
      joined,
      with_batch(weight, weight_bdim, batch).mT());
  const auto dtype = gates.scalar_type();
  const BatchedActivations a(gates);
  const auto new_cell =
      with_batch(old_cell, old_cell_bdim, batch).to(a.i.scalar_type()) + a.c * a.i;
  const auto new_h = new_cell.tanh() * a.o;
  return {new_h.to(dtype), 0, new_cell.to(dtype), 0, gates, 0};
}

LltmCellGrads lltm_cell_backward_batch_rule(
    const std::optional<Tensor>& grad_new_h,
    BatchDim grad_new_h_bdim,
    const std::optional<Tensor>& grad_new_cell,
    BatchDim grad_new_cell_bdim,
    const std::optional<Tensor>& grad_gates,
    BatchDim grad_gates_bdim,
    const Tensor& input,
    BatchDim input_bdim,
    const Tensor& given_weight,
    BatchDim given_weight_bdim,
    const Tensor& old_h,
    BatchDim old_h_bdim,
    const Tensor& new_cell,
    BatchDim new_cell_bdim,
    const Tensor& gates,
    BatchDim gates_bdim,
    std::array<bool, 5> output_mask) {
  constexpr const char* op = "lltm_cell_backward";
  const auto [need_input, need_weight, need_bias, need_old_h, need_old_cell] = output_mask;
  check_matrix(op, "input", input, input_bdim);
  check_matrix(op, "old_h", old_h, old_h_bdim);
  const auto batch = batch_size_of(
      {{grad_new_h ? &*grad_new_h : nullptr, grad_new_h_bdim},
       {grad_new_cell ? &*grad_new_cell : nullptr, grad_new_cell_bdim},
       {grad_gates ? &*grad_gates : nullptr, grad_gates_bdim},
       {&input, input_bdim},
       {&given_weight, given_weight_bdim},
       {&old_h, old_h_bdim},
       {&new_cell, new_cell_bdim},
       {&gates, gates_bdim}});
  const auto input_sizes = logical_sizes(input, input_bdim);
  const BatchedRows rows{batch, input_sizes[0]};

  // The weight is part of two gradients; without them it lends its size alone.
  const bool reads_weight = need_input || need_old_h;
  const auto weight =
      reads_weight ? given_weight : logical_stand_in(given_weight, given_weight_bdim);
  const auto weight_bdim = reads_weight ? given_weight_bdim : std::nullopt;
  if (!weight_bdim.has_value() && !need_weight && !need_bias) {
    const auto gradients = at::lltm_cell_backward(
        rows.fold(grad_new_h, grad_new_h_bdim),
        rows.fold(grad_new_cell, grad_new_cell_bdim),
        rows.fold(grad_gates, grad_gates_bdim),
        rows.fold(input, input_bdim),
        weight,
        rows.fold(old_h, old_h_bdim),
        rows.fold(new_cell, new_cell_bdim),
        rows.fold(gates, gates_bdim),
        output_mask);
    return std::tuple_cat(
        rows.unfold(std::get<0>(gradients)),
        BatchedResult(),
        BatchedResult(),
        rows.unfold(std::get<3>(gradients)),
        rows.unfold(std::get<4>(gradients)));
  }

  const auto state = logical_sizes(old_h, old_h_bdim)[1];
  const auto check = [&](const char* name,
                         const std::optional<Tensor>& tensor,
                         BatchDim dim,
                         std::initializer_list<c10::SymInt> sizes) {
    if (tensor.has_value() && tensor->defined()) {
      check_size(op, name, *tensor, dim, sizes);
      native::check_lltm_operand_dtype(op, name, *tensor, input);
    }
  };
  native::check_lltm_dtype(op, input);
  check("weight", weight, weight_bdim, {state * 3, input_sizes[1] + state});
  check("old_h", old_h, old_h_bdim, {rows.rows, state});
  check("new_cell", new_cell, new_cell_bdim, {rows.rows, state});
  check("gates", gates, gates_bdim, {rows.rows, state * 3});
  check("grad_new_h", grad_new_h, grad_new_h_bdim, {rows.rows, state});
  check("grad_new_cell", grad_new_cell, grad_new_cell_bdim, {rows.rows, state});
  check("grad_gates", grad_gates, grad_gates_bdim, {rows.rows, state * 3});

  const auto dtype = input.scalar_type();
  const BatchedActivations a(with_batch(gates, gates_bdim, batch));
  const auto wide = a.i.scalar_type();
  // An undefined gradient stands for zero.
  const auto gradient = [&](const std::optional<Tensor>& tensor, BatchDim dim) {
    return tensor.has_value() && tensor->defined() ? with_batch(*tensor, dim, batch).to(wide)
                                                   : at::zeros({}, a.i.options());
  };
  const auto grad_h = gradient(grad_new_h, grad_new_h_bdim);
  const auto t = with_batch(new_cell, new_cell_bdim, batch).to(wide).tanh();
  const auto of_cell = gradient(grad_new_cell, grad_new_cell_bdim) + grad_h * a.o * (1 - t * t);
  // exp only where elu is not the identity: it would overflow on the other side.
  const auto slope = a.candidate.clamp_max(0).exp();
  const auto of_gates =
      at::cat(
          {of_cell * a.c * a.i * (1 - a.i), grad_h * t * a.o * (1 - a.o), of_cell * a.i * slope},
          2) +
      gradient(grad_gates, grad_gates_bdim);

  const auto factor = of_gates.to(dtype); // as the operator rounds it for the products
  const auto weights = batch_dim_first(weight, weight_bdim);
  const auto width = input_sizes[1] + state;
  const auto wanted = [](bool needed, const auto& make) {
    return needed ? BatchedResult(make(), 0) : BatchedResult();
  };
  return std::tuple_cat(
      wanted(
          need_input, [&] { return at::matmul(factor, weights.slice_symint(-1, state, width)); }),
      wanted(
          need_weight,
          [&] {
            const auto joined = at::cat(
                {with_batch(old_h, old_h_bdim, batch), with_batch(input, input_bdim, batch)}, 2);
            return at::matmul(factor.mT(), joined);
          }),
      wanted(need_bias, [&] { return of_gates.sum(1).to(dtype); }),
      wanted(need_old_h, [&] { return at::matmul(factor, weights.slice_symint(-1, 0, state)); }),
      wanted(need_old_cell, [&] { return of_cell.to(dtype); }));
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl("lltm_cell", batched_kernel<at::_ops::lltm_cell, lltm_cell_batch_rule>());
  m.impl(
      "lltm_cell_backward",
      batched_kernel<at::_ops::lltm_cell_backward, lltm_cell_backward_batch_rule>());
}

} // namespace at::functorch
