"""Where the work on one source tree with one set of additions is kept, and the lock on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..additions.load import Additions
from ..upstream.tree import SourceTree
from ..util import files
from ..util.ui import Ui
from . import workdir


@dataclass(frozen=True)
class TreeBuildDir:
    """Where the work on one tree with one set of additions is kept."""

    root: Path

    @property
    def mirror(self) -> Path:
        """The tree's code generator as a wheel has it."""
        return self.root / "mirror"

    @property
    def merged(self) -> Path:
        """The same with the additions in it."""
        return self.root / "merged"

    @property
    def symbolic_meta(self) -> Path:
        """The generated file of Meta kernels that know symbolic shapes."""
        return self.root / "symbolic_meta.cpp"


def layout_for(tree: SourceTree, additions: Additions, work: Path) -> TreeBuildDir:
    """The directory for these additions and this tree; stable between edits."""
    key = files.sha256_text(str(tree.root), str(additions.root))
    return TreeBuildDir(work / f"tree-{tree.version}-{key[:12]}")


@contextmanager
def locked(layout: TreeBuildDir, ui: Ui) -> Iterator[None]:
    """Hold a layout; a second run waits and says for whom."""
    with workdir.held(layout.root, "working on", ui):
        yield
