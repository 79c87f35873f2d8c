// Helpers of derivative formulas that upstream's FunctionsManual.h declares and libtorch_cpu.so keeps
// to itself.
//
// A graft compiles this file where a formula or a source of the additions calls one of them; a source
// build has upstream's own. These are definitions of ours of what the header declares: those that
// upstream's formulas of pointwise, reduction, indexing and view operators call. Each can be
// differentiated again, and none reads the data of a tensor, so that they run under vmap and in a
// trace. tests/upstream_style/test_twins.py holds them against upstream's own gradients.
//
// Where releases differ in how an argument is passed, both forms are defined: the one that the
// release's header does not declare is called by nobody.

#include <ATen/ATen.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <c10/util/MathConstants.h>
#include <torch/csrc/autograd/FunctionsManual.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace torch::autograd::generated::details {

namespace {

bool is_one(const Scalar& s) {
  return !s.isSymbolic() && s.equal(1);
}

Scalar minus_one(const Scalar& s) {
  if (s.isComplex()) {
    return s.toComplexDouble() - 1.0;
  }
  return s.isFloatingPoint() ? Scalar(s.toDouble() - 1) : Scalar(s.toLong() - 1);
}

// No dimensions, or an empty list of them, means all of them.
bool reduces_all(at::OptionalIntArrayRef dims) {
  return !dims.has_value() || dims->empty();
}

// What a reduction gave (or its gradient) with the reduced dimensions put back, as with keepdim.
Tensor keep_dims(const Tensor& reduced, at::OptionalIntArrayRef dims, bool keepdim, int64_t ndim) {
  return keepdim || reduces_all(dims) || ndim == 0 ? reduced
                                                   : unsqueeze_multiple(reduced, dims, ndim);
}

// How many elements a reduction makes one of.
c10::SymInt reduced_numel(c10::SymIntArrayRef sizes, at::OptionalIntArrayRef dims) {
  const auto mask = at::dim_list_to_bitset(
      reduces_all(dims) ? at::OptionalIntArrayRef() : dims, static_cast<int64_t>(sizes.size()));
  c10::SymInt numel = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    numel = mask[i] ? numel * sizes[i] : numel;
  }
  return numel;
}

Tensor sum_over(const Tensor& t, at::OptionalIntArrayRef dims, bool keepdim) {
  return reduces_all(dims) && !keepdim ? t.sum() : t.sum(dims, keepdim);
}

// Whether 0 to these powers is 0, as it is for all powers near a real one that is not negative.
Tensor keeps_zero(const Tensor& exponent) {
  const auto flat = at::real(exponent) >= 0;
  return exponent.is_complex() ? flat.logical_and(at::imag(exponent) == 0) : flat;
}

Tensor zero_where(const Tensor& mask, const Tensor& t) {
  return at::where(mask, at::zeros({}, t.options()), t);
}

// The sum of gradients that may be undefined.
Tensor sum_of(const Tensor& one, const Tensor& other) {
  if (!one.defined()) {
    return other;
  }
  return other.defined() ? one + other : one;
}

Tensor mean_gradient(
    const Tensor& grad,
    c10::SymIntArrayRef sizes,
    at::OptionalIntArrayRef dims,
    bool keepdim) {
  return sum_backward(grad, sizes, dims, keepdim) / Scalar(reduced_numel(sizes, dims));
}

Tensor slice_gradient(
    const Tensor& grad,
    c10::SymIntArrayRef sizes,
    int64_t dim,
    const std::optional<c10::SymInt>& start,
    const std::optional<c10::SymInt>& end,
    const c10::SymInt& step) {
  const auto last = c10::SymInt(std::numeric_limits<int64_t>::max());
  return at::slice_backward_symint(
      grad, sizes, dim, start.value_or(c10::SymInt(0)), end.value_or(last), step);
}

template <typename T>
Tensor product_gradient(const Tensor& grad, const T& other, ScalarType type) {
  return handle_r_to_c(type, grad * other.conj());
}

