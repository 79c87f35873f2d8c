"""The geometries, inputs and float64 references that the depthwise_conv2d_ext tests share."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FORMATS = [torch.contiguous_format, torch.channels_last]


@dataclass(frozen=True)
class Case:
    """One convolution: sizes in elements, pairs as (height, width)."""

    batch: int
    channels: int
    multiplier: int
    size: Pair
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    bias: bool = True

    def __str__(self) -> str:
        """A test id that says everything."""
        pairs = zip(
            "xkspd",
            (self.size, self.kernel, self.stride, self.padding, self.dilation),
            strict=True,
        )
        text = "-".join(f"{name}{h}x{w}" for name, (h, w) in pairs)
        return f"n{self.batch}c{self.channels}m{self.multiplier}-{text}{'-b' if self.bias else ''}"

    @property
    def window(self) -> tuple[Pair, Pair, Pair]:
        """Stride, padding, dilation as the operator takes them."""
        return self.stride, self.padding, self.dilation

    @property
    def fits(self) -> bool:
        """Whether the kernel fits into the padded input."""
        return all(
            s + 2 * p >= d * (k - 1) + 1
            for s, p, d, k in zip(self.size, self.padding, self.dilation, self.kernel, strict=True)
        )


# What a generator seldom hits. Height and width differ everywhere, so that a mix-up shows.
CORNERS = [
    Case(2, 3, 1, (5, 7), (3, 3), padding=(1, 1)),
    Case(1, 1, 1, (1, 2), (1, 1)),
    Case(2, 3, 1, (2, 3), (7, 5), padding=(3, 2)),  # kernel larger than the input
    Case(1, 2, 2, (1, 3), (9, 7), padding=(4, 5)),  # … by far, several taps wholly in padding
    Case(2, 2, 1, (3, 4), (3, 3), stride=(5, 7), padding=(1, 1)),  # stride beyond the output
    Case(2, 2, 1, (4, 5), (2, 3), padding=(6, 5)),  # padding beyond the kernel
    Case(0, 3, 2, (5, 6), (3, 3), padding=(1, 1)),  # empty batch
    Case(2, 33, 1, (4, 513), (3, 5), padding=(1, 2)),  # odd channels, long rows
    Case(2, 3, 3, (6, 8), (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    Case(3, 17, 1, (9, 11), (3, 5), stride=(2, 3), padding=(2, 4), dilation=(2, 2), bias=False),
    Case(1, 2, 1, (23, 31), (13, 11), padding=(6, 5)),
    Case(2, 64, 1, (7, 8), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(1, 4, 1, (3, 202), (1, 3)),
    Case(2, 2, 1, (20, 6), (3, 2), padding=(0, 0), dilation=(9, 5)),
]


def generated(count: int, seed: int) -> list[Case]:
    """The first `count` random cases that fit."""
    draw = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        height = draw.randint(1, 9)
        width = draw.choice([n for n in (1, 2, 5, 11, 19, 37) if n != height])
        case = Case(
            batch=draw.choice([1, 2, 3]),
            channels=draw.choice([1, 2, 3, 8, 17, 33]),
            multiplier=draw.choice([1, 1, 2, 3]),
            size=(height, width),
            kernel=(draw.choice([1, 2, 3, 5, 7]), draw.choice([1, 3, 4, 6])),
            stride=(draw.randint(1, 3), draw.randint(1, 3)),
            padding=(draw.randint(0, 4), draw.randint(0, 3)),
            dilation=(draw.randint(1, 3), draw.randint(1, 2)),
            bias=draw.random() < 0.5,
        )
        if case.fits:
            cases.append(case)
    return cases


class Inputs(NamedTuple):
    """The tensors of one call; bias may be absent."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None

    def cast(self, **to: object) -> Inputs:
        """Every tensor passed through Tensor.to."""
        return Inputs(
            self.input.to(**to),
            self.weight.to(**to),
            None if self.bias is None else self.bias.to(**to),
        )


def make_inputs(
    case: Case,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Inputs:
    """Random tensors for a case; the seed is the session's."""
    height, width = case.size
    outputs = case.channels * case.multiplier
    of = {"device": device, "dtype": dtype}
    return Inputs(
        torch.randn(case.batch, case.channels, height, width, **of).contiguous(
            memory_format=memory_format
        ),
        torch.randn(outputs, 1, *case.kernel, **of),
        torch.randn(outputs, **of) if case.bias else None,
    )


def conv2d(case: Case, inputs: Inputs) -> Tensor:
    """The definition: upstream's convolution with one group a channel."""
    return functional.conv2d(*inputs, *case.window, groups=case.channels)


def gradients(case: Case, inputs: Inputs, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Upstream's gradients of conv2d for input, weight and bias, on the CPU in float64."""
    x, w, _ = inputs.cast(device="cpu", dtype=torch.float64)
    x, w = x.requires_grad_(), w.requires_grad_()
    grad = grad_output.to(device="cpu", dtype=torch.float64)
    dx, dw = torch.autograd.grad(conv2d(case, Inputs(x, w, None)), (x, w), grad)
    return dx, dw, grad.sum((0, 2, 3))


def assert_within(actual: Tensor, exact: Tensor, magnitude: Tensor, terms: int) -> None:
    """Check against the a-priori error bound of a sum of `terms` products.

    `exact` is the float64 result and `magnitude` the same sum over absolute values. The sum may
    err by terms · eps(arithmetic) · magnitude, arithmetic being float32 for 16-bit dtypes, and
    rounding the result by eps(dtype) · |exact|. Sums accumulated in 16 bits break this bound.
    """
    dtype = actual.dtype
    arithmetic = torch.float64 if dtype == torch.float64 else torch.float32
    bound = (terms + 2) * torch.finfo(arithmetic).eps * magnitude
    bound = bound + torch.finfo(dtype).eps * (exact.abs() + bound)
    bound = bound + torch.finfo(dtype).smallest_normal
    assert actual.shape == exact.shape
    error = (actual.detach().to(device="cpu", dtype=torch.float64) - exact).abs()
    assert bool((error <= bound).all()), (
        f"largest error {error.max().item():.3e}, "
        f"{(error / bound).max().item():.2f} times what is allowed"
    )
