#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

namespace at::native {

Tensor zoo_double(const std::optional<Tensor>& self) {
  return self->mul(2);
}

} // namespace at::native
