"""torchfork pin: add a wheel's hash to ci/releases.toml after checking what the wheel is."""

from __future__ import annotations

from pathlib import Path

from .. import releases
from ..bases import wheel
from ..ui import Ui


def run(path: Path, *, new_release: bool, ui: Ui) -> None:
    """Pin one wheel file.

    new_release: also accept a commit that no release has yet.
    """
    pin, pins = wheel.pin(path, releases.load(), new_release=new_release)
    ui.note(f"{pin.file} is pinned in {pins.path} (sha256 {pin.sha256[:16]}…)")
