"""The symbols that a macOS library exports: the smallest wheel of a release is a macOS one.

Layout as in Apple's <mach-o/loader.h> and <mach-o/nlist.h>; 64-bit little-endian only, which is all
that macOS still runs.
"""

from __future__ import annotations

import struct
from pathlib import Path

MAGIC = b"\xcf\xfa\xed\xfe"  # MH_MAGIC_64
_HEADER_SIZE = 32
_LC_SYMTAB = 0x2
_NLIST = struct.Struct("<IBBHQ")  # n_strx, n_type, n_sect, n_desc, n_value
_STAB, _PRIVATE, _TYPE, _EXTERNAL = 0xE0, 0x10, 0x0E, 0x01
_UNDEFINED = 0x0


def is_macho(path: Path) -> bool:
    """Whether a file is a 64-bit Mach-O file."""
    with path.open("rb") as stream:
        return stream.read(4) == MAGIC


def exported(path: Path) -> set[str]:
    """The names that a library defines for others, as the C++ compiler mangles them.

    The underscore that macOS puts before every name is taken off.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEADER_SIZE)
        count, size = struct.unpack_from("<II", head, 16)
        commands = stream.read(size)
        at = 0
        for _ in range(count):
            command, length = struct.unpack_from("<II", commands, at)
            if command == _LC_SYMTAB:
                table, entries, text, text_size = struct.unpack_from("<IIII", commands, at + 8)
                stream.seek(table)
                raw = stream.read(entries * _NLIST.size)
                stream.seek(text)
                return _names(raw, stream.read(text_size))
            at += length
    return set()


def _names(table: bytes, text: bytes) -> set[str]:
    found = set()
    for start, kind, _, _, _ in _NLIST.iter_unpack(table):
        visible = kind & _EXTERNAL and not kind & (_PRIVATE | _STAB)
        if visible and kind & _TYPE != _UNDEFINED:
            name = text[start : text.index(b"\0", start)].decode("ascii", "replace")
            found.add(name.removeprefix("_"))
    return found
