"""3. Our patches on the real release: each applies, gives Python, and comes back as it was.

That they have no fault for any release, the suite lint asserts (torchfork patch lint).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from command import PROJECT

from torchfork.edits import patches
from torchfork.edits.patches import Report, State, workbench
from torchfork.upstream.base import Base

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def report(base: Base) -> Report:
    tree = patches.directory(base.root)
    return patches.plan(patches.load(PROJECT), tree, base.version, "graft")


def test_3_every_patch_applies_to_the_release(report: Report) -> None:
    report.require()
    assert report.outcomes and report.texts
    assert not report.of(State.LANDED, State.MERGED, State.APPLIED)


def test_3_patched_files_are_python_as_they_were(report: Report, base: Base) -> None:
    for name, text in report.texts.items():
        if name.endswith((".py", ".pyi")):
            ast.parse(text or "", name)
    for name in report.texts.keys() & {"torch/nn/functional.py", "torch/_tensor_docs.py"}:
        original = (base.root / name).read_text(encoding="utf-8")
        assert (report.texts[name] or "").startswith(original), "only its end is ours"


def test_3_patches_come_back_from_their_commits_as_they_were(base: Base, tmp_path: Path) -> None:
    series = patches.load(PROJECT)
    tree = patches.directory(base.root)
    bench = workbench.start(tmp_path / "bench", series, tree, base.version, "graft")
    done = workbench.commit_pending(bench, series, [])
    assert workbench.refresh(done, series, {}) == []
