"""Applies the additions' patches to a base, in memory: what else of the wheel changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..additions.load import Additions
from ..errors import PatchError
from ..upstream.base import Base
from . import patches
from .patches import Report, Series, Tree


def load(additions: Additions) -> Series:
    """The series of these additions; empty where they have no patches."""
    return patches.load(additions.root)


def plan(base: Base, series: Series, cache: Path) -> Report:
    """The state of every patch on the base's files, for the graft lane. Writes nothing.

    cache: other unpacked bases lie there; a patch that was made on one of them can be merged.
    Raises PatchError for one that is malformed or that a wheel cannot take.
    """
    for fault in patches.lint(series):
        raise fault
    tree = patches.directory(base.root)
    return patches.plan(series, tree, base.version, "graft", origins(cache))


def origins(cache: Path) -> list[Tree]:
    """The unpacked bases in the cache."""
    folder = cache / "unpacked"
    roots = sorted(folder.iterdir()) if folder.is_dir() else []
    return [patches.directory(root) for root in roots if not root.name.startswith(".")]


def texts(report: Report) -> Mapping[str, str]:
    """The files that change, with their new text. Raises PatchError for one that goes."""
    found = {}
    for name, text in report.texts.items():
        if text is None:
            raise PatchError(
                f"a patch takes {name} away, which the graft lane cannot",
                why="a wheel is made of an official one and the files that differ from it",
                next="empty the file, or give the patch the lane 'source' in the series",
            )
        found[name] = text
    return found
