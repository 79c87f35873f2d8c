"""sigmoid_ext and its backward: values, both ends, dtypes, strides, variants, derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numerics import exact_array
from numerics_pointwise import sigmoid_exact
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

op = torch.sigmoid_ext
backward = torch.ops.aten.sigmoid_ext_backward
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPES = [(), (0,), (1,), (7,), (16,), (17,), (257,), (3, 0, 5), (5, 33), (2, 3, 4, 5)]
# How a tensor of some values lies in memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "offset": lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
}


def exact(x: Tensor) -> Tensor:
    """In float64, on the CPU; correct at both ends."""
    return torch.special.expit(x.double().cpu())


def error(actual: Tensor, x: Tensor) -> float:
    """The largest error against a wider type: float64's own expit is upstream's sigmoid."""
    return float(np.abs(exact_array(actual) - sigmoid_exact(exact_array(x))).max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_are_those_of_float64(
    dtype: torch.dtype, shape: tuple[int, ...], device: str
) -> None:
    """Any shape, from 0-d and empty to more than one vector."""
    x = (torch.randn(shape, device=device) * 6).to(dtype)
    y = op(x)
    assert y.dtype == dtype
    assert y.shape == x.shape
    torch.testing.assert_close(y.cpu(), exact(x).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_error_is_not_above_upstreams(dtype: torch.dtype, device: str) -> None:
    """On the same inputs, over the range where the function is neither 0 nor 1."""
    x = torch.linspace(-20, 20, 100_001, dtype=torch.float64, device=device).to(dtype)
    # Half of the last place of the largest result: what correct rounding may cost either of them.
    slack = torch.finfo(dtype).eps / 2
    assert error(op(x), x) <= error(torch.sigmoid(x), x) + slack


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_both_ends_are_exact(dtype: torch.dtype, device: str) -> None:
    """Tiny results keep their relative accuracy; nothing overflows on the way to 0 and 1."""
    x = torch.tensor([-90.0, -60.0, -12.0, 60.0, 90.0], device=device).to(dtype)
    y = op(x).double().cpu()
    tiny = torch.finfo(torch.float32 if dtype != torch.float64 else dtype).tiny
    torch.testing.assert_close(
        y, exact(x).to(dtype).double(), rtol=8 * torch.finfo(dtype).eps, atol=tiny
    )
    ends = torch.tensor([float("-inf"), float("inf"), -1e4, 1e4], device=device).to(dtype)
    assert op(ends).tolist() == [0, 1, 0, 1]
    assert op(torch.full((19,), float("nan"), device=device, dtype=dtype)).isnan().all()


@pytest.mark.parametrize("position", range(0, 40, 3))
def test_nan_stays_in_its_place(position: int, device: str) -> None:
    """No lane of a vector touches another."""
    x = torch.randn(40, device=device)
    x[position] = float("nan")
    assert op(x).isnan().nonzero().flatten().tolist() == [position]
    assert backward(x, torch.full_like(x, 0.5)).isnan().nonzero().flatten().tolist() == [position]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64], ids=str)
def test_integers_give_the_default_dtype(dtype: torch.dtype, device: str) -> None:
    """As torch.sigmoid."""
    x = torch.arange(5, device=device).to(dtype)
    torch.testing.assert_close(op(x), torch.sigmoid(x))
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.sigmoid_ext_()


@pytest.mark.parametrize("target", [torch.cfloat, torch.cdouble], ids=str)
@pytest.mark.parametrize("where", ["here", "meta"])
def test_complex_is_refused(target: torch.dtype, where: str, device: str) -> None:
    """With the operator's and the argument's name, on every backend the same."""
    x = torch.ones(3, dtype=target, device=device if where == "here" else "meta")
    with pytest.raises(RuntimeError, match=r"sigmoid_ext\(\): expected self to be .*Complex"):
        op(x)
    with pytest.raises(RuntimeError, match=r"sigmoid_ext_backward\(\): expected grad_output to be"):
        backward(x, x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_strides_change_no_bit(dtype: torch.dtype, layout: str, device: str) -> None:
    """Forward and backward; the result has the strides that torch.sigmoid gives."""
    x = torch.randn(9, 35, device=device).to(dtype)
    grad = torch.randn(9, 35, device=device).to(dtype)
    strided = LAYOUTS[layout](x)
    assert torch.equal(op(strided), op(x))
    assert op(strided).stride() == torch.sigmoid(strided).stride()
    y = op(x)
    expected = backward(grad, y)
    assert torch.equal(backward(LAYOUTS[layout](grad), LAYOUTS[layout](y)), expected)
    assert torch.equal(backward(grad, LAYOUTS[layout](y)), expected)


def test_expanded_gradient(device: str) -> None:
    """Stride 0 everywhere, as sum().backward() hands it over."""
    x = torch.randn(6, 11, device=device, requires_grad=True)
    op(x).sum().backward()
    y = torch.sigmoid(x.detach().double())
    torch.testing.assert_close(x.grad, (y * (1 - y)).float())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    """Where the threads' shares end falls inside vectors."""
    x = torch.randn(100_003).to(dtype)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            results.append((op(x), backward(x, op(x))))
    finally:
        torch.set_num_threads(before)
    for y, grad in results[1:]:
        assert torch.equal(y, results[0][0])
        assert torch.equal(grad, results[0][1])


