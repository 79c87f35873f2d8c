"""The pins in ci/: known releases with their commits and wheels, Debian's pieces; all by sha256."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from ..errors import UnknownReleaseError, UsageError
from ..util import files

PINS = Path(__file__).resolve().parents[4] / "ci" / "releases.toml"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_POOL = re.compile(r"pool/[\w.+~/-]+")
_Parsed = TypeVar("_Parsed")


def interpreter_tag(python: str, abi: str) -> str:
    """'cp314t' for a wheel of cp314-cp314t, which only a free-threaded Python runs; else python."""
    return abi if abi == f"{python}t" else python


def python_number(tag: str) -> int:
    """314 of 'cp314' and of 'cp314t', to sort and to compare by."""
    return int(tag.strip("cpt"))


def python_version(tag: str) -> str:
    """'3.14' of 'cp314', '3.14t' of 'cp314t'."""
    return re.sub(r"^cp(\d)", r"\1.", tag)


def in_order(tags: Iterable[str]) -> list[str]:
    """Interpreters' tags, oldest first: 'cp39', 'cp314', 'cp314t'."""
    return sorted(tags, key=lambda tag: (python_number(tag), tag))


@dataclass(frozen=True)
class WheelName:
    """What a wheel's file name says; the build number is left out, it is no part of a base."""

    project: str
    version: str  # local part included: '2.13.0+cpu'
    python: str  # 'cp311'
    abi: str
    platform: str  # 'manylinux_2_28_x86_64'; several are joined by dots

    @classmethod
    def parse(cls, file: str) -> WheelName:
        """Raises packaging's InvalidWheelFilename."""
        project, version, _, _ = parse_wheel_filename(file)
        # As they stand there: packaging has them as a set, which has no order.
        return cls(project, str(version), *file.removesuffix(".whl").split("-")[-3:])

    @property
    def interpreter(self) -> str:
        """What it runs on, as Interpreter.tag says it: 'cp311', 'cp314t' where free-threaded."""
        return interpreter_tag(self.python, self.abi)

    @property
    def tag(self) -> str:
        """'cp311-cp311-manylinux_2_28_x86_64'."""
        return f"{self.python}-{self.abi}-{self.platform}"


@dataclass(frozen=True)
class WheelPin:
    """One official wheel: its file name and the sha256 of its bytes."""

    file: str
    sha256: str

    @cached_property
    def name(self) -> WheelName:
        """What the file name says."""
        return WheelName.parse(self.file)

    def runs_on(self, system: str, machine: str) -> bool:
        """Whether the wheel is for this system and machine, as the platform module names them."""
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
        if system == "Darwin":
            arch = "arm64" if machine == "aarch64" else machine
            return self.name.platform.startswith("macosx_") and self.name.platform.endswith(arch)
        return "linux" in self.name.platform and self.name.platform.endswith(f"_{machine}")


@dataclass(frozen=True)
class Release:
    """An upstream release: its version, its commit and the wheels that were built from it."""

    version: str
    commit: str
    wheels: tuple[WheelPin, ...]

    def wheels_for(self, python_tag: str, system: str, machine: str) -> tuple[WheelPin, ...]:
        """The pinned wheels for one Python and one machine; more than one where builds differ."""
        return tuple(
            pin
            for pin in self.wheels
            if pin.name.interpreter == python_tag and pin.runs_on(system, machine)
        )

    def python_tags(self, system: str, machine: str) -> list[str]:
        """The Python tags that this machine has wheels for, oldest first."""
        found = (pin for pin in self.wheels if pin.runs_on(system, machine))
        return in_order({pin.name.interpreter for pin in found})


@dataclass(frozen=True)
class Releases:
    """All pinned releases, and the file that they were read from."""

    path: Path
    default: str
    releases: tuple[Release, ...]

    @property
    def versions(self) -> list[str]:
        """The pinned versions, oldest first."""
        return [release.version for release in self.releases]

    def get(self, version: str | None = None) -> Release:
        """The release of a version, local part ignored; the default one without a version."""
        wanted = (version or self.default).strip().removeprefix("v").partition("+")[0]
        for release in self.releases:
            if release.version == wanted:
                return release
        raise UnknownReleaseError(
            f"torch {wanted} is not pinned; pinned are {', '.join(self.versions)}",
            where=str(self.path),
            why="a base is trusted by the commit and the sha256 that stand in this file",
            next="choose one with --torch VERSION, or give a wheel's path to "
            "'scripts/torchfork pin WHEEL' to add its release",
        )

    def by_commit(self, commit: str) -> Release | None:
        """The release that a commit belongs to."""
        return next((r for r in self.releases if r.commit == commit), None)

    def by_sha256(self, sha256: str) -> tuple[Release, WheelPin] | None:
        """The release and the pin of a wheel's bytes."""
        for release in self.releases:
            for pin in release.wheels:
                if pin.sha256 == sha256:
                    return release, pin
        return None

    def by_file(self, name: str) -> tuple[WheelPin, ...]:
        """The pins that carry a file name."""
        return tuple(pin for r in self.releases for pin in r.wheels if pin.file == name)


def load(path: Path | None = None) -> Releases:
    """Read and check the releases; the project's own ci/releases.toml by default."""
    path = path or PINS
    releases = _parsed(path, _read(path), _releases)
    releases.get()
    return releases


def _releases(path: Path, data: dict[str, Any]) -> Releases:
    releases = []
    for entry in data["release"]:
        version, commit = str(entry["version"]), str(entry["commit"])
        if not _COMMIT.fullmatch(commit):
            raise ValueError(f"{version}: a commit is 40 hexadecimal digits, not {commit!r}")
        releases.append(Release(version, commit, tuple(_pin(wheel) for wheel in entry["wheels"])))
    return Releases(path, str(data["default"]), tuple(releases))


