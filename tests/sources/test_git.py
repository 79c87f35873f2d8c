"""The git source for real: a repository with the whole of PyTorch 2.6.0 and submodules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import PROJECT, Answer, Command
from repository import GIT, SUBMODULES, VERSION, Upstream, git


class Cloning(Command):
    """torchfork of a project whose pins name the repository's commit."""

    def env(self, extra: object = None) -> dict[str, str]:
        found = super().env()
        return {**found, **GIT, "PYTHONPATH": str(self.environment["LIB"])}


@pytest.fixture(scope="module")
def cloning(upstream: Upstream, home: Path) -> Cloning:
    lib = str(upstream.project / "scripts" / "lib")
    return Cloning(home / "cloning", (), PROJECT, {"LIB": lib})


def clone(cloning: Cloning, upstream: Upstream, until: str) -> Answer:
    cloning.root.mkdir(exist_ok=True)
    return cloning.run(
        "build", "--from-source", "--torch", VERSION, "--until", until,
        "--git-url", f"file://{upstream.repository}",
    )  # fmt: skip


def test_the_pinned_commit_comes_with_its_submodules(cloning: Cloning, upstream: Upstream) -> None:
    answer = clone(cloning, upstream, "fetch")
    assert answer.code == 0, answer.err
    tree = Path(answer.out.strip())
    assert git(tree, "rev-parse", "HEAD") == upstream.commit
    assert git(tree, "rev-list", "--count", "HEAD") == "1"
    assert {p: git(tree / p, "rev-parse", "HEAD") for p in SUBMODULES} == upstream.parts
    assert not (tree / "later").exists()


def test_a_submodule_that_got_lost_is_fetched_again(cloning: Cloning, upstream: Upstream) -> None:
    tree = Path(clone(cloning, upstream, "fetch").out.strip())
    git(tree, "submodule", "deinit", "--force", SUBMODULES[0])
    shutil.rmtree(tree / ".git" / "modules" / SUBMODULES[0])
    assert clone(cloning, upstream, "fetch").code == 0
    assert git(tree / SUBMODULES[0], "rev-parse", "HEAD") == upstream.parts[SUBMODULES[0]]


def test_additions_go_in_and_out_of_a_clone(cloning: Cloning, upstream: Upstream) -> None:
    answer = clone(cloning, upstream, "apply")
    assert answer.code == 0, answer.err
    tree = Path(answer.out.strip())
    assert "- func: gdh(" in (tree / "aten/src/ATen/native/native_functions.yaml").read_text()
    assert cloning.run("unapply", tree).code == 0
    assert git(tree, "status", "--porcelain", "--ignored") == ""


def test_a_repository_without_the_commit_is_refused(
    cloning: Cloning, upstream: Upstream, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "init", "--quiet", other], check=True, env=os.environ | GIT)
    fresh = Cloning(tmp_path, (), PROJECT, cloning.environment, sys.executable)
    answer = fresh.run(
        "build", "--from-source", "--torch", VERSION, "--until", "fetch",
        "--git-url", f"file://{other}",
    )  # fmt: skip
    answer.assert_error(22, str(other), upstream.commit, "--source debian")
