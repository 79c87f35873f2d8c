// The weight's gradient and all gradients of depthwise_conv2d_ext by rows that stream through shared memory
// (Streams.cuh).
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/depthwise_conv2d_ext/StreamsMarch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

bool streams_backward(const BackwardPass& pass, const Params& p) {
  if (!pass.asks_weight()) {
    static const TensorBase none;
    return streams_grad_input({pass.grad_input, pass.grad_output, pass.weight, none}, p);
  }
  if (!streams_take(p) || pass.grad_output.numel() == 0 || !begins_a_run(pass.grad_input) ||
      !begins_a_run(pass.grad_output) || !begins_a_run(pass.input)) {
    return false;
  }
  const TensorBase none;
  const StreamPass stream{
      pass.grad_input,
      pass.grad_weight,
      pass.grad_bias,
      pass.grad_output,
      pass.input,
      pass.weight,
      none};
  return with_scalar_type(pass.input.scalar_type(), [&](auto scalar) {
    using scalar_t = decltype(scalar);
    const StreamPlan s = stream_plan(p, true);
    return pass.grad_input.defined() ? stream_pass<scalar_t, true, true>(stream, p, s)
                                     : stream_pass<scalar_t, false, true>(stream, p, s);
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
