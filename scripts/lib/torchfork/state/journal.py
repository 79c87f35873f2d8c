"""Reversible changes of files that are not ours: a journal, the original files, and a lock.

Every change is announced in the journal before it is made, and each file changes by one rename: a
killed run leaves files that are either the originals or ours, the journal knows both, and the next
run resumes there. What is neither was edited by somebody, and is never overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ..errors import OutputError, StateError, listed
from ..upstream.tree import ABSENT, state_of
from ..util import files, memo

_FORMAT = 2


@dataclass(frozen=True)
class Entry:
    """One file that was replaced, added or removed.

    original: sha256 of the file that was there, None for an added file.
    ours: sha256 of every content that we may have put there; two while a change is under way.
    """

    original: str | None
    ours: tuple[str, ...]


@dataclass(frozen=True)
class Journal:
    """All files that are not as they were found; `settled` unless a run was killed.

    identity: of the base that an installed torch is, or the commit of a tree.
    additions: the directory that an apply took them from.
    compiled: .pyc files that were kept, of replaced .py files.
    """

    identity: str | None
    additions: str = ""
    settled: bool = True
    entries: Mapping[str, Entry] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()


@dataclass(frozen=True)
class Content:
    """A file as it shall be: `write` puts its contents into a path."""

    sha256: str
    size: int
    write: Callable[[Path], object]
    mode: int = 0o644  # of a new file; one that takes another's place has that one's

    @classmethod
    def of_bytes(cls, data: bytes) -> Content:
        """The file with these bytes."""
        digest = hashlib.sha256(data).hexdigest()
        return cls(digest, len(data), lambda path: path.write_bytes(data))


# By paths relative to the root; None for a file that goes.
Contents = Mapping[str, Content | None]


@dataclass(frozen=True)
class Step:
    """One change of one file: to a content, or `back` to the original."""

    name: str
    content: Content | None = None
    back: bool = False


@dataclass(frozen=True)
class Changes:
    """What a run did to the files below a root, by their names."""

    root: Path
    written: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0


@dataclass(frozen=True)
class Store:
    """The journal and the originals of one directory, in a folder below it."""

    root: Path  # site-packages, or a source tree
    folder: str
    originals: str  # the folder below that one for the original files
    # A second name of the same file keeps its inode and times. A copy is for trees: there a
    # restored file gets the present as its time, for ninja compares times, and a file that became
    # older than its object would never be compiled again.
    links: bool

    @property
    def path(self) -> Path:
        """The journal."""
        return self.root / self.folder / "journal.json"

    def original(self, name: str) -> Path:
        """Where the original of a replaced file is kept."""
        return self.root / self.folder / self.originals / name

    def as_found(self, name: str, journal: Journal | None) -> Path:
        """The file as it was found: the kept original where there is one."""
        if journal and name in journal.entries:
            kept = self.original(name)
            if kept.is_file():
                return kept
        return self.root / name

    def load(self) -> Journal | None:
        """The journal, None where nothing is changed. Raises StateError."""
        if not self.path.is_file():
            return None
        try:
            data = files.read_json(self.path)
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']}")
            return memo.load(Journal, data)
        except (TypeError, KeyError, ValueError) as error:
            raise StateError(
                "the journal of what was changed here cannot be read",
                where=str(self.path),
                why=f"{type(error).__name__}: {error}",
                next=f"the original files are in {self.original('').parent}; put them back by hand "
                f"and delete {self.path.parent}, or install torch (check the tree out) anew",
            ) from error

    def save(self, journal: Journal) -> None:
        """Write the journal, on disk before anything that it announces is done."""
        make_directory(self.path.parent)
        files.write_json(self.path, {"format": _FORMAT, **asdict(journal)})

    def keep(self, name: str, sha256: str | None = None) -> None:
        """Keep the original of a file that is about to change; once.

        sha256: of the original; a file that is no longer it is not kept.
        """
        source, target = self.root / name, self.original(name)
        # One that a run left which was killed before it wrote its journal may be of another time.
        if target.exists() and (sha256 is None or state_of(target) == sha256):
            return
        if not source.exists() or (sha256 is not None and state_of(source) != sha256):
            return
        make_directory(target.parent)
        partial = target.with_name(f".{target.name}.part")
        partial.unlink(missing_ok=True)
        try:
            if not self.links:
                raise OSError
            partial.hardlink_to(source)
        except OSError:  # or a filesystem without hard links
            shutil.copy2(source, partial)
        partial.replace(target)

    def put(self, name: str, content: Content | None) -> None:
        """Give a file its content by one rename, or remove it."""
        target = self.root / name
        if content is None:
            target.unlink(missing_ok=True)
            return
        mode = target.stat().st_mode & 0o777 if target.is_file() else content.mode
        # Written beside the journal: a killed run leaves nothing that a build or an import finds.
        partial = self.path.with_name("partial")
        make_directory(target.parent)
        content.write(partial)
        partial.chmod(mode)
        partial.replace(target)

    def put_back(self, name: str, entry: Entry) -> bool:
        """Bring an original back, or remove what was added; whether there was anything to do."""
        kept, place = self.original(name), self.root / name
        if kept.exists():
            if not self.links:
                if state_of(place) == entry.original:
                    kept.unlink()
                    return False
                os.utime(kept)
            make_directory(place.parent)
            kept.replace(place)
            return True
        if entry.original is None and place.exists():
            place.unlink()
            files.remove_empty(place.parent, self.root)
            return True
        return False

    def run(self, steps: Iterable[Step], entries: Mapping[str, Entry]) -> list[Step]:
        """Make changes that the journal has announced; those that there was anything to do for."""
        done = []
        for step in steps:
            entry = entries[step.name]
            if step.back:
                if not self.put_back(step.name, entry):
                    continue
            else:
                if entry.original is not None:
                    self.keep(step.name, entry.original)
                self.put(step.name, step.content)
            done.append(step)
        return done

    def refuse_edits(
        self, entries: Mapping[str, Entry], wanted: Contents, *, next: str, absent: bool
    ) -> None:
        """Never overwrite what somebody else has written. absent: a file may be missing."""
        edited = []
        for name, entry in sorted(entries.items()):
            known = {entry.original or ABSENT, *entry.ours, *({ABSENT} if absent else ())}
            if name in wanted:
                known.add(digest(wanted[name]))
            if state_of(self.root / name) not in known:
                edited.append(name)
        if edited:
            raise edited_since(self.root, edited, next)

    def forget(self) -> None:
        """Remove the originals, then the journal: a run that is killed here can be finished."""
        folder = self.path.parent
        if not folder.is_dir():
            return
        if self.original("").is_dir():
            shutil.rmtree(self.original(""))
        for name in ("partial", ".gitignore", self.path.name):
            (folder / name).unlink(missing_ok=True)
        files.remove_stale_temporaries(folder)
        with contextlib.suppress(OSError):  # a tree's provenance stays
            folder.rmdir()


def digest(content: Content | None) -> str:
    """The sha256 of a content, ABSENT for none."""
    return ABSENT if content is None else content.sha256


Order = Callable[[Sequence[str], Sequence[str]], Iterable[Step]]


def change(
    store: Store, wanted: Contents, before: Journal, entries: Mapping[str, Entry],
    order: Order | None = None,
    finish: Callable[[Journal, Changes], Journal] = lambda journal, changes: journal,
) -> Changes:  # fmt: skip
    """Have files hold exactly `wanted` beyond their originals: announced, done, settled.

    before: the journal as it was, with what the new one shall have beside entries.
    entries: of all files that will have been changed.
    order: the steps for the files that differ and those that are wanted no more, in which they come
        one after another otherwise. finish: does what follows them; the settled journal.
    """
    differing = [n for n, content in wanted.items() if state_of(store.root / n) != digest(content)]
    stale = sorted(before.entries.keys() - wanted.keys())
    if not differing and not stale and before.settled:
        return Changes(store.root, unchanged=len(wanted))
    # While a change is under way, the old content and the new one are both ours.
    announced = {
        name: Entry(entry.original, tuple(dict.fromkeys([*entry.ours, digest(wanted[name])])))
        if name in wanted
        else entry
        for name, entry in entries.items()
    }
    journal = replace(before, settled=False, entries=announced)
    store.save(journal)
    # Before any .py file changes, so that these are still the wheel's.
    for name in journal.compiled:
        store.keep(name)
    steps = order(differing, stale) if order else [
        *(Step(name, wanted[name]) for name in differing),
        *(Step(name, back=True) for name in stale),
    ]  # fmt: skip
    done = store.run(steps, entries)
    back = sorted({step.name for step in done if step.back}.intersection(stale))
    changes = Changes(
        store.root,
        written=tuple(sorted(differing)),
        restored=tuple(name for name in back if entries[name].original is not None),
        removed=tuple(name for name in back if entries[name].original is None),
        unchanged=len(wanted) - len(differing),
    )
    kept = {n: Entry(entries[n].original, (digest(content),)) for n, content in wanted.items()}
    store.save(finish(replace(journal, settled=True, entries=kept), changes))
    return changes


def undo(store: Store, journal: Journal, order: Iterable[str]) -> Changes:
    """Take everything back; the journal itself is for the caller to forget."""
    store.save(replace(journal, settled=False))
    done = store.run((Step(name, back=True) for name in order), journal.entries)
    added = {name for name, entry in journal.entries.items() if entry.original is None}
    return Changes(
        store.root,
        restored=tuple(step.name for step in done if step.name not in added),
        removed=tuple(step.name for step in done if step.name in added),
    )


def edited_since(root: Path, names: list[str], next: str) -> StateError:
    """Files that somebody else has changed."""
    return StateError(
        f"{len(names)} file{'s' * (len(names) > 1)} changed meanwhile; nothing was overwritten",
        where=str(root),
        why=listed(names),
        next=next,
    )


def make_directory(path: Path) -> None:
    """Make a directory with the mode of the one it lies in, whatever the umask says.

    Others use the environment too; a directory that only we can read would hide files from them.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(path.parent.stat().st_mode & 0o777)


@contextlib.contextmanager
def exclusive(directory: Path, purpose: str, seconds: float, next: str) -> Iterator[None]:
    """Hold a directory against other runs.

    Raises BusyError after `seconds`, OutputError with `next` where the directory cannot be locked,
    or a file not be changed.
    """
    try:
        with files.lock(directory, purpose, seconds):
            yield
    except OSError as error:
        raise OutputError(
            "cannot change these files; the next run finishes what was begun, or undoes it",
            where=str(error.filename or directory),
            why=error.strerror or str(error),
            next=next,
        ) from error
