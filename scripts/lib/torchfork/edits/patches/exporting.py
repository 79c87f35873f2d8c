"""Patches as commits: back to the patches folder, and onto the branches of other people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import PatchError
from ...util import files
from ...util.blocks import named_block, named_blocks, place, strip_named
from . import header, overlay, scratch
from .header import Header
from .overlay import ABOUT, Overlay
from .render import render
from .series import Entry
from .tree import decode, encode

TRAILER = "Patch: "


@dataclass(frozen=True)
class Commit:
    """A commit that is a patch."""

    id: str
    name: str  # the entry's; '' for a commit of somebody who gave none
    header: Header
    author: str
    date: str


def message(said: Header, name: str) -> str:
    """The message of a patch's commit."""
    return f"{said.message()}{TRAILER}{name}\n"


def commits(repository: Path, start: str) -> list[Commit]:
    """The commits after `start`, oldest first. Raises PatchError for a patch without its fields."""
    told = scratch.git(repository, "rev-list", "--reverse", f"{start}..HEAD").stdout
    return [_commit(repository, name) for name in told.split()]


def _commit(repository: Path, name: str) -> Commit:
    shape = "%an <%ae>%n%aD%n%B"
    text = scratch.git(repository, "show", "--no-patch", f"--format={shape}", name).stdout
    author, date, subject, *body = text.rstrip("\n").split("\n")
    trailers = [line for line in body if line.startswith(TRAILER)]
    fields = "\n".join(line for line in body if line not in trailers).strip("\n")
    entry = trailers[-1].removeprefix(TRAILER) if trailers else ""
    where = f"commit {name[:12]}"
    said = header.parse(subject, fields, where) if entry else Header(subject, "", "", "")
    return Commit(name, entry, said, author, date)


def as_patch(repository: Path, commit: Commit) -> str:
    """A commit as a patch file. Raises PatchError for one that changes nothing."""
    text = render(repository, f"{commit.id}^", commit.id, commit.header, commit.author, commit.date)
    if not text:
        raise PatchError(f"the commit of '{commit.name}' changes nothing", where=commit.id)
    return text


def refresh(entry: Entry, repository: Path, commit: Commit) -> dict[Path, bytes | None]:
    """The files below patches/ that must change for an entry to be what its commit is."""
    if entry.is_diff:
        new: dict[Path, bytes | None] = {entry.path: encode(as_patch(repository, commit))}
    else:
        new = _overlay(entry, repository, commit)
    return {path: data for path, data in new.items() if data != _present(path)}


def _present(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _overlay(entry: Entry, repository: Path, commit: Commit) -> dict[Path, bytes | None]:
    """New files as they are; the lines of hooks put back into patch.toml, nothing else of it."""
    known = overlay.read(entry.path)
    before = _tree(repository, f"{commit.id}^", commit)
    after = _tree(repository, commit.id, commit)
    wanted: dict[Path, bytes | None] = {entry.path / path: None for path, _ in known.added}
    about = (entry.path / ABOUT).read_text(encoding="utf-8")
    for name, text in after.items():
        if before[name] is None:
            wanted[entry.path / name] = None if text is None else encode(text)
        else:
            about = _hooks(entry, known, about, name, before[name] or "", text or "")
    wanted[entry.path / ABOUT] = about.encode()
    return wanted


def _tree(repository: Path, commit: str, changed: Commit) -> dict[str, str | None]:
    """The files that a commit changes, as a commit has them."""
    names = scratch.git(
        repository, "diff", "--name-only", "--no-renames", "-z", f"{changed.id}^", changed.id
    ).stdout.split("\0")
    return {name: _file(repository, commit, name) for name in names if name}


def _file(repository: Path, commit: str, name: str) -> str | None:
    out = repository / ".git" / "torchfork.file"
    there = scratch.git(repository, "cat-file", "-e", f"{commit}:{name}", check=False)
    if there.returncode:
        return None
    # Checked out into a file: what a program prints is read as text, which changes line ends.
    index = {"GIT_INDEX_FILE": str(repository / ".git" / "torchfork.index")}
    scratch.git(repository, "read-tree", commit, env=index)
    scratch.git(repository, "checkout-index", f"--prefix={out}/", "--force", name, env=index)
    return decode((out / name).read_bytes())


def _hooks(entry: Entry, known: Overlay, about: str, name: str, before: str, after: str) -> str:
    """patch.toml with the lines that a file's blocks have now."""
    hooks = [hook for hook in known.hooks if hook.file == name]
    blocks = named_blocks(after, entry.name)
    if strip_named(after, entry.name, name) != before or len(blocks) != len(hooks):
        raise PatchError(
            f"'{entry.name}' changes {name} outside of its hooks",
            where=str(entry.path / ABOUT),
            why="a folder holds new files and lines at anchors; other edits are a diff",
            next="undo that edit and make it a patch of its own: scripts/torchfork patch new",
        )
    # In a file the blocks stand by their anchors, in patch.toml in the order of writing.
    placed = named_blocks(_placed(known, name, before, entry.name), entry.name)
    for old, new in zip(placed, blocks, strict=True):
        if old != new:
            about = _replace_once(about, old, new, entry)
    return about


def _placed(known: Overlay, name: str, before: str, entry: str) -> str:
    text = before
    for hook in known.hooks:
        if hook.file == name:
            text = place(text, hook.anchor, named_block(hook.text, entry, hook.comment), name)
    return text


def _replace_once(about: str, old: str, new: str, entry: Entry) -> str:
    quoted = f"'''\n{old}'''"
    if about.count(quoted) != 1 or "'''" in new:
        raise PatchError(
            f"cannot find the lines of a hook of '{entry.name}' to replace them",
            where=str(entry.path / ABOUT),
            why="they are not written between ''' lines, or stand there twice",
            next="edit them there by hand",
        )
    return about.replace(quoted, f"'''\n{new}'''")


def write(changes: Mapping[Path, bytes | None]) -> None:
    """Write files of a patches folder; None takes one away."""
    for path, data in changes.items():
        if data is None:
            path.unlink(missing_ok=True)
        else:
            files.write_bytes(path, data)
