"""What is checked before a long build begins: disk, memory, and whose build directory is there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import OutputError, StateError
from ..native import toolchain
from ..upstream.tree import SourceTree
from ..util import files
from . import settings
from .settings import SETTINGS, Setting

# A CPU build of 2.6.0 took 4 GB for its build tree, and the wheel is made in a copy of its files.
BYTES_NEEDED = 8_000_000_000


def require_space(tree: SourceTree, settled: Sequence[Setting]) -> str:
    """Refuse a disk that would be full before the end; a warning about memory, '' for none.

    What a build that is gone on with has written already counts as there.
    """
    build = tree.root / "build"
    written = (
        sum(p.stat().st_size for p in build.rglob("*") if p.is_file()) if build.is_dir() else 0
    )
    free = shutil.disk_usage(tree.root).free
    if free + written < BYTES_NEEDED:
        raise OutputError(
            f"a build needs {BYTES_NEEDED / 1e9:.0f} GB of disk, {free / 1e9:.1f} GB are free",
            where=str(tree.root),
            next="free some space (scripts/torchfork clean), or build elsewhere: --work DIR",
        )
    jobs = next((int(s.value) for s in settled if s.name == "MAX_JOBS" and s.value.isdigit()), 1)
    memory, need = toolchain.available_memory(), jobs * toolchain.TREE_JOB_BYTES
    if memory < need:
        return (
            f"{jobs} compilers at once may take {need / 1e9:.1f} GB of memory, "
            f"{memory / 1e9:.1f} GB are free: MAX_JOBS={max(1, jobs // 2)} is safer"
        )
    return ""


def require_same_settings(
    tree: SourceTree, settled: Sequence[Setting], python: Path, *, fresh: bool
) -> None:
    """Refuse to go on with a build directory that other settings were used for.

    fresh: begin anew instead, which deletes it. Objects of other settings would be linked silently.
    """
    build = tree.root / "build"
    wanted = {s.name: s.value for s in settled} | {"python": str(python)}
    if not build.is_dir():
        return
    known = files.read_json(build / SETTINGS)
    differing = (
        settings.compiled_differently(known, wanted)
        if isinstance(known, dict)
        else ["who made it, and how, is not known"]
    )
    if not differing:
        return
    if not fresh:
        raise StateError(
            "the build directory was made with other settings",
            where=str(build),
            why="\n".join(differing[:12]),
            next="set them as they were, or say --fresh to delete it and begin anew",
        )
    shutil.rmtree(build)
