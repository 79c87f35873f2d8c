#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/ops/zoo_double_native.h>

namespace at::detail {
Tensor zoo_nobody_has_this(const Tensor& self);
}

namespace at::native {

Tensor zoo_double(const Tensor& self) {
  return at::detail::zoo_nobody_has_this(self);
}

} // namespace at::native
