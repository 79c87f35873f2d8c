"""The table in the terminal: items down, operators across, and each gap in words below."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from .table import EXPLAINED, FULL, GAP, NOT_APPLICABLE, RED, STALE, UNAVAILABLE, Cell, Table, count

# State → (sign, style, word).
SIGNS = {
    FULL: ("✓", "green", "full"),
    GAP: ("✗", "bold red", "gap"),
    EXPLAINED: ("e", "yellow", "explained gap"),
    STALE: ("!", "bold red", "stale explanation"),
    NOT_APPLICABLE: ("·", "dim", "not applicable"),
    UNAVAILABLE: ("?", "dim", "not to be told on this machine"),
}
_WIDTH = 100
_TITLE = 32  # columns for an item's name
_COLUMN = 3


def show(table: Table, console: Console) -> None:
    """Print the table, then every cell that needs words."""
    console.print(
        f"torch {table.version} on {', '.join(table.devices)}: {len(table.operators)} operators, "
        f"{len(table.items)} items",
        highlight=False,
    )
    most = (_WIDTH - _TITLE) // _COLUMN
    for start in range(0, len(table.operators), most):
        _block(table, table.operators[start : start + most], start, console)
    for title, states in (("not full", RED), ("explained", (EXPLAINED,))):
        _words(title, table.in_state(*states), console)
    _machine(table, console)
    for complaint in table.explanations:
        console.print(f"\n{complaint}", style="bold red", markup=False)
    console.print("\n" + summary(table), markup=False, soft_wrap=True)


def _block(table: Table, operators: Sequence[str], start: int, console: Console) -> None:
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


def _words(title: str, cells: Sequence[Cell], console: Console) -> None:
    if cells:
        console.print(f"\n{title}:", style="bold")
    for cell in cells:
        text = Text(f"  {cell.operator}, {cell.item}: ", style=SIGNS[cell.state][1])
        text.append(cell.why, style="default not bold")
        console.print(text, soft_wrap=True)


def _machine(table: Table, console: Console) -> None:
    """What this machine cannot tell, a line for each item."""
    reasons: dict[str, str] = {}
    for cell in table.in_state(UNAVAILABLE):
        reasons.setdefault(cell.item, cell.why)
    if reasons:
        told = "; ".join(f"{item} ({why})" for item, why in reasons.items())
        console.print(f"\nnot told on this machine: {told}", style="dim", markup=False,
                      soft_wrap=True)  # fmt: skip


def summary(table: Table) -> str:
    """One line: how many cells are in each state."""
    numbers = count(table.cells)
    told = [f"{SIGNS[state][0]} {number} {SIGNS[state][2]}" for state, number in numbers.items()]
    return ", ".join(t for t, n in zip(told, numbers.values(), strict=True) if n)
