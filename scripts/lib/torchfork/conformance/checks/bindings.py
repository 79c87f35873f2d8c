"""How the operator is registered and bound: schema, builtin, method, signature."""

from __future__ import annotations

from typing import Any

import torch

from . import compare
from .bench import Bench, Item, a_function, a_method, a_python_name
from .operators import Operator, overload
from .outcome import require
from .programs import make


def _schema(op: Operator, device: str, bench: Bench) -> None:
    for entry in (op.entry, *op.variants):
        found = overload(entry)._schema
        expected = torch._C.parse_schema("aten::" + entry.schema)
        require(str(found) == str(expected), f"{entry.id} is registered as {found}")
    sample = bench.source.typical(op, device, limit=1)[0]
    make(op, sample, call=f"torch.ops.aten.{op.id}").results()


def _builtin(op: Operator, device: str, bench: Bench) -> None:
    function: Any = op.function
    holder = getattr(torch._C, f"_{op.entry.python_module}" if op.home else "_VariableFunctions")
    require(function is getattr(holder, op.name), f"it is not the one in {holder}")
    require(type(function) is type(torch.conv2d), f"it is a {type(function).__name__}")
    for sample in bench.source.every(op, device)[:4]:
        _agree(op, sample, f"torch.{op.home}{op.name}", "the builtin")


def _method(op: Operator, device: str, bench: Bench) -> None:
    require(type(op.method) is type(torch.Tensor.add), f"it is a {type(op.method).__name__}")
    for sample in bench.source.every(op, device)[:4]:
        _agree(op, sample, f"torch.Tensor.{op.name}", "the method")


def _agree(op: Operator, sample: Any, call: str, what: str) -> None:
    """A way to call the operator gives what torch.ops gives."""
    programs = [make(op, sample, call=name) for name in (call, f"torch.ops.aten.{op.id}")]
    mine, theirs = (compare.seeded(op, program.call)(*program.tensors) for program in programs)
    compare.same(mine, theirs, what, exact=True)


def _signature(op: Operator, device: str, bench: Bench) -> None:
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
        bound = str(torch.overrides.get_testing_overrides().get(op.function) and
                    _parameters(op.function))  # fmt: skip
        first = wanted[0] if wanted else ""
        require(first in ("", "self") or first in bound, f"inspect shows {bound}, not {first}")


def _parameters(function: Any) -> str:
    import inspect

    return str(inspect.signature(torch.overrides.get_testing_overrides()[function]))


def _plain(names: list[str]) -> list[str]:
    return ["input" if name in ("self", "from_") else name for name in names]


ITEMS = (
    Item("schema in torch.ops.aten", _schema),
    Item("Python builtin", _builtin, (a_function,)),
    Item("Tensor method", _method, (a_method,)),
    Item("signature", _signature, (a_python_name,), each_device=False),
)
