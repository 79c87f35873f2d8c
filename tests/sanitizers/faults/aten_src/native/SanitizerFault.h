// The faults that prove that the sanitizers see, one function each.
#pragma once

#include <ATen/native/DispatchStub.h>
#include <string>

namespace at {
class TensorBase;
}

namespace at::native {

// Commits a fault on a contiguous float tensor; its result is only there so that nothing is optimised
// away. False where the kernels have no fault of that name.
using sanitizer_fault_fn = bool (*)(const TensorBase& self, const std::string& fault);

DECLARE_DISPATCH(sanitizer_fault_fn, sanitizer_fault_stub)

} // namespace at::native
