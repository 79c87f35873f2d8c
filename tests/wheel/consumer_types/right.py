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

# Modules and functionals that patches bring.
module = torch.nn.DepthwiseConv2dExt(2, (3, 5), padding="same", multiplier=2, bias=True)
assert_type(module.multiplier, int)
assert_type(
    torch.nn.DepthwiseConv2dExt.from_conv2d(torch.nn.Conv2d(2, 2, 3, groups=2)),
    torch.nn.DepthwiseConv2dExt,
)
assert_type(torch.nn.utils.convert_depthwise(module), torch.nn.Module)
assert_type(torch.nn.functional.depthwise_conv2d_ext(x, weight, padding="same"), torch.Tensor)
cell = torch.nn.LLTMCell(3, 4)
assert_type(cell.hidden_size, int)
assert_type(
    torch.nn.functional.lltm_cell(x, cell.weight, cell.bias, x, x),
    tuple[torch.Tensor, torch.Tensor],
)
