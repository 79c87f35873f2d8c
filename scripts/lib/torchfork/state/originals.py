"""Files of an installed torch: kept, replaced by one rename, put back with inode and times."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..util import files
from . import installed_journal
from .installed_journal import Entry, Journal


@dataclass(frozen=True)
class File:
    """A file as it shall be; `write` puts its contents into a path."""

    sha256: str
    size: int
    write: Callable[[Path], object]


def compiled(site: Path, names: list[str]) -> list[str]:
    """The .pyc files of replaced .py files: part of what an undo brings back."""
    return sorted(
        path.relative_to(site).as_posix()
        for name in names
        if name.endswith(".py")
        for path in _pyc_files(site, name)
    )


def _pyc_files(site: Path, name: str) -> Iterator[Path]:
    source = site / name
    return (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")


def keep(site: Path, name: str) -> None:
    """Give the original a second name beside the journal: its inode, times and mode with it."""
    source, target = site / name, installed_journal.original(site, name)
    if target.exists() or not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # a filesystem without hard links
        partial = target.with_name(f".{target.name}.part")
        shutil.copy2(source, partial)
        partial.replace(target)


def put(site: Path, name: str, new: File, entry: Entry) -> None:
    target = site / name
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    if entry.original is None and ".so" in target.suffixes:
        mode = 0o755
    # Written beside the journal, in a directory that an undo removes: a kill leaves no stray file.
    partial = site / installed_journal.DIRECTORY / "new"
    new.write(partial)
    partial.chmod(mode)
    partial.replace(target)


def restore(site: Path, before: Journal, names: list[str]) -> tuple[list[str], list[str]]:
    """Bring originals back, remove what was added; (restored, removed)."""
    restored, removed = [], []
    for name in names:
        kept = installed_journal.original(site, name)
        if kept.exists():
            kept.replace(site / name)
            restored.append(name)
        elif before.entries[name].original is None and (site / name).exists():
            (site / name).unlink()
            removed.append(name)
            for pyc in list(_pyc_files(site, name)) if name.endswith(".py") else []:
                pyc.unlink()
                files.remove_empty(pyc.parent, site)
            files.remove_empty((site / name).parent, site)
    return restored, removed


def restore_compiled(site: Path, before: Journal, names: list[str]) -> None:
    """Each restored .py file gets back the .pyc files that it had, and no others.

    One that was kept and is kept no more is back already: an earlier run was killed after it.
    """
    had = set(before.compiled)
    for name in names:
        if not name.endswith(".py") or before.entries[name].original is None:
            continue
        for pyc in list(_pyc_files(site, name)):
            if pyc.relative_to(site).as_posix() not in had:
                pyc.unlink()
    for name in before.compiled:
        source = Path(name).parent.parent / (Path(name).name.split(".")[0] + ".py")
        kept = installed_journal.original(site, name)
        if source.as_posix() in names and kept.exists():
            (site / name).parent.mkdir(exist_ok=True)
            kept.replace(site / name)


def remove_traces(site: Path) -> None:
    """The journal goes last: until then a killed undo can be gone on with."""
    directory = site / installed_journal.DIRECTORY
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry != installed_journal.path(site):
            entry.unlink()
    installed_journal.path(site).unlink(missing_ok=True)
    directory.rmdir()
