"""A patch that is a folder: new files as they are, and lines of ours at upstream's anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from ...additions import paths
from ...errors import BaseRefusedError, PatchError
from ...util import files
from ...util.blocks import END_OF_FILE, Anchor, block, blocks_of, place, strip_blocks
from .. import BuildMode, Texts, Tree, check_path, decode, encode, similar_lines
from .series import BUILD_MODES, Conflict, Header, Outcome, Patch, State, make_header

ABOUT = "patch.toml"
END = "the end of the file"
FIELDS = ("subject", "why", "until", "upstream")
# How lines of ours are marked, by the kind of file. Others cannot have comments just anywhere.
COMMENTS = {
    **dict.fromkeys((".py", ".pyi", ".in", ".txt", ".cmake", ".toml", ".yaml", ".cfg"), "#"),
    **dict.fromkeys((".h", ".hpp", ".cpp", ".cu", ".cuh", ".c", ".mm"), "//"),
}


@dataclass(frozen=True)
class AnchoredBlock:
    """A [[hook]] table: lines, and the upstream line beside which they go."""

    file: str
    anchors: tuple[str, ...]  # whole lines, one of which must be there once; none: END
    place: Literal["before", "after"]
    text: str  # its lines, as they stand in upstream's file
    build_mode: str  # 'both', or the only one that it is for
    line: int  # of patch.toml

    @property
    def anchor(self) -> Anchor:
        """The anchor as `place` takes it."""
        pattern = "|".join(map(re.escape, self.anchors)) if self.anchors else END_OF_FILE
        where = " or ".join(f"'{line.strip()}'" for line in self.anchors) or END
        return Anchor(pattern, self.place, where)

    def put_into(self, text: str, name: str) -> str:
        """The text with the block. Raises BaseRefusedError unless the anchor is there once."""
        comment = COMMENTS[PurePosixPath(self.file).suffix]
        inserted = block(self.text.split("\n")[:-1], comment, name=name)
        return place(text, self.anchor, inserted, self.file)

    def stands_in(self, text: str) -> bool:
        """Whether upstream has the lines, all of them together, as its own.

        Beside the anchor where that is there once: 'import math' may well stand elsewhere.
        """
        body = [line.strip() for line in self.text.splitlines() if line.strip()]
        if any(line not in text for line in body):  # by far the commonest case, and fast
            return False
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        wanted = {anchor.strip() for anchor in self.anchors}
        anchors = [i for i, line in enumerate(lines) if line in wanted]
        beside = {i + 1 if self.place == "after" else i - len(body) for i in anchors}
        return any(
            lines[i : i + len(body)] == body
            for i in range(len(lines))
            if len(anchors) != 1 or i in beside
        )


@dataclass(frozen=True)
class Folder:
    """New files and anchored hooks with one header."""

    patch: Patch
    header: Header
    added: Mapping[str, str]  # path: text, in order
    hooks: tuple[AnchoredBlock, ...]
    author: str = ""  # its commits are the user's
    date: str = ""

    def touched(self, mode: str) -> list[str]:
        """The files that it adds or changes in a build mode."""
        return sorted({*self.added, *(hook.file for hook in self._hooks(mode))})

    @property
    def new_files(self) -> list[str]:
        """The files that it adds."""
        return [*self.added]

    def _hooks(self, mode: str) -> list[AnchoredBlock]:
        return [hook for hook in self.hooks if hook.build_mode in ("both", mode)]

    def judge(self, tree: Tree, mode: BuildMode) -> Outcome:
        """How it stands to a tree, with the texts of all its files."""
        texts: dict[str, str | None] = {}
        there: list[str] = []  # what upstream has, file by file
        ours_already = False
        for path, text in self.added.items():
            present = tree.read(path)
            if present not in (None, text):
                why = "upstream has a file of that name with other contents"
                where = f"{self.patch.path / path}:1"
                return self._conflict(where, path, why, _start(text), _start(present or ""))
            there += [path] * (present is not None)
            texts[path] = text
        hooks = self._hooks(mode)
        for hook in hooks:
            present = tree.read(hook.file)
            if present is None:
                return self._misplaced(hook, "the file that a hook goes into is not there", tree)
            upstreams = strip_blocks(present, hook.file, self.patch.name)
            ours_already |= upstreams != present
            if hook.stands_in(upstreams):
                there.append(hook.file)
                continue
            try:
                present = texts.get(hook.file) or upstreams
                texts[hook.file] = hook.put_into(present, self.patch.name)
            except BaseRefusedError as error:
                return self._misplaced(hook, f"its anchor is not there once ({error.why})", tree)
        if ours_already or not there:
            state = State.APPLIED if ours_already else State.APPLIES
            return Outcome(self.patch, self.header, state, texts)
        if len(there) == len(self.added) + len(hooks):
            note = "upstream has all of its lines"
            return Outcome(self.patch, self.header, State.LANDED, {}, note)
        # Somebody must decide whether the rest is still wanted.
        parts = "there already: " + ", ".join(sorted(set(there)))
        where, ours = f"{self._about}:1", "\n".join(sorted(texts))
        return self._conflict(where, there[0], "upstream has a part of it", ours, parts)

    @property
    def _about(self) -> Path:
        return self.patch.path / ABOUT

    def _conflict(self, where: str, file: str, why: str, ours: str, theirs: str) -> Outcome:
        conflict = Conflict(where, file, why, ours, theirs)
        return Outcome(self.patch, self.header, State.CONFLICTS, {}, why, conflict)

    def _misplaced(self, hook: AnchoredBlock, why: str, tree: Tree) -> Outcome:
        text = tree.read(hook.file)
        if text is not None:
            theirs = similar_lines(text, hook.anchors, 4)
        else:
            kind = PurePosixPath(hook.file).suffix
            names = {name for line in hook.anchors for name in tree.containing(line, kind)}
            theirs = "".join(f"the anchor is in {name}\n" for name in sorted(names))
        ours = f"{hook.place} {hook.anchor.purpose}:\n{hook.text}"
        return self._conflict(f"{self._about}:{hook.line}", hook.file, why, ours, theirs)

    def rewritten(self, before: Texts, after: Texts) -> dict[Path, bytes | None]:
        """The files of this folder as a commit has them, which turned `before` into `after`.

        Of patch.toml only the lines of its hooks change. Raises PatchError for other edits.
        """
        root = self.patch.path
        contents: dict[Path, bytes | None] = {root / name: None for name in self.added}
        about = self.patch.read_text(self._about)
        for name, text in after.items():
            old = before[name]
            if old is None:
                contents[root / name] = None if text is None else encode(text)
            else:
                about = self._edited(about, name, old, text or "")
        return {**contents, self._about: about.encode()}

    def _edited(self, about: str, file: str, before: str, after: str) -> str:
        """patch.toml with the lines that a file's hooks have now."""
        name, where = self.patch.name, str(self._about)
        placed = before
        for hook in self.hooks:
            if hook.file == file:
                placed = hook.put_into(placed, name)
        # In the order of the file; in patch.toml they stand in the order of writing.
        old_blocks, new_blocks = blocks_of(placed, name), blocks_of(after, name)
        if strip_blocks(after, file, name) != before or len(old_blocks) != len(new_blocks):
            raise PatchError(
                f"'{name}' changes {file} outside of its hooks",
                where=where,
                why="a folder holds new files and lines at anchors; other edits are a diff",
                next="undo that edit and make it a patch of its own: scripts/torchfork patch new",
            )
        for old, new in zip(old_blocks, new_blocks, strict=True):
            if old == new:
                continue
            if about.count(f"'''\n{old}'''") != 1 or "'''" in new:
                raise PatchError(
                    f"cannot find the lines of a hook of '{name}' to replace them",
                    where=where,
                    why="they are not written between ''' lines, or stand there twice",
                    next="edit them there by hand",
                )
            about = about.replace(f"'''\n{old}'''", f"'''\n{new}'''")
        return about


