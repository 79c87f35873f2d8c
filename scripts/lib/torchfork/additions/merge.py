"""Merges the YAML of the additions into a copy of the base's code generator."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from ..util import files
from ..util.files import build_directory, write_if_changed
from .load import Additions, YamlFile
from .merged import MERGED_FILES, MergedTree, merge_text


class Rooted(Protocol):
    """Anything whose root is laid out as site-packages is, with a torchgen/ in it."""

    @property
    def root(self) -> Path:
        """Holds torchgen/."""


def yaml_files(additions: Additions) -> dict[str, YamlFile]:
    """The additions' YAML files by the keys of MERGED_FILES."""
    return {
        "native": additions.native,
        "derivatives": additions.derivatives,
        "deprecated": additions.deprecated,
    }


def prepare(base: Rooted, additions: Additions, tree: Path) -> MergedTree:
    """Make, or bring up to date, the merged copy of the base's torchgen below `tree`."""
    source = base.root / "torchgen"
    if not (tree / "torchgen").is_dir():
        build_directory(tree / "torchgen", lambda target: _copy(source, target))
    merged = {}
    for key, ours in yaml_files(additions).items():
        relative = MERGED_FILES[key]
        upstream = (base.root / relative).read_text(encoding="utf-8")
        merged[key] = merge_text(upstream, ours, relative)
        write_if_changed(tree / relative, merged[key].text)
    return MergedTree(tree, merged)


def _copy(source: Path, target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)


def apply_edits(
    base: Rooted, tree: MergedTree, edits: Mapping[str, str], editable: Iterable[str]
) -> None:
    """Write edited generator files (patched ones, lists of operators) into the merged copy.

    editable: every file that may be edited. One that is not edited any more gets the base's text
    again: the tree depends on the additions alone, not on what they were before.
    """
    note = tree.root / "patched.json"
    texts = {**tree.patched, **edits}
    for relative in dict.fromkeys([*editable, *(files.read_json(note) or ()), *tree.patched]):
        if relative in texts and relative.startswith("torchgen/"):
            write_if_changed(tree.root / relative, texts[relative])
        elif (tree.root / relative).is_file() and (base.root / relative).is_file():
            write_if_changed(tree.root / relative, (base.root / relative).read_bytes())
        else:
            (tree.root / relative).unlink(missing_ok=True)
    names = sorted(name for name in tree.patched if name.startswith("torchgen/"))
    if names:
        files.write_json(note, names)
    else:
        note.unlink(missing_ok=True)
