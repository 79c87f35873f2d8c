// What somebody writes against the wheel with torch.utils.cpp_extension.load_inline, which puts
// #include <torch/extension.h> before it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DepthwiseConv2dExt.h>

at::Tensor gdh_function(const at::Tensor& x) {
  return at::gdh(x);
}

torch::Tensor gdh_method(const torch::Tensor& x) {
  return x.gdh();
}

torch::Tensor gdh_copy_out(const torch::Tensor& x) {
  auto out = torch::empty({0}, x.options());
  at::gdh_copy_out(out, x);
  return out;
}

torch::Tensor convolution(const torch::Tensor& x, const torch::Tensor& weight) {
  return torch::depthwise_conv2d_ext(x, weight, /*bias=*/{}, /*stride=*/1, /*padding=*/1);
}

// With symbolic sizes' own entry, as code written for torch.compile calls it.
torch::Tensor convolution_symint(const torch::Tensor& x, const torch::Tensor& weight) {
  const std::array<c10::SymInt, 2> one = {1, 1};
  return at::depthwise_conv2d_ext_symint(x, weight, {}, one, one, one);
}

std::string node_of(const torch::Tensor& x) {
  return x.grad_fn() ? x.grad_fn()->name() : "none";
}

torch::Tensor by_dispatcher(const torch::Tensor& x) {
  static const auto found = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("aten::gdh", "")
                                .typed<at::Tensor(const at::Tensor&)>();
  return found.call(x);
}

std::string schema_by_dispatcher(const std::string& name, const std::string& overload) {
  std::ostringstream text;
  text << c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()).schema();
  return text.str();
}

// A struct of the additions' own header, which the wheel has to carry.
int64_t output_channels(int64_t channels, int64_t multiplier) {
  at::native::DepthwiseConv2dExtParams params{};
  params.channels = channels;
  params.multiplier = multiplier;
  return params.output_channels();
}
