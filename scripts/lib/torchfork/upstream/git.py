"""Git: a release's commit cloned with its submodules, a ref fetched in part, what a tree is at."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseRefusedError, DownloadError, HashMismatchError, ToolMissingError
from ..util import files, process
from .pins import Release, debian_versions

UPSTREAM = "https://github.com/pytorch/pytorch.git"
URL = "TORCHFORK_GIT_URL"
COMMIT = re.compile(r"[0-9a-f]{40}")
_NO_HOST = re.compile(
    r"Could not resolve host|unable to access|Connection (refused|timed out)|Network is unreachable"
    r"|Could not read from remote|does not appear to be a git repository|early EOF"
    r"|not found|Operation timed out|Failed to connect|unexpected disconnect|Could not connect"
)
Progress = Callable[[int, int, str], None]


def run(place: Path, *arguments: str) -> process.Outcome:
    """Run git in a directory, without prompts: an address that wants a password fails."""
    try:
        return process.run(
            ["git", "-C", place, *arguments], check=False,
            env={"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        )  # fmt: skip
    except ToolMissingError as error:
        raise ToolMissingError(
            "no git", where="PATH", next="apt-get install git, or --source debian"
        ) from error


def commit_of(place: Path) -> str | None:
    """The commit that is checked out; None where git knows none."""
    head = run(place, "rev-parse", "--verify", "HEAD").stdout.strip()
    return head if COMMIT.fullmatch(head) else None


def changed_files(place: Path) -> list[str]:
    """The tracked files that differ from the commit, submodules among them."""
    options = ("--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=none")
    listed = run(place, "status", *options).stdout
    return [entry[3:] for entry in listed.split("\0") if len(entry) > 3]


def tag_commit(version: str, repository: str) -> str | None:
    """The commit of upstream's tag; None where upstream cannot be reached.

    Raises DownloadError where it can be reached and has no such tag.
    """
    names = [f"refs/tags/v{version}", f"refs/tags/v{version}^{{}}"]
    outcome = run(Path(), "ls-remote", repository, *names)
    if outcome.returncode:
        return None
    listed = (line.partition("\t") for line in outcome.stdout.splitlines())
    commits = {name: commit for commit, _, name in listed}
    commit = commits.get(names[1]) or commits.get(names[0])
    if commit is None:
        raise DownloadError(
            f"upstream has no tag v{version}",
            where=outcome.command,
            next="wait for the tag, or check the version",
        )
    return commit


def fetch_ref(place: Path, repository: str, ref: str, patterns: Sequence[str]) -> None:
    """Check a branch, tag or commit out in `place`, as far as the sparse-checkout patterns go."""
    commands: list[tuple[str, ...]] = []
    if not (place / ".git").is_dir():
        place.mkdir(parents=True, exist_ok=True)
        commands += [("init", "--quiet"), ("sparse-checkout", "set", "--no-cone", *patterns)]
    commands += [
        # Blobs come as they are needed: the history and the third of a GB that is not read stay.
        ("fetch", "--quiet", "--depth=1", "--filter=blob:none", repository, ref),
        ("config", "remote.origin.url", repository),
        ("config", "remote.origin.promisor", "true"),
        ("config", "remote.origin.partialclonefilter", "blob:none"),
        ("checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"),
    ]
    for command in commands:
        outcome = run(place, *command)
        if outcome.returncode:
            raise DownloadError(
                "git could not fetch upstream's sources",
                where=outcome.command,
                why=_end(outcome),
                next="check the ref and the network, or name a checkout of your own: --onto DIR",
            )


def clone(
    release: Release,
    url: str | None,
    root: Path,
    environment: Mapping[str, str],
    progress: Progress,
) -> Path:
    """The shallow clone of a release's commit below `root`: made, resumed, or taken as it is.

    url: another repository than upstream's: a mirror, or a local one; else TORCHFORK_GIT_URL.
    Raises DownloadError where it cannot be reached, HashMismatchError where it gave another commit,
    BaseRefusedError for a submodule that is missing or at another commit than the tree says.
    """
    source = url or environment.get(URL) or UPSTREAM
    place = root / f"git-{release.version}-{release.commit[:12]}"
    guard = root / f"{place.name}.lock"
    with files.lock(guard, f"cloning torch {release.version}"):
        _Clone(release, source, place).complete(progress)
    require_submodules(place)
    return place


@dataclass(frozen=True)
class _Clone:
    """A clone being made, and what failures of its steps mean."""

    release: Release
    source: str
    place: Path

    def complete(self, progress: Progress) -> None:
        """Fetch what is missing; the commit by its own name: a tag may be moved."""
        place, commit = self.place, self.release.commit
        if not (place / ".git").is_dir():
            place.mkdir(parents=True, exist_ok=True)
            self._git("make a repository", "init", "--quiet")
        if commit_of(place) != commit or not (place / "version.txt").is_file():
            # A fetch that broke off starts again; objects that git has are not sent twice.
            if run(place, "cat-file", "-e", f"{commit}^{{tree}}").returncode:
                progress(0, 0, f"commit {commit[:12]} from {self.source}")
                shallow = ("fetch", "--quiet", "--depth=1", "--no-tags")
                self._git(f"fetch torch {self.release.version}", *shallow, self.source, commit)
            # Without --force: it would lose edits.
            quiet = ("-c", "advice.detachedHead=false", "checkout", "--quiet")
            self._git("check the commit out", *quiet, commit)
        waiting = [line for line in _submodules(place) if line[0] != " "]
        if waiting:
            progress(0, 0, f"{len(waiting)} submodules")
            # Shallow, each at the commit that the tree names; complete ones are left alone.
            options = ("--quiet", "update", "--init", "--recursive", "--depth=1", "--jobs=4")
            self._git("fetch the submodules", "submodule", *options)

    def _git(self, what: str, *arguments: str) -> None:
        outcome = run(self.place, *arguments)
        if outcome.returncode == 0:
            return
        why = _end(outcome)
        if files.DISK_FULL in why:
            raise files.output_error(self.place, OSError(28, os.strerror(28)))
        others = f"name another repository with --git-url URL or {URL}"
        sources = _other_sources(self.release.version)
        if "not our ref" in why and self.release.commit in why:
            raise HashMismatchError(
                f"the repository does not have the pinned commit of torch {self.release.version}",
                where=self.source,
                why=f"pinned {self.release.commit}",
                next=f"{others};\n{sources}",
            )
        if _NO_HOST.search(why):
            raise DownloadError(
                f"cannot {what}: the repository cannot be reached, or the connection broke off",
                where=self.source,
                why=why,
                next=f"run the same command again, it resumes; or {others};\n{sources}",
            )
        raise DownloadError(
            f"cannot {what}", where=outcome.command, why=why,
            next=f"run the same command again, or {others}",
        )  # fmt: skip


def require_submodules(root: Path) -> None:
    """Refuse a tree one of whose submodules is missing or at another commit than it says."""
    states = {"-": "is missing", "+": "is at another commit", "U": "has merge conflicts"}
    wrong = [
        f"{line[1:].split()[1]} {states.get(line[0], 'is in an unknown state')}"
        for line in _submodules(root)
        if line[0] != " "
    ]
    if wrong:
        raise BaseRefusedError(
            f"{len(wrong)} submodule{'s' * (len(wrong) > 1)} of the tree cannot be built from",
            where=str(root),
            why="\n".join(wrong[:10]),
            next=f"git -C {root} submodule update --init --recursive --depth=1",
        )


def _submodules(place: Path) -> list[str]:
    """git's own lines: a state letter, the commit, the path."""
    if not (place / ".gitmodules").is_file():
        return []
    return [line for line in run(place, "submodule", "status", "--recursive").stdout.splitlines()
            if line]  # fmt: skip


def _end(outcome: process.Outcome) -> str:
    return "\n".join(outcome.stderr.strip().splitlines()[-5:])


def _other_sources(version: str) -> str:
    """The other sources that carry a release, as options."""
    carried = ["--source debian"] if version in debian_versions() else []
    listed = ", ".join([*carried, "--source PATH (a tree or a tarball that you have)"])
    return f"other sources of torch {version}: {listed}"
