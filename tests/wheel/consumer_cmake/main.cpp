// A program without Python that uses the added operators through find_package(Torch).
#include <torch/torch.h>

#include <iostream>

namespace {

bool check(const char* what, bool holds) {
  std::cout << (holds ? "holds: " : "FAILS: ") << what << '\n';
  return holds;
}

} // namespace

int main() {
  bool all = true;
  const auto strided = torch::arange(12.0).view({3, 4}).t();
  all &= check("at::gdh", at::gdh(strided).equal(strided.reshape({-1})));
  all &= check("Tensor::gdh", strided.gdh().equal(strided.reshape({-1})));
  all &= check("torch::gdh_copy", torch::gdh_copy(strided).equal(strided.reshape({-1})));

  const auto x = torch::linspace(-2, 2, 50).view({1, 2, 5, 5}).requires_grad_();
  const auto weight = torch::linspace(-1, 1, 18).view({2, 1, 3, 3}).requires_grad_();
  const auto bias = torch::ones({2}).requires_grad_();
  const std::vector<torch::Tensor> inputs = {x, weight, bias};
  const auto ours = torch::depthwise_conv2d_ext(x, weight, bias, /*stride=*/2, /*padding=*/1);
  const auto theirs = torch::conv2d(
      x, weight, bias, /*stride=*/2, /*padding=*/1, /*dilation=*/1, /*groups=*/2);
  all &= check("forward", torch::allclose(ours, theirs, 1e-5, 1e-5));

  const auto node = ours.grad_fn() ? ours.grad_fn()->name() : "none";
  all &= check("autograd node", node == "DepthwiseConv2DExtBackward0");

  ours.square().sum().backward({}, /*retain_graph=*/true);
  const auto expected = torch::autograd::grad({theirs.square().sum()}, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& grad = inputs[i].grad();
    all &= check("backward", grad.defined() && torch::allclose(grad, expected[i], 1e-4, 1e-4));
  }
  std::cout << "torch " << TORCH_VERSION << '\n';
  return all ? 0 : 1;
}
