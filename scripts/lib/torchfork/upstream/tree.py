"""A full tree of PyTorch's sources: what it is, where its parts lie, and what commit it is at."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BaseRefusedError
from ..util import files, process
from .pins import Release, Releases

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

# Where a tree keeps what a wheel keeps below torchgen/packaged; setup.py makes the same copies.
ATEN = "aten/src/ATen"
PACKAGED = {
    "torchgen/packaged/ATen/native/native_functions.yaml": f"{ATEN}/native/native_functions.yaml",
    "torchgen/packaged/ATen/native/tags.yaml": f"{ATEN}/native/tags.yaml",
    "torchgen/packaged/ATen/templates": f"{ATEN}/templates",
    "torchgen/packaged/autograd": "tools/autograd",
}
# What torchfork keeps in a tree: the journal of an apply, the originals, where the tree is from.
STATE = ".torchfork"
PROVENANCE = f"{STATE}/provenance.json"
# Stands for the sha256 of a file that is not there.
ABSENT = "gone"
_PARTS = ("version.txt", "setup.py", "torchgen/gen.py", *PACKAGED.values())
_COMMIT = re.compile(r"[0-9a-f]{40}")

Backend = Literal["setuptools", "scikit-build-core"]


@dataclass(frozen=True)
class SourceTree:
    """A tree of PyTorch's sources.

    commit: the one that it is at; None where nothing tells.
    is_git: whether git keeps it. A tree that torchfork unpacked has a provenance file instead.
    """

    root: Path
    version: str  # '2.6.0', of version.txt without what follows it
    commit: str | None
    is_git: bool

    @property
    def backend(self) -> Backend:
        """What pyproject.toml names as its build backend."""
        text = (self.root / "pyproject.toml").read_text(encoding="utf-8")
        named = str(tomllib.loads(text).get("build-system", {}).get("build-backend", ""))
        if named.startswith("scikit_build_core"):
            return "scikit-build-core"
        return "setuptools"

    @property
    def state(self) -> Path:
        """Where torchfork keeps what it needs to take an apply back."""
        return self.root / STATE


def in_tree(packaged: str) -> str:
    """Where a source tree has what a wheel has at `packaged`; the rest is at the same path."""
    for theirs, ours in PACKAGED.items():
        if packaged == theirs or packaged.startswith(theirs + "/"):
            return ours + packaged.removeprefix(theirs)
    return packaged


def open_tree(root: Path) -> SourceTree:
    """The tree at `root`. Raises BaseRefusedError where there is none, or a part is missing."""
    root = root.resolve()
    missing = [name for name in _PARTS if not (root / name).exists()]
    if missing:
        raise BaseRefusedError(
            "this is not a tree of PyTorch's sources",
            where=str(root),
            why="it has no " + ", no ".join(missing),
            next="name the directory that holds version.txt and aten/, torch/ and torchgen/",
        )
    text = (root / "version.txt").read_text(encoding="utf-8").strip()
    found = re.match(r"\d+\.\d+\.\d+", text)
    if not found:
        raise BaseRefusedError(
            "the tree's version cannot be read", where=str(root / "version.txt"), why=text
        )
    is_git = (root / ".git").exists()
    commit = _git_commit(root) if is_git else _recorded_commit(root)
    return SourceTree(root, found[0], commit, is_git)


def _git_commit(root: Path) -> str | None:
    # Not the repository that happens to lie around the tree.
    told = process.run(["git", "-C", root, "rev-parse", "HEAD"], check=False).stdout.strip()
    return told if _COMMIT.fullmatch(told) else None


def _recorded_commit(root: Path) -> str | None:
    known = files.read_json(root / PROVENANCE)
    commit = known.get("commit") if isinstance(known, dict) else None
    return commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None


def record_provenance(root: Path, commit: str, source: str) -> None:
    """Write down the commit of an unpacked tree, and the sha256 of every file in it."""
    known = {path.relative_to(root).as_posix(): files.sha256_file(path) for path in _all(root)}
    told = {"commit": commit, "source": source, "files": known}
    files.write_json(root / PROVENANCE, told)


def _all(root: Path) -> list[Path]:
    found = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())
    return [path for path in found if path.relative_to(root).parts[0] != STATE]


def require_pinned(tree: SourceTree, releases: Releases, *, unpinned: bool) -> Release | None:
    """The release whose commit the tree is at.

    Raises BaseRefusedError for any other tree unless `unpinned` says to take it; None then.
    """
    release = releases.by_commit(tree.commit) if tree.commit else None
    if release and release.version == tree.version:
        return release
    if unpinned:
        return release
    expected = next((r.commit for r in releases.releases if r.version == tree.version), None)
    raise BaseRefusedError(
        f"this tree of torch {tree.version} is not at the commit that is pinned",
        where=str(tree.root),
        why=f"tree:   {tree.commit or 'its commit is unknown'}\n"
        f"pinned: {expected or f'no release {tree.version} ({releases.path})'}",
        next=f"git checkout {expected}, or say --unpinned to take the tree as it is"
        if expected
        else "say --unpinned to take the tree as it is",
    )


def hand_edits(tree: SourceTree, ours: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Files that differ from the tree's commit, other than by an apply of ours; sorted.

    ours: sha256 of everything that an apply has put into a file, by the file's path.
    """
    if tree.is_git:
        changed = _changed_by_git(tree.root)
    else:
        known = files.read_json(tree.root / PROVENANCE)
        recorded = known.get("files", {}) if isinstance(known, dict) else {}
        changed = [
            name for name, sha256 in recorded.items() if state_of(tree.root / name) != sha256
        ]
    return sorted(name for name in changed if not _is_ours(tree.root / name, ours.get(name, ())))


def _changed_by_git(root: Path) -> list[str]:
    command: list[str | Path] = ["git", "-C", root, "status", "--porcelain", "-z"]
    told = process.run([*command, "--untracked-files=no", "--ignore-submodules=none"]).stdout
    return [entry[3:] for entry in told.split("\0") if len(entry) > 3]


def _is_ours(path: Path, ours: tuple[str, ...]) -> bool:
    return bool(ours) and state_of(path) in ours


def state_of(path: Path) -> str:
    """A file's sha256, ABSENT where there is none."""
    return files.sha256_file(path) if path.is_file() else ABSENT
