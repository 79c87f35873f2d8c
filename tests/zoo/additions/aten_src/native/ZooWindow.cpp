// A structured operator without TensorIterator, whose meta function precomputes for the kernel.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zoo_window_sum.h>
#include <ATen/ops/zoo_window_sum_backward_native.h>
#include <ATen/ops/zoo_window_sum_native.h>
#endif

namespace at::meta {

TORCH_PRECOMPUTE_META_FUNC(zoo_window_sum)(const Tensor& self, int64_t size, int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "zoo_window_sum: self must have at least one dimension");
  const auto wrapped = maybe_wrap_dim(dim, self.dim());
  const auto windows = self.size(wrapped) - size + 1;
  TORCH_CHECK(
      size >= 1 && windows >= 1,
      "zoo_window_sum: size must be between 1 and ",
      self.size(wrapped),
      ", got ",
      size);
  auto sizes = self.sizes().vec();
  sizes[wrapped] = windows;
  set_output_raw_strided(0, sizes, {}, self.options());
  return TORCH_PRECOMPUTE_STRUCT(zoo_window_sum)().set_dim(wrapped).set_windows(windows);
}

} // namespace at::meta

namespace at::native {

TORCH_IMPL_FUNC(zoo_window_sum_out_cpu)
(const Tensor& self, int64_t size, int64_t dim, int64_t windows, const Tensor& out) {
  // Rows along the last dimension, so that the loop is the same for every layout.
  const auto input = self.movedim(dim, -1).contiguous();
  auto shape = input.sizes().vec();
  const auto length = shape.back();
  shape.back() = windows;
  auto sums = at::empty(shape, input.options());
  const auto rows = windows == 0 ? 0 : sums.numel() / windows;
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      kHalf, kBFloat16, input.scalar_type(), "zoo_window_sum_cpu", [&] {
        using opmath_t = at::opmath_type<scalar_t>;
        const auto* in = input.const_data_ptr<scalar_t>();
        auto* sum = sums.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            for (int64_t start = 0; start < windows; ++start) {
              opmath_t total = 0;
              for (int64_t i = start; i < start + size; ++i) {
                total += static_cast<opmath_t>(in[row * length + i]);
              }
              sum[row * windows + start] = static_cast<scalar_t>(total);
            }
          }
        });
      });
  out.copy_(sums.movedim(-1, dim));
}

// A window sum over the gradient, padded with zeros on both sides.
Tensor zoo_window_sum_backward_symint(
    const Tensor& grad_output,
    c10::SymIntArrayRef input_sizes,
    int64_t size,
    int64_t dim) {
  const auto wrapped = maybe_wrap_dim(dim, static_cast<int64_t>(input_sizes.size()));
  auto sizes = input_sizes.vec();
  sizes[wrapped] = sizes[wrapped] + (size - 1);
  auto padded = at::zeros_symint(sizes, grad_output.options());
  padded.narrow_symint(wrapped, size - 1, grad_output.sym_size(wrapped)).copy_(grad_output);
  return at::zoo_window_sum(padded, size, wrapped);
}

} // namespace at::native
