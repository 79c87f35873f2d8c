// Operators made of other operators, one for each composite dispatch key and argument type.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/all.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/aminmax_native.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/fft_fft.h>
#include <ATen/ops/hypot_native.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/real.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zoo_abs2_native.h>
#include <ATen/ops/zoo_add_present_native.h>
#include <ATen/ops/zoo_adjust_native.h>
#include <ATen/ops/zoo_center_native.h>
#include <ATen/ops/zoo_common_type_native.h>
#include <ATen/ops/zoo_count_above_native.h>
#include <ATen/ops/zoo_fft_energy_native.h>
#include <ATen/ops/zoo_first_native.h>
#include <ATen/ops/zoo_gram_backward_native.h>
#include <ATen/ops/zoo_gram_native.h>
#include <ATen/ops/zoo_is_sorted_native.h>
#include <ATen/ops/zoo_linalg_trace_native.h>
#include <ATen/ops/zoo_moments_native.h>
#include <ATen/ops/zoo_neighbour_sums_native.h>
#include <ATen/ops/zoo_nn_gate_native.h>
#include <ATen/ops/zoo_nn_scaled_native.h>
#include <ATen/ops/zoo_nonnegative_native.h>
#include <ATen/ops/zoo_peak_native.h>
#include <ATen/ops/zoo_phase_native.h>
#include <ATen/ops/zoo_pool_native.h>
#include <ATen/ops/zoo_powers_native.h>
#include <ATen/ops/zoo_require_rank_native.h>
#include <ATen/ops/zoo_running_mean_native.h>
#include <ATen/ops/zoo_scale_shift_native.h>
#include <ATen/ops/zoo_shift_native.h>
#include <ATen/ops/zoo_shout_native.h>
#include <ATen/ops/zoo_special_cube_native.h>
#include <ATen/ops/zoo_spread_native.h>
#include <ATen/ops/zoo_stack_mean_native.h>
#include <ATen/ops/zoo_sum_diff_native.h>
#include <ATen/ops/zoo_tile_native.h>
#include <ATen/ops/zoo_total_native.h>
#include <ATen/ops/zoo_with_last_native.h>
#endif

#include <algorithm>

namespace at::native {

// --- composite kernels ---

Tensor zoo_center(const Tensor& self, int64_t dim) {
  return self - self.mean({dim}, /*keepdim=*/true);
}

Tensor zoo_scale_shift(
    const Tensor& self,
    const std::optional<Tensor>& scale,
    const std::optional<Tensor>& shift) {
  auto result = scale.has_value() && scale->defined() ? self * *scale : self.clone();
  return shift.has_value() && shift->defined() ? result + *shift : result;
}

Tensor zoo_with_last(const Tensor& self, const Tensor& row) {
  TORCH_CHECK(self.dim() > 0 && self.size(0) > 0, "zoo_with_last: self must have at least one row");
  auto result = self.clone();
  result.select(0, -1).copy_(row);
  return result;
}

// --- lists of tensors ---

Tensor zoo_stack_mean(TensorList tensors) {
  return at::stack(tensors).mean(0);
}

std::vector<Tensor> zoo_powers(const Tensor& self, int64_t count) {
  TORCH_CHECK(count >= 1, "zoo_powers: count must be at least 1, got ", count);
  std::vector<Tensor> powers;
  for (int64_t exponent = 1; exponent <= count; ++exponent) {
    powers.push_back(self.pow(exponent));
  }
  return powers;
}

std::vector<Tensor> zoo_neighbour_sums(TensorList tensors) {
  std::vector<Tensor> sums;
  for (size_t i = 1; i < tensors.size(); ++i) {
    sums.push_back(tensors[i - 1] + tensors[i]);
  }
  return sums;
}

Tensor zoo_add_present(const Tensor& self, const c10::List<std::optional<Tensor>>& others) {
  auto result = self;
  for (const std::optional<Tensor>& other : others) {
    if (other.has_value() && other->defined()) {
      result = result + *other;
    }
  }
  return result.is_same(self) ? self.clone() : result;
}

// --- several results ---

std::tuple<Tensor, Tensor> zoo_sum_diff(const Tensor& self, const Tensor& other) {
  return {self + other, self - other};
}

std::tuple<Tensor, Tensor> zoo_moments(const Tensor& self, int64_t dim, bool keepdim) {
  return {self.mean({dim}, keepdim), (self * self).mean({dim}, keepdim)};
}

std::tuple<Tensor&, Tensor&> zoo_moments_out(
    const Tensor& self,
    int64_t dim,
    bool keepdim,
    Tensor& mean,
    Tensor& second) {
  at::mean_out(mean, self, {dim}, keepdim);
  at::mean_out(second, self * self, {dim}, keepdim);
  return {mean, second};
}

std::tuple<Tensor, Tensor> zoo_peak(const Tensor& self, int64_t dim) {
  return self.max(dim, /*keepdim=*/false);
}

Tensor zoo_gram(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(
      self.dim() == 2 && other.dim() == 2,
      "zoo_gram: self and other must be matrices, got ",
      self.dim(),
      " and ",
      other.dim(),
      " dimensions");
  return at::matmul(self, other.mH());
}

std::tuple<Tensor, Tensor> zoo_gram_backward(
    const Tensor& grad_output,
    const Tensor& self,
    const Tensor& other,
    std::array<bool, 2> output_mask) {
  return {
      output_mask[0] ? at::matmul(grad_output, other) : Tensor(),
      output_mask[1] ? at::matmul(grad_output.mH(), self) : Tensor()};
}

// --- argument types ---

Tensor zoo_pool(const Tensor& self, c10::string_view mode) {
  if (mode == "mean") {
    return self.mean();
  }
  if (mode == "sum") {
    return self.sum();
  }
  TORCH_CHECK(mode == "norm", "zoo_pool: mode must be 'mean', 'sum' or 'norm', got '", mode, "'");
  return self.norm();
}

Tensor zoo_tile(const Tensor& self, IntArrayRef pattern) {
  TORCH_CHECK(self.dim() >= 2, "zoo_tile: self must have two dimensions, got ", self.dim());
  std::vector<int64_t> repeats(self.dim(), 1);
  std::copy(pattern.begin(), pattern.end(), repeats.end() - 2);
  return self.repeat(repeats);
}

Tensor zoo_shift_symint(const Tensor& self, c10::SymInt by, int64_t dim) {
  return at::roll_symint(self, std::move(by), dim);
}

Tensor zoo_total(const Tensor& self, std::optional<ScalarType> dtype) {
  return at::sum(self, dtype);
}

Tensor zoo_total_sparse(const Tensor& self, std::optional<ScalarType> dtype) {
  return at::sum(self._values(), dtype);
}

Tensor zoo_adjust(
    const Tensor& self,
    ArrayRef<Scalar> scales,
    std::optional<ArrayRef<double>> shifts,
    std::optional<int64_t> repeat,
    std::optional<double> floor,
    std::optional<bool> negate,
    const std::optional<Scalar>& limit) {
  TORCH_CHECK(
      !shifts.has_value() || shifts->size() == scales.size(),
      "zoo_adjust: expected ",
      scales.size(),
      " shifts, got ",
      shifts.has_value() ? shifts->size() : 0);
  auto result = self.clone();
  for (int64_t round = 0; round < repeat.value_or(1); ++round) {
    for (size_t i = 0; i < scales.size(); ++i) {
      result = result * scales[i] + (shifts.has_value() ? (*shifts)[i] : 0.0);
    }
  }
  if (floor.has_value()) {
    result = result.clamp_min(*floor);
  }
  if (limit.has_value()) {
    result = result.clamp_max(*limit);
  }
  return negate.value_or(false) ? result.neg() : result;
}

// --- results that are no tensors ---

int64_t zoo_count_above(const Tensor& self, const Scalar& threshold) {
  return self.gt(threshold).sum().item<int64_t>();
}

bool zoo_is_sorted(const Tensor& self) {
  TORCH_CHECK(
      self.dim() == 1, "zoo_is_sorted: self must be a vector, got ", self.dim(), " dimensions");
  return self.numel() < 2 || at::all(self.slice(0, 1).ge(self.slice(0, 0, -1))).item<bool>();
}

double zoo_spread(const Tensor& self) {
  return (self.max() - self.min()).item<double>();
}

Scalar zoo_first(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "zoo_first: self must not be empty");
  return self.reshape({-1}).select(0, 0).item();
}

