"""The git source: the pinned commit and its submodules, whatever the network does meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sample_tree as sample
from sample_files import commit_all, lay

from torchfork.errors import BaseRefusedError, DownloadError, HashMismatchError
from torchfork.upstream import git
from torchfork.upstream import tree as sourcetree
from torchfork.upstream.pins import Release
from torchfork.upstream.tree import SourceTree


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A repository with a submodule that may be fetched from, and its commit."""
    for name, value in sample.GIT.items():
        monkeypatch.setenv(name, value)
    # git refuses submodules from local paths unless allowed; a mirror is not local.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    sample.part(tmp_path / "part")
    root = tmp_path / "up stream"
    commit = sample.repository(root, tmp_path / "part")
    sample.git(root, "config", "uploadpack.allowAnySHA1InWant", "true")
    commit_all(lay(root, {"later": ""}), "later than the release")
    return root, commit


def clone(
    source: Path, commit: str, root: Path, version: str = sample.VERSION, *,
    by_variable: bool = False,
) -> SourceTree:  # fmt: skip
    url = f"file://{source}"
    environment, given = ({git.URL: url}, None) if by_variable else ({}, url)
    release = Release(version, commit, ())
    place = git.clone(release, given, root, environment, lambda *_: None)
    return sourcetree.open_tree(place)


def test_the_commit_is_cloned_with_its_submodules(
    upstream: tuple[Path, str], tmp_path: Path
) -> None:
    tree = clone(*upstream, tmp_path / "trees")
    assert (tree.commit, tree.version, tree.is_git) == (upstream[1], sample.VERSION, True)
    assert (tree.root / "third_party/part/part.h").is_file()
    assert not (tree.root / "later").exists()
    assert sample.git(tree.root, "rev-list", "--count", "HEAD") == "1"
    assert sourcetree.hand_edits(tree, {}) == []


def test_a_clone_that_is_there_is_taken_as_it_is(
    upstream: tuple[Path, str], tmp_path: Path
) -> None:
    # a variable names the repository
    tree = clone(*upstream, tmp_path / "trees", by_variable=True)
    shutil.rmtree(upstream[0])
    shutil.rmtree(tmp_path / "part")
    assert clone(*upstream, tmp_path / "trees") == tree and tree.commit == upstream[1]


@pytest.mark.parametrize("steps", range(4))
def test_a_broken_clone_is_resumed(upstream: tuple[Path, str], tmp_path: Path, steps: int) -> None:
    """A directory, a repository, the commit, and everything but a submodule."""
    trees = tmp_path / "trees"
    place = trees / f"git-{sample.VERSION}-{upstream[1][:12]}"
    place.mkdir(parents=True)
    if steps == 3:
        (tmp_path / "part").rename(tmp_path / "hidden")
        with pytest.raises(DownloadError, match="submodules"):
            clone(*upstream, trees)
        (tmp_path / "hidden").rename(tmp_path / "part")
    elif steps:
        sample.git(place, "init", "-q")
        if steps == 2:
            sample.git(place, "fetch", "-q", "--depth=1", f"file://{upstream[0]}", upstream[1])
    tree = clone(*upstream, trees)
    assert tree.commit == upstream[1] and (tree.root / "third_party/part/part.h").is_file()


def test_a_host_that_cannot_be_reached_is_reported_with_the_other_sources(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="cannot be reached") as caught:
        clone(tmp_path / "nowhere", "0" * 40, tmp_path / "trees", "2.6.0")
    assert "--source debian" in caught.value.next and "--source PATH" in caught.value.next
    assert "nowhere" in caught.value.where


def test_a_commit_that_is_not_there_is_named(upstream: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(HashMismatchError, match="does not have the pinned commit") as caught:
        clone(upstream[0], "1" * 40, tmp_path / "trees")
    assert str(upstream[0]) in caught.value.where and "1" * 40 in caught.value.why


@pytest.mark.parametrize("state", ["missing", "moved"])
def test_a_submodule_that_is_missing_or_moved_is_named(
    upstream: tuple[Path, str], tmp_path: Path, state: str
) -> None:
    tree = clone(*upstream, tmp_path / "trees")
    part = tree.root / "third_party" / "part"
    if state == "missing":
        sample.git(tree.root, "submodule", "--quiet", "deinit", "-f", "third_party/part")
    else:
        (part / "part.h").write_text("// other\n")
        sample.git(part, "commit", "-q", "-a", "-m", "moved")
    with pytest.raises(BaseRefusedError, match="submodule") as caught:
        git.require_submodules(tree.root)
    assert "third_party/part" in caught.value.why and "submodule update" in caught.value.next


def test_edits_in_a_clone_are_never_overwritten(upstream: tuple[Path, str], tmp_path: Path) -> None:
    tree = clone(*upstream, tmp_path / "trees")
    (tree.root / sample.CAPITAL).write_text("// mine\n")
    clone(*upstream, tmp_path / "trees")
    assert (tree.root / sample.CAPITAL).read_text() == "// mine\n"
    assert sourcetree.hand_edits(tree, {}) == [sample.CAPITAL]
