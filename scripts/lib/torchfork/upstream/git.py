"""PyTorch's sources from git: a shallow clone of the pinned commit with its submodules."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import BaseRefusedError, DownloadError, HashMismatchError, ToolMissingError
from ..util import files, process
from . import debian_pins
from . import tree as sourcetree
from .pins import Release
from .tree import SourceTree

UPSTREAM = "https://github.com/pytorch/pytorch.git"
URL = "TORCHFORK_GIT_URL"
LOCK_SECONDS = 3600.0
_NO_HOST = re.compile(
    r"Could not resolve host|unable to access|Connection (refused|timed out)|Network is unreachable"
    r"|Could not read from remote|does not appear to be a git repository|early EOF"
    r"|not found|Operation timed out|Failed to connect|unexpected disconnect|Could not connect"
)
Progress = Callable[[int, int, str], None]
OnWait = Callable[[str], None]


def clone(
    release: Release,
    url: str | None,
    root: Path,
    environment: Mapping[str, str],
    progress: Progress,
    on_wait: OnWait,
) -> SourceTree:
    """The clone of a release's commit, made, gone on with, or taken as it is.

    url: another repository than upstream's: a mirror, or a local one; else TORCHFORK_GIT_URL.
    Raises DownloadError where it cannot be reached, HashMismatchError where it gave another commit,
    BaseRefusedError for a submodule that is missing or at another commit than the tree says.
    """
    source = url or environment.get(URL) or UPSTREAM
    place = root / f"git-{release.version}-{release.commit[:12]}"
    guard = root / f"{place.name}.lock"
    with files.lock(guard, f"cloning torch {release.version}", on_wait, LOCK_SECONDS):
        _fetch_commit(release, source, place, progress)
        _fetch_submodules(release, source, place, progress)
    tree = sourcetree.open_tree(place)
    require_submodules(tree)
    return tree


def _fetch_commit(release: Release, source: str, place: Path, progress: Progress) -> None:
    """Fetch the commit by its own name: a tag may be moved, a commit cannot be."""
    if not (place / ".git").is_dir():
        place.mkdir(parents=True, exist_ok=True)
        _git(place, "init", "--quiet", what="make a repository", release=release, source=source)
    if _is_at(place, release.commit):
        return
    # A fetch that broke off is begun again; objects that git has kept are not sent twice.
    if not _has(place, release.commit):
        progress(0, 0, f"commit {release.commit[:12]} from {source}")
        _git(
            place, "fetch", "--quiet", "--depth=1", "--no-tags", source, release.commit,
            what=f"fetch torch {release.version}", release=release, source=source,
        )  # fmt: skip
    if not _has(place, release.commit):
        raise _without_commit(release, source)
    # Anything but a clean first checkout would lose edits.
    _git(
        place, "-c", "advice.detachedHead=false", "checkout", "--quiet", release.commit,
        what="check the commit out", release=release, source=source,
    )  # fmt: skip


def _without_commit(release: Release, source: str) -> HashMismatchError:
    return HashMismatchError(
        f"the repository does not have the pinned commit of torch {release.version}",
        where=source,
        why=f"pinned {release.commit}",
        next="name another repository with --git-url URL;\n"
        f"other sources of torch {release.version}: {debian_or_path(release.version)}",
    )


def _fetch_submodules(release: Release, source: str, place: Path, progress: Progress) -> None:
    if not (place / ".gitmodules").is_file():
        return
    waiting = [line for line in _submodules(place) if line[0] != " "]
    if not waiting:
        return
    progress(0, 0, f"{len(waiting)} submodules")
    # Shallow, each at the commit that the tree names; those that are there are left alone.
    _git(
        place, "submodule", "--quiet", "update", "--init", "--recursive", "--depth=1", "--jobs=4",
        what="fetch the submodules", release=release, source=source,
    )  # fmt: skip


def require_submodules(tree: SourceTree) -> None:
    """Refuse a tree one of whose submodules is missing or at another commit than it says."""
    if not (tree.root / ".gitmodules").is_file():
        return
    states = {"-": "is not there", "+": "is at another commit", "U": "has merge conflicts"}
    wrong = [
        f"{line[1:].split()[1]} {states.get(line[0], 'is in an unknown state')}"
        for line in _submodules(tree.root)
        if line[0] != " "
    ]
    if wrong:
        raise BaseRefusedError(
            f"{len(wrong)} submodule{'s' * (len(wrong) > 1)} of the tree cannot be built from",
            where=str(tree.root),
            why="\n".join(wrong[:10]),
            next=f"git -C {tree.root} submodule update --init --recursive --depth=1",
        )


def _submodules(place: Path) -> list[str]:
    """git's own lines: a state letter, the commit, the path."""
    outcome = process.run(["git", "-C", place, "submodule", "status", "--recursive"], check=False)
    return [line for line in outcome.stdout.splitlines() if line]


def _is_at(place: Path, commit: str) -> bool:
    told = process.run(["git", "-C", place, "rev-parse", "--verify", "HEAD"], check=False)
    return told.stdout.strip() == commit and (place / "version.txt").is_file()


def _has(place: Path, commit: str) -> bool:
    command: list[str | Path] = ["git", "-C", place, "cat-file", "-e", f"{commit}^{{tree}}"]
    return process.run(command, check=False).returncode == 0


def _git(place: Path, *arguments: str, what: str, release: Release, source: str) -> None:
    # Never a prompt for a password: an address that wants one is told as such.
    environment = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        command: list[str | Path] = ["git", "-C", place, *arguments]
        outcome = process.run(command, check=False, env=environment)
    except ToolMissingError as error:
        raise ToolMissingError(
            "no git", where="PATH", next="apt-get install git, or --source debian"
        ) from error
    if outcome.returncode == 0:
        return
    said = "\n".join(outcome.stderr.strip().splitlines()[-4:])
    if files.DISK_FULL in said:
        raise files.output_error(place, OSError(28, os.strerror(28)))
    if "not our ref" in said and release.commit in said:
        raise _without_commit(release, source)
    if _NO_HOST.search(said):
        raise DownloadError(
            f"cannot {what}: the repository cannot be reached, or the connection broke off",
            where=source,
            why=said,
            next="run the same command again, it goes on from there; or name another repository "
            f"with --git-url URL or {URL};\nother sources of torch {release.version}: "
            + debian_or_path(release.version),
        )
    raise DownloadError(
        f"cannot {what}", where=outcome.command, why=said,
        next="run the same command again, or name another repository with --git-url URL",
    )  # fmt: skip


def debian_or_path(version: str) -> str:
    """The other sources that carry a release, as options."""
    carried = ["--source debian"] if version in debian_pins.versions() else []
    return ", ".join([*carried, "--source PATH (a tree or a tarball that you have)"])
