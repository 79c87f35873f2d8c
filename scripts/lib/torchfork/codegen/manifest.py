"""Makes the manifest of additions from torchgen's own objects.

Runs in the process that has the base's torchgen on sys.path.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BaseRefusedError
from .model import CppCall, FinishedOperator, Manifest, Operator
from .pyi import Stubs

BOUND_MODULES = (None, "nn", "fft", "linalg", "nested", "sparse", "special")
PRIVATE_PACKAGE = "_torchfork_packaged_autograd"


def load_binding_generator(packaged_dir: Path) -> ModuleType:
    """The base's gen_python_functions.py, imported under a name that nothing else uses.

    Its siblings hold lists that edits.lists extends; under their usual name they would stay
    imported with the old contents in a process that goes on to generate.
    """
    directory = packaged_dir / "autograd"
    package = ModuleType(PRIVATE_PACKAGE)
    package.__path__ = [str(directory)]
    for name in [n for n in sys.modules if n.partition(".")[0] == PRIVATE_PACKAGE]:
        del sys.modules[name]
    sys.modules[PRIVATE_PACKAGE] = package
    try:
        return importlib.import_module(f"{PRIVATE_PACKAGE}.gen_python_functions")
    except ImportError as error:
        raise BaseRefusedError(
            "the base's Python binding generator cannot be imported",
            where=str(directory / "gen_python_functions.py"),
            why=str(error),
            next="use an unmodified official wheel or source tree",
        ) from error


def build_manifest(
    added: Sequence[Any],
    all_functions: Sequence[Any],
    formulas: Collection[str],
    deprecated_added: list[dict[str, Any]],
    packaged_dir: Path,
) -> Manifest:
    """Describe the additions.

    added: the NativeFunctions that the base lacks, generated ones included.
    all_functions: every NativeFunction of base and additions.
    formulas: the schemas that have a derivative formula.
    deprecated_added: added entries in the form of deprecated.yaml ({"name", "aten"}).
    packaged_dir: the directory that holds autograd/ (torchgen/packaged, or tools of a source tree).
    """
    generator = load_binding_generator(packaged_dir)
    stubs = Stubs(generator, added, all_functions, deprecated_added)
    names = {str(f.func.name) for f in added}
    upstream = {str(f.func.name.name) for f in all_functions if str(f.func.name) not in names}
    differentiated = Differentiated(formulas)
    operators = [_operator(f, generator, stubs, upstream, differentiated) for f in added]
    operators.sort(key=lambda op: (op.name, op.overload))
    return Manifest(tuple(operators), tuple(stubs.deprecated_entries()))


def finished_operators(
    functions: Sequence[Any], names: Collection[str], formulas: Collection[str], packaged_dir: Path
) -> list[FinishedOperator]:
    """The operators of a finished torch that have these qualified names.

    functions: every NativeFunction of that torch; formulas and packaged_dir as for build_manifest.
    """
    chosen = [f for f in functions if str(f.func.name) in frozenset(names)]
    manifest = build_manifest(chosen, functions, formulas, [], packaged_dir)
    by_schema = {str(f.func): f for f in chosen}
    return [_finished(op, by_schema[op.schema]) for op in manifest.operators]


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


def _operator(
    f: Any,
    generator: ModuleType,
    stubs: Stubs,
    upstream: set[str],
    differentiated: Differentiated,
) -> Operator:
    """One operator's entry."""
    from torchgen.api.python import has_tensor_options

    base = f.func.name.name.base
    has_tensors = any(a.type.is_tensor_like() for a in f.func.arguments.flat_non_out)
    view_of = _view_of(f)
    variants = {variant.name for variant in f.variants}
    bound = generator.should_generate_py_binding(f) and f.python_module in BOUND_MODULES
    return Operator(
        name=str(f.func.name.name),
        overload=f.func.name.overload_name,
        schema=str(f.func),
        base_name=base,
        kind="view" if view_of else f.func.kind().name,
        generated="generated" in f.tags,
        variants=tuple(sorted(variants)),
        python_module=f.python_module,
        python_function=bool(bound and "function" in variants),
        python_method=bool(bound and "method" in variants and f.python_module is None),
        new_name=str(f.func.name.name) not in upstream,
        new_base_name=base not in {name.removesuffix("_") for name in upstream},
        view_of=view_of,
        composite_implicit=bool(f.has_composite_implicit_autograd_kernel),
        differentiable=differentiated.includes(f),
        tensor_arguments=has_tensors,
        factory=bool(has_tensor_options(f) and not has_tensors),
        structseq=stubs.structseq(f) if bound else None,
        pyi_function=tuple(stubs.lines(f, method=False)),
        pyi_method=tuple(stubs.lines(f, method=True)),
    )


def _view_of(f: Any) -> str | None:
    """The argument that a result aliases without writing to it."""
    aliases: set[str] = set()
    for returned in f.func.returns:
        if returned.annotation is not None and not returned.annotation.is_write:
            aliases.update(returned.annotation.alias_set)
    for argument in f.func.arguments.flat_all:
        if argument.annotation is not None and aliases & set(argument.annotation.alias_set):
            return str(argument.name)
    return None


class Differentiated:
    """Which functions the given formulas are for, by the rules of torchgen's
    match_differentiability_info: the function itself, the variants of a functional one, and the
    functional one that is generated from a variant with a formula.
    """

    def __init__(self, formulas: Collection[str]) -> None:
        from torchgen.model import FunctionSchema

        parsed = [FunctionSchema.parse(schema) for schema in formulas]
        functional = [schema for schema in parsed if schema.kind().name == "functional"]
        others = [schema for schema in parsed if schema.kind().name != "functional"]
        self.exact = {str(schema) for schema in parsed}
        self.functional = {schema.signature(strip_default=True) for schema in functional}
        self.others = {schema.signature(strip_default=True) for schema in others}

    def includes(self, f: Any) -> bool:
        """Whether a formula is for this function; out= variants have no gradient of their own."""
        if str(f.func) in self.exact:
            return True
        if f.func.kind().name == "out":
            return False
        signature = f.func.signature(strip_default=True)
        generated = "generated" in f.tags
        return signature in self.functional or (generated and signature in self.others)
