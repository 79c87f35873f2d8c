"""What a library of macOS exports, read on Linux."""

from __future__ import annotations

import struct
from pathlib import Path

from torchfork.upstream import binaries


def test_exported_names_are_read_from_a_macos_library(tmp_path: Path) -> None:
    names = [("__ZN2at3addEv", 0x0F), ("__ZN2at4hereEv", 0x1F), ("__ZN2at4lostEv", 0x01)]
    table, text = b"", b"\0"
    for name, kind in names:
        table += struct.pack("<IBBHQ", len(text), kind, 1, 0, 8)
        text += name.encode() + b"\0"
    start = 32 + 24
    command = struct.pack("<IIIIII", 2, 24, start, len(names), start + len(table), len(text))
    header = b"\xcf\xfa\xed\xfe" + struct.pack("<IIIIIII", 0, 0, 6, 1, len(command), 0, 0)
    library = tmp_path / "lib.dylib"
    library.write_bytes(header + command + table + text)
    assert binaries.is_macho(library)
    assert binaries.macho_exports(library) == {"_ZN2at3addEv"}
