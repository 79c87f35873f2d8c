"""lltm_cell: values, dtypes, strides, sizes, derivatives of every order, refusals, compilation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

op = torch.lltm_cell
backward = torch.ops.aten.lltm_cell_backward
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# B, F, S: vectors and segments exactly filled, one more, one less; nothing at all.
SIZES = [
    (1, 1, 1),
    (2, 3, 5),
    (16, 32, 128),
    (65, 7, 129),
    (3, 16, 127),
    (0, 4, 3),
    (2, 0, 3),
    (3, 4, 0),
    (130, 2, 300),
]


def make(
    sizes: tuple[int, int, int], dtype: torch.dtype, device: str = "cpu", grad: bool = False
) -> list[Tensor]:
    """Input, weight, bias, old_h, old_cell."""
    batch, features, state = sizes
    shapes = [
        (batch, features), (3 * state, features + state), (3 * state,), (batch, state),
        (batch, state),
    ]  # fmt: skip
    return [torch.randn(s, device=device).to(dtype).requires_grad_(grad) for s in shapes]


def walkthrough(x: Tensor, w: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The cell as the walkthrough's Python code has it."""
    gates = torch.nn.functional.linear(torch.cat([h, x], 1), w, b)
    i, o, candidate = gates.chunk(3, 1)
    cell = c + torch.nn.functional.elu(candidate) * torch.sigmoid(i)
    return torch.tanh(cell) * torch.sigmoid(o), cell, gates


