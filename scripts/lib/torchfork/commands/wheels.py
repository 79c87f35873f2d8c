"""torchfork sbom, index and clean: what builds leave, described, offered to pip, and removed."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from pathlib import Path

from ..upstream import pins
from ..util import cache, files
from ..util.ui import Ui
from ..wheel import index, sbom
from .options import STATE, path


def add_sbom_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork sbom`."""
    parser.add_argument("wheel", type=path)
    parser.add_argument("--out", type=path, default=Path(), metavar="DIR", help="where it goes")
    parser.set_defaults(run=write_sbom)


def add_index_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork index`."""
    parser.add_argument("directory", type=path, metavar="DIR", help="has the wheels")
    parser.set_defaults(run=make_index)


def add_clean_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork clean`."""
    parser.add_argument("--cache", action="store_true", help="also the cache of all checkouts")
    parser.set_defaults(run=clean)


def write_sbom(options: argparse.Namespace, ui: Ui) -> None:
    """Write the bill of materials (CycloneDX) of one wheel."""
    place = options.out / "sbom.cdx.json"
    files.write_json(place, sbom.describe(options.wheel, pins.load()))
    ui.result(str(place))


def make_index(options: argparse.Namespace, ui: Ui) -> None:
    """Write the index, and say how pip and uv take wheels from it before the official one."""
    entries = index.make(options.directory)
    place = (options.directory / index.SIMPLE).absolute()
    for entry in entries:
        ui.note(f"{entry.project:<16} {entry.file} ({entry.size / 1e6:.1f} MB)")
    named = sorted({entry.project for entry in entries})
    ui.note(
        f"\npip: python -m pip install --extra-index-url {place.as_uri()} {' '.join(named)}\n"
        "uv, in pyproject.toml, where each of these must be among the dependencies (uv takes the\n"
        "torch that something else depends on from the official index):\n"
    )
    ui.note(textwrap.indent(index.uv_sources(named, place), "  "))
    ui.result(str(place))


def clean(options: argparse.Namespace, ui: Ui) -> None:
    """Delete this checkout's build files, and with --cache the user's cache."""
    root = cache.directory() if options.cache else None  # refused before anything is deleted
    removed: dict[Path, int] = {}
    for directory in (STATE / "build", STATE / "matrix", STATE / "citizenship"):
        if not directory.is_dir() or directory.is_symlink():
            ui.note(f"nothing at {directory}")
            continue
        size = sum(file.lstat().st_size for file in directory.rglob("*") if not file.is_dir())
        shutil.rmtree(directory)
        removed[directory] = size
    if root is not None:
        removed[root] = cache.remove(root)
    for directory, size in removed.items():
        ui.note(f"removed {directory} ({size / 1e6:.0f} MB)")
