"""Carrying additions to a real release: every tier up to the compiler, and what stops there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from subject import PROJECT

from torchfork.upstream.base import Base

SMALL = Path(__file__).with_name("small_additions")


def carry(release: str, scratch: Path) -> tuple[int, dict[str, Any]]:
    """Exit status of `rebase_torch.sh --onto RELEASE`, and its report of that release."""
    done = subprocess.run(
        [PROJECT / "scripts" / "rebase_torch.sh", "--onto", release, "--work", scratch / "work",
         "--additions", scratch / "additions", "--report", scratch / "report"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (scratch / "report" / "matrix.json").is_file(), done.stderr
    (subject,) = json.loads((scratch / "report" / "matrix.json").read_text())["subjects"]
    return done.returncode, subject


def tier(subject: dict[str, Any], letter: str) -> dict[str, Any]:
    """What a report says of a tier."""
    (found,) = (tier for tier in subject["tiers"] if tier["tier"] == letter)
    return dict(found)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the small additions; what both tests generate and compile is kept for the other."""
    place = tmp_path_factory.mktemp("rebase")
    shutil.copytree(SMALL, place / "additions")
    return place


def test_additions_that_fit_come_through(base: Base, scratch: Path) -> None:
    status, subject = carry(base.public_version, scratch)
    states = {letter: tier(subject, letter)["state"] for letter in "abcd"}
    assert states == dict.fromkeys("abcd", "passed") and status == 0
    assert {operator["state"] for operator in subject["operators"]} == {"passed"}
    assert "kernels declared and defined" in tier(subject, "d")["outcome"]


def test_a_kernel_that_does_not_compile_is_found(base: Base, scratch: Path) -> None:
    kernel = scratch / "additions" / "aten_src" / "native" / "WheelTestStep.cpp"
    text = kernel.read_text()
    kernel.write_text(text + "\nstatic int wt_wrong() { return at::nowhere(); }\n")
    status, subject = carry(base.public_version, scratch)
    kernel.write_text(text)
    found = tier(subject, "d")
    assert status == 41 and found["state"] == "failed"
    seen = json.dumps(found["finding"])
    assert "WheelTestStep.cpp" in seen and "nowhere" in seen
