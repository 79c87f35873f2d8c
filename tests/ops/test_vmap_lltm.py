"""vmap of lltm_cell and its backward: the same as a loop, and no loop inside."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from vmap_cases import assert_vmap_is_the_loop, batched, cell_inputs, every_in_dims, looped

pytestmark = pytest.mark.usefixtures("no_vmap_fallback")
aten = torch.ops.aten
SIZES = [(2, 3, 2), (1, 1, 1), (3, 2, 5), (0, 2, 3), (2, 0, 3), (2, 3, 0)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_cell(sizes: tuple[int, int, int], device: str) -> None:
    """Every in_dims of five arguments, batched weights and shared ones."""
    tensors = cell_inputs(sizes, device, torch.float64)
    everything = sizes == SIZES[0]
    for dims in every_in_dims([t.dim() for t in tensors], None if everything else 40):
        assert_vmap_is_the_loop(torch.lltm_cell, batched(tensors, dims, 3), dims)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("used", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)], ids=str)
def test_cell_backward(sizes: tuple[int, int, int], used: tuple[int, ...], device: str) -> None:
    """Any gradients that arrive, any that are asked for, any in_dims of eight arguments."""
    x, w, b, h, c = cell_inputs(sizes, device, torch.float64)
    results = torch.lltm_cell(x, w, b, h, c)
    grads = [torch.randn_like(t) for t, use in zip(results, used, strict=True) if use]
    tensors = [*grads, x, w, h, *results[1:]]
    draw = random.Random(0)
    for dims in every_in_dims([t.dim() for t in tensors], 60):
        mask = [draw.random() < 0.6 for _ in range(5)]

        def call(*args: Tensor, mask: list[bool] = mask) -> tuple[Tensor | None, ...]:
            rest = iter(args)
            arrived = [next(rest) if use else None for use in used]
            return aten.lltm_cell_backward(*arrived, *rest, mask)

        if any(mask):
            assert_vmap_is_the_loop(call, batched(tensors, dims, 2), dims)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_cell_in_lower_precision(shared: bool, dtype: torch.dtype, device: str) -> None:
    """Results of the inputs' dtype, as near to float64 as the loop's."""
    tensors = [t * 0.5 for t in cell_inputs((3, 5, 7), device, dtype)]
    dims = (0, None, None, 0, 0) if shared else (0, 0, 0, 0, 0)
    given = batched(tensors, dims, 2)
    exact = looped(torch.lltm_cell, [t.double() for t in given], dims)
    once = looped(torch.lltm_cell, given, dims)
    tolerance = 4 * torch.finfo(dtype).eps
    for mine, loop, true in zip(vmap(torch.lltm_cell, dims)(*given), once, exact, strict=True):
        assert mine.dtype == dtype
        error = (mine.double() - true).abs().max()
        assert error <= (loop.double() - true).abs().max() + tolerance * true.abs().max()


def test_cell_refuses_what_would_only_broadcast() -> None:
    """With weights of each element too, where the products are upstream's."""
    good = batched(cell_inputs((2, 3, 4), "cpu", torch.float32), (0, 0, 0, 0, 0), 3)
    for position, name, shape in (
        (1, "weight", (3, 12, 6)), (2, "bias", (3, 1)), (3, "old_h", (3, 1, 4)),
        (4, "old_cell", (3, 2, 1)), (0, "input", (3, 3)),
    ):  # fmt: skip
        bad = list(good)
        bad[position] = torch.ones(shape)
        with pytest.raises(RuntimeError, match=rf"lltm_cell\(\): expected {name} to"):
            vmap(torch.lltm_cell)(*bad)
    with pytest.raises(RuntimeError, match="expected input to be float"):
        vmap(torch.lltm_cell)(*(t.int() for t in good))
    with pytest.raises(RuntimeError, match="expected bias to have the input's dtype"):
        vmap(torch.lltm_cell)(*good[:2], good[2].double(), *good[3:])
