"""Opens what --source names: a git clone, Debian's pieces, or a tree or tarball of the user's."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..util import files
from . import archives, debian, git
from . import tree as sourcetree
from .debian import OnWait, Progress
from .pins import DebianPins, Releases, debian_versions, load_debian
from .tree import SourceTree

LOCK_SECONDS = 3600.0


@dataclass(frozen=True)
class SourceCheckout:
    """A tree to build, and what came with it."""

    tree: SourceTree
    described: str
    prefix: Path | None = None  # unpacked packages
    pins: DebianPins | None = None


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    source: 'git', 'debian' or a path; version: a release, None for the one that the source implies.
    url: another repository than upstream's, for git.
    """

    source: str
    version: str | None
    url: str | None


def open_source(
    wanted: Wanted,
    releases: Releases,
    root: Path,
    cache: Path,
    environment: Mapping[str, str],
    progress: Progress,
    on_wait: OnWait,
) -> SourceCheckout:
    """Fetch or find the tree. root: where trees are kept that torchfork makes."""
    if wanted.source == "git":
        release = releases.get(wanted.version)
        place = git.clone(release, wanted.url, root, environment, progress, on_wait)
        return SourceCheckout(
            sourcetree.open_tree(place), f"git clone, commit {release.commit[:12]}"
        )
    if wanted.source == "debian":
        return _open_debian(wanted, root, cache, environment, progress, on_wait)
    return _open_path(wanted, releases, root, on_wait)


def _open_debian(
    wanted: Wanted,
    root: Path,
    cache: Path,
    environment: Mapping[str, str],
    progress: Progress,
    on_wait: OnWait,
) -> SourceCheckout:
    version = wanted.version or debian_versions()[-1]
    pins = load_debian(version)
    fetched = debian.fetch(pins, cache, environment, progress, on_wait)
    assembled = debian.assemble(pins, fetched, root, progress)
    size = sum(archive.size for archive in pins.archives)
    return SourceCheckout(
        assembled.tree,
        f"{len(pins.archives)} files, {size / 1e6:.0f} MB, sha256 as pinned",
        assembled.prefix,
        pins,
    )


def _open_path(wanted: Wanted, releases: Releases, root: Path, on_wait: OnWait) -> SourceCheckout:
    path = Path(wanted.source)
    if path.is_dir():
        tree = sourcetree.open_tree(path)
    elif path.is_file() and tarfile.is_tarfile(path):
        tree = _unpacked(path, root, on_wait)
    else:
        raise UsageError(
            "there is no such source" if not path.exists() else "this is neither tree nor tarball",
            where=wanted.source,
            next="--source git, --source debian, or the path of a tree or a tarball",
        )
    if wanted.version and releases.get(wanted.version).version != tree.version:
        raise UsageError(
            f"this is a tree of torch {tree.version}, not {wanted.version}",
            where=wanted.source,
            next="leave --torch out, or name another tree",
        )
    return with_pieces(tree)


def with_pieces(tree: SourceTree) -> SourceCheckout:
    """A tree on disk; one that was put together from Debian's pieces with what came with them."""
    described = f"torch {tree.version}, commit {(tree.commit or 'unknown')[:12]}"
    prefix = tree.root.parent / "prefix"
    if prefix.is_dir() and tree.version in debian_versions() and not tree.is_git:
        return SourceCheckout(tree, described, prefix, load_debian(tree.version))
    return SourceCheckout(tree, described)


def _unpacked(path: Path, root: Path, on_wait: OnWait) -> SourceTree:
    """A tarball's tree, unpacked once; its commit is not known, so --unpinned must take it."""
    sha256 = files.sha256_file(path)
    place = root / f"tarball-{sha256[:12]}"
    with files.lock(root / f"{place.name}.lock", f"unpacking {path.name}", on_wait, LOCK_SECONDS):
        if not place.is_dir():
            files.build_directory(place, lambda target: _fill(path, sha256, target))
    return sourcetree.open_tree(place / "tree")


def _fill(path: Path, sha256: str, target: Path) -> None:
    archives.unpack_tar(path, target / "tree")
    sourcetree.record_provenance(target / "tree", "", f"tarball {path.name}, sha256 {sha256}")
