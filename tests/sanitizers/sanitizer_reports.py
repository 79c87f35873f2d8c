"""A pytest plugin: a test during which a sanitizer reports something fails, with the report's text.

The sanitizers write a file a process into TORCHFORK_SANITIZER_REPORTS, as scripts/run_tests.sh has
told them before the process began; those of processes that a test started are among them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

REPORTS = Path(os.environ["TORCHFORK_SANITIZER_REPORTS"])
# A report's file too, and no fault: tests ask for more memory than there is.
_REFUSED = re.compile(r"==\d+==WARNING: AddressSanitizer failed to allocate 0x[0-9a-f]+ bytes\n")
# How much of the first report of a test is shown, in characters; the file has all.
_SHOWN = 6000


class Reports:
    """What was reported and not yet told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._told: dict[Path, int] = {}

    def new(self) -> str:
        """Everything that was reported since the last call."""
        texts = []
        for path in sorted(self.directory.glob("*.*")):
            text = path.read_text(encoding="utf-8", errors="replace")
            fresh = _REFUSED.sub("", text[self._told.get(path, 0) :])
            self._told[path] = len(text)
            if fresh.strip():
                texts.append(f"{path}:\n{fresh}")
        return "\n".join(texts)


_reports = Reports(REPORTS)


def pytest_report_header() -> str:
    return f"sanitizers: reports in {REPORTS}, CPU capability {capability()}"


def capability() -> str:
    """The capability whose kernels run, in the form of ATEN_CPU_CAPABILITY."""
    return torch.backends.cpu.get_cpu_capability().lower().replace("no avx", "default")


def pytest_sessionstart() -> None:
    """Stop where nothing could be reported: another wheel, another capability than asked for."""
    library = Path(torch.__file__).with_name("lib") / "libtorch.so"
    if b"__asan_report_store" not in library.read_bytes():
        pytest.exit(f"{library} is not instrumented by sanitizing-g++", returncode=4)
    if capability() != os.environ["ATEN_CPU_CAPABILITY"]:
        pytest.exit(f"this machine runs {capability()}", returncode=4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail the phase of a test (its set-up, itself, its end) that has a report."""
    outcome = yield
    found = _reports.new()
    if found:
        before = f"\n{outcome.longreprtext}" if outcome.failed else ""
        outcome.outcome = "failed"
        outcome.longrepr = f"{found[:_SHOWN]}{before}"
    return outcome


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """What was reported outside of tests: while modules were imported, or between them."""
    found = _reports.new()
    if found:
        print(f"\nreported outside of any test:\n{found}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
