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
from typing import IO

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
_NO_ROW = Recorded("", "")
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
    with _members(base) as members:
        write(target, _plan(base, overlay, version, members), epoch)
    return target


@dataclass(frozen=True)
class Member:
    """A member of the new wheel. put: appends it to an archive under a name."""

    mode: int
    read: Callable[[], bytes]
    put: Callable[[Writer, str], None]
    row: Recorded = _NO_ROW  # in the base's RECORD

    def recorded(self) -> Recorded:
        """Its row in RECORD."""
        if all(self.row):
            return self.row
        data = self.read()
        return Recorded(record_hash(hashlib.sha256(data).digest()), str(len(data)))


def new(data: bytes, mode: int = 0o644) -> Member:
    """A member whose bytes are ours."""
    return Member(mode, lambda: data, lambda writer, name: writer.add(name, mode, data))


def _of_wheel(
    archive: zipfile.ZipFile, stream: IO[bytes], info: zipfile.ZipInfo, row: Recorded
) -> Member:
    """A member of a wheel file; its compressed bytes are copied as they are."""
    mode = _normal_mode(info.external_attr >> 16)
    return Member(
        mode, lambda: archive.read(info),
        lambda writer, name: writer.copy(name, mode, stream, info), row,
    )  # fmt: skip


def _of_installation(path: Path, row: Recorded) -> Member:
    """An installed file that the wheel brought."""
    mode = _normal_mode(path.stat().st_mode)
    return Member(
        mode, path.read_bytes,
        lambda writer, name: writer.add(name, mode, path.read_bytes(), INSTALLED_LEVEL), row,
    )  # fmt: skip


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


@contextlib.contextmanager
def _members(base: Base) -> Iterator[dict[str, Member]]:
    """What the base's wheel brought, by name; directories and an installer's files left out."""
    try:
        if base.wheel is None:
            record = read_record((base.root / base.dist_info / "RECORD").read_text("utf-8"))
            yield {
                name: _of_installation(base.root / name, row)
                for name, row in record.items()
                if is_of_wheel(name)
            }
            return
        with base.wheel.open("rb") as stream, zipfile.ZipFile(base.wheel) as archive:
            record = read_record(archive.read(f"{base.dist_info}/RECORD").decode())
            yield {
                info.filename: _of_wheel(archive, stream, info, record.get(info.filename, _NO_ROW))
                for info in archive.infolist()
                if not info.is_dir()
            }
    except (zipfile.BadZipFile, FileNotFoundError) as error:
        raise BaseRefusedError(
            "the base was changed or removed while it was packed",
            where=str(base.wheel or base.root),
            why=str(error),
            next="run the same command again",
        ) from error


def _plan(
    base: Base, overlay: Path, version: str, members: Mapping[str, Member]
) -> dict[str, Member]:
    """Every member of the new wheel but RECORD, by its new name."""
    dist_info = f"torch-{version}.dist-info"
    plan: dict[str, Member] = {}
    for name, member in members.items():
        if not name.startswith(f"{base.dist_info}/"):
            plan[name] = member
        elif name.rpartition("/")[2] not in {"RECORD", *_INSTALLERS}:
            plan[dist_info + name.removeprefix(base.dist_info)] = member
    for path in files.tree_files(overlay):
        name = path.relative_to(overlay).as_posix()
        replaced = plan.get(name)
        mode = replaced.mode if replaced else _normal_mode(path.stat().st_mode)
        plan[name] = new(path.read_bytes(), mode)
    # The new version and the tag, in the three files that have them.
    changes: dict[str, Callable[[str], str]] = {
        VERSION_FILE: lambda text: replace_version(text, version, VERSION_FILE),
        f"{dist_info}/METADATA": lambda text: _metadata(text, version),
        f"{dist_info}/WHEEL": lambda text: _wheel_file(text, base.wheel_tag),
    }
    for name, change in changes.items():
        old = plan.get(name)
        if old is None:
            raise BaseRefusedError(f"the base has no {name.rpartition('/')[2]}", where=name)
        plan[name] = new(change(old.read().decode()).encode(), old.mode)
    return plan


def _metadata(text: str, version: str) -> str:
    head, separator, body = text.partition("\n\n")
    changed, count = re.subn(r"(?m)^Version: [^\r\n]*", f"Version: {version}", head)
    if count != 1:
        raise BaseRefusedError("the base's METADATA has no single Version line", where="METADATA")
    return changed + separator + body


def _wheel_file(text: str, tag: str) -> str:
    """The tag of the file name; a build number goes, as it does there."""
    text = re.sub(r"(?m)^Build: [^\n]*\n", "", text)
    lines = tag_lines(tag)
    first = re.search(r"(?m)^Tag: ", text)
    at = first.start() if first else len(text)
    return text[:at] + lines + re.sub(r"(?m)^Tag: [^\n]*\n", "", text[at:])


def tag_lines(tag: str) -> str:
    """A wheel's tag as its WHEEL file writes it: one line for each platform."""
    head, _, platforms = tag.rpartition("-")
    return "".join(f"Tag: {head}-{platform}\n" for platform in platforms.split("."))


def write(target: Path, plan: Mapping[str, Member], epoch: int) -> None:
    """Write a wheel of these members and their RECORD."""
    dist_info = next(name.split("/")[0] for name in plan if name.endswith(".dist-info/METADATA"))
    # The dist-info comes last, as the wheel specification recommends.
    order = sorted(plan, key=lambda name: (name.startswith(f"{dist_info}/"), name))
    with files.atomic_open(target) as stream, zipfile.ZipFile(stream, "w") as archive:
        writer = Writer(archive, stream, epoch)
        for name in order:
            plan[name].put(writer, name)
        with ThreadPoolExecutor(2) as pool:
            rows = pool.map(lambda name: plan[name].recorded(), order)
            record = dict(zip(order, rows, strict=True))
        own = f"{dist_info}/RECORD"
        writer.add(own, 0o644, record_text(record, own))


def _normal_mode(mode: int) -> int:
    return 0o755 if mode & stat.S_IXUSR else 0o644
