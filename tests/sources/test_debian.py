"""The Debian source for real: fetched, the additions applied, updated, and taken out again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from command import Command

YAML = "aten/src/ATen/native/native_functions.yaml"
KERNEL = "aten/src/ATen/native/Gdh.cpp"


def content(tree: Path) -> dict[str, str]:
    """Each file of the tree but torchfork's own notes."""
    found = {}
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if name.startswith(".torchfork/") or path.is_dir():
            continue
        data = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        found[name] = f"{path.lstat().st_mode:o} {hashlib.sha256(data).hexdigest()}"
    return found


def times(tree: Path, names: list[str]) -> dict[str, int]:
    return {name: (tree / name).stat().st_mtime_ns for name in names}


@pytest.fixture(scope="module")
def pristine(debian: Path) -> dict[str, str]:
    return content(debian)


@pytest.fixture(scope="module")
def changed(torchfork: Command, debian: Path, pristine: dict[str, str]) -> list[str]:
    """The files that an apply changes or brings."""
    answer = torchfork.run("apply", debian)
    assert answer.code == 0, answer.err
    after = content(debian)
    return sorted(name for name in after if after[name] != pristine.get(name))


def test_the_pieces_make_the_pinned_release(torchfork: Command, debian: Path) -> None:
    answer = torchfork.run("status", debian)
    assert answer.code == 0 and "torch 2.6.0, commit 2236df1770800ffea56" in answer.out
    assert "(as pinned)" in answer.out


def test_additions_are_put_where_upstream_would_put_them(debian: Path, changed: list[str]) -> None:
    assert {YAML, "tools/autograd/derivatives.yaml", KERNEL} <= set(changed)
    assert "- func: gdh(Tensor(a) self) -> Tensor(a)" in (debian / YAML).read_text()
    assert (debian / "torch/nn/modules/depthwise_ext.py").is_file()


def test_a_second_apply_writes_nothing(
    torchfork: Command, debian: Path, changed: list[str]
) -> None:
    before = times(debian, changed)
    answer = torchfork.run("apply", debian)
    assert answer.code == 0 and " 0 files written" in answer.err
    assert times(debian, changed) == before


def test_unapply_gives_the_tree_back_bit_for_bit(
    torchfork: Command, debian: Path, pristine: dict[str, str], changed: list[str]
) -> None:
    answer = torchfork.run("unapply", debian)
    assert answer.code == 0, answer.err
    assert content(debian) == pristine
