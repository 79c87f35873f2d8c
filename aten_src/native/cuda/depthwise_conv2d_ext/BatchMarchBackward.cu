// grad_weight and grad_bias of depthwise_conv2d_ext with the batch as the inner dimension of matrices,
// marching down the rows (BatchMarch.cuh), and grad_input in the same pass where it is
// wanted.
//
// A block writes one partial of its 16 streams, and add_partials() adds those in order.
#include <ATen/native/cuda/depthwise_conv2d_ext/BatchMarch.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

bool batch_march_backward(const BackwardPass& pass, const Params& p) {
  BatchMarch b{};
  const bool data = pass.grad_input.defined();
  // A wide window's sums leave no registers for grad_input.
  const bool together = p.multiplier == 1 && p.padding_width <= kOctet / 2 &&
      is_aligned(data ? pass.grad_input.const_data_ptr() : nullptr, kBlockBytes);
  if ((data && !together) ||
      !plan_batch_march(b, p, {&pass.grad_output, &pass.input, &pass.weight}, data, true)) {
    return false;
  }
  b.flip = true; // of grad_input
  const Operand partial = empty_partial(b.tiles, p);
  with_batch_march_kernel(
      p, pass.input.type(), [&](auto scalar, auto width, auto reach, auto left) {
        using scalar_t = decltype(scalar);
        constexpr int kWidth = decltype(width)::value;
        constexpr int kReach = decltype(reach)::value;
        constexpr int kLeft = decltype(left)::value;
        BatchOperands<scalar_t> operands{};
        operands.dst = mutable_pointer_or_null<scalar_t>(pass.grad_input);
        operands.src = pass.grad_output.const_data_ptr<scalar_t>();
        operands.weight = pass.weight.const_data_ptr<scalar_t>();
        operands.input = pass.input.const_data_ptr<scalar_t>();
        operands.partial = partial.mutable_data_ptr<float>();
        if (!data) {
          launch_batch_march<BatchMarchTraits<scalar_t, kWidth, kReach, kLeft, false, true>>(
              operands, b);
        } else if constexpr (kLeft <= kOctet) {
          launch_batch_march<BatchMarchTraits<scalar_t, kWidth, kReach, kLeft, true, true>>(
              operands, b);
        }
      });
  add_partials(pass.grad_weight, pass.grad_bias, partial, b.tiles, p);
  return true;
}

} // namespace at::native::depthwise_conv2d_ext_cuda
