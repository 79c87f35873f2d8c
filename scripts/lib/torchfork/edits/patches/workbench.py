"""The workbench: a git tree with upstream's files and a commit for each patch, to edit them in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from ...errors import StateError, UsageError
from ...util import files
from . import exporting, scratch
from .diff import Diff
from .outcome import Outcome, State
from .planning import judge, read
from .series import Entry, Lane, Series
from .tree import Tree, directory

_NOTE = "torchfork.json"
# What is copied of upstream's: files that people edit. Headers of a wheel are generated.
_SUFFIXES = frozenset(
    {".py", ".pyi", ".in", ".h", ".hpp", ".cpp", ".cu", ".cuh", ".c", ".mm", ".rst", ".md", ".txt"}
    | {".cmake", ".yaml", ".yml", ".toml"}
)
_LEFT_OUT = ("torch/include/", "torch/lib/", "torch/share/", "third_party/")
MARK = "<<<<<<< "


@dataclass(frozen=True)
class Bench:
    """A workbench on disk and how far it is."""

    root: Path
    folder: str  # the patches folder that it belongs to
    version: str
    lane: Lane
    upstream: str  # the commit of upstream's files
    pending: tuple[str, ...]  # entries that are still to be applied
    conflict: str = ""  # the entry whose conflict is in the working tree
    landed: tuple[str, ...] = ()


def load(root: Path) -> Bench:
    """The workbench in a directory. Raises StateError where there is none."""
    data = files.read_json(root / ".git" / _NOTE)
    if not data:
        raise StateError(
            "there is no workbench here",
            where=str(root),
            next="scripts/torchfork patch edit --torch VERSION makes one",
        )
    lists = {key: tuple(data[key]) for key in ("pending", "landed")}
    return Bench(root, **{**data, **lists})


def _save(bench: Bench) -> Bench:
    data = {key: value for key, value in asdict(bench).items() if key != "root"}
    files.write_json(bench.root / ".git" / _NOTE, data)
    return bench


def start(root: Path, series: Series, tree: Tree, version: str, lane: Lane) -> Bench:
    """Make a workbench of upstream's files. Raises StateError where one with work in it lies."""
    if (root / ".git" / _NOTE).is_file():
        _refuse_to_lose(load(root))
        shutil.rmtree(root)
    elif root.exists() and any(root.iterdir()):
        raise UsageError("this directory is not empty", where=str(root), next="name another one")
    scratch.create(root)
    entries = [entry for entry in series.entries if entry.covers(version, lane)]
    scratch.put(root, {name: tree.read(name) for name in _worked_on(tree, entries)})
    commit = scratch.commit(root, f"torch {version}")
    names = tuple(entry.name for entry in entries)
    return _save(Bench(root, str(series.folder), version, lane, commit, names))


def _refuse_to_lose(bench: Bench) -> None:
    """A workbench is replaced only if all that is in it is in patches/ too."""
    if scratch.git(bench.root, "status", "--porcelain").stdout or bench.conflict:
        raise StateError(
            "the workbench has edits that are not in patches/",
            where=str(bench.root),
            next=f"scripts/torchfork patch refresh, or delete it: rm -r {bench.root}",
        )


def _worked_on(tree: Tree, entries: Sequence[Entry]) -> Iterator[str]:
    """Upstream's text files that somebody may edit, and those that patches touch."""
    touched: set[str] = set()
    for entry in entries:
        change = read(entry)
        if isinstance(change, Diff):
            touched.update(file.path for file in change.files)
    for name in tree.names():
        kind = PurePosixPath(name).suffix
        if name in touched or (kind in _SUFFIXES and not name.startswith(_LEFT_OUT)):
            yield name


def go_on(bench: Bench, series: Series, ancestors: Sequence[Tree]) -> Bench:
    """Commit each pending patch. Raises PatchConflictError with the conflict in the tree.

    What is in the tree after a conflict is taken as its resolution; StateError while marks are
    left in it.
    """
    if bench.conflict:
        bench = _resolved(bench, series.get(bench.conflict))
    while bench.pending:
        entry = series.get(bench.pending[0])
        earlier = series.entries[: series.entries.index(entry)]
        outcome = judge(entry, directory(bench.root), bench.lane, ancestors, earlier)
        if outcome.state is State.CONFLICTS:
            _stop(bench, outcome)
        bench = _take(bench, entry, outcome)
    return bench


def _take(bench: Bench, entry: Entry, outcome: Outcome) -> Bench:
    if outcome.state is State.LANDED:
        landed = (*bench.landed, entry.name)
        return _save(replace(bench, pending=bench.pending[1:], landed=landed))
    scratch.put(bench.root, outcome.texts)
    commit(bench, entry)
    return _save(replace(bench, pending=bench.pending[1:]))


def _stop(bench: Bench, outcome: Outcome) -> None:
    """Leave the conflict in the tree, for a person."""
    conflict = outcome.conflict
    assert conflict is not None
    release = bench.version.partition("+")[0]
    if outcome.entry.is_diff:
        scratch.put(bench.root, conflict.marked)
        _save(replace(bench, conflict=outcome.name))
    what = "resolve the marks" if conflict.marked else f"make the change of {outcome.name}"
    raise outcome.error(
        release, bench.lane, f"{what} in {bench.root}, then: scripts/torchfork patch refresh"
    )


def _resolved(bench: Bench, entry: Entry) -> Bench:
    changed = scratch.git(
        bench.root, "ls-files", "--modified", "--others", "-z"
    ).stdout.split("\0")  # fmt: skip
    left = [name for name in changed if name and MARK in (scratch.get(bench.root, name) or "")]
    if left:
        raise StateError(
            f"the conflict of '{entry.name}' is not resolved",
            where="\n".join(str(bench.root / name) for name in left),
            why=f"lines that start with '{MARK.strip()}' are left",
            next="edit them, then: scripts/torchfork patch refresh",
        )
    commit(bench, entry)
    return _save(replace(bench, conflict="", pending=bench.pending[1:]))


def commit(bench: Bench, entry: Entry) -> None:
    """Commit what is in the working tree as a patch, with the author that its file names."""
    change = read(entry)
    env = None
    if isinstance(change, Diff):
        name, _, mail = change.author.rpartition(" <")
        env = scratch.identity(name, mail.removesuffix(">"), change.date)
    scratch.commit(bench.root, exporting.message(change.header, entry.name), env=env)
