"""citizenship.toml: the gaps that additions have for a reason.

[[gap]]
operator = "my_histogram"        # or a list of names
item = "gradcheck"               # as the table has it, or a list
why = "counts have no derivative"
torch = "<2.8"                   # optional: the releases that have the gap
device = "cuda"                  # optional: only where this device is
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from ..errors import AdditionsError
from .table import EXPLAINED, FULL, GAP, NOT_APPLICABLE, STALE, Cell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FILE = "citizenship.toml"
_KEYS = {"operator", "item", "why", "torch", "device"}


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
    path = root / FILE
    if not path.exists():
        return ()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
    return [f"{FILE}: {complaint}" for complaint in dict.fromkeys(found)]
