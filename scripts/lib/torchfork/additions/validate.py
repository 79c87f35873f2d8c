"""Refuses additions that the base cannot take, before the code generator or a compiler runs.

The generator's own parser checks what a schema may say; what is checked here it does not, or only
in a full run, or in words that do not help whoever wrote the additions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ..errors import (
    AdditionsError,
    CollisionError,
    DerivativeError,
    ForkError,
    KernelError,
    NeedsSourceLaneError,
)
from ..upstream.base import Upstream
from .load import Additions
from .yaml_file import Entry

FROM_SOURCE = "scripts/build_torch.sh --from-source"


def check(additions: Additions, upstream: Upstream, version: str) -> None:
    """Raise the first objection to the additions on this base."""
    for objection in objections(additions, upstream, version):
        raise objection


def objections(additions: Additions, upstream: Upstream, version: str) -> Iterator[ForkError]:
    """The first objection to each entry, and then to the sources."""
    known = upstream.by_name()
    schemas = [*known.values(), *(entry.key for entry in additions.native.entries)]
    checks = [
        partial(_check_entry, entry, known, schemas, upstream, version)
        for entry in additions.native.entries
    ]
    checks += [
        partial(_refuse_derivative, entry, additions, known, version)
        for entry in additions.derivatives.entries
    ]
    for objected in [*checks, partial(_refuse_registrations_of_nothing, additions, known)]:
        try:
            objected()
        except ForkError as objection:
            yield objection


def _check_entry(
    entry: Entry, known: dict[str, str], schemas: list[str], upstream: Upstream, version: str
) -> None:
    _refuse_existing(entry, known, version)
    _refuse_ambiguous(entry, schemas)
    _refuse_tags(entry, upstream, version)
    _refuse_keys(entry, upstream, version)
    _refuse_method_without_self(entry)


_REGISTRATION = re.compile(
    r"\bTORCH_LIBRARY_IMPL\s*\(\s*aten\s*,.*?^\s*\}", re.DOTALL | re.MULTILINE
)
_IMPL = re.compile(r"\.impl\s*\(\s*(?:TORCH_SELECTIVE_NAME\s*\(\s*)?\"(?:aten::)?([\w.]+)\"")


def _refuse_registrations_of_nothing(additions: Additions, known: dict[str, str]) -> None:
    """The dispatcher keeps a kernel for an operator that never comes, and says nothing."""
    ours = {
        name
        for entry in additions.native.entries
        for name in (entry.name, *_words(entry.fields.get("autogen", [])))
    }
    for path in additions.sources:
        text = path.read_text(encoding="utf-8", errors="replace")
        for block in _REGISTRATION.finditer(text):
            for call in _IMPL.finditer(block[0]):
                name = call[1]
                if name not in known and name not in ours:
                    raise KernelError(
                        f"a kernel is registered for 'aten::{name}', which is declared nowhere",
                        where=f"{path}:{text.count(chr(10), 0, block.start() + call.start()) + 1}",
                        why=f"{additions.native.path.name} has no such operator, nor has upstream",
                        next="declare the operator, or correct the name (overload included)",
                    )


def _normal(schema: str) -> str:
    return re.sub(r"\s+", "", schema)


def _refuse_existing(entry: Entry, known: dict[str, str], version: str) -> None:
    theirs = known.get(entry.name)
    if theirs is None:
        return
    if _normal(theirs) == _normal(entry.key):
        raise CollisionError(
            f"'{entry.name}' exists in torch {version} already, with this very schema",
            where=entry.where(),
            why="either it landed upstream, or the entry edits an operator of upstream's, which a "
            "wheel cannot take",
            next=f"delete the entry (and its kernels) if upstream's serves you; rename yours; or "
            f"build the edited operator from source: {FROM_SOURCE}",
            kind="landed upstream",
        )
    raise NeedsSourceLaneError(
        f"'{entry.name}' would change an operator of torch {version}",
        where=entry.where(),
        why=f"upstream declares {theirs}\nlibtorch has it compiled in, so a wheel cannot take "
        "the change",
        next="rename yours, give it an overload name of its own "
        f"({entry.name.split('.')[0]}.mine), or change upstream's: {FROM_SOURCE}",
        kind="name taken upstream",
    )


def _types(schema: str) -> tuple[str, list[str]]:
    """An operator's name without its overload, and the types of all its arguments."""
    name, _, rest = schema.partition("(")
    text = re.sub(r"\(\w[^()]*\)", "", rest.rpartition("->")[0].strip().removesuffix(")"))
    arguments = re.split(r",\s*(?![^\[]*\])", text)
    return name.partition(".")[0], [a.split()[0] for a in arguments if a.strip() not in {"", "*"}]


def _refuse_ambiguous(entry: Entry, schemas: list[str]) -> None:
    """TorchScript would run the overload that it finds first, and say nothing."""
    name, types = _types(entry.key)
    for schema in schemas:
        if schema.startswith(name) and schema.partition("(")[0] != entry.name:
            if _types(schema) != (name, types):
                continue
            raise CollisionError(
                f"'{entry.name}' takes arguments of the same types as '{schema.partition('(')[0]}'",
                where=entry.where(),
                why="TorchScript tells overloads apart by the types of all arguments, out= "
                f"included, and may call the other one:\n{schema}",
                next="change a type or the number of arguments, or choose another name",
                kind="ambiguous overload",
            )


