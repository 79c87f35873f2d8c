"""The type stubs know the added operators: right uses pass mypy, each wrong one is named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from subject import Subject

HERE = Path(__file__).with_name("consumer_types")


@pytest.fixture(scope="module")
def complaints(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The lines of each sample that mypy, in strict mode and reading the wheel, complains of."""
    command = [
        sys.executable, "-m", "mypy", "--strict", "--python-executable", subject.python,
        "--config-file", "", "--cache-dir", tmp_path_factory.mktemp("mypy"), "--show-error-codes",
        "--no-color-output", "--no-error-summary", HERE / "right.py", HERE / "wrong.py",
    ]  # fmt: skip
    done = subprocess.run(
        [str(part) for part in command], cwd=subject.neutral, env=subject.environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # 0 and 1 are verdicts; 2 is a mypy that could not read something.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, list[int]] = {"right": [], "wrong": []}
    for line in done.stdout.splitlines():
        if match := re.match(r".*?(right|wrong)\.py:(\d+): error: ", line):
            found[match[1]].append(int(match[2]))
        else:
            assert ": error:" not in line, f"a complaint outside the samples: {line}"
    return found


def test_right_uses_pass_strictly(complaints: dict[str, list[int]]) -> None:
    assert complaints["right"] == []


def test_each_wrong_use_is_an_error_and_nothing_else_is(complaints: dict[str, list[int]]) -> None:
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    expected = [n for n, line in enumerate(lines, 1) if line.endswith("  # error")]
    assert len(expected) > 10
    assert sorted(set(complaints["wrong"])) == expected
