// depthwise_conv2d_ext's gradients of weight and bias on CPUs, and all of double, which has no loop with other
// types in common: a file of its own so that it is compiled beside DepthwiseConv2dExtKernel.cpp.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cpu/depthwise_conv2d_ext/Choice.h>

namespace at::native {
inline namespace CPU_CAPABILITY {

template void run_pass<double>(const Pass&);
template void run_grad_weight<double>(const GradWeightPass&);
template void run_grad_weight<float>(const GradWeightPass&);
template void run_grad_weight<c10::Half>(const GradWeightPass&);
template void run_grad_weight<c10::BFloat16>(const GradWeightPass&);

} // namespace CPU_CAPABILITY
} // namespace at::native
