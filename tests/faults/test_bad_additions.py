"""Each fault in additions ends with its exit code and a message that helps whoever wrote them.

The cases are in tests/zoo/bad, one directory each. `case.toml` there says with which exit code the
fault ends (`exit`), which line the message names (`where`) and what it mentions (`says`), and
whether `torchfork check` finds it or only a build does (`run = "build"`). What is refused before
the code generator is asked has its rows in unit/additions, and here one case an exit code.

TORCHFORK_TEST_WHEEL names the official wheel to test against; without it, the default release is
used, as in any other run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
BAD = ROOT / "tests" / "zoo" / "bad"
# Found while the additions are read, before there is any base.
WITHOUT_BASE = frozenset({"malformed_yaml", "derivative_twice", "no_additions"})


@dataclass(frozen=True)
class Fault:
    """A directory with one fault, and how it is to be answered."""

    directory: Path
    exit: int
    where: str
    says: tuple[str, ...]
    run: str = "check"

    @classmethod
    def read(cls, toml: Path) -> Fault:
        fields: dict[str, Any] = tomllib.loads(toml.read_text(encoding="utf-8"))
        fields["says"] = tuple(fields["says"])
        return cls(toml.parent, **fields)


# Builds, which take longest, first, and after each other those of the same declarations.
FAULTS = sorted(
    map(Fault.read, BAD.glob("*/case.toml")),
    key=lambda f: (f.run, sorted(p.read_text() for p in f.directory.glob("*.yaml")), f.directory),
)
marked = [
    pytest.param(
        fault,
        id=fault.directory.name,
        marks=[] if fault.directory.name in WITHOUT_BASE else [pytest.mark.wheel],
    )
    for fault in FAULTS
]


@dataclass(frozen=True)
class Answer:
    """How a run ended, and the labelled parts of its message."""

    code: int
    text: str

    def part(self, label: str) -> str:
        """The lines of one part, with the indentation of continued ones taken off."""
        found = re.search(rf"^{label}:\s*(.*(?:\n {{7}}.*)*)", self.text, re.MULTILINE)
        return re.sub(r"\n {7}", "\n", found[1]) if found else ""


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


def answer(fault: Fault, work: Path) -> Answer:
    """Run the command line on a copy of a faulty directory.

    All are where the one before was, as if that had been edited: what both have in common is
    generated and compiled once.
    """
    place = work / fault.run
    shutil.rmtree(place / "additions", ignore_errors=True)
    shutil.copytree(fault.directory, place / "additions")
    command: list[str | Path] = [ROOT / "scripts" / "torchfork", fault.run]
    command += ["--additions", place / "additions", "--work", place / "work"]
    if wheel := os.environ.get("TORCHFORK_TEST_WHEEL"):
        command += ["--base", wheel]
    if fault.run == "build":
        command += ["--out", place / "dist"]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=work, check=False)
    return Answer(finished.returncode, finished.stdout + finished.stderr)


@pytest.mark.parametrize("fault", marked)
def test_fault_is_answered_with_its_code_its_line_the_reason_and_a_next_step(
    fault: Fault, work: Path
) -> None:
    got = answer(fault, work)
    message = f"{got.part('error')}\n{got.part('why')}\n{got.part('next')}"
    assert got.code == fault.exit, got.text
    assert fault.where in got.part("where"), got.text
    assert [text for text in fault.says if text not in message] == [], got.text
    assert got.part("next"), got.text
    # nobody has to know what the tooling made of the files
    assert "Traceback (most recent call last)" not in got.text
    assert not re.search(r"\b(native_functions|derivatives|deprecated)\.yaml:\d+", got.text)
    assert not list(work.glob("*/dist/*")), "a wheel was left behind"


def test_every_fault_has_its_directory() -> None:
    """A case without its case.toml would silently not be run."""
    directories = {path.name for path in BAD.iterdir() if path.is_dir()}
    assert {fault.directory.name for fault in FAULTS} == directories
    assert directories >= WITHOUT_BASE


@pytest.mark.wheel
def test_the_good_zoo_passes_the_check_that_the_bad_one_fails(work: Path) -> None:
    fault = Fault(ROOT / "tests" / "zoo" / "additions", 0, "", ())
    got = answer(fault, work)
    assert got.code == 0, got.text
