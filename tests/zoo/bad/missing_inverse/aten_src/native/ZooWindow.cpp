#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/ops/zoo_window_native.h>

namespace at::native {

Tensor zoo_window(const Tensor& self) {
  return self.narrow(0, 0, 1);
}

} // namespace at::native
