"""`--develop`: put an overlay into the installed torch, and take it out again bit for bit.

A library that a running process has mapped is never written into; its old file lives on until the
process ends. The order of the changes is such that torch can be imported after each of them. Its
version stays as it is, in torch/version.py as in the metadata: what pip knows of this environment
remains true. The journal and the originals lie in torch/, so that they go where torch goes and
`pip uninstall torch` takes them along.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from ..errors import StateError, UsageError
from ..upstream.archives import Recorded, is_of_wheel, read_record, record_hash, record_text
from ..upstream.base import Base, Interpreter
from ..upstream.installed import Installation, locate, open_installed, record_identity
from ..upstream.tree import state_of
from ..upstream.wheel import Opening
from ..util import files
from . import journal
from .journal import Changes, Content, Entry, Journal, Step, Store

DIRECTORY = "torch/.torchfork-originals"
LOCK_SECONDS = 300.0
_CURE = "put them back, for example: pip install --force-reinstall --no-deps torch==VERSION"


def store(site: Path) -> Store:
    """Where the journal and the originals of an environment lie."""
    return Store(site, DIRECTORY, "files", links=True)


def open_base(opening: Opening, *, unpinned: bool = False) -> Base:
    """The torch of an environment as a base, with everything as its wheel brought it.

    unpinned: accept a torch whose commit no release pins.
    """
    found = locate(opening.interpreter)
    with _exclusive(found):
        kept = store(found.site)
        original = partial(kept.as_found, journal=kept.load())
        return open_installed(found, opening, original, unpinned=unpinned)


def install(base: Base, overlay: Path) -> Changes:
    """Make the installed torch equal to base and overlay; only files that differ are touched.

    base: from open_base, of the environment that is changed.
    """
    if base.wheel is not None:
        raise UsageError(
            "--develop changes the installed torch, and this base is a wheel file",
            where=str(base.wheel),
            next="use --develop together with --base installed",
        )
    found = locate(base.interpreter)
    with _exclusive(found):
        kept = store(found.site)
        before = kept.load() or Journal(base.identity)
        record = _original_record(found, kept, before)
        _check_base(found, base, record, before)
        wanted = _overlay_files(overlay)
        entries = _entries(found, wanted, record, before)
        kept.refuse_edits({**before.entries, **entries}, wanted, next=_CURE, absent=True)
        replaced = [name for name in entries if name in record and name not in before.entries]
        compiled = sorted({*before.compiled, *_compiled(found.site, replaced)})
        wanted[_record_name(found)] = _record_file(record, wanted, entries, compiled)
        everything = {**before.entries, **entries}

        def finish(done: Journal, changes: Changes) -> Journal:
            stale = sorted(everything.keys() - wanted.keys())
            _restore_compiled(kept, replace(done, entries=everything), stale)
            _remove_compiled_of(kept.root, changes.removed)
            still = (name for name in done.compiled if kept.original(name).exists())
            return replace(done, compiled=tuple(still))

        return journal.change(
            kept, wanted, replace(before, compiled=tuple(compiled)), everything,
            partial(_steps, kept, wanted, everything), finish,
        )  # fmt: skip


def undo(interpreter: Interpreter) -> Changes:
    """Put every file back as the wheel brought it and remove all traces."""
    found = locate(interpreter)
    with _exclusive(found):
        kept = store(found.site)
        before = kept.load()
        if before is None:
            kept.forget()  # of a run that was killed before it did anything
            raise StateError(
                "there is nothing to undo",
                where=str(found.site / "torch"),
                why="no --develop build was put into this torch",
                next="scripts/torchfork doctor says which torch this is",
            )
        kept.refuse_edits(before.entries, {}, next=_CURE, absent=True)
        order = sorted(before.entries, key=partial(_rank, before.entries), reverse=True)
        changes = journal.undo(kept, before, order)
        _restore_compiled(kept, before, order)
        _remove_compiled_of(found.site, changes.removed)
        kept.forget()
        return changes


def _rank(entries: Mapping[str, Entry], name: str) -> tuple[int, int, bool, str]:
    """The place of a file in the order of an install; an undo goes the other way.

    First what nobody asks for yet: new files, then libtorch.so, which has all that the old one has;
    then torch/_C, which needs the new libtorch.so; then edits of existing files, which may name
    what these bring. Of modules the inner ones come before the packages that import them.
    """
    path = PurePosixPath(name)
    if path.name == "RECORD":
        group = 4
    elif entries[name].original is None:
        group = 0
    elif ".so" in path.suffixes:
        group = 1 if path.parent.name == "lib" else 2
    else:
        group = 3
    return group, -len(path.parts), path.name == "__init__.py", name


def _steps(
    kept: Store,
    wanted: Mapping[str, Content],
    entries: Mapping[str, Entry],
    differing: Sequence[str],
    stale: Sequence[str],
) -> list[Step]:
    """The changes in an order in which torch can be imported after each.

    Where a module or torch/_C of an earlier overlay changes, all edited modules become the wheel's
    own first: they may name what the new overlay no longer has.
    """
    place = partial(_rank, entries)
    changing = {*differing, *stale}

    def is_ours(name: str) -> bool:
        entry = entries[name]
        return entry.original is not None and state_of(kept.root / name) != entry.original

    def is_code(name: str) -> bool:
        return place(name)[0] == 2 or (place(name)[0] == 3 and name.endswith(".py"))

    code = [name for name in entries if is_code(name) and is_ours(name)]
    again: list[str] = []
    if changing.intersection(code):
        again = [name for name in code if name in changing or place(name)[0] == 3]
    forward = sorted({*differing, *(name for name in again if name in wanted)}, key=place)
    first = sorted(again, key=place, reverse=True)
    last = sorted(set(stale) - set(again), key=place, reverse=True)
    return [
        *(Step(name, back=True) for name in first),
        *(Step(name, wanted[name]) for name in forward),
        *(Step(name, back=True) for name in last),
    ]


def _overlay_files(overlay: Path) -> dict[str, Content]:
    return {
        path.relative_to(overlay).as_posix(): Content(
            files.sha256_file(path),
            path.stat().st_size,
            partial(shutil.copyfile, path),
            0o755 if ".so" in path.suffixes else 0o644,
        )
        for path in files.tree_files(overlay)
    }


def _record_name(found: Installation) -> str:
    return f"{found.dist_info}/RECORD"


def _original_record(found: Installation, kept: Store, before: Journal) -> dict[str, Recorded]:
    path = kept.as_found(_record_name(found), before)
    return read_record(path.read_text(encoding="utf-8"), str(found.record))


def _check_base(
    found: Installation, base: Base, record: Mapping[str, Recorded], before: Journal
) -> None:
    """The torch that is changed must be the one that was compiled against."""
    wheel_rows = {name: row for name, row in record.items() if is_of_wheel(name)}
    if base.identity == before.identity == record_identity(wheel_rows):
        return
    raise StateError(
        "the installed torch has changed since it was built for",
        where=str(found.site / found.dist_info),
        next="run the same command again",
    )


def _entries(
    found: Installation,
    wanted: Mapping[str, Content],
    record: Mapping[str, Recorded],
    before: Journal,
) -> dict[str, Entry]:
    """For each file that will have changed, RECORD itself among them, its original's hash."""
    entries: dict[str, Entry] = {}
    for name in [*wanted, _record_name(found)]:
        known = before.entries.get(name)
        if known is None and name in record and (found.site / name).is_file():
            original = files.sha256_file(found.site / name)
            if not record[name].matches(bytes.fromhex(original)):
                raise journal.edited_since(found.site, [name], _CURE)
            known = Entry(original, ())
        entries[name] = known or Entry(None, ())
    return entries


