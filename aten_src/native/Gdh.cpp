// gdh: the elements of a tensor in C order as one dimension, without a copy where strides allow.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <c10/util/Logging.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#else
#include <ATen/ops/gdh_copy_native.h>
#include <ATen/ops/gdh_copy_ops.h>
#include <ATen/ops/gdh_native.h>
#endif

namespace at::native {

namespace {

// INFO's number, which glog and c10's own logger share but name in different namespaces.
constexpr int kLogLevelInfo = 0;

// Out of line, so that a silent call pays for one comparison only.
C10_NOINLINE void log_call(const Tensor& self) {
  LOG(INFO) << " gdh tensor shape " << self.dim();
}

// The conditions under which torch.ravel works, checked here so that the message names gdh.
void check_layout(const char* op, const char* argument, const Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == kStrided && !tensor.is_nested(),
      op,
      "(): expected ",
      argument,
      " to be a dense tensor of strided layout, but got ",
      tensor.is_nested() ? "a nested tensor" : "layout ",
      tensor.is_nested() ? "" : c10::str(tensor.layout()));
}

} // namespace

// LOG builds its message before it looks at the level, which costs more than the rest of the call;
// therefore the level is compared first.
Tensor gdh(const Tensor& self) {
  if (C10_UNLIKELY(FLAGS_caffe2_log_level <= kLogLevelInfo)) {
    log_call(self);
  }
  check_layout("gdh", "self", self);
  if (self.is_contiguous()) {
    return self.view(-1);
  }
  return at::_ops::gdh_copy::call(self);
}

// Always memory of its own, also for a contiguous input: the schema promises a fresh result.
// as_strided, because the kernels of view, unlike its own, do not take symbolic sizes, and a fake
// tensor has them here.
Tensor gdh_copy(const Tensor& input) {
  check_layout("gdh_copy", "input", input);
  const auto copy = input.clone(at::MemoryFormat::Contiguous);
  return copy.as_strided_symint({copy.sym_numel()}, {1});
}

} // namespace at::native
