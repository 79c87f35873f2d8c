"""torchfork clean: remove what can be made again."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..util.ui import Ui


def run(directories: list[Path], ui: Ui) -> None:
    """Delete the given directories and say how much that freed."""
    for directory in directories:
        if directory.is_dir():
            size = sum(p.lstat().st_size for p in directory.rglob("*") if not p.is_dir())
            shutil.rmtree(directory)
            ui.note(f"removed {directory} ({size / 1e6:.0f} MB)")
        else:
            ui.note(f"nothing at {directory}")
