"""The pins: which upstream releases are known, their commits, and the sha256 of their wheels."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from ..errors import InternalError, UnknownReleaseError, UsageError
from ..util import files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

PINS = Path(__file__).resolve().parents[4] / "ci" / "releases.toml"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class WheelPin:
    """One official wheel: its file name and the sha256 of its bytes."""

    file: str
    sha256: str

    @property
    def version(self) -> str:
        """The version in the file name, local part included: '2.13.0+cpu'."""
        return self.file.split("-")[1]

    @property
    def python_tag(self) -> str:
        """'cp311'."""
        return self.file.removesuffix(".whl").split("-")[-3]

    @property
    def platform_tag(self) -> str:
        """'manylinux_2_28_x86_64'."""
        return self.file.removesuffix(".whl").split("-")[-1]

    def runs_on(self, system: str, machine: str) -> bool:
        """Whether the wheel is for this system and machine, as the platform module names them."""
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
        if system == "Darwin":
            arch = "arm64" if machine == "aarch64" else machine
            return self.platform_tag.startswith("macosx_") and self.platform_tag.endswith(arch)
        return "linux" in self.platform_tag and self.platform_tag.endswith(f"_{machine}")


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
            if pin.python_tag == python_tag and pin.runs_on(system, machine)
        )

    def python_tags(self, system: str, machine: str) -> list[str]:
        """The Python tags that this machine has wheels for, oldest first."""
        tags = {pin.python_tag for pin in self.wheels if pin.runs_on(system, machine)}
        return sorted(tags, key=lambda tag: int(tag.removeprefix("cp")))


@dataclass(frozen=True)
class Releases:
    """All pins, and the file that they were read from."""

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
    """Read and check the pins; the project's own ci/releases.toml unless told otherwise."""
    path = path or PINS
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        parsed = tuple(_release(entry) for entry in data["release"])
        found = Releases(path, str(data["default"]), parsed)
    except OSError as error:
        raise UsageError("cannot read the pins", where=str(path), why=str(error)) from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "the pins are malformed",
            where=str(path),
            why=f"{type(error).__name__}: {error}",
            next="compare with the file's last committed version: git diff ci/releases.toml",
        ) from error
    found.get()
    return found


def add_pin(releases: Releases, version: str, commit: str, pin: WheelPin) -> Releases:
    """Write one more pin into the file, keeping everything else in it; the pins as they are then.

    A version that is not there yet is added with the commit; a known one must have that commit.
    """
    if releases.by_sha256(pin.sha256):
        return releases
    text = releases.path.read_text(encoding="utf-8")
    known = version in releases.versions
    if known and releases.get(version).commit != commit:
        raise UsageError(
            f"this wheel's commit is not that of the pinned {version}",
            where=pin.file,
            why=f"wheel: {commit}\npinned: {releases.get(version).commit}",
        )
    row = f'  {{ file = "{pin.file}", sha256 = "{pin.sha256}" }},\n'
    files.write_text(releases.path, _insert(text, version, commit, row, known))
    return load(releases.path)


def add_release(releases: Releases, release: Release) -> Releases:
    """Write a release that is not there yet into the file, in the order of the versions."""
    if release.version in releases.versions:
        raise InternalError(f"torch {release.version} is pinned already")
    rows = "".join(f'  {{ file = "{p.file}", sha256 = "{p.sha256}" }},\n' for p in release.wheels)
    head = f'[[release]]\nversion = "{release.version}"\ncommit = "{release.commit}"\n'
    entry = f"{head}wheels = [\n{rows}]\n"
    text = releases.path.read_text(encoding="utf-8")
    later = [v for v in releases.versions if Version(v) > Version(release.version)]
    before = f'[[release]]\nversion = "{later[0]}"\n' if later else ""
    if before and before in text:
        text = text.replace(before, f"{entry}\n{before}", 1)
    else:
        text = f"{text.rstrip()}\n\n{entry}"
    files.write_text(releases.path, text)
    return load(releases.path)


def _insert(text: str, version: str, commit: str, row: str, known: bool) -> str:
    if not known:
        head = f'\n[[release]]\nversion = "{version}"\ncommit = "{commit}"\nwheels = [\n'
        return text.rstrip("\n") + "\n" + head + row + "]\n"
    block = re.compile(
        rf'^version = "{re.escape(version)}"\n.*?^wheels = \[\n.*?(?=^\])', re.MULTILINE | re.DOTALL
    )
    changed, count = block.subn(lambda match: match.group(0) + row, text, count=1)
    if not count:
        raise InternalError(f"found no list of wheels for {version} in the pins")
    return changed


def _release(entry: dict[str, Any]) -> Release:
    commit, version = str(entry["commit"]), str(entry["version"])
    if not _COMMIT.fullmatch(commit):
        raise ValueError(f"{version}: a commit is 40 hexadecimal digits, not {commit!r}")
    return Release(version, commit, tuple(_pin(wheel) for wheel in entry["wheels"]))


def _pin(entry: dict[str, str]) -> WheelPin:
    pin = WheelPin(entry["file"], entry["sha256"])
    if not _SHA256.fullmatch(pin.sha256):
        raise ValueError(f"{pin.file}: a sha256 is 64 hexadecimal digits, not {pin.sha256!r}")
    if not re.fullmatch(r"torch-[^-]+(-\d[^-]*)?-cp\d+-[^-]+-[^-]+\.whl", pin.file):
        raise ValueError(f"not the name of a torch wheel: {pin.file!r}")
    return pin
