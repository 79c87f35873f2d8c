"""Shared libraries as files: what ELF says of them, and what a macOS library exports.

Of Mach-O the smallest part is read, after Apple's <mach-o/loader.h> and <mach-o/nlist.h>, 64-bit
and little-endian: the smallest wheel of a release is a macOS one, and macholib takes 10 s for the
names that take 0.3 s here.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from ..errors import BaseRefusedError

_ELF_MAGIC, _MACHO_MAGIC = b"\x7fELF", b"\xcf\xfa\xed\xfe"  # MH_MAGIC_64
_TEXTS = frozenset({"DT_NEEDED", "DT_RPATH", "DT_RUNPATH"})
_HEADER_SIZE, _LC_SYMTAB = 32, 0x2
_NLIST = struct.Struct("<IBBHQ")  # n_strx, n_type, n_sect, n_desc, n_value
_STAB, _PRIVATE, _TYPE, _EXTERNAL, _UNDEFINED = 0xE0, 0x10, 0x0E, 0x01, 0x0


@dataclass(frozen=True)
class Elf:
    """What a shared library says of itself in its dynamic section."""

    needed: tuple[str, ...] = ()
    rpath: str = ""  # DT_RPATH, which also serves the libraries that this one loads
    runpath: str = ""  # DT_RUNPATH, which serves this one only
    glibc: tuple[int, int] = (0, 0)  # the newest version of glibc's symbols that it needs

    @property
    def search_path(self) -> str:
        """Where the loader looks, whichever of the two forms is used."""
        return self.rpath or self.runpath


@dataclass(frozen=True)
class _Tag:
    kind: str
    text: str
    offset: int  # of the text, in the file


def is_elf(path: Path) -> bool:
    """Whether a file is an ELF file."""
    return _magic(path) == _ELF_MAGIC


def read_elf(path: Path) -> Elf:
    """Read a shared library's dynamic section; nothing of one that is no ELF file.

    Raises BaseRefusedError for a damaged one.
    """
    if not is_elf(path):
        return Elf()
    with path.open("rb") as stream:
        try:
            elf = ELFFile(stream)
            tags, glibc = _tags(elf), _glibc(elf)
        except (ELFError, struct.error, ValueError) as error:
            raise BaseRefusedError(
                "a library is damaged", where=str(path), why=str(error)
            ) from error
    last = {tag.kind: tag.text for tag in tags}
    return Elf(
        needed=tuple(tag.text for tag in tags if tag.kind == "DT_NEEDED"),
        rpath=last.get("DT_RPATH", ""),
        runpath=last.get("DT_RUNPATH", ""),
        glibc=glibc,
    )


def _tags(elf: ELFFile) -> list[_Tag]:
    """The entries of the dynamic section that are texts."""
    section = elf.get_section_by_name(".dynamic")
    if not isinstance(section, DynamicSection):
        return []
    strings = elf.get_section(section["sh_link"])
    return [
        _Tag(kind, strings.get_string(at), strings["sh_offset"] + at)
        for tag in section.iter_tags()
        if (kind := tag.entry.d_tag) in _TEXTS and (at := tag.entry.d_val) is not None
    ]


def _glibc(elf: ELFFile) -> tuple[int, int]:
    section = elf.get_section_by_name(".gnu.version_r")
    if not isinstance(section, GNUVerNeedSection):
        return 0, 0
    names = (version.name for _, versions in section.iter_versions() for version in versions)
    matches = (re.match(r"GLIBC_(\d+)\.(\d+)", name) for name in names)
    return max(((int(found[1]), int(found[2])) for found in matches if found), default=(0, 0))


def with_search_path(path: Path, keep: Callable[[str], bool]) -> bytes:
    """A library's bytes with those directories of its search path only that `keep` accepts.

    Written over the old text, whose kind stays: DT_RPATH also serves libraries that are loaded.
    """
    data = bytearray(path.read_bytes())
    with path.open("rb") as stream:
        for tag in _tags(ELFFile(stream)):
            if tag.kind in ("DT_RPATH", "DT_RUNPATH"):
                kept = dict.fromkeys(part for part in tag.text.split(":") if keep(part))
                old, new = tag.text.encode(), ":".join(kept).encode()
                data[tag.offset : tag.offset + len(old)] = new.ljust(len(old), b"\0")
    return bytes(data)


def search(library: Path, pattern: bytes) -> Iterator[bytes]:
    """The first group of each of a pattern's matches in a library."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as m:
        yield from (found[1] for found in re.finditer(pattern, m))


def is_macho(path: Path) -> bool:
    """Whether a file is a 64-bit Mach-O file."""
    return _magic(path) == _MACHO_MAGIC


def macho_exports(path: Path) -> set[str]:
    """The names that a macOS library defines for others, as the C++ compiler mangles them.

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


def _magic(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4)
