"""Checks every cell of the table and gathers what came out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import reasons
from .plan import Plan
from .reasons import Explanation
from .table import Cell, Table
from .workers import Workers

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Chosen:
    """Which part of the table is wanted; all of it where a list is empty."""

    operators: tuple[str, ...] = ()
    items: tuple[str, ...] = ()


def run(
    plan: Plan, workers: Workers, explanations: Sequence[Explanation], chosen: Chosen, jobs: int,
    progress: Progress,
) -> Table:  # fmt: skip
    """The table. jobs: workers at once, each with one operator."""
    started = time.monotonic()
    told = workers.survey()
    every = [title for title, _ in told["items"]]
    operators = _known("operator", chosen.operators, plan.names)
    items = _known("item", chosen.items, every)
    tasks = dict.fromkeys(task for title, task in told["items"] if task and title in items)
    total, done = len(operators) * len(items), 0

    def count(cell: Cell) -> None:
        nonlocal done
        done += 1
        progress(done, total, f"{cell.operator}: {cell.item}")

    with ThreadPoolExecutor(jobs) as pool:
        progress(0, total, ", ".join(tasks))
        prepared = dict(zip(tasks, pool.map(workers.task, tasks), strict=True))

        def checked(operator: str) -> list[Cell]:
            return workers.cells([(operator, item) for item in items], prepared, count)

        found = [cell for cells in pool.map(checked, operators) for cell in cells]
    cells = reasons.apply(found, explanations, told["version"], told["devices"])
    return Table(
        version=told["version"],
        torch=told["file"],
        devices=tuple(told["devices"]),
        operators=tuple(operators),
        items=tuple(items),
        cells=tuple(cells),
        explanations=tuple(reasons.unknown(explanations, plan.names, every)),
        seconds=time.monotonic() - started,
    )


def _known(what: str, wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """The wanted ones in the order of those that are there; all where none is named."""
    if unknown := [name for name in wanted if name not in there]:
        raise UsageError(
            f"there is no {what} '{unknown[0]}'", next=f"choose from: {', '.join(there)}"
        )
    return [name for name in there if not wanted or name in wanted]


def job_of(plan: Plan, extras: Path, scratch: Path, devices: Sequence[str]) -> dict[str, Any]:
    """What every worker's job has."""
    return {
        "operators": [asdict(operator) for operator in plan.operators],
        "samples": str(plan.samples or ""),
        "extras": str(extras),
        "scratch": str(scratch),
        "documented": list(plan.documented),
        "devices": list(devices),
    }
