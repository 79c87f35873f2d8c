"""Added signatures in one stub: new names as a block, overloads beside the ones that are there."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...util.blocks import Anchor, block, place
from ..python_source import definitions, has_all


@dataclass(frozen=True)
class StubTarget:
    """A scope of a stub: where new names go, and the class whose methods they are."""

    path: str
    anchor: Anchor
    class_name: str | None = None

    @property
    def indent(self) -> str:
        """The indentation of a definition in this scope."""
        return "" if self.class_name is None else "    "


@dataclass(frozen=True)
class Signatures:
    """The added signatures of one name, and whether the base has nothing of that name."""

    hints: tuple[str, ...]
    new: bool


def edit_stub(text: str, added: Mapping[str, Signatures], target: StubTarget) -> str:
    """Upstream's stub (without blocks of ours) with the added signatures.

    A name that the base has and that its stub leaves out stays out: one overload alone would say
    that the others do not exist.
    """
    present = definitions(text, target.class_name) if added else {}
    beside = {name: added[name] for name in sorted(added) if name in present}
    for line, inserted in sorted(_beside(present, beside, target.indent), reverse=True):
        lines = text.splitlines(keepends=True)
        text = "".join([*lines[:line], inserted, *lines[line:]])
    new = {name: added[name] for name in sorted(added) if name not in present and added[name].new}
    if not new:
        return text
    return place(text, target.anchor, _new_names(text, new, target), target.path)


def _beside(
    present: Mapping[str, list[ast.FunctionDef]], added: Mapping[str, Signatures], indent: str
) -> list[tuple[int, str]]:
    """(line, text) to insert so that names which are there already gain their new overloads."""
    insertions = []
    for name, signatures in added.items():
        first, last = present[name][0], present[name][-1]
        if not first.decorator_list:
            insertions.append((first.lineno - 1, block(["@overload"], "#", indent)))
        hints = signature_lines(signatures.hints, overloaded=True)
        insertions.append((last.end_lineno or last.lineno, block(hints, "#", indent)))
    return insertions


def _new_names(text: str, new: Mapping[str, Signatures], target: StubTarget) -> str:
    """The block of names that the stub has nothing of."""
    lines: list[str] = []
    for signatures in new.values():
        lines += signature_lines(signatures.hints, overloaded=len(signatures.hints) > 1)
    if target.class_name is None and has_all(text):
        lines.append(f"__all__ += {list(new)!r}")
    return block(lines, "#", target.indent)


def signature_lines(hints: Sequence[str], *, overloaded: bool) -> list[str]:
    """The lines of signatures, each under its @overload where there are several."""
    lines: list[str] = []
    for hint in hints:
        lines += (["@overload"] if overloaded else []) + hint.split("\n")
    return lines
