"""--develop and --undo in an environment with a real torch: build, edit, build again, take out."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from subject import PROJECT, Archive, Subject

from torchfork.upstream.base import Base, probe
from torchfork.util import cache, venv
from torchfork.util.files import sha256_file

SMALL = Path(__file__).with_name("small_additions")
LARGE = 50_000_000
KERNEL = "aten_src/native/WheelTestStep.cpp"
ASK = """
import json, torch
x = torch.zeros(2, requires_grad=True)
y = torch.wheel_test_step(x)
y.sum().backward()
print(json.dumps({"version": torch.__version__, "function": y.tolist(),
                  "method": x.wheel_test_step().tolist(), "gradient": x.grad.tolist(),
                  "others": torch.ravel(torch.ones(1, 2)).tolist(),
                  "patched": torch.nn.functional.WHEEL_TEST_NAME}))
"""
HAS = """
import json, torch
print(json.dumps([torch.__version__, hasattr(torch, "wheel_test_step")]))
"""


def snapshot(site: Path) -> dict[str, tuple[object, ...]]:
    """Every file's mode and sha256; of the largest, which no build changes, which file it is."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, _, names in os.walk(site):
        for name in names:
            path = Path(directory, name)
            stat = path.stat()
            same = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            key = same if stat.st_size > LARGE else (sha256_file(path),)
            found[path.relative_to(site).as_posix()] = (stat.st_mode, *key)
    return found


@dataclass
class Workshop:
    """An environment with the base's torch, additions of one operator, and the tooling."""

    subject: Subject
    place: Path
    python: Path
    said: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def additions(self) -> Path:
        return self.place / "additions"

    @property
    def site(self) -> Path:
        """Of the environment."""
        return probe(self.python, headers=False).site_packages

    def build(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `torchfork build` for the environment, from another directory."""
        command = [
            sys.executable, "-m", "torchfork", "build", "--python", self.python,
            "--additions", self.additions, "--work", self.place / "work", *options,
        ]  # fmt: skip
        extra = {
            "PYTHONPATH": str(PROJECT / "scripts" / "lib"),
            "TORCHFORK_CACHE": str(self.place / "cache"),
        }
        started = time.monotonic()
        done = subprocess.run(
            [str(part) for part in command], env=self.subject.environment(extra),
            cwd=self.subject.neutral, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.seconds.append(time.monotonic() - started)
        self.said.append(done.stdout + done.stderr)
        return done

    def must_build(self, *options: str) -> str:
        done = self.build(*options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def ask(self, program: str) -> Any:
        """Run Python in the environment without leaving .pyc files there."""
        said = self.subject.run([self.python, "-B", "-c", program]).stdout
        return json.loads(said.strip().splitlines()[-1])


@dataclass(frozen=True)
class Story:
    """What was seen, in the order in which it happened."""

    first: dict[str, Any]
    edited: dict[str, Any]
    edit_said: str
    again_said: str
    pip_check: str
    before: dict[str, tuple[object, ...]]
    meanwhile: dict[str, tuple[object, ...]]
    after: dict[str, tuple[object, ...]]
    left: list[Any]
    second_undo: subprocess.CompletedProcess[str]
    additions_before: dict[str, tuple[object, ...]]
    additions_after: dict[str, tuple[object, ...]]


@pytest.fixture(scope="module")
def workshop(
    subject: Subject, base: Base, base_wheel: Archive, foreign_place: Path
) -> Iterator[Workshop]:
    """Everything below a path with a space and letters beyond ASCII; the base's gate is shared."""
    place = foreign_place / "develop"
    (place / "cache").mkdir(parents=True)
    (cache.directory() / "headers").mkdir(parents=True, exist_ok=True)
    (place / "cache" / "headers").symlink_to(cache.directory() / "headers")
    shutil.copytree(SMALL, place / "additions")
    requirements = base_wheel.metadata.get_all("Requires-Dist", [])
    python = venv.with_wheel(
        base_wheel.path, base.interpreter, requirements, place / "environments", subject.neutral,
        lambda text: None,
    )  # fmt: skip
    yield Workshop(subject, place, python)
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def story(workshop: Workshop) -> Story:
    """The whole round, once."""
    additions_before = snapshot(workshop.additions)
    before = snapshot(workshop.site)
    workshop.must_build("--develop")
    first = workshop.ask(ASK)
    kernel = workshop.additions / KERNEL
    text = kernel.read_text(encoding="utf-8")
    kernel.write_text(text.replace("kStep = 1", "kStep = 2"), encoding="utf-8")
    edit_said = workshop.must_build("--develop")
    edited = workshop.ask(ASK)
    again_said = workshop.must_build("--develop")
    check = workshop.subject.run([workshop.python, "-B", "-m", "pip", "check"]).stdout
    meanwhile = snapshot(workshop.site)
    workshop.must_build("--undo")
    after, left = snapshot(workshop.site), workshop.ask(HAS)
    second_undo = workshop.build("--undo")
    kernel.write_text(text, encoding="utf-8")
    return Story(
        first, edited, edit_said, again_said, check, before, meanwhile, after, left,
        second_undo, additions_before, snapshot(workshop.additions),
    )  # fmt: skip


def test_the_environment_has_the_operator_after_develop(story: Story, base: Base) -> None:
    assert story.first == {
        "version": base.version, "function": [1.0, 1.0], "method": [1.0, 1.0],
        "gradient": [1.0, 1.0], "others": [1.0, 1.0], "patched": "step",
    }  # fmt: skip


def test_an_edited_kernel_is_what_the_next_import_runs(story: Story) -> None:
    assert story.edited["function"] == [2.0, 2.0]
    assert story.edited["method"] == [2.0, 2.0]


def test_an_edit_compiles_one_object_and_writes_one_library(story: Story) -> None:
    assert re.search(r"compile .* 1 of \d+ objects", story.edit_said), story.edit_said
    # The library and RECORD, which tells its hash.
    assert "2 files written" in story.edit_said, story.edit_said


def test_a_build_without_an_edit_compiles_and_writes_nothing(story: Story) -> None:
    assert re.search(r"compile .* 0 of \d+ objects", story.again_said), story.again_said
    assert " 0 files written" in story.again_said, story.again_said


def test_pip_finds_nothing_broken_while_the_graft_is_in(story: Story) -> None:
    assert "No broken requirements" in story.pip_check


def test_the_graft_changes_no_file_but_adds_and_replaces_its_own(story: Story) -> None:
    assert not story.before.keys() - story.meanwhile.keys()
    differing = {n for n in story.before if story.before[n] != story.meanwhile[n]}
    assert {"torch/lib/libtorch.so", "torch/nn/functional.py"} <= differing
    assert "torch/wheel_test_name.py" in story.meanwhile.keys() - story.before.keys()
    assert all(name.split("/")[0] in {"torch", "torchgen"} or name.endswith("/RECORD")
               for name in differing)  # fmt: skip


def test_undo_restores_every_file_bit_for_bit(story: Story, base: Base) -> None:
    assert story.after == story.before
    assert story.left == [base.version, False]


def test_a_second_undo_says_that_there_is_nothing_to_undo(story: Story) -> None:
    assert story.second_undo.returncode == 32
    assert "nothing to undo" in story.second_undo.stderr


def test_builds_write_nothing_into_the_additions(story: Story) -> None:
    assert story.additions_after == story.additions_before
