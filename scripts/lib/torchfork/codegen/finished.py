"""Describes operators of a finished torch: the manifest's fields, and how C++ calls each.

Runs in the process that has that torch's torchgen on sys.path.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

from .model import CppCall, FinishedOperator, Operator


def describe(functions: list[Any], request: dict[str, Any], packaged: Path) -> dict[str, Any]:
    """The FinishedOperators of the functions whose names, with overload, the request lists."""
    manifests = importlib.import_module("torchfork.codegen.manifest")
    wanted = frozenset(request["names"])
    chosen = [f for f in functions if str(f.func.name) in wanted]
    manifest = manifests.build_manifest(chosen, functions, request["formulas"], [], packaged)
    by_schema = {str(f.func): f for f in chosen}
    operators = [_finished(op, by_schema[op.schema]) for op in manifest.operators]
    return {"operators": [dataclasses.asdict(op) for op in operators]}


def _finished(op: Operator, f: Any) -> FinishedOperator:
    fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    return FinishedOperator(
        **fields,
        signature=str(f.func.signature(strip_default=True)),
        cpp_function=_call(f, method=False) if "function" in op.variants else None,
        cpp_method=_call(f, method=True) if "method" in op.variants else None,
    )


def _call(f: Any, *, method: bool) -> CppCall:
    """The call as a function or as a method."""
    types = importlib.import_module("torchgen.api.types")
    cpp = importlib.import_module("torchgen.api.cpp")
    context = importlib.import_module("torchgen.context")
    names = [argument.name for argument in f.func.arguments.flat_all]
    with context.native_function_manager(f):
        group = types.CppSignatureGroup.from_native_function(
            f, method=method, fallback_binding=False
        )
        signature = group.most_faithful_signature()
        return CppCall(
            signature.name(),
            cpp.returns_type(f.func.returns, symint=False).cpp_type(),
            tuple((binding.type, binding.name) for binding in signature.arguments()),
            names.index("self") if "self" in names else 0,
        )
