"""Stub signatures of the additions, formed by what upstream's stub generator itself calls."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from .model import Deprecated, StructSeq

CPP_DEFAULTS = {"at::Reduction::None": "0", "at::Reduction::Mean": "1", "at::Reduction::Sum": "2"}


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
