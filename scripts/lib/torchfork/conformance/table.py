"""The table: how each cell came out, the reasons for gaps, and how all that is shown.

The reasons are in citizenship.toml:

[[gap]]
operator = "my_histogram"        # or a list of names
item = "gradcheck"               # as the table has it, or a list
why = "counts have no derivative"
torch = "<2.8"                   # optional: the releases that have the gap
device = "cuda"                  # optional: only where this device is
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..additions import paths
from ..additions.load import GAPS
from ..errors import AdditionsError
from ..util import files

_KEYS = {"operator", "item", "why", "torch", "device"}

FULL = "full"  # checked, and it holds
GAP = "gap"  # checked, and it does not hold
EXPLAINED = "explained"  # a gap with a reason in citizenship.toml
STALE = "stale"  # has a reason in citizenship.toml, and holds
NOT_APPLICABLE = "na"  # does not apply to the operator, by its declaration or its nature
UNAVAILABLE = "unavailable"  # this machine cannot check it: no GPU, no tool

RED = (GAP, STALE)
# State → (sign, style, word).
SIGNS = {
    FULL: ("✓", "green", "full"),
    EXPLAINED: ("e", "yellow", "explained gap"),
    GAP: ("✗", "bold red", "gap"),
    STALE: ("!", "bold red", "stale explanation"),
    NOT_APPLICABLE: ("·", "dim", "not applicable"),
    UNAVAILABLE: ("?", "dim", "not checked on this machine"),
}
_WIDTH = 100
_TITLE = 32  # columns for an item's name
_COLUMN = 3


@dataclass(frozen=True)
class Cell:
    """One item of one operator. why: the complaint or the reason; '' where full."""

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
    """The result of one run.

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
    def counts(self) -> dict[str, int]:
        """How many cells are in each state."""
        return {state: sum(cell.state == state for cell in self.cells) for state in SIGNS}

    @property
    def red(self) -> bool:
        """Whether a gap has no reason, or a reason no gap."""
        return bool(self.explanations) or bool(self.in_state(*RED))

    def to_json(self) -> dict[str, object]:
        """For other programs; states as they are named here."""
        return {
            "torch": {"version": self.version, "file": self.torch},
            "devices": list(self.devices),
            "operators": list(self.operators),
            "items": list(self.items),
            "counts": self.counts,
            "explanations": list(self.explanations),
            "seconds": round(self.seconds, 1),
            "cells": [
                {"operator": c.operator, "item": c.item, "state": c.state, "why": c.why,
                 "seconds": c.seconds} for c in self.sorted_cells()
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """One entry: the cells that it is about, and why they are gaps."""

    operators: tuple[str, ...]
    items: tuple[str, ...]
    why: str
    releases: SpecifierSet
    device: str

    def counts_for(self, version: str, devices: Sequence[str]) -> bool:
        """Whether it is about this torch on this machine."""
        number = Version(version.partition("+")[0]).base_version
        return number in self.releases and (not self.device or self.device in devices)


def load(root: Path) -> tuple[Explanation, ...]:
    """Read the file of an additions directory; none has no explanations.

    Raises AdditionsError where it is malformed or an entry gives no reason.
    """
    path = root / GAPS
    if not path.exists():
        return ()
    try:
        content = files.parse_toml(paths.read_text(path))
    except ValueError as error:
        raise AdditionsError("malformed TOML", where=str(path), why=str(error)) from error
    gaps = content.pop("gap", [])
    if content or not isinstance(gaps, list):
        raise _malformed(path, f"unknown keys besides [[gap]]: {', '.join(content) or 'gap'}")
    return tuple(_entry(entry, path, number) for number, entry in enumerate(gaps, 1))


def _entry(entry: dict[str, Any], path: Path, number: int) -> Explanation:
    if unknown := set(entry) - _KEYS:
        raise _malformed(path, f"entry {number} has {', '.join(sorted(unknown))}")
    lacking = [key for key in ("operator", "item", "why") if not entry.get(key)]
    if lacking:
        raise _malformed(path, f"entry {number} has no {' and no '.join(lacking)}")
    try:
        releases = SpecifierSet(entry.get("torch", ""))
    except InvalidSpecifier as error:
        raise _malformed(path, f"entry {number}: torch: {error}") from error
    return Explanation(
        _list(entry["operator"]), _list(entry["item"]), str(entry["why"]), releases,
        str(entry.get("device", "")),
    )  # fmt: skip


def _list(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (str(value),)


def _malformed(path: Path, why: str) -> AdditionsError:
    return AdditionsError(
        "an explanation of a gap is malformed",
        where=str(path),
        why=why,
        next='write [[gap]] with operator = "…", item = "…", why = "…"',
    )


def apply(
    cells: Iterable[Cell], explanations: Sequence[Explanation], version: str, devices: Sequence[str]
) -> list[Cell]:
    """The cells with the reasons of explained gaps, and stale explanations."""
    reasons = {
        (operator, item): entry.why
        for entry in explanations
        if entry.counts_for(version, devices)
        for operator in entry.operators
        for item in entry.items
    }
    return [_applied(cell, reasons.get((cell.operator, cell.item))) for cell in cells]


def _applied(cell: Cell, reason: str | None) -> Cell:
    if reason is None:
        return cell
    if cell.state == GAP:
        return cell.as_state(EXPLAINED, f"{reason} [{cell.why}]")
    if cell.state in (FULL, NOT_APPLICABLE):
        now = "it holds" if cell.state == FULL else f"it does not apply: {cell.why}"
        return cell.as_state(STALE, f"citizenship.toml says '{reason}', and {now}: delete that")
    return cell


def unknown(
    explanations: Sequence[Explanation], operators: Sequence[str], items: Sequence[str]
) -> list[str]:
    """Complaints about entries with operators or items that do not exist."""
    found = []
    for entry in explanations:
        found += [f"there is no operator '{n}'" for n in entry.operators if n not in operators]
        found += [f"there is no item '{n}'" for n in entry.items if n not in items]
    return [f"{GAPS}: {complaint}" for complaint in dict.fromkeys(found)]


def show(table: Table, console: Console) -> None:
    """Print the table, items down and operators across, then each cell that needs words."""
    console.print(
        f"torch {table.version} on {', '.join(table.devices)}: {len(table.operators)} operators, "
        f"{len(table.items)} items",
        highlight=False,
    )
    most = (_WIDTH - _TITLE) // _COLUMN
    for start in range(0, len(table.operators), most):
        _show_block(table, table.operators[start : start + most], start, console)
    for title, states in (("not full", RED), ("explained", (EXPLAINED,))):
        _show_cells(title, table.in_state(*states), console)
    # What this machine cannot check, once for each item.
    reasons: dict[str, str] = {}
    for cell in table.in_state(UNAVAILABLE):
        reasons.setdefault(cell.item, cell.why)
    if reasons:
        text = "; ".join(f"{item} ({why})" for item, why in reasons.items())
        console.print(f"\nnot checked on this machine: {text}", style="dim", markup=False,
                      soft_wrap=True)  # fmt: skip
    for complaint in table.explanations:
        console.print(f"\n{complaint}", style="bold red", markup=False)
    numbers = [f"{SIGNS[s][0]} {number} {SIGNS[s][2]}" for s, number in table.counts.items()
               if number]  # fmt: skip
    console.print("\n" + ", ".join(numbers), markup=False, soft_wrap=True)


def _show_block(table: Table, operators: Sequence[str], start: int, console: Console) -> None:
    # A number stays with its name: textwrap breaks at blanks alone.
    names = [f"{number}\u00a0{name}" for number, name in enumerate(operators, start + 1)]
    lines = textwrap.wrap("  ".join(names), _WIDTH, break_long_words=False)
    legend = "\n".join(lines).replace("\u00a0", " ")
    console.print(f"\n{legend}\n", style="dim", markup=False, soft_wrap=True)
    grid = Grid(box=None, pad_edge=False, padding=(0, 0), show_header=True, header_style="dim")
    grid.add_column("", no_wrap=True, width=_TITLE)
    for number in range(start + 1, start + 1 + len(operators)):
        grid.add_column(str(number), justify="right", width=_COLUMN, no_wrap=True)
    for item in table.items:
        grid.add_row(item, *(_sign(table.cell(operator, item)) for operator in operators))
    console.print(grid)


def _sign(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    sign, style, _ = SIGNS[cell.state]
    return Text(sign, style=style)


def _show_cells(title: str, cells: Sequence[Cell], console: Console) -> None:
    if cells:
        console.print(f"\n{title}:", style="bold")
    for cell in cells:
        text = Text(f"  {cell.operator}, {cell.item}: ", style=SIGNS[cell.state][1])
        text.append(cell.why.replace("\n", "\n      "), style="default not bold")
        console.print(text, soft_wrap=True)
