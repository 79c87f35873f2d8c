// The gather of Generic.cuh for types of 16 bits, of tensors whose offsets fit 32: an object of its own for nvcc's time.
#include <ATen/native/cuda/depthwise_conv2d_ext/Generic.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

template void gather<c10::Half, int32_t>(const ForwardPass&, const Params&, bool);
template void gather<c10::BFloat16, int32_t>(const ForwardPass&, const Params&, bool);

} // namespace at::native::depthwise_conv2d_ext_cuda
