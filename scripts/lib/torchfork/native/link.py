"""Links the two libraries that take the place of the base's stubs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import CompileError
from ..upstream.abi import BaseAbi
from ..upstream.base import Base
from ..upstream.binaries import Elf
from ..util import process
from .compile_steps import CompileStep
from .toolchain import Toolchain


def link(
    base: Base,
    abi: BaseAbi,
    toolchain: Toolchain,
    steps: Sequence[CompileStep],
    build: Path,
    overlay: Path,
) -> tuple[Path, Path]:
    """Link libtorch.so and torch/_C into the overlay; their paths there."""
    lib = base.torch / "lib"
    core = overlay / "torch" / "lib" / "libtorch.so"
    extension = overlay / base.extension
    needed = [name for name in abi.libtorch.needed if (lib / name).exists()]
    needed += ["libc10.so", *(["libc10_cuda.so"] if toolchain.cuda else []), abi.openmp]
    core_objects = [step.object for step in link_order(steps) if not step.python]
    python_objects = [step.object for step in steps if step.python]
    _shared(
        toolchain, abi.libtorch, build, core, core_objects,
        [lib / name for name in dict.fromkeys(needed) if name], ["-Wl,-soname,libtorch.so"],
    )  # fmt: skip
    python_needed = [name for name in abi.extension.needed if (lib / name).exists()]
    libraries = [lib / name for name in [*python_needed, "libtorch_cpu.so", "libc10.so"]]
    _shared(toolchain, abi.extension, build, extension, python_objects, [*libraries, core], [])
    return core, extension


def link_order(steps: Iterable[CompileStep]) -> list[CompileStep]:
    """The steps, those for some processors last.

    Of an inline function that several objects have, the linker keeps the first for all of them: one
    compiled for AVX2 would end the process on a processor without it.
    """
    return sorted(steps, key=lambda step: any(flag.startswith("-m") for flag in step.flags))


def _runtime(toolchain: Toolchain) -> list[str]:
    """The C++ runtime as a shared library, and no symbol of any archive exported.

    Where a compiler finds libstdc++ as an archive only, its own link line would put a second copy
    into the process, whose exported symbols take the place of the first one's: the import crashes.
    """
    command = [*toolchain.cxx.split(), "-print-file-name=libstdc++.so.6"]
    found = process.run(command).stdout.strip()
    return [*([found] if Path(found).is_absolute() else []), "-Wl,--exclude-libs,ALL"]


def strip_flags(toolchain: Toolchain) -> list[str]:
    """No symbol table, unless the compiler was asked for debug information: CXX='g++ -g'."""
    forms = r"-g([1-3]?|gdb[1-3]?|dwarf.*|split-dwarf)"
    asked = any(re.fullmatch(forms, word) for word in toolchain.cxx.split())
    return [] if asked else ["-Wl,-s"]


def _shared(
    toolchain: Toolchain,
    original: Elf,
    build: Path,
    target: Path,
    objects: Sequence[str],
    libraries: Sequence[Path],
    extra: Sequence[str],
) -> None:
    """Link one library with the search path that the stub had, in the form that it had it.

    DT_RPATH also serves what the library loads, DT_RUNPATH does not: CUDA wheels depend on that.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = build / target.name
    tags = "--disable-new-dtags" if original.rpath else "--enable-new-dtags"
    command = [
        *toolchain.cxx.split(), "-shared", "-o", temporary.name, *objects,
        "-Wl,--no-as-needed", *map(str, libraries), "-Wl,--as-needed", *_runtime(toolchain),
        "-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,relro,-z,now", *strip_flags(toolchain),
        f"-Wl,{tags}", f"-Wl,-rpath,{original.search_path}", *extra,
    ]  # fmt: skip
    outcome = process.run(command, cwd=build, check=False)
    if outcome.returncode:
        raise CompileError(
            f"{target.name} does not link",
            where=str(build),
            why="\n".join((outcome.stdout + outcome.stderr).splitlines()[:15]),
            next="see above; a symbol that no library exports needs another implementation",
        )
    if target.exists() and target.read_bytes() == temporary.read_bytes():
        return
    temporary.chmod(0o755)
    temporary.replace(target)
