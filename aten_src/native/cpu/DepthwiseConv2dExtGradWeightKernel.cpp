// depthwise_conv2d_ext's gradients of weight and bias on CPUs: a file of its own, so that neither takes long to compile.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cpu/depthwise_conv2d_ext/Choice.h>

namespace at::native {
inline namespace CPU_CAPABILITY {

void run_grad_weight(const GradWeightPass& pass) {
  with_type(pass.grad_output.scalar_type(), [&](auto type) {
    using scalar_t = decltype(type);
    const GradWeightCall<scalar_t> call{
        pass.params,
        pass.grad_weight.defined() ? pass.grad_weight.mutable_data_ptr<scalar_t>() : nullptr,
        pass.grad_bias.defined() ? pass.grad_bias.mutable_data_ptr<scalar_t>() : nullptr,
        pass.grad_output.const_data_ptr<scalar_t>(),
        pass.input.const_data_ptr<scalar_t>()};
    run_first(kGradWeightPasses<scalar_t>, call, pass.params);
  });
}

} // namespace CPU_CAPABILITY
} // namespace at::native
