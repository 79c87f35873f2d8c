#include <ATen/core/Tensor.h>

namespace at::native {

Tensor bad_fine(const Tensor& self) {
  return self;
}

std::string bad_text(const Tensor& self) {
  return self.toString();
}

} // namespace at::native
