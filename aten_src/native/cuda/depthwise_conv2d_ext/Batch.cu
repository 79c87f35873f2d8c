// Forward of depthwise_conv2d_ext on small planes with the batch as rows of matrices
// (Batch.cuh), and grad_input, which is the forward on grad_output with flipped taps.
#include <ATen/native/cuda/depthwise_conv2d_ext/Batch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

bool batch_pass(const ForwardPass& pass, const Params& p, bool flip) {
  const int side = batch_side(p, {&pass.dst, &pass.src, &pass.weight}, false);
  if (side == 0) {
    return false;
  }
  Batch b = batch_of(p);
  b.flip = flip;
  return with_batch_kernel(p, pass.src.type(), side, [&](auto scalar, auto fixed, auto reach) {
    using scalar_t = decltype(scalar);
    using Traits =
        BatchTraits<scalar_t, decltype(fixed)::value, decltype(reach)::value, true, false>;
    BatchOperands<scalar_t> operands{};
    operands.dst = pass.dst.mutable_data_ptr<scalar_t>();
    operands.src = pass.src.const_data_ptr<scalar_t>();
    operands.weight = pass.weight.const_data_ptr<scalar_t>();
    operands.bias = pointer_or_null<scalar_t>(pass.bias);
    launch_batch<Traits>(
        operands,
        b,
        batch_grid<Traits>(
            b, resident_blocks(batch_kernel<Traits>, Traits::kThreads, Traits::kShared)));
    return true;
  });
}

} // namespace

bool batch_forward(const ForwardPass& pass, const Params& p) {
  return batch_pass(pass, p, pass.grad_input);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
