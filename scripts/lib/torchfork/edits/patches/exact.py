"""Puts hunks where their lines are, exactly: no fuzz, whitespace counts, one place only."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .diff import FileDiff, Hunk
from .tree import Tree, encode, split


@dataclass(frozen=True)
class Misfit:
    """A hunk that has no place, or more than one."""

    file: FileDiff
    hunk: Hunk | None  # None: it is about the file as a whole
    why: str


def blob_id(text: str) -> str:
    """git's name of a file's contents."""
    data = encode(text)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def forward(tree: Tree, files: Sequence[FileDiff]) -> dict[str, str | None] | Misfit:
    """The texts after the patch, or the first place that does not fit."""
    texts: dict[str, str | None] = {}
    for file in files:
        present = tree.read(file.path)
        if file.kind == "add":
            if present is not None:
                return Misfit(file, None, "the file that it adds is there already")
            texts[file.path] = "".join(line for hunk in file.hunks for line in hunk.after)
            continue
        if present is None:
            return Misfit(file, None, "there is no such file")
        changed = _edit(present, file, reverse=False)
        if isinstance(changed, Misfit):
            return changed
        if file.kind == "delete" and changed:
            return Misfit(file, None, "the file that it deletes has other lines too")
        texts[file.path] = None if file.kind == "delete" else changed
    return texts


def is_applied(tree: Tree, files: Sequence[FileDiff]) -> bool:
    """Whether the tree has every change of the patch already: it could be taken out exactly."""
    for file in files:
        present = tree.read(file.path)
        if file.kind == "delete":
            if present is not None:
                return False
        elif present is None:
            return False
        elif file.kind == "add":
            if present != "".join(line for hunk in file.hunks for line in hunk.after):
                return False
        else:
            undone = _edit(present, file, reverse=True)
            if isinstance(undone, Misfit):
                return False
    return True


def _edit(text: str, file: FileDiff, *, reverse: bool) -> str | Misfit:
    """A text with the lines of each hunk replaced by those after it, or, reversed, before it."""
    lines = split(text)
    itself = blob_id(text) == (file.after_id if reverse else file.before_id)
    result: list[str] = []
    done = 0
    for hunk in file.hunks:
        old, new = (hunk.after, hunk.before) if reverse else (hunk.before, hunk.after)
        first = hunk.after_at if reverse else hunk.before_at
        found = list(places(lines, hunk, old, done))
        if itself and first in found:
            found = [first]
        if len(found) != 1:
            times = f"{len(found)} times, so nobody can say where" if found else "not there"
            return Misfit(file, hunk, f"the lines around its change are {times}")
        result += [*lines[done : found[0]], *new]
        done = found[0] + len(old)
    return "".join([*result, *lines[done:]])


def places(lines: Sequence[str], hunk: Hunk, old: Sequence[str], start: int) -> Iterator[int]:
    """Every index from `start` on at which all of a hunk's lines stand.

    A hunk without context on one side says that the file begins, or ends, there.
    """
    count = len(old)
    for at in range(start, len(lines) - count + 1):
        here = lines[at : at + count] == list(old)
        begins, ends = at == 0, at + count == len(lines)
        if here and (begins or not hunk.at_start) and (ends or not hunk.at_end):
            yield at


def as_diff(hunk: Hunk) -> list[str]:
    """A hunk as people read it: lines with ' ', '-' or '+' before them."""
    matcher = difflib.SequenceMatcher(None, hunk.before, hunk.after, autojunk=False)
    shown: list[str] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            shown += [" " + line for line in hunk.before[i1:i2]]
        else:
            shown += ["-" + line for line in hunk.before[i1:i2]]
            shown += ["+" + line for line in hunk.after[j1:j2]]
    return [line if line.endswith("\n") else line + "\n" for line in shown]


def nearest(text: str, hunk: Hunk) -> str:
    """The lines of a file that come nearest to those a hunk wants to see; '' for none near."""
    lines, count = split(text), len(hunk.before)
    wanted = set(hunk.before)
    scores = [
        (sum(line in wanted for line in lines[at : at + count]), -abs(at - hunk.before_at), at)
        for at in range(max(len(lines) - count, 0) + 1)
    ]
    score, _, at = max(scores, default=(0, 0, 0))
    return "".join(lines[at : at + count]) if score * 3 >= count else ""
