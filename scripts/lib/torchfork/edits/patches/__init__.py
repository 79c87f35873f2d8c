"""Edits of upstream that are neither YAML nor ATen source: patches/, its states and its lint.

What others need: `load` a series, `plan` it on a tree (reads only), `write` what it changes.
"""

from __future__ import annotations

from .. import BuildMode, Texts, Tree, directory, encode, layered, write
from .planning import Report, check, lint, origins, plan, plan_additions, wheel_texts
from .series import Conflict, Outcome, Patch, Series, State, load

__all__ = [
    "BuildMode", "Conflict", "Outcome", "Patch", "Report", "Series", "State", "Texts", "Tree",
    "check", "directory", "encode", "layered", "lint", "load", "origins", "plan",
    "plan_additions", "wheel_texts", "write",
]  # fmt: skip
