"""The upstream that a patch command is about: a release, a wheel file, a git ref or a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..edits import patches
from ..edits.patches import Lane, Tree
from ..errors import UsageError
from ..rebase import targets
from ..upstream import interpreter
from ..upstream import pins as releases
from ..upstream import tree as sourcetree
from ..upstream.git import UPSTREAM
from ..upstream.wheel import VERSION_FILE, read_version_file
from ..util import cache
from ..util.ui import Ui


@dataclass(frozen=True)
class Target:
    """Upstream's files, their version, and the lane whose layout they have."""

    tree: Tree
    version: str
    lane: Lane


def open_target(word: str, lane: Lane | None, ui: Ui) -> Target:
    """What a command line names; a release is fetched as the smallest wheel that has its files.

    lane: another one than the layout suggests.
    """
    path = Path(word)
    if path.is_dir():
        return _directory(path, lane)
    pins = releases.load()
    [target] = targets.parse([word], pins, everything=False)
    python = interpreter.probe(None, headers=False)
    with ui.step("open upstream") as step:
        opening = targets.Opening(python, pins, cache.directory(), UPSTREAM, runnable=False)
        base = targets.open_target(target, opening, lambda text: step.advance(0, 0, text))
        step.say(f"torch {base.version}")
    return Target(patches.directory(base.root), base.version, lane or "graft")


def _directory(root: Path, lane: Lane | None) -> Target:
    tree = patches.directory(root)
    if (root / "aten").is_dir():
        return Target(tree, sourcetree.open_tree(root).version, lane or "source")
    text = tree.read(VERSION_FILE)
    if text is None:
        raise UsageError(
            "this directory has no PyTorch",
            where=str(root),
            why=f"neither aten/ as sources have it nor {VERSION_FILE} as site-packages has it",
            next="name the top of a source tree, or the directory that holds torch/",
        )
    version = read_version_file(text, str(root / VERSION_FILE)).version
    return Target(tree, version, lane or "graft")
