"""Every helper that a graft provides gives upstream's own gradients: first, second, and forward."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from twins import CASES, twin

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


def test_every_provided_helper_has_a_twin_that_calls_it() -> None:
    support = Path(__file__).parents[2] / "scripts/lib/torchfork/support/functions_manual.cpp"
    text = support.read_text(encoding="utf-8").partition("} // namespace\n")[2]
    provided = set(re.findall(r"^(?:\w\S* )*(\w+)\(", text, re.MULTILINE))
    packaged = Path(torchgen.__file__).parent / "packaged"
    formulas = (packaged / "autograd" / "derivatives.yaml").read_text(encoding="utf-8")
    called = set(re.findall(r"\w+", formulas[formulas.index("twin_") :]))
    # Upstream's formula for nested tensors calls it; here every reduction does.
    assert provided - called == {"unsqueeze_multiple"}
