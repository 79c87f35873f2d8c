"""A full tree of PyTorch's sources: its version and commit, its edits, and as a wheel has it.

A wheel carries the code generator with its data, the headers and the Python files at other places
than a tree. Laid out as a wheel, a tree serves the same code generator and the same list edits.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BaseRefusedError
from ..util import files, memo
from . import git
from .base import Base, Interpreter
from .pins import Release, Releases

# Where a tree keeps what a wheel keeps below torchgen/packaged; setup.py makes the same copies.
ATEN = "aten/src/ATen"
PACKAGED = {
    "torchgen/packaged/ATen/native/native_functions.yaml": f"{ATEN}/native/native_functions.yaml",
    "torchgen/packaged/ATen/native/tags.yaml": f"{ATEN}/native/tags.yaml",
    "torchgen/packaged/ATen/templates": f"{ATEN}/templates",
    "torchgen/packaged/autograd": "tools/autograd",
}
# By its place in a tree, where a wheel has it; the headers are those that list edits read.
MOVED = {
    **{own: packaged for packaged, own in PACKAGED.items()},
    **{
        name: f"torch/include/{name}"
        for name in ("torch/csrc/autograd/FunctionsManual.h", "torch/headeronly")
    },
}
# At the same place in both; torch/ is needed for the lists that upstream keeps by hand.
SAME = ("torchgen", "torch", "version.txt", "setup.py", "pyproject.toml")
# Of torch/ only what list edits and patches read; of the generator's own folders everything.
_KEPT = re.compile(r"\.(py|pyi|in|h)$")
# What an earlier build copied into the generator's package; it is made anew from its sources.
_COPIED = "torchgen/packaged/"
# What torchfork keeps in a tree: the journal of an apply, the originals, where the tree is from.
STATE = ".torchfork"
PROVENANCE = f"{STATE}/provenance.json"
# Stands for the sha256 of a file that is not there.
ABSENT = "gone"
_PARTS = ("version.txt", "setup.py", "torchgen/gen.py", *PACKAGED.values())
Read = Callable[[str], "str | None"]

Backend = Literal["setuptools", "scikit-build-core"]


@dataclass(frozen=True)
class Provenance:
    """Where an unpacked tree comes from, and what was in it."""

    commit: str  # '' where it is unknown
    source: str
    files: dict[str, str]  # sha256 by path


@dataclass(frozen=True)
class SourceTree:
    """A tree of PyTorch's sources.

    commit: the one that it is at; None where it is unknown.
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
        named = str(files.parse_toml(text).get("build-system", {}).get("build-backend", ""))
        if named.startswith("scikit_build_core"):
            return "scikit-build-core"
        return "setuptools"

    # Where torchfork keeps what it needs to take an apply back.
    state = files.Below(STATE)


def in_tree(packaged: str) -> str:
    """Where a source tree has what a wheel has at `packaged`; the rest is at the same path."""
    return _moved(packaged, PACKAGED)


def in_wheel(own: str) -> str:
    """Where a wheel has what a tree has at `own`; the rest is at the same path."""
    return _moved(own, MOVED)


def _moved(name: str, places: Mapping[str, str]) -> str:
    for old, new in places.items():
        if name == old or name.startswith(f"{old}/"):
            return new + name.removeprefix(old)
    return name


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
    # Not the repository that happens to contain the tree.
    known = None if is_git else _provenance(root)
    commit = git.commit_of(root) if is_git else (known.commit or None) if known else None
    return SourceTree(root, found[0], commit, is_git)


def _provenance(root: Path) -> Provenance | None:
    try:
        return memo.load(Provenance, files.read_json(root / PROVENANCE))
    except memo.MismatchError:
        return None


def record_provenance(root: Path, commit: str, source: str) -> None:
    """Write down the commit of an unpacked tree, and the sha256 of every file in it."""
    known = {
        path.relative_to(root).as_posix(): files.sha256_file(path)
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and path.relative_to(root).parts[0] != STATE
    }
    files.write_json(root / PROVENANCE, memo.dump(Provenance(commit, source, known)))