template <typename T>
Tensor quotient_gradient(
    const Tensor& grad,
    const T& other,
    ScalarType type,
    const std::optional<std::string_view>& rounding_mode) {
  if (rounding_mode.has_value()) {
    return at::zeros_like(grad, grad.options().dtype(type));
  }
  return handle_r_to_c(type, grad / other.conj());
}

// For each element the product of all others along a dimension, of those before it times those after:
// right whatever the zeros. sizes are not 0.
Tensor product_of_others(const Tensor& self, int64_t dim) {
  const auto of_those_before = [&](const Tensor& t) {
    const auto one = at::ones_like(t.narrow_symint(dim, 0, 1));
    const auto others = t.narrow_symint(dim, 0, t.sym_size(dim) - 1);
    return at::cat({one, others}, dim).cumprod(dim);
  };
  return of_those_before(self) * of_those_before(self.flip(dim)).flip(dim);
}

// The gradient of ||self||_p for a norm's gradient; both have their reduced dimensions put back.
Tensor norm_gradient(
    const Tensor& grad,
    const Tensor& self,
    double p,
    const Tensor& norm,
    at::OptionalIntArrayRef dims) {
  if (p == 0) {
    return at::zeros_like(self);
  }
  if (p == 1) {
    return self.sgn() * grad;
  }
  if (p == 2) {
    return grad * zero_where(norm == 0, self / norm);
  }
  const auto magnitude = self.abs();
  if (std::isinf(p)) {
    // Shared evenly between those that reach it; a NaN is reached by NaNs.
    const auto reached = (magnitude == norm).logical_or(magnitude.isnan() & norm.isnan());
    const auto count = reduces_all(dims) ? reached.sum() : reached.sum(dims, /*keepdim=*/true);
    return zero_where(reached.logical_not(), self.sgn() * (grad / count));
  }
  const auto flat = p < 1 ? (self == 0).logical_or(norm == 0) : norm == 0;
  return zero_where(flat, self.sgn() * (magnitude / norm).pow(p - 1) * grad);
}

double order_of(const std::optional<Scalar>& p) {
  return p.has_value() ? p->toDouble() : 2.0;
}

// Gradients as one tensor: zeros where a result was not used.
Tensor concatenated(
    const variable_list& grads,
    const std::vector<c10::SymInt>& lengths,
    int64_t dim,
    c10::SymIntArrayRef sizes,
    const at::TensorOptions& options) {
  dim = at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()));
  variable_list parts;
  for (size_t i = 0; i < grads.size(); ++i) {
    auto shape = sizes.vec();
    shape[dim] = lengths[i];
    parts.push_back(grads[i].defined() ? grads[i] : at::zeros_symint(shape, options));
  }
  return at::cat(parts, dim);
}

// The tangents of a list; none where no tensor of it has one.
variable_list tangents_of(const variable_list& tensors) {
  variable_list tangents;
  bool any = false;
  for (const auto& tensor : tensors) {
    auto tangent = toNonOptFwGrad(tensor);
    any = any || tangent.defined();
    tangents.push_back(tangent.defined() ? tangent : at::zeros_like(tensor));
  }
  return any ? tangents : variable_list();
}

// Whether lower <= self <= upper, for the bounds that there are.
template <typename T>
Tensor is_within(const Tensor& self, const T* lower, const T* upper) {
  if (lower != nullptr && upper != nullptr) {
    return (self >= *lower).logical_and(self <= *upper);
  }
  return lower != nullptr ? self >= *lower : self <= *upper;
}

template <typename T>
Tensor clamp_gradient(const Tensor& grad, const Tensor& self, const T* lower, const T* upper) {
  if (lower == nullptr && upper == nullptr) {
    return grad;
  }
  return zero_where(is_within(self, lower, upper).logical_not(), grad);
}

// The layout of a matrix, which its gradient gets too.
bool lies_by_columns(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, c10::Layout layout) {
  return layout == c10::kStrided && strides[0] == 1 && strides[1] == sizes[0];
}

const Tensor* defined(const Tensor& t) {
  return t.defined() ? &t : nullptr;
}

const Scalar* defined(const std::optional<Scalar>& s) {
  return s.has_value() ? &*s : nullptr;
}

} // namespace

