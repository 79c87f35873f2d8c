"""Operators for the checks: one of upstream's, which is whole, and some that lack one thing each.

The latter are registered from Python. They double their argument, but for what is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchfork.codegen.model import CppCall, FinishedOperator
from torchfork.conformance.checks import samples
from torchfork.conformance.checks.bench import Bench, CheckFailed, NotApplicable, Unavailable
from torchfork.conformance.checks.operators import Operator
from torchfork.conformance.checks.samples import Sample

_LIBRARY = torch.library.Library("aten", "FRAGMENT")
_MADE: set[str] = set()


def entry(schema: str, **changes: Any) -> FinishedOperator:
    """What the plan would say of a function."""
    name, _, variant = schema.partition("(")[0].partition(".")
    plain = FinishedOperator(
        name=name, overload=variant, schema=schema, base_name=name.removesuffix("_"),
        kind="functional", generated=False, variants=(), python_module=None, python_function=False,
        python_method=False, new_name=True, new_base_name=True, view_of=None,
        composite_implicit=False, differentiable=False, tensor_arguments=True, factory=False,
        structseq=None, pyi_function=(), pyi_method=(), signature="", cpp_function=None,
        cpp_method=None,
    )  # fmt: skip
    return replace(plain, **changes)


def upstreams() -> Operator:
    """torch.sigmoid with all of its variants: every check holds for it."""
    function = CppCall("sigmoid", "at::Tensor", (("const at::Tensor &", "self"),), 0)
    method = replace(function, arguments=())
    both = {"python_function": True, "python_method": True}
    return Operator(
        entry("sigmoid(Tensor self) -> Tensor", **both, cpp_function=function, cpp_method=method),
        (
            entry("sigmoid_(Tensor(a!) self) -> Tensor(a!)", kind="inplace", **both),
            entry("sigmoid.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", kind="out"),
        ),
        True,
        True,
    )  # fmt: skip


def declared(schema: str, key: str = "CPU", **kernels: Callable[..., Any]) -> FinishedOperator:
    """Register a function from Python; kernels: a kernel by dispatch key, by default one that
    doubles.
    """
    name = schema.partition("(")[0]
    if name not in _MADE:
        _MADE.add(name)
        _LIBRARY.define(schema)
        for dispatch_key, kernel in {key: lambda x: x * 2, **kernels}.items():
            _LIBRARY.impl(name, kernel, dispatch_key)
    return entry(schema)


def broken(
    name: str, *variants: FinishedOperator, formula: bool = False, changes: Any = None,
    **kernels: Callable[..., Any],
) -> Operator:  # fmt: skip
    """An operator of one argument with the given kernels, and a Meta kernel unless they have one.

    changes: of its entry.
    """
    given: dict[str, Any] = {"Meta": torch.empty_like, **kernels}
    given = {key: kernel for key, kernel in given.items() if kernel is not None}
    noted = declared(f"citizen_{name}(Tensor self) -> Tensor", **given)
    return Operator(replace(noted, **(changes or {})), variants, formula, formula)


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    """Doubles, with gradients of any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Wrong(Doubled):
    """A gradient that is not that of doubling."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


class Cubed(torch.autograd.Function):  # type: ignore[misc]
    """A right first gradient whose own gradient is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x.detach() ** 2


def looping_backward() -> Any:
    """A gradient by an operator that has no batch rule."""
    declared("citizen_unbatched(Tensor self) -> Tensor", Meta=torch.empty_like)

    class Loops(Doubled):
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return torch.ops.aten.citizen_unbatched(grad)

    return Loops


def bench(tmp_path: Path, op: Operator, **more: Any) -> Bench:
    """Samples of one argument for an operator, OpInfos where it is upstream's."""
    infos = samples.load_infos() if op.id == "sigmoid" else more.pop("infos", {})
    source = Given(None, infos, [op])
    plain: dict[str, Any] = {"prepared": {}, "documented": frozenset()}
    return Bench(source, tmp_path, **{**plain, **more})


class Given(samples.Source):
    """Gives every operator without an OpInfo a few tensors."""

    def every(
        self, op: Operator, device: str, dtype: Any = torch.float32, requires_grad: bool = False
    ) -> list[Sample]:
        if samples.info_name(op) in self.infos:
            return super().every(op, device, dtype, requires_grad)
        torch.manual_seed(0)
        make = samples.maker(device, dtype, requires_grad)
        return [samples.normal(op, (make(*shape),), {}) for shape in ((2, 3, 4, 5), (4, 3), (3,))]


def outcome(item: Any, op: Operator, bench: Bench, device: str = "cpu") -> str:
    """'full', or the kind of the exception and what it says."""
    torch.manual_seed(0)
    try:
        item.run(op, device, bench)
    except (CheckFailed, NotApplicable, Unavailable) as ended:
        return f"{type(ended).__name__}: {ended}"
    except Exception as error:  # the worker calls any other a gap, too
        return f"CheckFailed: {type(error).__name__}: {error}"
    return "full"
