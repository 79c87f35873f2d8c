"""Which paths a patch may name: inside the tree, no links, nothing of git's own."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from ...errors import PatchError

_CONTROL = re.compile(r'[\x00-\x1f\x7f"\\]')


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
    elif _CONTROL.search(name) or PurePosixPath(name).as_posix() != name or not parts:
        wrong = "it is not a plain path"
    if wrong:
        raise PatchError(f"a patch may not touch '{name}'", where=where, why=wrong)
    return name


def inside(root: Path, name: str) -> Path:
    """The file of a path below root. Raises PatchError where a symbolic link is on the way."""
    path = root / check_path(name, name)
    for step in (path, *path.parents):
        if step == root:
            return path
        if step.is_symlink():
            raise PatchError(
                f"a patch may not write through a symbolic link: '{name}'",
                where=str(step),
                why="what it points to may lie outside the tree",
                next="replace the link by what it points to, or use an unmodified tree",
            )
    raise PatchError(f"a patch may not touch '{name}'", where=str(root), why="it leaves the tree")
