"""torchfork sbom: the bill of materials of a wheel that torchfork made."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import files, releases
from ..stages import sbom
from ..ui import Ui

NAME = "sbom.cdx.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where it goes")
    parser.set_defaults(run=lambda options, ui: run(options.wheel, options.out, ui))


def run(wheel: Path, out: Path, ui: Ui) -> None:
    """Write the bill of materials (CycloneDX) of one wheel."""
    place = out / NAME
    files.write_json(place, sbom.describe(wheel, releases.load()))
    ui.result(str(place))
