"""Archives: wheels, tarballs, Debian packages; read and unpacked without what leads out of them.

Whatever no wheel should have is refused before anything is written, and every member that is read
into memory has a size limit.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ..errors import BaseRefusedError, ToolMissingError
from ..util import files, process
from .base import TEXT_LIMIT

if TYPE_CHECKING:
    from packaging.metadata import RawMetadata

Progress = Callable[[int, int], None]
# A wheel of torch unpacks to some four times its size.
GROWTH, ALWAYS_ALLOWED = 50, 1 << 30


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """A wheel as a zip archive without members that no wheel should have.

    Raises BaseRefusedError for such a member and for a damaged archive.
    """
    require_file(path)
    with _reading(path):
        try:
            archive = zipfile.ZipFile(path)
        except OSError as error:
            raise _damaged(path, error) from error
    with archive:
        _check_members(archive, path)
        yield archive


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the archive where zipfile meets damage; it says so in many ways."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error,
            ValueError, IndexError, OverflowError) as error:  # fmt: skip
        raise _damaged(path, error) from error


def read_member(archive: zipfile.ZipFile, name: str, limit: int = TEXT_LIMIT) -> str:
    """A text of a wheel. Raises BaseRefusedError where it is missing, too large or not UTF-8."""
    where = f"{archive.filename}: {name}"
    member = archive.NameToInfo.get(name)
    if member is None:
        raise BaseRefusedError(f"this wheel has no {name}", where=where)
    if member.file_size > limit:
        why = f"it has {member.file_size} bytes, and {limit} are allowed"
        raise BaseRefusedError("a text in this wheel is too large", where=where, why=why)
    with _reading(Path(str(archive.filename))):
        data = archive.read(member)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BaseRefusedError(
            "a text in this wheel is not UTF-8", where=where, why=str(error)
        ) from error


def dist_info_of(archive: zipfile.ZipFile) -> str:
    """The name of a wheel's one .dist-info directory. Raises BaseRefusedError."""
    found = {
        name.split("/")[0]
        for name in archive.namelist()
        if name.endswith(".dist-info/RECORD") and name.count("/") == 1
    }
    project = Path(str(archive.filename)).name.split("-")[0]
    if len(found) == 1 and (only := found.pop()).startswith(f"{project}-"):
        return only
    raise BaseRefusedError(
        "this wheel is incomplete",
        where=str(archive.filename),
        why=f"it lacks its one {project}-….dist-info/RECORD",
        next="give an official wheel, or build this tree with --from-source",
    )


class Recorded(NamedTuple):
    """What RECORD lists of a file: 'sha256=…' and the number of bytes; '' where it does not."""

    hash: str
    size: str

    def matches(self, digest: bytes) -> bool:
        """Whether this is the sha256 listed; true where RECORD lists none."""
        return not self.hash.startswith("sha256=") or self.hash.rstrip("=") == record_hash(digest)


def read_record(text: str, where: str = "RECORD") -> dict[str, Recorded]:
    """A RECORD by its paths. Raises BaseRefusedError."""
    try:
        rows = csv.reader(io.StringIO(text))
        return {row[0]: Recorded(row[1], row[2]) for row in rows if len(row) >= 3}
    except csv.Error as error:
        raise BaseRefusedError("this RECORD cannot be read", where=where, why=str(error)) from error


def record_text(rows: Mapping[str, Recorded], own_name: str) -> bytes:
    """RECORD as a file, in the order given; own_name: its own path, which has no hash."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((name, *row) for name, row in rows.items())
    writer.writerow((own_name, "", ""))
    return text.getvalue().encode()


def record_of(archive: zipfile.ZipFile) -> dict[str, Recorded]:
    """The RECORD of a wheel. Raises BaseRefusedError."""
    name = f"{dist_info_of(archive)}/RECORD"
    return read_record(read_member(archive, name), f"{archive.filename}: {name}")


def is_of_wheel(name: str) -> bool:
    """Whether a wheel brought a file that an installed RECORD lists; installers list more."""
    return not name.startswith(("/", "..")) and not name.endswith(".pyc")


def metadata_of(archive: zipfile.ZipFile) -> RawMetadata:
    """The METADATA of a wheel. Raises BaseRefusedError."""
    from packaging.metadata import parse_email  # brings the email package

    name = f"{dist_info_of(archive)}/METADATA"
    return parse_email(read_member(archive, name))[0]


def requirements_of(wheel: Path) -> list[str]:
    """What a wheel file requires. Raises BaseRefusedError."""
    with opened(wheel) as archive:
        return metadata_of(archive).get("requires_dist", [])


def record_hash(digest: bytes) -> str:
    """A sha256 as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def require_file(path: Path) -> None:
    """Refuse what is missing, and pipes and devices, which may have no end."""
    if not path.is_file():
        raise BaseRefusedError(
            "this is not a file" if path.exists() else "there is no such wheel file",
            where=str(path),
            next="give the path of a .whl file, or a version with --torch",
        )


