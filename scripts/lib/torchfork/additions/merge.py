"""Merges the YAML of additions into a copy of the base's code generator; maps lines back."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..util import files
from ..util.blocks import BEGIN, END, strip_blocks
from ..util.files import Below, Rooted, build_directory, write_if_changed
from .load import Additions
from .yaml_file import YamlFile

MERGED_FILES = {
    "native": "torchgen/packaged/ATen/native/native_functions.yaml",
    "derivatives": "torchgen/packaged/autograd/derivatives.yaml",
    "deprecated": "torchgen/packaged/autograd/deprecated.yaml",
}


@dataclass(frozen=True)
class Merged:
    """A merged YAML text, and where in it the additions begin."""

    text: str
    first_line: int  # line of the merged file that holds line 1 of ours

    def our_line(self, merged_line: int) -> int | None:
        """The line of our file that a line of the merged one comes from."""
        ours = merged_line - self.first_line + 1
        return ours if ours > 0 else None


@dataclass(frozen=True)
class MergedTree:
    """A copy of the base's torchgen that knows the additions."""

    root: Path  # holds torchgen/
    merged: Mapping[str, Merged]  # by the keys of MERGED_FILES
    patched: Mapping[str, str] = field(default_factory=dict)  # the base's files that patches change

    # The YAML files, templates and generators of the copy.
    packaged = Below("torchgen/packaged")


def yaml_files(additions: Additions) -> dict[str, YamlFile]:
    """The additions' YAML files by the keys of MERGED_FILES."""
    return {
        "native": additions.native,
        "derivatives": additions.derivatives,
        "deprecated": additions.deprecated,
    }


def merge_text(upstream: str, ours: YamlFile, path: str) -> Merged:
    """Append our entries, verbatim, between markers; entries of an earlier merge are replaced.

    At the end, because a derivative formula's number (HypotBackward1) counts the ones before it:
    upstream's own names must not move.
    """
    clean = strip_blocks(upstream, path)
    if not clean.endswith("\n"):
        clean += "\n"
    if not ours.entries:
        return Merged(clean, clean.count("\n") + 1)
    body = ours.text if ours.text.endswith("\n") else ours.text + "\n"
    head = f"{clean}# {BEGIN}\n"  # no blank line, which would stay when the block is taken out
    return Merged(f"{head}{body}# {END}\n", head.count("\n") + 1)


def prepare(base: Rooted, additions: Additions, tree: Path) -> MergedTree:
    """Make, or bring up to date, the merged copy of the base's torchgen below `tree`.

    base: laid out as site-packages is, with a torchgen/ in it.
    """
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
