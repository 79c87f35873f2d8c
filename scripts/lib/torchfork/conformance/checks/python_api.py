"""The operator in Python: schema, builtin, method, out= and in place; how it is overridden."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...codegen.model import FinishedOperator
from .bench import Bench, Check, CheckFailed, NotApplicable, failing, require
from .operators import Operator, overload
from .programs import differentiated, flat, gradients, make, same
from .samples import Sample, fresh_args, invoke


def check_schema(op: Operator, device: str, bench: Bench) -> None:
    for entry in (op.entry, *op.variants):
        found = overload(entry)._schema
        expected = torch._C.parse_schema("aten::" + entry.schema)
        require(str(found) == str(expected), f"{entry.qualified} is registered as {found}")
    sample = bench.source.typical(op, device, limit=1)[0]
    make(op, sample, call=f"torch.ops.aten.{op.id}").results()


def check_builtin(op: Operator, device: str, bench: Bench) -> None:
    function: Any = op.function
    holder = getattr(torch._C, f"_{op.entry.python_module}" if op.home else "_VariableFunctions")
    require(function is getattr(holder, op.name), f"it is not the one in {holder}")
    require(type(function) is type(torch.conv2d), f"it is a {type(function).__name__}")
    for sample in bench.source.every(op, device)[:4]:
        _agree(op, sample, f"torch.{op.home}{op.name}", "the builtin")


def check_method(op: Operator, device: str, bench: Bench) -> None:
    require(type(op.method) is type(torch.Tensor.add), f"it is a {type(op.method).__name__}")
    for sample in bench.source.every(op, device)[:4]:
        _agree(op, sample, f"torch.Tensor.{op.name}", "the method")


def _agree(op: Operator, sample: Any, call: str, what: str) -> None:
    """A way to call the operator gives what torch.ops gives."""
    programs = [make(op, sample, call=name) for name in (call, f"torch.ops.aten.{op.id}")]
    mine, theirs = (op.seeded(program.call)(*program.tensors) for program in programs)
    same(mine, theirs, what, tolerance=0)


def check_signature(op: Operator, device: str, bench: Bench) -> None:
    from torch.fx.operator_schemas import get_signature_for_torch_op

    function = op.function if op.function is not None else op.overload
    found = get_signature_for_torch_op(function)
    require(found, "torch.fx knows no signature of it")
    wanted = [argument.name for argument in op.schema.arguments]
    known = [list(signature.parameters) for signature in found]
    require(
        any(_plain(k) == _plain(wanted) for k in known), f"signatures {known} instead of {wanted}"
    )
    if op.function is not None:
        override = torch.overrides.get_testing_overrides().get(op.function)
        bound = str(override and inspect.signature(override))
        first = wanted[0] if wanted else ""
        require(first in ("", "self") or first in bound, f"inspect shows {bound}, not {first}")


def _plain(names: list[str]) -> list[str]:
    return ["input" if name in ("self", "from_") else name for name in names]


def out_variants(*, generated: bool) -> Check:
    """The out variants that were declared, or those of autogen, which torch.ops.aten alone has."""

    def check(op: Operator, device: str, bench: Bench) -> None:
        entries = [entry for entry in op.variant("out") if entry.generated == generated]
        if not entries or op.entry.kind == "out":
            lack = f"{op.name}.out is not declared, so Python has no out="
            autogen = "no 'autogen' of an out variant by its declaration"
            raise NotApplicable(autogen if generated else lack)
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


CALLED: list[Any] = []  # what subclasses and modes were asked for


class _Noted(torch.Tensor):  # type: ignore[misc]
    """Notes what is called, and has it done."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(func)
        return func(*args, **(kwargs or {}))


class _Calls(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(func)
        return func(*args, **(kwargs or {}))


class _Wrapped(torch.Tensor):  # type: ignore[misc]
    """Wraps a tensor and runs everything on what it wraps."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device,
            storage_offset=inner.storage_offset(), layout=inner.layout,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(func)
        args, kwargs = pytree.tree_map(_unwrapped, (args, kwargs or {}))
        return pytree.tree_map(_rewrapped, func(*args, **kwargs))


def _unwrapped(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, _Wrapped) else leaf


def _rewrapped(leaf: Any) -> Any:
    return _Wrapped(leaf) if isinstance(leaf, torch.Tensor) else leaf


def check_torch_function(op: Operator, device: str, bench: Bench) -> None:
    sample = bench.source.typical(op, device, limit=1)[0]
    ways = [(op.function, f"torch.{op.home}{op.name}"), (op.method, f"torch.Tensor.{op.name}")]
    for target, call in ways:
        if target is None:
            continue
        program = make(op, sample, call=call)
        for place, tensor in enumerate(program.tensors):
            given = list(program.tensors)
            given[place] = tensor.as_subclass(_Noted)
            CALLED.clear()
            program.call(*given)
            require(target in CALLED, f"argument {place} of {call}: {CALLED} instead")
        CALLED.clear()
        with _Functions():
            program.call(*program.tensors)
        require(target in CALLED, f"a mode sees {CALLED} instead of {call}")


def check_torch_dispatch(op: Operator, device: str, bench: Bench) -> None:
    sample = bench.source.typical(op, device, limit=1)[0]
    program = make(op, sample)
    expected = op.seeded(program.call)(*program.tensors)
    CALLED.clear()
    with _Calls():
        op.seeded(program.call)(*program.tensors)
    # Of a composite one sees the parts, and none where it gives what it was given.
    require(op.implicit or op.overload in CALLED, f"a mode sees {list(map(str, CALLED))}")
    if not program.tensors:
        return
    CALLED.clear()
    wrapped = [_Wrapped(tensor) for tensor in program.tensors]
    results = op.seeded(program.call)(*wrapped)
    require(op.implicit or op.overload in CALLED, f"a subclass sees {list(map(str, CALLED))}")
    same(pytree.tree_map(_unwrapped, results), expected, "of a subclass")


def check_overrides(op: Operator, device: str, bench: Bench) -> None:
    table = torch.overrides.get_testing_overrides()
    every = torch.overrides.get_overridable_functions()
    for target, where in ((op.function, "function"), (op.method, "method")):
        if target is None:
            continue
        require(target in table, f"get_testing_overrides() lacks the {where}")
        signature = inspect.signature(table[target])
        names = [a.name for a in op.schema.arguments]
        missing = [n for n in names if n not in signature.parameters and n not in ("self", "from")]
        require(not missing, f"the lambda of the {where}, {signature}, lacks {missing}")
        require(any(target in found for found in every.values()),
                f"get_overridable_functions() lacks the {where}")  # fmt: skip
        require(torch.overrides.resolve_name(target), f"resolve_name() has none for the {where}")
