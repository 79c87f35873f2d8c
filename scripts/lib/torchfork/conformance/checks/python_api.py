"""The operator in Python: schema, builtin, method, signature; how it is overridden."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .bench import Bench, require
from .operators import Operator, overload
from .programs import make, same


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