// --- Types and factors ------------------------------------------------------------------------------

Tensor handle_r_to_c(ScalarType self_st, Tensor gradient_result) {
  const bool drops = gradient_result.is_complex() && !at::isComplexType(self_st);
  return drops ? at::real(gradient_result) : gradient_result;
}

Tensor maybe_multiply(const Tensor& t, const Scalar& s) {
  return is_one(s) ? t : t * s;
}

// --- Pointwise --------------------------------------------------------------------------------------

template <typename T>
Tensor mul_tensor_backward(const Tensor& grad, T other, ScalarType self_st) {
  return product_gradient(grad, other, self_st);
}

template <typename T>
Tensor mul_tensor_backward(const Tensor& grad, const T& other, ScalarType self_st) {
  return product_gradient(grad, other, self_st);
}

template Tensor mul_tensor_backward<Tensor>(const Tensor&, Tensor, ScalarType);
template Tensor mul_tensor_backward<Scalar>(const Tensor&, Scalar, ScalarType);
template Tensor mul_tensor_backward<Tensor>(const Tensor&, const Tensor&, ScalarType);
template Tensor mul_tensor_backward<Scalar>(const Tensor&, const Scalar&, ScalarType);

template <typename T>
Tensor div_tensor_self_backward(
    const Tensor& grad,
    T other,
    ScalarType self_st,
    const std::optional<std::string_view>& rounding_mode) {
  return quotient_gradient(grad, other, self_st, rounding_mode);
}

template <typename T>
Tensor div_tensor_self_backward(
    const Tensor& grad,
    const T& other,
    ScalarType self_st,
    const std::optional<std::string_view>& rounding_mode) {
  return quotient_gradient(grad, other, self_st, rounding_mode);
}

using RoundingMode = const std::optional<std::string_view>&;
template Tensor div_tensor_self_backward<Tensor>(const Tensor&, Tensor, ScalarType, RoundingMode);
template Tensor div_tensor_self_backward<Scalar>(const Tensor&, Scalar, ScalarType, RoundingMode);
template Tensor div_tensor_self_backward<Tensor>(
    const Tensor&,
    const Tensor&,
    ScalarType,
    RoundingMode);
template Tensor div_tensor_self_backward<Scalar>(
    const Tensor&,
    const Scalar&,
    ScalarType,
    RoundingMode);

Tensor div_tensor_other_backward(
    const Tensor& grad,
    const Tensor& self,
    const Tensor& other,
    RoundingMode rounding_mode) {
  if (rounding_mode.has_value()) {
    return at::zeros_like(grad, grad.options().dtype(other.scalar_type()));
  }
  return handle_r_to_c(other.scalar_type(), -grad * (self / other / other).conj());
}

Tensor pow_backward(Tensor grad, const Tensor& self, const Scalar& exponent) {
  if (exponent.equal(0)) {
    return at::zeros_like(self);
  }
  const auto slope = exponent * self.pow(minus_one(exponent));
  return handle_r_to_c(self.scalar_type(), grad * slope.conj());
}

Tensor pow_backward_self(const Tensor& grad, const Tensor& self, const Tensor& exponent) {
  const auto slope = exponent * self.pow(exponent - 1);
  return handle_r_to_c(self.scalar_type(), zero_where(exponent == 0, grad * slope.conj()));
}

Tensor pow_backward_exponent(
    const Tensor& grad,
    const Tensor& self,
    const Tensor& exponent,
    const Tensor& result) {
  const auto flat = (self == 0).logical_and(keeps_zero(exponent));
  const auto slope = zero_where(flat, (result * self.log()).conj());
  return handle_r_to_c(exponent.scalar_type(), grad * slope);
}

Tensor pow_backward_exponent(
    const Tensor& grad,
    const Scalar& base,
    const Tensor& exponent,
    const Tensor& result) {
  auto slope = (result * base.log()).conj();
  if (base.equal(0)) {
    slope = zero_where(keeps_zero(exponent), slope);
  }
  return handle_r_to_c(exponent.scalar_type(), grad * slope);
}

