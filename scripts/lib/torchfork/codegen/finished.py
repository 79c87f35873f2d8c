"""Describes operators of a finished torch: what the manifest says, and how C++ calls each.

Runs in the process that has that torch's torchgen on sys.path.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def describe(functions: list[Any], request: dict[str, Any], packaged: Path) -> dict[str, Any]:
    """The entries of the functions whose names, with overload, the request lists.

    Each has what the manifest has and: signature (the schema without what tells a function from its
    in-place and out= variants), cpp_function and cpp_method (`_call`, or None).
    """
    manifests = importlib.import_module("torchfork.codegen.manifest")
    wanted = frozenset(request["names"])
    chosen = [f for f in functions if str(f.func.name) in wanted]
    told = manifests.build_manifest(chosen, functions, request["differentiable"], [], packaged)
    by_schema = {str(f.func): f for f in chosen}
    for entry in told["operators"]:
        f = by_schema[entry["schema"]]
        variants = {variant.name for variant in f.variants}
        entry["signature"] = str(f.func.signature(strip_default=True))
        entry["cpp_function"] = _call(f, method=False) if "function" in variants else None
        entry["cpp_method"] = _call(f, method=True) if "method" in variants else None
    return {"operators": told["operators"]}


def _call(f: Any, *, method: bool) -> dict[str, Any]:
    """name, returns, arguments ([type, name] each), and the place of a method's self.

    The signature is that without SymInts, with dtype, layout, device and pin_memory by themselves.
    """
    types = importlib.import_module("torchgen.api.types")
    cpp = importlib.import_module("torchgen.api.cpp")
    context = importlib.import_module("torchgen.context")
    names = [argument.name for argument in f.func.arguments.flat_all]
    with context.native_function_manager(f):
        group = types.CppSignatureGroup.from_native_function(
            f, method=method, fallback_binding=False
        )
        signature = group.most_faithful_signature()
        return {
            "name": signature.name(),
            "returns": cpp.returns_type(f.func.returns, symint=False).cpp_type(),
            "arguments": [[binding.type, binding.name] for binding in signature.arguments()],
            "self": names.index("self") if "self" in names else 0,
        }
