"""Additions with some of their entries: those for a release, and those that errors do not point at.

`torch: "<2.15"` beside func or name says which releases an entry is for. A backport goes away by
itself where upstream has the operator, and a dispatch key that an older release lacks is declared
by an entry for newer ones.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ..errors import AdditionsError, ForkError, combined
from . import fake_impls
from .load import RANGE as FIELD
from .load import Additions, duplicates
from .yaml_file import Entry, YamlFile

_LINE = re.compile(rf"\s+{FIELD}:\s+([\"']?)(.*?)\1\s*(?:#.*)?")
_NATIVE_HEADER = re.compile(r"#\s*include\s*[<\"]ATen/ops/(\w+)_native\.h[>\"]")


def for_release(additions: Additions, version: str) -> Additions:
    """The additions as a release gets them: without entries, formulas and kernels for others.

    Of an operator left out, sources that include ATen/ops/NAME_native.h and rules for fake tensors
    are left out too. Raises AdditionsError for a range that cannot be read, CollisionError for two
    entries of one operator whose ranges both have the release.
    """
    files = (additions.native, additions.derivatives, additions.deprecated)
    errors: list[ForkError] = [error for file in files for error in _unreadable(file)]
    if errors:
        raise combined(errors)
    native, derivatives, deprecated = (_of_release(file, version) for file in files)
    if errors := [*duplicates(native), *duplicates(derivatives)]:
        raise combined(errors)
    whole, kept = (fake_impls.with_packets(file.functions) for file in (additions.native, native))
    dropped = whole - kept
    names = {entry.name for entry in native.entries}
    gone = {entry.name for entry in additions.native.entries} - names
    derivatives = reduced(derivatives, lambda entry: entry.name not in gone)
    sources = additions.sources
    if dropped:
        sources = tuple(path for path in sources if not dropped & _declared_by(path))
    rules = fake_impls.without(additions.fake_impls, dropped)
    return replace(
        additions, native=native, derivatives=derivatives, deprecated=deprecated,
        sources=sources, fake_impls=rules,
    )  # fmt: skip


def left_out(additions: Additions, version: str) -> dict[str, str]:
    """The operators that a release gets from none of their entries, by name, with a range."""
    entries = additions.native.entries
    kept = {entry.name for entry in entries if _is_for(entry, version)}
    return {entry.name: str(entry.fields[FIELD]) for entry in entries if entry.name not in kept}


def _is_for(entry: Entry, version: str) -> bool:
    return FIELD not in entry.fields or SpecifierSet(str(entry.fields[FIELD])).contains(
        version.partition("+")[0], prereleases=True
    )


def _unreadable(file: YamlFile) -> Iterator[AdditionsError]:
    lines = file.text.splitlines()
    for entry in file.entries:
        # The line is blanked in what upstream's YAML gets: it may have nothing else, nor go on.
        found = _LINE.fullmatch(lines[entry.lines[FIELD] - 1]) if FIELD in entry.fields else None
        if FIELD in entry.fields and (not found or found[2] != str(entry.fields[FIELD])):
            yield AdditionsError(
                f"the range of '{entry.name}' does not stand on one line of its own",
                where=entry.where(FIELD),
                next=f'write it below func (or name), as in   {FIELD}: "<2.15"',
            )
        try:
            if not _is_for(entry, "1.0") and not is_possible(str(entry.fields[FIELD])):
                yield AdditionsError(
                    f"the range of '{entry.name}' has no release in it",
                    where=entry.where(FIELD),
                    why=f"nothing is {entry.fields[FIELD]}",
                    next="correct it; the conditions of a range hold together",
                )
        except InvalidSpecifier as error:
            yield AdditionsError(
                f"the range of '{entry.name}' cannot be read",
                where=entry.where(FIELD),
                why=str(error),
                next=f'write it as {FIELD}: "<2.15", or {FIELD}: ">=2.8, <2.15"; an argument '
                f"called {FIELD} needs another name",
            )


def is_possible(text: str) -> bool:
    """Whether any version is in a range: one that it names, or one just above."""
    near = ["0"]
    for one in SpecifierSet(text):
        named = one.version.removesuffix(".*")
        with contextlib.suppress(InvalidVersion):  # of '==='
            near += [named, f"{Version(named).base_version}.0.1"]
    return any(SpecifierSet(text).contains(version, prereleases=True) for version in near)


def _of_release(file: YamlFile, version: str) -> YamlFile:
    """The file's entries for a release, without the lines of their ranges."""
    kept = reduced(file, lambda entry: _is_for(entry, version))
    lines = kept.text.splitlines(keepends=True)
    entries = []
    for entry in kept.entries:
        if FIELD in entry.fields:
            lines[entry.lines[FIELD] - 1] = "\n"
            fields = {key: value for key, value in entry.fields.items() if key != FIELD}
            entry = replace(entry, fields=fields)
        entries.append(entry)
    return replace(kept, text="".join(lines), entries=tuple(entries))


def _declared_by(source: Path) -> set[str]:
    """The operators whose kernels a source may define, by the headers that it includes."""
    return set(_NATIVE_HEADER.findall(source.read_text(encoding="utf-8", errors="replace")))


def without(additions: Additions, errors: Sequence[ForkError]) -> Additions:
    """The additions less the entries that errors point at, and whatever depends on these.

    Of a formula that is refused, the formula alone goes; of a declaration, all of its variants.
    """
    formulas = {e.name for e in entries_at(additions.derivatives, errors)}
    calls = entries_at(additions.deprecated, errors)
    bases = {_variants_name(e) for e in entries_at(additions.native, errors)}
    return replace(
        additions,
        native=reduced(additions.native, lambda e: _variants_name(e) not in bases),
        derivatives=reduced(
            additions.derivatives,
            lambda e: _variants_name(e) not in bases and e.name not in formulas,
        ),
        deprecated=reduced(
            additions.deprecated, lambda e: _variants_name(e) not in bases and e not in calls
        ),
    )


def entries_at(file: YamlFile, errors: Sequence[ForkError]) -> list[Entry]:
    """The entries of a file that errors point at."""
    places = [error.where.rpartition(":") for error in errors]
    lines = [int(line) for path, _, line in places if path == str(file.path) and line.isdigit()]
    return [entry for line in lines if (entry := file.entry_at(line))]


def _variants_name(entry: Entry) -> str:
    """What an operator and its in-place form share."""
    return entry.name.partition(".")[0].rstrip("_")


def reduced(file: YamlFile, keep: Callable[[Entry], bool]) -> YamlFile:
    """The file with the lines of some entries blank: the others stay where they are."""
    lines = file.text.splitlines(keepends=True)
    starts = [entry.line - 1 for entry in file.entries] + [len(lines)]
    for entry, start, end in zip(file.entries, starts, starts[1:], strict=False):
        if not keep(entry):
            lines[start:end] = ["\n"] * (end - start)
    return replace(file, text="".join(lines), entries=tuple(filter(keep, file.entries)))
