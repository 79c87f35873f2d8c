"""The operator without data and transformed: FakeTensor, meta, opcheck, functionalization, vmap."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from . import compare, needs, variations
from .bench import Bench, Item, failing, require
from .gradients import no_fallback
from .operators import Operator
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
        with failing():
            torch.library.opcheck(op.overload, sample.args, sample.kwargs, test_utils=tests)


def _fake(op: Operator, device: str, bench: Bench) -> None:
    laid = {**variations.LAYOUTS, "channels_last": variations.channels_last}
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
            with failing(f"{kind}, {what}"):
                results = program.results(*fakes) if fakes else program.results()
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
    with failing(f"meta, {what}"):
        results = make(op, sample.mapped(to_meta)).results()
    compare.same_layout(results, real, f"meta, {what}")


_BATCH = 3


def _functionalized(op: Operator, device: str, bench: Bench) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    for sample in bench.source.typical(op, device, limit=2):
        program = make(op, sample)
        expected = op.seeded(_writing(op, program))(*program.tensors)
        pure = torch.func.functionalize(_writing(op, program), remove="mutations_and_views")
        with failing():
            actual = op.seeded(pure)(*program.tensors)
            graph = make_fx(pure)(*program.tensors).graph
        compare.same(actual, expected, "functionalized")
        calls = [node.target for node in graph.nodes if node.op == "call_function"]
        # The copies at the end put what was written to back into the arguments.
        kernels = [call for call in calls if isinstance(call, torch._ops.OpOverload)]
        left = [str(k) for k in kernels if k._schema.is_mutable and "copy_" not in str(k)]
        require(not left, f"the graph still has {left}")


def _writing(op: Operator, program: Program) -> Any:
    """The program on copies of its arguments, whose first result is then written to."""

    def call(*tensors: Any) -> list[Any]:
        copies = [tensor.clone() for tensor in tensors]
        results = program.results(*copies)
        aliases = [r for r in results if isinstance(r, torch.Tensor)]
        # Of a view its base must change, of anything else nothing.
        if aliases and aliases[0].dtype != torch.bool and _may_be_written(aliases[0]):
            aliases[0].add_(1)
        return [*results, *copies]

    return call


def _may_be_written(tensor: Any) -> bool:
    """Whether no two elements are one place in memory."""
    return all(
        stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )


def _vmap(op: Operator, device: str, bench: Bench) -> None:
    for sample in bench.source.every(op, device)[:5]:
        program = make(op, sample)
        for dims in _in_dims(program.tensors):
            _against_loop(op, program, dims)


def _in_dims(tensors: list[Any]) -> Iterator[tuple[int | None, ...]]:
    """Every argument batched, each one alone, and a few of the mixed ones."""
    choices = [[None, 0, -1] for _ in tensors]
    every = [c for c in itertools.product(*choices) if any(d is not None for d in c)]
    places = range(len(tensors))
    fixed: list[tuple[int | None, ...]] = [tuple(0 for _ in places)]
    fixed += [tuple(0 if i == k else None for i in places) for k in places]
    mixed = random.Random(0).sample(every, min(len(every), 3))
    yield from dict.fromkeys([*fixed, *mixed])


def _against_loop(op: Operator, program: Program, dims: tuple[int | None, ...]) -> None:
    batched = [t if d is None else _batch(t).movedim(0, d)
               for t, d in zip(program.tensors, dims, strict=True)]  # fmt: skip
    each = []
    for k in range(_BATCH):
        own = [t if d is None else t.select(d, k) for t, d in zip(batched, dims, strict=True)]
        each.append(op.seeded(program.flat_call)(*own))
    expected = [torch.stack(column) for column in zip(*each, strict=True)]
    sizes = [tuple(t.shape) for t in program.tensors]
    what = f"in_dims {dims}, sizes {sizes}"
    with failing(what), no_fallback():
        actual = torch.vmap(program.flat_call, dims, randomness="different")(*batched)
    if op.random:
        compare.same_layout(list(actual), expected, what)
    else:
        compare.same(list(actual), expected, what)


def _batch(tensor: Any) -> Any:
    """A batch of tensors of the same sizes with the same values in another order."""
    values = tensor.detach().reshape(-1)
    return torch.stack([values.roll(k).reshape(tensor.shape) for k in range(_BATCH)])


ITEMS = (
    Item("opcheck", _opcheck),
    Item("FakeTensor, meta: same strides", _fake, (needs.tensors_out, needs.known_sizes)),
    Item("functionalization", _functionalized, (needs.tensors_in, needs.no_numbers)),
    Item("vmap: a batch rule", _vmap, (needs.tensors_in, needs.tensors_out, needs.known_sizes)),
)
