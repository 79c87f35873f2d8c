"""Reads a git-format patch strictly: what git am could apply and nobody could be tricked by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import PatchError
from . import header
from .header import Header
from .paths import check_path

ZERO = "0" * 40
FROM_LINE = f"From {ZERO} Mon Sep 17 00:00:00 2001"
NO_NEWLINE = "\\ No newline at end of file"
MODE = "100644"
_FILE = re.compile(r"diff --git a/(.+) b/(.+)")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*", re.S)
_INDEX = re.compile(rf"index ([0-9a-f]{{40}})\.\.([0-9a-f]{{40}})(?: {MODE})?")
_MODE = re.compile(r"(?:(?:new|deleted) file mode|old mode|new mode) (\d+)")
Kind = Literal["add", "edit", "delete"]


@dataclass(frozen=True)
class Hunk:
    """Lines that stand together before and after; each with its newline, where it has one."""

    line: int  # in the patch file
    before: tuple[str, ...]
    after: tuple[str, ...]
    before_at: int  # index of the first line, in the very file that the patch was made from
    after_at: int
    at_start: bool  # it has less context than it could: the file begins with it
    at_end: bool  # no context follows the last change: the file ends there


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file."""

    path: str
    kind: Kind
    before_id: str  # git's blob ids, ZERO for no file
    after_id: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Diff:
    """A git-format patch: author, header and files."""

    path: Path
    author: str  # 'Name <mail>'
    date: str
    header: Header
    files: tuple[FileDiff, ...]


def read(path: Path) -> Diff:
    """Read one patch file. Raises PatchError, with its line, for anything but text edits."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError("a patch is not UTF-8 text", where=str(path), why=str(error)) from error
    except OSError as error:
        raise PatchError("cannot read a patch", where=str(path), why=str(error)) from error
    return parse(text, path)


def parse(text: str, path: Path) -> Diff:
    """Read the text of a patch; `path` is for messages. Raises PatchError."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    else:
        raise _malformed(path, len(lines), "the last line has no newline")
    head = _head(lines, path)
    start = next((i for i, line in enumerate(lines) if line.startswith("diff --git ")), len(lines))
    body = lines[5:start]
    if body[-2:] != ["---", ""]:
        raise _malformed(path, start, "'---' and an empty line must stand before the first diff")
    said = header.parse(head[2], "\n".join(body[:-2]), str(path))
    files = tuple(_files(lines, start, path))
    if not files:
        raise _malformed(path, len(lines), "it changes nothing")
    names = [file.path for file in files]
    if names != sorted(set(names)):
        raise _malformed(path, start, "its files are not in order, or one stands twice")
    return Diff(path, head[0], head[1], said, files)


def _head(lines: list[str], path: Path) -> tuple[str, str, str]:
    """Author, date and subject from the first five lines."""
    keys = (FROM_LINE, "From: ", "Date: ", "Subject: [PATCH] ", "")
    for number, key in enumerate(keys):
        line = lines[number] if number < len(lines) else ""
        if line != key and not (0 < number < 4 and line.startswith(key)):
            raise _malformed(path, number + 1, f"'{key}' is wanted here")
    values = [lines[n].removeprefix(keys[n]) for n in (1, 2, 3)]
    return values[0], values[1], values[2]


def _files(lines: list[str], start: int, path: Path) -> Iterator[FileDiff]:
    at = start
    while at < len(lines):
        file, at = _file(lines, at, path)
        yield file


def _file(lines: list[str], at: int, path: Path) -> tuple[FileDiff, int]:
    """One file's part, and the line after it."""
    found = _FILE.fullmatch(lines[at])
    if found is None or found[1] != found[2]:
        raise _malformed(path, at + 1, "renames are not carried: delete the file and add it anew")
    name = check_path(found[1], f"{path}:{at + 1}")
    kind: Kind = "edit"
    ids = None
    at += 1
    while at < len(lines) and not lines[at].startswith(("--- ", "@@", "diff --git ")):
        line = lines[at]
        if match := _MODE.fullmatch(line):
            kind = _kind(line, match[1], path, at + 1)
        elif match := _INDEX.fullmatch(line):
            ids = (match[1], match[2])
        else:
            raise _malformed(path, at + 1, _refusal(line))
        at += 1
    if ids is None:
        raise _malformed(path, at, "no 'index' line with full object names")
    if ids[0 if kind == "add" else 1] != ZERO and kind != "edit":
        raise _malformed(path, at, f"the object names do not say '{kind}'")
    hunks, at = _hunks(lines, at, path, name, kind)
    return FileDiff(name, kind, ids[0], ids[1], hunks), at


