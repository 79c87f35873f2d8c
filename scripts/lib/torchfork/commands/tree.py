"""torchfork apply, unapply, status, env: a tree of PyTorch's sources that the user has."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..additions import ranges
from ..additions.load import load as load_additions
from ..errors import BaseRefusedError, StateError
from ..pipelines import source, source_build, workdir
from ..state import source_tree
from ..upstream import pins, sources
from ..upstream import tree as sourcetree
from ..upstream.pins import Release
from ..upstream.sources import SourceCheckout
from ..upstream.tree import SourceTree
from ..util.ui import Ui
from .options import add_additions, add_work, directory, positive

# Where the value of a build setting comes from, as pipelines.settings names it.
_ORIGINS = {
    "user": "you set it",
    "machine": "this machine",
    "source": "this tree's source",
    "default": "default",
}


def add_apply_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork apply`."""
    _add_tree(parser)
    add_additions(parser)
    add_work(parser)
    parser.add_argument(
        "--unpinned", action="store_true",
        help="accept a tree at another commit than the pinned one, or with edits in it",
    )  # fmt: skip
    parser.set_defaults(run=apply)


def add_unapply_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork unapply`."""
    _add_tree(parser)
    parser.set_defaults(run=unapply)


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork status`."""
    _add_tree(parser)
    parser.set_defaults(run=status)


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork env`."""
    parser.add_argument("tree", type=directory, nargs="?", metavar="TREE", help="the tree")
    parser.add_argument(
        "--number", type=positive, default=1, metavar="N", help="the N of the version's .extN"
    )
    parser.add_argument(
        "--shell", action="store_true", help="print lines that scripts/env.sh has a shell read"
    )
    parser.set_defaults(run=env)


def _add_tree(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tree", type=directory, nargs="?", default=Path(), metavar="TREE",
        help="the tree (default: the current directory)",
    )  # fmt: skip


def apply(options: argparse.Namespace, ui: Ui) -> None:
    """Put additions into a tree, or bring what is in it up to date."""
    additions = load_additions(options.additions)
    tree = sourcetree.open_tree(options.tree)
    require_clean(tree, unpinned=options.unpinned)
    additions = ranges.for_release(additions, tree.version)
    source.require_same_additions(tree, additions)
    layout = workdir.for_tree(tree, additions, options.work.absolute())
    with workdir.locked(layout, ui):
        planned = source.plan(tree, additions, layout, ui)
        source.put_in(tree, planned, additions, ui)
    names = planned.manifest.base_names
    ui.note(f"\napplied to {tree.root}: {', '.join(names) or 'nothing'}")
    ui.note("take it out again with: scripts/torchfork unapply " + str(options.tree))


def unapply(options: argparse.Namespace, ui: Ui) -> None:
    """Make every file of a tree its own again."""
    tree = sourcetree.open_tree(options.tree)
    with ui.step("restore the tree's files") as step:
        changes = source_tree.unapply(tree, on_wait=ui.warn)
        step.say(f"{len(changes.restored)} restored, {len(changes.removed)} removed")


def status(options: argparse.Namespace, ui: Ui) -> None:
    """Say what is applied to a tree. The exit code tells a clean state from a disturbed one."""
    tree = sourcetree.open_tree(options.tree)
    release = pins.load().by_commit(tree.commit) if tree.commit else None
    pinned = "as pinned" if release else "not pinned"
    ui.result(f"tree:      {tree.root}")
    ui.result(f"upstream:  torch {tree.version}, commit {tree.commit or 'unknown'} ({pinned})")
    ui.result(f"backend:   {tree.backend}")
    found = source_tree.status(tree)
    edits = sourcetree.hand_edits(tree, source_tree.applied_content(tree))
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
    edits = sourcetree.hand_edits(tree, source_tree.applied_content(tree))
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


def env(options: argparse.Namespace, ui: Ui) -> None:
    """Print the settings for a tree; with --shell as lines for a shell, the table beside them."""
    opened = sources.with_pieces(_tree(options.tree))
    version = source_build.wheel_version(opened, options.number)
    settled = source_build.resolve_settings(opened, _environment_of(opened), version)
    show = ui.note if options.shell else ui.result
    for setting in settled:
        value = setting.value or "(empty)"
        show(f"{setting.name}={value}")
        read = f"read by {setting.read_by}" if setting.read_by else "nothing in this tree reads it"
        show(f"    {_ORIGINS[setting.origin]}: {setting.reason}; {read}")
    if options.shell:
        for setting in settled:
            ui.result(setting.line)


def _tree(root: Path | None) -> SourceTree:
    try:
        return sourcetree.open_tree(root or Path())
    except BaseRefusedError as error:
        if root is not None:
            raise
        raise BaseRefusedError(
            "the environment of a build depends on the tree, and this directory is none",
            where=str(Path().absolute()),
            why=error.why,
            next="name the tree: scripts/torchfork env TREE; scripts/build_torch.sh --from-source "
            "--source ... --until fetch gets one",
        ) from error


def _environment_of(opened: SourceCheckout) -> Path | None:
    """The build environment that lies beside a tree which torchfork fetched, if it was made."""
    beside = opened.tree.root.parent.parent if opened.prefix else opened.tree.root.parent
    made = sorted(beside.glob("env-cp*/bin/python"))
    return made[-1] if made else None
