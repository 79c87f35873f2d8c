"""The build directory of one pair of base and additions: its name, its lock, what it depends on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..additions.load import Additions
from ..additions.merge import MergedTree
from ..codegen import client
from ..codegen.build_dir import BuildDir
from ..codegen.model import Manifest
from ..upstream.base import Base, Upstream
from ..util import files, memo
from ..util.ui import Ui

# How long a second run waits for the first one's build directory.
LOCK_SECONDS = 3600.0


def tooling_fingerprint() -> str:
    """A hash over torchfork's own files: a change of the tooling makes everything anew."""
    package = Path(__file__).resolve().parents[1]
    return files.fingerprint(files.tree_files(package), package)


def layout_for(base: Base, additions: Additions, work: Path) -> BuildDir:
    """The build directory of these additions on this base; stable between edits."""
    key = files.sha256_text(
        base.identity, str(additions.root), str(base.interpreter.executable),
        os.environ.get("USE_CUDA", ""), os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
        os.environ.get("CXX", ""), os.environ.get("CUDA_HOME", ""),
    )  # fmt: skip
    return BuildDir(work / f"torch-{base.version}-{base.interpreter.tag}-{key[:12]}")


@contextmanager
def locked(layout: BuildDir, ui: Ui) -> Iterator[None]:
    """Hold a build directory; a second run waits and says for whom."""
    with held(layout.root, "building in", ui):
        files.remove_stale_temporaries(layout.tree)
        yield


@contextmanager
def held(root: Path, doing: str, ui: Ui) -> Iterator[None]:
    """Hold a directory, made if need be and rid of what killed runs left; a second run waits."""

    def waiting(holder: str) -> None:
        ui.warn(f"another run holds this build directory: {holder}; waiting for it")

    lock = root.with_name(f"{root.name}.lock")
    with files.lock(lock, f"{doing} {root.name}", waiting, LOCK_SECONDS):
        root.mkdir(parents=True, exist_ok=True)
        files.remove_stale_temporaries(root)
        yield


def described(
    tree: MergedTree, additions: Additions, upstream: Upstream, root: Path, key: str
) -> Manifest:
    """The generator's description of the additions, kept below root while the key is the same."""
    return memo.remember(
        root / "manifest.json", key, Manifest,
        lambda: client.describe(tree, additions, upstream.schemas, root),
    )  # fmt: skip
