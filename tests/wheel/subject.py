"""What the tests here are about: a built wheel and an interpreter that has it installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import Any

import ninja

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Archive:
    """A wheel file, read in place; members of the dist-info are named without the version."""

    path: Path

    @property
    def version(self) -> str:
        """The version in the file's name."""
        return self.path.name.split("-")[1]

    @property
    def torch_version(self) -> str:
        """torch.__version__ where it is installed: an overlay's is that of the torch it is for."""
        made_for = [name for name in self.members if name.endswith("/overlay.json")]
        return str(json.loads(self.read(made_for[0]))["torch"]) if made_for else self.version

    @cached_property
    def members(self) -> dict[str, zipfile.ZipInfo]:
        """Every file by its plain name."""
        with zipfile.ZipFile(self.path) as archive:
            return {self.plain(i.filename): i for i in archive.infolist() if not i.is_dir()}

    @staticmethod
    def plain(name: str) -> str:
        """A member's name with the dist-info called 'dist-info'."""
        first, _, rest = name.partition("/")
        return f"dist-info/{rest}" if first.endswith(".dist-info") else name

    def read(self, plain_name: str) -> bytes:
        """A member's contents."""
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(self.members[plain_name])

    def text(self, plain_name: str) -> str:
        """A member's contents as text."""
        return self.read(plain_name).decode()

    @property
    def metadata(self) -> Message:
        """METADATA, parsed."""
        return HeaderParser().parsestr(self.text("dist-info/METADATA"))


@dataclass(frozen=True)
class Subject:
    """The wheel under test and an interpreter that has it installed."""

    wheel: Archive
    python: Path
    neutral: Path  # an empty directory, so that no file of ours shadows what is installed

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """For programs of the wheel's user: nothing of the test run, and ninja on the path."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "PYTEST_CURRENT_TEST", "CXXFLAGS", "CFLAGS")
        kept = {key: value for key, value in os.environ.items() if key not in hidden}
        kept["PATH"] = os.pathsep.join([ninja.BIN_DIR, kept.get("PATH", os.defpath)])
        return {**kept, **(extra or {})}

    def run(
        self, argv: Sequence[str | Path], *, cwd: Path | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program; what it said is in the error where it fails."""
        done = subprocess.run(
            [str(part) for part in argv], cwd=cwd or self.neutral, env=self.environment(extra),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{argv}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def ask(self, program: str) -> Any:
        """Run Python code in the wheel's interpreter; its last line of output is JSON."""
        done = self.run([self.python, "-c", program])
        return json.loads(done.stdout.strip().splitlines()[-1])

    @cached_property
    def site(self) -> Path:
        """The directory that holds the installed torch."""
        return Path(self.ask("import json, torch; print(json.dumps(torch.__file__))")).parents[1]

    @property
    def library(self) -> Path:
        """The libtorch.so that has the additions: torch's own, or the overlay's."""
        overlay = self.site / "torch_ext" / "torch" / "lib" / "libtorch.so"
        return overlay if overlay.exists() else self.site / "torch" / "lib" / "libtorch.so"


def tool(name: str) -> Path:
    """A program beside the interpreter that runs the tests, else on the path."""
    beside = Path(sys.executable).with_name(name)
    found = beside if beside.exists() else shutil.which(name)
    assert found, f"these tests need {name}: python -m pip install {name}"
    return Path(found)
