"""Carrying additions to a real release: every tier up to the compiler, and what stops there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from subject import PROJECT

from torchfork.upstream.base import Base

SMALL = Path(__file__).with_name("small_additions")


def carry(release: str, additions: Path, scratch: Path) -> tuple[int, dict[str, Any]]:
    """Exit status of `rebase_torch.sh --onto RELEASE`, and its report of that release."""
    done = subprocess.run(
        [PROJECT / "scripts" / "rebase_torch.sh", "--onto", release, "--additions", additions,
         "--work", scratch / "work", "--report", scratch / "report"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (scratch / "report" / "matrix.json").is_file(), done.stderr
    (subject,) = json.loads((scratch / "report" / "matrix.json").read_text())["subjects"]
    return done.returncode, subject


def tier(subject: dict[str, Any], letter: str) -> dict[str, Any]:
    """What a report says of a tier."""
    (found,) = (tier for tier in subject["tiers"] if tier["tier"] == letter)
    return dict(found)


def test_additions_that_fit_come_through(base: Base, tmp_path: Path) -> None:
    status, subject = carry(base.public_version, SMALL, tmp_path)
    states = {letter: tier(subject, letter)["state"] for letter in "abcd"}
    assert states == dict.fromkeys("abcd", "passed") and status == 0
    assert {operator["state"] for operator in subject["operators"]} == {"passed"}
    assert "kernels declared and defined" in tier(subject, "d")["outcome"]


def test_a_kernel_that_does_not_compile_is_found(base: Base, tmp_path: Path) -> None:
    additions = tmp_path / "additions"
    shutil.copytree(SMALL, additions)
    kernel = additions / "aten_src" / "native" / "WheelTestStep.cpp"
    kernel.write_text(kernel.read_text() + "\nstatic int wt_wrong() { return at::nowhere(); }\n")
    status, subject = carry(base.public_version, additions, tmp_path)
    found = tier(subject, "d")
    assert status == 41 and found["state"] == "failed"
    seen = json.dumps(found["finding"])
    assert "WheelTestStep.cpp" in seen and "nowhere" in seen
