// One step up; the test edits the step.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/ops/wheel_test_step_native.h>

namespace at::native {

namespace {
constexpr int64_t kStep = 1;
} // namespace

Tensor wheel_test_step(const Tensor& self) {
  return self.add(kStep);
}

} // namespace at::native
