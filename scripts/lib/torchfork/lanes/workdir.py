"""The build directory of one pair of base and additions: its name, its lock, what it depends on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import files
from ..additions import Additions
from ..bases.base import Base
from ..ui import Ui
from ..units import Layout

# How long a second run waits for the first one's build directory.
LOCK_SECONDS = 3600.0


def tooling_fingerprint() -> str:
    """A hash over torchfork's own files: a change of the tooling makes everything anew."""
    package = Path(__file__).resolve().parents[1]
    return files.fingerprint(files.tree_files(package), package)


def layout_for(base: Base, additions: Additions, work: Path) -> Layout:
    """The build directory of these additions on this base; stable between edits."""
    key = files.sha256_text(
        base.identity, str(additions.root), str(base.interpreter.executable),
        os.environ.get("USE_CUDA", ""), os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
        os.environ.get("CXX", ""), os.environ.get("CUDA_HOME", ""),
    )  # fmt: skip
    return Layout(work / f"torch-{base.version}-{base.interpreter.tag}-{key[:12]}")


@contextmanager
def locked(layout: Layout, ui: Ui) -> Iterator[None]:
    """Hold a build directory; a second run waits and says for whom."""

    def waiting(holder: str) -> None:
        ui.warn(f"another run holds this build directory: {holder}; waiting for it")

    lock = layout.root.with_name(f"{layout.root.name}.lock")
    with files.lock(lock, f"building in {layout.root.name}", waiting, LOCK_SECONDS):
        layout.root.mkdir(parents=True, exist_ok=True)
        for directory in (layout.root, layout.tree):
            files.remove_leavings(directory)
        yield
