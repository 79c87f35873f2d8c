"""Blocks of ours in upstream's text files: found by their markers, placed by an anchor line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import BaseRefusedError, StateError

BEGIN, END = "torchfork:begin", "torchfork:end"
_RESTORE = "restore the file from upstream (git checkout, or reinstall the wheel)"
_REPORT = "use a release of ci/releases.toml, or report the release that moved it"


@dataclass(frozen=True)
class Anchor:
    """A line of upstream's that a block is placed by.

    pattern: a regular expression for the whole line, which must match exactly one line.
    place: on which side of that line the block goes.
    purpose: what an error calls it: "anchor for VIEW_FUNCTIONS not found".
    """

    pattern: str
    place: Literal["before", "after"]
    purpose: str

    def error(
        self, path: str, why: str, *, doubled: bool = False, next: str = _REPORT
    ) -> BaseRefusedError:
        """What to raise where a file has no such line, or several."""
        return BaseRefusedError(
            f"anchor {self.purpose} {'found several times' if doubled else 'not found'}",
            where=path,
            why=why,
            next=next,
            kind="anchor doubled" if doubled else "anchor gone",
        )


# The last line of any text: for blocks that may stand anywhere but must follow everything else.
END_OF_FILE = ""


def block(lines: Sequence[str], comment: str, indent: str = "", name: str = "") -> str:
    """The lines between their markers. name: whose block it is; lists and stubs have no name."""
    label = f" {name}" if name else ""
    marked = [f"{comment} {BEGIN}{label}", *lines, f"{comment} {END}{label}"]
    return "".join(f"{indent}{line}\n" if line else "\n" for line in marked)


def blocks_of(text: str, name: str) -> list[str]:
    """The text in each block of one name, in their order."""
    begin, end = (rf"^[ \t]*(?:#|//) {word} {re.escape(name)}[ \t]*\n" for word in (BEGIN, END))
    return re.findall(rf"{begin}(.*?){end}", text, re.M | re.S)


def strip_blocks(text: str, path: str, name: str = "") -> str:
    """The text without our blocks of this name, or without those that have no name."""
    if BEGIN not in text and END not in text:
        return text
    label = f" {re.escape(name)}" if name else ""
    match = re.compile(rf"[ \t]*(?:#|//) ({BEGIN}|{END}){label}[ \t]*[\r\n]*").fullmatch
    kept: list[str] = []
    opened = 0  # the line of the block that we are in
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        marker = match(line)
        if marker is None:
            kept += [] if opened else [line]
        elif bool(opened) == (marker[1] == BEGIN):
            raise _unpaired(path, number)
        else:
            opened = 0 if opened else number
    if opened:
        raise _unpaired(path, opened)
    return "".join(kept)


def _unpaired(path: str, line: int) -> StateError:
    return StateError(
        "a torchfork marker without its other half",
        where=f"{path}:{line}",
        why="the file was edited between the markers, or cut short",
        next=_RESTORE,
    )


def place(text: str, anchor: Anchor, inserted: str, path: str) -> str:
    """The text with `inserted` at the anchor, or at the end for END_OF_FILE."""
    if anchor.pattern == END_OF_FILE:
        if text and not text.endswith("\n"):
            # It could not be restored as it was.
            why = "the file's last line has no newline"
            raise anchor.error(path, why, next=_RESTORE)
        return text + inserted
    lines = text.splitlines(keepends=True)
    match = re.compile(anchor.pattern).fullmatch
    found = [number for number, line in enumerate(lines) if match(line.rstrip("\r\n"))]
    if len(found) != 1:
        why = f"{len(found)} lines match /{anchor.pattern}/, one is needed"
        raise anchor.error(path, why, doubled=bool(found))
    at = found[0] + (anchor.place == "after")
    return "".join([*lines[:at], inserted, *lines[at:]])
