"""A zip writer whose bytes depend on its input alone, and that copies compressed members unopened.

The standard library's writer can do neither: it takes times and modes from the disk, and it has to
inflate and deflate a member in order to copy it (a minute for a CUDA wheel, where this takes a
second). Only what a wheel needs is here: stored and deflated members, zip64 where sizes ask for it.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipInfo

CHUNK = 1 << 20
LIMIT = 0xFFFFFFFF  # stands in a 32-bit field for a value that zip64 tells
WIDE = LIMIT  # from here on a value is told by zip64
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_CENTRAL = struct.Struct("<4s4B4HL2L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_UTF8 = 0x800
_UNIX = 3
EARLIEST = 315532800  # 1980-01-01, the first time that a zip archive can tell


@dataclass(frozen=True)
class _Entry:
    name: bytes
    method: int
    crc: int
    compressed: int
    size: int
    mode: int
    offset: int


class RawZipWriter:
    """Writes members one after the other; `close` writes the directory that makes it an archive."""

    def __init__(self, stream: IO[bytes], epoch: int) -> None:
        self._stream = stream
        self._entries: list[_Entry] = []
        moment = time.gmtime(max(epoch, EARLIEST))
        self._time = moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2
        self._date = (moment.tm_year - 1980) << 9 | moment.tm_mon << 5 | moment.tm_mday

    def copy(self, name: str, mode: int, source: IO[bytes], member: ZipInfo) -> None:
        """Copy a member of another archive as it lies there, under a name and mode of its own."""
        if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise BadZipFile(f"{member.filename}: compressed in a way that wheels do not use")
        entry = self._entry(name, mode, member.compress_type, member.CRC)
        entry = self._begin(entry, member.compress_size, member.file_size)
        for chunk in _compressed_bytes(source, member):
            self._stream.write(chunk)
        self._entries.append(entry)

    def add(self, name: str, mode: int, data: bytes, level: int = 6) -> None:
        """Add a member, deflated unless that makes it no smaller."""
        packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(data) + packer.flush()
        method = ZIP_DEFLATED if len(packed) < len(data) else ZIP_STORED
        body = packed if method == ZIP_DEFLATED else data
        entry = self._entry(name, mode, method, zlib.crc32(data))
        self._entries.append(self._begin(entry, len(body), len(data)))
        self._stream.write(body)

    def close(self) -> None:
        """Write the central directory."""
        start = self._stream.tell()
        for entry in self._entries:
            self._write_central(entry)
        size, count = self._stream.tell() - start, len(self._entries)
        if start >= WIDE or count > 0xFFFF:
            end = start + size
            self._stream.write(
                _END64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
            )
            self._stream.write(_LOCATOR.pack(b"PK\x06\x07", 0, end, 1))
        count16, start32 = min(count, 0xFFFF), (LIMIT if start >= WIDE else start)
        self._stream.write(_END.pack(b"PK\x05\x06", 0, 0, count16, count16, size, start32, 0))

    def _entry(self, name: str, mode: int, method: int, crc: int) -> _Entry:
        return _Entry(name.encode(), method, crc, 0, 0, mode, self._stream.tell())

    def _begin(self, entry: _Entry, compressed: int, size: int) -> _Entry:
        extra = b""
        if max(compressed, size) >= WIDE:
            extra = struct.pack("<2H2Q", 1, 16, size, compressed)
        self._stream.write(
            _LOCAL.pack(
                b"PK\x03\x04",
                45 if extra else 20,
                0,
                _UTF8,
                entry.method,
                self._time,
                self._date,
                entry.crc,
                LIMIT if extra else compressed,
                LIMIT if extra else size,
                len(entry.name),
                len(extra),
            )
        )
        self._stream.write(entry.name + extra)
        return _Entry(
            entry.name, entry.method, entry.crc, compressed, size, entry.mode, entry.offset
        )

    def _write_central(self, entry: _Entry) -> None:
        wide = max(entry.compressed, entry.size) >= WIDE
        large = [entry.size, entry.compressed] if wide else []
        if entry.offset >= WIDE:
            large.append(entry.offset)
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        self._stream.write(
            _CENTRAL.pack(
                b"PK\x01\x02",
                45 if extra else 20,
                _UNIX,
                45 if extra else 20,
                0,
                _UTF8,
                entry.method,
                self._time,
                self._date,
                entry.crc,
                LIMIT if wide else entry.compressed,
                LIMIT if wide else entry.size,
                len(entry.name),
                len(extra),
                0,
                0,
                0,
                (0o100000 | entry.mode) << 16,
                LIMIT if entry.offset >= WIDE else entry.offset,
            )
        )
        self._stream.write(entry.name + extra)


def _compressed_bytes(source: IO[bytes], member: ZipInfo) -> Iterator[bytes]:
    """A member's bytes as they lie in the archive; its local header says where they begin."""
    source.seek(member.header_offset)
    header = source.read(30)
    if len(header) != 30 or header[:4] != b"PK\x03\x04":
        raise BadZipFile(f"{member.filename}: no local header where the directory says")
    name_length, extra_length = struct.unpack("<2H", header[26:30])
    source.seek(name_length + extra_length, 1)
    left = member.compress_size
    while left:
        chunk = source.read(min(left, CHUNK))
        if not chunk:
            raise BadZipFile(f"{member.filename}: the archive ends within it")
        left -= len(chunk)
        yield chunk