def _record_file(
    record: Mapping[str, Recorded],
    wanted: Mapping[str, Content],
    entries: Mapping[str, Entry],
    compiled: Sequence[str],
) -> Content:
    """RECORD as pip needs it to uninstall all of this: our files, the originals and the journal."""
    rows = dict(record)
    for name, content in wanted.items():
        rows[name] = Recorded(record_hash(bytes.fromhex(content.sha256)), str(content.size))
    kept = [name for name, entry in entries.items() if entry.original is not None]
    for name in [*kept, *compiled]:
        rows[f"{DIRECTORY}/files/{name}"] = Recorded("", "")
    return Content.of_bytes(record_text(rows, f"{DIRECTORY}/journal.json"))


def _compiled(site: Path, names: Sequence[str]) -> list[str]:
    """The .pyc files of replaced .py files: part of what an undo brings back."""
    return sorted(
        path.relative_to(site).as_posix()
        for name in names
        if name.endswith(".py")
        for path in _pyc_files(site, name)
    )


def _pyc_files(site: Path, name: str) -> list[Path]:
    source = site / name
    return list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"))


def _remove_compiled_of(site: Path, removed: Sequence[str]) -> None:
    for name in removed:
        for pyc in _pyc_files(site, name) if name.endswith(".py") else []:
            pyc.unlink()
            files.remove_empty(pyc.parent, site)


def _restore_compiled(kept: Store, before: Journal, names: Sequence[str]) -> None:
    """Each restored .py file gets back the .pyc files that it had, and no others.

    One that was kept and is kept no more is back already: an earlier run was killed after it.
    """
    site, known = kept.root, set(before.compiled)
    for name in names:
        if not name.endswith(".py") or before.entries[name].original is None:
            continue
        for pyc in _pyc_files(site, name):
            if pyc.relative_to(site).as_posix() not in known:
                pyc.unlink()
    for name in before.compiled:
        source = Path(name).parent.parent / (Path(name).name.split(".")[0] + ".py")
        if source.as_posix() in names and kept.original(name).exists():
            journal.make_directory((site / name).parent)
            kept.original(name).replace(site / name)


def _exclusive(found: Installation) -> AbstractContextManager[None]:
    return journal.exclusive(
        found.site / "torch", "changing or reading", LOCK_SECONDS,
        "make the environment writable, or use one of your own: python3 -m venv DIR",
    )  # fmt: skip
