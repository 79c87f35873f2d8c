"""The options of torchfork patch, one parser a subcommand."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import patch
from .options import add_additions, add_common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_reading(commands)
    _add_editing(commands)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary)
    # Not given, they stay as they were given before the subcommand's name.
    add_common(parser, default=argparse.SUPPRESS)
    add_additions(parser)
    return parser


def _lane(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lane", choices=("graft", "source"), help="default: what the layout of upstream suggests"
    )


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bench", type=Path, default=patch.DEFAULT_BENCH, metavar="DIR",
        help="where the workbench is",
    )  # fmt: skip


def _torch(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--torch", metavar="UPSTREAM", help=f"a release, wheel file, git ref or tree{default}"
    )
    _lane(parser)


def _add_reading(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "list", "List the patches, and how each stands to a release.")
    _torch(parser, "")
    parser.set_defaults(run=patch.run_list)
    parser = _command(commands, "lint", "Find orphans, duplicates, unexplained patches and others.")
    parser.set_defaults(run=patch.run_lint)
    parser = _command(commands, "apply", "Apply the patches to a directory: all of them or none.")
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("--check", action="store_true", help="say what would be done")
    _lane(parser)
    parser.set_defaults(run=patch.run_apply)


def _add_editing(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "edit", "Make a git tree with a commit for each patch.")
    _torch(parser, " (default: the default release)")
    _bench(parser)
    parser.set_defaults(run=patch.run_edit)
    parser = _command(
        commands, "refresh", "Bring its commits into patches/; after a conflict, go on with it."
    )
    parser.add_argument(
        "--variant", metavar="TAG", help="beside the old patches, for this release and later ones"
    )
    _bench(parser)
    parser.set_defaults(run=patch.run_refresh)
    parser = _command(commands, "new", "Make a patch of what is not committed there.")
    parser.add_argument("name")
    parser.add_argument("--subject", required=True, help="what it does, in one line")
    parser.add_argument("--why", required=True, help="why it exists")
    parser.add_argument("--until", required=True, help="when it can go")
    parser.add_argument("--upstream", default="none", help="upstream's commit or pull request")
    parser.add_argument("--versions", default="*", help="the range of releases (default: all)")
    parser.add_argument(
        "--lane", dest="patch_lane", choices=("graft", "source", "both"), default="both"
    )
    _bench(parser)
    parser.set_defaults(run=patch.run_new)
    parser = _command(commands, "export", "Make a branch of your clone, a commit for each patch.")
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("--branch", required=True)
    _lane(parser)
    parser.set_defaults(run=patch.run_export)
