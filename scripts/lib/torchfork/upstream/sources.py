"""Opens what --source names: a git clone, Debian's pieces, or a tree or tarball of the user's.

Debian's pieces come through the machine's own apt settings and are put together into a tree.
"""

from __future__ import annotations

import platform
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import (
    BaseRefusedError,
    DownloadError,
    HashMismatchError,
    ToolMissingError,
    UsageError,
)
from ..util import files, process
from . import archives, git
from . import tree as sourcetree
from .git import Progress
from .pins import Archive, DebianPins, Releases, debian_versions, load_debian
from .tree import SourceTree

MIRROR = "TORCHFORK_DEBIAN_MIRROR"
_HELPER = Path("/usr/lib/apt/apt-helper")


@dataclass(frozen=True)
class SourceCheckout:
    """A tree to build, and what came with it."""

    tree: SourceTree
    described: str
    prefix: Path | None = None  # Debian's unpacked packages: usr/include, usr/lib, usr/bin
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
) -> SourceCheckout:
    """Fetch or find the tree. root: where trees are kept that torchfork makes."""
    if wanted.source == "git":
        release = releases.get(wanted.version)
        place = git.clone(release, wanted.url, root, environment, progress)
        return SourceCheckout(
            sourcetree.open_tree(place), f"git clone, commit {release.commit[:12]}"
        )
    if wanted.source == "debian":
        pins = load_debian(wanted.version or debian_versions()[-1])
        fetched = fetch(pins, cache, environment, progress)
        return assemble(pins, fetched, root, progress)
    return _open_path(wanted, releases, root)


def _unpack_once(place: Path, purpose: str, fill: Callable[[Path], None]) -> SourceTree:
    """The tree in `place`/tree, which `fill` makes as a whole unless it is there."""
    with files.lock(place.with_name(f"{place.name}.lock"), purpose):
        if not place.is_dir():
            files.build_directory(place, fill)
    return sourcetree.open_tree(place / "tree")


def _open_path(wanted: Wanted, releases: Releases, root: Path) -> SourceCheckout:
    path = Path(wanted.source)
    if path.is_dir():
        tree = sourcetree.open_tree(path)
    elif path.is_file() and tarfile.is_tarfile(path):
        tree = _unpacked(path, root)
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


def _unpacked(path: Path, root: Path) -> SourceTree:
    """A tarball's tree, unpacked once; its commit is not known, so --unpinned must take it."""
    sha256 = files.sha256_file(path)

    def fill(target: Path) -> None:
        archives.unpack_tar(path, target / "tree")
        source = f"tarball {path.name}, sha256 {sha256}"
        sourcetree.record_provenance(target / "tree", "", source)

    return _unpack_once(root / f"tarball-{sha256[:12]}", f"unpacking {path.name}", fill)


# --- Debian


def mirrors(environment: Mapping[str, str]) -> list[str]:
    """Where Debian's archive is: as the user says, else as the machine's apt is set up."""
    if chosen := environment.get(MIRROR):
        return [chosen.rstrip("/")]
    if not shutil.which("apt-get"):
        raise ToolMissingError(
            "this machine has no apt, whose settings say where Debian's archive is",
            next=f"name a mirror: {MIRROR}=<the URL of the directory that holds pool/>",
        )
    listed = process.run(["apt-get", "indextargets", "--format", "$(SITE)"]).stdout
    sites = list(dict.fromkeys(line.strip().rstrip("/") for line in listed.splitlines()))
    # A security mirror has its own pool; it comes last, for it has hardly any of the files.
    sites.sort(key=lambda site: "security" in site)
    if not sites:
        raise ToolMissingError(
            "the machine's apt is set up with no archive",
            where="/etc/apt/sources.list, /etc/apt/sources.list.d",
            next=f"name a mirror: {MIRROR}=<the URL of the directory that holds pool/>",
        )
    return sites


def fetch(
    pins: DebianPins, cache: Path, environment: Mapping[str, str], progress: Progress
) -> dict[Archive, Path]:
    """Every pinned file, from the cache or a mirror; each is hashed before it gets its name.

    An interrupted run keeps the files that are complete. Raises DownloadError, HashMismatchError.
    """
    total = sum(archive.size for archive in pins.archives)
    found: dict[Archive, Path] = {}
    sites: list[str] = []
    with files.lock(cache / "locks" / "debian.lock", "fetching sources"):
        for archive in pins.archives:
            progress(sum(known.size for known in found), total, archive.name)
            place = cache / "sources" / archive.sha256 / archive.name
            if not place.is_file() or files.sha256_file(place) != archive.sha256:
                sites = sites or mirrors(environment)
                _fetch_one(archive, place, sites)
            found[archive] = place
    return found


