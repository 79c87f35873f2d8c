"""Options that several commands share, and how a base is found from them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..upstream import fetch, pins, wheel
from ..upstream.base import Base, probe
from ..upstream.wheel import Opening
from ..util import cache
from ..util.ui import Ui

PROJECT = Path(__file__).resolve().parents[4]
STATE = PROJECT / ".torchfork"


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
        "--additions", type=path, default=PROJECT, metavar="DIR",
        help="the additions directory (default: this repository)",
    )  # fmt: skip


def add_work(parser: argparse.ArgumentParser, folder: str = "build") -> None:
    """--work. folder: its default in .torchfork."""
    parser.add_argument(
        "--work", type=place, default=STATE / folder, metavar="DIR",
        help="the directory for what is kept between runs",
    )  # fmt: skip


def add_number(parser: argparse.ArgumentParser) -> None:
    """--number."""
    parser.add_argument(
        "--number", type=positive, default=1, metavar="N", help="the N of the version's .extN"
    )


def add_base(parser: argparse.ArgumentParser) -> None:
    """The options that name a base, which open_base reads."""
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


def path(text: str) -> Path:
    """A path that was given as an option; an empty one, of an unset variable say, is a mistake."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def place(text: str) -> Path:
    """A path to write to, which holds wherever a program is run."""
    return path(text).absolute()


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def exclusive(options: argparse.Namespace, one: str, *others: str, why: str) -> None:
    """Refuse an option beside any of the others."""
    for other in others:
        if getattr(options, one) and getattr(options, other):
            raise UsageError(
                f"--{one.replace('_', '-')} and --{other} exclude each other",
                why=why,
                next="leave one of them out",
            )


def open_base(options: argparse.Namespace, ui: Ui, *, headers: bool = True) -> Base:
    """The base that the options name: fetched, hashed, checked and unpacked.

    headers: whether Python.h must be there.
    """
    exclusive(
        options, "torch", "base",
        why="--torch names an official wheel by version, --base a wheel file or 'installed'",
    )  # fmt: skip
    target = probe(options.python, headers=headers)
    opening = Opening(target, pins.load(), cache.directory())
    if options.base == "installed":
        from ..state import installed_torch

        with ui.step("open the installed torch") as step:
            base = installed_torch.open_base(opening, unpinned=options.unpinned)
            step.say(_described(base))
        return base
    file = Path(options.base) if options.base else _official(options.torch, opening, ui)
    with ui.step("check and unpack the wheel") as step:
        base = wheel.open_wheel(file, opening, unpinned=options.unpinned)
        step.say(_described(base))
    return base


def _official(version: str | None, opening: Opening, ui: Ui) -> Path:
    release = opening.pins.get(version)
    with ui.step("fetch the official wheel") as step:
        file = fetch.fetch_wheel(
            release, opening, lambda received: step.show(f"{received / 1e6:.0f} MB")
        )
        step.say(f"{file.name}, {file.stat().st_size / 1e6:.0f} MB, sha256 as pinned")
    return file


def _described(base: Base) -> str:
    build = f"CUDA {base.cuda}" if base.cuda else "CPU"
    return f"torch {base.version} ({build}, commit {base.git_version[:12]})"
