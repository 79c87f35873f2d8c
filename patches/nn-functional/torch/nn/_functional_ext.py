# mypy: allow-untyped-defs
"""Functionals of torch.nn.functional that come with additions to ATen."""

import torch
from torch import Tensor
from torch._jit_internal import BroadcastingList2
from torch.nn.modules.utils import _pair
from torch.overrides import handle_torch_function, has_torch_function_variadic

__all__ = ["depthwise_conv2d_ext", "lltm_cell"]


def depthwise_conv2d_ext(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: BroadcastingList2[int] = 1,
    padding: BroadcastingList2[int] = 0,
    dilation: BroadcastingList2[int] = 1,
) -> Tensor:
    r"""
    Apply a depthwise 2D convolution: each channel of the input has filters of its own.

    Equal to :func:`conv2d` with ``groups`` set to the number of input channels.
    See :class:`~torch.nn.DepthwiseConv2dExt` for details and output shape.

    Args:
        input: input tensor of shape :math:`(N, C, H, W)` or :math:`(C, H, W)`
        weight: filters of shape :math:`(C \cdot m, 1, kH, kW)` with an integer multiplier
            :math:`m \ge 1`
        bias: optional bias of shape :math:`(C \cdot m)`. Default: ``None``
        stride: a number or a tuple `(sH, sW)`. Default: 1
        padding: zeros on both sides of the input: a number, a tuple `(padH, padW)`, or a string
            {'valid', 'same'}; ``'same'`` keeps the input's size and takes no stride but 1. In
            TorchScript only numbers. Default: 0
        dilation: the spacing between the filter's elements, a number or a tuple `(dH, dW)`.
            Default: 1

    Examples::

        >>> input = torch.randn(20, 16, 50, 100)
        >>> weight = torch.randn(32, 1, 3, 5)
        >>> F.depthwise_conv2d_ext(input, weight, padding=(1, 2)).shape
        torch.Size([20, 32, 50, 100])
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            depthwise_conv2d_ext,
            (input, weight, bias),
            input,
            weight,
            bias=bias,
            stride=stride,
            padding=padding,
            dilation=dilation,
        )
    if not torch.jit.is_scripting() and isinstance(padding, str):
        input, padding = _string_padding(input, weight, stride, padding, dilation)
    return torch.depthwise_conv2d_ext(input, weight, bias, stride, padding, dilation)


def _string_padding(input, weight, stride, padding, dilation):
    """The input, perhaps with one more row or column of zeros, and the numbers for a string.

    Where 'same' needs an odd number, the odd one goes to the bottom or to the right, as conv2d has
    it.
    """
    if padding == "valid":
        return input, (0, 0)
    if padding != "same":
        raise RuntimeError(
            "depthwise_conv2d_ext(): expected padding to be 'same', 'valid' or numbers, but got "
            f"'{padding}'"
        )
    if any(side != 1 for side in _pair(stride)):
        raise RuntimeError(
            f"depthwise_conv2d_ext(): padding='same' needs a stride of 1, but got {stride}"
        )
    height, width = (d * (k - 1) for d, k in zip(_pair(dilation), weight.shape[2:], strict=True))
    if height % 2 or width % 2:
        input = torch.nn.functional.pad(input, (0, width % 2, 0, height % 2))
    return input, (height // 2, width // 2)


def lltm_cell(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    old_h: Tensor,
    old_cell: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""
    Apply one step of a long-long-term-memory cell and return `(new_h, new_cell)`.

    See :class:`~torch.nn.LLTMCell` for the formulas, and :func:`torch.lltm_cell`, which returns the
    gates too.

    Args:
        input: features of shape :math:`(B, F)`
        weight: weights of shape :math:`(3S, F + S)`: input gate, output gate, candidate; the
            columns of the hidden state come before those of the input
        bias: bias of shape :math:`(3S)`
        old_h: hidden state of shape :math:`(B, S)`
        old_cell: cell state of shape :math:`(B, S)`
    """
    if has_torch_function_variadic(input, weight, bias, old_h, old_cell):
        return handle_torch_function(
            lltm_cell,
            (input, weight, bias, old_h, old_cell),
            input,
            weight,
            bias,
            old_h,
            old_cell,
        )
    new_h, new_cell, _ = torch.lltm_cell(input, weight, bias, old_h, old_cell)
    return new_h, new_cell


# They are public names of torch.nn.functional, and say so.
for _function in (depthwise_conv2d_ext, lltm_cell):
    _function.__module__ = "torch.nn.functional"
