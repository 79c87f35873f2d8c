"""torchfork pin: add a wheel's hash to ci/releases.toml after checking what the wheel is."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import releases
from ..bases import wheel
from ..ui import Ui


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--new-release", action="store_true", help="also accept a release that is not there yet"
    )
    parser.set_defaults(
        run=lambda options, ui: run(options.wheel, new_release=options.new_release, ui=ui)
    )


def run(path: Path, *, new_release: bool, ui: Ui) -> None:
    """Pin one wheel file.

    new_release: also accept a commit that no release has yet.
    """
    pin, pins = wheel.pin(path, releases.load(), new_release=new_release)
    ui.note(f"{pin.file} is pinned in {pins.path} (sha256 {pin.sha256[:16]}…)")