Tensor angle_backward(const Tensor& grad, const Tensor& self) {
  if (!self.is_complex()) {
    return at::zeros_like(self);
  }
  const auto i = Scalar(c10::complex<double>(0, 1));
  return zero_where(self == 0, grad * i * self / self.abs().square());
}

Tensor sgn_backward(const Tensor& x, const Tensor& gx, const Tensor& sgn) {
  if (!x.is_complex()) {
    return at::zeros_like(sgn);
  }
  const auto radial = at::real(gx * sgn.conj()) * sgn;
  return zero_where(x == 0, (gx - radial) / x.abs());
}

std::tuple<Tensor, Tensor> atan2_backward(
    const Tensor& grad,
    const Tensor& self,
    const Tensor& other,
    std::array<bool, 2> output_mask) {
  const auto share = grad / (self * self + other * other);
  return {
      output_mask[0] ? share * other : Tensor(), output_mask[1] ? share * self.neg() : Tensor()};
}

Tensor log1p_backward(const Tensor& grad, const Tensor& self) {
  return grad / (self + 1).conj();
}

Tensor sinc_backward(const Tensor& grad, const Tensor& self) {
  const auto x = self * c10::pi<double>;
  const auto slope = (x.cos() * x - x.sin()) / (x * self);
  return zero_where(self == 0, grad * slope.conj());
}

Tensor rad2deg_backward(const Tensor& grad) {
  return grad * (180 / c10::pi<double>);
}

Tensor deg2rad_backward(const Tensor& grad) {
  return grad * (c10::pi<double> / 180);
}

Tensor masked_fill_backward(const Tensor& grad, const Tensor& mask) {
  return zero_where(mask.logical_not(), grad).sum();
}

Tensor clamp_backward(
    const Tensor& grad,
    const Tensor& self,
    const std::optional<Scalar>& min,
    const std::optional<Scalar>& max) {
  return clamp_gradient(grad, self, defined(min), defined(max));
}

Tensor clamp_backward(
    const Tensor& grad,
    const Tensor& self,
    const Tensor& min,
    const Tensor& max) {
  return clamp_gradient(grad, self, defined(min), defined(max));
}

std::tuple<Tensor, Tensor> clamp_backward_min_max(
    const Tensor& grad,
    const Tensor& self,
    const Tensor& min,
    const Tensor& max,
    const std::array<bool, 2>& mask) {
  // Where the bounds cross, the result is the upper one.
  Tensor for_min, for_max;
  if (mask[0] && min.defined()) {
    const auto above = self >= min;
    for_min = zero_where(max.defined() ? above.logical_or(min >= max) : above, grad);
  }
  if (mask[1] && max.defined()) {
    const auto below = self <= max;
    for_max = zero_where(min.defined() ? below.logical_and(min <= max) : below, grad);
  }
  return {for_min, for_max};
}

Tensor clamp_jvp(
    const Tensor& self_p,
    const Tensor& self_t,
    const Tensor& min_p,
    const Tensor& min_t,
    const Tensor& max_p,
    const Tensor& max_t) {
  auto tangent = self_t;
  if (min_p.defined()) {
    tangent = at::where(self_p < min_p, min_t, tangent);
  }
  if (max_p.defined()) {
    const auto above = self_p > max_p;
    tangent = at::where(min_p.defined() ? above.logical_or(min_p > max_p) : above, max_t, tangent);
  }
  return tangent;
}

// --- Reductions -------------------------------------------------------------------------------------

Tensor unsqueeze_multiple(const Tensor& t, at::OptionalIntArrayRef opt_dim, size_t n_dims) {
  const auto mask = at::dim_list_to_bitset(opt_dim, static_cast<int64_t>(n_dims));
  auto result = t;
  for (size_t i = 0; i < n_dims; ++i) {
    result = mask[i] ? result.unsqueeze(static_cast<int64_t>(i)) : result;
  }
  return result;
}

Tensor restore_reduced_dims(const Tensor& output, IntArrayRef dims, bool keepdim) {
  const auto ndim = output.dim() + static_cast<int64_t>(dims.size());
  return keep_dims(output, dims, keepdim, ndim);
}

