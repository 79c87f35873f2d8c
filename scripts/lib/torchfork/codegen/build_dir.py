"""The directories of builds, the locks on them, and what a result that is kept there depends on."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..util import files
from ..util.files import Below

if TYPE_CHECKING:
    from ..additions.load import Additions
    from ..upstream.base import Base
    from ..upstream.tree import SourceTree

PACKAGE = Path(__file__).resolve().parents[1]
# The rooms that the generator's answers depend on, and those that a wheel does. How a build is
# asked for, tested and reported is not among them: a change there leaves every wheel valid.
GENERATOR_ROOMS = ("additions", "codegen", "edits", "upstream")
WHEEL_ROOMS = (*GENERATOR_ROOMS, "native", "pipelines", "support", "util", "wheel")
_DELIVERED = "delivered.json"


@dataclass(frozen=True)
class BuildDir:
    """Where each step of a build reads and writes."""

    root: Path

    build = Below("build")  # objects, libraries and build.ninja
    # What the wheel gets: a tree as site-packages has it, with changed and new files only.
    overlay = Below("overlay")
    # Generated headers that wheels leave out, as they would lie below torch/include.
    private = Below("private")
    # Holds a copy ATen of aten_src, so that <ATen/native/X.h> finds the additions' own.
    additions_include = Below("include")
    # Headers of the added functions alone, in place of the tree's for generated sources.
    reduced = Below("reduced")
    support = Below("support")  # a copy of the hand-written C++ that every graft has
    mirror = Below("mirror")  # of a source tree: its code generator as a wheel has it
    tree = Below("tree")  # the merged copy of torchgen
    templates = Below("templates")  # the autograd templates of the graft
    generated = Below("generated")  # what the code generator made
    # Of a source tree: the generated file of Meta kernels that know symbolic shapes.
    symbolic_meta = Below("symbolic_meta.cpp")
    sources = Below("sources")  # the generated sources that are compiled, adapted


@functools.cache
def tooling_fingerprint(rooms: tuple[str, ...] = WHEEL_ROOMS, package: Path = PACKAGE) -> str:
    """A hash over the files of some rooms, read once a run: what they made, a change makes anew."""
    found = [path for room in rooms for path in files.tree_files(package / room)]
    return files.fingerprint(found, package)


def for_base(base: Base, additions: Additions, work: Path) -> BuildDir:
    """The build directory of these additions on this base; stable between edits.

    Wheels of one release share it: what is not about Python is compiled for the first of them.
    """
    key = files.sha256_text(
        base.shared_identity, str(base.include), str(additions.root),
        os.environ.get("USE_CUDA", ""), os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
        os.environ.get("CXX", ""), os.environ.get("CUDA_HOME", ""),
    )  # fmt: skip
    return BuildDir(work / f"torch-{base.version}-{key[:12]}")


def for_tree(tree: SourceTree, additions: Additions, work: Path) -> BuildDir:
    """The build directory of these additions on this tree; stable between edits."""
    key = files.sha256_text(str(tree.root), str(additions.root))
    return BuildDir(work / f"tree-{tree.version}-{key[:12]}")


@contextmanager
def locked(layout: BuildDir) -> Iterator[None]:
    """Hold a build directory, made if need be; a second run waits.

    What killed runs left half-written is deleted, and all of it where a clock was ahead that made
    it: ninja goes by times, and would take later edits for older ones.
    """
    root = layout.root
    lock = root.with_name(f"{root.name}.lock")
    with files.lock(lock, f"building in {root.name}"):
        log = layout.build / ".ninja_log"
        if log.is_file() and log.stat().st_mtime > time.time():
            files.remove(root)
        root.mkdir(parents=True, exist_ok=True)
        files.remove_stale_temporaries(root)
        files.remove_stale_temporaries(layout.tree)
        yield


def up_to_date(layout: BuildDir, inputs: str, out: Path) -> Path | None:
    """The wheel of an earlier run with these very inputs, if it is still there, byte for byte.

    Otherwise nothing of these inputs counts as delivered there until `keep_delivered` says so: it
    may be killed when the wheel is there, and what goes with it is not.
    """
    known = _delivered(layout)
    for wheel, made in known.items():
        path = Path(wheel)
        of_these = made["inputs"] == inputs and path.parent == out and path.is_file()
        if of_these and files.sha256_file(path) == made["sha256"]:
            return path
    others = {
        wheel: made for wheel, made in known.items()
        if made["inputs"] != inputs or Path(wheel).parent != out
    }  # fmt: skip
    if others != known:
        files.write_json(layout.root / _DELIVERED, others)
    return None


def _delivered(layout: BuildDir) -> dict[str, dict[str, str]]:
    """What was made here, by the wheel's path: for several Pythons, whole and as overlays."""
    known = files.read_json(layout.root / _DELIVERED)
    items = known.items() if isinstance(known, dict) else ()
    return {wheel: made for wheel, made in items if isinstance(made, dict)}


def keep_delivered(layout: BuildDir, inputs: str, wheel: Path) -> None:
    """Have the next run with these inputs find the wheel."""
    made = {"inputs": inputs, "sha256": files.sha256_file(wheel)}
    files.write_json(layout.root / _DELIVERED, {**_delivered(layout), str(wheel.absolute()): made})
