"""The git source for real: a repository with the whole of PyTorch 2.6.0 and submodules."""

from __future__ import annotations

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


def test_additions_go_in_and_out_of_a_clone(cloning: Cloning, upstream: Upstream) -> None:
    answer = clone(cloning, upstream, "apply")
    assert answer.code == 0, answer.err
    tree = Path(answer.out.strip())
    assert "- func: gdh(" in (tree / "aten/src/ATen/native/native_functions.yaml").read_text()
    assert cloning.run("unapply", tree).code == 0
    assert git(tree, "status", "--porcelain", "--ignored") == ""
