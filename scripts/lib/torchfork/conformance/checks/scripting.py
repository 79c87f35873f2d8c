"""TorchScript and torch.fx: the operator in a script, a trace, a symbolic trace."""

from __future__ import annotations

import io
from typing import Any

import torch

from . import compare
from .bench import Bench, Item, a_python_name, tensors_in, tensors_out
from .operators import Operator
from .outcome import as_gap, require
from .programs import Program, make


def _saved(op: Operator, made: Any, program: Program, what: str) -> None:
    """The graph has the operator, and it is the same after saving and loading."""
    require(f"aten::{op.name}" in str(made.graph), f"{what}: the graph has no aten::{op.name}")
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    expected = compare.seeded(op, program.call)(*program.tensors)
    compare.same(compare.seeded(op, made)(*program.tensors), expected, what)
    compare.same(compare.seeded(op, loaded)(*program.tensors), expected, f"{what}, loaded")


def _script(op: Operator, device: str, bench: Bench) -> None:
    for sample in bench.source.defined(op, device, limit=2):
        program = make(op, sample)
        with as_gap(lines=8):
            _saved(op, torch.jit.script(program.module()), program, "script")


def _traceable(op: Operator) -> str:
    """Upstream's tracer refuses std::array, for its own operators too (torch/csrc/jit/tracer.h)."""
    masks = [a.name for a in op.schema.arguments if str(a.type) == "List[bool]" and a.N]
    return f"upstream's tracer takes no bool[N] ({', '.join(masks)})" if masks else ""


def _trace(op: Operator, device: str, bench: Bench) -> None:
    for sample in bench.source.typical(op, device, limit=2):
        program = make(op, sample)
        with as_gap(lines=8):
            traced = torch.jit.trace(
                program.module(), tuple(program.tensors), check_trace=not op.random, strict=False
            )
            _saved(op, traced, program, "trace")


def _fx(op: Operator, device: str, bench: Bench) -> None:
    program = make(op, bench.source.typical(op, device, limit=1)[0])
    with as_gap():
        traced = torch.fx.symbolic_trace(program.module())
    targets = [node.target for node in traced.graph.nodes]
    wanted = op.function if op.function is not None else op.name
    require(wanted in targets, f"the graph has {targets}")
    actual = compare.seeded(op, traced)(*program.tensors)
    compare.same(actual, compare.seeded(op, program.call)(*program.tensors), "traced")
    for node in traced.graph.nodes:
        if node.target == op.function and node.op == "call_function":
            told = node.normalized_arguments(traced, normalize_to_only_use_kwargs=True)
            require(told is not None, "torch.fx cannot tell which argument is which")


ITEMS = (
    Item("torch.jit.script", _script, (tensors_in,)),
    Item("torch.jit.trace", _trace, (tensors_in, tensors_out, _traceable)),
    Item("torch.fx.symbolic_trace", _fx, (a_python_name, tensors_in), each_device=False),
)
