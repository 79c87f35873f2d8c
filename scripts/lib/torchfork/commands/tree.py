"""torchfork apply, unapply, status: the additions in a source tree that the user has."""

from __future__ import annotations

from pathlib import Path

from ..additions.load import load as load_additions
from ..errors import StateError
from ..pipelines import source, tree_work
from ..state import applied, source_tree
from ..upstream import pins
from ..upstream import tree as sourcetree
from ..upstream.pins import Release
from ..upstream.tree import SourceTree
from ..util import cache
from ..util.ui import Ui


def run_apply(root: Path, additions_root: Path, work: Path, *, unpinned: bool, ui: Ui) -> None:
    """Put additions into a tree, or bring what is in it up to date."""
    additions = load_additions(additions_root)
    tree = sourcetree.open_tree(root)
    require_clean(tree, unpinned=unpinned)
    source.require_same_additions(tree, additions)
    layout = tree_work.layout_for(tree, additions, work)
    with tree_work.locked(layout, ui):
        planned = source.plan(tree, additions, layout, ui)
        source.put_in(tree, planned, additions, locks(), ui)
    names = planned.manifest.base_names
    ui.note(f"\napplied to {tree.root}: {', '.join(names) or 'nothing'}")
    ui.note("take it out again with: scripts/torchfork unapply " + str(root))


def run_unapply(root: Path, ui: Ui) -> None:
    """Make every file of a tree its own again."""
    tree = sourcetree.open_tree(root)
    with ui.step("restore the tree's files") as step:
        changes = source_tree.unapply(tree, locks(), on_wait=ui.warn)
        step.say(f"{len(changes.restored)} restored, {len(changes.removed)} removed")


def run_status(root: Path, ui: Ui) -> None:
    """Say what is applied to a tree. The exit code tells a clean state from a disturbed one."""
    tree = sourcetree.open_tree(root)
    release = pins.load().by_commit(tree.commit) if tree.commit else None
    pinned = "as pinned" if release else "not pinned"
    ui.result(f"tree:      {tree.root}")
    ui.result(f"upstream:  torch {tree.version}, commit {tree.commit or 'unknown'} ({pinned})")
    ui.result(f"backend:   {tree.backend}")
    found = applied.status(tree)
    edits = sourcetree.hand_edits(tree, applied.applied_content(tree))
    if found is None:
        ui.result("applied:   nothing")
    else:
        ui.result(f"applied:   {found.additions}, {len(found.applied)} files")
        if not found.settled:
            ui.result("unsettled: a run was killed; apply finishes it, unapply takes it back")
        for name in found.reverted:
            ui.result(f"reverted:  {name}")
    for name in edits:
        ui.result(f"edited:    {name}")
    wrong = [*(found.edited if found else ()), *(found.reverted if found else ())]
    if wrong:
        raise StateError(
            f"{len(wrong)} file{'s' * (len(wrong) > 1)} of ours are not as they were applied",
            where=str(tree.root),
            why="\n".join(wrong[:10]),
            next="carry your edits over to the additions, put the tree's own files back, and run "
            "scripts/torchfork apply again",
        )


def require_clean(tree: SourceTree, *, unpinned: bool) -> Release | None:
    """The release of a tree at a pinned commit and without anybody's edits.

    unpinned: take any tree; the release is None where its commit is not pinned.
    """
    release = sourcetree.require_pinned(tree, pins.load(), unpinned=unpinned)
    edits = sourcetree.hand_edits(tree, applied.applied_content(tree))
    if edits and not unpinned:
        more = f"\nand {len(edits) - 10} more" if len(edits) > 10 else ""
        raise StateError(
            f"{len(edits)} file{'s' * (len(edits) > 1)} of this tree are edited",
            where=str(tree.root),
            why="\n".join(edits[:10]) + more,
            next="commit your edits elsewhere and put the files back, or say --unpinned to build "
            "them in",
        )
    return release


def locks() -> Path:
    """Where the locks on trees lie: a tree itself must be as its commit has it."""
    return cache.directory() / "locks"
