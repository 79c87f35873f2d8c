"""The operator differentiated, without data and transformed: autograd, fake tensors, vmap."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .bench import Bench, NotApplicable, failing, require
from .operators import Operator
from .programs import Program, leaf, make, same, same_layout, weight
from .samples import LAYOUTS, Sample, channels_last, tensors_of


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


def differentiable(op: Operator, device: str, bench: Bench, *, limit: int = 4) -> list[Program]:
    """Programs of samples that require gradients, and whose results do."""
    samples = bench.source.typical(op, device, torch.float64, requires_grad=True, limit=limit)
    found = [make(op, sample) for sample in samples]
    chosen = [
        p for p in found
        if all(any(t.requires_grad for t in tensors_of(v)) for v in (p.tensors, p.results()))
    ]  # fmt: skip
    if not chosen and op.implicit:
        raise NotApplicable("no result of it requires a gradient")
    require(chosen, "no result requires a gradient, for all the formula in derivatives.yaml")
    return chosen


def _differentiable_call(op: Operator, program: Program) -> Any:
    """The results that have gradients, as a tuple."""

    def call(*tensors: Any) -> tuple[Any, ...]:
        found = program.flat_call(*tensors)
        return tuple(t for t in found if t.is_floating_point() or t.is_complex())

    return op.seeded(call)


def _check(program: Program, op: Operator, check: Any, **options: Any) -> None:
    tensors = [leaf(tensor) for tensor in program.tensors]
    with failing(f"sizes {[tuple(tensor.shape) for tensor in program.tensors]}"):
        check(_differentiable_call(op, program), tensors, fast_mode=True, **options)


def check_node(op: Operator, device: str, bench: Bench) -> None:
    camel = "".join(part.title() for part in op.entry.base_name.split("_"))
    expected = f"{camel}Backward".replace("ForwardBackward", "Backward")
    program = differentiable(op, device, bench, limit=1)[0]
    nodes = {r.grad_fn.name() for r in program.results() if getattr(r, "grad_fn", None)}
    # The program copies what is written to, whose node then stands behind the operator's.
    bare = {name.rstrip("0123456789") for name in nodes}
    require(expected in bare, f"the nodes are {sorted(nodes)}, none of them {expected}N")


def check_first(op: Operator, device: str, bench: Bench) -> None:
    for program in differentiable(op, device, bench):
        _check(program, op, torch.autograd.gradcheck)


def check_second(op: Operator, device: str, bench: Bench) -> None:
    for program in differentiable(op, device, bench):
        _check(program, op, torch.autograd.gradgradcheck)


def check_forward(op: Operator, device: str, bench: Bench) -> None:
    first = {"check_forward_ad": True, "check_backward_ad": False, "check_undefined_grad": False}
    second = {"check_fwd_over_rev": True, "check_rev_over_rev": False}
    for program in differentiable(op, device, bench):
        _check(program, op, torch.autograd.gradcheck, **first)
        _check(program, op, torch.autograd.gradgradcheck, **second, check_undefined_grad=False)


def check_batched(op: Operator, device: str, bench: Bench) -> None:
    for program in differentiable(op, device, bench, limit=2):
        with no_fallback():
            forward = {"check_batched_forward_grad": True, "check_forward_ad": True}
            _check(program, op, torch.autograd.gradcheck, check_batched_grad=True,
                   **(forward if op.forward or op.implicit else {}))  # fmt: skip
            _batches(op, program)


def _batches(op: Operator, program: Program) -> None:
    """is_grads_batched against a loop."""
    tensors = [leaf(tensor) for tensor in program.tensors]
    outputs = [r for r in _differentiable_call(op, program)(*tensors) if r.requires_grad]
    wanted = [t for t in tensors if t.requires_grad]
    weights = [weight(output) for output in outputs]
    each = [[w * scale for w in weights] for scale in (1.0, -2.0)]
    stacked = [torch.stack(pair) for pair in zip(*each, strict=True)]
    options = {"retain_graph": True, "allow_unused": True}
    batched = torch.autograd.grad(outputs, wanted, stacked, is_grads_batched=True, **options)
    loop = [torch.autograd.grad(outputs, wanted, w, **options) for w in each]
    expected = [None if a is None else torch.stack((a, b)) for a, b in zip(*loop, strict=True)]
    same(list(batched), expected, "gradients of a batch")


_OPCHECK = (
    "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic",
)  # fmt: skip


def check_opcheck(op: Operator, device: str, bench: Bench) -> None:
    samples = bench.source.typical(op, device, requires_grad=op.differentiable)
    tests: tuple[str, ...] = _OPCHECK
    if op.data_dependent or op.random or not op.tensor_results:
        # Graphs of numbers, of sizes that data decide, and of two draws cannot be compared.
        tests = ("test_schema", "test_autograd_registration")
    for sample in samples:
        with failing():
            torch.library.opcheck(op.overload, sample.args, sample.kwargs, test_utils=tests)


def check_fake(op: Operator, device: str, bench: Bench) -> None:
    laid = {**LAYOUTS, "channels_last": channels_last}
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
        same_layout(results, real, f"{kind}, {what}")
        tensors = zip(tensors_of(results), tensors_of(real), strict=True)
        require(all(a.device == b.device for a, b in tensors), f"{kind}, {what}: another device")


def _compare_meta(op: Operator, sample: Sample, real: list[Any], what: str) -> None:
    def to_meta(tensor: Any) -> Any:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    if not sample.tensors():
        sample = Sample(sample.args, {**sample.kwargs, "device": torch.device("meta")})
    with failing(f"meta, {what}"):
        results = make(op, sample.mapped(to_meta)).results()
    same_layout(results, real, f"meta, {what}")


_BATCH = 3


def check_functionalized(op: Operator, device: str, bench: Bench) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    for sample in bench.source.typical(op, device, limit=2):
        program = make(op, sample)
        expected = op.seeded(_writing(op, program))(*program.tensors)
        pure = torch.func.functionalize(_writing(op, program), remove="mutations_and_views")
        with failing():
            actual = op.seeded(pure)(*program.tensors)
            graph = make_fx(pure)(*program.tensors).graph
        same(actual, expected, "functionalized")
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
        aliases = tensors_of(results)
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


def check_vmap(op: Operator, device: str, bench: Bench) -> None:
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
        same_layout(list(actual), expected, what)
    else:
        same(list(actual), expected, what)


def _batch(tensor: Any) -> Any:
    """A batch of tensors of the same sizes with the same values in another order."""
    values = tensor.detach().reshape(-1)
    return torch.stack([values.roll(k).reshape(tensor.shape) for k in range(_BATCH)])
