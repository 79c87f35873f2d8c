"""A patch that is a folder: new files as they are, and lines of ours at upstream's anchors."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import PatchError
from ...util import files
from ...util.blocks import END_OF_FILE, Anchor
from . import header
from .header import Header
from .paths import check_path
from .tree import decode

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ABOUT = "patch.toml"
END = "the end of the file"
# How lines of ours are marked, by the kind of file. Others cannot have comments just anywhere.
COMMENTS = {
    **dict.fromkeys((".py", ".pyi", ".in", ".txt", ".cmake", ".toml", ".yaml", ".cfg"), "#"),
    **dict.fromkeys((".h", ".hpp", ".cpp", ".cu", ".cuh", ".c", ".mm"), "//"),
}


@dataclass(frozen=True)
class AnchoredBlock:
    """One hook: lines and the upstream line beside which they go."""

    file: str
    anchors: tuple[str, ...]  # whole lines, one of which must be there once; none: END
    place: Literal["before", "after"]
    text: str  # its lines, as they stand in upstream's file
    lane: str  # 'both', or the only lane that it is for
    line: int  # of patch.toml

    @property
    def anchor(self) -> Anchor:
        """The anchor as the marker functions want it."""
        pattern = "|".join(map(re.escape, self.anchors)) if self.anchors else END_OF_FILE
        where = " or ".join(f"'{line.strip()}'" for line in self.anchors) or END
        return Anchor(pattern, self.place, where)

    @property
    def comment(self) -> str:
        """What begins a comment in the file."""
        return COMMENTS[Path(self.file).suffix]


@dataclass(frozen=True)
class Overlay:
    """New files and hooks with one header."""

    path: Path
    header: Header
    added: tuple[tuple[str, str], ...]  # (path, text), sorted
    hooks: tuple[AnchoredBlock, ...]

    def touched(self, lane: str) -> list[str]:
        """The files that it adds or changes in a lane."""
        hooked = [hook.file for hook in self.hooks if hook.lane in ("both", lane)]
        return sorted({name for name, _ in self.added} | set(hooked))


def read(path: Path) -> Overlay:
    """Read a folder with its patch.toml. Raises PatchError."""
    about = path / ABOUT
    try:
        text = about.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise PatchError(
            f"a patch that is a folder needs a {ABOUT}",
            where=str(path),
            why=str(error.strerror),
            next="copy that of another folder: subject, why, until, upstream, and its hooks",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PatchError(f"malformed {ABOUT}", where=str(about), why=str(error)) from error
    fields = {k: v for k, v in data.items() if isinstance(v, str)}
    said = header.make(fields.pop("subject", ""), fields, str(about))
    unknown = set(data) - {"subject", "why", "until", "upstream", "hook"}
    if unknown:
        raise PatchError(
            f"{ABOUT} knows no '{min(unknown)}'",
            where=str(about),
            next="subject, why, until, upstream, and [[hook]] tables",
        )
    hooks = _hooks(data.get("hook", []), text, about)
    return Overlay(path, said, tuple(_added(path)), hooks)


def _added(folder: Path) -> list[tuple[str, str]]:
    found = []
    for path in files.tree_files(folder):
        name = path.relative_to(folder).as_posix()
        if name == ABOUT:
            continue
        check_path(name, str(path))
        if path.is_symlink():
            raise PatchError("a symbolic link is not carried, plain files are", where=str(path))
        found.append((name, decode(path.read_bytes())))
    return found


def _hooks(tables: Any, text: str, about: Path) -> tuple[AnchoredBlock, ...]:
    starts = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == "[[hook]]"]
    if not isinstance(tables, list) or len(starts) != len(tables):
        raise PatchError("hooks are written as [[hook]] tables", where=str(about))
    return tuple(_hook(t, n, about) for t, n in zip(tables, starts, strict=True))


def _hook(table: dict[str, Any], line: int, about: Path) -> AnchoredBlock:
    where = f"{about}:{line}"
    known: tuple[Literal["before", "after"], ...] = ("before", "after")
    places = [key for key in known if key in table]
    file, lines, lane = table.get("file"), table.get("lines"), table.get("lane", "both")
    anchors = table[places[0]] if len(places) == 1 else None
    anchors = [anchors] if isinstance(anchors, str) else anchors
    problem = ""
    if set(table) - {"file", "before", "after", "lines", "lane"} or len(places) != 1:
        problem = "a hook has file, lines, one of before and after, and perhaps lane"
    elif not isinstance(file, str) or Path(file).suffix not in COMMENTS:
        problem = f"hooks go into files of these kinds: {' '.join(sorted(COMMENTS))}; else a .patch"
    elif lane not in ("graft", "source", "both"):
        problem = "a hook's lane is graft, source or both"
    elif not isinstance(lines, str) or not lines.strip() or not lines.endswith("\n"):
        problem = "the lines of a hook are a text that ends with a newline: '''...'''"
    elif not isinstance(anchors, list) or not anchors or any("\n" in str(a) for a in anchors):
        problem = f"an anchor is a whole line of upstream's, several such lines, or '{END}'"
    if problem or not isinstance(anchors, list):
        raise PatchError("a hook that cannot be read", where=where, why=problem)
    check_path(str(file), where)
    end = anchors == [END]
    return AnchoredBlock(
        str(file), () if end else tuple(map(str, anchors)), places[0], str(lines), lane, line
    )
