// Autocast of the additions, on CPU and CUDA.
//
// depthwise_conv2d_ext and lltm_cell run in the lower precision, as conv2d and upstream's cells do:
// their floating arguments (double excepted) are cast, recorded by autograd, so that gradients come
// back in the arguments' dtypes. The casts of leaf parameters are kept until autocast ends.
//
// The others need no entry. sigmoid_ext runs in the dtype that it is given, as sigmoid does.
// axpy_ext promotes its operands to the wider type by itself, as add does; upstream's list of
// promoting operators is for those that do not. Backward operators get what the forward was cast to.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace at::autocast {

// As ATen/autocast_mode.h declares them, which includes the headers of all of ATen's operators: with its
// KERNEL_CPU and KERNEL_CUDA this file took 19 s and 940 MB to be read, and is compiled in 14 and 590.
TORCH_API ScalarType get_autocast_dtype(DeviceType device_type);
TORCH_API Tensor cached_cast(ScalarType to_type, const Tensor& arg, DeviceType device_type);

namespace {

// Any operator whose tensors are arguments of their own.
template <DispatchKey kKey, DeviceType kDevice>
void in_lower_precision(const OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const ScalarType dtype = get_autocast_dtype(kDevice);
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    IValue& argument = (*stack)[i];
    if (argument.isTensor()) {
      argument = cached_cast(dtype, argument.toTensor(), kDevice);
    }
  }
  op.callBoxed(stack);
}

template <DispatchKey kKey, DeviceType kDevice>
void register_all(torch::Library& m) {
  for (const char* const name : {"depthwise_conv2d_ext", "lltm_cell"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_lower_precision<kKey, kDevice>>());
  }
}

TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
  register_all<DispatchKey::AutocastCPU, kCPU>(m);
}

// The key has no device in its name and is CUDA's.
TORCH_LIBRARY_IMPL(aten, Autocast, m) {
  register_all<DispatchKey::AutocastCUDA, kCUDA>(m);
}

} // namespace

} // namespace at::autocast
