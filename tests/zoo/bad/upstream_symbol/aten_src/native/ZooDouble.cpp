#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/Lerp.h>
#include <ATen/ops/zoo_double_native.h>

namespace at::native {

DEFINE_DISPATCH(lerp_kernel_scalar_weight);

Tensor zoo_double(const Tensor& self) {
  return self.mul(2);
}

} // namespace at::native
