"""Makes a wheel complete: the libraries that it needs, no build paths, a true platform tag.

What auditwheel and patchelf do, in the places that upstream's own wheels have: auditwheel puts
libraries into torch.libs under other names and deflates the whole wheel anew, and patchelf turns a
DT_RPATH, which CUDA builds rely on, into a DT_RUNPATH.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import ToolMissingError
from ..upstream.binaries import is_elf, read_elf, with_search_path
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
# The glibc that the tags of older manylinux generations stand for.
LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def complete(unpacked: Path, overlay: Path, sources: Sequence[Path], compiler: str) -> list[str]:
    """Put what `unpacked` (a wheel's contents) lacks into `overlay`; the names of what was added.

    sources: directories of libraries that the build linked.
    compiler: whose own libraries count too.
    Libraries with a path of the build machine in them are put into the overlay without it.
    Raises ToolMissingError for a library that is not found.
    """
    shutil.rmtree(overlay, ignore_errors=True)
    ours = elf_files(unpacked)
    there = {path.name for path in ours}
    waiting = sorted({name for path in ours for name in read_elf(path).needed} - there)
    added: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        if name in added or name in there or SYSTEM.fullmatch(name) or CUDA.fullmatch(name):
            continue
        added[name] = _find(name, sources, compiler)
        waiting += read_elf(added[name]).needed
    for name, source in sorted(added.items()):
        target = overlay / LIBRARIES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755)
    for path in ours:
        data = with_search_path(path, lambda directory: directory.startswith("$ORIGIN"))
        if data != path.read_bytes():
            target = overlay / path.relative_to(unpacked)
            files.write_bytes(target, data, 0o755, durable=False)
    return sorted(added)


def elf_files(root: Path) -> list[Path]:
    """Every library and program below a directory, sorted."""
    return [path for path in files.tree_files(root) if is_elf(path)]


def _find(name: str, sources: Iterable[Path], compiler: str) -> Path:
    for directory in sources:
        if (directory / name).is_file():
            return (directory / name).resolve()
    named = process.run([*compiler.split(), f"-print-file-name={name}"], check=False).stdout.strip()
    if named and named != name and Path(named).is_file():
        return Path(named).resolve()
    listed = process.run(["/sbin/ldconfig", "-p"], check=False).stdout
    known = re.search(rf"^\s*{re.escape(name)} .*=> (\S+)$", listed, re.MULTILINE)
    if known and Path(known[1]).is_file():
        return Path(known[1]).resolve()
    raise ToolMissingError(
        f"the wheel needs {name}, which was not found",
        where=", ".join(map(str, sources)),
        why="it was there when the wheel was linked",
        next="install the library's runtime package and run the same command again",
    )


def needed_glibc(libraries: Iterable[Path]) -> tuple[int, int]:
    """The newest glibc symbol version that the libraries need; (0, 0) where there is none."""
    return max((read_elf(library).glibc for library in libraries), default=(0, 0))


def raised_tag(wheel_tag: str, needed: tuple[int, int]) -> str:
    """The wheel tag, with each platform that promises an older glibc raised to what is needed."""
    head, _, platforms = wheel_tag.rpartition("-")
    raised: list[str] = []
    for platform in platforms.split("."):
        found = re.fullmatch(r"(manylinux(?:1|2010|2014)|manylinux_(\d+)_(\d+))_(\w+)", platform)
        if found:
            promised = LEGACY.get(found[1]) or (int(found[2]), int(found[3]))
            if promised < needed:
                platform = f"manylinux_{needed[0]}_{needed[1]}_{found[4]}"
        raised.append(platform)
    return f"{head}-{'.'.join(dict.fromkeys(raised))}"
