"""Files: atomic writes, hashes, fingerprints and the lock between runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from ..errors import BusyError, ForkError, OutputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

CHUNK = 1 << 20
LOCK_SECONDS = 3600.0  # how long a second run waits for the first one, unless its caller says
# What programs say whose error number does not reach us: compilers, and shutil for a whole tree.
DISK_FULL = os.strerror(errno.ENOSPC)

_log = logging.getLogger(__name__)
_LEFTOVER = ("~", ".pyc", ".orig", ".rej")


def output_error(path: Path, error: OSError) -> ForkError:
    """What a user reads of an OSError raised while writing `path`."""
    listed = isinstance(error, shutil.Error)  # each with its source, target and reason
    why = str(error.args[0][0][-1]) if listed else error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or DISK_FULL in str(error):
        return OutputError(
            "the disk is full; nothing was left half-written",
            where=str(path),
            why=why,
            next="free some space (scripts/torchfork clean removes caches), then run the same "
            "command again",
        )
    return OutputError(
        "cannot write here",
        where=str(path),
        why=why,
        next="choose another place (--out DIR, --work DIR, TORCHFORK_CACHE=DIR), or make this one "
        "writable",
    )


class Below:
    """An attribute of an object with a `root`: a path below that."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __get__(self, instance: Rooted, owner: type) -> Path:
        return instance.root / self.path


class Rooted(Protocol):
    """Anything that lies in a directory."""

    @property
    def root(self) -> Path: ...


