"""The series file: the patches in their order, for which releases and lanes each is, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ...errors import PatchError, UsageError

FOLDER = "patches"
SERIES = "series"
Lane = Literal["graft", "source"]
LANES = ("graft", "source", "both")
# concern, an optional variant after '@', and .patch for a diff
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(@[a-z0-9][a-z0-9._-]*)?(\.patch)?")
_LINE = re.compile(r"(?P<name>\S+)\s+(?P<versions>\S+)\s+(?P<lane>\S+)\s+#\s*(?P<reason>\S.*)")


@dataclass(frozen=True)
class Entry:
    """One line of the series."""

    name: str  # 'flop-counter.patch', or the name of a folder
    versions: SpecifierSet
    lane: str  # one of LANES
    reason: str
    folder: Path  # the patches folder
    line: int  # in the series file

    @property
    def path(self) -> Path:
        """The patch file, or the folder of new files and hooks."""
        return self.folder / self.name

    @property
    def concern(self) -> str:
        """What variants of one patch share: 'docs' of docs@2.6.patch."""
        return self.name.removesuffix(".patch").partition("@")[0]

    @property
    def is_diff(self) -> bool:
        """Whether it is a git-format patch; a folder otherwise."""
        return self.name.endswith(".patch")

    def where(self) -> str:
        """'file:line' of the entry in the series."""
        return f"{self.folder / SERIES}:{self.line}"

    def covers(self, version: str, lane: Lane) -> bool:
        """Whether it is for this release ('2.13.0+cpu') and lane; a nightly counts as its release.

        Raises UsageError for a version that is none.
        """
        return self.lane in (lane, "both") and self.covers_version(version)

    def covers_version(self, version: str) -> bool:
        """Whether its range has this release, whatever the lane."""
        try:
            release = Version(version).base_version
        except InvalidVersion as error:
            raise UsageError(f"'{version}' is no version of torch", why=str(error)) from error
        return self.versions.contains(release)


@dataclass(frozen=True)
class Series:
    """All entries in the order of their application; none where there is no patches folder."""

    folder: Path
    entries: tuple[Entry, ...]

    def get(self, name: str) -> Entry:
        """The entry of this name, with or without '.patch'. Raises UsageError for none."""
        for entry in self.entries:
            if name in (entry.name, entry.name.removesuffix(".patch")):
                return entry
        raise UsageError(
            f"there is no patch '{name}'",
            where=str(self.folder / SERIES),
            why="there are: " + (", ".join(e.name for e in self.entries) or "none"),
            next="scripts/torchfork patch list",
        )

    def variants(self) -> int:
        """How many entries exist beyond one a concern: what version ranges cost."""
        return len(self.entries) - len({entry.concern for entry in self.entries})


def load(additions_root: Path) -> Series:
    """Read the series of an additions directory; no patches folder is an empty series.

    Raises PatchError for a line that does not read 'NAME VERSIONS LANE # reason'.
    """
    folder = additions_root / FOLDER
    path = folder / SERIES
    if not path.is_file():
        return Series(folder, ())
    text = path.read_text(encoding="utf-8")
    return Series(folder, tuple(_entries(text, folder)))


def _entries(text: str, folder: Path) -> Iterator[Entry]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield parse_line(line, folder, number)


def parse_line(line: str, folder: Path, number: int) -> Entry:
    """One line of the series as an entry. Raises PatchError."""
    where = f"{folder / SERIES}:{number}"
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise PatchError(
            "a line of the series is not 'NAME VERSIONS LANE # reason'",
            where=where,
            why=line.strip(),
            next="for example: flop-counter.patch  >=2.6  both  # convolutions count their FLOPs",
        )
    if not _NAME.fullmatch(found["name"]):
        raise PatchError(
            f"'{found['name']}' is no name for a patch",
            where=where,
            why="small letters, digits, '-' and '_', an optional '@variant', '.patch' for a diff",
            next="rename it here and in the folder",
        )
    if found["lane"] not in LANES:
        raise PatchError(
            f"'{found['lane']}' is no lane", where=where, next=f"one of {', '.join(LANES)}"
        )
    return Entry(
        found["name"], _versions(found["versions"], where), found["lane"], found["reason"],
        folder, number,
    )  # fmt: skip


def _versions(text: str, where: str) -> SpecifierSet:
    try:
        return SpecifierSet("" if text == "*" else text)
    except InvalidSpecifier as error:
        raise PatchError(
            f"'{text}' is no range of versions",
            where=where,
            why=str(error),
            next="'*' for all releases, or as pip writes it without blanks: >=2.6,<2.9",
        ) from error
