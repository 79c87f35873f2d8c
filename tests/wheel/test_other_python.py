"""Additions fit the wheels of other Pythons, where this machine has one and the cache its wheel.

A wrong interpreter is refused in tests/unit/upstream (test_interpreter.py, test_wheel_base.py);
test_develop_for_real.py builds with --python for another interpreter than the tooling's own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from subject import PROJECT

from torchfork.additions.load import load as load_additions
from torchfork.codegen import build_dir, header_check
from torchfork.errors import ForkError
from torchfork.pipelines import graft
from torchfork.upstream import fetch, pins
from torchfork.upstream import wheel as wheel_base
from torchfork.upstream.base import Base, Interpreter, probe
from torchfork.util import cache
from torchfork.util.ui import Ui


def candidates() -> list[str]:
    """Interpreters on the path, and those that a version manager keeps beside the tests' own."""
    on_path = [found for minor in range(10, 16) if (found := shutil.which(f"python3.{minor}"))]
    return on_path + sorted(map(str, Path(sys.base_prefix).parent.glob("*/bin/python3")))


def others(base: Base) -> list[Interpreter]:
    """Working interpreters of another minor version than the wheel's, one for each."""
    found: dict[str, Interpreter] = {}
    for name in candidates():
        try:
            one = probe(name, headers=False)
        except ForkError:  # too old, or a shim for a version that is not chosen
            continue
        found.setdefault(one.tag, one)
    return [one for tag, one in found.items() if tag != base.interpreter.tag]


def test_the_additions_fit_the_official_wheels_of_other_pythons(base: Base, tmp_path: Path) -> None:
    """Merge, parse and gate; for each other interpreter whose wheel of the release is kept."""
    release, checked = pins.load().get(base.public_version), []
    for one in others(base):
        for path in fetch.cached_wheels(release, one, cache.directory()):
            quiet, additions = Ui(quiet=True), load_additions(PROJECT)
            opened = wheel_base.open_wheel(
                path, wheel_base.Opening(one, pins.load(), cache.directory())
            )
            gated = header_check.check_headers(opened, cache.directory(), quiet)
            layout = build_dir.for_base(opened, additions, tmp_path)
            with build_dir.locked(layout):
                merged = graft.merge_and_validate(
                    graft.BuildContext(opened, additions, layout), gated.upstream, quiet
                )
            assert merged.manifest.operators
            checked.append(path.name)
    if not checked:
        pytest.skip(
            f"no wheel of torch {release.version} for another Python is in the cache; "
            "scripts/torchfork check --python python3.12, say, fetches one"
        )
