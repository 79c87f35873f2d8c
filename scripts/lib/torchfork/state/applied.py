"""What of ours is in a source tree, and what the tree has without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import StateError
from ..upstream.tree import ABSENT, SourceTree, state_of
from . import tree_journal
from .tree_journal import Journal


@dataclass(frozen=True)
class Status:
    """How a tree stands: what is applied, what is not as we left it."""

    applied: tuple[str, ...]  # files that hold what we put there
    edited: tuple[str, ...]  # files of ours that somebody has edited since
    reverted: tuple[str, ...]  # files that are the tree's own again, by somebody's hand
    settled: bool
    additions: str


def reader(tree: SourceTree) -> Callable[[str], str | None]:
    """Reads files as the tree's commit has them, whatever is applied; None for none.

    Bytes that are no UTF-8 are kept, as patches.tree does.
    """
    journal = current(tree)

    def read(name: str) -> str | None:
        data = tree_journal.read_original(tree.root, name, journal)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    return read


def applied_content(tree: SourceTree) -> dict[str, tuple[str, ...]]:
    """sha256 of everything that we may have put into the tree, by file."""
    journal = current(tree)
    return {name: entry.ours for name, entry in journal.entries.items()} if journal else {}


def status(tree: SourceTree) -> Status | None:
    """How the tree stands; None where nothing is applied."""
    journal = current(tree)
    if journal is None:
        return None
    groups: dict[str, list[str]] = {"applied": [], "edited": [], "reverted": []}
    for name, entry in sorted(journal.entries.items()):
        now = state_of(tree.root / name)
        group = (
            "applied"
            if now in entry.ours
            else "reverted"
            if now == (entry.original or ABSENT)
            else "edited"
        )
        groups[group].append(name)
    return Status(
        tuple(groups["applied"]), tuple(groups["edited"]), tuple(groups["reverted"]),
        journal.settled, journal.additions,
    )  # fmt: skip


def current(tree: SourceTree) -> Journal | None:
    """The tree's journal, unless the tree has moved on to another commit since.

    A checkout of another commit takes our edits of tracked files with it; then what is left of ours
    is added files, and those stay known.
    """
    journal = tree_journal.load(tree.root)
    if journal is None or journal.commit == tree.commit:
        return journal
    left = {
        name: entry
        for name, entry in journal.entries.items()
        if state_of(tree.root / name) in entry.ours
    }
    edited = [name for name, entry in left.items() if entry.original is not None]
    if edited:
        raise StateError(
            "the tree is at another commit than when the additions were applied",
            where=str(tree.root),
            why=f"applied at {journal.commit}, now at {tree.commit}; still ours:\n{listed(edited)}",
            next=f"git checkout {journal.commit}, scripts/torchfork unapply, and then move on",
        )
    for name in sorted(journal.entries.keys() - left.keys()):
        tree_journal.original(tree.root, name).unlink(missing_ok=True)
    return Journal(tree.commit, journal.additions, entries=left) if left else None


def listed(names: list[str]) -> str:
    """At most ten names, and how many more there are."""
    more = [f"and {len(names) - 10} more"] if len(names) > 10 else []
    return "\n".join([*names[:10], *more])
