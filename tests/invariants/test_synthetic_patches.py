"""Upstreams that change under the patches: each change has its name in the matrix and is red.

How a patch stands to each kind of change is asserted in unit/edits/test_patches_states.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_synthetic_upstreams import ADDED, World, states

from torchfork.additions.load import load
from torchfork.edits.patches import git
from torchfork.edits.patches.series import Header
from torchfork.rebase import run, targets
from torchfork.rebase.model import FAILED, PASSED, TargetResult
from torchfork.upstream import pins
from torchfork.upstream.base import Base

pytestmark = pytest.mark.wheel

FILE = "torch/nn/modules/flatten.py"
HOOKED = "torch/nn/utils/memory_format.py"
ANCHOR = "import torch"
OURS = "    # ours\n"
FOLDER = f"""
subject = "Add a name"
why = "this test"
until = "this test is gone"
upstream = "none"

[[hook]]
file = "{HOOKED}"
after = "{ANCHOR}"
lines = '''
OURS = 1
'''
"""
Edit = Callable[[str], str | None]


def place(text: str) -> int:
    """Where the patch puts its line: before the last method of the file's first class."""
    return text.index("    def forward(")


def inserted(text: str, line: str) -> str:
    return text[: place(text)] + line + text[place(text) :]


def make_patch(root: Path, before: str, after: str) -> str:
    git.create(root)
    start = git.commit(root, {FILE: before}, "before")
    end = git.commit(root, {FILE: after}, "after", start)
    about = Header("Say whose it is", "this test", "this test is gone", "none")
    return git.mail_head(about, "A <a@b.c>", git.DATE) + git.export(root, start, end)


@pytest.fixture(scope="module")
def world(base: Base, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Additions with a diff and a folder; the base is in the cache, so merges are possible."""
    root = tmp_path_factory.mktemp("synthetic-patches")
    (root / "added" / "patches" / "named").mkdir(parents=True)
    (root / "added" / "native_functions_additions.yaml").write_text(ADDED)
    series = "ours.patch  *  both  # x\nnamed  *  both  # x\n"
    (root / "added" / "patches" / "series").write_text(series)
    before = (base.root / FILE).read_text(encoding="utf-8")
    patch = make_patch(root / "git", before, inserted(before, OURS))
    (root / "added" / "patches" / "ours.patch").write_text(patch, encoding="utf-8")
    (root / "added" / "patches" / "named" / "patch.toml").write_text(FOLDER)
    (root / "cache" / "unpacked").mkdir(parents=True)
    (root / "cache" / "unpacked" / "origin").symlink_to(base.root)
    opening = targets.TargetOpening(base.interpreter, pins.load(), root / "cache", "", False)
    settings = run.Settings(load(root / "added"), opening, "ab", root / "work", 1, 1, True)
    return World(base, root, settings)


def context_changed(text: str) -> str:
    """The third line after the patch's place is another one; git merges what does not touch."""
    lines = text[place(text) :].split("\n")
    lines[2] += "  # theirs"
    return text[: place(text)] + "\n".join(lines)


CHANGES: dict[str, tuple[dict[str, Edit], str, str]] = {
    "lines around it changed": ({FILE: context_changed}, "patch needs refresh", "ours.patch"),
    "its lines were rewritten": (
        {FILE: lambda text: inserted(text, "    # theirs\n")}, "patch conflicts", "ours.patch",
    ),
    "the same change landed": (
        {FILE: lambda text: inserted(text, OURS)}, "patch landed upstream", "ours.patch",
    ),
    "an anchor was removed": (
        {HOOKED: lambda text: text.replace(f"{ANCHOR}\n", "from torch import *\n", 1)},
        "patch conflicts", "named",
    ),
}  # fmt: skip


def rows(result: TargetResult) -> dict[str, str]:
    found = {}
    for tier in result.tiers:
        if tier.tier == "b":
            found = {row.name: row.state for row in tier.rows}
    return {name: state for name, state in found.items() if name.startswith("patches/")}


def test_patches_come_through_on_the_untouched_upstream(world: World) -> None:
    (result,) = world.carry(world.upstream())
    assert states(result)["b"] == PASSED and not result.red, result.first_failure
    assert rows(result) == {"patches/ours.patch": PASSED, "patches/named": PASSED}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_under_a_patch_is_red_and_called_by_its_name(world: World, change: str) -> None:
    edits, kind, patch = CHANGES[change]
    (result,) = world.carry(world.upstream(edits))
    assert result.red and states(result)["b"] == FAILED
    failure = result.first_failure
    assert failure and failure.finding
    assert failure.finding.kind == kind and f"'{patch}'" in failure.finding.what
    assert failure.finding.where and failure.finding.next and failure.finding.exit_code == 19
    assert rows(result)[f"patches/{patch}"] == FAILED
