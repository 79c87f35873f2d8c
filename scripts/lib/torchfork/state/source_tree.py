"""Puts files of ours into a source tree and takes them out again, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from ..edits import decode
from ..errors import CollisionError, StateError, listed
from ..upstream.tree import ABSENT, STATE, SourceTree, state_of
from ..util import files
from . import journal
from .journal import Changes, Content, Entry, Journal, Store

# Contents by path relative to the tree; None for a file that goes.
Wanted = Mapping[str, bytes | None]


def store(root: Path) -> Store:
    """Where the journal and the originals of a tree lie."""
    return Store(root, STATE, "originals", links=False)


@dataclass(frozen=True)
class Status:
    """How a tree stands: what is applied, what is not as we left it."""

    applied: tuple[str, ...]  # files that hold what we put there
    edited: tuple[str, ...]  # files of ours that somebody has edited since
    reverted: tuple[str, ...]  # files that are the tree's own again, by somebody's hand
    settled: bool
    additions: str


def apply(
    tree: SourceTree,
    wanted: Wanted,
    additions: Path,
    *,
    added: frozenset[str] = frozenset(),
) -> Changes:
    """Have the tree hold exactly `wanted` beyond its own files.

    Files of an earlier apply that are not among them become the tree's own again, or go.

    added: those that must be new files: one that the tree has itself raises CollisionError.
    Raises StateError, with nothing changed, where somebody has edited a file since.
    """
    contents = {n: None if d is None else Content.of_bytes(d) for n, d in wanted.items()}
    with _exclusive(tree):
        kept = store(tree.root)
        before = current(tree) or Journal(tree.commit, str(additions))
        entries = {**before.entries, **_entries(tree, wanted, before, added)}
        kept.refuse_edits(entries, contents, next=_cure(tree), absent=False)
        # git must not offer to commit what is ours to take away again.
        files.write_if_changed(tree.state / ".gitignore", "*\n")
        asked = replace(
            before, additions=str(additions),
            settled=before.settled and before.additions == str(additions),
        )  # fmt: skip
        return journal.change(kept, contents, asked, entries)


def unapply(tree: SourceTree) -> Changes:
    """Make every file the tree's own again. Raises StateError where nothing is applied."""
    with _exclusive(tree):
        kept = store(tree.root)
        before = current(tree)
        if before is None:
            raise StateError(
                "nothing is applied to this tree",
                where=str(tree.root),
                next="scripts/torchfork apply puts the additions in",
            )
        kept.refuse_edits(before.entries, {}, next=_cure(tree), absent=False)
        changes = journal.undo(kept, before, sorted(before.entries))
        kept.forget()
    return changes


def _entries(
    tree: SourceTree, wanted: Wanted, before: Journal, added: frozenset[str]
) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for name in wanted:
        known = before.entries.get(name)
        if known is None:
            state = state_of(tree.root / name)
            known = Entry(None if state == ABSENT else state, ())
        if known.original is not None and name in added:
            raise CollisionError(
                f"the tree has a file {Path(name).name} of its own",
                where=str(tree.root / name),
                why="a file of the additions would take its place",
                next="rename the file in the additions; a patch changes upstream's own files",
            )
        entries[name] = known
    return entries


def reader(tree: SourceTree) -> Callable[[str], str | None]:
    """Reads files as the tree's commit has them, whatever is applied; None for none.

    Bytes that are no UTF-8 are kept.
    """
    known, kept = current(tree), store(tree.root)

    def read(name: str) -> str | None:
        if known and name in known.entries and known.entries[name].original is None:
            return None
        path = kept.as_found(name, known)
        return decode(path.read_bytes()) if path.is_file() else None

    return read


def applied_content(tree: SourceTree) -> dict[str, tuple[str, ...]]:
    """sha256 of everything that we may have put into the tree, by file."""
    known = current(tree)
    return {name: entry.ours for name, entry in known.entries.items()} if known else {}


def status(tree: SourceTree) -> Status | None:
    """How the tree stands; None where nothing is applied."""
    known = current(tree)
    if known is None:
        return None
    groups: dict[str, list[str]] = {"applied": [], "edited": [], "reverted": []}
    for name, entry in sorted(known.entries.items()):
        now = state_of(tree.root / name)
        if now in entry.ours:
            groups["applied"].append(name)
        else:
            groups["reverted" if now == (entry.original or ABSENT) else "edited"].append(name)
    return Status(
        tuple(groups["applied"]), tuple(groups["edited"]), tuple(groups["reverted"]),
        known.settled, known.additions,
    )  # fmt: skip


def current(tree: SourceTree) -> Journal | None:
    """The tree's journal, unless the tree has moved on to another commit since.

    A checkout of another commit takes our edits of tracked files with it; then what is left of ours
    is added files, and those stay known.
    """
    kept = store(tree.root)
    known = kept.load()
    if known is None or known.identity == tree.commit:
        return known
    left = {
        name: entry
        for name, entry in known.entries.items()
        if state_of(tree.root / name) in entry.ours
    }
    edited = [name for name, entry in left.items() if entry.original is not None]
    if edited:
        raise StateError(
            "the tree is at another commit than when the additions were applied",
            where=str(tree.root),
            why=f"applied at {known.identity}, now at {tree.commit}; still ours:\n{listed(edited)}",
            next=f"git checkout {known.identity}, scripts/torchfork unapply, and then move on",
        )
    for name in sorted(known.entries.keys() - left.keys()):
        kept.original(name).unlink(missing_ok=True)
    return Journal(tree.commit, known.additions, entries=left) if left else None


def _cure(tree: SourceTree) -> str:
    return (
        "carry your edits over to the additions, or save them elsewhere, and put the files back; "
        f"the tree's own are kept in {tree.root / STATE / 'originals'}"
    )


def _exclusive(tree: SourceTree) -> AbstractContextManager[None]:
    cure = "make the tree writable, or use one of your own"
    return journal.exclusive(tree.root, "changing", files.LOCK_SECONDS, cure)
