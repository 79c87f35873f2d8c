"""The last tier: the wheel is packed, installed in a clean environment, and its tests run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import VerificationError
from ..util import files, process, venv
from ..wheel import pack, verify

if TYPE_CHECKING:
    from .tiers import TargetRun

TESTS = Path("tests") / "ops"
REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements-test.txt"
_LOCK_SECONDS = 4 * 3600.0


def run(carried: TargetRun) -> str:
    """(f) The wheel installs, keeps its promise, and the additions' own tests pass on it."""
    base, work = carried.base, carried.work
    carried.step("pack the wheel")
    version = pack.grafted_version(base.version, 1)
    wheel = pack.pack(
        base, carried.layout.overlay, version, carried.layout.root / "wheel", pack.epoch_from()
    )
    # One environment serves all releases that require the same: nobody else may change it now.
    with files.lock(
        work / "verify" / "trial.lock", f"trying {wheel.name}", carried.say, _LOCK_SECONDS
    ):
        carried.step("install it and hold it against its base")
        report = verify.verify(
            wheel, base, carried.manifest, work / "verify", carried.cache,
            say=carried.say, on_wait=carried.say,
        )  # fmt: skip
        said = (
            f"imports; {report.upstream_operators} upstream schemas unchanged, "
            f"{len(report.added)} added"
        )
        carried.log.append(said)
        tests = carried.additions.root / TESTS
        if not tests.is_dir():
            return f"{said}; the additions bring no {TESTS}"
        carried.step(f"run {TESTS}")
        return f"{said}; {_pytest(carried, report.python, tests)}"


def _pytest(carried: TargetRun, python: Path, tests: Path) -> str:
    """Run the tests with pytest and its like from a directory beside the wheel's environment."""
    neutral = carried.work / "verify" / "neutral"
    tag = carried.base.interpreter.tag
    key = files.sha256_text(REQUIREMENTS.read_text("utf-8"))[:12]
    tools = carried.work / "verify" / f"pytest-{tag}-{key}"
    if not tools.is_dir():

        def install(target: Path) -> None:
            wanted = ["--target", str(target), "--requirement", str(REQUIREMENTS)]
            outcome = venv.pip_run(python, neutral, "install", "--no-compile", *wanted)
            if outcome.returncode:
                raise process.ProcessError(outcome)

        files.build_directory(tools, install)
    outcome = process.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", tests.parents[1],
         "-c", _configuration(tests), tests],
        cwd=neutral, env={"PYTHONPATH": str(tools)}, check=False,
    )  # fmt: skip
    carried.log.append(outcome.stdout[-20000:])
    last = (outcome.stdout.strip().splitlines() or [""])[-1]
    if outcome.returncode or not re.search(r"\b\d+ passed\b", last):
        raise VerificationError(
            "the additions' tests fail on the finished wheel",
            where=outcome.command,
            why="\n".join((outcome.stdout + outcome.stderr).strip().splitlines()[-25:]),
            next="the wheel is kept: " + str(carried.layout.root / "wheel"),
            kind="tests fail",
        )
    return last.strip("= ")


def _configuration(tests: Path) -> Path:
    """The pytest configuration of the additions' own project, or none."""
    own = tests.parents[1] / "pyproject.toml"
    return own if own.is_file() else Path("/dev/null")
