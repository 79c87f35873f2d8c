"""Pack a wheel from a base and an overlay: the same input gives the same bytes, anywhere.

Members of the base are copied compressed as they are: to inflate and deflate those of a CUDA wheel
takes a minute, to copy them a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from ..errors import BaseRefusedError, UsageError
from ..upstream.archives import Recorded, is_of_wheel, read_record, record_hash, record_text
from ..upstream.base import Base
from ..upstream.wheel import VERSION_FILE, replace_version
from ..util import files

# 2020-01-01: any date that stays the same serves.
DEFAULT_EPOCH = 1577836800
# 1980-01-01 and 2107-12-31: the times that a zip archive can have.
EARLIEST, LATEST = 315532800, 4354819199
# The base was installed, so its big libraries have to be deflated anew; 1 takes a third of the
# time of 6 and gives a tenth more bytes.
INSTALLED_LEVEL = 1
# What an installer writes is no part of a wheel; signatures would not hold any more.
_INSTALLERS = {"INSTALLER", "REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s"}
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def epoch_from(environment: Mapping[str, str] | None = None) -> int:
    """SOURCE_DATE_EPOCH as the user set it, or a fixed date. Raises UsageError."""
    text = (os.environ if environment is None else environment).get("SOURCE_DATE_EPOCH", "")
    if not text:
        return DEFAULT_EPOCH
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) > LATEST:
        raise UsageError(
            f"SOURCE_DATE_EPOCH is not a number of seconds that a wheel can have: '{text}'",
            why=f"a zip archive has times until the end of 2107, {LATEST}",
            next="unset it, or set it to seconds since 1970, as in $(git log -1 --format=%ct)",
        )
    return int(text)


def wheel_name(base: Base, version: str) -> str:
    """The new wheel's file name; a build number of the base's is dropped, the version is new."""
    return f"torch-{version}-{base.wheel_tag}.whl"


def pack(base: Base, overlay: Path, version: str, out: Path, epoch: int) -> Path:
    """Write the wheel into `out` and return its path.

    overlay: a tree laid out as site-packages is, of files that are replaced or added.
    version: the new version, for the file name, the metadata and torch.__version__.
    epoch: seconds since 1970 that all members carry as their time.
    """
    target = out / wheel_name(base, version)
    with _opened(base) as source:
        plan = _plan(base, overlay, version, source)
        files.remove_abandoned(target)
        with files.atomic_open(target) as stream:
            _write(stream, plan, source, epoch)
    return target


@dataclass(frozen=True)
class _New:
    """A member whose bytes are ours."""

    data: bytes
    mode: int


@dataclass(frozen=True)
class _Kept:
    """A member of the base, with its RECORD entry."""

    member: str
    mode: int
    recorded: Recorded


class _Member(zipfile.ZipInfo):
    """A member whose entry depends on its own fields alone: every name is written as UTF-8."""

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return self.filename.encode(), 0x800


class Writer:
    """Members appended to an archive, their bytes as they are given: the standard library's own
    way is to deflate, and it takes times and modes from the disk.
    """

    def __init__(self, archive: zipfile.ZipFile, stream: IO[bytes], epoch: int) -> None:
        self._archive, self._stream = archive, stream
        self._date = time.gmtime(max(epoch, EARLIEST))[:6]

    def add(self, name: str, mode: int, data: bytes, level: int = 6) -> None:
        """Add a member, deflated unless that makes it no smaller."""
        packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(data) + packer.flush()
        method = zipfile.ZIP_DEFLATED if len(packed) < len(data) else zipfile.ZIP_STORED
        body = packed if method == zipfile.ZIP_DEFLATED else data
        self._append(name, mode, method, zlib.crc32(data), len(data), len(body), [body])

    def copy(self, name: str, mode: int, source: IO[bytes], old: zipfile.ZipInfo) -> None:
        """Copy a member of another archive as it is, under a name and mode of its own."""
        chunks = _compressed(source, old)
        self._append(
            name, mode, old.compress_type, old.CRC, old.file_size, old.compress_size, chunks
        )

    def _append(
        self, name: str, mode: int, method: int, crc: int, size: int, packed: int,
        chunks: Iterable[bytes],
    ) -> None:  # fmt: skip
        member = _Member(name, self._date)
        member.external_attr = (stat.S_IFREG | mode) << 16
        member.compress_type, member.CRC = method, crc
        member.file_size, member.compress_size = size, packed
        member.header_offset = self._stream.tell()
        self._stream.write(member.FileHeader())
        self._stream.writelines(chunks)
        self._archive.filelist.append(member)
        self._archive.NameToInfo[name] = member
        self._archive.start_dir = self._stream.tell()


def _compressed(source: IO[bytes], member: zipfile.ZipInfo) -> Iterator[bytes]:
    """A member's bytes as they are in the archive; its local header says where they begin."""
    source.seek(member.header_offset)
    header = source.read(_LOCAL_HEADER.size)
    if len(header) != _LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"{member.filename}: no local header where the directory says")
    source.seek(sum(_LOCAL_HEADER.unpack(header)[1:]), os.SEEK_CUR)
    left = member.compress_size
    while left:
        chunk = source.read(min(left, files.CHUNK))
        if not chunk:
            raise zipfile.BadZipFile(f"{member.filename}: the archive ends within it")
        left -= len(chunk)
        yield chunk