ScalarType zoo_common_type(TensorList tensors) {
  TORCH_CHECK(!tensors.empty(), "zoo_common_type: expected at least one tensor");
  auto common = tensors.front().scalar_type();
  for (const Tensor& tensor : tensors.slice(1)) {
    common = c10::promoteTypes(common, tensor.scalar_type());
  }
  return common;
}

void zoo_require_rank(const Tensor& self, int64_t rank, c10::string_view name) {
  TORCH_CHECK(
      self.dim() == rank,
      "zoo_require_rank: ",
      name,
      " must have ",
      rank,
      " dimensions, got ",
      self.dim());
}

Tensor zoo_nonnegative(const Tensor& self) {
  return at::masked_select(self, self.ge(0));
}

// --- where Python sees them ---

Tensor zoo_shout(const Tensor& self) {
  return self + self;
}

Tensor zoo_nn_gate(const Tensor& self, int64_t dim) {
  const auto halves = self.chunk(2, dim);
  TORCH_CHECK(
      halves.size() == 2 && halves[0].sizes() == halves[1].sizes(),
      "zoo_nn_gate: the size of dimension ",
      dim,
      " must be even, got ",
      self.size(dim));
  return halves[0] * halves[1].sigmoid();
}

Tensor zoo_nn_scaled(const Tensor& self, const Scalar& factor) {
  return self * factor;
}

Tensor zoo_special_cube(const Tensor& self) {
  return self.pow(3);
}

Tensor& zoo_special_cube_out(const Tensor& self, Tensor& out) {
  return at::pow_out(out, self, 3);
}

Tensor zoo_linalg_trace(const Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "zoo_linalg_trace: self must be a matrix or a batch of them");
  return self.diagonal(0, -2, -1).sum(-1);
}

Tensor zoo_fft_energy(const Tensor& self, std::optional<int64_t> n, int64_t dim) {
  return at::fft_fft(self, n, dim).abs().pow(2).sum(dim);
}

Tensor hypot_zoo(const Tensor& self, const Tensor& other, const Scalar& scale) {
  return (self * self + other * other).sqrt() * scale;
}

std::tuple<Tensor, Tensor> aminmax_zoo(const Tensor& self, const Tensor& other) {
  const auto both = at::stack({self, other});
  return {both.amin(0), both.amax(0)};
}

// --- complex numbers ---

Tensor zoo_phase(const Tensor& self) {
  TORCH_CHECK(
      self.is_floating_point(),
      "zoo_phase: self must be real and floating, got ",
      self.scalar_type());
  return at::complex(self.cos(), self.sin());
}

Tensor zoo_abs2(const Tensor& self) {
  if (!self.is_complex()) {
    return self * self;
  }
  const auto re = at::real(self);
  const auto im = at::imag(self);
  return re * re + im * im;
}

// --- mutation ---

Tensor zoo_running_mean(const Tensor& self, Tensor& running, double momentum) {
  auto centred = self - running;
  running.mul_(1 - momentum).add_(self.mean(0), momentum);
  return centred;
}

} // namespace at::native
