// Operators that make or fill tensors, from nothing or from random numbers.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zoo_coin_native.h>
#include <ATen/ops/zoo_dither_native.h>
#include <ATen/ops/zoo_fill_ramp_native.h>
#include <ATen/ops/zoo_ramp_like_native.h>
#include <ATen/ops/zoo_ramp_native.h>
#endif

#include <mutex>

namespace at::native {

Tensor& zoo_fill_ramp_(Tensor& self, const Scalar& step) {
  const auto indices = at::arange(self.sym_numel(), self.options().dtype(kLong));
  return self.copy_(indices.mul(step).view_symint(self.sym_sizes()));
}

Tensor zoo_ramp_symint(
    c10::SymIntArrayRef size,
    const Scalar& step,
    std::optional<ScalarType> dtype,
    std::optional<Layout> layout,
    std::optional<Device> device,
    std::optional<bool> pin_memory) {
  auto result = at::empty_symint(size, dtype, layout, device, pin_memory, std::nullopt);
  return zoo_fill_ramp_(result, step);
}

Tensor zoo_ramp_like(
    const Tensor& self,
    const Scalar& step,
    std::optional<ScalarType> dtype,
    std::optional<Layout> layout,
    std::optional<Device> device,
    std::optional<bool> pin_memory,
    std::optional<MemoryFormat> memory_format) {
  auto result = at::empty_like(self, dtype, layout, device, pin_memory, memory_format);
  return zoo_fill_ramp_(result, step);
}

Tensor zoo_dither_cpu(const Tensor& self, double amount, std::optional<Generator> generator) {
  TORCH_CHECK(amount >= 0, "zoo_dither: amount must not be negative, got ", amount);
  const auto input = self.contiguous();
  auto result = at::empty_like(input);
  auto* gen =
      get_generator_or_default<CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator());
  // One draw an element, in order, while nobody else draws: the same seed gives the same numbers.
  std::lock_guard<std::mutex> lock(gen->mutex_);
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, input.scalar_type(), "zoo_dither_cpu", [&] {
    const auto* in = input.const_data_ptr<scalar_t>();
    auto* out = result.mutable_data_ptr<scalar_t>();
    at::uniform_real_distribution<double> noise(-amount, amount);
    for (int64_t i = 0; i < input.numel(); ++i) {
      out[i] = static_cast<scalar_t>(static_cast<double>(in[i]) + noise(gen));
    }
  });
  return result;
}

Tensor zoo_dither_meta(const Tensor& self, double amount, std::optional<Generator> /*generator*/) {
  TORCH_CHECK(amount >= 0, "zoo_dither: amount must not be negative, got ", amount);
  return at::empty_like(self, MemoryFormat::Contiguous);
}

Tensor zoo_coin_symint(
    c10::SymIntArrayRef size,
    double p,
    std::optional<Generator> generator,
    std::optional<ScalarType> dtype,
    std::optional<Layout> layout,
    std::optional<Device> device,
    std::optional<bool> pin_memory) {
  auto result = at::empty_symint(size, dtype, layout, device, pin_memory, std::nullopt);
  return result.bernoulli_(p, std::move(generator));
}

} // namespace at::native
