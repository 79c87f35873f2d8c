"""Unpacking a wheel: once, whole or not at all, every file compared with RECORD."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import os
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from ..errors import BaseRefusedError
from ..util import files

Progress = Callable[[int, int], None]
OnWait = Callable[[str], None]
WAIT_SECONDS = 900.0


def wait_silently(holder: str) -> None:
    """For callers that have nobody to tell who holds the lock."""


def unpack_once(
    path: Path, sha256: str, dist_info: str, cache: Path, progress: Progress | None, on_wait: OnWait
) -> Path:
    """Unpack a wheel into cache/unpacked/<sha256> unless it is there."""
    root = cache / "unpacked" / sha256
    if root.is_dir():
        return root
    guard = cache / "locks" / f"unpack-{sha256[:16]}.lock"
    with files.lock(guard, f"unpacking {path.name}", on_wait, WAIT_SECONDS):
        if not root.is_dir():
            with opened(path) as archive:
                check_members(archive, path)
                _unpack(path, archive, dist_info, root, progress)
    return root


def read_record(text: str) -> dict[str, tuple[str, str]]:
    """A RECORD as {path: (hash, size)}."""
    return {row[0]: (row[1], row[2]) for row in csv.reader(io.StringIO(text)) if len(row) >= 3}


def record_hash(digest: bytes) -> str:
    """A sha256 as RECORD spells it."""
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """A wheel opened as a zip archive; damage met while reading it is told as such."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BaseRefusedError(
            "this file is damaged or was not downloaded whole",
            where=str(path),
            why=str(error),
            next="download it again",
        ) from error


def check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse members that would be written elsewhere, as links, or twice."""
    seen: set[str] = set()
    for member in archive.infolist():
        name = member.filename
        parts = PurePosixPath(name).parts
        kind = stat.S_IFMT(member.external_attr >> 16)
        wrong = ""
        if name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]:
            wrong = "its path leads out of the wheel"
        elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            wrong = "it is a link or a special file"
        elif name in seen:
            wrong = "it is there twice"
        elif member.flag_bits & 0x1:
            wrong = "it is encrypted"
        if wrong:
            raise BaseRefusedError(
                "this wheel has a member that no wheel should have",
                where=f"{path}: {name}",
                why=wrong,
            )
        seen.add(name)


def _unpack(
    path: Path, archive: zipfile.ZipFile, dist_info: str, root: Path, progress: Progress | None
) -> None:
    record = read_record(archive.read(f"{dist_info}/RECORD").decode())
    members = [member for member in archive.infolist() if not member.is_dir()]
    total, done, counting = sum(member.file_size for member in members), 0, threading.Lock()

    def advance(size: int) -> None:
        nonlocal done
        with counting:
            done += size
            if progress:
                progress(done, total)

    def fill(target: Path) -> None:
        for directory in {(target / member.filename).parent for member in members}:
            directory.mkdir(parents=True, exist_ok=True)
        # zlib and sha256 run without the interpreter's lock: two threads halve the wait.
        with ThreadPoolExecutor(2) as pool:
            for share in [
                pool.submit(_unpack_share, path, members[start::2], record, target, advance)
                for start in (0, 1)
            ]:
                share.result()

    files.build_directory(root, fill)


def _unpack_share(
    path: Path,
    members: list[zipfile.ZipInfo],
    record: dict[str, tuple[str, str]],
    target: Path,
    advance: Callable[[int], None],
) -> None:
    with opened(path) as archive:
        for member in members:
            digest = _unpack_member(archive, member, target / member.filename)
            expected = record.get(member.filename, ("", ""))[0]
            if expected.startswith("sha256=") and expected.rstrip("=") != record_hash(digest):
                raise BaseRefusedError(
                    "a file in this wheel is not the one that its RECORD lists",
                    where=f"{path}: {member.filename}",
                    next="download the wheel again",
                )
            advance(member.file_size)


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> bytes:
    digest = hashlib.sha256()
    mode = 0o755 if member.external_attr >> 16 & 0o111 else 0o644
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as out, archive.open(member) as stream:
        while chunk := stream.read(files.CHUNK):
            digest.update(chunk)
            out.write(chunk)
    return digest.digest()
