"""Options that several commands share, and how a base is found from them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..state import installed_torch
from ..upstream import fetch, interpreter, wheel
from ..upstream import pins as releases
from ..upstream.base import Base, Interpreter
from ..upstream.pins import Releases
from ..util import cache
from ..util.ui import Ui

PROJECT = Path(__file__).resolve().parents[4]
DEFAULT_WORK = PROJECT / ".torchfork" / "build"


@dataclass(frozen=True)
class BaseOptions:
    """Which torch to graft onto, and for which interpreter."""

    torch: str | None  # a release's version, None for the default
    base: str | None  # 'installed', the path of a wheel file, or None for an official wheel
    python: str | None  # the interpreter to build for
    unpinned: bool


def add_common(parser: argparse.ArgumentParser, default: object = False) -> None:
    """--verbose, --quiet and --debug."""
    for names, meaning in (
        (("-v", "--verbose"), "show each program that is run, as it can be pasted into a shell"),
        (("--quiet",), "print results and errors only"),
        (("--debug",), "show a traceback with an error"),
    ):
        parser.add_argument(*names, action="store_true", default=default, help=meaning)


def add_additions(parser: argparse.ArgumentParser) -> None:
    """--additions."""
    parser.add_argument(
        "--additions", type=directory, default=PROJECT, metavar="DIR",
        help="the additions directory (default: this repository)",
    )  # fmt: skip


def add_work(parser: argparse.ArgumentParser) -> None:
    """--work."""
    parser.add_argument(
        "--work", type=directory, default=DEFAULT_WORK, metavar="DIR",
        help="where build files are kept between runs",
    )  # fmt: skip


def add_base(parser: argparse.ArgumentParser) -> None:
    """The options that name a base; base_of reads them."""
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


def base_of(options: argparse.Namespace) -> BaseOptions:
    """What the options of add_base say."""
    return BaseOptions(options.torch, options.base, options.python, options.unpinned)


def directory(text: str) -> Path:
    """A path that was given as an option; an empty one, of an unset variable say, is a mistake."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def open_base(options: BaseOptions, ui: Ui, *, headers: bool = True) -> Base:
    """The base that the options name: fetched, hashed, checked and unpacked.

    headers: whether Python.h must be there.
    """
    if options.base and options.torch:
        raise UsageError(
            "--torch and --base exclude each other",
            why="--torch names an official wheel by version, --base a wheel file or 'installed'",
            next="give one of the two",
        )
    target = interpreter.probe(options.python, headers=headers)
    pins = releases.load()
    if options.base == "installed":
        with ui.step("open the installed torch") as step:
            base = installed_torch.open_base(
                target, pins, cache.directory(), unpinned=options.unpinned, on_wait=ui.warn
            )
            step.say(_described(base))
        return base
    path = _wheel_path(options, target, pins, ui)
    with ui.step("check and unpack the wheel") as step:
        base = wheel.open_wheel(
            path, target, pins, cache.directory(), unpinned=options.unpinned, on_wait=ui.warn
        )
        step.say(_described(base))
    return base


def _wheel_path(options: BaseOptions, target: Interpreter, pins: Releases, ui: Ui) -> Path:
    if options.base:
        return Path(options.base)
    release = pins.get(options.torch)
    with ui.step("fetch the official wheel") as step:

        def progress(received: int) -> None:
            step.advance(0, 0, f"{received / 1e6:.0f} MB")

        path = fetch.fetch_wheel(
            release, target, pins, cache.directory(), progress=progress, on_wait=ui.warn
        )
        step.say(f"{path.name}, {path.stat().st_size / 1e6:.0f} MB, sha256 as pinned")
    return path


def _described(base: Base) -> str:
    build = f"CUDA {base.cuda}" if base.cuda else "CPU"
    return f"torch {base.version} ({build}, commit {base.git_version[:12]})"
