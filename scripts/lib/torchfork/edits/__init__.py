"""Changes of upstream's own text files (operator lists, type stubs, patches), and trees of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

from ..errors import OutputError, PatchError
from ..util import files

# How a torch is built: additions put into an official wheel, or into a full source tree.
BuildMode = Literal["graft", "source"]
# Files with their new text, None for a file that goes.
Texts = Mapping[str, str | None]


@dataclass(frozen=True)
class Tree:
    """Something with upstream's files: torch/..., torchgen/... and, in a source tree, the rest.

    read: gives a file's text, None where there is no such file.
    names: gives the paths of all files, for finding what was moved; may be empty.
    """

    read: Callable[[str], str | None]
    names: Callable[[], Iterable[str]]

    def containing(self, lines: str, suffix: str) -> list[str]:
        """The first few files of a kind that have these lines."""
        names = (name for name in self.names() if PurePosixPath(name).suffix == suffix)
        return [name for name in names if lines in (self.read(name) or "")][:4]


def directory(root: Path) -> Tree:
    """The tree below a directory; it need not be git's. Bytes that are no UTF-8 survive.

    Links are followed: an installed base is a tree of links. Writing refuses them.
    """

    def read(name: str) -> str | None:
        path = root / check_path(name, name)
        return decode(path.read_bytes()) if path.is_file() else None

    @cache
    def names() -> tuple[str, ...]:
        return tuple(path.relative_to(root).as_posix() for path in files.tree_files(root))

    return Tree(read, names)


def layered(tree: Tree, texts: Texts) -> Tree:
    """The tree with some texts in the place of its own."""

    def names() -> Iterable[str]:
        kept = (name for name in tree.names() if name not in texts)
        return [*kept, *(name for name, text in texts.items() if text is not None)]

    return Tree(lambda name: texts[name] if name in texts else tree.read(name), names)


def write(root: Path, texts: Texts) -> None:
    """Make files of a directory have these texts (None: go), all of them or none."""
    targets = {inside(root, name): text for name, text in texts.items()}
    before = {path: path.read_bytes() if path.is_file() else None for path in targets}
    done: list[Path] = []
    try:
        for path, text in targets.items():
            done.append(path)
            _write(path, None if text is None else encode(text))
    except BaseException:
        for path in reversed(done):
            with contextlib.suppress(OSError, OutputError):  # the one that failed was not written
                _write(path, before[path])
        raise


def _write(path: Path, data: bytes | None) -> None:
    """One file by one rename, its mode kept."""
    if data is None:
        path.unlink(missing_ok=True)
    else:
        mode = path.stat().st_mode & 0o777 if path.is_file() else 0o644
        files.write_bytes(path, data, mode, durable=False)


def encode(text: str) -> bytes:
    """The bytes of a text that `decode` gave."""
    return text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """Bytes as text, every one of them kept: line ends and what is no UTF-8 too."""
    return data.decode("utf-8", "surrogateescape")


def check_path(name: str, where: str) -> str:
    """The path again. Raises PatchError for one that leaves the tree or that git would quote."""
    parts = PurePosixPath(name).parts
    wrong = ""
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        wrong = "it is absolute"
    elif ".." in parts:
        wrong = "it leaves the tree"
    elif any(part.lower() == ".git" for part in parts):
        wrong = "it is git's own"
    elif len(name) > 1000 or max(map(len, map(encode, parts)), default=0) > 255:
        wrong = "it is too long"
    elif re.search(r'[\x00-\x1f\x7f"\\]', name) or str(PurePosixPath(name)) != name or not parts:
        wrong = "it is not a plain path"
    if wrong:
        raise PatchError(f"a patch may not touch '{name}'", where=where, why=wrong)
    return name


def inside(root: Path, name: str) -> Path:
    """The file of a path below root. Raises PatchError where a symbolic link is on the way."""
    path = root / check_path(name, name)
    for step in (path, *path.parents):
        if step == root:
            break
        if step.is_symlink():
            raise PatchError(
                f"a patch may not write through a symbolic link: '{name}'",
                where=str(step),
                why="what it points to may lie outside the tree",
                next="replace the link by what it points to, or use an unmodified tree",
            )
    return path


def similar_lines(text: str, wanted: Iterable[str], count: int) -> str:
    """The lines of a text, with their numbers, that share most words with the wanted ones."""
    words = {word for line in wanted for word in re.findall(r"\w{3,}", line)}
    scored = [
        (len(words & set(re.findall(r"\w{3,}", line))), -number, line)
        for number, line in enumerate(text.split("\n"), 1)
    ]
    best = sorted((item for item in scored if item[0]), reverse=True)[:count]
    return "".join(f"{-n}: {line}\n" for _, n, line in sorted(best, key=lambda item: -item[1]))