Tensor scale_grad_by_count(const Tensor& grad, const Tensor& mask, IntArrayRef dims) {
  return grad * mask / mask.sum(dims, /*keepdim=*/true);
}

Tensor sum_backward(
    const Tensor& grad,
    c10::SymIntArrayRef sizes,
    at::OptionalIntArrayRef opt_dims,
    bool keepdim) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  return keep_dims(grad, opt_dims, keepdim, ndim).expand_symint(sizes);
}

Tensor sum_backward(
    const Tensor& grad,
    c10::SymIntArrayRef sizes,
    c10::IntArrayRef dims,
    bool keepdim) {
  return sum_backward(grad, sizes, at::OptionalIntArrayRef(dims), keepdim);
}

Tensor nansum_backward(
    const Tensor& grad,
    const Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keepdim) {
  return zero_where(self.isnan(), sum_backward(grad, self.sym_sizes(), dims, keepdim));
}

Tensor mean_backward(
    const Tensor& grad,
    c10::SymIntArrayRef shape,
    at::OptionalIntArrayRef opt_dim,
    c10::SymInt /*numel*/,
    bool keepdim) {
  return mean_gradient(grad, shape, opt_dim, keepdim);
}

Tensor mean_backward(
    const Tensor& grad,
    c10::SymIntArrayRef shape,
    at::OptionalIntArrayRef opt_dim,
    const c10::SymInt& /*numel*/,
    bool keepdim) {
  return mean_gradient(grad, shape, opt_dim, keepdim);
}

Tensor prod_backward(
    Tensor grad,
    const Tensor& input,
    Tensor /*result*/,
    int64_t dim,
    bool keepdim) {
  if (input.dim() == 0) {
    return grad;
  }
  if (input.sym_numel() == 0) {
    return at::zeros_like(input);
  }
  const auto kept = keepdim ? grad : grad.unsqueeze(dim);
  return kept * product_of_others(input, dim).conj();
}

Tensor prod_backward(const Tensor& grad, const Tensor& input, const Tensor& result) {
  const auto flat = prod_backward(grad, input.reshape(-1), result, 0, /*keepdim=*/false);
  return flat.reshape_symint(input.sym_sizes());
}

Tensor cumsum_backward(const Tensor& grad, int64_t dim) {
  return grad.dim() == 0 ? grad : grad.flip(dim).cumsum(dim).flip(dim);
}

Tensor logsumexp_backward(
    Tensor grad,
    const Tensor& self,
    Tensor result,
    IntArrayRef dim,
    bool keepdim) {
  const auto kept = [&](const Tensor& t) {
    return keep_dims(t, dim, keepdim, self.dim());
  };
  return kept(grad) * (self - kept(result)).exp().conj();
}

Tensor logsumexp_jvp(const Tensor& self_p, const Tensor& self_t, IntArrayRef dim, bool keepdim) {
  const auto weights = (self_p - at::logsumexp(self_p, dim, /*keepdim=*/true)).exp();
  return (weights * self_t).sum(dim, keepdim);
}

Tensor var_backward(
    Tensor grad,
    const Tensor& self,
    at::OptionalIntArrayRef dim,
    const std::optional<Scalar>& correction,
    bool keepdim) {
  const auto numel = c10::SymFloat(reduced_numel(self.sym_sizes(), dim));
  const auto freedom = numel - correction.value_or(1).toSymFloat();
  // Not below 0: there the variance is infinite, or no number.
  const auto factor = c10::SymFloat(2.0) / freedom.max(c10::SymFloat(0.0));
  const auto mean = reduces_all(dim) ? self.mean() : self.mean(dim, /*keepdim=*/true);
  return keep_dims(grad, dim, keepdim, self.dim()) * Scalar(factor) * (self - mean);
}

Tensor std_backward(
    const Tensor& result,
    const Tensor& grad,
    const Tensor& self,
    at::OptionalIntArrayRef dim,
    const std::optional<Scalar>& correction,
    bool keepdim) {
  const auto for_var = zero_where(result == 0, grad / (result * 2));
  return var_backward(for_var, self, dim, correction, keepdim);
}