def _start(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:8])


def read_folder(patch: Patch) -> Folder:
    """Read a folder with its patch.toml. Raises PatchError."""
    about = patch.path / ABOUT
    if not paths.is_file(about, patch.folder.parent):
        raise PatchError(
            f"a patch that is a folder needs a {ABOUT}",
            where=str(patch.path),
            next="copy that of another folder: subject, why, until, upstream, and its hooks",
        )
    text = patch.read_text(about)
    try:
        data = files.parse_toml(text)
    except ValueError as error:
        raise PatchError(f"malformed {ABOUT}", where=str(about), why=str(error)) from error
    fields = {key: value for key, value in data.items() if isinstance(value, str)}
    header = make_header(fields.get("subject", ""), fields, str(about))
    unknown = set(data) - {*FIELDS, "hook"}
    if unknown:
        raise PatchError(
            f"{ABOUT} knows no '{min(unknown)}'",
            where=str(about),
            next=f"{', '.join(FIELDS)}, and [[hook]] tables",
        )
    return Folder(patch, header, dict(_added(patch)), _hooks(data, text, about))


def _added(patch: Patch) -> Iterator[tuple[str, str]]:
    """The folder's files but patch.toml, by their paths in upstream's tree."""
    for path in paths.tree(patch.path, patch.folder.parent):
        name = path.relative_to(patch.path).as_posix()
        if name != ABOUT:
            check_path(name, str(path))
            yield name, decode(paths.read(path))


