"""The command line: options in, exit code out."""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import __version__
from .commands.options import add_common
from .errors import ForkError, InternalError, OutputError, UsageError
from .util.files import output_error
from .util.ui import LogHandler, Ui, printable

INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """A command: its module below commands/ has a function add_NAME_arguments.

    That function adds its options and sets the parser's `run(options, ui)`. The module is imported
    only when the command is given: a build with nothing to do takes less time than importing all.
    """

    name: str
    summary: str
    module: str
    aliases: tuple[str, ...] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options to its parser."""
        module = importlib.import_module(f".commands.{self.module}", __package__)
        getattr(module, f"add_{self.name}_arguments")(parser)


COMMANDS = (
    Command("build", "Build a torch wheel with the additions inside.", "build"),
    Command("check", "Validate additions against a base; needs no compiler, takes seconds.",
            "build"),
    Command("apply", "Put the additions into a tree of PyTorch's sources.", "source"),
    Command("unapply", "Take the additions out of a tree again, bit for bit.", "source"),
    Command("status", "Say what is applied to a tree, and who edited what.", "source"),
    Command("env", "Print what a source build sets, why, and whether the tree reads it.",
            "source"),
    Command("doctor", "Say which torch an environment has, what became of it, and what to do.",
            "doctor"),
    Command("clean", "Remove build files; with --cache also kept downloads.", "wheels"),
    Command("patch", "List, check, apply and edit the patches of the additions.", "patch"),
    Command("rebase", "Carry the additions to other releases and report.", "rebase"),
    Command("conformance", "Check that each added operator has what PyTorch's own have.",
            "conformance", aliases=("citizenship",)),
    Command("releases", "List the pinned releases.", "pin"),
    Command("pin", "Add an official wheel's hash, or a release, to ci/releases.toml.", "pin"),
    Command("sbom", "Write the bill of materials of a wheel that was built here.", "wheels"),
    Command("index", "Make a package index of the wheels in a directory, for pip and uv.",
            "wheels"),
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Parse, run, and turn an error into its message and exit code."""
    _open_closed_streams()
    _drop_odd_sizes()
    if threading.current_thread() is threading.main_thread():
        # Ended by kill as by Ctrl-C: what is half-written is removed, programs end.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    debug = "--debug" in argv
    try:
        _require_directory()  # the parser makes paths absolute
        options = make_parser(argv[:1]).parse_args(argv)
        ui = Ui(quiet=options.quiet)
        logger = logging.getLogger(__package__)
        logger.handlers = [LogHandler(ui)]
        logger.setLevel(logging.INFO if options.verbose else logging.WARNING)
        options.run(options, ui)
        sys.stdout.flush()
        return 0
    except ForkError as error:
        return _report(error, debug)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing is half-written, the next run continues from here\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone, and wants no more: what is buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _report(_unforeseen(error), debug)


def _drop_odd_sizes() -> None:
    """Forget a terminal's size of digits that are no number, such as ², or too many: rich fails."""
    for name in ("COLUMNS", "LINES"):
        given = os.environ.get(name, "")
        if given.isdigit() and not (given.isdecimal() and len(given) < 6):
            del os.environ[name]


def make_parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """All commands, and the options of those that are given."""
    parser = argparse.ArgumentParser(
        prog="torchfork",
        description="Carry your own native operators inside PyTorch.",
        epilog="Every error names its cause, the line in your file and the next command; "
        "docs/exit-codes.md lists the exit codes.",
    )
    parser.add_argument("--version", action="version", version=f"torchfork {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        made = commands.add_parser(
            command.name, aliases=command.aliases, help=command.summary, description=command.summary
        )
        if {command.name, *command.aliases}.intersection(given):
            add_common(made)
            command.add_arguments(made)
    return parser


def _open_closed_streams() -> None:
    """Started with `>&-`, a program writes to nothing, and not into a file opened since."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _require_directory() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            "the current directory was deleted",
            why=error.strerror or str(error),
            next="change to a directory that exists (cd ..), and run the same command again",
        ) from error


def _unforeseen(error: Exception) -> ForkError:
    """An error that no code anticipated, as one that a user can act on."""
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
    elif isinstance(error, OSError) and number in (errno.ENAMETOOLONG, errno.ELOOP):
        translated = UsageError(
            "a path that no filesystem takes",
            where=str(error.filename or "")[:200],
            why=error.strerror or str(error),
            next="correct the option or the variable that names it, or remove the circle of links",
        )
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        translated = InternalError(
            "internal error",
            where=f"{Path(last.filename).name}:{last.lineno}, in {last.name}",
            why=f"{type(error).__name__}: {error}",
            next="run the same command with --debug and report what it prints",
        )
    translated.__cause__ = error
    return translated


def _report(error: ForkError, debug: bool) -> int:
    sys.stderr.write("\n" + printable(error.render()) + "\n")
    if debug:
        traceback.print_exception(error)
    return error.exit_code