def gradients(
    function: Callable[..., tuple[Tensor, ...]], tensors: list[Tensor], grads: list[Tensor]
) -> tuple[Tensor, ...]:
    """Of the first two results, for all five arguments."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(function(*leaves)[:2], leaves, grads)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_and_gradients_are_the_walkthroughs(
    dtype: torch.dtype, sizes: tuple[int, int, int], device: str
) -> None:
    """Against float64."""
    tensors = make(sizes, dtype, device)
    grads = [torch.randn_like(t) for t in tensors[3:]]
    wide = [t.double() for t in tensors]
    loose = dtype in (torch.float16, torch.bfloat16)
    options = {"rtol": 0.1, "atol": 0.15} if loose else {"rtol": 1e-4, "atol": 1e-4}
    for mine, other in zip(op(*tensors), walkthrough(*wide), strict=True):
        assert mine.dtype == dtype
        assert mine.is_contiguous()
        torch.testing.assert_close(mine.double(), other, **options)
    expected = gradients(walkthrough, wide, [g.double() for g in grads])
    for mine, other in zip(gradients(op, tensors, grads), expected, strict=True):
        assert mine.dtype == dtype
        scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(mine.double() / scale, other / scale, **options)


@pytest.mark.parametrize("dtype", [t for t in FLOATS if t != torch.float64], ids=str)
def test_error_is_not_above_that_of_separate_operators(dtype: torch.dtype, device: str) -> None:
    """In the mean square over all results, forward and backward, on the same inputs."""
    tensors = make((64, 48, 96), dtype, device)
    tensors[1] = tensors[1] / 12
    grads = [torch.randn_like(t) for t in tensors[3:]]
    wide = [t.double() for t in tensors]
    exact = [
        *walkthrough(*wide)[:2],
        *gradients(walkthrough, wide, [g.double() for g in grads]),
    ]

    def errors(function: Callable[..., tuple[Tensor, ...]]) -> Tensor:
        results = [*function(*tensors)[:2], *gradients(function, tensors, grads)]
        return torch.stack(
            [(a.double() - b).square().mean().sqrt() for a, b in zip(results, exact, strict=True)]
        )

    # Where both round the same product the two differ by luck alone: a few per cent.
    assert (errors(op) <= 1.1 * errors(walkthrough)).all()


def test_results_have_names(device: str) -> None:
    """A torch.return_types class, which is a tuple too."""
    result = op(*make((2, 3, 4), torch.float32, device))
    assert isinstance(result, torch.return_types.lltm_cell)
    new_h, new_cell, gates = result
    assert result.new_h is new_h
    assert result.new_cell is new_cell
    assert result.gates is gates
    assert gates.shape == (2, 12)


def test_both_ends_of_the_activations(device: str) -> None:
    """No infinity times zero, forward or backward, where gates are very large."""
    x, w, _, h, c = make((4, 2, 3), torch.float32, device)
    for sign in product((-200.0, 200.0), repeat=3):
        bias = torch.tensor(sign, device=device).repeat_interleave(3)
        tensors = [x, w, bias, h, c]
        grads = [torch.ones_like(h), torch.ones_like(c)]
        expected = gradients(
            walkthrough, [t.double() for t in tensors], [g.double() for g in grads]
        )
        for mine, other in zip(gradients(op, tensors, grads), expected, strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)
        leaves = [t.double().requires_grad_() for t in tensors]
        first = torch.autograd.grad(op(*leaves)[0].sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        assert all(g.isfinite().all() for g in second)


@pytest.mark.parametrize("index", range(5))
def test_nan_goes_where_the_separate_operators_let_it(index: int, device: str) -> None:
    """In one place of each argument in turn."""
    tensors = make((3, 4, 5), torch.float32, device)
    tensors[index].view(-1)[1] = float("nan")
    for mine, other in zip(op(*tensors), walkthrough(*tensors), strict=True):
        assert torch.equal(mine.isnan(), other.isnan())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_strides_change_nothing(dtype: torch.dtype, device: str) -> None:
    """Transposed, sliced and expanded operands and gradients."""
    tensors = make((5, 8, 16), dtype, device)
    expected = op(*tensors)
    grads = [torch.randn_like(t) for t in tensors[3:]]
    expected_grads = gradients(op, tensors, grads)
    for layout in (
        lambda t: t.t().contiguous().t() if t.dim() == 2 else t,
        lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
        lambda t: torch.cat([t[..., :1], t], -1)[..., 1:],
    ):
        strided = [layout(t) for t in tensors]
        for mine, other in zip(op(*strided), expected, strict=True):
            torch.testing.assert_close(mine, other)
        actual = gradients(op, strided, [layout(g) for g in grads])
        for mine, other in zip(actual, expected_grads, strict=True):
            torch.testing.assert_close(mine, other)
    leaves = [t.detach().requires_grad_() for t in tensors]
    sum(t.sum() for t in op(*leaves)[:2]).backward()
    ones = [torch.ones_like(g) for g in grads]
    for leaf, other in zip(leaves, gradients(op, tensors, ones), strict=True):
        torch.testing.assert_close(leaf.grad, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pointwise_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    """Without the products (F = 0, a weight of zeros): gates, cell and bias gradient."""
    tensors = make((300, 0, 200), dtype)
    tensors[1].zero_()
    grads = [torch.randn_like(t) for t in tensors[3:]]
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([*op(*tensors), *gradients(op, tensors, grads)[2:]])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_bias_gradient_of_many_rows_does_not_saturate(device: str) -> None:
    """A 16-bit sum of ones would stop at 256."""
    batch = 3000
    _, weight, bias, _, _ = make((1, 1, 4), torch.bfloat16, device)
    zeros = torch.zeros(batch, 4, dtype=torch.bfloat16, device=device)
    grad = torch.ones(batch, 12, dtype=torch.bfloat16, device=device)
    mask = [False, False, True, False, False]
    results = backward(
        None, None, grad, zeros[:, :1], weight, zeros, zeros, torch.zeros_like(grad), mask
    )
    assert results[2].tolist() == torch.full_like(bias, batch).tolist()


@pytest.mark.usefixtures("no_vmap_fallback")
@pytest.mark.parametrize("sizes", [(2, 3, 2), (1, 2, 3), (3, 0, 2)], ids=str)
def test_gradients_of_every_order_and_mode(sizes: tuple[int, int, int], device: str) -> None:
    """All five arguments, all three results, slow mode; forward over reverse; batched."""
    tensors = make(sizes, torch.float64, device, grad=True)
    assert gradcheck(op, tensors, check_forward_ad=True, check_batched_grad=True, nondet_tol=0.0)
    assert gradgradcheck(op, tensors, check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.parametrize("used", [u for u in product((0, 1), repeat=3) if any(u)], ids=str)
def test_any_results_may_be_used(used: tuple[int, ...], device: str) -> None:
    """Undefined gradients are zeros, in the double backward too."""
    tensors = make((2, 3, 4), torch.float64, device, grad=True)

    def second(function: Callable[..., tuple[Tensor, ...]]) -> list[Tensor | None]:
        results = function(*tensors)
        total = sum(r.square().sum() for r, use in zip(results, used, strict=True) if use)
        first = torch.autograd.grad(total, tensors, create_graph=True, allow_unused=True)
        total = sum((g.square() * g).sum() for g in first if g is not None)
        return [*first, *torch.autograd.grad(total, tensors, allow_unused=True)]

    for mine, other in zip(second(op), second(walkthrough), strict=True):
        if mine is None or other is None:
            assert all(t is None or not t.any() for t in (mine, other))
        else:
            torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("mask", [m for m in product((True, False), repeat=5) if any(m)], ids=str)
def test_every_output_mask(mask: tuple[bool, ...], device: str) -> None:
    """What is not asked for is None, the rest the same; on meta as well."""
    x, w, b, h, c = make((3, 4, 5), torch.float32, device)
    _, cell, gates = op(x, w, b, h, c)
    grads = [torch.randn_like(h), torch.randn_like(c), None]
    full = backward(*grads, x, w, h, cell, gates, [True] * 5)
    some = backward(*grads, x, w, h, cell, gates, mask)
    on_meta = [t if t is None else t.to("meta") for t in (*grads, x, w, h, cell, gates)]
    meta = backward(*on_meta, mask)
    for a, b_, m, keep in zip(full, some, meta, mask, strict=True):
        if keep:
            assert torch.equal(a, b_)
            assert (m.shape, m.stride(), m.dtype) == (a.shape, a.stride(), a.dtype)
        else:
            assert b_ is None
            assert m is None


def test_derivatives_of_the_backward_itself(device: str) -> None:
    """As a function of its eight tensors, reverse and forward."""
    x, w, b, h, c = make((2, 3, 2), torch.float64, device)
    _, cell, gates = op(x, w, b, h, c)
    grads = [torch.randn_like(t) for t in (h, c, gates)]
    tensors = [t.detach().requires_grad_() for t in (*grads, x, w, h, cell, gates)]

    def call(*args: Tensor) -> tuple[Tensor, ...]:
        return backward(*args, [True] * 5)

    assert gradcheck(call, tensors, check_forward_ad=True)
    assert gradgradcheck(call, tensors, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("where", ["here", "meta"])
@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (0, (3,), r"expected input to have 2 dimensions.*\[3\]"),
        (0, (2, 4), r"expected weight to be of size \[12, 8\]"),
        (0, (3, 3), r"expected old_h to be of size \[3, 4\]"),
        (1, (12, 6), r"expected weight to be of size \[12, 7\].*\[12, 6\]"),
        (2, (11,), r"expected bias to be of size \[12\].*\[11\]"),
        (2, (1, 12), "expected bias to have 1 dimension"),
        (3, (3, 4), "expected old_h to be of size"),
        (3, (2, 2, 2), "expected old_h to have 2 dimensions"),
        (4, (2, 5), r"expected old_cell to be of size \[2, 4\].*\[2, 5\]"),
    ],
)
def test_wrong_sizes_are_refused(
    index: int, shape: tuple[int, ...], message: str, where: str, device: str
) -> None:
    """By name and value, the same on every backend."""
    place = device if where == "here" else "meta"
    tensors = make((2, 3, 4), torch.float32, place)
    tensors[index] = torch.randn(shape, device=place)
    with pytest.raises(RuntimeError, match=rf"lltm_cell\(\): {message}"):
        op(*tensors)


@pytest.mark.parametrize("index", range(1, 5))
def test_mixed_dtypes_and_devices_are_refused(index: int, device: str) -> None:
    """Every argument must be as input is."""
    tensors = make((2, 3, 4), torch.float32, device)
    wrong = [t.double() if i == index else t for i, t in enumerate(tensors)]
    with pytest.raises(
        RuntimeError, match=r"lltm_cell\(\): expected \w+ to have the input's dtype"
    ):
        op(*wrong)
    wrong = [t.to("meta") if i == index else t for i, t in enumerate(tensors)]
    with pytest.raises(RuntimeError, match="device"):
        op(*wrong)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool], ids=str)
def test_other_dtypes_are_refused(dtype: torch.dtype, device: str) -> None:
    """Integers and complex numbers have no gates."""
    tensors = [t.to(dtype) for t in make((2, 3, 4), torch.float32, device)]
    with pytest.raises(RuntimeError, match=r"lltm_cell\(\): expected input to be float"):
        op(*tensors)


def test_out_variant(device: str) -> None:
    """By the code generator."""
    tensors = make((2, 3, 4), torch.float32, device)
    expected = op(*tensors)
    outs = [torch.empty(0, device=device) for _ in range(3)]
    torch.ops.aten.lltm_cell.out(*tensors, out0=outs[0], out1=outs[1], out2=outs[2])
    assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))


class Cell(torch.nn.Module):
    """A module around the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(12, 7))
        self.bias = torch.nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Two steps."""
        h, c, _ = torch.lltm_cell(x, self.weight, self.bias, h, c)
        h, c, _ = torch.lltm_cell(x, self.weight, self.bias, h, c)
        return h, c


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_exports_and_scripts() -> None:
    """One graph with its backward; dynamic batch; torch.export; TorchScript."""
    x, _, _, h, c = make((5, 3, 4), torch.float32)
    cell = Cell()
    expected = cell(x, h, c)
    grads = torch.autograd.grad(sum(t.square().sum() for t in expected), list(cell.parameters()))
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(cell, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        results = compiled(x, h, c)
        torch.testing.assert_close(results, expected)
        actual = torch.autograd.grad(
            sum(t.square().sum() for t in results), list(cell.parameters())
        )
        torch.testing.assert_close(actual, grads)
        torch.testing.assert_close(compiled(x[:3], h[:3], c[:3])[0], expected[0][:3])
    batch = torch.export.Dim("batch")
    exported = torch.export.export(cell, (x, h, c), dynamic_shapes=[{0: batch}] * 3)
    torch.testing.assert_close(exported.module()(x[:2], h[:2], c[:2])[0], expected[0][:2])
    scripted = torch.jit.script(cell)
    torch.testing.assert_close(scripted(x, h, c), expected)
