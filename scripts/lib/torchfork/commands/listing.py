"""torchfork releases: the pinned releases, for people and for a workflow's matrix."""

from __future__ import annotations

import argparse
import json

from ..upstream import pins as releases
from ..util.ui import Ui


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--json", action="store_true", help="the versions as a JSON list")
    parser.set_defaults(run=lambda options, ui: run(as_json=options.json, ui=ui))


def run(*, as_json: bool, ui: Ui) -> None:
    """Print the versions on stdout, oldest first."""
    pins = releases.load()
    if as_json:
        ui.result(json.dumps(pins.versions))
        return
    for release in pins.releases:
        default = "  (default)" if release.version == pins.default else ""
        ui.result(f"{release.version:<8} {release.commit}  {len(release.wheels)} wheels{default}")
