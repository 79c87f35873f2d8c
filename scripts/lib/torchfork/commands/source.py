"""torchfork build --from-source, apply, unapply, status, env: PyTorch's sources with additions."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..additions import ranges
from ..additions.load import Additions
from ..additions.load import load as load_additions
from ..codegen import build_dir
from ..codegen.build_dir import BuildDir
from ..errors import BaseRefusedError, StateError, listed
from ..pipelines import source, source_build
from ..pipelines.settings import Environment
from ..pipelines.source import Planned
from ..state import source_tree
from ..upstream import pins, sources
from ..upstream import tree as sourcetree
from ..upstream.base import probe
from ..upstream.pins import Release
from ..upstream.sources import SourceCheckout
from ..upstream.tree import SourceTree
from ..util import cache, files
from ..util.ui import Ui
from ..wheel import verify
from . import build as build_command
from .options import add_additions, add_number, add_work, path

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
    _add_tree(parser)
    add_number(parser)
    parser.add_argument(
        "--shell", action="store_true", help="print lines that scripts/env.sh has a shell read"
    )
    parser.set_defaults(run=env)


def _add_tree(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tree", type=path, nargs="?", default=Path(), metavar="TREE",
        help="the tree (default: the current directory)",
    )  # fmt: skip


def build(options: argparse.Namespace, ui: Ui) -> None:
    """torchfork build --from-source: all steps, or those up to options.until."""
    additions = load_additions(options.additions)
    target = probe(options.python)
    trees = options.work / "source"
    wanted = sources.Wanted(options.source or "git", options.torch, options.git_url)
    with ui.step("fetch the sources") as step:
        opened = sources.open_source(
            wanted, pins.load(), trees, cache.directory(), os.environ, step.advance
        )
        step.say(opened.described)
    tree = opened.tree
    release = require_clean(tree, unpinned=options.unpinned)
    if options.until == "fetch":
        ui.result(str(tree.root))
        return
    with _applied(tree, additions, options.work, ui) as (additions, layout, planned):
        if options.until == "apply":
            ui.result(str(tree.root))
            return
        python = source_build.make_environment(opened, target, release, trees, ui)
        version = source_build.wheel_version(opened, options.number)
        settings = source_build.resolve_settings(opened, python, version)
        environment = Environment(python, settings)
        inputs = _inputs(opened, environment, additions, verify=not options.no_verify)
        if build_command.is_up_to_date(layout, inputs, options, ui):
            return
        building = source_build.SourceBuild(
            tree, additions, environment, layout.root, opened.prefix
        )
        built = building.build(fresh=options.fresh, ui=ui)
        wheel, base = building.finish(built, target, options.out, ui)
        if not options.no_verify:
            build_command.in_clean_environment(
                ui,
                lambda say: verify.verify(
                    wheel, base, planned.manifest, options.work / "verify", cache.directory(),
                    upstream=planned.upstream.schemas, say=say,
                ),
            )  # fmt: skip
        build_dir.keep_delivered(layout, inputs, wheel)
    build_command.announce(wheel, planned.manifest, ui)


@contextlib.contextmanager
def _applied(
    tree: SourceTree, additions: Additions, work: Path, ui: Ui
) -> Iterator[tuple[Additions, BuildDir, Planned]]:
    """Put additions into a tree, or bring what is in it up to date, and hold its build directory.

    Gives those of the additions that are for the tree's release.
    """
    additions = ranges.for_release(additions, tree.version)
    source.require_same_additions(tree, additions)
    layout = build_dir.for_tree(tree, additions, work)
    with build_dir.locked(layout):
        planned = source.plan(tree, additions, layout, ui)
        source.put_in(tree, planned, additions, ui)
        yield additions, layout, planned


def _inputs(
    opened: SourceCheckout, environment: Environment, additions: Additions, *, verify: bool
) -> str:
    """Everything that the wheel's bytes depend on."""
    chosen = [f"{s.name}={s.value}" for s in environment.settings if s.name != "MAX_JOBS"]
    return files.sha256_text(
        str(opened.tree.root), opened.tree.commit or "", additions.fingerprint(),
        str(additions.root), build_dir.tooling_fingerprint(), str(verify), *chosen,
    )  # fmt: skip


def apply(options: argparse.Namespace, ui: Ui) -> None:
    """Put additions into a tree, or bring what is in it up to date."""
    additions = load_additions(options.additions)
    tree = sourcetree.open_tree(options.tree)
    require_clean(tree, unpinned=options.unpinned)
    with _applied(tree, additions, options.work, ui) as (_, _, planned):
        names = planned.manifest.base_names
    ui.note(f"\napplied to {tree.root}: {', '.join(names) or 'nothing'}")
    ui.note(f"take it out again with: scripts/torchfork unapply {options.tree}")


def unapply(options: argparse.Namespace, ui: Ui) -> None:
    """Make every file of a tree its own again."""
    tree = sourcetree.open_tree(options.tree)
    with ui.step("restore the tree's files") as step:
        changes = source_tree.unapply(tree)
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
            why=listed(wrong),
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
        raise StateError(
            f"{len(edits)} file{'s' * (len(edits) > 1)} of this tree are edited",
            where=str(tree.root),
            why=listed(edits),
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


def _tree(root: Path) -> SourceTree:
    try:
        return sourcetree.open_tree(root)
    except BaseRefusedError as error:
        if root != Path():
            raise
        raise BaseRefusedError(
            "the environment of a build depends on the tree, and this directory is none",
            where=str(root.absolute()),
            why=error.why,
            next="name the tree: scripts/torchfork env TREE; scripts/build_torch.sh --from-source "
            "--source ... --until fetch gets one",
        ) from error


def _environment_of(opened: SourceCheckout) -> Path | None:
    """The build environment that lies beside a tree which torchfork fetched, if it was made."""
    beside = opened.tree.root.parent.parent if opened.prefix else opened.tree.root.parent
    made = sorted(beside.glob("env-cp*/bin/python"))
    return made[-1] if made else None
