"""What a wheel base is: a directory with torch/ and torchgen/, and the interpreter it is for.

The interpreter is found, asked about itself, and checked.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BaseRefusedError, ToolMissingError
from ..util import process
from ..util.files import Below
from .pins import python_version

# Of a text that is read into memory; the largest of real wheels is RECORD, of 4 MB.
TEXT_LIMIT = 64 << 20
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


def read_text(path: Path) -> str:
    """A text of a base's. Raises BaseRefusedError where the base has no such file."""
    try:
        if path.is_file() and path.stat().st_size <= TEXT_LIMIT:
            return path.read_text(encoding="utf-8")
        why = f"it is missing, not a file, or has more than {TEXT_LIMIT >> 20} MB"
    except (OSError, UnicodeDecodeError) as error:
        why = str(error)
    raise BaseRefusedError(
        "this torch lacks a file that the graft reads",
        where=str(path),
        why=why,
        next="use an official wheel: scripts/build_torch.sh --torch VERSION",
    )


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter that a wheel is built for, and what compiling for it needs."""

    executable: Path
    version: str  # '3.11.7'
    extension_suffix: str  # '.cpython-311-x86_64-linux-gnu.so'
    include: Path  # the directory of Python.h
    site_packages: Path  # its purelib

    @property
    def tag(self) -> str:
        """What wheels call it: 'cp311'; 'cp314t' where it is a free-threaded build."""
        major, minor = self.version.split(".")[:2]
        plain = f"cp{major}{minor}"
        free_threaded = f"{major}{minor}t-" in self.extension_suffix
        return f"{plain}t" if free_threaded else plain


@dataclass(frozen=True)
class Base:
    """An upstream torch, unpacked or installed, that additions are grafted onto.

    root is laid out as site-packages is: torch/, torchgen/, torch-<version>.dist-info/. Nothing of
    ours ever writes below root, except `--develop`, which keeps the originals.
    """

    root: Path
    version: str  # torch.__version__: '2.13.0+cpu'
    git_version: str  # the commit that torch/version.py names
    identity: str  # sha256 of the wheel, or a fingerprint of the installed RECORD
    interpreter: Interpreter
    cuda: str | None = None  # '13.0' for a CUDA build
    dist_info: str = ""  # name of the .dist-info directory
    wheel_tag: str = ""  # 'cp311-cp311-manylinux_2_28_x86_64'
    wheel: Path | None = None  # the wheel file that root was unpacked from
    texts: str = ""  # a hash over all but the libraries: see shared_identity
    headers: Path | None = None  # where compilers find torch/include, at a path of these texts

    @property
    def shared_identity(self) -> str:
        """What this base shares with the release's wheels for other Pythons.

        They differ in their libraries alone: generated code and kernels are the same for all.
        """
        return self.texts or self.identity

    @property
    def public_version(self) -> str:
        """The version without its local part: '2.13.0'."""
        return self.version.partition("+")[0]

    @property
    def metadata_version(self) -> str:
        """The version that pip knows, without a local part on the default index: '2.13.0'."""
        return self.dist_info.removesuffix(".dist-info").partition("-")[2]

    torch = Below("torch")
    torch_cpu = Below("torch/lib/libtorch_cpu.so")  # the library that holds nearly everything
    # The codegen's data in the wheel: YAML files, templates, the autograd generator.
    packaged = Below("torchgen/packaged")

    def library(self, name: str) -> Path:
        """A library of the base's by its plain name: 'torch_cpu'. macOS has suffixes of its own."""
        elf = self.torch / "lib" / f"lib{name}.so"
        return elf if elf.exists() else elf.with_suffix(".dylib")

    @property
    def include(self) -> Path:
        """The wheel's headers."""
        return self.headers or self.root / "torch" / "include"

    @property
    def extension(self) -> Path:
        """torch/_C.<abi>.so, relative to root."""
        return Path("torch") / f"_C{self.interpreter.extension_suffix}"


@dataclass(frozen=True)
class Upstream:
    """What an unmodified base has: functions and tags, by its code generator.

    dispatch_keys: those that a declaration may name; the enumeration has more.
    attributes: names that are no operators, by their place (python_names.attributes).
    """

    schemas: tuple[str, ...]
    tags: frozenset[str]
    dispatch_keys: frozenset[str]
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def by_name(self) -> dict[str, str]:
        """Schemas by operator name with overload."""
        return {schema.partition("(")[0]: schema for schema in self.schemas}

    @cached_property
    def operators(self) -> frozenset[str]:
        """The names without their overloads."""
        return frozenset(name.partition(".")[0] for name in self.by_name())


def probe(path: str | Path | None = None, *, headers: bool = True) -> Interpreter:
    """Ask an interpreter what a build for it needs.

    path: an executable, a name to be looked up in PATH, or None for the launcher's choice.
    headers: whether Python.h must be there (a run that compiles nothing can do without).
    """
    executable = _find(path)
    answer: dict[str, Any] = ask(executable, _QUESTION)
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
    wanted = python_version(python_tag)
    raise BaseRefusedError(
        f"this wheel is for Python {wanted}, the interpreter is Python {interpreter.version}",
        where=where,
        why=f"the wheel's tag is {python_tag}, {interpreter.executable} needs {interpreter.tag}",
        next=f"give --python python{wanted}, or a wheel whose name says {interpreter.tag}",
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


def ask(executable: Path, question: str, env: Mapping[str, str] | None = None) -> Any:
    """The JSON that a program prints in an interpreter. Raises ToolMissingError where it cannot."""
    command: list[str | Path] = [executable, "-c", question]
    outcome = process.run(command, cwd=Path(os.sep), env=env, check=False, timeout=60)
    try:
        if outcome.returncode == 0:
            return json.loads(outcome.stdout.strip().splitlines()[-1])
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
