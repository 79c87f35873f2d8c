"""Right uses of the added operators: a strict type checker must have nothing to say."""

import torch
from typing_extensions import assert_type

x = torch.zeros(1, 2, 4, 4)
weight = torch.zeros(2, 1, 3, 3)

assert_type(torch.gdh(x), torch.Tensor)
assert_type(torch.gdh(input=x), torch.Tensor)
assert_type(x.gdh(), torch.Tensor)
assert_type(torch.gdh_copy(x), torch.Tensor)
assert_type(torch.depthwise_conv2d_ext(x, weight), torch.Tensor)
assert_type(torch.depthwise_conv2d_ext(x, weight, None, 1, 0, 1), torch.Tensor)
assert_type(torch.depthwise_conv2d_ext(x, weight, padding=1), torch.Tensor)
assert_type(
    torch.depthwise_conv2d_ext(
        x, weight, bias=torch.zeros(2), stride=(1, 2), padding=[0, 1], dilation=torch.Size([1, 1])
    ),
    torch.Tensor,
)
assert_type(torch.nn.Parameter(x).gdh(), torch.Tensor)
