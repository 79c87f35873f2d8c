"""Puts files of ours into a source tree and takes them out again, bit for bit.

Every change is announced in the journal before it is made, and each file changes by one rename: a
killed run leaves files that are either the tree's or ours, the journal knows both, and the next
apply or unapply goes on from there. What is neither was edited by somebody, and is never written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import CollisionError, StateError
from ..upstream.tree import ABSENT, STATE, SourceTree, state_of
from ..util import files
from . import tree_journal
from .applied import current, listed
from .tree_journal import Entry, Journal

LOCK_SECONDS = 3600.0
OnWait = Callable[[str], None]
# Contents by path relative to the tree; None for a file that goes.
Wanted = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Changes:
    """What an apply or an unapply did to a tree."""

    written: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0


def apply(
    tree: SourceTree,
    wanted: Wanted,
    additions: Path,
    locks: Path,
    *,
    added: frozenset[str] = frozenset(),
    on_wait: OnWait = lambda holder: None,
) -> Changes:
    """Have the tree hold exactly `wanted` beyond its own files.

    Files of an earlier apply that are not among them become the tree's own again, or go.

    locks: a directory for the lock between runs.
    added: those that must be new files: one that the tree has itself raises CollisionError.
    Raises StateError, with nothing changed, where somebody has edited a file since.
    """
    with _exclusive(tree, locks, on_wait):
        before = current(tree) or Journal(tree.commit, str(additions))
        entries = _entries(tree, wanted, before, added)
        _refuse_edits(tree, entries, wanted)
        differing = [n for n, data in wanted.items() if state_of(tree.root / n) != _digest(data)]
        stale = sorted(before.entries.keys() - wanted.keys())
        if not differing and not stale and before.settled and before.additions == str(additions):
            return Changes(unchanged=len(wanted))
        _announce(tree, before, entries, wanted, additions)
        for name in differing:
            _put(tree, name, wanted[name])
        restored, removed = _restore(tree, before, stale)
        settled = {n: Entry(entries[n].original, (_digest(data),)) for n, data in wanted.items()}
        tree_journal.save(tree.root, Journal(tree.commit, str(additions), entries=settled))
        _drop_originals(tree, stale)
    unchanged = len(wanted) - len(differing)
    return Changes(tuple(sorted(differing)), tuple(restored), tuple(removed), unchanged)


def unapply(tree: SourceTree, locks: Path, *, on_wait: OnWait = lambda holder: None) -> Changes:
    """Make every file the tree's own again. Raises StateError where nothing is applied."""
    with _exclusive(tree, locks, on_wait):
        before = current(tree)
        if before is None:
            raise StateError(
                "nothing is applied to this tree",
                where=str(tree.root),
                next="scripts/torchfork apply puts the additions in",
            )
        _refuse_edits(tree, before.entries, {})
        tree_journal.save(tree.root, replace(before, settled=False, undoing=True))
        restored, removed = _restore(tree, before, sorted(before.entries))
        tree_journal.forget(tree.root)
    return Changes(restored=tuple(restored), removed=tuple(removed))


def _entries(
    tree: SourceTree, wanted: Wanted, before: Journal, added: frozenset[str]
) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for name in wanted:
        known = before.entries.get(name)
        own = known.original if known else _own(tree.root / name)
        if own is not None and name in added:
            raise CollisionError(
                f"the tree has a file {Path(name).name} of its own",
                where=str(tree.root / name),
                why="a file of the additions would take its place",
                next="rename the file in the additions; a patch changes upstream's own files",
            )
        entries[name] = Entry(own, known.ours if known else ())
    for name in before.entries.keys() - wanted.keys():
        entries[name] = before.entries[name]
    return entries


def _refuse_edits(tree: SourceTree, entries: Mapping[str, Entry], wanted: Wanted) -> None:
    """Never overwrite what somebody else has written."""
    foreign = []
    for name, entry in entries.items():
        known = {entry.original or ABSENT, *entry.ours}
        if name in wanted:
            known.add(_digest(wanted[name]))
        if state_of(tree.root / name) not in known:
            foreign.append(name)
    if foreign:
        raise StateError(
            f"{len(foreign)} file{'s' * (len(foreign) > 1)} of the tree changed meanwhile; nothing "
            "was overwritten",
            where=str(tree.root),
            why=listed(sorted(foreign)),
            next="carry your edits over to the additions, or save them elsewhere, and put the "
            f"files back; the tree's own are kept in {tree.root / STATE / 'originals'}",
        )


def _announce(
    tree: SourceTree,
    before: Journal,
    entries: Mapping[str, Entry],
    wanted: Wanted,
    additions: Path,
) -> None:
    """Write down what may be found if this run is killed, and keep the originals."""
    pending = {
        name: Entry(entry.original, _with(entry.ours, wanted, name))
        for name, entry in entries.items()
    }
    # git must not offer to commit what is ours to take away again.
    files.write_text(tree.state / ".gitignore", "*\n")
    for name, entry in entries.items():
        if entry.original is not None and state_of(tree.root / name) == entry.original:
            tree_journal.keep(tree.root, name, entry.original)
    journal = Journal(tree.commit, str(additions), settled=False, entries=pending)
    tree_journal.save(tree.root, journal)


def _with(ours: tuple[str, ...], wanted: Wanted, name: str) -> tuple[str, ...]:
    new = [_digest(wanted[name])] if name in wanted else []
    return tuple(dict.fromkeys([*ours, *new]))


def _put(tree: SourceTree, name: str, data: bytes | None) -> None:
    target = tree.root / name
    if data is None:
        target.unlink(missing_ok=True)
        return
    mode = target.stat().st_mode & 0o777 if target.is_file() else 0o644
    tree_journal.put(tree.root, name, data, mode)


def _restore(tree: SourceTree, before: Journal, names: list[str]) -> tuple[list[str], list[str]]:
    restored, removed = [], []
    for name in names:
        entry, place = before.entries[name], tree.root / name
        if entry.original is None and place.exists():
            place.unlink()
            files.remove_empty(place.parent, tree.root)
            removed.append(name)
        elif entry.original is not None and state_of(place) != entry.original:
            tree_journal.put_back(tree.root, name)
            restored.append(name)
    return restored, removed


def _drop_originals(tree: SourceTree, names: list[str]) -> None:
    for name in names:
        tree_journal.original(tree.root, name).unlink(missing_ok=True)


def _digest(data: bytes | None) -> str:
    return ABSENT if data is None else hashlib.sha256(data).hexdigest()


def _own(path: Path) -> str | None:
    return files.sha256_file(path) if path.is_file() else None


@contextlib.contextmanager
def _exclusive(tree: SourceTree, locks: Path, on_wait: OnWait) -> Iterator[None]:
    key = files.sha256_text(os.fspath(tree.root))[:16]
    guard = locks / f"apply-{key}.lock"
    with files.lock(guard, f"changing {tree.root}", on_wait, LOCK_SECONDS):
        yield
