"""The pins of a release from Debian's archive: what ci/debian-<version>.toml says."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnknownReleaseError, UsageError
from ..util import files
from .pins import PINS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

DIRECTORY = PINS.parent
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"pool/[\w.+~/-]+")


@dataclass(frozen=True)
class Archive:
    """A file of Debian's archive, by its path below a mirror."""

    file: str
    sha256: str
    size: int  # bytes

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.file.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """An archive of sources and where in the tree it goes."""

    archive: Archive
    into: str  # a directory of the tree, '' for the tree itself
    only: str  # the directory of the archive that is taken, '' for all of it


@dataclass(frozen=True)
class Edit:
    """A text that is replaced once in a file of the tree."""

    file: str
    find: str
    replace: str
    reason: str


@dataclass(frozen=True)
class Requirement:
    """A wheel of the build environment: 'name==version', and the sha256 of its builds."""

    name: str
    sha256: tuple[str, ...]

    @property
    def line(self) -> str:
        """The line of a requirements file that pip's --require-hashes accepts."""
        return " ".join([self.name, *(f"--hash=sha256:{value}" for value in self.sha256)])


@dataclass(frozen=True)
class Option:
    """A variable of the build's environment that the tree needs."""

    name: str
    value: str  # {prefix} in it stands for the unpacked packages
    reason: str


@dataclass(frozen=True)
class DebianPins:
    """Every piece of a release."""

    path: Path
    version: str
    commit: str
    machine: str
    sources: tuple[Source, ...]
    packages: tuple[Archive, ...]
    edits: tuple[Edit, ...]
    directories: tuple[str, ...]
    options: tuple[Option, ...]
    requirements: tuple[Requirement, ...]

    @property
    def identity(self) -> str:
        """What a tree is put together from; the build's options are no part of it."""
        parts = [repr(part) for part in (self.sources, self.packages, self.edits)]
        return files.sha256_text(self.commit, *parts, *self.directories)[:12]

    @property
    def archives(self) -> tuple[Archive, ...]:
        """Every file that is fetched, once."""
        every = [*(source.archive for source in self.sources), *self.packages]
        return tuple(dict.fromkeys(every))


def versions() -> list[str]:
    """The releases that Debian's archive carries."""
    return sorted(path.stem.partition("-")[2] for path in DIRECTORY.glob("debian-*.toml"))


def load(version: str) -> DebianPins:
    """The pins of a release. Raises UnknownReleaseError where Debian carries none."""
    path = DIRECTORY / f"debian-{version}.toml"
    if not path.is_file():
        raise UnknownReleaseError(
            f"Debian's archive carries no torch {version} that is pinned",
            where=str(DIRECTORY),
            why=f"pinned from there: {', '.join(versions())}",
            next=f"--torch {versions()[-1]}, or another source: --source git, --source PATH"
            if versions()
            else "use another source: --source git, --source PATH",
        )
    try:
        return _parsed(path, tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "the pins are malformed",
            where=str(path),
            why=f"{type(error).__name__}: {error}",
            next=f"compare with the file's last committed version: git diff {path.name}",
        ) from error


def _parsed(path: Path, data: dict[str, Any]) -> DebianPins:
    return DebianPins(
        path=path,
        version=str(data["version"]),
        commit=str(data["commit"]),
        machine=str(data["machine"]),
        sources=tuple(
            Source(_archive(entry), _inside(entry["into"]), entry.get("only", ""))
            for entry in data["source"]
        ),
        packages=tuple(_archive(entry) for entry in data.get("package", [])),
        edits=tuple(
            Edit(_inside(entry["file"]), entry["find"], entry["replace"], entry["reason"])
            for entry in data.get("edit", [])
        ),
        directories=tuple(_inside(entry["path"]) for entry in data.get("directory", [])),
        options=tuple(
            Option(entry["name"], entry["value"], entry["reason"])
            for entry in data.get("setting", [])
        ),
        requirements=tuple(
            Requirement(entry["name"], tuple(_hash(value) for value in entry["sha256"]))
            for entry in data.get("requirement", [])
        ),
    )


def _archive(entry: dict[str, Any]) -> Archive:
    if not _FILE.fullmatch(entry["file"]) or ".." in entry["file"]:
        raise ValueError(f"not the path of a file in an archive: {entry['file']!r}")
    return Archive(entry["file"], _hash(entry["sha256"]), int(entry["size"]))


def _hash(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise ValueError(f"a sha256 is 64 hexadecimal digits, not {value!r}")
    return value


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"leads out of the tree: {path!r}")
    return path
