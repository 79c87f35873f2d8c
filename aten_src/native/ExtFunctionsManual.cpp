#include <ATen/TensorOperators.h>
#include <ATen/native/ExtFunctionsManual.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/cat.h>
#include <ATen/ops/depthwise_conv2d_ext.h>
#include <ATen/ops/depthwise_conv2d_ext_backward.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/real.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#endif

namespace torch::autograd::generated::details {

using at::Tensor;

at::Tensor axpy_ext_backward(
    const at::Tensor& grad,
    const at::Scalar& factor,
    at::ScalarType operand_dtype) {
  const bool is_one = !factor.isComplex() && factor.equal(1);
  const auto scaled = is_one ? grad : grad * factor.conj();
  return scaled.is_complex() && !at::isComplexType(operand_dtype) ? at::real(scaled) : scaled;
}

namespace {

std::optional<Tensor> optional_tensor(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

} // namespace

Tensor depthwise_conv2d_ext_jvp(
    const Tensor& input_p,
    const Tensor& input_t,
    const Tensor& weight_p,
    const Tensor& weight_t,
    const Tensor& bias_t,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation) {
  const auto of_input = at::depthwise_conv2d_ext_symint(
      input_t, weight_p, optional_tensor(bias_t), stride, padding, dilation);
  const auto of_weight =
      at::depthwise_conv2d_ext_symint(input_p, weight_t, std::nullopt, stride, padding, dilation);
  return of_input + of_weight;
}

// With y = conv(x, w) + b, the backward computes
//   grad_x = convᵀ(grad_y, w), grad_w = corr(grad_y, x), grad_b = Σ grad_y,
// each bilinear, so that pairing the results with (gg_x, gg_w, gg_b) and transposing gives
//   for grad_y: conv(gg_x, w) + conv(x, gg_w) + gg_b
//   for x:      convᵀ(grad_y, gg_w)
//   for w:      corr(grad_y, gg_x)
std::tuple<Tensor, Tensor, Tensor> depthwise_conv2d_ext_double_backward(
    const Tensor& grad_grad_input,
    const Tensor& grad_grad_weight,
    const Tensor& grad_grad_bias,
    const Tensor& grad_output,
    const Tensor& input,
    const Tensor& weight,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    std::array<bool, 3> output_mask) {
  Tensor of_grad_output;
  Tensor of_input;
  Tensor of_weight;

  if (output_mask[0]) {
    // gg_b is the bias of whichever convolution runs first, and stands alone when none does.
    auto bias = optional_tensor(grad_grad_bias);
    if (grad_grad_input.defined()) {
      of_grad_output =
          at::depthwise_conv2d_ext_symint(grad_grad_input, weight, bias, stride, padding, dilation);
      bias = std::nullopt;
    }
    if (grad_grad_weight.defined()) {
      const auto term =
          at::depthwise_conv2d_ext_symint(input, grad_grad_weight, bias, stride, padding, dilation);
      bias = std::nullopt;
      of_grad_output = of_grad_output.defined() ? of_grad_output + term : term;
    }
    if (bias.has_value()) {
      of_grad_output = bias->view({-1, 1, 1}).expand_symint(grad_output.sym_sizes());
    }
  }
  if (output_mask[1] && grad_grad_weight.defined()) {
    of_input = std::get<0>(at::depthwise_conv2d_ext_backward_symint(
        grad_output, input, grad_grad_weight, stride, padding, dilation, {true, false, false}));
  }
  if (output_mask[2] && grad_grad_input.defined()) {
    of_weight = std::get<1>(at::depthwise_conv2d_ext_backward_symint(
        grad_output, grad_grad_input, weight, stride, padding, dilation, {false, true, false}));
  }
  return {of_grad_output, of_input, of_weight};
}

namespace {

// Undefined tensors stand for zero throughout.
Tensor sum_of(const Tensor& left, const Tensor& right) {
  if (!left.defined()) {
    return right;
  }
  return right.defined() ? left + right : left;
}

Tensor product_of(const Tensor& left, const Tensor& right) {
  return left.defined() && right.defined() ? left * right : Tensor();
}

Tensor mm_of(const Tensor& left, const Tensor& right) {
  return left.defined() && right.defined() ? at::mm(left, right) : Tensor();
}

Tensor transpose_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.t() : tensor;
}

Tensor or_zeros(const Tensor& tensor, const Tensor& like) {
  return tensor.defined() ? tensor : at::zeros_like(like);
}

// Columns [begin, end) of a matrix.
Tensor columns(const Tensor& matrix, const c10::SymInt& begin, const c10::SymInt& end) {
  return matrix.defined() ? matrix.slice_symint(1, begin, end) : matrix;
}

Tensor join(const Tensor& left, const Tensor& right) {
  return at::cat({left, right}, 1);
}

// The activations, with as many of their derivatives as the derivatives of the cell need. All made
// of differentiable operators of the saved tensors, so that any order of derivative follows.
struct Activations {
  Tensor i, o, c, t; // sigmoid, sigmoid, elu, tanh(new_cell)
  Tensor i1, o1, c1, t1; // first derivatives
  Tensor i2, o2, c2, t2; // second derivatives