Tensor var_mean_backward(
    const Tensor& gvar,
    const Tensor& gmean,
    const Tensor& self,
    at::OptionalIntArrayRef dim_opt,
    const std::optional<Scalar>& correction,
    bool keepdim) {
  const auto of_var =
      gvar.defined() ? var_backward(gvar, self, dim_opt, correction, keepdim) : Tensor();
  const auto of_mean =
      gmean.defined() ? mean_gradient(gmean, self.sym_sizes(), dim_opt, keepdim) : Tensor();
  return sum_of(of_var, of_mean);
}

Tensor std_mean_backward(
    const Tensor& gstd,
    const Tensor& gmean,
    const Tensor& self,
    const Tensor& std,
    at::OptionalIntArrayRef dim_opt,
    const std::optional<Scalar>& correction,
    bool keepdim) {
  const auto gvar = gstd.defined() ? zero_where(std == 0, gstd / (std * 2)) : Tensor();
  return var_mean_backward(gvar, gmean, self, dim_opt, correction, keepdim);
}

Tensor norm_backward(
    Tensor grad,
    const Tensor& self,
    const std::optional<Scalar>& p,
    Tensor norm,
    IntArrayRef dim,
    bool keepdim) {
  const auto kept = [&](const Tensor& t) {
    return keep_dims(t, dim, keepdim, self.dim());
  };
  return norm_gradient(kept(grad), self, order_of(p), kept(norm), dim);
}

Tensor norm_backward(
    const Tensor& grad,
    const Tensor& self,
    const std::optional<Scalar>& p,
    const Tensor& norm) {
  return norm_gradient(grad, self, order_of(p), norm, std::nullopt);
}

Tensor norm_jvp(
    const Tensor& self_p,
    const Tensor& self_t,
    const std::optional<Scalar>& p,
    Tensor norm,
    IntArrayRef dim,
    bool keepdim) {
  const auto slope = norm_backward(at::ones_like(norm), self_p, p, norm, dim, keepdim);
  return sum_over(at::real(slope.conj() * self_t), dim, keepdim);
}

Tensor norm_jvp(
    const Tensor& self_p,
    const Tensor& self_t,
    const std::optional<Scalar>& p,
    Tensor norm) {
  return norm_jvp(self_p, self_t, p, std::move(norm), {}, /*keepdim=*/false);
}

Tensor linalg_vector_norm_backward(
    Tensor grad,
    const Tensor& self,
    const Scalar& ord,
    Tensor norm,
    const at::OptionalIntArrayRef& opt_dim,
    bool keepdim) {
  return norm_backward(
      std::move(grad), self, ord, std::move(norm), opt_dim.value_or(IntArrayRef{}), keepdim);
}

Tensor linalg_vector_norm_jvp(
    const Tensor& self_p,
    const Tensor& self_t,
    const Scalar& ord,
    Tensor norm,
    const at::OptionalIntArrayRef& opt_dim,
    bool keepdim) {
  return norm_jvp(self_p, self_t, ord, std::move(norm), opt_dim.value_or(IntArrayRef{}), keepdim);
}

Tensor amaxamin_jvp(
    const Tensor& x,
    const Tensor& dx,
    const Tensor& result,
    IntArrayRef dim,
    bool keepdim) {
  const auto mask = x == restore_reduced_dims(result, dim, keepdim);
  return zero_where(mask.logical_not(), dx).sum(dim, keepdim) / mask.sum(dim, keepdim);
}

Tensor evenly_distribute_backward(const Tensor& grad, const Tensor& input, const Tensor& value) {
  const auto mask = (input == value).logical_or(input.isnan().logical_and(value.isnan()));
  return zero_where(mask.logical_not(), grad / mask.sum());
}

Tensor evenly_read_jvp(const Tensor& fw_grad, const Tensor& input, const Tensor& value) {
  const auto mask = input == value; // none for a NaN, whose tangent is no number either
  return zero_where(mask.logical_not(), fw_grad).sum() / mask.sum();
}

// --- Indexing ---------------------------------------------------------------------------------------

