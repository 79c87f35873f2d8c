#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zoo_double_native.h>

namespace at::native {

Tensor zoo_double(const Tensor& self) {
  return at::add(self, self);
}

} // namespace at::native
