"""The matrix as a table in the terminal, and what needs a person below it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .model import (
    FAILED,
    IMPOSSIBLE,
    NOT_ASKED,
    NOT_REACHED,
    PASSED,
    TIERS,
    Matrix,
    SubjectResult,
    TierResult,
)

# State → (word, style). A word beside each colour: not everybody sees the colours.
STATES = {
    PASSED: ("ok", "green"),
    FAILED: ("FAILED", "bold red"),
    NOT_REACHED: ("–", "dim"),
    NOT_ASKED: ("", "dim"),
    IMPOSSIBLE: ("n/a", "dim"),
}

# Columns of a terminal that has room for the wheels' names; the page has them in any case.
_WITH_BASE = 120


def show(matrix: Matrix, console: Console) -> None:
    """Print the table and every finding."""
    table = Table(
        title=f"{len(matrix.operators)} added operators ({matrix.additions})", title_style=""
    )
    table.add_column("torch", no_wrap=True)
    for letter, title in TIERS.items():
        if letter in matrix.tiers:
            table.add_column(f"({letter})\n{title}", no_wrap=True)
    wide = console.width >= _WITH_BASE
    if wide:
        table.add_column("base", overflow="fold", style="dim")
    for subject in matrix.subjects:
        cells = [_cell(tier) for tier in subject.tiers if tier.tier in matrix.tiers]
        table.add_row(subject.name, *cells, *([_base(subject)] if wide else []))
    console.print(table)
    for subject in matrix.subjects:
        failure = subject.first_failure
        if failure:
            console.print(_finding(subject, failure))
    console.print(summary(matrix), markup=False, soft_wrap=True)


def _cell(tier: TierResult) -> Text:
    word, style = STATES[tier.state]
    if tier.state in (PASSED, FAILED):
        word += f" {tier.seconds:.{1 if tier.seconds < 10 else 0}f} s"
    return Text(word, style=style)


def _base(subject: SubjectResult) -> str:
    kept = " (nothing changed)" if subject.cached else ""
    return f"{subject.base or subject.commit[:12]}{kept}"


def _finding(subject: SubjectResult, tier: TierResult) -> Text:
    finding = tier.finding
    text = Text(f"\ntorch {subject.name}, tier ({tier.tier}): ", style="bold")
    if finding is None:
        return text
    text.append(finding.kind, style="bold red")
    for label, part in (
        ("what", finding.what), ("where", finding.where), ("why", finding.why),
        ("do", finding.advice), ("next", finding.next),
    ):  # fmt: skip
        if part:
            indented = part.strip().replace("\n", "\n" + " " * 7)
            text.append(f"\n{label + ':':<7}{indented}", style="not bold default")
    return text


def summary(matrix: Matrix) -> str:
    """One line: how many came through, and how many need a person."""
    red = [subject for subject in matrix.subjects if subject.red]
    kept = sum(subject.cached for subject in matrix.subjects)
    through = f"{len(matrix.subjects) - len(red)} of {len(matrix.subjects)} came through"
    needs = "needs" if len(red) == 1 else "need"
    person = f"{len(red)} {needs} a person" if red else "nothing needs a person"
    return f"\n{through}; {person} ({matrix.seconds:.1f} s, {kept} unchanged since an earlier run)"
