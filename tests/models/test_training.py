"""Converted models learn what stock's learn, step by step, with an optimizer that knew stock's."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from subjects import MODELS, stock
from torch import Tensor, nn

STEPS = 20
# Small enough for smooth curves: at a hundred times of it these networks, fresh as they are, grow a
# rounding in double to a difference of the first digit in as many steps, whoever computes them.
RATE = 3e-5
# Roundings alone come to 2e-14, a thousandth of one gradient in the middle to 1e-7.
IN_DOUBLE = 1e-10
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def task() -> tuple[Tensor, Tensor]:
    """Noise with a tint, and which channel is the brightest."""
    generator = torch.Generator().manual_seed(1)
    tint = torch.randn(12, 3, 1, 1, generator=generator)
    images = tint + torch.randn(12, 3, 48, 64, generator=generator) / 2
    return images, images.mean((2, 3)).argmax(1)


def losses(
    name: str, convert: Callable[[nn.Module], object], dtype: torch.dtype, layout: str = "nchw"
) -> Tensor:
    """The loss of each step; the model is converted after the optimizer got its parameters."""
    model = stock(name).to(dtype=dtype, memory_format=FORMATS[layout]).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    convert(model)
    images, labels = task()
    images = images.to(dtype=dtype, memory_format=FORMATS[layout])
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found, dtype=torch.double)


@functools.cache
def exact(name: str) -> Tensor:
    """Stock's curve in double."""
    return losses(name, lambda model: model, torch.double)


@pytest.mark.parametrize("name", MODELS)
def test_in_double_every_step_is_the_same(name: str) -> None:
    assert exact(name)[-1] < 0.1 * exact(name)[0]  # there is a curve to follow
    found = losses(name, nn.utils.convert_depthwise, torch.double)
    torch.testing.assert_close(found, exact(name), rtol=0, atol=IN_DOUBLE)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_in_single_precision_the_curve_is_the_same(name: str, layout: str) -> None:
    found = losses(name, nn.utils.convert_depthwise, torch.float, layout)
    # of the first loss; stock's own curve in float is as far from this one, a quarter of it at most
    torch.testing.assert_close(found, exact(name), rtol=0, atol=0.015 * float(exact(name)[0]))


def test_the_comparison_sees_a_gradient_that_is_a_little_wrong() -> None:
    def spoilt(model: nn.Module) -> None:
        nn.utils.convert_depthwise(model)
        weight = model.get_submodule("blocks.3.1.conv_dw").weight
        weight.register_hook(lambda grad: grad + grad.flip(0) / 1000)

    found = losses("mobilenetv2_100", spoilt, torch.double)
    assert float((found - exact("mobilenetv2_100")).abs().max()) > 100 * IN_DOUBLE
