#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/Sorting.h>
#include <ATen/ops/zoo_double_native.h>

namespace at::native {

Tensor zoo_double(const Tensor& self) {
  _fill_indices(self, 0);
  return self + self;
}

} // namespace at::native
