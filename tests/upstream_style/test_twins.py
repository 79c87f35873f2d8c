"""Every helper that a graft provides gives upstream's own gradients: first, second, and forward."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from twins import TWINS, twin

Args = tuple[Any, ...]
NAN, INF = float("nan"), float("inf")


def t(*shape: int, dtype: torch.dtype = torch.float64, low: float = 0.3) -> torch.Tensor:
    """A tensor to differentiate; values of both signs, none of them near 0."""
    values = torch.randn(shape, dtype=dtype)
    return (values + low * values.sgn()).requires_grad_()


def c(*shape: int) -> torch.Tensor:
    return t(*shape, dtype=torch.complex128)


def of(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def positive(*shape: int) -> torch.Tensor:
    return (torch.rand(shape, dtype=torch.float64) + 0.2).requires_grad_()


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values)


# Operator -> calls of it, with arguments made anew; a dict at the end is for those by keyword.
CASES: dict[str, Callable[[], list[Args]]] = {
    "add.Tensor": lambda: [(t(3), t(2, 1)), (t(3), c(3))],
    "addcmul": lambda: [(t(3), t(2, 3), c(3))],
    "sub.Tensor": lambda: [(t(3), c(2, 3))],
    "abs": lambda: [(t(3),), (c(3),)],
    "mul.Tensor": lambda: [(t(3), t(2, 1)), (t(3), c(3))],
    "mul.Scalar": lambda: [(t(3), 2.5), (c(3), 1j)],
    "div.Tensor": lambda: [(t(3), t(2, 1)), (t(3), c(3))],
    "div.Scalar": lambda: [(t(3), 2.5), (c(3), 2j)],
    "div.Tensor_mode": lambda: [
        (t(3), t(3), {"rounding_mode": "floor"}),
        (t(3), t(3), {"rounding_mode": None}),
    ],
    "pow.Tensor_Scalar": lambda: [(t(3), 3), (positive(3), 0.5), (c(3), 2), (t(3), 0)],
    "pow.Tensor_Tensor": lambda: [(positive(3), t(3)), (of(0, 0, 2), of(2, 0, 1.5)), (c(3), c(3))],
    "pow.Scalar": lambda: [(2.5, t(3)), (0, of(1, 2.5))],
    "angle": lambda: [(t(3),), (c(3),)],
    "sgn": lambda: [
        (t(3),),
        (c(3),),
        (torch.zeros(2, dtype=torch.complex128, requires_grad=True),),
    ],
    "atan2": lambda: [(t(3), t(2, 3))],
    "log1p": lambda: [(positive(3),), (c(3),)],
    "sinc": lambda: [(t(3),), (of(0, 1, 0.3),), (c(3),)],
    "rad2deg": lambda: [(t(3),)],
    "deg2rad": lambda: [(t(3),)],
    "masked_fill.Tensor": lambda: [(t(2, 3), index(1, 0, 1).bool(), t())],
    "clamp": lambda: [
        (t(9), -0.5, 0.5),
        (t(9), None, 0.5),
        (t(9), -0.5, None),
        (of(1, 2, NAN), 1, 2),
    ],
    "clamp.Tensor": lambda: [(t(9), t(9), t(9)), (t(9), t(9), None), (t(2, 9), None, t(9))],
    "sum.dim_IntList": lambda: [
        (t(2, 3), [1]),
        (t(2, 3), None),
        (t(2, 3), [-2, 1], True),
        (t(), [0]),
    ],
    "nansum": lambda: [(of(1, NAN, 2), [0]), (t(2, 3), [1], True)],
    "mean.dim": lambda: [(t(2, 3), [1]), (c(2, 3), [0], True), (t(2, 3), None)],
    "prod": lambda: [(t(2, 3),), (of(0, 2, 3),), (of(0, 0, 3),), (c(3),)],
    "prod.dim_int": lambda: [(t(2, 3), 1), (c(2, 3), -2, True), (of(0, 2), 0), (t(), 0)],
    "cumsum": lambda: [(t(2, 3), 1), (t(), 0)],
    "logsumexp": lambda: [(t(2, 3), [1]), (t(2, 3), [0, 1], True), (t(), [0])],
    "var.correction": lambda: [
        (t(2, 3), [1]),
        (c(2, 3), None),
        (t(2, 1), [1]),
        (t(4), [0], {"correction": 0}),
    ],
    "std.correction": lambda: [(t(2, 3), [1]), (t(2, 3), None), (of(1, 1, 1), [0])],
    "var_mean.correction": lambda: [(t(2, 3), [1]), (t(2, 3), None)],
    "std_mean.correction": lambda: [(t(2, 3), [1]), (c(2, 3), None)],
    "norm.Scalar": lambda: [(t(2, 3), p) for p in (0, 1, 2, 3, 1.5, 0.5, INF)] + [(c(3), 2)],
    "norm.ScalarOpt_dim": lambda: [(t(2, 3), p, [1]) for p in (None, 1, 3, INF)],
    "linalg_vector_norm": lambda: [
        *((t(2, 3), p, [1]) for p in (0, 1, 2, 3, 1.5, 0.5, INF, -INF)),
        (torch.zeros(3, dtype=torch.float64, requires_grad=True), 2),
        (c(2, 3), 2, None, True),
    ],
    "amax": lambda: [(t(2, 3), [1]), (of(1, 2, 2), []), (t(2, 3), [0], True)],
    "max": lambda: [(t(2, 3),), (of(1, 2, 2),), (of(1, NAN, NAN),)],
    "max.dim": lambda: [(t(2, 3), 1), (t(2, 3), 0, True), (t(), 0)],
    "sort": lambda: [(t(2, 3), 1)],
    "index.Tensor": lambda: [(t(3, 2), [index(0, 2, 0)]), (t(3, 2), [None, index(1, 1)])],
    "take": lambda: [(t(2, 3), index(0, 5, 0))],
    "gather": lambda: [(t(2, 3), 1, torch.tensor([[0, 0], [2, 1]]))],
    "squeeze": lambda: [(t(1, 3, 1),)],
    "squeeze.dim": lambda: [(t(1, 3), 0), (t(1, 3), 1), (t(), 0)],
    "squeeze.dims": lambda: [(t(1, 3, 1), [0, -1]), (t(1, 3), [0, 1])],
    "permute": lambda: [(t(2, 3, 4), [-1, 0, 1])],
    "roll": lambda: [(t(2, 3), [1, -1], [0, 1])],
    "repeat": lambda: [(t(2, 3), [2, 1, 3]), (t(), [2]), (t(2), [0])],
    "slice.Tensor": lambda: [(t(5), 0, 1, 5, 2), (t(5),), (t(2, 5), -1, -3)],
    "split.Tensor": lambda: [(t(5, 2), 2), (t(2, 4), 2, -1)],
    "split_with_sizes": lambda: [(t(5, 2), [1, 4])],
    "unbind.int": lambda: [(t(2, 3), 1)],
    "cat": lambda: [([t(2, 3), t(1, 3)],), ([t(2, 3), c(2, 1)], 1), ([t(0), t(2, 2)], -1)],
    "stack": lambda: [([t(2), c(2)], -1)],
    "constant_pad_nd": lambda: [(t(2, 3), [1, -1, 0, 2])],
    "mm": lambda: [(t(2, 3), t(3, 2)), (t(3, 2).detach().t().requires_grad_(), c(3, 2).real)],
    "addmm": lambda: [
        (t(2, 2), c(2, 3).imag, t(3, 2).detach().t().contiguous().t().requires_grad_())
    ],
}


CALLS = [(name, number) for name, make in CASES.items() for number in range(len(make()))]
by_call = pytest.mark.parametrize(("name", "number"), CALLS, ids=lambda part: str(part))


def operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def arguments(name: str, number: int) -> tuple[list[Any], dict[str, Any], list[torch.Tensor]]:
    """The arguments of a call, by place and by keyword, and the tensors to differentiate."""
    torch.manual_seed(0)
    args = list(CASES[name]()[number])
    kwargs = args.pop() if isinstance(args[-1], dict) else {}
    leaves = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    return args, kwargs, [t for t in leaves if t.requires_grad]


def results(name: str, args: list[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found = pytree.tree_leaves(operator(name)(*args, **kwargs))
    return [t for t in found if t.is_floating_point() or t.is_complex()]


def gradients(name: str, number: int, original: str) -> list[torch.Tensor | None]:
    """First and second derivatives for random gradients of the results."""
    args, kwargs, inputs = arguments(original, number)
    found = results(name, args, kwargs)
    torch.manual_seed(1)
    grads = [torch.randn_like(t).requires_grad_() for t in found]
    first = torch.autograd.grad(found, inputs, grads, create_graph=True, allow_unused=True)
    used = [t for t in first if t is not None and t.requires_grad]
    weights = [torch.randn_like(t) for t in used]
    second = torch.autograd.grad(used, [*inputs, *grads], weights, allow_unused=True)
    return [*first, *second]


@by_call
def test_the_helpers_give_the_gradients_of_upstreams_own(name: str, number: int) -> None:
    ours, theirs = gradients(twin(name), number, name), gradients(name, number, name)
    for one, other in zip(ours, theirs, strict=True):
        # A zero may be a tensor of zeros or none at all.
        one = torch.zeros_like(other) if one is None and other is not None else one
        other = torch.zeros_like(one) if other is None and one is not None else other
        assert_close(one, other, equal_nan=True)


# Upstream's own has one dimension too many there, and forward mode refuses it.
TANGENTS = [(name, number) for name, number in CALLS if name != "norm.Scalar"]


@pytest.mark.parametrize(("name", "number"), TANGENTS, ids=lambda part: str(part))
def test_the_helpers_give_the_tangents_of_upstreams_own(name: str, number: int) -> None:
    args, kwargs, inputs = arguments(name, number)
    tangents = {id(t): torch.randn_like(t) for t in inputs}

    def tangents_of(of: str) -> list[torch.Tensor]:
        with forward_ad.dual_level():
            dual = pytree.tree_map(
                lambda a: forward_ad.make_dual(a, tangents[id(a)]) if id(a) in tangents else a, args
            )
            return [
                torch.zeros_like(t) if tangent is None else tangent
                for t in results(of, dual, kwargs)
                for tangent in [forward_ad.unpack_dual(t).tangent]
            ]

    assert_close(tangents_of(twin(name)), tangents_of(name), equal_nan=True)


def test_every_twin_is_called() -> None:
    assert CASES.keys() == set(TWINS)


def test_every_provided_helper_has_a_twin_that_calls_it() -> None:
    support = Path(__file__).parents[2] / "scripts/lib/torchfork/support/functions_manual.cpp"
    text = support.read_text(encoding="utf-8").partition("} // namespace\n")[2]
    provided = set(re.findall(r"^(?:\w\S* )*(\w+)\(", text, re.MULTILINE))
    packaged = Path(torchgen.__file__).parent / "packaged"
    formulas = (packaged / "autograd" / "derivatives.yaml").read_text(encoding="utf-8")
    called = set(re.findall(r"\w+", formulas[formulas.index("twin_") :]))
    # Upstream's formula for nested tensors calls it; here every reduction does.
    assert provided - called == {"unsqueeze_multiple"}
