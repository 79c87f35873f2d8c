// All gradients of depthwise_conv2d_ext on planes of 7 x 7 and 14 x 14 in one pass over the tensors, or
// those of weight and bias, by flat runs of planes (FlatPlanes.cuh).
#include <ATen/native/cuda/depthwise_conv2d_ext/FlatPlanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

template <typename Traits>
bool launch(const BackwardPass& pass, const Params& p) {
  using scalar_t = typename Traits::scalar_t;
  FlatPlan plan;
  if (!plan_flat_planes<Traits>(plan, p, true)) {
    return false;
  }
  const Operand partial = empty_partial(plan.parts, p);
  launch_kernel(
      flat_planes_kernel<Traits>,
      plan.blocks,
      dim3(kWarpSize, Traits::kWarps),
      Traits::kShared,
      mutable_pointer_or_null<scalar_t>(pass.grad_input),
      partial.mutable_data_ptr<float>(),
      pass.grad_output.const_data_ptr<scalar_t>(),
      pass.input.const_data_ptr<scalar_t>(),
      pass.weight.const_data_ptr<scalar_t>(),
      nullptr,
      plan.planes);
  add_partials(pass.grad_weight, pass.grad_bias, partial, plan.parts, p);
  return true;
}

} // namespace

bool flat_planes_backward(const BackwardPass& pass, const Params& p) {
  const Operand& result = pass.grad_input.defined() ? pass.grad_input : pass.input;
  if (!flat_planes_take(p, {&pass.grad_output, &pass.input, &result})) {
    return false;
  }
  const auto with_traits = [&](auto traits) {
    return launch<decltype(traits)>(pass, p);
  };
  if (pass.grad_input.defined()) {
    return with_flat_planes<true, true>(p, pass.input.type(), with_traits);
  }
  return with_flat_planes<false, true>(p, pass.input.type(), with_traits);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