def _words(value: object) -> Iterator[str]:
    """The words of a field that is a comma-separated text or a list."""
    parts = value if isinstance(value, list) else str(value).split(",")
    return (str(part).strip() for part in parts if str(part).strip())


def _refuse_tags(entry: Entry, upstream: Upstream, version: str) -> None:
    for tag in _words(entry.fields.get("tags", [])):
        if tag not in upstream.tags:
            raise NeedsSourceLaneError(
                f"'{entry.name}' uses the tag '{tag}', which torch {version} does not have",
                where=entry.where("tags"),
                why="tags are an enumeration that is compiled into libtorch; it has "
                + ", ".join(sorted(upstream.tags)),
                next=f"use one of these, or add the tag to tags.yaml by a patch and {FROM_SOURCE}",
                kind="tag gone",
            )


def _refuse_keys(entry: Entry, upstream: Upstream, version: str) -> None:
    dispatch = entry.fields.get("dispatch", {})
    if not isinstance(dispatch, dict):
        raise AdditionsError(
            f"'dispatch' of '{entry.name}' is not a mapping",
            where=entry.where("dispatch"),
            next="write '  dispatch:' and below it '    CPU, CUDA: kernel_name'",
        )
    for key in (word for words in dispatch for word in _words(words)):
        if key not in upstream.dispatch_keys:
            raise NeedsSourceLaneError(
                f"'{entry.name}' names the dispatch key '{key}', which torch {version} does not "
                "have",
                where=entry.where("dispatch"),
                why="dispatch keys are an enumeration that is compiled into libtorch",
                next="correct the key (CPU, CUDA, Meta, CompositeExplicitAutograd, ...); a new one "
                f"needs a patch and {FROM_SOURCE}",
                kind="dispatch key gone",
            )


def _refuse_method_without_self(entry: Entry) -> None:
    if "method" not in _words(entry.fields.get("variants", "function")):
        return
    arguments = entry.key.partition("(")[2].rpartition("->")[0]
    if not re.search(r"\bTensor(\([^)]*\))? self\b", arguments):
        raise AdditionsError(
            f"'{entry.name}' is declared as a method and has no argument 'Tensor self'",
            where=entry.where("variants"),
            why="a method's tensor is the argument of that name",
            next="name the argument self, or leave 'method' out of 'variants'",
        )


def _refuse_derivative(
    entry: Entry, additions: Additions, known: dict[str, str], version: str
) -> None:
    declared = additions.native_entry(entry.name)
    if declared is None and entry.name in known:
        raise NeedsSourceLaneError(
            f"the formula for '{entry.name}' would change an operator of torch {version}",
            where=entry.where(),
            why="its autograd node is compiled into libtorch",
            next=f"build it from source: {FROM_SOURCE}",
        )
    if declared is None:
        raise DerivativeError(
            f"a formula for '{entry.name}', which is declared nowhere",
            where=entry.where(),
            why=f"{additions.native.path.name} has no such operator",
            next="declare it there, or correct the name (overload included)",
        )
    if _normal(declared.key) != _normal(entry.key):
        raise DerivativeError(
            f"the formula for '{entry.name}' repeats its schema differently",
            where=entry.where(),
            why=f"declared: {declared.key}\nhere:     {entry.key}\n(declared in "
            f"{declared.where()})",
            next="copy the schema from the declaration; argument names must match exactly",
        )
    _refuse_unknown_arguments(entry, declared)
    _refuse_formula_of_composite(entry, declared)


def _refuse_formula_of_composite(entry: Entry, declared: Entry) -> None:
    """Autograd never gets to see a CompositeImplicitAutograd operator, so no formula would run."""
    if {"structured", "structured_delegate"} & declared.fields.keys():
        return
    keys = {word for words in declared.fields.get("dispatch", {}) for word in _words(words)}
    if keys - {"CompositeImplicitAutograd", "CompositeImplicitAutogradNestedTensor"}:
        return
    if any(key not in FIELD_NAMES for key in entry.fields):
        raise DerivativeError(
            f"a formula for '{entry.name}', which is made of operators that have their own",
            where=entry.where(),
            why=f"{declared.where()} has no 'dispatch:' (or only CompositeImplicitAutograd), so "
            "autograd sees the operators inside",
            next="delete the formula, or give the operator a 'dispatch:' such as "
            "CompositeExplicitAutograd",
        )


# Keys of a derivatives.yaml entry that are no argument names.
FIELD_NAMES = frozenset({"name", "dispatch", "output_differentiability"})


def _refuse_unknown_arguments(entry: Entry, declared: Entry) -> None:
    taken, _, returned = declared.key.rpartition("->")
    arguments = set(re.findall(r"(\w+)(?:=[^,()]*)?\s*(?=[,)])", taken.partition("(")[2]))
    results = set(re.findall(r"\w(?:\(.*?\))?(?:\[\])?\s+(\w+)\s*(?=[,)]|$)", returned))
    for key in entry.fields:
        for name in _words(key):
            unnamed = not results and re.fullmatch(r"result\d*", name)
            if key in FIELD_NAMES or unnamed or name in arguments | results:
                continue
            raise DerivativeError(
                f"the formula for '{entry.name}' names '{name}', which is no argument of it"
                + (" and no result" if results else ""),
                where=entry.where(key),
                why=f"its schema: {declared.key}",
                next="use the schema's names of arguments and results ('result', or 'result0', "
                "'result1', for the forward formula of unnamed results)",
            )