Tensor gather_with_keepdimed_indices(
    const Tensor& input,
    int64_t dim,
    const Tensor& indices,
    bool keepdim) {
  if (keepdim || input.dim() == 0) {
    return at::gather(input, dim, indices);
  }
  return at::gather(input, dim, indices.unsqueeze(dim)).squeeze(dim);
}

Tensor index_backward(
    Tensor zeros_like_self,
    const torch::List<std::optional<Tensor>>& indices,
    const Tensor& grad) {
  return at::index_put(zeros_like_self, indices, grad, /*accumulate=*/true);
}

Tensor take_backward(const Tensor& grad, const Tensor& self, const Tensor& indices) {
  return at::zeros_like(self).put(indices, grad, /*accumulate=*/true);
}

// --- Shapes and views -------------------------------------------------------------------------------

Tensor unsqueeze_to(const Tensor& self, c10::SymIntArrayRef sym_sizes) {
  auto result = self;
  for (size_t i = 0; i < sym_sizes.size(); ++i) {
    result = sym_sizes[i] == 1 ? result.unsqueeze(static_cast<int64_t>(i)) : result;
  }
  return result;
}

Tensor unsqueeze_to(const Tensor& self, IntArrayRef dim, c10::SymIntArrayRef sym_sizes) {
  const auto mask = at::dim_list_to_bitset(dim, static_cast<int64_t>(sym_sizes.size()));
  auto result = self;
  for (size_t i = 0; i < sym_sizes.size(); ++i) {
    const bool squeezed = mask[i] && sym_sizes[i] == 1;
    result = squeezed ? result.unsqueeze(static_cast<int64_t>(i)) : result;
  }
  return result;
}

Tensor unsqueeze_to(const Tensor& self, int64_t dim, c10::SymIntArrayRef sym_sizes) {
  return sym_sizes.empty() ? self : unsqueeze_to(self, IntArrayRef{dim}, sym_sizes);
}

Tensor permute_backwards(const Tensor& grad, IntArrayRef fwd_dims) {
  std::vector<int64_t> inverse(fwd_dims.size());
  for (size_t i = 0; i < fwd_dims.size(); ++i) {
    const auto from = at::maybe_wrap_dim(fwd_dims[i], static_cast<int64_t>(fwd_dims.size()));
    inverse[from] = static_cast<int64_t>(i);
  }
  return grad.permute(inverse);
}

std::vector<int64_t> reverse_list(const IntArrayRef list) {
  return {list.rbegin(), list.rend()};
}

std::vector<c10::SymInt> reverse_list_symint(const c10::SymIntArrayRef list) {
  return {list.rbegin(), list.rend()};
}

Tensor repeat_backward(Tensor grad, c10::SymIntArrayRef repeats, c10::SymIntArrayRef input_shape) {
  const auto added = repeats.size() - input_shape.size();
  std::vector<c10::SymInt> shape;
  std::vector<int64_t> repeated;
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] == 0) {
      return at::zeros_symint(input_shape, grad.options());
    }
    repeated.push_back(static_cast<int64_t>(shape.size()));
    shape.push_back(repeats[i]);
    if (i >= added) {
      shape.push_back(input_shape[i - added]);
    }
  }
  return repeated.empty() ? grad : grad.reshape_symint(shape).sum(repeated);
}

Tensor slice_backward_wrapper(
    const Tensor& grad,
    const c10::SymIntArrayRef& input_sizes,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end,
    c10::SymInt step) {
  return slice_gradient(grad, input_sizes, dim, start, end, step);
}

Tensor slice_backward_wrapper(
    const Tensor& grad,
    const c10::SymIntArrayRef& input_sizes,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end,
    const c10::SymInt& step) {
  return slice_gradient(grad, input_sizes, dim, start, end, step);
}

Tensor split_with_sizes_backward(
    const variable_list& grads,
    c10::SymIntArrayRef split_sizes,
    int64_t dim,
    c10::SymIntArrayRef sizes,
    const at::TensorOptions& options) {
  return concatenated(grads, split_sizes.vec(), dim, sizes, options);
}

