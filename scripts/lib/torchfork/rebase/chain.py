"""The matrix as a log from release to release: small, to be kept, no trace of the machine in it."""

from __future__ import annotations

from typing import Any

from . import tables
from .changes import SECTIONS
from .model import NOT_ASKED, PASSED, TIERS, Matrix, SubjectResult


def render(matrix: Matrix) -> str:
    """The log's text: a row for each step, and what needed a person.

    Paths are left out, where an error has them: the log says what, and the same command run again
    says where.
    """
    last = matrix.tiers[-1]
    command = f"scripts/rebase_torch.sh --to {last} --chain FILE"
    lines = [
        f"# PyTorch {tables.span(matrix)}, step by step",
        "",
        f"**{tables.headline(matrix)}**",
        "",
        f"{len(matrix.operators)} added operators, tiers (a) to ({last}) {TIERS[last]}, written "
        f"{matrix.made[:10]} by `{command}` with these releases.",
        "",
        _row("step", "upstream's operators", "changed of what concerns the additions",
             "patches and lists", "tiers", "needed a person"),
        _row(*["---"] * 6),
        *(_step(subject, matrix.tiers) for subject in matrix.subjects),
        "",
        "## What needed a person",
        "",
    ]  # fmt: skip
    red = [line for subject in matrix.subjects for line in _finding(subject)]
    return "\n".join([*lines, *(red or ["Nothing."])]) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _step(subject: SubjectResult, asked: str) -> str:
    found = subject.changes
    return _row(
        f"{found['since']} → {subject.name}" if found else subject.name,
        f"{found['operators']:+d}" if found else "",
        _changed(found),
        _carried(subject),
        _tiers(subject, asked),
        subject.first_failure.finding.kind
        if subject.first_failure and subject.first_failure.finding
        else "nothing",
    )


def _changed(found: dict[str, Any]) -> str:
    """'12 schemas …; 3 codegen templates'; how many lines each section of the report has."""
    if not found:
        return ""
    counted = [f"{SECTIONS[key]}: {len(lines)}" for key, lines in found["sections"].items()]
    return "; ".join(counted) or "nothing"


def _carried(subject: SubjectResult) -> str:
    """How the parts of tier (b) stand: '7 as they are, 1 not needed'."""
    states: dict[str, int] = {}
    for tier in subject.tiers:
        for row in tier.rows if tier.tier == "b" else ():
            word = "as they are" if row["state"] == PASSED else row["state"]
            states[word] = states.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in states.items())


def _tiers(subject: SubjectResult, asked: str) -> str:
    return " ".join(
        f"{tables.LOOKS[tier.state][1]}{tier.tier}"
        for tier in subject.tiers
        if tier.tier in asked and tier.state != NOT_ASKED
    )


def _finding(subject: SubjectResult) -> list[str]:
    tier = subject.first_failure
    if tier is None or tier.finding is None:
        return []
    return [
        f"- torch {subject.name}, tier ({tier.tier}), {tier.finding.kind}: {tier.finding.advice}"
    ]
