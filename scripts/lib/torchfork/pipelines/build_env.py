"""The environment that a tree is built in: what its build needs from the user's package index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ToolMissingError
from ..upstream.base import Interpreter
from ..upstream.pins import Release
from ..upstream.tree import SourceTree
from ..util import process, venv

# Beyond what a tree asks for: the frontend, and the build tools that setup.py calls.
FRONTEND = ("build", "ninja", "cmake")
# CMake 4 refuses projects that ask for less than 3.5, as parts of older trees do.
POLICY = ("CMAKE_POLICY_VERSION_MINIMUM", "3.5")
Say = Callable[[str], None]


def require_python(tree: SourceTree, interpreter: Interpreter, release: Release | None) -> None:
    """Refuse an interpreter that the release was never built for."""
    if release is None:
        return
    tags = sorted({pin.name.python for pin in release.wheels}, key=lambda tag: int(tag[2:]))
    if not tags or interpreter.tag in tags:
        return
    number = int(interpreter.tag[2:])
    state = "old" if number < int(tags[0][2:]) else "new"
    raise ToolMissingError(
        f"Python {interpreter.version} is too {state} for torch {tree.version}",
        where=str(interpreter.executable),
        why=f"the release was made for {', '.join(tags)}",
        next="give one of these with --python, or another release with --torch",
    )


def make(
    root: Path,
    interpreter: Interpreter,
    requirements: Sequence[str],
    *,
    hashed: bool,
    say: Say = lambda text: None,
) -> Path:
    """Make the environment, or take the one that is there; its interpreter.

    requirements: lines of a requirements file. hashed: whether each names the sha256 of its builds,
        and nothing else may be installed.
    Raises DownloadError, HashMismatchError, ToolMissingError.
    """
    strict = ["--require-hashes", "--no-deps", "--only-binary=:all:"] if hashed else []
    what = "the build's requirements"
    return venv.with_requirements(root, interpreter, requirements, what, say, *strict)


def requirements_of(tree: SourceTree) -> list[str]:
    """What a tree says that its build needs, and the frontend; pinned as the tree pins it."""
    for name in ("requirements-build.txt", "requirements.txt"):
        path = tree.root / name
        if path.is_file():
            lines = [line.split("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
            return [*FRONTEND, *(line for line in lines if line and not line.startswith("-"))]
    return [*FRONTEND, "setuptools", "wheel", "numpy", "pyyaml", "typing_extensions"]


def require_cmake(tree: SourceTree, python: Path) -> dict[str, str]:
    """Variables that the environment's CMake needs for this tree.

    Raises ToolMissingError for one that is older than the tree asks for.
    """
    text = (tree.root / "CMakeLists.txt").read_text(encoding="utf-8")
    asked = re.search(r"cmake_minimum_required\(\s*VERSION\s+([\d.]+)", text, re.IGNORECASE)
    program = python.with_name("cmake")
    told = process.run([program if program.exists() else "cmake", "--version"]).stdout
    found = re.search(r"version (\d+(?:\.\d+)*)", told)
    here = _number(found[1]) if found else (0,)
    if asked and here < _number(asked[1]):
        raise ToolMissingError(
            f"CMake {'.'.join(map(str, here))} is too old for torch {tree.version}",
            where=str(program),
            why=f"its CMakeLists.txt asks for {asked[1]}",
            next=f"pip install 'cmake>={asked[1]}' into {python.parents[1]}, or remove that "
            "directory to have it made anew",
        )
    return dict([POLICY]) if here >= (4,) else {}


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
