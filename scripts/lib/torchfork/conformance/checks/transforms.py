"""Function transforms: functionalization, vmap by a batch rule."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch

from . import compare
from .bench import Bench, Item, known_sizes, no_numbers, tensors_in, tensors_out
from .gradients import no_fallback
from .operators import Operator
from .outcome import CheckFailed, first_lines, require
from .programs import Program, make

_BATCH = 3


def _functionalized(op: Operator, device: str, bench: Bench) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    for sample in bench.source.typical(op, device, limit=2):
        program = make(op, sample)
        expected = compare.seeded(op, _writing(op, program))(*program.tensors)
        pure = torch.func.functionalize(_writing(op, program), remove="mutations_and_views")
        try:
            actual = compare.seeded(op, pure)(*program.tensors)
            graph = make_fx(pure)(*program.tensors).graph
        except Exception as error:
            raise CheckFailed(first_lines(error)) from error
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
        each.append(compare.seeded(op, program.flat_call)(*own))
    expected = [torch.stack(column) for column in zip(*each, strict=True)]
    sizes = [tuple(t.shape) for t in program.tensors]
    what = f"in_dims {dims}, sizes {sizes}"
    try:
        with no_fallback():
            actual = torch.vmap(program.flat_call, dims, randomness="different")(*batched)
    except Exception as error:
        raise CheckFailed(f"{what}: {first_lines(error)}") from error
    if op.random:
        compare.same_layout(list(actual), expected, what)
    else:
        compare.same(list(actual), expected, what)


def _batch(tensor: Any) -> Any:
    """A batch of tensors of the same sizes with the same values in another order."""
    values = tensor.detach().reshape(-1)
    return torch.stack([values.roll(k).reshape(tensor.shape) for k in range(_BATCH)])


ITEMS = (
    Item("functionalization", _functionalized, (tensors_in, no_numbers)),
    Item("vmap: a batch rule", _vmap, (tensors_in, tensors_out, known_sizes)),
)
