"""Blocks of ours in upstream's text files: found by their markers, placed by an anchor line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import BaseRefusedError, StateError

BEGIN, END = "torchfork:begin", "torchfork:end"


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
    inside = False
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        marker = match(line)
        if marker is None:
            kept += [] if inside else [line]
        elif inside == (marker[1] == BEGIN):
            raise StateError(
                "a torchfork marker without its other half",
                where=f"{path}:{number}",
                why="the file was edited between the markers",
                next="restore the file from upstream (git checkout, or reinstall the wheel)",
            )
        else:
            inside = not inside
    if inside:
        raise StateError(
            f"a block that no '{END}' line closes",
            where=path,
            why="the file was cut short",
            next="restore the file from upstream (git checkout, or reinstall the wheel)",
        )
    return "".join(kept)


def place(text: str, anchor: Anchor, inserted: str, path: str) -> str:
    """The text with `inserted` at the anchor, or at the end for END_OF_FILE."""
    if anchor.pattern == END_OF_FILE:
        return _append(text, inserted, anchor, path)
    lines = text.splitlines(keepends=True)
    match = re.compile(anchor.pattern).fullmatch
    found = [number for number, line in enumerate(lines) if match(line.rstrip("\r\n"))]
    if len(found) != 1:
        raise BaseRefusedError(
            f"anchor {anchor.purpose} {'found several times' if found else 'not found'}",
            where=path,
            why=f"{len(found)} lines match /{anchor.pattern}/, one is needed",
            next="use a release of ci/releases.toml, or report the release that moved it",
            kind="anchor doubled" if found else "anchor gone",
        )
    at = found[0] + (anchor.place == "after")
    return "".join([*lines[:at], inserted, *lines[at:]])


def _append(text: str, inserted: str, anchor: Anchor, path: str) -> str:
    """The text with a block at its end; a last line without its newline could not be restored."""
    if text and not text.endswith("\n"):
        raise BaseRefusedError(
            f"anchor {anchor.purpose} not found",
            where=path,
            why="the file's last line has no newline",
            next="restore the file from upstream (git checkout, or reinstall the wheel)",
            kind="anchor gone",
        )
    return text + inserted
