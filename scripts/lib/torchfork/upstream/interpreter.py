"""The Python interpreter that a wheel is built for: found, asked about itself, and checked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..errors import BaseRefusedError, ToolMissingError
from ..util import process
from .base import Interpreter

OLDEST = (3, 10)

# Runs in the interpreter that is asked, so it must be plain enough for any Python 3.
_QUESTION = """
import json, platform, sys, sysconfig
print(json.dumps({
    "executable": sys.executable,
    "version": platform.python_version(),
    "info": list(sys.version_info[:2]),
    "implementation": sys.implementation.name,
    "suffix": sysconfig.get_config_var("EXT_SUFFIX") or "",
    "include": sysconfig.get_path("include"),
    "purelib": sysconfig.get_path("purelib"),
}))
"""


def probe(path: str | Path | None = None, *, headers: bool = True) -> Interpreter:
    """Ask an interpreter what a build for it needs.

    path: an executable, a name to be looked up in PATH, or None for the launcher's choice.
    headers: whether Python.h must be there (a run that compiles nothing can do without).
    """
    executable = _find(path)
    answer = _ask(executable)
    _check_supported(executable, answer)
    found = Interpreter(
        executable=Path(answer["executable"] or executable),
        version=answer["version"],
        extension_suffix=answer["suffix"],
        include=Path(answer["include"]),
        site_packages=Path(answer["purelib"]),
    )
    if headers:
        _check_headers(found)
    return found


def require_python_tag(interpreter: Interpreter, python_tag: str, where: str) -> None:
    """Refuse a wheel that is for another Python than the interpreter."""
    if python_tag == interpreter.tag:
        return
    wanted = python_tag.removeprefix("cp")
    raise BaseRefusedError(
        f"this wheel is for Python {wanted[:1]}.{wanted[1:]}, "
        f"the interpreter is Python {interpreter.version}",
        where=where,
        why=f"the wheel's tag is {python_tag}, {interpreter.executable} needs {interpreter.tag}",
        next=f"give --python python{wanted[:1]}.{wanted[1:]}, or a wheel whose name says "
        f"{interpreter.tag}",
    )


def _find(path: str | Path | None) -> Path:
    wanted = str(path or os.environ.get("TORCHFORK_TARGET_PYTHON") or "python3")
    found = shutil.which(wanted)
    if found:
        # Not resolved: the path of a virtual environment's link is what makes it that environment.
        return Path(found).absolute()
    there = Path(wanted).exists()
    raise ToolMissingError(
        f"'{wanted}' cannot be run" if there else f"there is no Python interpreter '{wanted}'",
        where=wanted if there else "PATH" if os.sep not in wanted else wanted,
        why="it is a directory or not executable" if there else "",
        next="give one that is installed: --python /path/to/bin/python3",
    )


def _ask(executable: Path) -> dict[str, Any]:
    outcome = process.run([executable, "-c", _QUESTION], cwd=Path(os.sep), check=False, timeout=60)
    try:
        if outcome.returncode == 0:
            answer: dict[str, Any] = json.loads(outcome.stdout.strip().splitlines()[-1])
            return answer
    except (ValueError, IndexError):
        pass
    raise ToolMissingError(
        "this is not a working Python 3 interpreter",
        where=str(executable),
        why="\n".join((outcome.stderr or outcome.stdout).strip().splitlines()[-3:]),
        next="give one that is installed: --python /path/to/bin/python3",
    )


def _check_supported(executable: Path, answer: dict[str, Any]) -> None:
    reason = ""
    if answer["implementation"] != "cpython":
        reason = f"it is {answer['implementation']}, and torch's wheels are for CPython"
    elif tuple(answer["info"]) < OLDEST:
        reason = f"it is Python {answer['version']}, and {OLDEST[0]}.{OLDEST[1]} is the oldest"
    if reason:
        raise ToolMissingError(
            "this interpreter is not supported",
            where=str(executable),
            why=reason,
            next="give another one: --python python3.12, say",
        )


def _check_headers(interpreter: Interpreter) -> None:
    if (interpreter.include / "Python.h").is_file():
        return
    minor = ".".join(interpreter.version.split(".")[:2])
    raise ToolMissingError(
        f"the C headers of Python {minor} are not installed",
        where=str(interpreter.include / "Python.h"),
        why="the bindings of the added operators are compiled against them",
        next=f"apt-get install python{minor}-dev (Debian, Ubuntu), dnf install python{minor}-devel "
        "(Fedora, RHEL),\nor give an interpreter that has them: --python PATH",
    )
