#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/NoSuchHeader.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zoo_double_native.h>

namespace at::native {

Tensor zoo_double(const Tensor& self) {
  return self + self;
}

} // namespace at::native
