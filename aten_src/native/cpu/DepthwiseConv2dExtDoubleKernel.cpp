// The CPU kernels of depthwise_conv2d_ext for double, which have no loop with those of other types in common:
// a file of its own so that it is compiled beside them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cpu/depthwise_conv2d_ext/Choice.h>

namespace at::native {
inline namespace CPU_CAPABILITY {

template void run_pass<double>(const Pass&);
template void run_grad_weight<double>(const GradWeightPass&);

} // namespace CPU_CAPABILITY
} // namespace at::native
