"""Autocast: convolution and cell in the lower precision, the pointwise operators as upstream's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from depthwise_cases import Case, make_inputs
from torch import Tensor
from torch.nn.functional import conv2d
from torch.utils._python_dispatch import TorchDispatchMode

LOWER = [torch.bfloat16, torch.float16]
CASE = Case(2, 3, 2, (7, 6), (3, 2), stride=(2, 1), padding=(1, 1))
Function = Callable[..., Tensor]


class Casts(TorchDispatchMode):
    """Counts the copies to another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def depthwise(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return torch.depthwise_conv2d_ext(x, w, b, *CASE.window)


def grouped(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return conv2d(x, w, b, *CASE.window, groups=CASE.channels)


def cell(*tensors: Tensor) -> Tensor:
    return torch.cat(torch.lltm_cell(*tensors), 1)


def inputs(function: Function, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Leaves that require gradients."""
    if function is cell:
        shapes = ((5, 3), (12, 7), (12,), (5, 4), (5, 4))
        tensors = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
    else:
        tensors = [t for t in make_inputs(CASE, device=device, dtype=dtype) if t is not None]
    return [t.requires_grad_() for t in tensors]


@pytest.mark.parametrize("lower", LOWER, ids=str)
@pytest.mark.parametrize("function", [depthwise, cell])
def test_runs_in_the_lower_precision(function: Function, lower: torch.dtype, device: str) -> None:
    """The very values, and gradients, of arguments that are cast by hand; those in float32."""
    tensors = inputs(function, device)
    with torch.autocast(device, dtype=lower):
        actual = function(*tensors)
    expected = function(*(t.to(lower) for t in tensors))
    assert actual.dtype == lower
    assert torch.equal(actual, expected)
    grad = torch.randn_like(actual)
    found = torch.autograd.grad(actual, tensors, grad)
    assert all(g.dtype == torch.float32 for g in found)
    for mine, other in zip(found, torch.autograd.grad(expected, tensors, grad), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("lower", LOWER, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_is_conv2d_under_autocast(bias: bool, lower: torch.dtype, device: str) -> None:
    """Result, gradients and their dtypes."""
    tensors = inputs(depthwise, device)[: 3 if bias else 2]
    with torch.autocast(device, dtype=lower):
        results = [f(*tensors) for f in (depthwise, grouped)]
    assert results[0].dtype == results[1].dtype == lower
    torch.testing.assert_close(*results)
    grad = torch.randn_like(results[0])
    mine, other = (torch.autograd.grad(y, tensors, grad) for y in results)
    assert [g.dtype for g in mine] == [g.dtype for g in other] == [torch.float32] * len(tensors)
    torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("function", [depthwise, cell])
def test_every_float_dtype_but_double_is_cast(function: Function, device: str) -> None:
    """Mixed dtypes come together; double is left alone."""
    tensors = [t.detach() for t in inputs(function, device)]
    mixed = [t.to(d) for t, d in zip(tensors, (*LOWER, torch.float32, *LOWER), strict=False)]
    double = [t.double() for t in tensors]
    with torch.autocast(device, dtype=torch.bfloat16):
        assert function(*mixed).dtype == torch.bfloat16
        assert function(*double).dtype == torch.float64
        with pytest.raises(RuntimeError, match="to have the input's dtype"):
            function(double[0], *tensors[1:])
    with pytest.raises(RuntimeError, match="to have the input's dtype"):
        function(*mixed)


@pytest.mark.parametrize("function", [depthwise, cell])
def test_switched_off_inside(function: Function, device: str) -> None:
    """autocast(enabled=False) in autocast, and autocast of the other kind of device."""
    tensors = inputs(function, device)
    expected = function(*tensors)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert function(*tensors).dtype == torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert torch.equal(function(*tensors), expected)
            with torch.autocast(device, dtype=torch.bfloat16):
                assert function(*tensors).dtype == torch.bfloat16
        assert function(*tensors).dtype == torch.bfloat16
    assert torch.equal(function(*tensors), expected)
    if device == "cuda":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(function(*tensors), expected)


@pytest.mark.parametrize(("mine", "other"), [(depthwise, grouped), (cell, None)])
def test_casts_of_parameters_are_kept(mine: Function, other: Function | None, device: str) -> None:
    """A second call finds the leaves' casts; not without the cache, nor in the next autocast."""
    tensors = inputs(mine, device)
    counts = []
    for function in filter(None, (mine, other)):
        for cached in (True, False):
            for calls in (1, 2):
                with Casts() as casts, torch.autocast(
                    device, dtype=torch.bfloat16, cache_enabled=cached
                ):  # fmt: skip
                    for _ in range(calls):
                        function(*tensors)
                counts.append(casts.count)
    n = len(tensors)
    assert counts[:4] == [n, n, n, 2 * n]
    assert counts[:4] * (len(counts) // 4) == counts


def test_gradients_accumulate_through_a_kept_cast(device: str) -> None:
    """The one cast that two calls share gets the sum of their gradients."""
    tensors = inputs(depthwise, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        (depthwise(*tensors) + depthwise(*tensors)).float().square().sum().backward()
    shared = [t.grad.clone() for t in tensors if t.grad is not None]
    for t in tensors:
        t.grad = None
    with torch.autocast(device, dtype=torch.bfloat16):
        (grouped(*tensors) + grouped(*tensors)).float().square().sum().backward()
    assert len(shared) == len(tensors)
    assert all(g.dtype == torch.float32 for g in shared)
    expected = [t.grad for t in tensors]
    torch.testing.assert_close(shared, expected, rtol=5e-2, atol=5e-1)


@pytest.mark.parametrize("lower", LOWER, ids=str)
def test_pointwise_operators_do_as_upstreams(lower: torch.dtype, device: str) -> None:
    """sigmoid_ext keeps its dtype, axpy_ext takes the wider of two, as sigmoid and add do."""
    dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32]
    with torch.autocast(device, dtype=lower):
        for a, b in product(dtypes, dtypes):
            x = torch.testing.make_tensor((3, 5), dtype=a, device=device)
            for shape in ((3, 5), ()):
                y = torch.testing.make_tensor(shape, dtype=b, device=device)
                mine, other = torch.axpy_ext(x, y), torch.add(y, x, alpha=2)
                assert mine.dtype == other.dtype == torch.result_type(x, y)
                torch.testing.assert_close(mine, other)
            assert torch.sigmoid_ext(x).dtype == torch.sigmoid(x).dtype
            assert torch.sigmoid_ext(x).dtype == (a if a.is_floating_point else torch.float32)


def test_gradients_of_axpy_come_in_the_operands_dtypes(device: str) -> None:
    """A narrow and a wide operand."""
    x = torch.randn(3, 5, device=device, dtype=torch.bfloat16, requires_grad=True)
    y = torch.randn(3, 5, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        z = torch.axpy_ext(x, y)
    assert z.dtype == torch.float32
    found = torch.autograd.grad(z.sum(), (x, y))
    assert [g.dtype for g in found] == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("function", [depthwise, cell])
def test_compiles_whole(function: Function, device: str) -> None:
    """Autocast inside of a compiled function and around it."""
    torch._dynamo.reset()
    tensors = inputs(function, device)

    def inside(*args: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return function(*args)

    compiled = torch.compile(inside, fullgraph=True, backend="aot_eager")
    actual, expected = compiled(*tensors), inside(*tensors)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual, tensors, grad), torch.autograd.grad(expected, tensors, grad)
    )
    around = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, dtype=torch.bfloat16):
        torch.testing.assert_close(around(*tensors), expected)


@pytest.mark.parametrize("function", [depthwise, cell])
@pytest.mark.parametrize("shared", [True, False])
def test_under_vmap(shared: bool, function: Function, device: str) -> None:
    """The dtype of the loop, with parameters that are shared and not."""
    tensors = [torch.stack([t.detach(), -t.detach()]) for t in inputs(function, device)]
    own = [not shared or k not in (1, 2) for k in range(len(tensors))]
    dims = tuple(0 if o else None for o in own)
    given = [t if o else t[0] for t, o in zip(tensors, own, strict=True)]
    with torch.autocast(device, dtype=torch.bfloat16):
        actual = torch.vmap(function, dims)(*given)
        loop = [function(*(t[k] if o else t for t, o in zip(given, own, strict=True)))
                for k in range(2)]  # fmt: skip
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, torch.stack(loop), rtol=2e-2, atol=2e-2)
