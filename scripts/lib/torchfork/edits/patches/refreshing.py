"""Brings the commits of a workbench back into patches/, without breaking a release that worked."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import PatchError, StateError
from ...util import files
from . import exporting, scratch, series
from .exporting import Commit
from .header import Header
from .outcome import State
from .planning import plan
from .series import SERIES, Series
from .tree import Tree
from .workbench import Bench


@dataclass(frozen=True)
class Known:
    """A release at hand that a refreshed patch is tried on."""

    version: str
    tree: Tree


def refresh(bench: Bench, found: Series, known: Sequence[Known], variant: str = "") -> list[Path]:
    """Write what the commits say; the files below patches/ that changed.

    variant: a tag: changed patches are written beside the old ones, for the bench's release and
        later, and the old ones end before it.
    Raises PatchError for a commit that is no patch and for a patch whose commit is gone;
    StateError for edits that are not committed, and for a patch that would not apply any more to a
    release of `known` that it applied to.
    """
    _require_committed(bench)
    changes: dict[Path, bytes | None] = {}
    done = set()
    for commit in exporting.commits(bench.root, bench.upstream):
        _require_named(commit)
        done.add(commit.name)
        entry = found.get(commit.name)
        new = exporting.refresh(entry, bench.root, commit)
        changes.update(_as_variant(found, bench, new, variant) if new and variant else new)
    _require_all(bench, found, done)
    if changes and not variant:
        _require_others(found, changes, known, bench)
    exporting.write(changes)
    return sorted(changes)


def add(bench: Bench, found: Series, name: str, said: Header, line: str) -> Path:
    """Make what is not committed in a workbench the last patch of the series.

    line: the entry's line for the series. Gives the new patch's file.
    """
    entry = series.parse_line(line, found.folder, len(found.entries) + 1)
    if any(other.name == entry.name for other in found.entries) or not entry.is_diff:
        raise PatchError(
            f"'{name}' cannot be the name of a new patch",
            where=entry.where(), why="it is taken, or it does not end with .patch",
            next="choose another one",
        )  # fmt: skip
    commit = scratch.commit(bench.root, exporting.message(said, entry.name))
    made = next(c for c in exporting.commits(bench.root, bench.upstream) if c.id == commit)
    text = exporting.as_patch(bench.root, made)
    path = found.folder / SERIES
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    exporting.write({entry.path: text.encode("utf-8", "surrogateescape")})
    files.write_text(path, old + ("" if old.endswith("\n") or not old else "\n") + line + "\n")
    return entry.path


def _require_committed(bench: Bench) -> None:
    told = scratch.git(bench.root, "status", "--porcelain").stdout
    if told:
        raise StateError(
            "the workbench has edits that no commit has",
            where=str(bench.root),
            why=told.rstrip(),
            next="git commit --amend (or --fixup and rebase) for a patch that is there, "
            "scripts/torchfork patch new NAME for a new one",
        )


def _require_named(commit: Commit) -> None:
    if not commit.name:
        raise PatchError(
            "a commit of the workbench names no patch",
            where=f"{commit.id[:12]} {commit.header.subject}",
            why=f"its message has no line '{exporting.TRAILER}NAME'",
            next="squash it into the commit it belongs to; for a new patch: git reset --soft "
            "HEAD~, then scripts/torchfork patch new NAME",
        )


def _require_all(bench: Bench, found: Series, done: set[str]) -> None:
    for entry in found.entries:
        wanted = entry.covers(bench.version, bench.lane) and entry.name not in bench.landed
        if wanted and entry.name not in done:
            raise PatchError(
                f"the commit of '{entry.name}' is gone",
                where=str(bench.root),
                why="a patch is not dropped by accident",
                next=f"to drop it delete {entry.path} and its line in {found.folder / SERIES}, "
                "else make the workbench anew with patch edit",
            )


def _as_variant(
    found: Series, bench: Bench, new: Mapping[Path, bytes | None], tag: str
) -> dict[Path, bytes | None]:
    """The changed patch beside the old one, and the series with both ranges."""
    (path, data), *more = new.items()
    entry = found.get(path.name)
    if more or not entry.is_diff:
        raise PatchError(
            f"'{entry.name}' is a folder: it has no variants made by refresh",
            where=str(entry.path), next=f"copy it to {entry.concern}@{tag} and edit the copy",
        )  # fmt: skip
    release = bench.version.partition("+")[0]
    lines = (found.folder / SERIES).read_text(encoding="utf-8").split("\n")
    old = lines[entry.line - 1]
    range_ = str(entry.versions)
    before, after = (f"{range_},{op}{release}".lstrip(",") for op in ("<", ">="))
    words = old.split(None, 2)
    name = f"{entry.concern}@{tag}.patch"
    lines[entry.line - 1 : entry.line] = [
        f"{words[0]}  {before}  {words[2]}", f"{name}  {after}  {words[2]}",
    ]  # fmt: skip
    return {found.folder / name: data, found.folder / SERIES: "\n".join(lines).encode()}


def _require_others(
    found: Series, changes: Mapping[Path, bytes | None], known: Sequence[Known], bench: Bench
) -> None:
    """Refuse a refresh that mends one release and breaks another."""
    with tempfile.TemporaryDirectory(prefix="torchfork-refresh-") as name:
        copy = Path(name) / found.folder.name
        shutil.copytree(found.folder, copy)
        exporting.write({copy / p.relative_to(found.folder): d for p, d in changes.items()})
        new = series.load(Path(name))
        for release in known:
            before, after = (
                {
                    o.name: o.state
                    for o in plan(s, release.tree, release.version, bench.lane).outcomes
                }
                for s in (found, new)
            )
            for patch, state in after.items():
                if state is State.CONFLICTS and before.get(patch) is not State.CONFLICTS:
                    tag = bench.version.partition("+")[0]
                    raise StateError(
                        f"refreshed on torch {tag}, '{patch}' does not apply to torch "
                        f"{release.version} any more",
                        where=str(found.folder / patch),
                        why="one text cannot serve both releases",
                        next=f"scripts/torchfork patch refresh --variant {tag} keeps both",
                    )
