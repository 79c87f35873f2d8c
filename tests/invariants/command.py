"""Runs the real command line on the official wheel that the tests are about; its fixtures."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SMALL = PROJECT / "tests" / "wheel" / "small_additions"


def heed_interrupts() -> None:
    """A test run in the background has SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Answer:
    """How a run ended, and what it said."""

    code: int
    out: str
    err: str

    def part(self, label: str) -> str:
        """The lines of one part of an error, 'where' for instance."""
        found = re.search(rf"^{label}:\s*(.*(?:\n {{7}}.*)*)", self.err, re.MULTILINE)
        return re.sub(r"\n {7}", "\n", found[1]) if found else ""

    @property
    def wheel(self) -> Path:
        """The wheel that a build made or found."""
        assert self.code == 0, self.err
        return Path(self.out.strip().splitlines()[-1])

    def assert_error(self, code: int, *says: str) -> None:
        """An error of this class whose message has all its parts and no traceback."""
        assert self.code == code, f"{self.code}\n{self.out}{self.err}"
        assert "Traceback" not in self.err, self.err
        assert self.part("error") and self.part("next"), self.err
        assert [text for text in says if text not in self.err] == [], self.err


@dataclass(frozen=True)
class Command:
    """torchfork with an official wheel, additions and directories of its own.

    base: what names the wheel on the command line.
    """

    root: Path
    base: tuple[str, ...]
    additions: Path = SMALL
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def out(self) -> Path:
        return self.root / "out"

    def argv(self, action: str = "build", *more: str | Path) -> list[str]:
        """The command line."""
        acts_on_a_tree = action in ("status", "unapply")
        places: list[str | Path] = [] if acts_on_a_tree else self._places()
        if action == "build":
            places += ["--no-verify", "--out", self.out]
        words = [self.python, "-m", "torchfork", action, *self.base, *places, *more]
        return [str(word) for word in words]

    def _places(self) -> list[str | Path]:
        return ["--additions", self.additions, "--work", self.work]

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a run, without CUDA: what is tested is the same, and quicker."""
        lib = {"PYTHONPATH": str(PROJECT / "scripts" / "lib"), "USE_CUDA": "0"}
        target = {"TORCHFORK_TARGET_PYTHON": self.python}
        return {**os.environ, **lib, **target, **self.environment, **(extra or {})}

    def run(
        self, action: str = "build", *more: str | Path, prefix: tuple[str, ...] = (), **extra: str
    ) -> Answer:
        """Run it to its end."""
        done = subprocess.run(
            [*prefix, *self.argv(action, *more)], env=self.env(extra), cwd=self.root,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(self, *more: str | Path) -> subprocess.Popen[str]:
        """Start a build in a process group of its own."""
        return subprocess.Popen(
            self.argv("build", *more), env=self.env(), cwd=self.root, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            preexec_fn=heed_interrupts,
        )  # fmt: skip

    def layout(self) -> Path:
        """The build directory of its one pair of base and additions."""
        (found,) = (path for path in self.work.iterdir() if path.is_dir())
        return found

    def with_additions(self, native: str, **sources: str) -> Command:
        """The same with other additions; keyword X_cpp is aten_src/native/X.cpp."""
        additions = self.root / "additions"
        shutil.rmtree(additions, ignore_errors=True)
        (additions / "aten_src" / "native").mkdir(parents=True)
        (additions / "native_functions_additions.yaml").write_text(native, encoding="utf-8")
        for name, text in sources.items():
            stem, _, suffix = name.rpartition("_")
            (additions / "aten_src" / "native" / f"{stem}.{suffix}").write_text(text)
        return Command(self.root, self.base, additions, self.environment)


@pytest.fixture(scope="session")
def base_option() -> tuple[str, ...]:
    """How the command line names the official wheel.

    TORCHFORK_TEST_WHEEL names it; without it the default release is used, as in any other run.
    """
    named = os.environ.get("TORCHFORK_TEST_WHEEL")
    return ("--base", str(Path(named).absolute())) if named else ()


@pytest.fixture
def command(tmp_path: Path, base_option: tuple[str, ...]) -> Command:
    """torchfork with directories of this test's own."""
    return Command(tmp_path, base_option)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, base_option: tuple[str, ...]) -> Command:
    """A finished build of this process's own: a copy of one that all processes of a run share.

    Tests that change its directory copy it. Of processes that come at once one builds, and the
    others wait for it as for any other run.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made = Command(common / "built", base_option)
    made.root.mkdir(exist_ok=True)
    assert made.run().code == 0
    copy = Command(tmp_path_factory.mktemp("finished"), base_option)
    # The name of who holds the lock is there for as long as another process looks at the build.
    passing = shutil.ignore_patterns("*.holder", "*.holder.*")
    shutil.copytree(made.root, copy.root, symlinks=True, ignore=passing, dirs_exist_ok=True)
    assert copy.run().code == 0
    return copy
