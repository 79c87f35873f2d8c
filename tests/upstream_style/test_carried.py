"""The second zoo on every release whose wheel is at hand: carried as it is, by one command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from packaging.version import Version

from torchfork.upstream import pins
from torchfork.util import cache

PROJECT = Path(__file__).resolve().parents[2]
LANDED = Version("2.14")  # has linalg_matrix_sqrth


def at_hand() -> list[str]:
    """The default release, and those with a wheel in the cache."""
    known, wheels = pins.load(), cache.directory() / "wheels"
    cached = [
        r.version for r in known.releases if any((wheels / p.sha256).is_dir() for p in r.wheels)
    ]
    return [known.get().version, *(version for version in cached if version != known.default)]


def test_one_command_carries_it_to_every_release_at_hand_and_leaves_out_what_landed(
    tmp_path: Path,
) -> None:
    command = [str(PROJECT / "scripts" / "torchfork"), "rebase", "--to", "b"]
    command += ["--additions", str(PROJECT / "tests/upstream_style/additions")]
    command += ["--report", str(tmp_path)]
    command += [option for version in at_hand() for option in ("--onto", version)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for subject in json.loads((tmp_path / "matrix.json").read_text("utf-8"))["subjects"]:
        landed = Version(subject["version"]) >= LANDED
        not_needed = [op["name"] for op in subject["operators"] if op["state"] == "not needed"]
        assert not_needed == ["linalg_matrix_sqrth"] * landed
