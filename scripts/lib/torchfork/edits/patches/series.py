"""The series of an additions directory: its patches, what they say of themselves, their states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ...additions import paths
from ...additions.ranges import is_possible
from ...errors import PatchConflictError, PatchError, UsageError
from .. import BuildMode, Texts

FOLDER, SERIES = "patches", "series"
BUILD_MODES = ("graft", "source", "both")
MAX_PATCHES = 1000
FIELDS = ("Why", "Until", "Upstream")
# concern, an optional variant after '@', and .patch for a diff
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(@[a-z0-9][a-z0-9._-]*)?(\.patch)?")
_LINE = re.compile(r"(\S{1,200})\s+(\S{1,200})\s+(\S{1,200})\s+#\s*(\S.*)")
_FIELD = re.compile(r"(Why|Until|Upstream): (\S.*)")


@dataclass(frozen=True)
class Header:
    """What a patch says of itself.

    subject: one line, as a commit's.
    why: the reason for which it exists.
    until: what must happen for it to go.
    upstream: upstream's commit, pull request or issue of the same change; 'none' where there is
        nothing.
    """

    subject: str
    why: str
    until: str
    upstream: str

    def body(self) -> str:
        """The fields as they stand in a commit message; further lines of a field are indented."""
        values = (self.why, self.until, self.upstream)
        fields = zip(FIELDS, (value.replace("\n", "\n ") for value in values), strict=True)
        return "".join(f"{key}: {value}\n" for key, value in fields)


def parse_header(subject: str, body: str, where: str) -> Header:
    """Read the fields of a commit message. Raises PatchError for one that is missing or unknown."""
    fields: dict[str, str] = {}
    for line in body.strip("\n").split("\n"):
        found = _FIELD.fullmatch(line)
        if found and found[1].lower() not in fields:
            fields[found[1].lower()] = found[2]
        elif fields and line.startswith(" "):
            fields[[*fields][-1]] += "\n" + line[1:]
        else:
            raise PatchError(
                "a line of a patch's header belongs to none of its fields",
                where=where,
                why=line or "(an empty line)",
                next=f"each of {', '.join(FIELDS)} once, as 'Why: text'; further lines of a "
                "field start with a blank",
            )
    return make_header(subject, fields, where)


def make_header(subject: str, fields: Mapping[str, str], where: str) -> Header:
    """A header with every field filled. Raises PatchError for an unexplained patch."""
    missing = [key for key in FIELDS if not fields.get(key.lower(), "").strip()]
    if missing or not subject.strip():
        raise PatchError(
            "an unexplained patch: it lacks " + ", ".join(missing or ["a subject"]),
            where=where,
            why="who carries it to the next release must know why it exists and when it can go",
            next="add the fields; 'Upstream: none' where upstream has nothing like it",
        )
    values = [fields[key.lower()].strip("\n") for key in FIELDS]
    if not subject.strip().isprintable() or "\0" in "".join(values):
        raise PatchError("a patch's header has control characters", where=where)
    return Header(subject.strip(), *values)


@dataclass(frozen=True)
class Patch:
    """One line of the series."""

    name: str  # 'flop-counter.patch', or the name of a folder
    versions: SpecifierSet
    build_mode: str  # one of BUILD_MODES
    reason: str
    folder: Path  # patches/
    line: int  # in the series file

    @property
    def path(self) -> Path:
        """The patch file, or the folder of new files and anchored blocks."""
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
        """'file:line' of the patch in the series."""
        return f"{self.folder / SERIES}:{self.line}"

    def read_text(self, path: Path) -> str:
        """The text of one of its files. Raises PatchError, or AdditionsError for no file."""
        return _read_text(path, self.folder.parent)

    def covers(self, version: str, mode: BuildMode) -> bool:
        """Whether it is for this release ('2.13.0+cpu') and mode; a nightly counts as its release.

        Raises UsageError for a version that is none.
        """
        return self.build_mode in (mode, "both") and self.covers_version(version)

    def covers_version(self, version: str) -> bool:
        """Whether its range has this release, whatever the build mode."""
        try:
            return self.versions.contains(Version(version).base_version)
        except InvalidVersion as error:
            raise UsageError(
                f"'{version}' is no version of torch", why=str(error), next="write it as 2.13.0"
            ) from error


@dataclass(frozen=True)
class Series:
    """All patches in the order of their application; none where there is no patches/."""

    folder: Path
    patches: tuple[Patch, ...]

    def get(self, name: str) -> Patch:
        """The patch of this name, with or without '.patch'. Raises UsageError for none."""
        for patch in self.patches:
            if name in (patch.name, patch.name.removesuffix(".patch")):
                return patch
        raise UsageError(
            f"there is no patch '{name}'",
            where=str(self.folder / SERIES),
            why="there are: " + (", ".join(p.name for p in self.patches) or "none"),
            next="scripts/torchfork patch list",
        )

    def variants(self) -> int:
        """How many patches exist beyond one a concern: what version ranges cost."""
        return len(self.patches) - len({patch.concern for patch in self.patches})


def load(additions_root: Path) -> Series:
    """Read the series of an additions directory; no patches/ is an empty series.

    Raises PatchError for a line that does not read 'NAME VERSIONS LANE # reason', AdditionsError
    for patches/ or a series that is something else than a directory and a file.
    """
    folder = additions_root / FOLDER
    path = folder / SERIES
    if not paths.is_directory(folder, additions_root) or not paths.is_file(path, additions_root):
        return Series(folder, ())
    lines = _read_text(path, additions_root).splitlines()
    kept = [(n, text) for n, text in enumerate(lines, 1) if text.partition("#")[0].strip()]
    if len(kept) > MAX_PATCHES:
        raise PatchError(f"more than {MAX_PATCHES} patches", where=str(path))
    return Series(folder, tuple(parse_line(text, folder, number) for number, text in kept))


def _read_text(path: Path, root: Path) -> str:
    if not paths.is_file(path, root):
        raise PatchError(f"there is no {path.name}", where=str(path))
    return paths.read_text(path, refused=PatchError)


def parse_line(line: str, folder: Path, number: int) -> Patch:
    """One line of the series. Raises PatchError."""
    where = f"{folder / SERIES}:{number}"
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise PatchError(
            "a line of the series is not 'NAME VERSIONS LANE # reason'",
            where=where,
            why=line.strip(),
            next="for example: flop-counter.patch  >=2.6  both  # convolutions count their FLOPs",
        )
    name, versions, mode, reason = found.groups()
    if not _NAME.fullmatch(name):
        raise PatchError(
            f"'{name}' is no name for a patch",
            where=where,
            why="small letters, digits, '-' and '_', an optional '@variant', '.patch' for a diff",
            next="rename it here and in the folder",
        )
    if mode not in BUILD_MODES:
        raise PatchError(
            f"'{mode}' is no build mode", where=where, next=f"one of {', '.join(BUILD_MODES)}"
        )
    try:
        range_ = SpecifierSet("" if versions == "*" else versions)
    except ValueError as error:
        raise PatchError(
            f"'{versions}' is no range of versions",
            where=where,
            why=str(error),
            next="'*' for all releases, or as pip writes it without blanks: >=2.6,<2.9",
        ) from error
    if not is_possible(str(range_)):
        raise PatchError(
            f"no version is in the range '{versions}'",
            where=where,
            next="correct it; the conditions of a range hold together",
        )
    return Patch(name, range_, mode, reason, folder, number)


class State(str, Enum):
    """How a patch stands to a tree."""

    APPLIES = "applies"
    APPLIED = "applied already"
    LANDED = "landed upstream"
    MERGED = "needs a 3-way merge"
    CONFLICTS = "conflicts"
    NOT_HERE = "not for this release and build mode"


@dataclass(frozen=True)
class Conflict:
    """The first place at which a patch does not fit.

    where: 'patches/x.patch:17', the hunk or [[hook]] in our file.
    file: upstream's file.
    why: what is wrong there.
    ours: what the patch wants to see and to change.
    theirs: what the file has there now; '' where nothing comes near.
    marked: the files with both sides between conflict markers, where a merge was possible.
    """

    where: str
    file: str
    why: str
    ours: str
    theirs: str
    marked: Texts = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """One patch on one tree.

    texts: what the patch changes here (None: the file goes); empty for LANDED, CONFLICTS and
        NOT_HERE.
    note: one line for people: the reason of a state that is not plain.
    header: None where the patch is not for this release.
    """

    patch: Patch
    header: Header | None
    state: State
    texts: Texts = field(default_factory=dict)
    note: str = ""
    conflict: Conflict | None = None

    @property
    def name(self) -> str:
        """The patch's name in the series."""
        return self.patch.name

    @property
    def why(self) -> str:
        """Why the patch exists."""
        return self.header.why if self.header else ""

    def error(self, version: str, mode: str, command: str = "") -> PatchConflictError:
        """The conflict as an error. command: what resolves it, where `patch edit` is not it."""
        found, header = self.conflict, self.header
        assert found is not None and header is not None
        options = f"--torch {version} --lane {mode}"
        if not self.patch.is_diff:
            # There is nothing to merge: the folder says in words where its lines go.
            command = f"correct it there, then: scripts/torchfork patch list {options}"
        theirs = found.theirs or "(nothing like it)\n"
        return PatchConflictError(
            f"the patch '{self.name}' does not fit torch {version}: {found.why}",
            where=f"{found.where}, upstream's {found.file}",
            why=f"the patch exists because: {header.why}\n"
            f"upstream has of it: {header.upstream}\n"
            f"--- the patch:\n{found.ours.rstrip()}\n"
            f"--- torch {version}:\n{theirs.rstrip()}",
            next=command or f"scripts/torchfork patch edit {options}",
            kind="patch conflicts",
        )