def _kind(line: str, mode: str, path: Path, number: int) -> Kind:
    if line.startswith(("old mode", "new mode")):
        raise _malformed(path, number, "changes of a file's mode are not carried")
    if mode != MODE:
        what = {"120000": "a symbolic link", "160000": "a submodule"}.get(mode, f"mode {mode}")
        raise _malformed(path, number, f"{what} is not carried, plain text files are")
    return "add" if line.startswith("new") else "delete"


def _refusal(line: str) -> str:
    if line.startswith(("similarity", "dissimilarity", "rename", "copy")):
        return "renames and copies are not carried: delete the file and add it anew"
    if line.startswith(("GIT binary patch", "Binary files")):
        return "binary files are not carried"
    if line.startswith("index "):
        return "object names are abbreviated, and abbreviations vary"
    return "this line belongs to no diff that git writes"


def _hunks(
    lines: list[str], at: int, path: Path, name: str, kind: Kind
) -> tuple[tuple[Hunk, ...], int]:
    if at >= len(lines) or lines[at].startswith("diff --git "):
        if kind == "edit":
            raise _malformed(path, at, "a file without any change")
        return (), at  # an empty file
    # git apply goes by these two names, so they must be those of the first line.
    old = "/dev/null" if kind == "add" else f"a/{name}"
    new = "/dev/null" if kind == "delete" else f"b/{name}"
    if lines[at : at + 2] != [f"--- {old}", f"+++ {new}"]:
        raise _malformed(path, at + 1, f"'--- {old}' and '+++ {new}' are wanted here")
    at += 2
    hunks = []
    while at < len(lines) and lines[at].startswith("@@"):
        hunk, at = _hunk(lines, at, path)
        hunks.append(hunk)
    if not hunks or (at < len(lines) and not lines[at].startswith("diff --git ")):
        raise _malformed(path, at + 1, "no hunk, or more lines than the hunk says")
    return tuple(hunks), at


def _hunk(lines: list[str], at: int, path: Path) -> tuple[Hunk, int]:
    first = at
    found = _HUNK.fullmatch(lines[at])
    if found is None:
        raise _malformed(path, at + 1, "no hunk header as git writes it")
    left, right = int(found[2] or 1), int(found[4] or 1)
    body: list[tuple[str, str]] = []
    at += 1
    while left or right or (at < len(lines) and lines[at] == NO_NEWLINE):
        line = lines[at] if at < len(lines) else ""
        if line == NO_NEWLINE and body:
            mark, text = body[-1]
            body[-1] = (mark, text.removesuffix("\n"))
        elif line[:1] in (" ", "-", "+"):
            left -= line[0] != "+"
            right -= line[0] != "-"
            body.append((line[0], line[1:] + "\n"))
        else:
            raise _malformed(path, at + 1, "the hunk ends before it has the lines that it says")
        if left < 0 or right < 0:
            raise _malformed(path, at + 1, "the hunk has more lines than it says")
        at += 1
    changes = [i for i, (mark, _) in enumerate(body) if mark != " "]
    if not changes:
        raise _malformed(path, first + 1, "a hunk without any change")
    before = tuple(text for mark, text in body if mark != "+")
    after = tuple(text for mark, text in body if mark != "-")
    # For no lines git names the line that they would follow.
    old, new = int(found[1]) - bool(before), int(found[3]) - bool(after)
    at_start = old == 0 and changes[0] < 3
    at_end = changes[-1] == len(body) - 1
    return Hunk(first + 1, before, after, old, new, at_start, at_end), at


def _malformed(path: Path, line: int, why: str) -> PatchError:
    return PatchError(
        "a patch is not as torchfork exports it",
        where=f"{path}:{line}",
        why=why,
        next="make it anew: scripts/torchfork patch edit, git am FILE there, git reset HEAD~, "
        "and scripts/torchfork patch new",
    )
