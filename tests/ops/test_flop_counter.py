"""torch.utils.flop_counter counts the added operators as upstream counts its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode


def flops(function: Callable[[], Tensor], *, backward: bool = False) -> int:
    with FlopCounterMode(display=False) as counter:
        result = function()
        if backward:
            result.sum().backward()
    return int(counter.get_total_flops())


def test_a_depthwise_convolution_counts_as_conv2d_does() -> None:
    x, w = torch.randn(2, 6, 9, 8, requires_grad=True), torch.randn(12, 1, 3, 4, requires_grad=True)

    def ours() -> Tensor:
        return functional.depthwise_conv2d_ext(x, w, None, (2, 1), 1)

    def theirs() -> Tensor:
        return functional.conv2d(x, w, None, (2, 1), 1, 1, 6)

    assert flops(ours) == flops(theirs) == 2 * ours().numel() * 12
    assert flops(ours, backward=True) == 3 * flops(ours)


def test_a_gradient_that_nobody_wants_is_not_counted() -> None:
    x, w = torch.randn(2, 6, 9, 8), torch.randn(6, 1, 3, 3, requires_grad=True)

    def ours() -> Tensor:
        return functional.depthwise_conv2d_ext(x, w)

    assert flops(ours, backward=True) == 2 * flops(ours)


def test_an_lltm_cell_counts_its_products() -> None:
    cell = nn.LLTMCell(5, 7)
    x, h, c = (torch.randn(3, n, requires_grad=True) for n in (5, 7, 7))
    product = 2 * 3 * 21 * 12
    assert flops(lambda: cell(x, (h, c))[0]) == product
    assert flops(lambda: cell(x, (h, c))[0], backward=True) == 3 * product
