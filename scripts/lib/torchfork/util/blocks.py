"""Blocks of ours in upstream's text files: found by their markers, placed by an anchor line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import BaseRefusedError, StateError

BEGIN, END = "torchfork:begin", "torchfork:end"
MARKER = re.compile(rf"^[ \t]*(?:#|//) ({BEGIN}|{END})[ \t]*$")


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


def strip_blocks(text: str, path: str) -> str:
    """The text without any block of ours: upstream's own bytes. Named blocks stay."""
    return _strip(text, path, MARKER)


def strip_named(text: str, name: str, path: str) -> str:
    """The text without the blocks of one name: those of one patch."""
    return _strip(text, path, _marker(name))


def named_block(text: str, name: str, comment: str) -> str:
    """Lines between markers that say whose they are; each ends with a newline."""
    return f"{comment} {BEGIN} {name}\n{text}{comment} {END} {name}\n"


def named_blocks(text: str, name: str) -> list[str]:
    """The lines of each block of one name, in their order."""
    begin, end = (rf"^[ \t]*(?:#|//) {word} {re.escape(name)}[ \t]*\n" for word in (BEGIN, END))
    return re.findall(rf"{begin}(.*?){end}", text, re.M | re.S)


def _marker(name: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t]*(?:#|//) ({BEGIN}|{END}) {re.escape(name)}[ \t]*$")


def _strip(text: str, path: str, marker_of: re.Pattern[str]) -> str:
    kept: list[str] = []
    inside = False
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        marker = marker_of.match(line.rstrip("\r\n"))
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


def block(lines: Sequence[str], comment: str, indent: str = "") -> str:
    """The lines between their markers, each line indented."""
    body = [f"{comment} {BEGIN}", *lines, f"{comment} {END}"]
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in body)


def place(text: str, anchor: Anchor, inserted: str, path: str) -> str:
    """The text with `inserted` at the anchor, or at the end for END_OF_FILE."""
    if anchor.pattern == END_OF_FILE:
        return _append(text, inserted, anchor, path)
    lines = text.splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if re.fullmatch(anchor.pattern, line.rstrip("\r\n"))]
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
