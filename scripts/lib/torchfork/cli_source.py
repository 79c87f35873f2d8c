"""The part of the command line that is about source trees."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from .commands import build_source, env, tree
from .errors import UsageError
from .util.ui import Ui

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
MakeCommand = Callable[[Commands, str, str], argparse.ArgumentParser]


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """The options of build --from-source."""
    group = parser.add_argument_group("from source")
    group.add_argument(
        "--from-source", action="store_true",
        help="put the additions into PyTorch's sources and build all of it (up to an hour or two)",
    )  # fmt: skip
    group.add_argument(
        "--source", metavar="git|debian|PATH", default=None,
        help="where the sources come from (default: git); PATH is a tree or a tarball",
    )  # fmt: skip
    group.add_argument("--git-url", metavar="URL", help="another repository than upstream's")
    group.add_argument(
        "--fresh", action="store_true",
        help="delete a build directory that was made with other settings",
    )  # fmt: skip
    group.add_argument(
        "--until", choices=("fetch", "apply"), help="stop when the tree is there, or has ours in it"
    )


def refuse_without(options: argparse.Namespace) -> None:
    """Refuse options of the source lane in the other one."""
    for name in ("source", "git_url", "fresh", "until"):
        if getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is about building from source",
                next="add --from-source",
            )


def build(options: argparse.Namespace, ui: Ui) -> None:
    """build --from-source."""
    for name in ("develop", "undo", "base"):
        if getattr(options, name):
            raise UsageError(
                f"--from-source and --{name} exclude each other",
                why="a source build makes a wheel, and starts from sources",
                next="leave one of them out",
            )
    chosen = build_source.SourceOptions(
        source=options.source or "git",
        torch=options.torch,
        git_url=options.git_url,
        python=options.python,
        unpinned=options.unpinned,
        additions=options.additions,
        out=options.out.absolute(),
        number=options.number,
        verify=not options.no_verify,
        work=options.work.absolute(),
        fresh=options.fresh,
        until=options.until,
    )
    build_source.run(chosen, ui)


def add_tree(
    commands: Commands, command: MakeCommand, additions: Callable[[argparse.ArgumentParser], None]
) -> None:
    """apply, unapply, status and env."""
    parser = command(commands, "apply", "Put the additions into a tree of PyTorch's sources.")
    _tree_option(parser)
    additions(parser)
    parser.add_argument(
        "--unpinned", action="store_true",
        help="accept a tree at another commit than the pinned one, or with edits in it",
    )  # fmt: skip
    parser.set_defaults(
        run=lambda options, ui: tree.run_apply(
            options.tree, options.additions, options.work.absolute(),
            unpinned=options.unpinned, ui=ui,
        )
    )  # fmt: skip
    parser = command(commands, "unapply", "Take the additions out of a tree again, bit for bit.")
    _tree_option(parser)
    parser.set_defaults(run=lambda options, ui: tree.run_unapply(options.tree, ui))
    parser = command(commands, "status", "Say what is applied to a tree, and who edited what.")
    _tree_option(parser)
    parser.set_defaults(run=lambda options, ui: tree.run_status(options.tree, ui))
    _add_env(commands, command)


def _add_env(commands: Commands, command: MakeCommand) -> None:
    parser = command(
        commands, "env", "Print what a source build sets, why, and whether the tree reads it."
    )
    parser.add_argument("tree", type=Path, nargs="?", metavar="TREE", help="the tree")
    parser.add_argument(
        "--number", type=int, default=1, metavar="N", help="the N of the version's .extN"
    )
    parser.add_argument(
        "--shell", action="store_true", help="print lines that scripts/env.sh has a shell read"
    )
    parser.set_defaults(
        run=lambda options, ui: env.run(options.tree, options.number, shell=options.shell, ui=ui)
    )


def _tree_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tree", type=Path, nargs="?", default=Path(), metavar="TREE",
        help="the tree (default: the current directory)",
    )  # fmt: skip
