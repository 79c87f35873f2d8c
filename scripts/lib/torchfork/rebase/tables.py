"""The matrix turned into what pages show: rows by name, columns by subject, words and signs."""

from __future__ import annotations

from .model import FAILED, IMPOSSIBLE, NOT_ASKED, NOT_NEEDED, NOT_REACHED, PASSED, Matrix

Cell = dict[str, str]
# State → (class, sign, word). The word stands beside sign and colour wherever they are shown.
LOOKS = {
    PASSED: ("good", "✓", "ok"),
    FAILED: ("bad", "✗", "failed"),
    NOT_REACHED: ("idle", "–", "not reached"),
    NOT_ASKED: ("idle", "–", "not asked"),
    IMPOSSIBLE: ("idle", "–", "not possible"),
    NOT_NEEDED: ("idle", "·", "not needed"),
}


def patches(matrix: Matrix) -> dict[str, list[Cell | None]]:
    """Each patch and list (tier b) with its cell on every subject; None where not reached."""
    found = [
        {row["name"]: row for tier in subject.tiers if tier.tier == "b" for row in tier.rows}
        for subject in matrix.subjects
    ]
    names = dict.fromkeys(name for rows in found for name in rows)
    return {name: [rows.get(name) for rows in found] for name in names}


def operators(matrix: Matrix) -> dict[str, list[Cell | None]]:
    """Each operator of the additions with its cell on every subject."""
    found = [{row["name"]: row for row in subject.operators} for subject in matrix.subjects]
    return {name: [rows.get(name) for rows in found] for name in matrix.operators}


def span(matrix: Matrix) -> str:
    """'2.6.0 to 2.15.0'."""
    names = [subject.name for subject in matrix.subjects]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def headline(matrix: Matrix) -> str:
    """One sentence on how it went."""
    red = [subject.name for subject in matrix.subjects if subject.red]
    total = len(matrix.subjects)
    if not red:
        through = f"all {total} releases" if total > 1 else f"torch {matrix.subjects[0].name}"
        return f"Came through on {through}; nothing needs a person."
    needs = "needs" if len(red) == 1 else "need"
    return f"Came through on {total - len(red)} of {total}; {', '.join(red)} {needs} a person."
