"""Wrong uses of the added operators: a type checker must name each line that ends in `error`."""

import torch

x = torch.zeros(1, 2, 4, 4)
weight = torch.zeros(2, 1, 3, 3)

torch.gdh()  # error
torch.gdh(1)  # error
torch.gdh([x])  # error
torch.gdh(x, 1)  # error
x.gdh(1)  # error
x.gdh(dim=0)  # error
number: int = x.gdh()  # error
# An out= variant that the code generator wrote itself has no binding, as upstream's have none.
torch.gdh_copy(x, out=torch.zeros(0))  # error
torch.depthwise_conv2d_ext(x)  # error
torch.depthwise_conv2d_ext(x, "weight")  # error
torch.depthwise_conv2d_ext(x, weight, bias=0)  # error
torch.depthwise_conv2d_ext(x, weight, stride="same")  # error
torch.depthwise_conv2d_ext(x, weight, padding=1.5)  # error
torch.depthwise_conv2d_ext(x, weight, padding=(1, 0.5))  # error
torch.depthwise_conv2d_ext(x, weight, groups=2)  # error
x.depthwise_conv2d_ext(weight)  # error
x.gdh_copy()  # error
torch.nn.DepthwiseConv2dExt()  # error
torch.nn.DepthwiseConv2dExt(2, groups=2)  # error
torch.nn.DepthwiseConv2dExt.from_conv2d(x)  # error
torch.nn.LLTMCell(3)  # error
torch.nn.functional.depthwise_conv2d_ext(x, weight, padding=1.5)  # error
torch.nn.functional.lltm_cell(x, weight, x)  # error
torch.nn.utils.convert_depthwise(x)  # error
