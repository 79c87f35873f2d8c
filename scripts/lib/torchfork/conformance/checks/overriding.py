"""Overriding: __torch_function__, __torch_dispatch__, the lists of torch.overrides."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import compare
from .bench import Bench, Item, a_python_name, a_torch_name, tensors_in
from .operators import Operator
from .outcome import require
from .programs import make

CALLED: list[Any] = []  # what subclasses were asked for


class _Noted(torch.Tensor):  # type: ignore[misc]
    """Notes what is called, and has it done."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class _Calls(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
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


def _torch_function(op: Operator, device: str, bench: Bench) -> None:
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
        with _Functions() as mode:
            program.call(*program.tensors)
        require(target in mode.seen, f"a mode sees {mode.seen} instead of {call}")


def _torch_dispatch(op: Operator, device: str, bench: Bench) -> None:
    sample = bench.source.typical(op, device, limit=1)[0]
    program = make(op, sample)
    expected = compare.seeded(op, program.call)(*program.tensors)
    with _Calls() as mode:
        compare.seeded(op, program.call)(*program.tensors)
    # Of a composite one sees the parts, and none where it gives what it was given.
    require(op.implicit or op.overload in mode.seen, f"a mode sees {list(map(str, mode.seen))}")
    if not program.tensors:
        return
    CALLED.clear()
    wrapped = [_Wrapped(tensor) for tensor in program.tensors]
    results = compare.seeded(op, program.call)(*wrapped)
    require(op.implicit or op.overload in CALLED, f"a subclass sees {list(map(str, CALLED))}")
    compare.same(pytree.tree_map(_unwrapped, results), expected, "of a subclass")


def _overrides(op: Operator, device: str, bench: Bench) -> None:
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


ITEMS = (
    Item("__torch_function__", _torch_function, (a_python_name, tensors_in), each_device=False),
    Item("__torch_dispatch__", _torch_dispatch, (tensors_in,)),
    Item("torch.overrides", _overrides, (a_torch_name, tensors_in), each_device=False),
)
