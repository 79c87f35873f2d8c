"""Lays a source tree's code generator out as a wheel has it, so that one driver serves both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..util import files
from .tree import PACKAGED, SourceTree

Read = Callable[[str], str | None]


@dataclass(frozen=True)
class Mirror:
    """A copy of a tree's torchgen, without anything of ours, laid out as in site-packages."""

    root: Path
    fingerprint: str  # of all that is in it


def make(tree: SourceTree, read: Read, target: Path, more: Sequence[str] = ()) -> Mirror:
    """Make the copy, or bring it up to date.

    read: gives a file's text as the tree's commit has it, whatever is applied.
    more: files that `read` may know beyond those that are there, such as patches add.
    """
    wanted: dict[str, str] = {}
    for packaged, own in [("torchgen", "torchgen"), *PACKAGED.items()]:
        for name in [*_names(tree, own), *(n for n in more if n.startswith(own + "/"))]:
            text = read(name)
            # None for a file that only an apply of ours has put there.
            if text is not None and not name.startswith("torchgen/packaged/"):
                wanted[packaged + name.removeprefix(own)] = text
    for name, text in wanted.items():
        files.write_if_changed(target / name, text)
    for path in files.tree_files(target):
        if path.relative_to(target).as_posix() not in wanted:
            path.unlink()
    parts = [part for item in sorted(wanted.items()) for part in item]
    return Mirror(target, files.sha256_text(*parts))


def _names(tree: SourceTree, own: str) -> list[str]:
    place = tree.root / own
    if place.is_file():
        return [own]
    return [path.relative_to(tree.root).as_posix() for path in files.tree_files(place)]
