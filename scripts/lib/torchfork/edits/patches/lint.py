"""What is wrong with a patches folder, whatever the release: every fault with its file and line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from ...errors import PatchError
from . import planning
from .diff import Diff
from .overlay import Overlay
from .planning import Change
from .render import head
from .series import SERIES, Entry, Series
from .tree import decode

README = "README.md"
_COMPILED = frozenset({".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh", ".mm", ".S", ".metal"})
_PACKAGES = frozenset({"torch", "torchgen", "functorch"})


def lint(series: Series, versions: Sequence[str] = ()) -> list[PatchError]:
    """Every fault, in the order of the series.

    versions: the releases that are supported; a patch for none of them is unused. Without them
        nothing is, and any two ranges are taken to meet nowhere.
    """
    found = [*_folder(series), *_names(series)]
    changes: dict[Entry, Change] = {}
    for entry in series.entries:
        found += _unused(entry, versions)
        if not entry.path.exists() or any(entry.name == other.name for other in changes):
            continue  # told already
        try:
            changes[entry] = planning.read(entry)
        except PatchError as error:
            found.append(error)
            continue
        found += _one(entry, changes[entry])
    for (first, a), (second, b) in itertools.combinations(changes.items(), 2):
        found += _pair(first, a, second, b, versions)
    return found


def _folder(series: Series) -> Iterator[PatchError]:
    """Orphans, and entries without a file."""
    there = {p.name for p in series.folder.iterdir()} if series.folder.is_dir() else set()
    listed = {entry.name for entry in series.entries}
    for name in sorted(there - listed - {SERIES, README}):
        if not name.startswith("."):
            yield PatchError(
                f"an orphan: '{name}' is not in the series",
                where=str(series.folder / name),
                why="nothing applies it",
                next=f"add a line to {series.folder / SERIES}, or delete it",
            )
    for entry in series.entries:
        if entry.name not in there:
            yield PatchError(
                f"'{entry.name}' is in the series and not in the folder",
                where=entry.where(),
                next="delete the line, or bring the patch back",
            )


def _names(series: Series) -> Iterator[PatchError]:
    seen: dict[str, Entry] = {}
    for entry in series.entries:
        first = seen.setdefault(entry.name, entry)
        if first is not entry:
            yield PatchError(
                f"a duplicate: '{entry.name}' stands twice in the series",
                where=entry.where(),
                why=f"{first.where()} has it already",
                next="delete one of the two lines",
            )


def _unused(entry: Entry, versions: Sequence[str]) -> Iterator[PatchError]:
    if versions and not any(entry.covers_version(version) for version in versions):
        yield PatchError(
            f"unused: no supported release is in the range of '{entry.name}'",
            where=entry.where(),
            why=f"{entry.versions} has none of {', '.join(versions)}",
            next="correct the range, or delete the patch and its line",
        )


def _one(entry: Entry, change: Change) -> Iterator[PatchError]:
    """Faults of one patch by itself."""
    lanes = ("graft", "source") if entry.lane == "both" else (entry.lane,)
    if isinstance(change, Overlay):
        if not change.added and not change.hooks:
            yield PatchError("a patch that changes nothing", where=str(entry.path))
    elif not decode(entry.path.read_bytes()).startswith(
        head(change.header, change.author, change.date)
    ):
        yield PatchError(
            f"the header of '{entry.name}' is not as torchfork exports it",
            where=f"{entry.path}:1",
            next="scripts/torchfork patch edit, then refresh",
        )
    for lane in lanes:
        for path in _touched(change, lane):
            why = _not_in_lane(path, lane)
            if why:
                yield _wrong_lane(entry, path, lane, why)


def _touched(change: Change, lane: str) -> list[str]:
    if isinstance(change, Overlay):
        return change.touched(lane)
    return [file.path for file in change.files]


def _not_in_lane(path: str, lane: str) -> str:
    """Why a lane has not the file; '' where it has."""
    parts = PurePosixPath(path).parts
    if lane == "source":
        in_wheel = parts[:2] in (("torch", "include"), ("torchgen", "packaged"))
        return "only wheels have this folder; sources have the file elsewhere" if in_wheel else ""
    if PurePosixPath(path).suffix in _COMPILED or parts[:2] == ("torch", "csrc"):
        return "it is compiled into the official wheel's libraries, which stay as they are"
    if parts[0] not in _PACKAGES or path.endswith(".in"):
        return "an official wheel does not carry it"
    if parts[:2] == ("torchgen", "packaged") and path.endswith(".yaml"):
        return "operators are declared in the additions' own YAML files, which are merged into it"
    return ""


def _wrong_lane(entry: Entry, path: str, lane: str, why: str) -> PatchError:
    other = (
        "give it the lane 'source' in the series (in patch.toml for one hook); "
        "scripts/build_torch.sh --from-source applies it"
        if lane == "graft"
        else "give it the lane 'graft', and the sources a patch of their own"
    )
    return PatchError(
        f"'{entry.name}' touches {path}, which the {lane} lane cannot change",
        where=entry.where(), why=why, next=other,
    )  # fmt: skip


def _pair(
    first: Entry, a: Change, second: Entry, b: Change, versions: Sequence[str]
) -> Iterator[PatchError]:
    """Faults of two patches together."""
    if a == b or (isinstance(a, Diff) and isinstance(b, Diff) and a.files == b.files):
        yield PatchError(
            f"a duplicate: '{second.name}' changes what '{first.name}' changes",
            where=second.where(), why=f"the same lines as {first.where()}",
            next="delete one of the two",
        )  # fmt: skip
        return
    if first.concern != second.concern and a.header.subject == b.header.subject:
        yield PatchError(
            f"'{first.name}' and '{second.name}' have the same subject",
            where=str(second.path), why="git tells the commits of a workbench by their subjects",
            next="say in each what it does",
        )  # fmt: skip
    together = [v for v in versions if first.covers_version(v) and second.covers_version(v)]
    if {first.lane, second.lane} == {"graft", "source"} or not together:
        return
    if first.concern == second.concern and first.name != second.name:
        yield PatchError(
            f"two variants of '{first.concern}' are for the same release",
            where=second.where(), why=f"{first.where()} has {', '.join(together)} too",
            next="make their ranges exclude each other",
        )  # fmt: skip
    for path in sorted(set(_new_files(a)) & set(_new_files(b))):
        yield PatchError(
            f"'{first.name}' and '{second.name}' both add {path}",
            where=second.where(), next="let one of them add it",
        )  # fmt: skip


def _new_files(change: Change) -> list[str]:
    if isinstance(change, Overlay):
        return [path for path, _ in change.added]
    return [file.path for file in change.files if file.kind == "add"]
