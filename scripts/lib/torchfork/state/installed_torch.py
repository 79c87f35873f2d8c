"""`--develop`: put an overlay into the installed torch, and take it out again bit for bit.

Every change is announced in the journal before it is made, and each file changes by one rename: a
killed run leaves files that are either the wheel's or ours, the journal knows both, and the next
install or undo goes on from there. A library that a running process has mapped is never written
into; its old file lives on until the process ends. torch's version stays as it is, in
torch/version.py as in the metadata: what pip knows of this environment remains true, and an undo
has nothing to explain.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import ForkError, OutputError, StateError, UsageError
from ..upstream.archives import Recorded, read_record, record_hash
from ..upstream.base import Base, Interpreter
from ..upstream.installed import Installation, locate, record_identity
from ..upstream.wheel import OnWait, wait_silently
from ..util import files
from . import installed_journal, originals
from .installed_journal import Entry, Journal

LOCK_SECONDS = 300.0


@dataclass(frozen=True)
class Changes:
    """What an install or an undo did, by the files' names in site-packages."""

    site: Path
    written: tuple[str, ...]
    restored: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int


def install(base: Base, overlay: Path, cache: Path, *, on_wait: OnWait = wait_silently) -> Changes:
    """Make the installed torch equal to base and overlay; only files that differ are touched.

    base: from bases.installed.open_installed, of the environment that is changed.
    """
    if base.wheel is not None:
        raise UsageError(
            "--develop changes the installed torch, and this base is a wheel file",
            where=str(base.wheel),
            next="use --develop together with --base installed",
        )
    found = locate(base.interpreter)
    with _exclusive(found, cache, on_wait):
        before = installed_journal.load(found.site) or Journal(base.identity, True)
        wanted = _overlay_files(overlay)
        record = _original_record(found, before)
        _check_base(found, base, record, before)
        entries = _entries(found, wanted, record, before)
        _check_untouched(found, {**before.entries, **entries}, wanted)
        fresh = [name for name in entries if name in record and name not in before.entries]
        names = sorted({*before.compiled, *originals.compiled(found.site, fresh)})
        wanted[_record_name(found)] = _record_file(found, record, wanted, entries, names)
        return _apply(found, wanted, entries, names, before)


def undo(interpreter: Interpreter, cache: Path, *, on_wait: OnWait = wait_silently) -> Changes:
    """Put every file back as the wheel brought it and remove all traces."""
    found = locate(interpreter)
    with _exclusive(found, cache, on_wait):
        before = installed_journal.load(found.site)
        if before is None:
            originals.remove_traces(found.site)  # of a run that was killed before it did anything
            raise StateError(
                "there is nothing to undo",
                where=str(found.site / "torch"),
                why="no --develop build was put into this torch",
            )
        _check_untouched(found, before.entries, {})
        installed_journal.save(
            found.site, Journal(before.identity, False, before.entries, before.compiled)
        )
        restored, removed = originals.restore(found.site, before, list(before.entries))
        originals.restore_compiled(found.site, before, list(before.entries))
        originals.remove_traces(found.site)
        return Changes(found.site, (), tuple(restored), tuple(removed), 0)


def _apply(
    found: Installation,
    wanted: Mapping[str, originals.File],
    entries: Mapping[str, Entry],
    compiled: list[str],
    before: Journal,
) -> Changes:
    site = found.site
    stale = [name for name in before.entries if name not in wanted]
    pending = {
        name: _both(entries[name], before.entries.get(name), wanted[name]) for name in wanted
    }
    pending.update({name: before.entries[name] for name in stale})
    differing = [name for name in wanted if _sha256(site / name) != wanted[name].sha256]
    if not differing and not stale and before.settled:
        return Changes(site, (), (), (), len(wanted))
    installed_journal.save(site, Journal(before.identity, False, pending, tuple(compiled)))
    for name in compiled:  # before any .py file changes, so that these are still the wheel's
        originals.keep(site, name)
    for name in differing:
        if entries[name].original is not None:
            originals.keep(site, name)
        originals.put(site, name, wanted[name], entries[name])
    restored, removed = originals.restore(site, before, stale)
    originals.restore_compiled(site, before, stale)
    settled = {name: Entry(entries[name].original, (wanted[name].sha256,)) for name in wanted}
    still = tuple(name for name in compiled if installed_journal.original(site, name).exists())
    installed_journal.save(site, Journal(before.identity, True, settled, still))
    return Changes(
        site, tuple(differing), tuple(restored), tuple(removed), len(wanted) - len(differing)
    )


