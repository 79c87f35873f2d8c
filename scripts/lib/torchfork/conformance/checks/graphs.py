"""Graphs: torch.compile, export, AOTInductor packages, TorchScript, torch.fx."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .bench import (
    Bench,
    Check,
    NotApplicable,
    Unavailable,
    failing,
    require,
    require_compiler,
    takes_sizes,
)
from .operators import Operator
from .programs import Program, gradients, make, same, same_layout
from .samples import Sample, variations


def _compiled_as_eager(op: Operator, program: Program, call: Callable[..., Any], what: str) -> None:
    """Results, layout and gradients of a compiled function."""
    eager = op.seeded(program.call)
    expected, grads = gradients(eager, program.tensors)
    actual, found = gradients(op.seeded(call), program.tensors)
    same(actual, expected, what)
    same_layout(actual, expected, f"layout, {what}")
    require(len(found) == len(grads), f"{what}: results require no gradient")
    same([g for g in found if g is not None], [g for g in grads if g is not None],
                 f"gradients, {what}")  # fmt: skip


def compiled_with(backend: str, limit: int) -> Check:
    def check(op: Operator, device: str, bench: Bench) -> None:
        if backend == "inductor":
            require_compiler()
        for sample in bench.source.typical(
            op, device, requires_grad=op.differentiable, limit=limit
        ):
            torch._dynamo.reset()
            program = make(op, sample)
            call = torch.compile(program.call, fullgraph=True, backend=backend, dynamic=False)
            with failing():
                _compiled_as_eager(op, program, call, backend)

    return check


def _resized(op: Operator, device: str, bench: Bench) -> list[tuple[Sample, list[Sample]]]:
    """Samples with calls of other sizes that the operator takes."""
    samples = bench.source.defined(op, device, requires_grad=op.differentiable, limit=3)
    # Contiguous, as the calls of other sizes are: another order of strides is another graph.
    found = [(s.contiguous, variations(op, s.contiguous)) for s in samples]
    chosen = [(sample, others) for sample, others in found if others]
    if not chosen and takes_sizes(op):
        raise NotApplicable("it takes its sizes as numbers, which a graph has one by one")
    require(chosen, "no sample can be called with another size: give one in samples.py")
    return chosen


def check_symbolic(op: Operator, device: str, bench: Bench) -> None:
    from torch.fx.experimental import _config

    # Sizes that are equal by chance in the first call are not taken to be one size.
    with _config.patch(use_duck_shape=False):
        for sample, others in _resized(op, device, bench):
            _one_graph(op, sample, others)


def _one_graph(op: Operator, sample: Sample, others: list[Sample]) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    program = make(op, sample)
    call = torch.compile(program.call, fullgraph=True, backend=backend, dynamic=True)
    for changed in [sample, *others]:
        shown = f"sizes {changed.sizes}"
        given = Program(program.call, program.module, changed.tensors(), program.text)
        with failing(shown):
            _compiled_as_eager(op, given, call, shown)
        require(len(graphs) == 1, f"a second graph for {shown}")


def _exported(op: Operator, sample: Sample, others: list[Sample]) -> tuple[Any, Program]:
    """The exported program: sizes that may vary are left open."""
    program = make(op, sample.mapped(lambda t: t.detach()))
    tensors = program.tensors
    base = [tuple(t.shape) for t in tensors]
    open_dims = {
        f"t{k}": {d: torch.export.Dim.AUTO for d in range(len(shape)) if any(
            other[k][d] != shape[d] for other in [[t.shape for t in o.tensors()] for o in others]
        )} for k, shape in enumerate(base)
    }  # fmt: skip
    with failing():
        exported = torch.export.export(
            program.module(), tuple(tensors), dynamic_shapes=open_dims, strict=False
        )
    return exported, program


def check_export(op: Operator, device: str, bench: Bench) -> None:
    for sample, others in _resized(op, device, bench)[:2]:
        exported, program = _exported(op, sample, others)
        targets = {node.target for node in exported.graph.nodes if node.op == "call_function"}
        families = {getattr(target, "_overloadpacket", target) for target in targets}
        own = {getattr(torch.ops.aten, entry.name) for entry in (op.entry, *op.variants)}
        require(op.implicit or families & own, f"the graph has {sorted(map(str, targets))} instead")
        _as_program(op, exported.module(), program, [sample, *others], "exported")


def _as_program(
    op: Operator, call: Callable[..., Any], program: Program, samples: list[Sample], what: str
) -> None:
    """What was made of a program gives on other sizes, too, what the program gives."""
    for sample in samples:
        tensors = [t.detach() for t in sample.tensors()]
        shown = f"{what}, sizes {sample.sizes}"
        with failing(shown):
            actual = op.seeded(call)(*tensors)
        same(actual, op.seeded(program.call)(*tensors), shown)


def packages(devices: Sequence[str], scratch: Path) -> dict[str, Any]:
    """What a machine makes of a package of torch.relu, which is upstream's, on each GPU's kind.

    Where that ends the process, as on a machine seen, a package of anything would.
    """
    for device in devices:
        if device != "cpu":
            package_of_relu(device, scratch)
    return {}


def package_of_relu(device: str, scratch: Path) -> torch.Tensor:
    """relu(-1) as a package of a 2 by 3 tensor computes it."""
    given = torch.full((2, 3), -1.0, device=device)
    exported = torch.export.export(torch.nn.ReLU(), (given,))
    path = str(scratch / f"relu-{device}.pt2")
    torch._inductor.aoti_compile_and_package(exported, package_path=path)
    result: torch.Tensor = torch._inductor.aoti_load_package(path)(given)
    return result


def check_package(op: Operator, device: str, bench: Bench) -> None:
    require_compiler()
    upstreams = bench.prepared.get("packages", {})
    if device != "cpu" and "unavailable" in upstreams:
        raise Unavailable(f"a package of upstream's torch.relu: {upstreams['unavailable']}")
    sample, others = _resized(op, device, bench)[0]
    exported, program = _exported(op, sample, others)
    path = str(bench.scratch / f"{op.id}-{device}.pt2")
    with failing():
        torch._inductor.aoti_compile_and_package(exported, package_path=path)
        loaded = torch._inductor.aoti_load_package(path)
    _as_program(op, loaded, program, [sample, *others], "the package")


def _saved(op: Operator, made: Any, program: Program, what: str) -> None:
    """The graph has the operator, and it is the same after saving and loading."""
    require(f"aten::{op.name}" in str(made.graph), f"{what}: the graph has no aten::{op.name}")
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    expected = op.seeded(program.call)(*program.tensors)
    same(op.seeded(made)(*program.tensors), expected, what)
    same(op.seeded(loaded)(*program.tensors), expected, f"{what}, loaded")


def check_script(op: Operator, device: str, bench: Bench) -> None:
    for sample in bench.source.defined(op, device, limit=2):
        program = make(op, sample)
        with failing():
            _saved(op, torch.jit.script(program.module()), program, "script")


def check_trace(op: Operator, device: str, bench: Bench) -> None:
    for sample in bench.source.typical(op, device, limit=2):
        program = make(op, sample)
        with failing():
            traced = torch.jit.trace(
                program.module(), tuple(program.tensors), check_trace=not op.random, strict=False
            )
            _saved(op, traced, program, "trace")


def check_fx(op: Operator, device: str, bench: Bench) -> None:
    program = make(op, bench.source.typical(op, device, limit=1)[0])
    with failing():
        traced = torch.fx.symbolic_trace(program.module())
    targets = [node.target for node in traced.graph.nodes]
    wanted = op.function if op.function is not None else op.name
    require(wanted in targets, f"the graph has {targets}")
    actual = op.seeded(traced)(*program.tensors)
    same(actual, op.seeded(program.call)(*program.tensors), "traced")
    for node in traced.graph.nodes:
        if node.target == op.function and node.op == "call_function":
            arguments = node.normalized_arguments(traced, normalize_to_only_use_kwargs=True)
            require(arguments is not None, "torch.fx cannot tell which argument is which")
