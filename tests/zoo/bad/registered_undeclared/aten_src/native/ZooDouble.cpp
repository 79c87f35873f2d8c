#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/ops/zoo_double_native.h>
#include <torch/library.h>

namespace at::native {

Tensor zoo_double(const Tensor& self) {
  return self.mul(2);
}

namespace {

Tensor zoo_triple(const Tensor& self) {
  return self.mul(3);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("zoo_triple", zoo_triple);
}

} // namespace
} // namespace at::native
