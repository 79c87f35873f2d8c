"""torchfork clean: remove what can be made again."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from ..util import cache
from ..util.ui import Ui
from .options import PROJECT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--cache", action="store_true", help="also the cache of all checkouts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, ui: Ui) -> None:
    """Delete this checkout's build files, and with --cache the user's cache."""
    root = cache.directory() if options.cache else None  # refused before anything is deleted
    state = PROJECT / ".torchfork"
    for directory in (state / "build", state / "matrix", state / "citizenship"):
        _remove(directory, ui)
    if root is not None:
        _say(root, cache.remove(root), ui)


def _remove(directory: Path, ui: Ui) -> None:
    if not directory.is_dir() or directory.is_symlink():
        ui.note(f"nothing at {directory}")
        return
    size = sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_dir())
    shutil.rmtree(directory)
    _say(directory, size, ui)


def _say(directory: Path, size: int, ui: Ui) -> None:
    ui.note(f"removed {directory} ({size / 1e6:.0f} MB)")