def _hooks(data: dict[str, Any], text: str, about: Path) -> tuple[AnchoredBlock, ...]:
    tables = data.get("hook", [])
    starts = [n for n, line in enumerate(text.split("\n"), 1) if line.strip() == "[[hook]]"]
    if not isinstance(tables, list) or len(starts) != len(tables):
        raise PatchError("hooks are written as [[hook]] tables", where=str(about))
    return tuple(_hook(t, n, about) for t, n in zip(tables, starts, strict=True))


def _hook(table: Any, line: int, about: Path) -> AnchoredBlock:
    """One [[hook]] table. Raises PatchError with its line."""
    where = f"{about}:{line}"
    table = table if isinstance(table, dict) else {}
    places: list[Literal["before", "after"]] = [p for p in ("before", "after") if p in table]
    file, lines, mode = table.get("file"), table.get("lines"), table.get("lane", "both")
    anchors = table[places[0]] if len(places) == 1 else None
    anchors = [anchors] if isinstance(anchors, str) else anchors
    problem = ""
    if set(table) - {"file", "before", "after", "lines", "lane"} or len(places) != 1:
        problem = "a hook has file, lines, one of before and after, and perhaps lane"
    elif not isinstance(file, str) or PurePosixPath(file).suffix not in COMMENTS:
        problem = f"hooks go into files of these kinds: {' '.join(sorted(COMMENTS))}; else a .patch"
    elif mode not in BUILD_MODES:
        problem = "a hook's lane, its build mode, is graft, source or both"
    elif not isinstance(lines, str) or not lines.strip() or not lines.endswith("\n"):
        problem = "the lines of a hook are a text that ends with a newline: '''...'''"
    elif not isinstance(anchors, list) or not anchors or not all(map(_is_line, anchors)):
        problem = f"an anchor is a whole line of upstream's, several such lines, or '{END}'"
    if problem:
        raise PatchError("a hook that cannot be read", where=where, why=problem)
    check_path(str(file), where)
    kept = () if anchors == [END] else tuple(anchors or ())
    return AnchoredBlock(str(file), kept, places[0], str(lines), mode, line)


def _is_line(anchor: Any) -> bool:
    return isinstance(anchor, str) and bool(anchor.strip()) and "\n" not in anchor
