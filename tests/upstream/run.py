#!/usr/bin/env python3
"""Runs PyTorch's own tests of a source tree on an installed torch, and judges the outcome.

    tests/upstream/run.py TREE PYTHON [--only FILE] [--junit DIR]

TREE is the tree that the wheel was built from, PYTHON the interpreter of an environment that has
the wheel, pytest, numpy, expecttest and hypothesis. Exit status 1: a test failed that
selection.toml does not expect to fail, or one that it expects to fail passed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SELECTION = Path(__file__).with_name("selection.toml")


@dataclass(frozen=True)
class Result:
    """One test: 'test_overrides.py::TestX::test_y' and how it ended."""

    name: str
    outcome: str  # passed, failed or skipped
    message: str


def run(tree: Path, python: Path, entry: dict[str, Any], junit: Path) -> list[Result]:
    """Run one file of the tree's tests."""
    report = junit / f"{entry['file'].replace('/', '_')}.xml"
    report.unlink(missing_ok=True)
    command = [
        str(python), "-m", "pytest", str(tree / "test" / entry["file"]), "-q", "--tb=short",
        "-p", "no:cacheprovider", f"--junit-xml={report}", "--rootdir", str(tree / "test"),
        *(["-k", entry["select"]] if entry["select"] else []),
    ]  # fmt: skip
    # test/ has no torch of its own; the tree's root has, and would shadow the installed one.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tree / "test", env=environment)
    if not report.is_file():
        return [Result(entry["file"], "failed", f"pytest ended with {done.returncode}")]
    found = list(results(report, entry["file"]))
    return found or [Result(entry["file"], "failed", "no test was selected")]


def results(report: Path, file: str) -> Iterator[Result]:
    """The tests of a JUnit report."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{file}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        wrong = next((c for c in case if c.tag in ("failure", "error")), None)
        if wrong is not None:
            message = (wrong.get("message") or "").splitlines()
            yield Result(name, "failed", message[0] if message else "")
        else:
            yield Result(name, "skipped" if case.find("skipped") is not None else "passed", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("python", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--junit", type=Path)
    options = parser.parse_args()
    selection = tomllib.loads(SELECTION.read_text(encoding="utf-8"))
    expected = {entry["test"]: entry for entry in selection.get("expected", [])}
    junit = options.junit or Path(tempfile.mkdtemp(prefix="upstream-tests-"))
    junit.mkdir(parents=True, exist_ok=True)
    unforeseen, recovered = [], []
    for entry in selection["run"]:
        if options.only and entry["file"] != options.only:
            continue
        found = run(options.tree.resolve(), options.python.absolute(), entry, junit)
        counts = {
            kind: sum(r.outcome == kind for r in found) for kind in ("passed", "failed", "skipped")
        }
        print(f"{entry['file']}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
        unforeseen += [r for r in found if r.outcome == "failed" and r.name not in expected]
        recovered += [r.name for r in found if r.outcome == "passed" and r.name in expected]
    for result in unforeseen:
        print(f"FAILED {result.name}\n    {result.message}")
    for name in recovered:
        print(f"PASSED, though selection.toml expects it to fail: {name}")
    sys.exit(bool(unforeseen or recovered))


if __name__ == "__main__":
    main()
