"""Batch rules written with upstream's helpers, those too that libtorch does not export."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, vmap
from torch.testing import assert_close


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    """An operator without a batch rule is an error and not a loop."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "softclip": lambda x: torch.zoo_softclip(x, 2),
    "muladd": lambda x: torch.zoo_muladd(x, torch.arange(3.0), torch.ones(2, 1)),
    "blend": lambda x: torch.zoo_blend(torch.arange(3.0), x, alpha=3),
    "blend with a number": lambda x: torch.zoo_blend(x.sum().double(), x, alpha=3),
    "window sum": lambda x: torch.zoo_window_sum(x, 2, 0),
    "window sum from behind": lambda x: torch.zoo_window_sum(x, 2, -1),
    "first moment": lambda x: torch.zoo_moments(x, -1)[0],
    "second moment": lambda x: torch.zoo_moments(x, 0, keepdim=True)[1],
    "total": torch.zoo_total,
}


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_rules_agree_with_a_loop(name: str, dim: int) -> None:
    call, x = CALLS[name], torch.randn(4, 2, 3)
    expected = torch.stack([call(part) for part in x])
    assert_close(vmap(call, dim)(x.movedim(0, dim)), expected)
    twice = torch.stack([x, x + 1])
    nested = torch.stack([torch.stack([call(part) for part in each]) for each in twice])
    assert_close(vmap(vmap(call, dim))(twice.movedim(1, dim if dim < 0 else dim + 1)), nested)


def test_in_place_rules_write_into_self() -> None:
    x = torch.randn(4, 2, 3)
    y = x.clone()
    vmap(lambda x: x.zoo_softclip_(2))(y)
    assert_close(y, torch.zoo_softclip(x, 2))
    y = x.clone()
    vmap(lambda x, o: x.zoo_blend_(o, alpha=3))(y, x[:, 0])
    assert_close(y, torch.zoo_blend(x, x[:, :1], alpha=3))
    with pytest.raises(RuntimeError, match="zoo_blend_"):
        vmap(lambda x, o: x.zoo_blend_(o), (None, 0))(x[0], x)


def test_random_rules_heed_the_randomness_that_was_chosen() -> None:
    x = torch.zeros(4, 100)
    with pytest.raises(RuntimeError, match="random"):
        vmap(torch.zoo_dither)(x)
    different = vmap(torch.zoo_dither, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="same"):
        vmap(torch.zoo_dither, randomness="same")(x)


def test_a_tensor_of_a_vmap_that_is_over_is_refused() -> None:
    escaped: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        escaped.append(x)
        return x

    vmap(keep)(torch.randn(3, 2))
    with pytest.raises(RuntimeError, match="escaped"):
        torch.zoo_window_sum(escaped[0], 1)
