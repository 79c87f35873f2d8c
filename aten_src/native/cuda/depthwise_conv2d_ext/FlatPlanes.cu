// Forward of depthwise_conv2d_ext on planes of 7 x 7 and 14 x 14 by flat runs of them
// (FlatPlanes.cuh), and grad_input, which is the forward on grad_output with flipped taps.
#include <ATen/native/cuda/depthwise_conv2d_ext/FlatPlanes.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

bool flat_planes_pass(const ForwardPass& pass, const Params& p, bool flip) {
  if (!flat_planes_take(p, {&pass.dst, &pass.src})) {
    return false;
  }
  return with_flat_planes<true, false>(p, pass.src.type(), [&](auto traits) {
    using Traits = decltype(traits);
    using scalar_t = typename Traits::scalar_t;
    FlatPlan plan;
    if (!plan_flat_planes<Traits>(plan, p, flip)) {
      return false;
    }
    launch_kernel(
        flat_planes_kernel<Traits>,
        plan.blocks,
        dim3(kWarpSize, Traits::kWarps),
        Traits::kShared,
        pass.dst.mutable_data_ptr<scalar_t>(),
        nullptr,
        pass.src.const_data_ptr<scalar_t>(),
        nullptr,
        pass.weight.const_data_ptr<scalar_t>(),
        pointer_or_null<scalar_t>(pass.bias),
        plan.planes);
    return true;
  });
}

} // namespace

bool flat_planes_forward(const ForwardPass& pass, const Params& p) {
  return flat_planes_pass(pass, p, pass.grad_input);
}

} // namespace at::native::depthwise_conv2d_ext_cuda
