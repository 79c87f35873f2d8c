// sanitizer_fault: the faults that need a tensor of their own, and the way to those of the kernels.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/SanitizerFault.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/empty.h>
#include <ATen/ops/sanitizer_fault_native.h>
#endif

namespace at::native {

DEFINE_DISPATCH(sanitizer_fault_stub);

namespace {

void use_a_freed_tensor(const Tensor& self) {
  Tensor scratch = at::empty({self.numel()}, self.options());
  volatile float* values = scratch.mutable_data_ptr<float>();
  scratch.reset();
  values[1] = 1;
}

} // namespace

Tensor sanitizer_fault(const Tensor& self, c10::string_view fault) {
  const std::string name(fault.data(), fault.size());
  if (name == "freed tensor") {
    use_a_freed_tensor(self);
    return self.clone();
  }
  TORCH_CHECK(
      sanitizer_fault_stub(kCPU, self, name), "sanitizer_fault(): there is no fault '", name, "'");
  return self.clone();
}

} // namespace at::native
