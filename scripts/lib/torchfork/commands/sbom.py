"""torchfork sbom: the bill of materials of a wheel that torchfork made."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..upstream import pins
from ..util import files
from ..util.ui import Ui
from ..wheel import sbom

NAME = "sbom.cdx.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where it goes")
    parser.set_defaults(run=lambda options, ui: run(options.wheel, options.out, ui))


def run(wheel: Path, out: Path, ui: Ui) -> None:
    """Write the bill of materials (CycloneDX) of one wheel."""
    place = out / NAME
    files.write_json(place, sbom.describe(wheel, pins.load()))
    ui.result(str(place))