@contextlib.contextmanager
def atomic_open(path: Path, mode: int = 0o644, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A binary file that takes `path`'s place, whole, when the block succeeds.

    durable: wait until its contents are on disk, and delete what killed runs left of writing it.
    Not for build files, of which there are hundreds and which the next run makes again: a sync
    takes up to 0.1 s on a busy disk.
    """

    def make(prefix: str) -> str:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
        os.close(handle)
        return name

    with _temporary(path, make, clean=durable) as temporary:
        try:
            with temporary.open("wb") as stream:
                yield stream
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
        except OSError as error:
            raise output_error(path, error) from error


@contextlib.contextmanager
def _temporary(path: Path, make: Callable[[str], str], *, clean: bool) -> Iterator[Path]:
    """A file or directory beside `path` (so on the same disk), removed at the end.

    It is locked until then: one that is not was left by a killed run.
    clean: delete those.
    """
    prefix = f".{path.name[:50]}.torchfork-"  # nobody else's file is taken for an abandoned one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if clean:
            _remove_abandoned(path.parent, prefix)
        guard = None
        while guard is None:  # somebody may have taken it for abandoned before it was locked
            temporary = Path(make(prefix))
            guard = _locked(temporary)
    except OSError as error:
        raise output_error(path, error) from error
    try:
        yield temporary
    finally:
        remove(temporary)
        os.close(guard)


def _locked(path: Path) -> int | None:
    """A handle that holds a lock on it, where the filesystem has locks; None if it is gone."""
    try:
        guard = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(guard, fcntl.LOCK_EX)
    if os.fstat(guard).st_nlink:
        return guard
    os.close(guard)
    return None


def _remove_abandoned(directory: Path, prefix: str) -> None:
    for end in ("?" * 8, "?" * 8 + ".old"):  # as tempfile and build_directory name them
        for left in directory.glob(glob.escape(prefix) + end):
            with contextlib.suppress(OSError):
                guard = os.open(left, os.O_RDONLY)
                try:
                    fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(left)
                finally:
                    os.close(guard)


def remove(path: Path) -> None:
    """Delete a file, a link, or all of a directory that can be deleted."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes, mode: int = 0o644, *, durable: bool = True) -> None:
    """Write a whole file atomically."""
    with atomic_open(path, mode, durable=durable) as stream:
        stream.write(data)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a whole text file atomically, UTF-8."""
    write_bytes(path, text.encode(), mode)


def write_if_changed(path: Path, data: bytes | str) -> bool:
    """Write only where the contents differ, so that build tools see an unchanged mtime."""
    raw = data.encode() if isinstance(data, str) else data
    if path.is_file() and path.read_bytes() == raw:
        return False
    write_bytes(path, raw, durable=False)
    return True


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, so that equal values are equal bytes."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON, or None where there is no readable file (a killed run may leave none)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text says. Raises ValueError for a malformed one."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return data
    except RecursionError as error:
        raise ValueError(str(error)) from error


def sha256_file(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_text(*parts: str) -> str:
    """One sha256 over several texts, any that the system gives; their borders count."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(str(len(raw)).encode() + b":" + raw)
    return digest.hexdigest()


def is_leftover(name: str) -> bool:
    """Whether a file or directory is hidden, a cache, or what an editor or patch left behind."""
    return name.startswith(".") or name == "__pycache__" or name.endswith(_LEFTOVER)


def tree_files(root: Path) -> list[Path]:
    """Every file below root, sorted by its path; hidden ones, caches, leftover files left out."""
    found = []
    for directory, names, filenames in os.walk(root):
        names[:] = sorted(name for name in names if not is_leftover(name))
        found += [Path(directory, name) for name in filenames if not is_leftover(name)]
    return sorted(found)


def fingerprint(paths: Iterable[Path], root: Path) -> str:
    """One hash over the relative names and the contents of files."""
    parts: list[str] = []
    for path in sorted(paths):
        parts += [path.relative_to(root).as_posix(), sha256_file(path)]
    return sha256_text(*parts)


def build_directory(target: Path, fill: Callable[[Path], None]) -> None:
    """Make a directory as a whole: `fill` gets a temporary one, which then takes its place.

    The old one is moved aside before it is deleted: a run that is killed there leaves the old one,
    the new one or none, and never what is left of a half-deleted one.
    """
    with scratch_directory(target) as temporary:
        old = temporary.with_name(temporary.name + ".old")
        try:
            fill(temporary)
            temporary.chmod(0o755)
            if target.exists():
                target.rename(old)
            temporary.rename(target)
        except OSError as error:
            raise output_error(target, error) from error
        finally:
            if old.exists() and not target.exists():
                old.rename(target)
            shutil.rmtree(old, ignore_errors=True)


def remove_empty(directory: Path, root: Path) -> None:
    """Remove a directory below root, and those above it, as far as nothing is in them."""
    while directory != root:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent


def remove_stale_temporaries(directory: Path) -> None:
    """Delete what killed runs left in a directory that the caller holds the lock of.

    Everything temporary is named with a dot first, and nothing else in such a directory is.
    """
    for path in directory.glob(".*"):
        remove(path)


@contextlib.contextmanager
def scratch_directory(near: Path) -> Iterator[Path]:
    """A temporary directory beside `near`, removed at the end; those of killed runs are too."""

    def make(prefix: str) -> str:
        return tempfile.mkdtemp(dir=near.parent, prefix=prefix)

    with _temporary(near, make, clean=True) as temporary:
        yield temporary


@contextlib.contextmanager
def lock(path: Path, purpose: str, timeout: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold `path` as a lock; log who holds it while waiting; give up after `timeout` seconds.

    A directory is held itself, whoever the others are and wherever their caches lie: no file is
    left in it, and to read it is enough.
    """
    directory = path.is_dir()
    holder = None if directory else path.with_name(path.name + ".holder")

    def who() -> str:
        if holder and holder.is_file():
            return holder.read_text(encoding="utf-8")
        return f"another run, {purpose} {path}"

    try:
        flags = os.O_RDONLY if directory else os.O_RDWR | os.O_CREAT
        guard = _acquired(path, flags, who, timeout)
    except OSError as error:
        if holder is None:
            raise
        raise output_error(path, error) from error
    try:
        if holder:
            write_text(holder, f"process {os.getpid()} ({purpose})")
        yield
    finally:
        if holder:
            holder.unlink(missing_ok=True)
        os.close(guard)  # or the end of its process: then it is free again


def _acquired(path: Path, flags: int, who: Callable[[], str], timeout: float) -> int:
    end, waited = time.monotonic() + timeout, False
    while True:
        if flags & os.O_CREAT:  # a run that is waited for may delete the directory too
            path.parent.mkdir(parents=True, exist_ok=True)
        guard = os.open(path, flags, 0o666)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(guard).st_ino == path.stat().st_ino:  # not deleted or replaced since
                return guard
        os.close(guard)
        if not waited:
            _log.warning("waiting for %s", who())
        waited = True
        if time.monotonic() >= end:
            raise BusyError(
                f"still held after {timeout:.0f} s by {who()}",
                where=str(path),
                why="two runs must not change the same files at once",
                next="wait for it, or stop it and run the same command again",
            )
        time.sleep(0.05)
