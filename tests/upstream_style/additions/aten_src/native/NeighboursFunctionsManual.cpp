// Helpers of one's own that call those of upstream's FunctionsManual.h.
#include <ATen/native/NeighboursFunctionsManual.h>

#include <ATen/ATen.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <torch/csrc/autograd/FunctionsManual.h>

namespace torch::autograd::generated::details {

Tensor extent_backward(const Tensor& grad, const Tensor& self, IntArrayRef dim, bool keepdim) {
  const auto kept = restore_reduced_dims(grad, dim, keepdim);
  const auto share = [&](const Tensor& extreme) {
    return scale_grad_by_count(kept, self == extreme, dim);
  };
  return share(at::amax(self, dim, /*keepdim=*/true)) -
      share(at::amin(self, dim, /*keepdim=*/true));
}

Tensor cat_scaled_jvp(at::TensorList tensors, int64_t dim, const Scalar& alpha) {
  const auto tangent = cat_jvp(tensors, dim);
  return tangent.defined() ? maybe_multiply(tangent, alpha) : tangent;
}

Scalar rms_scale(const Tensor& self, at::OptionalIntArrayRef dim) {
  const auto mask = at::dim_list_to_bitset(dim, self.dim());
  c10::SymInt count = 1;
  for (int64_t i = 0; i < self.dim(); ++i) {
    count = mask[i] ? count * self.sym_size(i) : count;
  }
  return (c10::SymFloat(1.0) / c10::SymFloat(count)).sqrt();
}

Tensor rms_backward(
    const Tensor& grad,
    const Tensor& self,
    const Tensor& result,
    at::OptionalIntArrayRef dim,
    bool keepdim) {
  const auto scale = rms_scale(self, dim);
  return linalg_vector_norm_backward(grad * scale, self, 2, result / scale, dim, keepdim);
}

} // namespace torch::autograd::generated::details
