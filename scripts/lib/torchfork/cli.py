"""The command line: options in, exit code out."""

from __future__ import annotations

import argparse
import errno
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from . import cli_source
from .commands import build, check, citizenship, clean, listing, patch_options, pin, rebase, sbom
from .commands.options import PROJECT, BaseOptions, add_additions, add_common
from .errors import ForkError, InternalError, OutputError
from .util import cache
from .util.files import output_error
from .util.ui import Ui

INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Parse, run, and turn an error into its message and exit code."""
    parser = make_parser()
    options = parser.parse_args(argv)
    ui = Ui(quiet=options.quiet)
    try:
        options.run(options, ui)
        return 0
    except ForkError as error:
        return _report(error, error.exit_code, options.debug)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing is half-written, the next run goes on from here\n")
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception as error:
        translated = _unforeseen(error)
        return _report(translated, translated.exit_code, options.debug)


def _unforeseen(error: Exception) -> ForkError:
    """An error that nobody gave words to, as one that a user can act on."""
    number = error.errno if isinstance(error, OSError) else None
    translated: ForkError
    if isinstance(error, OSError) and number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        translated = output_error(Path(str(error.filename or "")), error)
    elif isinstance(error, OSError) and number in (errno.EACCES, errno.EPERM):
        translated = OutputError(
            "no permission for this file",
            where=str(error.filename or ""),
            why=error.strerror or str(error),
            next="get access to it, or choose other places (--out DIR, --work DIR, "
            "TORCHFORK_CACHE=DIR)",
        )
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        translated = InternalError(
            "torchfork met something that it does not know",
            where=f"{Path(last.filename).name}:{last.lineno}, in {last.name}",
            why=f"{type(error).__name__}: {error}",
            next="run the same command with --debug and report what it prints",
        )
    translated.__cause__ = error
    return translated


def _report(error: ForkError, code: int, debug: bool) -> int:
    sys.stderr.write("\n" + error.render() + "\n")
    if debug:
        traceback.print_exception(error)
    return code


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="torchfork",
        description="Carry your own native operators inside PyTorch.",
        epilog="Every error names its cause, the line in your file and the next command; README.md "
        "lists the exit codes.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_build(commands)
    _add_check(commands)
    cli_source.add_tree(commands, _command, _additions_options)
    _add_clean(commands)
    patch_options.add_arguments(
        _command(commands, "patch", "List, check, apply and edit the patches of the additions.")
    )
    for name, module, summary in (
        ("rebase", rebase, "Carry the additions to other releases and report."),
        (
            "citizenship",
            citizenship,
            "Check that each added operator has what PyTorch's own have.",
        ),
        ("releases", listing, "List the pinned releases."),
        ("pin", pin, "Add an official wheel's hash, or a release, to ci/releases.toml."),
        ("sbom", sbom, "Write the bill of materials of a wheel that was built here."),
    ):
        module.add_arguments(_command(commands, name, summary))
    return parser


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _command(commands: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary)
    add_common(parser)
    return parser


def _base_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("base")
    group.add_argument(
        "--torch", metavar="VERSION", help="the official wheel of this release (ci/releases.toml)"
    )
    group.add_argument(
        "--base", metavar="WHEEL|installed",
        help="a wheel file, or the torch installed in the environment",
    )  # fmt: skip
    group.add_argument(
        "--python", metavar="PYTHON", help="the interpreter to build for (default: the current one)"
    )
    group.add_argument(
        "--unpinned", action="store_true",
        help="accept a base whose commit or hash ci/releases.toml does not know",
    )  # fmt: skip
    _additions_options(parser)


def _additions_options(parser: argparse.ArgumentParser) -> None:
    add_additions(parser)
    parser.add_argument(
        "--work", type=Path, default=build.DEFAULT_WORK, metavar="DIR",
        help="where build files are kept between runs",
    )  # fmt: skip


def _chosen_base(options: argparse.Namespace) -> BaseOptions:
    return BaseOptions(options.torch, options.base, options.python, options.unpinned)


def _add_build(commands: Commands) -> None:
    parser = _command(commands, "build", "Build a torch wheel with the additions inside.")
    _base_options(parser)
    parser.add_argument(
        "--out", type=Path, default=PROJECT / "dist", metavar="DIR", help="where the wheel goes"
    )
    parser.add_argument(
        "--number", type=_positive, default=1, metavar="N", help="the N of the version's .extN"
    )
    parser.add_argument(
        "--develop", action="store_true",
        help="put the graft into the current environment's torch instead of making a wheel",
    )  # fmt: skip
    parser.add_argument(
        "--undo", action="store_true", help="take a --develop graft out again, bit for bit"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not install and try the finished wheel"
    )
    cli_source.add_build_options(parser)
    parser.set_defaults(run=_build)


def _build(options: argparse.Namespace, ui: Ui) -> None:
    if options.from_source:
        cli_source.build(options, ui)
        return
    cli_source.refuse_without(options)
    if options.undo:
        build.undo(options.python, ui)
        return
    chosen = build.BuildOptions(
        base=_chosen_base(options),
        additions=options.additions,
        out=options.out.absolute(),
        number=options.number,
        develop=options.develop,
        verify=not options.no_verify,
        work=options.work.absolute(),
    )
    build.run(chosen, ui)


def _add_check(commands: Commands) -> None:
    parser = _command(
        commands, "check", "Validate additions against a base; needs no compiler, takes seconds."
    )
    _base_options(parser)
    parser.set_defaults(
        run=lambda options, ui: check.run(
            _chosen_base(options), options.additions, options.work.absolute(), ui
        )
    )


def _add_clean(commands: Commands) -> None:
    parser = _command(commands, "clean", "Remove build files; with --cache also kept downloads.")
    parser.add_argument("--cache", action="store_true", help="also the cache of all checkouts")
    parser.set_defaults(run=_clean)


def _clean(options: argparse.Namespace, ui: Ui) -> None:
    clean.run(
        [
            build.DEFAULT_WORK,
            rebase.DEFAULT_WORK,
            citizenship.DEFAULT_WORK,
            *([cache.directory()] if options.cache else []),
        ],
        ui,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
