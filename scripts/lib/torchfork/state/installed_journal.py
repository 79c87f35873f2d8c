"""What `--develop` changed in an installed torch, written down before it is done.

The journal and the original files lie in torch/.torchfork-originals/, so that they go where torch
goes and `pip uninstall torch` takes them along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import StateError
from ..util import files

DIRECTORY = "torch/.torchfork-originals"
_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One file that was replaced or added.

    original: sha256 of the file that was there, None for an added file.
    ours: sha256 of every content that we may have put there; two while a change is under way.
    """

    original: str | None
    ours: tuple[str, ...]


@dataclass(frozen=True)
class Journal:
    """All files that are not as the wheel brought them; `settled` unless a run was killed."""

    identity: str  # of the base
    settled: bool
    entries: Mapping[str, Entry] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()  # .pyc files that were kept, of replaced .py files


def path(site: Path) -> Path:
    """The journal's own place."""
    return site / DIRECTORY / "journal.json"


def original(site: Path, name: str) -> Path:
    """Where the original of a replaced file is kept."""
    return site / DIRECTORY / "files" / name


def load(site: Path) -> Journal | None:
    """The journal of an installation, None where nothing was changed."""
    place = path(site)
    if not place.is_file():
        return None
    data = files.read_json(place)
    try:
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}")
        return Journal(
            identity=data["identity"],
            settled=data["settled"],
            entries={
                name: Entry(entry["original"], tuple(entry["ours"]))
                for name, entry in data["entries"].items()
            },
            compiled=tuple(data["compiled"]),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise StateError(
            "the journal of --develop cannot be read",
            where=str(place),
            why=f"{type(error).__name__}: {error}",
            next="reinstall torch: pip install --force-reinstall --no-deps torch==VERSION",
        ) from error


def save(site: Path, journal: Journal) -> None:
    """Write the journal, on disk before anything that it announces is done."""
    files.write_json(path(site), {"format": _FORMAT, **dataclasses.asdict(journal)})


def as_installed(site: Path, name: str, journal: Journal | None) -> Path:
    """The file that the wheel brought: the kept original where there is one."""
    if journal and name in journal.entries:
        kept = original(site, name)
        if kept.is_file():
            return kept
    return site / name
