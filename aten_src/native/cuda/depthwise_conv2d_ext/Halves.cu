// Forward of depthwise_conv2d_ext by halves of planes (Halves.cuh), and grad_input at
// stride 1, which is the forward on grad_output with flipped taps.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Halves.cuh>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

template <typename Traits>
bool launch(const ForwardPass& pass, const Params& params, const UnitStridePass& p) {
  const TensorBase none;
  return launch_halves<Traits>(
      {pass.dst, none, none, pass.src, none, pass.weight}, pass.bias, params, p);
}

bool halves_pass(const ForwardPass& pass, const Params& params, const UnitStridePass& p) {
  // 7 x 7 of 16 images of 192@28 19 us by strips, 14 here, of 8 of 96@56 19 and 14; fewer are for patches.
  constexpr int64_t kSome = 132 * 16 * 1024;
  // 5 x 5: 96@56 of 128 images 93 us by flat strips, 86 here; 240@28 57 and 60.
  constexpr int64_t kMany = 132 * 112 * 1024;
  return with_halves(params, {&pass.dst, &pass.src}, [&](auto window) {
    using Fixed = decltype(window);
    const int64_t elements = pass.dst.numel();
    if constexpr (Fixed::kHeight == 5) {
      return elements > kMany &&
          launch<HalvesTraits<Fixed, 16, false, true, false, 8, 1>>(pass, params, p);
    } else {
      return elements >= kSome &&
          (launch<HalvesTraits<Fixed, 8, false, true, false, 4, 3>>(pass, params, p) ||
           launch<HalvesTraits<Fixed, 16, true, true, false, 12, 1>>(pass, params, p));
    }
  });
}

#else

bool halves_pass(const ForwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

} // namespace

bool halves_forward(const ForwardPass& pass, const Params& p) {
  return halves_pass(pass, p, unit_stride_forward(p));
}

bool halves_grad_input(const ForwardPass& pass, const Params& p) {
  return halves_pass(pass, p, unit_stride_grad_input(p));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
