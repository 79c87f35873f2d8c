"""Edits of upstream that are neither YAML nor ATen source: patches/, its states and its lint.

What others need: `load` a series, `plan` it on a tree (reads only), `apply` it to a directory.
"""

from __future__ import annotations

from .lint import lint
from .outcome import Conflict, Outcome, Report, State
from .planning import plan
from .series import Entry, Lane, Series, load
from .tree import Tree, directory, layered
from .writing import apply, write

__all__ = [
    "Conflict", "Entry", "Lane", "Outcome", "Report", "Series", "State", "Tree", "apply",
    "directory", "layered", "lint", "load", "plan", "write",
]  # fmt: skip
