"""A source tree: ours goes in and comes out bit for bit, whoever is killed or edits meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sample_tree as sample
from killing import every_kill
from sample_files import snapshot

from torchfork.errors import BaseRefusedError, CollisionError, StateError
from torchfork.state import source_tree
from torchfork.state.journal import Changes
from torchfork.upstream import tree as sourcetree
from torchfork.upstream.tree import SourceTree

KERNEL = "aten/src/ATen/native/Swing.cpp"
DEEP = "aten/src/ATen/native/new/deep/Sway.cpp"
OVERRIDES = "torch/overrides.py"
FIRST: dict[str, bytes | None] = {
    sample.NATIVE: b"- func: relu\n- func: swing\n",
    KERNEL: b"// swing\n",
    DEEP: b"// sway\n",
}
SECOND: dict[str, bytes | None] = {
    sample.NATIVE: b"- func: relu\n- func: sway\n", OVERRIDES: None, DEEP: b"// sway\n",
}  # fmt: skip
ADDED = frozenset({KERNEL, DEEP})


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    made = sample.unpacked(tmp_path / "tree of ours")
    (made.root / sample.NATIVE).chmod(0o640)
    return made


def put(tree: SourceTree, wanted: dict[str, bytes | None]) -> Changes:
    return source_tree.apply(tree, wanted, Path("/ours"), added=ADDED)


def contents(tree: SourceTree) -> dict[str, bytes]:
    everything = snapshot(tree.root)
    return {n: data for n, data in everything.items() if not n.startswith(sourcetree.STATE)}


def test_apply_writes_what_was_asked_and_unapply_restores_it_bit_for_bit(tree: SourceTree) -> None:
    before, own = sample.state(tree.root), contents(tree)
    assert set(put(tree, FIRST).written) == set(FIRST)
    assert contents(tree) == {**own, **FIRST}
    assert (tree.root / sample.NATIVE).stat().st_mode & 0o777 == 0o640
    put(tree, SECOND)
    source_tree.unapply(tree)
    assert sample.state(tree.root) == before
    assert not (tree.root / "aten/src/ATen/native/new").exists()


def test_a_second_apply_writes_nothing_so_that_ninja_rebuilds_nothing(tree: SourceTree) -> None:
    put(tree, FIRST)
    for path in tree.root.rglob("*"):
        if path.is_file():
            os.utime(path, (1_600_000_000, 1_600_000_000))
    changes = put(tree, FIRST)
    assert (changes.written, changes.unchanged) == ((), len(FIRST))
    assert {int(p.stat().st_mtime) for p in tree.root.rglob("*") if p.is_file()} == {1_600_000_000}


def test_only_what_changed_is_written_and_what_went_is_taken_back(tree: SourceTree) -> None:
    put(tree, FIRST)
    changes = put(tree, SECOND)
    assert changes.written == tuple(sorted({sample.NATIVE, OVERRIDES}))
    assert changes.removed == (KERNEL,) and not (tree.root / OVERRIDES).exists()
    changes = put(tree, {DEEP: FIRST[DEEP]})
    assert set(changes.restored) == {sample.NATIVE, OVERRIDES}
    (tree.root / DEEP).unlink()
    assert put(tree, {DEEP: FIRST[DEEP]}).written == (DEEP,), "made again"


def test_what_is_applied_is_not_read_and_a_restored_file_is_newer(tree: SourceTree) -> None:
    own = (tree.root / sample.NATIVE).read_text()
    os.utime(tree.root / sample.NATIVE, (1_600_000_000, 1_600_000_000))
    put(tree, FIRST)
    read = source_tree.reader(tree)
    assert (read(sample.NATIVE), read(KERNEL), read("version.txt")) == (own, None, "9.1.0a0\n")
    built = (tree.root / sample.NATIVE).stat().st_mtime_ns
    source_tree.unapply(tree)
    assert (tree.root / sample.NATIVE).stat().st_mtime_ns >= built, "than what was built from ours"


@pytest.mark.parametrize("killed", ["apply", "unapply"])
@pytest.mark.parametrize("finish", [FIRST, SECOND, None], ids=["first", "second", "unapply"])
def test_a_killed_run_is_finished_or_undone_by_the_next(
    tree: SourceTree, killed: str, finish: dict[str, bytes | None] | None
) -> None:
    upstream, own = sample.state(tree.root), contents(tree)
    put(tree, FIRST)

    def action() -> object:
        return put(tree, SECOND) if killed == "apply" else source_tree.unapply(tree)

    def recover(allowed: int) -> None:
        for name, data in contents(tree).items():
            assert data in (own.get(name), FIRST.get(name), SECOND.get(name)), (allowed, name)
        if finish is not None:
            put(tree, finish)
            expected = {**own, **finish}
            assert contents(tree) == {n: d for n, d in expected.items() if d is not None}, allowed
        if source_tree.store(tree.root).load():
            source_tree.unapply(tree)
        assert sample.state(tree.root) == upstream, allowed
        put(tree, FIRST)

    assert every_kill(action, tree.root, recover) > 10


@pytest.mark.parametrize("name", [KERNEL, sample.NATIVE])
@pytest.mark.parametrize("action", ["apply", "unapply"])
def test_edits_of_others_are_named_and_kept(tree: SourceTree, action: str, name: str) -> None:
    put(tree, FIRST)
    (tree.root / name).write_text("edited by hand")
    before = sample.state(tree.root)
    with pytest.raises(StateError, match="nothing was overwritten") as caught:
        put(tree, SECOND) if action == "apply" else source_tree.unapply(tree)
    assert name in caught.value.why and sample.state(tree.root) == before
    found = source_tree.status(tree)
    assert found and found.edited == (name,)


def test_a_file_of_ours_never_takes_the_place_of_one_of_upstreams(tree: SourceTree) -> None:
    before = sample.state(tree.root)
    with pytest.raises(CollisionError, match=r"Capital\.cpp"):
        added = frozenset({sample.CAPITAL})
        source_tree.apply(tree, {sample.CAPITAL: b"//\n"}, Path("/ours"), added=added)
    assert sample.state(tree.root) == before


def test_nothing_to_take_out_and_a_journal_that_cannot_be_read_are_named(tree: SourceTree) -> None:
    with pytest.raises(StateError, match="nothing is applied"):
        source_tree.unapply(tree)
    assert source_tree.status(tree) is None
    put(tree, FIRST)
    source_tree.store(tree.root).path.write_text("{}")
    with pytest.raises(StateError, match="journal"):
        source_tree.unapply(tree)


def git_tree(root: Path) -> SourceTree:
    sample.repository(root)
    return sourcetree.open_tree(root)


def test_git_sees_no_file_of_torchforks_own_and_a_clean_tree_after_unapply(tmp_path: Path) -> None:
    tree = git_tree(tmp_path / "clone")
    put(tree, FIRST)
    shown = sample.git(tree.root, "status", "--porcelain")
    assert sourcetree.STATE not in shown and KERNEL in shown
    source_tree.unapply(tree)
    assert sample.git(tree.root, "status", "--porcelain") == ""


def test_a_tree_that_moved_on_to_another_commit_with_ours_in_it_is_refused(tmp_path: Path) -> None:
    tree = git_tree(tmp_path / "clone")
    put(tree, FIRST)
    sample.git(tree.root, "commit", "-q", "--allow-empty", "-m", "next")
    moved = sourcetree.open_tree(tree.root)
    with pytest.raises(StateError, match="another commit") as caught:
        put(moved, SECOND)
    assert tree.commit and tree.commit in caught.value.next


def test_a_tree_that_was_reset_and_moved_on_takes_an_apply_again(tmp_path: Path) -> None:
    tree = git_tree(tmp_path / "clone")
    put(tree, FIRST)
    sample.git(tree.root, "checkout", "-q", "--", ".")
    sample.git(tree.root, "commit", "-q", "--allow-empty", "-m", "next")
    moved = sourcetree.open_tree(tree.root)
    assert set(put(moved, FIRST).written) == {sample.NATIVE}
    source_tree.unapply(moved)
    assert sample.git(tree.root, "status", "--porcelain") == ""


def test_edits_beside_ours_are_found_with_git_and_without(tmp_path: Path, tree: SourceTree) -> None:
    for each in (tree, git_tree(tmp_path / "clone")):
        put(each, FIRST)
        assert sourcetree.hand_edits(each, source_tree.applied_content(each)) == []
        (each.root / OVERRIDES).write_text("edited = 1\n")
        assert sourcetree.hand_edits(each, source_tree.applied_content(each)) == [OVERRIDES]


def test_a_tree_at_another_commit_than_pinned_is_refused_unless_told_otherwise(
    tmp_path: Path, tree: SourceTree
) -> None:
    assert tree.commit
    good = sample.pins(tmp_path / "pins", tree.commit)
    other = sample.pins(tmp_path / "pins", "0" * 40)
    assert sourcetree.require_pinned(tree, good, unpinned=False) == good.releases[0]
    with pytest.raises(BaseRefusedError, match="not at the commit") as caught:
        sourcetree.require_pinned(tree, other, unpinned=False)
    assert "0" * 40 in caught.value.why and "--unpinned" in caught.value.next
    assert sourcetree.require_pinned(tree, other, unpinned=True) is None


@pytest.mark.parametrize("missing", ["version.txt", "torchgen/gen.py", "tools/autograd"])
def test_what_is_no_tree_is_refused_with_what_it_lacks(tmp_path: Path, missing: str) -> None:
    sample.write(tmp_path)
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(BaseRefusedError, match=missing):
        sourcetree.open_tree(tmp_path)


@pytest.mark.parametrize(
    ("named", "backend"),
    [("setuptools.build_meta:__legacy__", "setuptools"),
     ("scikit_build_core.build", "scikit-build-core")],
)  # fmt: skip
def test_the_build_backend_is_read_off_the_tree(tree: SourceTree, named: str, backend: str) -> None:
    text = f'[build-system]\nbuild-backend = "{named}"\n'
    (tree.root / "pyproject.toml").write_text(text)
    assert tree.backend == backend
