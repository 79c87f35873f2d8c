"""A tree of text files as patches see it: a directory, perhaps with some files replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import paths

# A file's text; None takes the file away.
Texts = Mapping[str, str | None]


@dataclass(frozen=True)
class Tree:
    """Something with upstream's files: torch/..., torchgen/... and, in a source tree, the rest.

    read: gives a file's text, None where there is no such file.
    names: gives the paths of all files, for finding what was moved; may be empty.
    """

    read: Callable[[str], str | None]
    names: Callable[[], Iterable[str]]


def directory(root: Path) -> Tree:
    """The tree below a directory; it need not be git's. Bytes that are no UTF-8 survive.

    Links are followed: an installed base is a tree of links. Writing refuses them.
    """

    def read(name: str) -> str | None:
        path = root / paths.check_path(name, name)
        return decode(path.read_bytes()) if path.is_file() else None

    @cache
    def names() -> tuple[str, ...]:
        return tuple(_walk(root))

    return Tree(read, names)


def layered(tree: Tree, texts: Texts) -> Tree:
    """The tree with some texts in the place of its own."""

    def read(name: str) -> str | None:
        return texts[name] if name in texts else tree.read(name)

    def names() -> Iterable[str]:
        kept = (name for name in tree.names() if name not in texts)
        return [*kept, *(name for name, text in texts.items() if text is not None)]

    return Tree(read, names)


def encode(text: str) -> bytes:
    """The bytes of a text that `decode` gave."""
    return text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """Bytes as text, every one of them kept: line ends and what is no UTF-8 too."""
    return data.decode("utf-8", "surrogateescape")


def split(text: str) -> list[str]:
    """Lines with their newlines, as git counts them: only a line feed ends a line."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _walk(root: Path) -> Iterable[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(n for n in folders if n != "__pycache__" and not n.startswith("."))
        for name in sorted(names):
            yield Path(folder, name).relative_to(root).as_posix()