class _Source(Protocol):
    """Where the base's members come from: a wheel file, or the installed files."""

    def members(self) -> Mapping[str, int]:
        """Every member with its mode, directories and an installer's own files left out."""

    def read(self, name: str) -> bytes:
        """A member's contents."""

    def copy(self, writer: Writer, name: str, kept: _Kept) -> None:
        """Put a member into the new wheel, unchanged."""


class _WheelSource:
    """Members of a wheel file; their compressed bytes are copied as they are."""

    def __init__(self, archive: zipfile.ZipFile, stream: IO[bytes]) -> None:
        self._archive, self._stream = archive, stream

    def members(self) -> Mapping[str, int]:
        return {
            info.filename: _normal_mode(info.external_attr >> 16)
            for info in self._archive.infolist()
            if not info.is_dir()
        }

    def read(self, name: str) -> bytes:
        return self._archive.read(name)

    def copy(self, writer: Writer, name: str, kept: _Kept) -> None:
        writer.copy(name, kept.mode, self._stream, self._archive.getinfo(kept.member))


class _InstalledSource:
    """Files of an installation, as its RECORD lists them."""

    def __init__(self, base: Base) -> None:
        self._root = base.root
        record = (base.root / base.dist_info / "RECORD").read_text(encoding="utf-8")
        self._names = [name for name in read_record(record) if is_of_wheel(name)]

    def members(self) -> Mapping[str, int]:
        return {name: _normal_mode((self._root / name).stat().st_mode) for name in self._names}

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def copy(self, writer: Writer, name: str, kept: _Kept) -> None:
        writer.add(name, kept.mode, self.read(kept.member), INSTALLED_LEVEL)


@contextlib.contextmanager
def _opened(base: Base) -> Iterator[_Source]:
    try:
        if base.wheel is None:
            yield _InstalledSource(base)
        else:
            with base.wheel.open("rb") as stream, zipfile.ZipFile(base.wheel) as archive:
                yield _WheelSource(archive, stream)
    except (zipfile.BadZipFile, FileNotFoundError) as error:
        raise BaseRefusedError(
            "the base was changed or removed while it was packed",
            where=str(base.wheel or base.root),
            why=str(error),
            next="run the same command again",
        ) from error


