"""The out and in-place variants: same results, and refusals of what cannot be written to."""

from __future__ import annotations

from typing import Any

import torch

from ...codegen.model import FinishedOperator
from .bench import Bench, Check, CheckFailed, NotApplicable, failing, require
from .operators import Operator, overload
from .programs import differentiated, flat, gradients, make, same
from .samples import Sample, fresh_args, invoke


def out_variants(generated: bool, lack: str) -> Check:
    """The out variants that were declared, or that autogen made: overloads in torch.ops.aten alone.

    lack: why the item does not apply where there are none.
    """

    def check(op: Operator, device: str, bench: Bench) -> None:
        entries = [entry for entry in op.variant("out") if entry.generated == generated]
        if not entries or op.entry.kind == "out":
            raise NotApplicable(lack.format(name=op.name))
        for entry in entries:
            for sample in bench.source.typical(op, device, limit=2):
                _one_out(op, entry, sample)
                if op.function is not None and not generated:
                    _python_out(op, sample)

    return check


def _python_out(op: Operator, sample: Sample) -> None:
    expected = flat(invoke(op, sample, op.function))
    given = [torch.full_like(t, 3) for t in expected]
    out = given[0] if len(given) == 1 else tuple(given)
    with failing("out= in Python"):
        invoke(op, sample, op.function, out=out)
    same(given, expected, "out= in Python", tolerance=0)


def _one_out(op: Operator, entry: FinishedOperator, sample: Sample) -> None:
    names = [a.name for a in overload(entry)._schema.arguments if a.is_out]
    expected = flat(invoke(op, sample))
    if len(names) != len(expected) or not all(isinstance(t, torch.Tensor) for t in expected):
        raise NotApplicable("its out variant writes a list")
    right = [torch.full_like(t, 3) for t in expected]
    same(_call(op, entry, sample, names, right), expected, entry.qualified, tolerance=0)
    same(right, expected, f"{entry.qualified}: the given tensors", tolerance=0)
    strange = [torch.empty(0, dtype=t.dtype, device=t.device) for t in expected]
    same(_call(op, entry, sample, names, strange), expected, "resized", tolerance=0)
    require(
        [t.shape for t in strange] == [t.shape for t in expected], "an empty out keeps its size"
    )
    _refusals(op, entry, sample, names, expected)


def _call(
    op: Operator, entry: FinishedOperator, sample: Sample, names: list[str], outs: list[Any]
) -> Any:
    call = op.seeded(overload(entry))
    kwargs = {k: v for k, v in sample.kwargs.items() if k in
              {a.name for a in overload(entry)._schema.arguments}}  # fmt: skip
    given = dict(zip(names, outs, strict=True))
    return call(*fresh_args(op, sample), **kwargs, **given)


def _refusals(
    op: Operator, entry: FinishedOperator, sample: Sample, names: list[str], expected: list[Any]
) -> None:
    """Results that cannot hold what is computed: another device, a dtype of another kind."""
    bad = {"on meta": [t.to("meta") for t in expected] if expected[0].device.type != "meta" else []}
    if expected[0].is_floating_point() or expected[0].is_complex():
        bad["of bool"] = [torch.empty_like(t, dtype=torch.bool) for t in expected]
    for what, outs in bad.items():
        try:
            _call(op, entry, sample, names, outs)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        raise CheckFailed(f"{entry.qualified} takes an out {what}")


def check_in_place(op: Operator, device: str, bench: Bench) -> None:
    entries = op.variant("inplace")
    if not entries:
        raise NotApplicable("no in-place variant by its declaration")
    for entry in entries:
        for sample in bench.source.typical(op, device, limit=4):
            _one_in_place(op, entry, sample)
        _gradient_in_place(op, entry, bench, device)


def _one_in_place(op: Operator, entry: FinishedOperator, sample: Sample) -> None:
    expected = make(op, sample).results()[0]
    given = sample.args[0].clone()
    call = op.seeded(overload(entry))
    if given.shape != expected.shape or given.dtype != expected.dtype:
        before = given.clone()
        try:
            call(given, *sample.args[1:], **sample.kwargs)
        except RuntimeError:
            same(given, before, "an argument after a refusal", tolerance=0)
            return
        raise CheckFailed(
            f"{entry.qualified} writes {tuple(expected.shape)} to {tuple(given.shape)}"
        )
    version = given._version
    result = call(given, *sample.args[1:], **sample.kwargs)
    require(result is given, f"{entry.qualified} does not return its argument")
    require(given._version > version, f"{entry.qualified} does not count as a change")
    same(given, expected, entry.qualified, tolerance=0)
    if entry.python_method:
        again = sample.args[0].clone()
        if op.random:
            torch.manual_seed(7)
        getattr(again, entry.name)(*sample.args[1:], **sample.kwargs)
        same(again, expected, f"Tensor.{entry.name}", tolerance=0)


def _gradient_in_place(op: Operator, entry: FinishedOperator, bench: Bench, device: str) -> None:
    """A leaf that requires a gradient is refused; of another tensor the gradient is the same."""
    if not op.formula:
        return
    sample = bench.source.typical(op, device, torch.float64, requires_grad=True, limit=1)[0]
    expected, grads = differentiated(op, sample)
    if expected[0].shape != sample.args[0].shape:
        return

    def written(*tensors: Any) -> Any:
        changed = sample.with_tensors(tensors)
        given = changed.args[0].clone()
        overload(entry)(given, *changed.args[1:], **changed.kwargs)
        return given

    _, found = gradients(op.seeded(written), sample.tensors())
    same(found, grads, f"gradients of {entry.qualified}")
    leaf = sample.args[0].detach().requires_grad_()
    try:
        overload(entry)(leaf, *sample.args[1:], **sample.kwargs)
    except RuntimeError:
        return
    raise CheckFailed(f"{entry.qualified} writes to a leaf that requires a gradient")