def _fetch_one(archive: Archive, place: Path, sites: list[str]) -> None:
    failures = []
    with files.scratch_directory(place.parent) as scratch:
        partial = scratch / archive.name
        for site in sites:
            reason = _download(f"{site}/{archive.file}", partial)
            if not reason:
                break
            failures.append(f"{site}: {reason}")
        else:
            raise DownloadError(
                f"no mirror gave {archive.name}",
                where=archive.file,
                why="\n".join(failures),
                next=f"run the same command again, name another mirror with {MIRROR}=URL, or use "
                "another source: --source git, --source PATH",
            )
        sha256 = files.sha256_file(partial)
        if sha256 != archive.sha256:
            raise HashMismatchError(
                f"{archive.name} is not the pinned file",
                where=f"{site}/{archive.file}",
                why=f"sha256 {sha256}\npinned {archive.sha256}",
                next=f"run the same command again, or name another mirror with {MIRROR}=URL",
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(place)


def _download(url: str, target: Path) -> str:
    """Download by apt's own means, which know the machine's proxies; '' or why it failed."""
    if _HELPER.is_file() and not url.startswith("file:"):
        outcome = process.run([_HELPER, "download-file", url, target], check=False)
        errors = [line for line in outcome.stderr.splitlines() if line.startswith("E:")]
        return "" if outcome.returncode == 0 else " ".join(errors[:1]) or "apt-helper failed"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, target.open("wb") as out:
            shutil.copyfileobj(answer, out)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        return str(error)
    return ""


def assemble(
    pins: DebianPins, fetched: Mapping[Archive, Path], root: Path, progress: Progress
) -> SourceCheckout:
    """Put tree and packages together below `root`, completely or not at all; once.

    The directory's name says of which pins it is, so that changed pins make another one.
    """
    if platform.system() != "Linux" or platform.machine() != pins.machine:
        raise ToolMissingError(
            f"Debian's pieces are pinned for Linux on {pins.machine}",
            why=f"this is {platform.system()} on {platform.machine()}",
            next="use another source: --source git, --source PATH",
        )
    place = root / f"debian-{pins.version}-{pins.identity}"

    def fill(target: Path) -> None:
        _fill(pins, fetched, target, progress)

    tree = _unpack_once(place, "unpacking sources", fill)
    size = sum(archive.size for archive in pins.archives)
    described = f"{len(pins.archives)} files, {size / 1e6:.0f} MB, sha256 as pinned"
    return SourceCheckout(tree, described, place / "prefix", pins)


def _fill(
    pins: DebianPins, fetched: Mapping[Archive, Path], target: Path, progress: Progress
) -> None:
    count = len(pins.sources) + len(pins.packages)
    tree, prefix = target / "tree", target / "prefix"
    for done, source in enumerate(pins.sources):
        progress(done, count, source.archive.name)
        archives.unpack_tar(fetched[source.archive], tree / source.into, source.only)
    for done, package in enumerate(pins.packages, len(pins.sources)):
        progress(done, count, package.name)
        archives.unpack_deb(fetched[package], prefix)
    for directory in pins.directories:
        (tree / directory).mkdir(parents=True, exist_ok=True)
    for edit in pins.edits:
        _edit(tree / edit.file, edit.find, edit.replace, pins)
    _wrap_programs(prefix)
    try:
        sourcetree.record_provenance(tree, pins.commit, f"debian {pins.path.name}")
    except OSError as error:
        raise files.output_error(tree, error) from error


def _edit(path: Path, find: str, replace: str, pins: DebianPins) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(find) != 1:
        raise BaseRefusedError(
            "an edit of the pins does not match the sources",
            where=f"{pins.path}: {path.name}",
            why=f"the text occurs {text.count(find)} times, once is needed:\n{find}",
        )
    path.write_text(text.replace(find, replace), encoding="utf-8")


def _wrap_programs(prefix: Path) -> None:
    """Have each unpacked program find its libraries in the prefix, wherever that is."""
    for program in sorted((prefix / "usr" / "bin").glob("*")):
        if program.is_symlink() or not program.is_file():
            continue
        own = prefix / "usr" / "libexec" / "torchfork" / program.name
        own.parent.mkdir(parents=True, exist_ok=True)
        program.rename(own)
        program.write_text(
            "#!/bin/sh\n"
            'here=$(dirname -- "$(readlink -f -- "$0")")\n'
            'for d in "$here"/../lib/*/; do LD_LIBRARY_PATH=$d:$LD_LIBRARY_PATH; done\n'
            "export LD_LIBRARY_PATH\n"
            f'exec "$here/../libexec/torchfork/{program.name}" "$@"\n'
        )
        program.chmod(0o755)