def _damaged(path: Path, error: Exception) -> BaseRefusedError:
    return BaseRefusedError(
        "this file is damaged or was not downloaded completely",
        where=str(path),
        why=str(error),
        next="download it again",
    )


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse members that would be written elsewhere, as links or twice, and too many bytes."""
    size, own = sum(m.file_size for m in archive.infolist()), path.stat().st_size
    wrong = _wrong_member(archive.infolist(), own)
    if wrong:
        raise BaseRefusedError(
            "this wheel has a member that no wheel should have",
            where=f"{path}: {wrong[0]!r}",
            why=wrong[1],
        )
    if size > max(ALWAYS_ALLOWED, GROWTH * own):
        why = f"its members have {size} bytes, the file {own}"
        raise BaseRefusedError("this wheel unpacks to too much", where=str(path), why=why)


def _wrong_member(members: list[zipfile.ZipInfo], size: int) -> tuple[str, str] | None:
    """The first member that no wheel of that size should have, and why."""
    found: set[str] = set()
    directories: set[str] = set()
    for member in members:
        name = member.filename
        parts = name.removesuffix("/").split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or "\\" in name or ":" in parts[0]:
            return name, "its path leads out of the wheel, or is not in its plain form"
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            return name, "it is a link or a special file"
        if member.flag_bits & 0x1:
            return name, "it is encrypted"
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return name, "it is compressed in a way that wheels do not use"
        if not 0 <= member.header_offset < size:
            return name, "it is outside of the file"
        if name in found:
            return name, "it is there twice"
        found.add(name)
        parent = name.rpartition("/")[0]
        while parent and parent not in directories:
            directories.add(parent)
            parent = parent.rpartition("/")[0]
    both = found & directories
    return (min(both), "it is a file, and a directory of others") if both else None


def unpack_wheel(
    path: Path, archive: zipfile.ZipFile, root: Path, progress: Progress | None
) -> None:
    """Unpack a wheel, completely or not at all, and compare each file with RECORD."""
    record = record_of(archive)
    members = [member for member in archive.infolist() if not member.is_dir()]
    total, done = sum(member.file_size for member in members), [0, 0]

    def fill(target: Path) -> None:
        for directory in {(target / member.filename).parent for member in members}:
            directory.mkdir(parents=True, exist_ok=True)

        def unpack(share: int) -> None:
            with _reading(path), zipfile.ZipFile(path) as own:
                for member in members[share::2]:
                    digest = _unpack_member(own, member, target / member.filename)
                    if not record.get(member.filename, Recorded("", "")).matches(digest):
                        raise BaseRefusedError(
                            "a file in this wheel is not the one that its RECORD lists",
                            where=f"{path}: {member.filename}",
                            next="download the wheel again",
                        )
                    done[share] += member.file_size
                    if progress:
                        progress(sum(done), total)

        # zlib and sha256 run without the interpreter's lock: two threads halve the wait.
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(unpack, (0, 1)))

    files.build_directory(root, fill)


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> bytes:
    digest = hashlib.sha256()
    mode = 0o755 if member.external_attr >> 16 & 0o111 else 0o644
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as out, archive.open(member) as stream:
        while chunk := stream.read(files.CHUNK):
            digest.update(chunk)
            out.write(chunk)
    return digest.digest()


def unpack_tar(path: Path, target: Path, only: str = "") -> None:
    """Unpack a tar archive without its own top directory.

    only: the directory below the top one that is taken, instead of all.
    Raises BaseRefusedError for a damaged archive and for members that lead out of it.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(path) as archive:
            allowed = max(ALWAYS_ALLOWED, GROWTH * path.stat().st_size)
            members = list(_members(archive, only, allowed))
            if not members:
                raise BaseRefusedError(
                    f"the archive has no directory {only}" if only else "the archive is empty",
                    where=str(path),
                )
            # What Python's own filter refuses, and all that this code relies on, in any version.
            options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(target, members, **options)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError) as error:
        raise BaseRefusedError(
            "this archive is damaged, or has a member that no archive of sources should have",
            where=str(path),
            why=str(error),
            next="fetch it again",
        ) from error
    except OSError as error:
        raise files.output_error(target, error) from error


def _members(archive: tarfile.TarFile, only: str, allowed: int) -> Iterator[tarfile.TarInfo]:
    """The members by their names below the archive's top directory; of `allowed` bytes at most."""
    for member in archive:
        allowed -= member.size
        if allowed < 0:
            raise tarfile.TarError(f"{member.name}: with it, the archive unpacks to too much")
        parts = PurePosixPath(member.name).parts[1:]
        if only:
            parts = parts[1:] if parts[:1] == (only,) else ()
        if not parts:
            continue
        if ".." in parts or not (member.isreg() or member.isdir() or member.issym()):
            raise tarfile.TarError(f"{member.name}: leads out of the archive, or is no plain file")
        # Links are followed from the directory that they are in; absolute ones lead out, too.
        link = PurePosixPath(*parts[:-1], member.linkname)
        if member.issym() and os.path.normpath(link).split("/")[0] in ("..", ""):
            raise tarfile.TarError(f"{member.name}: a link out of the archive")
        member.name = "/".join(parts)
        yield member


def unpack_deb(path: Path, target: Path) -> None:
    """Unpack a Debian package; nothing is installed and none of its scripts run."""
    if not shutil.which("dpkg-deb"):
        raise ToolMissingError(
            "no dpkg-deb, which unpacks Debian's packages",
            where="PATH",
            next="apt-get install dpkg, or use another source: --source git, --source PATH",
        )
    target.mkdir(parents=True, exist_ok=True)
    outcome = process.run(["dpkg-deb", "--extract", path, target], check=False)
    if outcome.returncode and files.DISK_FULL in outcome.stderr:
        raise files.output_error(target, OSError(28, files.DISK_FULL))
    if outcome.returncode:
        raise BaseRefusedError(
            "this package is damaged",
            where=str(path),
            why=outcome.stderr.strip(),
            next="fetch it again",
        )
