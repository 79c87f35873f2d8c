#include <ATen/core/Tensor.h>

namespace at::native {

Tensor bad_ok(const Tensor& self) {
  return self;
}

Tensor bad_bools(const Tensor& self, ArrayRef<bool> masks) {
  return self;
}

} // namespace at::native