def _plan(base: Base, overlay: Path, version: str, source: _Source) -> dict[str, _New | _Kept]:
    """Every member of the new wheel but RECORD, by its new name."""
    record = read_record(source.read(f"{base.dist_info}/RECORD").decode())
    dist_info = f"torch-{version}.dist-info"
    plan: dict[str, _New | _Kept] = {}
    for name, mode in source.members().items():
        new_name = name
        if name.startswith(f"{base.dist_info}/"):
            if name.rpartition("/")[2] in {"RECORD", *_INSTALLERS}:
                continue
            new_name = dist_info + name.removeprefix(base.dist_info)
        plan[new_name] = _Kept(name, mode, record.get(name, Recorded("", "")))
    for path in files.tree_files(overlay):
        name = path.relative_to(overlay).as_posix()
        replaced = plan.get(name)
        mode = replaced.mode if replaced else _normal_mode(path.stat().st_mode)
        plan[name] = _New(path.read_bytes(), mode)
    _set_version(plan, dist_info, version, base.wheel_tag, source)
    return plan


def _set_version(
    plan: dict[str, _New | _Kept], dist_info: str, version: str, tag: str, source: _Source
) -> None:
    """Put the new version and the tag into the three files that have them."""
    changes: dict[str, Callable[[str], str]] = {
        VERSION_FILE: lambda text: replace_version(text, version, VERSION_FILE),
        f"{dist_info}/METADATA": lambda text: _metadata(text, version),
        f"{dist_info}/WHEEL": lambda text: _wheel_file(text, tag),
    }
    for name, change in changes.items():
        old = plan.get(name)
        if old is None:
            raise BaseRefusedError(f"the base has no {name.rpartition('/')[2]}", where=name)
        text = (old.data if isinstance(old, _New) else source.read(old.member)).decode()
        plan[name] = _New(change(text).encode(), old.mode)


def _metadata(text: str, version: str) -> str:
    head, separator, body = text.partition("\n\n")
    changed, count = re.subn(r"(?m)^Version: [^\r\n]*", f"Version: {version}", head)
    if count != 1:
        raise BaseRefusedError("the base's METADATA has no single Version line", where="METADATA")
    return changed + separator + body


def _wheel_file(text: str, tag: str) -> str:
    """The tag of the file name; a build number goes, as it does there."""
    text = re.sub(r"(?m)^Build: [^\n]*\n", "", text)
    platforms = tag.rpartition("-")[2].split(".")
    lines = "".join(f"Tag: {tag.rpartition('-')[0]}-{platform}\n" for platform in platforms)
    first = re.search(r"(?m)^Tag: ", text)
    at = first.start() if first else len(text)
    return text[:at] + lines + re.sub(r"(?m)^Tag: [^\n]*\n", "", text[at:])


def _write(stream: IO[bytes], plan: dict[str, _New | _Kept], source: _Source, epoch: int) -> None:
    dist_info = next(name.split("/")[0] for name in plan if name.endswith(".dist-info/METADATA"))
    # The dist-info comes last, as the wheel specification recommends.
    order = sorted(plan, key=lambda name: (name.startswith(f"{dist_info}/"), name))
    with zipfile.ZipFile(stream, "w") as archive:
        writer = Writer(archive, stream, epoch)
        for name in order:
            entry = plan[name]
            if isinstance(entry, _New):
                writer.add(name, entry.mode, entry.data)
            else:
                source.copy(writer, name, entry)
        record = f"{dist_info}/RECORD"
        writer.add(record, 0o644, _record(plan, order, source, record))


def _record(
    plan: dict[str, _New | _Kept], order: list[str], source: _Source, own_name: str
) -> bytes:
    with ThreadPoolExecutor(2) as pool:
        entries = pool.map(lambda name: _recorded(plan[name], source), order)
        return record_text(dict(zip(order, entries, strict=True)), own_name)


def _recorded(entry: _New | _Kept, source: _Source) -> Recorded:
    if isinstance(entry, _Kept) and all(entry.recorded):
        return entry.recorded
    data = entry.data if isinstance(entry, _New) else source.read(entry.member)
    return Recorded(record_hash(hashlib.sha256(data).digest()), str(len(data)))


def _normal_mode(mode: int) -> int:
    return 0o755 if mode & stat.S_IXUSR else 0o644