def _pin(entry: dict[str, str]) -> WheelPin:
    pin = WheelPin(entry["file"], _hash(entry["sha256"]))
    if not re.fullmatch(r"torch-[\w.+]+(-\d\w*)?-cp\d+-\w+-[\w.]+\.whl", pin.file):
        raise ValueError(f"not the name of a torch wheel: {pin.file!r}")
    return pin


def add(releases: Releases, release: Release) -> Releases:
    """Write a release, or further wheels of a known one, into the file; the pins as they are then.

    Everything else in the file stays as it is, its mode and line ends too; a link is followed.
    Runs at the same time wait for one another, and each sees what the others added.
    Raises UsageError where the release is known with another commit.
    """
    target = releases.path.resolve()
    lock = target.with_name(f".{target.name}.lock")
    with files.lock(lock, "pinning", timeout=60):
        current = load(releases.path)
        new = [pin for pin in release.wheels if not current.by_sha256(pin.sha256)]
        if not new:
            return current
        if release.version in current.versions:
            commit = current.get(release.version).commit
            if commit != release.commit:
                raise UsageError(
                    f"this wheel's commit is not that of the pinned {release.version}",
                    where=new[0].file,
                    why=f"wheel: {release.commit}\npinned: {commit}",
                    next="get the wheel from the official index, or correct the release's commit",
                )
        text = target.read_bytes().decode()
        line_end = "\r\n" if "\r\n" in text else "\n"
        edited = _edited(text.replace("\r\n", "\n"), release, new)
        pinned = _parsed(releases.path, edited, _releases)
        mode = stat.S_IMODE(target.stat().st_mode)
        files.write_text(target, edited.replace("\n", line_end), mode)
        return pinned


def _edited(text: str, release: Release, pins: Sequence[WheelPin]) -> str:
    """The file with further wheels in their release, which is put in its place if it is new."""
    import tomlkit  # takes longer to import than a build that has nothing to do

    document = tomlkit.parse(text)
    entries = document["release"]
    versions = [entry["version"] for entry in entries]
    if release.version not in versions:
        entry = tomlkit.table()
        entry.update({"version": release.version, "commit": release.commit})
        entry["wheels"] = tomlkit.value("[\n]")
        at = sum(Version(version) < Version(release.version) for version in versions)
        (entry if at < len(versions) else entries[-1]).add(tomlkit.nl())
        entries.insert(at, entry)
        versions.insert(at, release.version)
    wheels = entries[versions.index(release.version)]["wheels"]
    for pin in pins:
        row = tomlkit.parse('row = { file = "", sha256 = "" }')["row"]
        row.update(asdict(pin))
        wheels.add_line(row, indent="  ")
    return tomlkit.dumps(document)


# --- Debian


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
    """Every piece of a release that Debian's archive carries."""

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


def debian_versions(directory: Path = PINS.parent) -> list[str]:
    """The releases that Debian's archive carries."""
    return sorted(path.stem.partition("-")[2] for path in directory.glob("debian-*.toml"))


def load_debian(version: str, directory: Path = PINS.parent) -> DebianPins:
    """The pins of a release from Debian's archive, ci/debian-<version>.toml.

    Raises UnknownReleaseError where Debian carries none.
    """
    path = directory / f"debian-{version}.toml"
    carried = debian_versions(directory)
    if version not in carried:
        raise UnknownReleaseError(
            f"Debian's archive carries no torch {version} that is pinned",
            where=str(directory),
            why=f"pinned from there: {', '.join(carried)}",
            next=f"--torch {carried[-1]}, or another source: --source git, --source PATH"
            if carried
            else "use another source: --source git, --source PATH",
        )
    return _parsed(path, _read(path), _debian)


def _debian(path: Path, data: dict[str, Any]) -> DebianPins:
    def entries(name: str, parse: Callable[[dict[str, Any]], _Parsed]) -> tuple[_Parsed, ...]:
        return tuple(parse(entry) for entry in data.get(name, []))

    return DebianPins(
        path=path,
        version=str(data["version"]),
        commit=str(data["commit"]),
        machine=str(data["machine"]),
        sources=entries(
            "source", lambda e: Source(_archive(e), _inside(e["into"]), e.get("only", ""))
        ),
        packages=entries("package", _archive),
        edits=entries("edit", lambda e: Edit(**{**e, "file": _inside(e["file"])})),
        directories=entries("directory", lambda e: _inside(e["path"])),
        options=entries("setting", lambda e: Option(**e)),
        requirements=entries(
            "requirement", lambda e: Requirement(e["name"], tuple(map(_hash, e["sha256"])))
        ),
    )


def _archive(entry: dict[str, Any]) -> Archive:
    if not _POOL.fullmatch(entry["file"]) or ".." in entry["file"]:
        raise ValueError(f"not the path of a file in an archive: {entry['file']!r}")
    return Archive(entry["file"], _hash(entry["sha256"]), int(entry["size"]))


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"leads out of the tree: {path!r}")
    return path


# --- reading


def _hash(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise ValueError(f"a sha256 is 64 hexadecimal digits, not {value!r}")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "cannot read the pins", where=str(path), why=str(error), next=f"git checkout {path}"
        ) from error


def _parsed(path: Path, text: str, parse: Callable[[Path, dict[str, Any]], _Parsed]) -> _Parsed:
    """What a file of pins says. Raises UsageError where it is malformed."""
    try:
        return parse(path, files.parse_toml(text))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "the pins are malformed",
            where=str(path),
            why=f"{type(error).__name__}: {error}",
            next=f"compare with the file's last committed version: git diff ci/{path.name}",
        ) from error
