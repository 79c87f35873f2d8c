"""vmap of sigmoid_ext and axpy_ext: broadcasting and type promotion as a loop has them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from vmap_cases import assert_vmap_is_the_loop, batched, every_in_dims, looped

pytestmark = pytest.mark.usefixtures("no_vmap_fallback")
aten = torch.ops.aten
PAIRS = ((), (3,), (2, 3), (2, 1, 3))


def test_the_fixture_catches_a_loop() -> None:
    """Else the tests below would show nothing."""
    with pytest.raises(RuntimeError, match="fallback"):
        vmap(torch.ops.aten._test_functorch_fallback)(torch.randn(3, 2), torch.randn(3, 2))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_sigmoid(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """As function, in place, and its backward."""
    x = torch.testing.make_tensor(shape, dtype=dtype, device=device)
    for dims in every_in_dims([x.dim()]):
        given = batched([x], dims, 4)
        assert_vmap_is_the_loop(torch.sigmoid_ext, given, dims)
        if dtype.is_floating_point:
            expected = looped(torch.sigmoid_ext, given, dims)[0]
            torch.testing.assert_close(vmap(torch.Tensor.sigmoid_ext_, dims)(given[0]), expected)
            torch.testing.assert_close(given[0].movedim(dims[0], 0), expected)
    if dtype.is_floating_point:
        for other in (torch.rand(()), torch.rand(shape)):
            pair = [x, other.to(device)]
            for dims in every_in_dims([t.dim() for t in pair]):
                assert_vmap_is_the_loop(aten.sigmoid_ext_backward, batched(pair, dims, 4), dims)


@pytest.mark.parametrize("left", PAIRS, ids=str)
@pytest.mark.parametrize("right", PAIRS, ids=str)
def test_axpy_broadcasts_and_promotes(
    left: tuple[int, ...], right: tuple[int, ...], device: str
) -> None:
    """A number that is vmapped over counts as a number and not as a vector."""
    dtypes = [torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, torch.cfloat]
    for number, (a, b) in enumerate((a, b) for a in dtypes for b in dtypes):
        pair = [
            torch.testing.make_tensor(s, dtype=t, device=device, low=-3, high=3)
            for s, t in ((left, a), (right, b))
        ]
        for dims in every_in_dims([t.dim() for t in pair], 3, seed=number):
            call = partial(torch.axpy_ext, alpha=3)
            assert_vmap_is_the_loop(call, batched(pair, dims, 2), dims, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("right", [(), (3,), (1, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_axpy_in_place(right: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Into self, through any stride; refused where self is not batched."""
    other = torch.testing.make_tensor(right, dtype=dtype, device=device, low=-3, high=3)
    for left in ((2, 3), ()) if not right else ((2, 3),):
        x = torch.randn(left, device=device)
        for dims in every_in_dims([x.dim(), other.dim()]):
            given = batched([x, other], dims, 2)
            if dims[0] is None:
                with pytest.raises(RuntimeError, match="axpy_ext_"):
                    vmap(torch.Tensor.axpy_ext_, dims)(*given)
                continue

            def out_of_place(x: Tensor, y: Tensor) -> Tensor:
                return x.clone().axpy_ext_(y, alpha=0.5)

            expected = looped(out_of_place, given, dims)[0]
            actual = vmap(lambda x, y: x.axpy_ext_(y, alpha=0.5), dims)(*given)
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
            torch.testing.assert_close(given[0].movedim(dims[0], 0), expected, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        vmap(torch.Tensor.axpy_ext_)(torch.ones(3, 3), torch.ones(3, 2, 3))


def test_a_tensor_that_escapes_is_refused() -> None:
    """It belongs to a vmap that is over."""
    escaped: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        escaped.append(x)
        return x

    vmap(keep)(torch.randn(3, 2))
    with pytest.raises(RuntimeError, match="escaped"):
        torch.sigmoid_ext(escaped[0])