def test_variants_agree(device: str) -> None:
    """Function, method, in-place function and method, out."""
    x = torch.randn(5, 7, device=device)
    y = op(x)
    assert torch.equal(x.sigmoid_ext(), y)
    for inplace in (torch.sigmoid_ext_, torch.Tensor.sigmoid_ext_):
        z = x.clone()
        assert inplace(z) is z
        assert torch.equal(z, y)
    out = torch.empty_like(x)
    assert op(x, out=out) is out
    assert torch.equal(out, y)
    grad_input = torch.empty_like(x)
    backward.grad_input(x, y, grad_input=grad_input)
    assert torch.equal(grad_input, backward(x, y))


def test_out_of_another_dtype_or_device_is_refused(device: str) -> None:
    """No silent cast to integers, no partial overlap."""
    x = torch.randn(6, device=device)
    with pytest.raises(RuntimeError, match="can't be cast"):
        op(x, out=torch.empty(6, dtype=torch.int32, device=device))
    with pytest.raises(RuntimeError, match="device"):
        op(x, out=torch.empty(6, device="meta"))
    with pytest.raises(RuntimeError, match="single memory location"):
        op(x[:-1], out=x[1:])
    wide = torch.empty(6, dtype=torch.float64, device=device)
    torch.testing.assert_close(op(x, out=wide), op(x).double())


def test_backward_is_the_derivative(device: str) -> None:
    """Every order and mode, also of the backward itself, batched too."""
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    grad = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.rand(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    modes = {"check_forward_ad": True, "check_batched_grad": True}
    assert gradcheck(op, x, nondet_tol=0.0, **modes)
    assert gradgradcheck(op, x, check_fwd_over_rev=True)
    assert gradcheck(backward, (grad, y), nondet_tol=0.0, **modes)
    assert gradgradcheck(backward, (grad, y), check_fwd_over_rev=True)


def test_in_place_has_a_gradient(device: str) -> None:
    """The result is what is saved, so self may be overwritten."""
    x = torch.randn(5, dtype=torch.float64, device=device, requires_grad=True)
    (expected,) = torch.autograd.grad(op(x).square().sum(), x)
    (actual,) = torch.autograd.grad((x * 1).sigmoid_ext_().square().sum(), x)
    torch.testing.assert_close(actual, expected)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach().clone(), torch.ones_like(x))
        dual.sigmoid_ext_()
        y = torch.sigmoid(x.detach())
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, y * (1 - y))


def test_backward_broadcasts_and_takes_zero_dim_tensors_of_the_cpu(device: str) -> None:
    """As binary operators do."""
    y = op(torch.randn(4, 5, device=device))
    grad = torch.tensor(2.0)
    torch.testing.assert_close(backward(grad, y), 2 * y * (1 - y))
    row = torch.randn(5, device=device)
    torch.testing.assert_close(backward(row, y), row * y * (1 - y))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_scripts_and_exports() -> None:
    """One graph, dynamic shapes, in-place included."""
    x = torch.randn(4, 6)

    def function(x: Tensor) -> Tensor:
        return torch.sigmoid_ext((x * 2).sigmoid_ext_())

    expected = function(x)
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        torch.testing.assert_close(compiled(x), expected)
        torch.testing.assert_close(compiled(x[:3]), expected[:3])
    scripted = torch.jit.script(function)
    assert "aten::sigmoid_ext" in str(scripted.graph)
    torch.testing.assert_close(scripted(x), expected)
