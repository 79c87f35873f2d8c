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

namespace {

// So many have their channels alone: another launch to add partials costs more than is won. Fewer are
// multiplied.
inline int64_t wanted_blocks() {
  return multiprocessors() * 2;
}

template <typename Traits>
void launch(const BackwardPass& pass, const Params& p) {
  using scalar_t = typename Traits::scalar_t;
  Batch b = batch_of(p);
  b.flip = true; // of grad_input
  const int64_t groups = divide_up(b.channels, Traits::kChannels);
  const dim3 grid =
      batch_grid<Traits>(b, 2 * groups >= multiprocessors() ? groups : wanted_blocks());
  BatchOperands<scalar_t> operands{};
  operands.dst = mutable_pointer_or_null<scalar_t>(pass.grad_input);
  operands.src = pass.grad_output.const_data_ptr<scalar_t>();
  operands.weight = pass.weight.const_data_ptr<scalar_t>();
  operands.input = pass.input.const_data_ptr<scalar_t>();
  Operand partial;
  if (grid.y > 1) {
    partial = empty_partial(grid.y, p);
    operands.partial = partial.mutable_data_ptr<float>();
  } else {
    operands.grad_weight = mutable_pointer_or_null<scalar_t>(pass.grad_weight);
    operands.grad_bias = mutable_pointer_or_null<scalar_t>(pass.grad_bias);
  }
  launch_batch<Traits>(operands, b, grid);
  if (operands.partial) {
    add_partials(pass.grad_weight, pass.grad_bias, partial, grid.y, p);
  }
}

} // namespace

bool batch_backward(const BackwardPass& pass, const Params& p) {
  const int side = batch_side(p, {&pass.grad_output, &pass.input, &pass.weight}, true);
  if (side == 0 || (pass.grad_input.defined() && batch_side(p, {&pass.grad_input}, true) == 0)) {
    return false;
  }
  return with_batch_kernel(p, pass.input.type(), side, [&](auto scalar, auto fixed, auto reach) {
    using scalar_t = decltype(scalar);
    constexpr int kSide = decltype(fixed)::value;
    constexpr int kReach = decltype(reach)::value;
    if constexpr (kSide > 2 * kOctet) {
      return false; // batch_side() has said so
    } else if (!pass.grad_input.defined()) {
      launch<BatchTraits<scalar_t, kSide, kReach, false, true>>(pass, p);
      return true;
    } else if constexpr (!BatchTraits<scalar_t, kSide, kReach, true, true>::kLarge) {
      launch<BatchTraits<scalar_t, kSide, kReach, true, true>>(pass, p);
      return true;
    } else {
      return false; // the matrices of both would not fit into the registers
    }
  });
}

} // namespace at::native::depthwise_conv2d_ext_cuda
