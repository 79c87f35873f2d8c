"""Additions without the entries that errors point at: what is left can still be checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import ForkError
from .load import Additions
from .yaml_file import Entry, YamlFile


def without(additions: Additions, errors: Sequence[ForkError]) -> Additions:
    """The additions less the entries that errors point at, and whatever depends on these.

    Of a formula that is refused, the formula alone goes; of a declaration, all of its variants.
    """
    formulas = {e.name for e in entries_at(additions.derivatives, errors)}
    bases = {_base_name(e) for e in entries_at(additions.native, errors)}
    return replace(
        additions,
        native=reduced(additions.native, lambda e: _base_name(e) not in bases),
        derivatives=reduced(
            additions.derivatives, lambda e: _base_name(e) not in bases and e.name not in formulas
        ),
        deprecated=reduced(additions.deprecated, lambda e: _base_name(e) not in bases),
    )


def entries_at(file: YamlFile, errors: Sequence[ForkError]) -> list[Entry]:
    """The entries of a file that errors point at."""
    places = [error.where.rpartition(":") for error in errors]
    lines = [int(line) for path, _, line in places if path == str(file.path) and line.isdigit()]
    return [entry for line in lines if (entry := file.entry_at(line))]


def _base_name(entry: Entry) -> str:
    return entry.name.partition(".")[0].rstrip("_")


def reduced(file: YamlFile, keep: Callable[[Entry], bool]) -> YamlFile:
    """The file with the lines of some entries blank: the others stay where they are."""
    lines = file.text.splitlines(keepends=True)
    starts = [entry.line - 1 for entry in file.entries] + [len(lines)]
    for entry, start, end in zip(file.entries, starts, starts[1:], strict=False):
        if not keep(entry):
            lines[start:end] = ["\n"] * (end - start)
    return replace(file, text="".join(lines), entries=tuple(filter(keep, file.entries)))
