"""Options that several commands share, and how a base is found from them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..upstream import fetch, installed, interpreter, wheel
from ..upstream import pins as releases
from ..upstream.base import Base, Interpreter
from ..upstream.pins import Releases
from ..util import cache
from ..util.ui import Ui

PROJECT = Path(__file__).resolve().parents[4]
UPSTREAM = "https://github.com/pytorch/pytorch.git"


@dataclass(frozen=True)
class BaseOptions:
    """Which torch to graft onto, and for which interpreter."""

    torch: str | None  # a release's version, None for the default
    base: str | None  # 'installed', the path of a wheel file, or None for an official wheel
    python: str | None  # the interpreter to build for
    unpinned: bool


def add_common(parser: argparse.ArgumentParser, default: object = False) -> None:
    """--debug and --quiet."""
    for option, meaning in (
        ("--debug", "show a traceback with an error"),
        ("--quiet", "print results and errors only"),
    ):
        parser.add_argument(option, action="store_true", default=default, help=meaning)


def add_additions(parser: argparse.ArgumentParser) -> None:
    """--additions."""
    parser.add_argument(
        "--additions", type=Path, default=PROJECT, metavar="DIR",
        help="the additions directory (default: this repository)",
    )  # fmt: skip


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
            base = installed.open_installed(
                target, pins, cache.directory(), unpinned=options.unpinned
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
