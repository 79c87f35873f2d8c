"""Makes the manifest of additions from torchgen's own objects; stubs as upstream's generator does.

Runs in the process that has the base's torchgen on sys.path.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ..errors import BaseRefusedError
from .model import CppCall, Deprecated, FinishedOperator, Manifest, Operator, StructSeq

BOUND_MODULES = (None, "nn", "fft", "linalg", "nested", "sparse", "special")
CPP_DEFAULTS = {"at::Reduction::None": "0", "at::Reduction::Mean": "1", "at::Reduction::Sum": "2"}
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
    f: Any, generator: ModuleType, stubs: Stubs, upstream: set[str], differentiated: Differentiated
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


class Stubs:
    """Stub lines and named-tuple types, by operator."""

    def __init__(
        self,
        generator: ModuleType,
        added: Sequence[Any],
        all_functions: Iterable[Any],
        deprecated: list[dict[str, Any]],
    ) -> None:
        self.names = {str(f.func.name) for f in added}
        bases = {f.func.name.name.base for f in added}
        bases |= {str(d["aten"]).partition("(")[0].removesuffix("_out") for d in deprecated}
        bases |= {base.removesuffix("_") for base in bases}
        related = [f for f in all_functions if f.func.name.name.base in bases]
        bound = [f for f in related if generator.should_generate_py_binding(f)]
        self.by_operator: dict[tuple[str, bool], list[str]] = {}
        self.deprecated = {
            found.schema: found for found in (_deprecated(entry) for entry in deprecated)
        }
        for method in (False, True):
            for group in self._groups(generator, bound, deprecated, method):
                self._record(group, method)

    def _groups(
        self, generator: ModuleType, functions: list[Any], deprecated: list[Any], method: bool
    ) -> list[Any]:
        """Signatures with their out= variant merged in, as the bindings and the stubs see them."""
        variant = "method" if method else "function"
        with tempfile.TemporaryDirectory() as scratch:
            listing = Path(scratch, "deprecated.yaml")
            listing.write_text(yaml.safe_dump(deprecated), encoding="utf-8")
            pairs = generator.load_signatures(
                functions, str(listing), method=method, skip_deprecated=method, pyi=True
            )
        pairs = [pair for pair in pairs if variant in _names(pair.function.variants)]
        if method:
            pairs = [pair for pair in pairs if pair.function.python_module is None]
        return list(generator.group_overloads(pairs))

    def _record(self, group: Any, method: bool) -> None:
        """Keep a group's lines under the added operator that brings it."""
        if group.signature.deprecated:
            schema = str(group.signature.deprecated_schema)
            known = self.deprecated[schema]
            self.deprecated[schema] = dataclasses.replace(
                known,
                python_module=group.base.python_module,
                pyi_function=(*known.pyi_function, *_hints(group)),
            )
            return
        for function in (group.base, group.outplace):
            if function is not None and str(function.func.name) in self.names:
                self.by_operator.setdefault((str(function.func.name), method), _hints(group))
                return

    def lines(self, f: Any, *, method: bool) -> list[str]:
        """The operator's stub lines; empty where another entry's include it or nothing is bound."""
        return self.by_operator.get((str(f.func.name), method), [])

    def structseq(self, f: Any) -> StructSeq | None:
        """The named-tuple type of an operator with named returns, with its stub."""
        from torchgen.api.python import returns_structseq_pyi, signature, structseq_fieldnames

        fields = structseq_fieldnames(f.func.returns)
        if not fields or f.func.is_out_fn():
            return None
        name, text = returns_structseq_pyi(signature(f, pyi=True))
        return StructSeq(name, tuple(fields), text.rstrip("\n"))

    def deprecated_entries(self) -> list[Deprecated]:
        """The manifest's entries for deprecated signatures."""
        return sorted(self.deprecated.values(), key=lambda entry: entry.schema)


def _deprecated(entry: dict[str, Any]) -> Deprecated:
    """A deprecated signature before its stubs are known; upstream has none for methods."""
    from torchgen.model import FunctionSchema

    schema = str(FunctionSchema.parse(entry["name"]))  # as torchgen itself writes it
    name = str(entry["name"]).partition("(")[0]
    return Deprecated(name, schema, str(entry["aten"]), None, ())


def _names(variants: Iterable[Any]) -> set[str]:
    return {variant.name for variant in variants}


def _hints(group: Any) -> list[str]:
    """A group's signatures; a deprecated one with an out variant has one of each."""
    sig, alone = group.signature, group.outplace is None
    hints = [sig.signature_str_pyi(skip_outputs=True)] if sig.deprecated and not alone else []
    hints.append(sig.signature_str_pyi(skip_outputs=alone))
    vararg = sig.signature_str_pyi_vararg(skip_outputs=alone)
    return [_python_defaults(hint) for hint in [*hints, *([vararg] if vararg else [])]]


def _python_defaults(hint: str) -> str:
    """Replace defaults that the generator leaves in C++ (upstream has no such stub, ours may)."""
    for cpp, value in CPP_DEFAULTS.items():
        hint = hint.replace(f"= {cpp}", f"= {value}")
    hint = re.sub(r"= \{([^{}]+)\}", lambda m: f"= ({', '.join(m[1].split(','))})", hint)
    return re.sub(r"= (?:::)?\w+(?:::\w+)+", "= ...", hint)
