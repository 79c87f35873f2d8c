// Any window, stride, dilation, number of outputs of a channel, type, memory order and size: what no other kernel
// takes. Forward and grad_input by a gather (Generic.cuh); Generic16Bit.cu has the commonest for 16 bits.
#include <ATen/native/cuda/depthwise_conv2d_ext/Generic.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

bool generic_forward(const ForwardPass& pass, const Params& p) {
  return with_any_type(pass.src.type(), [&](auto scalar) {
    using scalar_t = decltype(scalar);
    has_short_steps(p) ? gather<scalar_t, int32_t>(pass, p, pass.grad_input)
                       : gather<scalar_t, int64_t>(pass, p, pass.grad_input);
    return true;
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