  Activations(const Tensor& gates, const Tensor& new_cell) {
    const auto state = new_cell.sym_size(1);
    const auto x = columns(gates, state * 2, state * 3);
    i = at::sigmoid(columns(gates, 0, state));
    o = at::sigmoid(columns(gates, state, state * 2));
    c = at::elu(x);
    t = at::tanh(new_cell);
    i1 = i * (1 - i);
    o1 = o * (1 - o);
    // Clamped before exp: an infinity times the zero of the other branch would be NaN.
    c1 = at::exp(x.clamp_max(0));
    t1 = 1 - t * t;
    i2 = i1 * (1 - 2 * i);
    o2 = o1 * (1 - 2 * o);
    c2 = c1 * x.le(0).to(x.scalar_type());
    t2 = -2 * t * t1;
  }
};

// The three parts of a [B, 3·S] tensor.
struct Parts {
  Tensor i, o, c;

  Parts() = default;
  Parts(const Tensor& gates, const c10::SymInt& state)
      : i(columns(gates, 0, state)),
        o(columns(gates, state, state * 2)),
        c(columns(gates, state * 2, state * 3)) {}

  Tensor joined(const Tensor& like) const {
    if (!i.defined() && !o.defined() && !c.defined()) {
      return Tensor();
    }
    return at::cat({or_zeros(i, like), or_zeros(o, like), or_zeros(c, like)}, 1);
  }
};

// Gradient of new_cell, all that flows into it: ∂cell + ∂h · o · tanh'.
Tensor total_grad_cell(const Tensor& grad_h, const Tensor& grad_cell, const Activations& a) {
  return sum_of(grad_cell, product_of(grad_h, a.o * a.t1));
}

// Gradient of the gates before activation.
Tensor total_grad_gates(
    const Tensor& grad_h,
    const Tensor& total_cell,
    const Tensor& grad_gates,
    const Activations& a) {
  Parts parts;
  parts.i = product_of(total_cell, a.c * a.i1);
  parts.o = product_of(grad_h, a.t * a.o1);
  parts.c = product_of(total_cell, a.i * a.c1);
  return sum_of(parts.joined(a.t), grad_gates);
}

} // namespace

std::tuple<Tensor, Tensor, Tensor> lltm_cell_jvp(
    const Tensor& input_p,
    const Tensor& input_t,
    const Tensor& weight_p,
    const Tensor& weight_t,
    const Tensor& bias_t,
    const Tensor& old_h_p,
    const Tensor& old_h_t,
    const Tensor& old_cell_t,
    const Tensor& new_cell,
    const Tensor& gates) {
  const Activations a(gates, new_cell);
  const auto gates_t = at::mm(join(old_h_t, input_t), weight_p.t()) +
      at::mm(join(old_h_p, input_p), weight_t.t()) + bias_t;
  const Parts t(gates_t, new_cell.sym_size(1));
  const auto cell_t = old_cell_t + t.c * a.c1 * a.i + t.i * a.c * a.i1;
  const auto h_t = cell_t * a.t1 * a.o + t.o * a.t * a.o1;
  return {h_t, cell_t, gates_t};
}

// With X = [old_h, input], the backward is, from G = total_grad_cell and D = total_grad_gates,
//   ∂X = D · W, ∂W = Dᵀ · X, ∂bias = ΣD, ∂old_cell = G.
// Pairing these with the arriving (gg_X, gg_W, gg_bias, gg_cell) and differentiating gives E, the
// gradient for D, u, the gradient for G, and from them the gradients of what D and G are made of.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>
lltm_cell_double_backward(
    const Tensor& grad_grad_input,
    const Tensor& grad_grad_weight,
    const Tensor& grad_grad_bias,
    const Tensor& grad_grad_old_h,
    const Tensor& grad_grad_old_cell,
    const Tensor& grad_new_h,
    const Tensor& grad_new_cell,
    const Tensor& grad_gates,
    const Tensor& input,
    const Tensor& weight,
    const Tensor& old_h,
    const Tensor& new_cell,
    const Tensor& gates,
    std::array<bool, 8> output_mask) {
  const auto state = new_cell.sym_size(1);
  const auto width = weight.sym_size(1);
  const Activations a(gates, new_cell);

  auto for_gates = sum_of(
      mm_of(grad_grad_input, columns(weight, state, width).t()),
      mm_of(grad_grad_old_h, columns(weight, 0, state).t()));
  if (grad_grad_weight.defined()) {
    for_gates = sum_of(for_gates, at::mm(join(old_h, input), grad_grad_weight.t()));
  }
  if (grad_grad_bias.defined()) {
    for_gates = sum_of(for_gates, grad_grad_bias.expand_symint(gates.sym_sizes()));
  }
  const Parts e(for_gates, state);

  const auto total_cell = total_grad_cell(grad_new_h, grad_new_cell, a);
  const auto total_gates = total_grad_gates(grad_new_h, total_cell, grad_gates, a);
  const auto u =
      sum_of(grad_grad_old_cell, sum_of(product_of(e.i, a.c * a.i1), product_of(e.c, a.i * a.c1)));

  Tensor of_h, of_cell, of_gates, of_input, of_weight, of_old_h, of_new_cell, of_saved_gates;
  if (output_mask[0]) {
    of_h = sum_of(product_of(u, a.o * a.t1), product_of(e.o, a.t * a.o1));
  }
  if (output_mask[1]) {
    of_cell = u;
  }
  if (output_mask[2]) {
    of_gates = for_gates;
  }
  if (output_mask[3]) {
    of_input = mm_of(total_gates, columns(grad_grad_weight, state, width));
  }
  if (output_mask[4] && (grad_grad_input.defined() || grad_grad_old_h.defined())) {
    const auto gg_x = join(or_zeros(grad_grad_old_h, old_h), or_zeros(grad_grad_input, input));
    of_weight = mm_of(transpose_of(total_gates), gg_x);
  }
  if (output_mask[5]) {
    of_old_h = mm_of(total_gates, columns(grad_grad_weight, 0, state));
  }
  if (output_mask[6]) {
    of_new_cell =
        product_of(grad_new_h, sum_of(product_of(u, a.o * a.t2), product_of(e.o, a.o1 * a.t1)));
  }
  if (output_mask[7]) {
    Parts parts;
    parts.i =
        product_of(total_cell, sum_of(product_of(e.i, a.c * a.i2), product_of(e.c, a.i1 * a.c1)));
    parts.o =
        product_of(grad_new_h, sum_of(product_of(u, a.t1 * a.o1), product_of(e.o, a.t * a.o2)));
    parts.c =
        product_of(total_cell, sum_of(product_of(e.i, a.c1 * a.i1), product_of(e.c, a.i * a.c2)));
    of_saved_gates = parts.joined(new_cell);
  }
  return {of_h, of_cell, of_gates, of_input, of_weight, of_old_h, of_new_cell, of_saved_gates};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_cell_backward_jvp(
    const Tensor& grad_new_h_p,
    const Tensor& grad_new_h_t,
    const Tensor& grad_new_cell_p,
    const Tensor& grad_new_cell_t,
    const Tensor& grad_gates_p,
    const Tensor& grad_gates_t,
    const Tensor& input_p,
    const Tensor& input_t,
    const Tensor& weight_p,
    const Tensor& weight_t,
    const Tensor& old_h_p,
    const Tensor& old_h_t,
    const Tensor& new_cell_p,
    const Tensor& new_cell_t,
    const Tensor& gates_p,
    const Tensor& gates_t,
    std::array<bool, 5> output_mask) {
  const auto state = new_cell_p.sym_size(1);
  const auto width = weight_p.sym_size(1);
  const Activations a(gates_p, new_cell_p);
  const Parts t(gates_t, state);

  // Tangents of G and D, by the product rule over the incoming gradients and the saved tensors.
  const auto total_cell = total_grad_cell(grad_new_h_p, grad_new_cell_p, a);
  const auto total_gates = total_grad_gates(grad_new_h_p, total_cell, grad_gates_p, a);
  const auto cell_t = sum_of(
      total_grad_cell(grad_new_h_t, grad_new_cell_t, a),
      product_of(grad_new_h_p, t.o * a.o1 * a.t1 + new_cell_t * a.o * a.t2));
  Parts inner;
  inner.i = product_of(total_cell, t.c * a.c1 * a.i1 + t.i * a.c * a.i2);
  inner.o = product_of(grad_new_h_p, new_cell_t * a.t1 * a.o1 + t.o * a.t * a.o2);
  inner.c = product_of(total_cell, t.i * a.i1 * a.c1 + t.c * a.i * a.c2);
  const auto total_gates_t =
      sum_of(total_grad_gates(grad_new_h_t, cell_t, grad_gates_t, a), inner.joined(new_cell_p));

  Tensor of_input, of_weight, of_bias, of_old_h, of_old_cell;
  if (output_mask[0]) {
    of_input = sum_of(
        mm_of(total_gates_t, columns(weight_p, state, width)),
        mm_of(total_gates, columns(weight_t, state, width)));
  }
  if (output_mask[1]) {
    of_weight = sum_of(
        mm_of(transpose_of(total_gates_t), join(old_h_p, input_p)),
        mm_of(transpose_of(total_gates), join(old_h_t, input_t)));
  }
  if (output_mask[2] && total_gates_t.defined()) {
    of_bias = total_gates_t.sum(0);
  }
  if (output_mask[3]) {
    of_old_h = sum_of(
        mm_of(total_gates_t, columns(weight_p, 0, state)),
        mm_of(total_gates, columns(weight_t, 0, state)));
  }
  if (output_mask[4]) {
    of_old_cell = cell_t;
  }
  return {of_input, of_weight, of_bias, of_old_h, of_old_cell};
}

} // namespace torch::autograd::generated::details
