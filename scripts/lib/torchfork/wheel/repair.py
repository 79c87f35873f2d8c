"""Makes a wheel whole: the libraries that it needs go into torch/lib, the build's paths go out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from ..errors import BaseRefusedError, ToolMissingError
from ..util import files, process

LIBRARIES = "torch/lib"
# What every Linux with this C library has, as the manylinux policies list it (PEP 600).
SYSTEM = re.compile(
    r"(ld-linux.*|libc|libm|libdl|libpthread|librt|libutil|libresolv|libnsl|libgcc_s|libstdc\+\+)"
    r"\.so(\.\d+)?"
)
# Comes with the driver or with the nvidia packages that a CUDA wheel requires.
CUDA = re.compile(
    r"lib(cu(da|dart|blas|dnn|fft|pti|rand|solver|sparse|file)|nccl|nvrtc|nvToolsExt|nvidia-ml"
    r"|nvJitLink).*\.so(\.\d+)*"
)


def complete(unpacked: Path, overlay: Path, sources: Sequence[Path], compiler: str) -> list[str]:
    """Put what `unpacked` (a wheel's contents) lacks into `overlay`; the names of what was added.

    sources: directories of libraries that the build linked.
    compiler: whose own libraries count too.
    Libraries with a path of the build machine in them are put into the overlay without it.
    Raises ToolMissingError for a library that is nowhere.
    """
    shutil.rmtree(overlay, ignore_errors=True)
    ours = {path.relative_to(unpacked).as_posix(): path for path in elf_files(unpacked)}
    there = {Path(name).name for name in ours}
    waiting = sorted({need for path in ours.values() for need in needed(path)} - there)
    added: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        if name in added or name in there or SYSTEM.fullmatch(name) or CUDA.fullmatch(name):
            continue
        found = _find(name, sources, compiler)
        added[name] = found
        waiting += needed(found)
    for name, found in sorted(added.items()):
        target = overlay / LIBRARIES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, target)
        target.chmod(0o755)
    for name, path in sorted(ours.items()):
        _without_build_paths(path, overlay / name)
    return sorted(added)


def needed(path: Path) -> list[str]:
    """The libraries that a library names as needed."""
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        if not isinstance(section, DynamicSection):
            return []
        return [tag.needed for tag in section.iter_tags("DT_NEEDED")]


def elf_files(root: Path) -> list[Path]:
    """Every library and program below a directory, sorted."""
    found = []
    for path in files.tree_files(root):
        with path.open("rb") as stream:
            if stream.read(4) == b"\x7fELF":
                found.append(path)
    return found


def _find(name: str, sources: Iterable[Path], compiler: str) -> Path:
    for directory in sources:
        if (directory / name).is_file():
            return (directory / name).resolve()
    told = process.run([*compiler.split(), f"-print-file-name={name}"], check=False).stdout.strip()
    if told and told != name and Path(told).is_file():
        return Path(told).resolve()
    listed = process.run(["/sbin/ldconfig", "-p"], check=False).stdout
    found = re.search(rf"^\s*{re.escape(name)} .*=> (\S+)$", listed, re.MULTILINE)
    if found and Path(found[1]).is_file():
        return Path(found[1]).resolve()
    raise ToolMissingError(
        f"the wheel needs {name}, which is nowhere to be found",
        where=", ".join(map(str, sources)),
        why="it was there when the wheel was linked",
        next="install the library's runtime package and run the same command again",
    )


def _without_build_paths(path: Path, target: Path) -> None:
    """Write a library into `target` if its search path names directories of the build machine."""
    data = path.read_bytes()
    changed = bytearray(data)
    try:
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            section = elf.get_section_by_name(".dynamic")
            tags = list(section.iter_tags()) if isinstance(section, DynamicSection) else []
            strings = elf.get_section_by_name(".dynstr")
            for tag in tags:
                if tag.entry.d_tag not in ("DT_RPATH", "DT_RUNPATH"):
                    continue
                old = (tag.runpath if tag.entry.d_tag == "DT_RUNPATH" else tag.rpath).encode()
                kept = [p for p in old.split(b":") if p.startswith(b"$ORIGIN")]
                new = b":".join(dict.fromkeys(kept))
                at = strings["sh_offset"] + tag.entry.d_val
                changed[at : at + len(old)] = new.ljust(len(old), b"\0")
    except ELFError as error:
        raise BaseRefusedError("a library is damaged", where=str(path), why=str(error)) from error
    if bytes(changed) != data:
        files.write_bytes(target, bytes(changed), 0o755, durable=False)
