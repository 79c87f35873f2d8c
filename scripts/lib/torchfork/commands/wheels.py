"""torchfork sbom and index: finished wheels, described and offered to package managers."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..upstream import pins
from ..util import files
from ..util.ui import Ui
from ..wheel import index, sbom
from .options import directory


def add_sbom_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork sbom`."""
    parser.add_argument("wheel", type=directory)
    parser.add_argument(
        "--out", type=directory, default=Path(), metavar="DIR", help="where it goes"
    )
    parser.set_defaults(run=write_sbom)


def add_index_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork index`."""
    parser.add_argument("directory", type=directory, metavar="DIR", help="has the wheels")
    parser.set_defaults(run=make_index)


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
    sources = "\n".join(f'  {name} = {{ index = "additions" }}' for name in named)
    ui.note(
        f"\npip: python -m pip install --extra-index-url {place.as_uri()} {' '.join(named)}\n"
        "uv, in pyproject.toml, where each of these is a direct dependency (uv looks nowhere else\n"
        "for a package that has a source; without that it takes torch from the official index):\n"
        f'  [[tool.uv.index]]\n  name = "additions"\n  url = "{place.as_uri()}"\n'
        f"  explicit = true\n\n  [tool.uv.sources]\n{sources}"
    )
    ui.result(str(place))
