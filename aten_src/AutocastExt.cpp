// Autocast of the additions, on CPU and CUDA.
//
// depthwise_conv2d_ext and lltm_cell run in the lower precision, as conv2d and upstream's cells do:
// their floating arguments (double excepted) are cast, recorded by autograd, so that gradients come
// back in the arguments' dtypes. The casts of leaf parameters are kept until autocast ends.
//
// The others need no entry. sigmoid_ext runs in the dtype that it is given, as sigmoid does.
// axpy_ext promotes its operands to the wider type by itself, as add does; upstream's list of
// promoting operators is for those that do not. Backward operators get what the forward was cast to.
#include <ATen/autocast_mode.h>

namespace at::autocast {

namespace {

TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
  KERNEL_CPU(depthwise_conv2d_ext, lower_precision_fp);
  KERNEL_CPU(lltm_cell, lower_precision_fp);
}

// The key has no device in its name and is CUDA's.
TORCH_LIBRARY_IMPL(aten, Autocast, m) {
  KERNEL_CUDA(depthwise_conv2d_ext, lower_precision_fp);
  KERNEL_CUDA(lltm_cell, lower_precision_fp);
}

} // namespace

} // namespace at::autocast