Tensor split_backward(
    const variable_list& grads,
    const c10::SymInt& split_size,
    int64_t dim,
    c10::SymIntArrayRef sizes,
    const at::TensorOptions& options) {
  const auto whole = sizes[at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()))];
  const auto before = static_cast<int64_t>(grads.size()) - 1;
  std::vector<c10::SymInt> lengths(grads.size(), split_size);
  lengths.back() = whole - split_size * before;
  return concatenated(grads, lengths, dim, sizes, options);
}

Tensor unbind_backward(const variable_list& grads, int64_t dim) {
  const auto known =
      std::find_if(grads.begin(), grads.end(), [](const Tensor& grad) { return grad.defined(); });
  variable_list all;
  for (const auto& grad : grads) {
    all.push_back(grad.defined() ? grad : at::zeros_like(*known));
  }
  return at::stack(all, dim);
}

std::vector<Tensor> stack_tensors_backward(
    const Tensor& grad,
    int64_t dim,
    const std::vector<ScalarType>& dtypes) {
  std::vector<Tensor> gradients(dtypes.size());
  for (size_t i = 0; grad.defined() && i < dtypes.size(); ++i) {
    gradients[i] = handle_r_to_c(dtypes[i], grad.select(dim, static_cast<int64_t>(i)));
  }
  return gradients;
}

std::vector<Tensor> cat_tensors_backward(
    const Tensor& grad,
    const std::vector<std::vector<c10::SymInt>>& sizes,
    const std::vector<ScalarType>& dtypes,
    int64_t dim) {
  std::vector<Tensor> gradients(sizes.size());
  if (!grad.defined()) {
    return gradients;
  }
  dim = at::maybe_wrap_dim(dim, grad.dim());
  c10::SymInt start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    // cat takes an empty tensor of one dimension among tensors of more.
    const bool skipped = sizes[i].size() == 1 && sizes[i][0] == 0;
    const auto length = skipped ? c10::SymInt(0) : sizes[i][dim];
    gradients[i] = skipped ? at::zeros({0}, grad.options().dtype(dtypes[i]))
                           : handle_r_to_c(dtypes[i], grad.narrow_symint(dim, start, length));
    start = start + length;
  }
  return gradients;
}

Tensor cat_jvp(const at::ITensorListRef& tensors, int64_t dim) {
  variable_list list;
  for (const auto& tensor : tensors) {
    list.push_back(tensor);
  }
  const auto tangents = tangents_of(list);
  return tangents.empty() ? Tensor() : at::cat(tangents, dim);
}

Tensor stack_jvp(at::TensorList tensors, int64_t dim) {
  const auto tangents = tangents_of(tensors.vec());
  return tangents.empty() ? Tensor() : at::stack(tangents, dim);
}

Tensor constant_pad_nd_backward(const Tensor& grad, c10::SymIntArrayRef pad) {
  std::vector<c10::SymInt> cut;
  for (const auto& width : pad) {
    cut.push_back(-width);
  }
  return at::constant_pad_nd_symint(grad, cut, 0);
}

// --- Matrices ---------------------------------------------------------------------------------------

Tensor mm_mat1_backward(
    const Tensor& grad,
    const Tensor& mat2,
    c10::SymIntArrayRef mat1_sizes,
    c10::SymIntArrayRef mat1_strides,
    c10::Layout mat1_layout,
    const Scalar& alpha) {
  const bool by_columns = lies_by_columns(mat1_sizes, mat1_strides, mat1_layout);
  const auto product = by_columns ? mat2.conj().mm(grad.t()).t() : grad.mm(mat2.t().conj());
  return maybe_multiply(product, alpha.conj());
}

Tensor mm_mat2_backward(
    const Tensor& grad,
    const Tensor& mat1,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    c10::Layout layout,
    const Scalar& alpha) {
  const bool by_columns = lies_by_columns(sizes, strides, layout);
  const auto product = by_columns ? grad.t().mm(mat1.conj()).t() : mat1.t().conj().mm(grad);
  return maybe_multiply(product, alpha.conj());
}

} // namespace torch::autograd::generated::details
