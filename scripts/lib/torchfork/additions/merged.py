"""What merging the YAML of the additions into upstream's gives, and how lines map back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..util.blocks import BEGIN, END, strip_blocks
from .load import YamlFile

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

    @property
    def packaged(self) -> Path:
        """The YAML files, templates and generators of the copy."""
        return self.root / "torchgen" / "packaged"


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
