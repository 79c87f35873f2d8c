"""What an apply changed in a source tree, written down before it is done, and the original files.

Unlike the journal of `--develop` this one keeps copies, not second names: what an unapply restores
gets the present as its time, for ninja compares times, and a file that becomes older than its
object would never be compiled again.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import StateError
from ..upstream.tree import STATE
from ..util import files

_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One file that an apply replaced or added.

    original: sha256 of the tree's own file, None for an added file.
    ours: sha256 of every content that we may have put there; two while a change is under way.
    """

    original: str | None
    ours: tuple[str, ...]


@dataclass(frozen=True)
class Journal:
    """All files that are not as the tree's commit has them; `settled` unless a run was killed.

    undoing: whether the run that was killed was an unapply.
    """

    commit: str | None
    additions: str
    settled: bool = True
    undoing: bool = False
    entries: Mapping[str, Entry] = field(default_factory=dict)


def path(root: Path) -> Path:
    """The journal's own place."""
    return root / STATE / "journal.json"


def original(root: Path, name: str) -> Path:
    """Where the original of a replaced file is kept."""
    return root / STATE / "originals" / name


def load(root: Path) -> Journal | None:
    """The journal of a tree, None where nothing is applied."""
    if not path(root).is_file():
        return None
    data = files.read_json(path(root))
    try:
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}")
        return Journal(
            commit=data["commit"],
            additions=data["additions"],
            settled=data["settled"],
            undoing=data["undoing"],
            entries={
                name: Entry(entry["original"], tuple(entry["ours"]))
                for name, entry in data["entries"].items()
            },
        )
    except (TypeError, KeyError, ValueError) as error:
        raise StateError(
            "the journal of this tree cannot be read",
            where=str(path(root)),
            why=f"{type(error).__name__}: {error}",
            next=f"the tree's own files are kept in {root / STATE / 'originals'}; put them back by "
            f"hand (or git checkout), then delete {root / STATE}",
        ) from error


def save(root: Path, journal: Journal) -> None:
    """Write the journal, on disk before anything that it announces is done."""
    files.write_json(path(root), {"format": _FORMAT, **dataclasses.asdict(journal)})


def keep(root: Path, name: str, sha256: str) -> None:
    """Copy the tree's own file, which has this hash now, beside the journal."""
    source, target = root / name, original(root, name)
    # One that a run left which was killed before it wrote its journal may be of another time.
    if not target.is_file() or files.sha256_file(target) != sha256:
        files.write_bytes(target, source.read_bytes(), source.stat().st_mode & 0o777)


def put(root: Path, name: str, data: bytes, mode: int) -> None:
    """Write a file of the tree by one rename.

    The partial file lies beside the journal, not beside its target: a killed run leaves nothing
    that a build could take for a source.
    """
    partial, target = root / STATE / "partial", root / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.chmod(mode)
        partial.replace(target)
    except OSError as error:
        raise files.output_error(target, error) from error


def put_back(root: Path, name: str) -> None:
    """Bring one original back, bit for bit and with its mode; its time is now."""
    kept = original(root, name)
    put(root, name, kept.read_bytes(), kept.stat().st_mode & 0o777)


def read_original(root: Path, name: str, journal: Journal | None) -> bytes | None:
    """A file as the tree's commit has it; None where it has none."""
    entry = journal.entries.get(name) if journal else None
    if entry is not None:
        if entry.original is None:
            return None
        kept = original(root, name)
        if kept.is_file():
            return kept.read_bytes()
    place = root / name
    return place.read_bytes() if place.is_file() else None


def forget(root: Path) -> None:
    """Remove the originals, then the journal: a run that is killed here can be gone on with."""
    shutil.rmtree(root / STATE / "originals", ignore_errors=True)
    for place in (root / STATE / "partial", path(root), root / STATE / ".gitignore"):
        place.unlink(missing_ok=True)
    try:
        (root / STATE).rmdir()
    except OSError:
        return  # the tree's provenance stays
