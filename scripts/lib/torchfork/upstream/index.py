"""Finds out about releases that are not pinned yet: what the index has, and upstream's own tag.

pip resolves each wheel without fetching it and reports the sha256 that the index lists; the commit
is for a wheel of the release to say, and for upstream's tag to confirm where it can be reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ..errors import DownloadError
from ..util import pip, process
from .base import Interpreter
from .pins import Release, Releases, WheelPin

Say = Callable[[str], None]


def available(interpreter: Interpreter) -> list[str]:
    """The final versions of torch that the user's index has, oldest first."""
    command = [*pip.command(interpreter.executable), "index", "versions", "torch"]
    outcome = process.run([*command, "--disable-pip-version-check"], check=False)
    found = re.search(r"^Available versions: (.*)$", outcome.stdout, re.MULTILINE)
    if outcome.returncode or not found:
        raise pip.download_error(outcome, "the list of torch's versions", Path())
    versions = {text for text in found[1].replace(",", " ").split() if _is_final(text)}
    return sorted(versions, key=Version)


def _is_final(text: str) -> bool:
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    return not (version.is_prerelease or version.is_postrelease or version.local)


def unpinned(versions: Iterable[str], releases: Releases) -> list[str]:
    """Those that come after the oldest pinned release and are not pinned."""
    oldest = min(map(Version, releases.versions))
    return [v for v in versions if Version(v) > oldest and v not in releases.versions]


def wheels(
    version: str, releases: Releases, interpreter: Interpreter, say: Say
) -> tuple[WheelPin, ...]:
    """The wheels of a release, for the Pythons and machines that the pinned releases have.

    Also for the Python after the newest of them. Raises DownloadError where there is none at all.
    """
    pins = [pin for release in releases.releases for pin in release.wheels]
    wanted = [(p, platforms) for p in _python_tags(pins) for platforms in _platforms(pins)]

    def resolved(what: tuple[str, list[str]]) -> WheelPin | None:
        say(f"{what[0]}, {what[1][-1]}")
        return _resolve(version, *what, interpreter)

    with ThreadPoolExecutor(4) as pool:  # pip waits for the index most of the time
        found = {pin.file: pin for pin in pool.map(resolved, wanted) if pin is not None}
    if not found:
        raise DownloadError(
            f"the index has no wheel of torch {version}",
            why="asked for " + ", ".join(_python_tags(pins)),
            next="check the version, and pip's settings (pip config list)",
        )
    return tuple(found.values())


def _python_tags(pins: Sequence[WheelPin]) -> list[str]:
    numbers = sorted({int(pin.name.python.removeprefix("cp3")) for pin in pins})
    return [f"cp3{number}" for number in [*numbers, numbers[-1] + 1]]


def _platforms(pins: Sequence[WheelPin]) -> list[list[str]]:
    """The platform tags of each kind of machine, x86-64 Linux first."""
    tags = sorted({pin.name.platform for pin in pins})
    kinds = (("linux", "x86_64"), ("linux", "aarch64"), ("macosx", "arm64"))
    grouped = [
        [t for t in tags if system in t and t.endswith(machine)] for system, machine in kinds
    ]
    return [group for group in grouped if group]


def _resolve(
    version: str, python: str, platforms: Sequence[str], interpreter: Interpreter
) -> WheelPin | None:
    """The wheel that pip would take, or None where there is none."""
    tags = [part for platform in platforms for part in ("--platform", platform)]
    outcome = process.run(
        [*pip.command(interpreter.executable), "install", "--dry-run", "--ignore-installed",
         "--no-deps", "--only-binary=:all:", "--quiet", "--no-input", "--report", "-",
         "--disable-pip-version-check", "--target", "unused", "--implementation", "cp",
         "--python-version", python.removeprefix("cp"), *tags, f"torch=={version}"],
        check=False,
    )  # fmt: skip
    if outcome.returncode:
        failure = pip.download_error(outcome, f"torch {version}", Path())
        # No wheel for this Python and machine is an answer; an index out of reach is not.
        if failure.what.startswith("pip found no wheel"):
            return None
        raise failure
    download = json.loads(outcome.stdout)["install"][0]["download_info"]
    name = download["url"].rpartition("/")[2].replace("%2B", "+")
    sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256", "")
    if not sha256:
        raise DownloadError(
            f"the index lists no sha256 of {name}",
            where=download["url"],
            next="fetch the wheel and pin it by its own bytes: scripts/torchfork pin WHEEL",
        )
    return WheelPin(name, sha256)


def tentative(releases: Releases, version: str, pins: tuple[WheelPin, ...]) -> Releases:
    """The pins with a release whose commit is not known yet; for fetching one of its wheels."""
    added = Release(version, "0" * 40, pins)
    return Releases(releases.path, releases.default, (*releases.releases, added))
