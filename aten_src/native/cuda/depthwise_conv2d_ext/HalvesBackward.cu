// All gradients of depthwise_conv2d_ext in one pass over the tensors, or those of weight and bias, by halves
// of planes (Halves.cuh).
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/native/cuda/depthwise_conv2d_ext/Halves.cuh>
#include <cstdlib>

namespace at::native::depthwise_conv2d_ext_cuda {

namespace {

#if CUDART_VERSION >= 12000

template <typename Window, bool kData>
bool launch(const BackwardPass& pass, const Params& params, const UnitStridePass& p) {
  const TensorBase no_bias;
  return launch_halves<HalvesTraits<Window, 8, false, kData, true, 8, 1>>(pass, no_bias, params, p);
}

bool halves_pass(const BackwardPass& pass, const Params& params, const UnitStridePass& p) {
  // All gradients of 8 images of 240@28 k5 19 us by strips, 16 here; of 16 of 192@28 k7 34 in two passes, 32
  // here.
  constexpr int64_t kFew = 132 * 8 * 1024;
  constexpr int64_t kFewOfMany = 132 * 16 * 1024; // taps
  // The weight's gradient of 64 images of 192@28 k7 41 us by strips, 38 here, of 32 24 and 27; of 240@28 k5
  // of 128 images 65 and 56, of 64 37 and 33, of 32 22 and 22.
  constexpr int64_t kMany = 132 * 64 * 1024;
  const int64_t elements = pass.input.numel();
  return with_halves(params, {&pass.grad_input, &pass.grad_output, &pass.input}, [&](auto window) {
    using Fixed = decltype(window);
    if (pass.grad_input.defined()) {
      return elements > (Fixed::kHeight == 7 ? kFewOfMany : kFew) &&
          launch<Fixed, true>(pass, params, p);
    }
    return elements > kMany && launch<Fixed, false>(pass, params, p);
  });
}

#else

bool halves_pass(const BackwardPass&, const Params&, const UnitStridePass&) {
  return false;
}

#endif

} // namespace

bool halves_backward(const BackwardPass& pass, const Params& p) {
  return halves_pass(pass, p, unit_stride_grad_input(p));
}

} // namespace at::native::depthwise_conv2d_ext_cuda
