#include <ATen/native/ZooFunctionsManual.h>

#include <ATen/TensorOperators.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/cat.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#endif

namespace torch::autograd::generated::details {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using at::TensorList;

namespace {

// The sum of two gradients, either of which may be undefined.
Tensor sum_of(const Tensor& left, const Tensor& right) {
  if (!left.defined()) {
    return right;
  }
  return right.defined() ? left + right : left;
}

} // namespace

Tensor zoo_match_type(const Tensor& grad, ScalarType type) {
  return grad.is_complex() && !at::isComplexType(type) ? at::real(grad) : grad;
}

Tensor zoo_times_i(const Tensor& self) {
  return self * Scalar(c10::complex<double>(0, 1));
}

Tensor zoo_blend_backward(
    const Tensor& grad,
    const Tensor& other,
    const Scalar& alpha,
    ScalarType type) {
  return zoo_match_type(grad * (other * alpha).conj(), type);
}

Tensor zoo_scale_shift_jvp(
    const Tensor& self_p,
    const Tensor& self_t,
    const Tensor& scale_p,
    const Tensor& scale_t,
    const Tensor& shift_t) {
  Tensor tangent;
  if (self_t.defined()) {
    tangent = scale_p.defined() ? self_t * scale_p : self_t.clone();
  }
  if (scale_t.defined()) {
    tangent = sum_of(tangent, self_p * scale_t);
  }
  return sum_of(tangent, shift_t);
}

Tensor zoo_halves_backward(
    TensorList grads,
    c10::SymIntArrayRef sizes,
    int64_t dim,
    const at::TensorOptions& options) {
  const auto wrapped = dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim;
  const auto half = (sizes[wrapped] + 1) / 2;
  std::vector<Tensor> parts;
  for (size_t i = 0; i < grads.size(); ++i) {
    auto shape = sizes.vec();
    shape[wrapped] = i == 0 ? half : shape[wrapped] - half;
    parts.push_back(grads[i].defined() ? grads[i] : at::zeros_symint(shape, options));
  }
  return at::cat(parts, wrapped);
}

std::vector<Tensor> zoo_stack_mean_backward(const Tensor& grad, at::ArrayRef<ScalarType> types) {
  std::vector<Tensor> grads(types.size());
  if (grad.defined()) {
    const auto share = grad / static_cast<int64_t>(types.size());
    for (size_t i = 0; i < types.size(); ++i) {
      grads[i] = zoo_match_type(share, types[i]);
    }
  }
  return grads;
}

Tensor zoo_stack_mean_jvp(TensorList tensors) {
  std::vector<Tensor> tangents;
  bool any = false;
  for (const Tensor& tensor : tensors) {
    const auto& tangent = tensor._fw_grad(/*level=*/0);
    any = any || tangent.defined();
    tangents.push_back(tangent.defined() ? tangent : at::zeros_like(tensor));
  }
  return any ? at::stack(tangents).mean(0) : Tensor();
}

Tensor zoo_powers_backward(TensorList grads, const Tensor& self) {
  Tensor total;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined()) {
      const auto exponent = static_cast<int64_t>(i);
      total = sum_of(total, grads[i] * (self.pow(exponent) * (exponent + 1)).conj());
    }
  }
  return total;
}

std::vector<Tensor> zoo_powers_jvp(const Tensor& self_p, const Tensor& self_t, int64_t count) {
  std::vector<Tensor> tangents;
  for (int64_t exponent = 0; exponent < count; ++exponent) {
    tangents.push_back(self_t * self_p.pow(exponent) * (exponent + 1));
  }
  return tangents;
}

Tensor zoo_sum_diff_backward(const Tensor& grad_sum, const Tensor& grad_diff, int64_t sign) {
  return sum_of(grad_sum, grad_diff.defined() ? grad_diff * sign : grad_diff);
}

Tensor zoo_moments_backward(
    const Tensor& grad_mean,
    const Tensor& grad_second,
    const Tensor& self,
    int64_t dim,
    bool keepdim) {
  // A mean over no dimension is a mean over one element.
  const bool scalar = self.dim() == 0;
  const auto count = scalar ? c10::SymInt(1) : self.sym_size(dim);
  const auto spread = [&](const Tensor& grad) {
    return (keepdim || scalar ? grad : grad.unsqueeze(dim)) / Scalar(count);
  };
  const auto from_mean =
      grad_mean.defined() ? spread(grad_mean).expand_symint(self.sym_sizes()) : Tensor();
  return sum_of(from_mean, grad_second.defined() ? 2 * self * spread(grad_second) : Tensor());
}

std::tuple<Tensor, Tensor, Tensor> zoo_gram_double_backward(
    const Tensor& ggrad_self,
    const Tensor& ggrad_other,
    const Tensor& grad_output,
    const Tensor& self,
    const Tensor& other,
    std::array<bool, 3> mask) {
  Tensor for_grad, for_self, for_other;
  if (mask[0]) {
    for_grad = sum_of(
        ggrad_self.defined() ? ggrad_self.matmul(other.mH()) : Tensor(),
        ggrad_other.defined() ? self.matmul(ggrad_other.mH()) : Tensor());
  }
  if (mask[1] && ggrad_other.defined()) {
    for_self = grad_output.matmul(ggrad_other);
  }
  if (mask[2] && ggrad_self.defined()) {
    for_other = grad_output.mH().matmul(ggrad_self);
  }
  return {for_grad, for_self, for_other};
}

Tensor zoo_pool_backward(
    const Tensor& grad,
    const Tensor& self,
    const Tensor& result,
    c10::string_view mode) {
  if (mode == "norm") {
    return grad * (self / result);
  }
  const auto each = mode == "mean" ? grad / at::Scalar(self.sym_numel()) : grad;
  return each.expand_symint(self.sym_sizes());
}

Tensor zoo_pool_jvp(
    const Tensor& self_p,
    const Tensor& self_t,
    const Tensor& result,
    c10::string_view mode) {
  if (mode == "norm") {
    return at::real(self_p.conj() * self_t).sum() / result;
  }
  return mode == "mean" ? self_t.mean() : self_t.sum();
}

} // namespace torch::autograd::generated::details
