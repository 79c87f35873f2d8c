"""vmap of depthwise_conv2d_ext and its backward: the same as a loop, and no loop inside."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from depthwise_cases import Case, make_inputs
from torch import Tensor
from torch.func import grad, vmap
from vmap_cases import assert_vmap_is_the_loop, batched, every_in_dims, looped

pytestmark = pytest.mark.usefixtures("no_vmap_fallback")
aten = torch.ops.aten


def convolutions(count: int, seed: int) -> Iterator[Case]:
    """Random geometries that fit, height and width different."""
    draw = random.Random(seed)
    while count:
        case = Case(
            batch=draw.choice([1, 2, 3]),
            channels=draw.choice([1, 2, 3]),
            multiplier=draw.choice([1, 2, 3]),
            size=(draw.randint(1, 6), draw.randint(7, 9)),
            kernel=(draw.randint(1, 3), draw.choice([1, 2, 4])),
            stride=(draw.randint(1, 2), draw.randint(1, 3)),
            padding=(draw.randint(0, 3), draw.randint(0, 2)),
            dilation=(draw.randint(1, 2), draw.randint(1, 3)),
        )
        if case.fits:
            count -= 1
            yield case


def arguments(case: Case, device: str, *, batched_input: bool, bias: bool) -> list[Tensor]:
    x, w, b = make_inputs(case, device=device)
    assert b is not None
    return [x if batched_input else x[0], w, *([b] if bias else [])]


@pytest.mark.parametrize("batched_input", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(batched_input: bool, bias: bool, device: str) -> None:
    """Every in_dims, with images and without, multipliers, all sorts of windows."""
    for number, case in enumerate(convolutions(8, seed=bias)):
        tensors = arguments(case, device, batched_input=batched_input, bias=bias)

        def call(x: Tensor, w: Tensor, b: Tensor | None = None, case: Case = case) -> Tensor:
            return torch.depthwise_conv2d_ext(x, w, b, *case.window)

        ranks = [t.dim() for t in tensors]
        for dims in every_in_dims(ranks, None if number == 0 else 10, seed=number):
            assert_vmap_is_the_loop(call, batched(tensors, dims, 2 + number % 2), dims)


MASKS = [(bool(n & 4), bool(n & 2), bool(n & 1)) for n in range(8)]


@pytest.mark.parametrize("mask", MASKS[1:], ids=str)
@pytest.mark.parametrize("batched_input", [True, False])
def test_convolution_backward(
    mask: tuple[bool, bool, bool], batched_input: bool, device: str
) -> None:
    """Every in_dims and every mask."""
    for number, case in enumerate(convolutions(4, seed=11)):
        x, w = arguments(case, device, batched_input=batched_input, bias=False)
        g = torch.randn_like(torch.depthwise_conv2d_ext(x, w, None, *case.window))

        def call(g: Tensor, x: Tensor, w: Tensor, case: Case = case) -> tuple[Tensor | None, ...]:
            return aten.depthwise_conv2d_ext_backward(g, x, w, *case.window, mask)

        ranks = [g.dim(), x.dim(), w.dim()]
        for dims in every_in_dims(ranks, None if number == 0 else 8, seed=number):
            assert_vmap_is_the_loop(call, batched([g, x, w], dims, 3), dims)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_convolution_is_the_loops_to_the_last_bit_in_the_same_order(
    dtype: torch.dtype, device: str
) -> None:
    """Bias and all in one call: a 16-bit result is rounded once. Small integers, so any order."""
    x = torch.randint(-3, 4, (3, 2, 2, 5, 7), device=device).to(dtype)
    w = torch.randint(-3, 4, (3, 4, 1, 3, 2), device=device).to(dtype) / 8
    b = torch.randint(-3, 4, (3, 4), device=device).to(dtype) / 64
    for dims in ((0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (0, None, 0)):
        given = [t if d == 0 else t[0] for t, d in zip((x, w, b), dims, strict=True)]
        actual = vmap(torch.depthwise_conv2d_ext, in_dims=dims)(*given)
        assert torch.equal(actual, looped(torch.depthwise_conv2d_ext, given, dims)[0])


def test_channels_last_stays_without_a_copy(device: str) -> None:
    """A batch of images in that format is one larger batch of images in it."""
    x = torch.randn(6, 3, 5, 4, device=device).contiguous(memory_format=torch.channels_last)
    w = torch.randn(3, 1, 3, 2, device=device)
    y = vmap(torch.depthwise_conv2d_ext, in_dims=(0, None))(x.unflatten(0, (2, 3)), w)
    assert y.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y.flatten(0, 1), torch.depthwise_conv2d_ext(x, w))


def test_values_that_no_gradient_needs_are_not_read(device: str) -> None:
    """NaN in them shows nowhere."""
    x, w = torch.randn(3, 2, 2, 5, 4, device=device), torch.randn(3, 2, 1, 3, 2, device=device)
    g = torch.randn(3, 2, 2, 3, 3, device=device)
    nan = float("nan")
    window = ([1, 1], [0, 0], [1, 1])
    backward = aten.depthwise_conv2d_ext_backward
    for dims in ((0, 0, 0), (0, 0, None), (0, None, 0), (0, None, None)):
        given = [t if d == 0 else t[0] for t, d in zip((g, x, w), dims, strict=True)]
        dx = vmap(lambda g, x, w: backward(g, x, w, *window, [True, False, False])[0], dims)
        assert not dx(given[0], given[1] * nan, given[2]).isnan().any()
        dw = vmap(lambda g, x, w: backward(g, x, w, *window, [False, True, False])[1], dims)
        assert not dw(given[0], given[1], given[2] * nan).isnan().any()


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)], ids=str)
def test_an_empty_batch(dims: tuple[int | None, ...], device: str) -> None:
    """Shapes as ever, values none, gradients too."""
    x, w = torch.randn(2, 3, 5, 4, device=device), torch.randn(6, 1, 3, 2, device=device)
    given = [t if d is None else t.new_empty(0, *t.shape)
             for t, d in zip((x, w), dims, strict=True)]  # fmt: skip
    assert vmap(torch.depthwise_conv2d_ext, dims)(*given).shape == (0, 2, 6, 3, 3)
    both = vmap(grad(lambda x, w: torch.depthwise_conv2d_ext(x, w).sum(), argnums=(0, 1)), dims)
    assert [g.shape for g in both(*given)] == [(0, *x.shape), (0, *w.shape)]


@pytest.mark.parametrize(
    ("shapes", "dims", "message"),
    [
        (((3, 4, 5), (3, 4, 1, 2, 2), None), (0, 0, None), r"input to be \[N, C, H, W\] or"),
        (((3, 2, 4, 5), (3, 2, 1, 2), None), (0, 0, None), r"weight to be \[C \* multiplier"),
        (((2, 4, 5), (3, 3, 1, 2, 2), None), (None, 0, None), "multiple of the input's 2 channels"),
        (((3, 2, 4, 5), (3, 3, 1, 2, 2), None), (0, 0, None), "multiple of the input's 6 channels"),
        (((2, 4, 5), (2, 1, 2, 2), (3, 1)), (None, None, 0), r"bias to be \[2\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    shapes: tuple[tuple[int, ...] | None, ...], dims: tuple[int | None, ...], message: str
) -> None:
    """A batch dimension is never taken for another."""
    given = [None if s is None else torch.ones(s) for s in shapes]
    with pytest.raises(RuntimeError, match=message):
        vmap(torch.depthwise_conv2d_ext, dims)(*given)
