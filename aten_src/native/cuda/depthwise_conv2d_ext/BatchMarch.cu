// Forward of depthwise_conv2d_ext with the batch as rows of matrices, marching down the rows
// (BatchMarch.cuh), and grad_input, which is the forward on grad_output with flipped taps.
#include <ATen/native/cuda/depthwise_conv2d_ext/BatchMarch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

bool batch_march_pass(const ForwardPass& pass, const Params& p, bool flip) {
  BatchMarch b{};
  if ((flip && p.multiplier != 1) ||
      !plan_batch_march(b, p, {&pass.dst, &pass.src, &pass.weight}, true, false)) {
    return false;
  }
  b.flip = flip;
  with_batch_march_kernel(p, pass.src.type(), [&](auto scalar, auto width, auto reach, auto left) {
    using scalar_t = decltype(scalar);
    BatchOperands<scalar_t> operands{};
    operands.dst = pass.dst.mutable_data_ptr<scalar_t>();
    operands.src = pass.src.const_data_ptr<scalar_t>();
    operands.weight = pass.weight.const_data_ptr<scalar_t>();
    operands.bias = pointer_or_null<scalar_t>(pass.bias);
    launch_batch_march<BatchMarchTraits<
        scalar_t,
        decltype(width)::value,
        decltype(reach)::value,
        decltype(left)::value,
        true,
        false>>(operands, b);
  });
  return true;
}

} // namespace

bool batch_march_forward(const ForwardPass& pass, const Params& p) {
  return batch_march_pass(pass, p, pass.grad_input);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
