// Forward of depthwise_conv2d_ext by rows that stream through shared memory, and grad_input
// (Streams.cuh).
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cuda/depthwise_conv2d_ext/StreamsMarch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

bool pass_of(const ForwardPass& pass, const Params& p, bool grad) {
  if (!streams_take(p) || pass.dst.numel() == 0 || !begins_a_run(pass.dst) ||
      !begins_a_run(pass.src)) {
    return false;
  }
  const TensorBase none;
  const StreamPass stream{pass.dst, none, none, pass.src, none, pass.weight, pass.bias};
  return with_scalar_type(pass.src.scalar_type(), [&](auto scalar) {
    return stream_pass<decltype(scalar), true, false>(stream, p, stream_plan(p, grad));
  });
}

} // namespace

bool streams_forward(const ForwardPass& pass, const Params& p) {
  return pass_of(pass, p, false);
}

bool streams_grad_input(const ForwardPass& pass, const Params& p) {
  return pass_of(pass, p, true);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
