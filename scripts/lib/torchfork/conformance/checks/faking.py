"""The operator without data: FakeTensor, the meta device, opcheck."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from . import compare, layouts
from .bench import Bench, Item, known_sizes, tensors_out
from .operators import Operator
from .outcome import CheckFailed, first_lines, require
from .programs import Program, make
from .samples import Sample

_OPCHECK = (
    "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic",
)  # fmt: skip


def _opcheck(op: Operator, device: str, bench: Bench) -> None:
    samples = bench.source.typical(op, device, requires_grad=op.differentiable)
    tests: tuple[str, ...] = _OPCHECK
    if op.data_dependent or op.random or not op.tensor_results:
        # Graphs of numbers, of sizes that data decide, and of two draws cannot be compared.
        tests = ("test_schema", "test_autograd_registration")
    for sample in samples:
        try:
            torch.library.opcheck(op.overload, sample.args, sample.kwargs, test_utils=tests)
        except Exception as error:
            raise CheckFailed(first_lines(error, 6)) from error


def _fake(op: Operator, device: str, bench: Bench) -> None:
    laid = {**layouts.LAYOUTS, "channels_last": layouts.channels_last}
    for sample in bench.source.every(op, device)[:6]:
        for name, layout in [("as they come", None), *laid.items()]:
            changed = sample if layout is None else sample.mapped(layout)
            try:
                program = make(op, changed)
                real = program.results()
            except RuntimeError:
                continue  # an in-place operator refuses expanded memory
            what = f"{[tuple(t.shape) for t in sample.tensors()]} {name}"
            _compare_fake(op, program, real, what)
            _compare_meta(op, changed, real, what)


def _compare_fake(op: Operator, program: Program, real: list[Any], what: str) -> None:
    for symbolic in (False, True):
        mode = FakeTensorMode(shape_env=ShapeEnv() if symbolic else None)
        kind = "symbolic" if symbolic else "fake"
        with mode:
            fakes = [mode.from_tensor(t, static_shapes=not symbolic) for t in program.tensors]
            try:
                results = program.results(*fakes) if fakes else program.results()
            except Exception as error:
                raise CheckFailed(f"{kind}, {what}: {first_lines(error)}") from error
        compare.same_layout(results, real, f"{kind}, {what}")
        tensors = zip(_only_tensors(results), _only_tensors(real), strict=True)
        require(all(a.device == b.device for a, b in tensors), f"{kind}, {what}: another device")


def _only_tensors(values: list[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _compare_meta(op: Operator, sample: Sample, real: list[Any], what: str) -> None:
    def to_meta(tensor: Any) -> Any:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    if not sample.tensors():
        sample = Sample(sample.args, {**sample.kwargs, "device": torch.device("meta")})
    try:
        results = make(op, sample.mapped(to_meta)).results()
    except Exception as error:
        raise CheckFailed(f"meta, {what}: {first_lines(error)}") from error
    compare.same_layout(results, real, f"meta, {what}")


ITEMS = (
    Item("opcheck", _opcheck),
    Item("FakeTensor, meta: same strides", _fake, (tensors_out, known_sizes)),
)