def require_pinned(tree: SourceTree, releases: Releases, *, unpinned: bool) -> Release | None:
    """The release whose commit the tree is at.

    Raises BaseRefusedError for any other tree unless `unpinned` says to take it; None then.
    """
    release = releases.by_commit(tree.commit) if tree.commit else None
    if unpinned or (release and release.version == tree.version):
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
        changed = git.changed_files(tree.root)
    else:
        known = _provenance(tree.root)
        recorded = known.files if known else {}
        changed = [name for name, text in recorded.items() if state_of(tree.root / name) != text]
    return sorted(name for name in changed if state_of(tree.root / name) not in ours.get(name, ()))


def state_of(path: Path) -> str:
    """A file's sha256, ABSENT where there is none."""
    return files.sha256_file(path) if path.is_file() else ABSENT


@dataclass(frozen=True)
class Mirror:
    """A copy of a tree's torchgen, without anything of ours, laid out as in site-packages."""

    root: Path
    fingerprint: str  # of all that is in it


def mirror_generator(
    tree: SourceTree, read: Read, target: Path, more: Sequence[str] = ()
) -> Mirror:
    """Make the copy, or bring it up to date.

    read: gives a file's text as the tree's commit has it, whatever is applied; None for a file that
    only an apply of ours has put there.
    more: files that `read` may know beyond those of the tree, such as patches add.
    """
    parts = ("torchgen", *PACKAGED.values())
    added = [name for name in more if name.startswith(tuple(f"{part}/" for part in parts))]
    names = [*_names(tree.root, parts), *(n for n in added if not n.startswith(_COPIED))]
    wanted = {in_wheel(name): text for name in names if (text := read(name)) is not None}
    for name, text in wanted.items():
        files.write_if_changed(target / name, text)
    for path in files.tree_files(target):
        if path.relative_to(target).as_posix() not in wanted:
            path.unlink()
    items = [part for item in sorted(wanted.items()) for part in item]
    return Mirror(target, files.sha256_text(*items))


def open_base(root: Path, interpreter: Interpreter, cache: Path) -> Base:
    """A tree as a base, for checks that need no library of it: a release that has no wheel yet."""
    tree = open_tree(root)
    names = _names(root, [*MOVED, *SAME])
    identity = files.fingerprint([root / name for name in names], root)
    laid_out = cache / "trees" / identity

    def fill(target: Path) -> None:
        for name in names:
            place = target / in_wheel(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, place)

    if not laid_out.is_dir():
        files.build_directory(laid_out, fill)
    return Base(
        root=laid_out,
        version=tree.version,
        git_version=tree.commit or "",
        identity=identity,
        interpreter=interpreter,
    )


def open_ref(ref: str, repository: str, interpreter: Interpreter, cache: Path) -> Base:
    """A branch, tag or commit of a git repository as a base, as `open_base` has it."""
    key = files.sha256_text(repository)[:16]
    place, lock = cache / "refs" / key, cache / "locks" / f"ref-{key}.lock"
    with files.lock(lock, f"fetching {ref}"):
        git.fetch_ref(place, repository, ref, [f"/{name}" for name in [*MOVED, *SAME]])
        return open_base(place, interpreter, cache)


def _names(root: Path, parts: Iterable[str]) -> list[str]:
    """The files below parts of a tree, by their paths; of torch/ what list edits read."""
    found: set[str] = set()
    for part in parts:
        place = root / part
        paths = files.tree_files(place) if place.is_dir() else [place] * place.is_file()
        kept = (p for p in paths if part != "torch" or _KEPT.search(p.name))
        found.update(path.relative_to(root).as_posix() for path in kept)
    return sorted(name for name in found if not name.startswith(_COPIED))
