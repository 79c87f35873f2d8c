# mypy: allow-untyped-defs
"""Formulas of torch.utils.flop_counter for operators that come with additions to ATen."""

import torch
from torch.utils.flop_counter import register_flop_formula

aten = torch.ops.aten


@register_flop_formula(aten.depthwise_conv2d_ext)
def depthwise_conv2d_ext_flop(input, weight, *args, out_shape=None, **kwargs) -> int:
    """Two for each element of the output and of its filter, as conv2d(groups=channels) has it."""
    return 2 * _numel(out_shape) * weight[-2] * weight[-1]


@register_flop_formula(aten.depthwise_conv2d_ext_backward)
def depthwise_conv2d_ext_backward_flop(
    grad_output, input, weight, stride, padding, dilation, output_mask, *, out_shape=None, **kwargs
) -> int:
    """The forward's number for each of the two large gradients that are asked for."""
    forward = 2 * _numel(grad_output) * weight[-2] * weight[-1]
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


@register_flop_formula(aten.lltm_cell)
def lltm_cell_flop(input, weight, *args, out_shape=None, **kwargs) -> int:
    """Of the matrix product; the pointwise part is not counted, as in upstream's formulas."""
    return 2 * input[0] * weight[0] * weight[1]


@register_flop_formula(aten.lltm_cell_backward)
def lltm_cell_backward_flop(
    grad_new_h, grad_new_cell, grad_gates, input, weight, old_h, new_cell, gates, output_mask,
    *, out_shape=None, **kwargs,
) -> int:  # fmt: skip
    """A product for the gradient of the weight, one for those of input and old_h."""
    batch, state = old_h
    rows = 2 * batch * 3 * state
    columns = input[1] * bool(output_mask[0]) + state * bool(output_mask[3])
    return rows * (columns + weight[1] * bool(output_mask[1]))


def _numel(shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
