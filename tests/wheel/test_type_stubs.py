"""The type stubs know the added operators: right uses pass mypy and pyright, wrong ones do not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from subject import Subject

pytestmark = pytest.mark.overlay

HERE = Path(__file__).with_name("consumer_types")


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def complaints(
    request: pytest.FixtureRequest, subject: Subject, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[int]]:
    """The lines of each sample that a type checker, reading the wheel, complains of."""
    options: dict[str, list[str | Path]] = {
        "mypy": ["--strict", "--python-executable", subject.python, "--config-file", "",
                 "--cache-dir", tmp_path_factory.mktemp("mypy"), "--show-error-codes",
                 "--no-color-output", "--no-error-summary"],
        "pyright": ["--pythonpath", subject.python],
    }  # fmt: skip
    command = [sys.executable, "-m", request.param, *options[request.param]]
    done = subprocess.run(
        [str(part) for part in (*command, HERE / "right.py", HERE / "wrong.py")],
        cwd=subject.neutral, env=subject.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    # 0 and 1 are verdicts; 2 and more: the checker could not read something.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, list[int]] = {"right": [], "wrong": []}
    for line in done.stdout.splitlines():
        if match := re.match(r".*?(right|wrong)\.py:(\d+)(?:: |:\d+ - )error: ", line):
            found[match[1]].append(int(match[2]))
        else:
            assert not re.search(r":\d+.* error: ", line), f"outside the samples: {line}"
    return found


def test_right_uses_pass_strictly(complaints: dict[str, list[int]]) -> None:
    assert complaints["right"] == []


def test_each_wrong_use_is_an_error_and_nothing_else_is(complaints: dict[str, list[int]]) -> None:
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    expected = [n for n, line in enumerate(lines, 1) if line.endswith("  # error")]
    assert len(expected) > 10
    assert sorted(set(complaints["wrong"])) == expected
