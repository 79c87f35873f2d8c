"""The table: operators, items, and how each cell came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

FULL = "full"  # checked, and it holds
GAP = "gap"  # checked, and it does not hold
EXPLAINED = "explained"  # a gap with a reason in citizenship.toml
STALE = "stale"  # has a reason in citizenship.toml, and holds
NOT_APPLICABLE = "na"  # means nothing for the operator, by its declaration or its nature
UNAVAILABLE = "unavailable"  # this machine cannot tell: no GPU, no tool

RED = (GAP, STALE)


@dataclass(frozen=True)
class Cell:
    """One item of one operator. why: the complaint, the reason or the nature; '' where full."""

    operator: str
    item: str
    state: str
    why: str = ""
    seconds: float = 0.0

    def as_state(self, state: str, why: str) -> Cell:
        """The same cell in another state."""
        return replace(self, state=state, why=why)


@dataclass(frozen=True)
class Table:
    """What came out of one run.

    explanations: complaints about citizenship.toml itself, which count as red.
    """

    version: str
    torch: str  # where it was imported from
    devices: tuple[str, ...]
    operators: tuple[str, ...]
    items: tuple[str, ...]
    cells: tuple[Cell, ...]
    explanations: tuple[str, ...] = ()
    seconds: float = 0.0

    def cell(self, operator: str, item: str) -> Cell | None:
        """The cell of an operator and an item, if it was asked for."""
        return next((c for c in self.cells if (c.operator, c.item) == (operator, item)), None)

    def in_state(self, *states: str) -> list[Cell]:
        """The cells in some states, by operator, then in the list's order."""
        return [cell for cell in self.sorted_cells() if cell.state in states]

    def sorted_cells(self) -> Iterator[Cell]:
        """The cells by operator, then in the list's order."""
        known = {(cell.operator, cell.item): cell for cell in self.cells}
        for operator in self.operators:
            for item in self.items:
                if cell := known.get((operator, item)):
                    yield cell

    @property
    def red(self) -> bool:
        """Whether anything needs a person."""
        return bool(self.explanations) or bool(self.in_state(*RED))

    def to_json(self) -> dict[str, Any]:
        """For other programs; states as they are named here."""
        return {
            "torch": {"version": self.version, "file": self.torch},
            "devices": list(self.devices),
            "operators": list(self.operators),
            "items": list(self.items),
            "counts": count(self.cells),
            "explanations": list(self.explanations),
            "seconds": round(self.seconds, 1),
            "cells": [
                {"operator": c.operator, "item": c.item, "state": c.state, "why": c.why,
                 "seconds": c.seconds} for c in self.sorted_cells()
            ],
        }  # fmt: skip


def count(cells: Sequence[Cell]) -> dict[str, int]:
    """How many cells are in each state."""
    states = (FULL, EXPLAINED, GAP, STALE, NOT_APPLICABLE, UNAVAILABLE)
    return {state: sum(cell.state == state for cell in cells) for state in states}