def _both(entry: Entry, before: Entry | None, new: originals.File) -> Entry:
    """While a change is under way, the old content and the new one are both ours."""
    old = before.ours if before else ()
    return Entry(entry.original, tuple(dict.fromkeys([*old, new.sha256])))


def _overlay_files(overlay: Path) -> dict[str, originals.File]:
    return {
        path.relative_to(overlay).as_posix(): originals.File(
            files.sha256_file(path),
            path.stat().st_size,
            partial(shutil.copyfile, path),
        )
        for path in files.tree_files(overlay)
    }


def _record_name(found: Installation) -> str:
    return f"{found.dist_info}/RECORD"


def _original_record(found: Installation, before: Journal) -> dict[str, Recorded]:
    path = installed_journal.as_installed(found.site, _record_name(found), before)
    return read_record(path.read_text(encoding="utf-8"))


def _check_base(
    found: Installation, base: Base, record: dict[str, Recorded], before: Journal
) -> None:
    """The torch that is changed must be the one that was compiled against."""
    wheel_rows = {
        name: row
        for name, row in record.items()
        if not name.startswith(("/", "..")) and not name.endswith(".pyc")
    }
    if base.identity == before.identity == record_identity(wheel_rows):
        return
    raise StateError(
        "the installed torch has changed since it was built for",
        where=str(found.site / found.dist_info),
        next="run the same command again",
    )


def _entries(
    found: Installation,
    wanted: Mapping[str, originals.File],
    record: dict[str, Recorded],
    before: Journal,
) -> dict[str, Entry]:
    """For each file that we shall have changed, RECORD itself among them, its original's hash."""
    entries: dict[str, Entry] = {}
    for name in [*wanted, _record_name(found)]:
        known = before.entries.get(name)
        original = known.original if known else None
        if known is None and (name in record):
            original = _sha256(found.site / name)
            listed = record[name][0]
            if listed and original and record_hash(bytes.fromhex(original)) != listed.rstrip("="):
                raise _edited(found.site, [name])
        entries[name] = Entry(original, known.ours if known else ())
    return entries


def _check_untouched(
    found: Installation, entries: Mapping[str, Entry], wanted: Mapping[str, originals.File]
) -> None:
    """Never overwrite what somebody else has written."""
    foreign = []
    for name, entry in entries.items():
        now = _sha256(found.site / name)
        ours = {entry.original, *entry.ours}
        if name in wanted:
            ours.add(wanted[name].sha256)
        if now is not None and now not in ours:
            foreign.append(name)
    if foreign:
        raise _edited(found.site, foreign)


def _edited(site: Path, names: list[str]) -> StateError:
    more = f"\nand {len(names) - 10} more" if len(names) > 10 else ""
    return StateError(
        f"{len(names)} file{'s' * (len(names) > 1)} of the installed torch changed meanwhile; "
        "nothing was overwritten",
        where=str(site),
        why="\n".join(sorted(names)[:10]) + more,
        next="save your edits elsewhere, then reinstall torch: "
        "pip install --force-reinstall --no-deps torch==VERSION",
    )


def _record_file(
    found: Installation,
    record: dict[str, Recorded],
    wanted: Mapping[str, originals.File],
    entries: Mapping[str, Entry],
    compiled: list[str],
) -> originals.File:
    """RECORD as pip needs it to uninstall all of this: our files, the originals and the journal."""
    rows = dict(record)
    for name, file in wanted.items():
        rows[name] = Recorded(record_hash(bytes.fromhex(file.sha256)), str(file.size))
    kept = [name for name, entry in entries.items() if entry.original is not None]
    for name in [*kept, *compiled]:
        rows[f"{installed_journal.DIRECTORY}/files/{name}"] = Recorded("", "")
    rows[f"{installed_journal.DIRECTORY}/journal.json"] = Recorded("", "")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((name, *row) for name, row in rows.items())
    data = text.getvalue().encode()
    return originals.File(
        hashlib.sha256(data).hexdigest(), len(data), lambda to: to.write_bytes(data)
    )


def _sha256(path: Path) -> str | None:
    return files.sha256_file(path) if path.is_file() else None


@contextlib.contextmanager
def _exclusive(found: Installation, cache: Path, on_wait: OnWait) -> Iterator[None]:
    key = files.sha256_text(str(found.site))[:16]
    guard = cache / "locks" / f"develop-{key}.lock"
    with files.lock(guard, f"changing torch in {found.site}", on_wait, LOCK_SECONDS):
        try:
            yield
        except ForkError:
            raise
        except OSError as error:
            raise OutputError(
                "cannot change the installed torch; run again to finish or --undo to go back",
                where=str(error.filename or found.site),
                why=error.strerror or str(error),
                next="make the environment writable, or use one of your own: python3 -m venv DIR",
            ) from error
