"""Differentiation: the node, gradcheck in every mode, batched gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from . import compare, needs
from .bench import Bench, Item, NotApplicable, failing, require
from .operators import Operator
from .programs import Program, make


@contextlib.contextmanager
def no_fallback() -> Iterator[None]:
    """vmap's loop in the dispatcher is off: an operator without a batch rule is an error."""
    functorch = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def programs(
    op: Operator, device: str, bench: Bench, *, limit: int = 4, dtype: Any = torch.float64
) -> list[Program]:
    """Programs of samples that require gradients, and whose results do."""
    samples = bench.source.typical(op, device, dtype, requires_grad=True, limit=limit)
    found = [make(op, sample) for sample in samples]
    chosen = [p for p in found if any(t.requires_grad for t in p.tensors) and _differentiable(p)]
    if not chosen and op.implicit:
        raise NotApplicable("no result of it requires a gradient")
    require(chosen, "no result requires a gradient, for all the formula in derivatives.yaml")
    return chosen


def _differentiable(program: Program) -> bool:
    results = program.results()
    return any(isinstance(r, torch.Tensor) and r.requires_grad for r in results)


def _differentiable_call(op: Operator, program: Program) -> Any:
    """The results that have gradients, as a tuple."""

    def call(*tensors: Any) -> tuple[Any, ...]:
        found = program.flat_call(*tensors)
        return tuple(t for t in found if t.is_floating_point() or t.is_complex())

    return op.seeded(call)


def _check(program: Program, op: Operator, check: Any, **options: Any) -> None:
    tensors = [compare.leaf(tensor) for tensor in program.tensors]
    with failing(f"sizes {[tuple(tensor.shape) for tensor in program.tensors]}"):
        check(_differentiable_call(op, program), tensors, fast_mode=True, **options)


def _node(op: Operator, device: str, bench: Bench) -> None:
    camel = "".join(part.title() for part in op.entry.base_name.split("_"))
    expected = f"{camel}Backward".replace("ForwardBackward", "Backward")
    program = programs(op, device, bench, limit=1)[0]
    nodes = {r.grad_fn.name() for r in program.results() if getattr(r, "grad_fn", None)}
    # The program copies what is written to, whose node then stands behind the operator's.
    bare = {name.rstrip("0123456789") for name in nodes}
    require(expected in bare, f"the nodes are {sorted(nodes)}, none of them {expected}N")


def _first(op: Operator, device: str, bench: Bench) -> None:
    for program in programs(op, device, bench):
        _check(program, op, torch.autograd.gradcheck)


def _second(op: Operator, device: str, bench: Bench) -> None:
    for program in programs(op, device, bench):
        _check(program, op, torch.autograd.gradgradcheck)


def _forward(op: Operator, device: str, bench: Bench) -> None:
    first = {"check_forward_ad": True, "check_backward_ad": False, "check_undefined_grad": False}
    second = {"check_fwd_over_rev": True, "check_rev_over_rev": False}
    for program in programs(op, device, bench):
        _check(program, op, torch.autograd.gradcheck, **first)
        _check(program, op, torch.autograd.gradgradcheck, **second, check_undefined_grad=False)


def _batched(op: Operator, device: str, bench: Bench) -> None:
    for program in programs(op, device, bench, limit=2):
        with no_fallback():
            forward = {"check_batched_forward_grad": True, "check_forward_ad": True}
            _check(program, op, torch.autograd.gradcheck, check_batched_grad=True,
                   **(forward if op.forward or op.implicit else {}))  # fmt: skip
            _batches(op, program)


def _batches(op: Operator, program: Program) -> None:
    """is_grads_batched against a loop."""
    tensors = [compare.leaf(tensor) for tensor in program.tensors]
    outputs = [r for r in _differentiable_call(op, program)(*tensors) if r.requires_grad]
    wanted = [t for t in tensors if t.requires_grad]
    weights = [compare.weight(output) for output in outputs]
    each = [[w * scale for w in weights] for scale in (1.0, -2.0)]
    stacked = [torch.stack(pair) for pair in zip(*each, strict=True)]
    options = {"retain_graph": True, "allow_unused": True}
    batched = torch.autograd.grad(outputs, wanted, stacked, is_grads_batched=True, **options)
    loop = [torch.autograd.grad(outputs, wanted, w, **options) for w in each]
    expected = [None if a is None else torch.stack((a, b)) for a, b in zip(*loop, strict=True)]
    compare.same(list(batched), expected, "gradients of a batch")


ITEMS = (
    Item("autograd node by its name", _node, (needs.a_formula,), each_device=False),
    Item("gradcheck", _first, (needs.a_derivative,)),
    Item("gradgradcheck", _second, (needs.a_derivative,)),
    Item("forward-mode AD", _forward, (needs.a_derivative,)),
    Item("batched gradients", _batched, (needs.a_derivative, needs.no_numbers)),
)
