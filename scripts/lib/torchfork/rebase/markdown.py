"""The matrix as Markdown: for a pull request, a job summary, a log that is kept."""

from __future__ import annotations

from . import tables
from .changes import SECTIONS
from .model import FAILED, NOT_ASKED, PASSED, TIERS, Matrix, SubjectResult, TierResult

_LONGEST = 40  # lines of a section before the rest is only counted


def render(matrix: Matrix) -> str:
    """The report's text."""
    letters = [letter for letter in TIERS if letter in matrix.tiers]
    head = ["torch", *(f"({letter}) {TIERS[letter]}" for letter in letters), "base"]
    lines = [
        f"# {matrix.additions} on PyTorch {tables.span(matrix)}",
        "",
        f"**{tables.headline(matrix)}** "
        f"({len(matrix.operators)} operators, {matrix.seconds:.0f} s, {matrix.made})",
        "",
        _row(head),
        _row(["---"] * len(head)),
    ]
    for subject in matrix.subjects:
        cells = [_cell(tier) for tier in subject.tiers if tier.tier in matrix.tiers]
        lines.append(_row([subject.name, *cells, f"`{subject.base}`"]))
    lines += ["", "## What needed a person", ""]
    red = [subject for subject in matrix.subjects if subject.red]
    for subject in red:
        lines += _finding(subject)
    lines += [] if red else ["Nothing.", ""]
    lines += ["## What changed upstream", ""]
    for subject in matrix.subjects:
        lines += _changes(subject)
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cell(tier: TierResult) -> str:
    _, sign, word = tables.LOOKS[tier.state]
    if tier.state == NOT_ASKED:
        return ""
    seconds = f" {tier.seconds:.1f} s" if tier.state in (PASSED, FAILED) else ""
    return f"{sign} {word}{seconds}"


def _finding(subject: SubjectResult) -> list[str]:
    tier = subject.first_failure
    if tier is None or tier.finding is None:
        return []
    found = tier.finding
    lines = [f"### torch {subject.name}, tier ({tier.tier}): {found.kind}", "", found.advice, ""]
    parts = {"error": found.what, "where": found.where, "why": found.why, "next": found.next}
    text = "\n".join(f"{name + ':':<7}{part}" for name, part in parts.items() if part)
    return [*lines, *_fenced(text), ""]


def _fenced(text: str) -> list[str]:
    """A block of text that cannot end before its end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}text", text, fence]


def _changes(subject: SubjectResult) -> list[str]:
    if not subject.changes:
        return []
    found = subject.changes
    lines = [
        "<details>",
        f"<summary>torch {found['since']} → {subject.name}: "
        f"{found['operators']:+d} operators</summary>",
        "",
    ]
    if not found["sections"]:
        lines += ["Nothing that concerns these additions.", ""]
    for key, all_of_them in found["sections"].items():
        shown = all_of_them[:_LONGEST]
        more = len(all_of_them) - len(shown)
        shown += [f"… and {more} more (matrix.json has all)"] if more else []
        lines += [f"{SECTIONS[key].capitalize()}:", "", *_fenced("\n".join(shown)), ""]
    return [*lines, "</details>", ""]
