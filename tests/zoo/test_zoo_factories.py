"""Factories and random operators of the zoo: options, default devices, generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, get_ignored_functions, get_testing_overrides
from torch.testing import assert_close

FACTORIES = {
    "zoo_ramp": lambda **options: torch.zoo_ramp((2, 3), **options),
    "zoo_coin": lambda **options: torch.zoo_coin((2, 3), **options),
}
by_factory = pytest.mark.parametrize("name", FACTORIES)


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_values() -> None:
    assert_close(torch.zoo_ramp((2, 2), step=3), torch.tensor([[0.0, 3], [6, 9]]))
    assert_close(torch.zoo_ramp(2, 2, dtype=torch.int32), torch.tensor([[0, 1], [2, 3]]).int())
    assert set(torch.zoo_coin((100,), p=0.5, generator=generator()).tolist()) == {0.0, 1.0}
    assert torch.zoo_coin((5,), p=1.0).tolist() == [1.0] * 5


@by_factory
def test_options_are_those_of_every_factory(name: str) -> None:
    make = FACTORIES[name]
    assert make().dtype == torch.get_default_dtype()
    assert make(dtype=torch.float64).dtype == torch.float64
    assert make(device="meta").is_meta
    assert make(layout=torch.strided).layout == torch.strided
    assert make(requires_grad=True).requires_grad
    assert make(requires_grad=True).is_leaf
    with pytest.raises((RuntimeError, NotImplementedError)):
        make(layout=torch.sparse_coo)


@by_factory
def test_pinned_memory_is_asked_for(name: str) -> None:
    if torch.cuda.is_available():
        assert FACTORIES[name](pin_memory=True).is_pinned()
    else:
        with pytest.raises(RuntimeError, match=r"(?i)pin|accelerator|cuda|nvidia"):
            FACTORIES[name](pin_memory=True)


@pytest.fixture
def default_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@by_factory
@pytest.mark.usefixtures("default_float64")
def test_default_dtype_is_honoured(name: str) -> None:
    assert FACTORIES[name]().dtype == torch.float64


@by_factory
def test_default_device_is_honoured(name: str) -> None:
    with torch.device("meta"):
        assert FACTORIES[name]().is_meta
        assert FACTORIES[name](device="cpu").device.type == "cpu"
    assert FACTORIES[name]().device.type == "cpu"


@by_factory
def test_default_device_is_honoured_under_compile(name: str) -> None:
    """As upstream's own random factory does; Dynamo learnt it after 2.6."""
    compiled, upstreams = (
        torch.compile(function, fullgraph=True, backend="aot_eager")
        for function in (lambda: FACTORIES[name](), lambda: torch.rand(2, 3))
    )
    with torch.device("meta"):
        assert compiled().device == upstreams().device
    assert compiled().device.type == "cpu"


def test_default_device_leaves_an_operator_with_a_tensor_alone() -> None:
    with torch.device("meta"):
        assert torch.zoo_ramp_like(torch.ones(3, device="cpu")).device.type == "cpu"


def test_like_takes_what_it_is_not_told_from_its_input() -> None:
    x = torch.rand(1, 2, 3, 3, dtype=torch.float64).to(memory_format=torch.channels_last)
    assert torch.zoo_ramp_like(x).stride() == x.stride()
    assert torch.zoo_ramp_like(x, memory_format=torch.contiguous_format).is_contiguous()
    assert torch.zoo_ramp_like(x, dtype=torch.int64).dtype == torch.int64
    assert torch.zoo_ramp_like(x, device="meta").is_meta
    assert_close(torch.zoo_ramp_like(x).flatten(), torch.arange(18, dtype=torch.float64))


def test_out_variants_of_factories() -> None:
    out = torch.empty(0, dtype=torch.float64)
    assert torch.ops.aten.zoo_ramp.out((2, 3), step=2, out=out) is out
    assert_close(out, torch.zoo_ramp(2, 3, step=2, dtype=torch.float64))
    torch.ops.aten.zoo_ramp_like.out(torch.empty(4), out=out)
    assert_close(out, torch.arange(4, dtype=torch.float64))


class Recorder(TorchFunctionMode):
    """Remembers which functions were called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_torch_function_modes_see_factories() -> None:
    with Recorder() as mode:
        torch.zoo_ramp(3)
        torch.zoo_coin((3,))
        torch.zoo_ramp_like(torch.ones(3))
    assert [torch.zoo_ramp, torch.zoo_coin, torch.zoo_ramp_like] == [
        func for func in mode.seen if "zoo" in func.__name__
    ]
    assert {torch.zoo_ramp, torch.zoo_coin} <= get_ignored_functions()
    assert torch.zoo_ramp_like in get_testing_overrides()


def test_factories_compile_without_a_graph_break_for_any_size() -> None:
    def made(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zoo_ramp(x.shape, step=2) + torch.zoo_ramp_like(x)

    compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=True)
    for width in (3, 4, 5):
        x = torch.rand(2, width)
        assert_close(compiled(x), made(x))


def test_opcheck() -> None:
    torch.library.opcheck(torch.ops.aten.zoo_ramp.default, ((2, 3),), {"step": 2})
    torch.library.opcheck(torch.ops.aten.zoo_ramp_like.default, (torch.rand(3),))


def test_same_seed_same_numbers() -> None:
    x = torch.zeros(100)
    first = torch.zoo_dither(x, generator=generator())
    assert_close(torch.zoo_dither(x, generator=generator()), first, rtol=0, atol=0)
    assert not torch.equal(torch.zoo_dither(x, generator=generator(6)), first)
    assert first.abs().max() <= 0.5 and first.abs().max() > 0.4
    assert abs(first.mean()) < 0.2


def test_generator_advances_and_the_default_one_is_used_without() -> None:
    x, own = torch.zeros(4), generator()
    assert not torch.equal(torch.zoo_dither(x, generator=own), torch.zoo_dither(x, generator=own))
    drawn = []
    for _ in range(2):
        torch.manual_seed(9)
        drawn.append((torch.zoo_dither(x), torch.zoo_coin((20,))))
    assert_close(drawn[0], drawn[1], rtol=0, atol=0)


def test_generator_of_a_factory() -> None:
    flips = [torch.zoo_coin((50,), generator=generator()) for _ in range(2)]
    assert_close(flips[0], flips[1], rtol=0, atol=0)


def test_no_noise_changes_nothing_and_non_contiguous_input_is_read_in_order() -> None:
    x = torch.rand(3, 4, dtype=torch.float64).t()
    assert_close(x.zoo_dither(0.0), x)
    with pytest.raises(RuntimeError, match="zoo_dither: amount must not be negative, got -1"):
        x.zoo_dither(-1.0)


def test_random_operators_are_tagged_so_that_nothing_caches_them() -> None:
    for overload in (torch.ops.aten.zoo_dither.default, torch.ops.aten.zoo_coin.default):
        assert torch.Tag.nondeterministic_seeded in overload.tags


def test_random_operators_compile_without_a_graph_break() -> None:
    compiled = torch.compile(
        lambda x: (torch.zoo_dither(x), torch.zoo_coin(x.shape)),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.manual_seed(2)
    noisy, coins = compiled(torch.zeros(50))
    torch.manual_seed(2)
    assert_close((noisy, coins), (torch.zoo_dither(torch.zeros(50)), torch.zoo_coin((50,))))
