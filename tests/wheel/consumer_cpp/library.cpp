// What somebody writes against the wheel with torch.utils.cpp_extension.load: an operator of their
// own library that calls ours, with the headers of single operators and no Python.
#include <ATen/core/Tensor.h>
#include <ATen/ops/depthwise_conv2d_ext.h>
#include <ATen/ops/gdh.h>
#include <torch/library.h>

namespace {

at::Tensor flat_convolution(const at::Tensor& x, const at::Tensor& weight) {
  return at::gdh(at::depthwise_conv2d_ext(x, weight));
}

} // namespace

TORCH_LIBRARY(consumer, library) {
  library.def("flat_convolution(Tensor x, Tensor weight) -> Tensor");
  library.impl("flat_convolution", c10::DispatchKey::CompositeImplicitAutograd, flat_convolution);
}
