"""What a base's libraries export, as signatures that any two releases can be compared by."""

from __future__ import annotations

import gzip
from pathlib import Path

from ..upstream.base import Base
from ..util import files
from . import symbols

# Upstream's own C++: what additions can call.
NAMESPACES = ("at::", "torch::", "c10::")


def kept(base_identity: str, work: Path) -> Path:
    """Where the signatures of a base are kept, as the tooling of now writes them."""
    key = files.sha256_text(base_identity, Path(symbols.__file__).read_text("utf-8"))
    return work / "exports" / f"{key[:32]}.txt.gz"


def note(base: Base, work: Path) -> None:
    """Read a base's exports once and keep their signatures."""
    path = kept(base.identity, work)
    if path.is_file():
        return
    names = symbols.exported(symbols.base_libraries(base))
    texts = {symbols.normal_signature(text) for text in symbols.demangle(names).values()}
    lines = "\n".join(sorted(text for text in texts if text.startswith(NAMESPACES)))
    files.write_bytes(path, gzip.compress(lines.encode(), mtime=0))


def read(base_identity: str, work: Path) -> frozenset[str] | None:
    """The signatures of a base, or None where nobody has read them yet."""
    path = kept(base_identity, work)
    if not path.is_file():
        return None
    return frozenset(gzip.decompress(path.read_bytes()).decode().split("\n"))
