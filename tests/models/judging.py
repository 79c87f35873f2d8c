"""What a model computes, and how far that is from the same model in double."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

# Most roundings of a model are of operators that both share, and by luck those of the one come out
# larger: of the tensors together by up to this much, of a single one by up to that much.
TOGETHER = 1.25
SINGLE = 3.0
# Gradients that are zero but for roundings (of a bias before a normalization) are measured by this
# part of the median gradient.
ZERO = 1e-3


def results(
    model: nn.Module, x: Tensor, context: AbstractContextManager[object] | None = None
) -> dict[str, Tensor]:
    """The output and the gradients of the input and of every parameter, by name, as doubles."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with context or nullcontext():
        output = model(x)
    seed = torch.sin(torch.arange(output.numel(), dtype=torch.double)).view_as(output)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(output, [x, *parameters], seed.to(output.dtype))
    named = zip(("output", "input", *names), (output, *gradients), strict=True)
    return {name: value.detach().double() for name, value in named}


def errors(
    found: dict[str, Tensor], exact: dict[str, Tensor], zero: float = ZERO
) -> dict[str, float]:
    """The relative error of each, in the 2-norm; of what is smaller, by `zero` of the median."""
    assert found.keys() == exact.keys()
    sizes = {name: float(value.square().mean().sqrt()) for name, value in exact.items()}
    least = zero * statistics.median(sizes.values())
    return {
        name: float((found[name] - value).square().mean().sqrt()) / max(sizes[name], least)
        for name, value in exact.items()
    }


def together(cases: list[dict[str, float]]) -> dict[str, float]:
    """The root of the mean square over cases."""
    return {n: math.sqrt(statistics.fmean(case[n] ** 2 for case in cases)) for n in cases[0]}


def complaints(mine: dict[str, float], theirs: dict[str, float]) -> Iterator[str]:
    """In words, where errors of the one are larger than the other's by more than luck."""
    ratios = {name: mine[name] / theirs[name] for name in theirs}
    mean = statistics.geometric_mean(ratios.values())
    if not mean <= TOGETHER:
        yield f"errors are {mean:.2f} times stock's in the geometric mean"
    for name, ratio in ratios.items():
        if not ratio <= SINGLE:
            yield f"{name}: error {mine[name]:.1e}, {ratio:.2f} times stock's"
