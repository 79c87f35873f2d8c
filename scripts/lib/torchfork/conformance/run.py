"""Checks every cell: workers in the interpreter under test, whose deaths are results, too."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ..errors import UsageError, VerificationError
from ..util import files, process, serde
from .checks.worker import Job
from .plan import Plan
from .table import GAP, Cell, Explanation, Table, apply, unknown

Progress = Callable[[int, int, str], None]
Wanted = tuple[str, str]  # operator, item
Prepared = Mapping[str, object]  # what tasks gave, as workers read it

_LIB = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from torchfork.conformance.checks.worker import main; main(sys.argv[2])"
)
_SIGNALLED = 128  # a supervised program that a signal N ended gives 128 + N
_POLL = 0.2
_START = 900.0  # seconds that a worker may take to import torch, on a machine that is busy


@dataclass(frozen=True)
class Chosen:
    """Which part of the table is wanted; all of it where a list is empty."""

    operators: tuple[str, ...] = ()
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Torch:
    """What a worker says of its torch. items: title and task of each."""

    version: str
    file: str
    devices: tuple[str, ...]
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Run:
    """What one worker wrote, and how it ended: '' for well."""

    torch: Torch | None
    cells: tuple[Cell, ...]
    unfinished: Wanted | None  # the cell that it died in
    result: object  # of its task
    ending: str


def run(
    plan: Plan, workers: Workers, explanations: Sequence[Explanation], chosen: Chosen, jobs: int,
    progress: Progress,
) -> Table:  # fmt: skip
    """The table. jobs: workers at once, each with one operator."""
    started = time.monotonic()
    operators = plan.matching(chosen.operators)
    torch = workers.torch()
    every = [title for title, _ in torch.items]
    if strange := [title for title in chosen.items if title not in every]:
        raise UsageError(
            f"there is no item '{strange[0]}'", next=f"choose from: {', '.join(every)}"
        )
    items = [title for title in every if not chosen.items or title in chosen.items]
    tasks = dict.fromkeys(task for title, task in torch.items if task and title in items)
    total, done = len(operators) * len(items), 0

    with ThreadPoolExecutor(jobs) as pool:
        progress(0, total, ", ".join(tasks))
        prepared = dict(zip(tasks, pool.map(workers.task, tasks), strict=True))

        def check(operator: str) -> list[Cell]:
            nonlocal done
            found = []
            for cell in workers.cells([(operator, item) for item in items], prepared):
                found.append(cell)
                done += 1
                progress(done, total, f"{cell.operator}: {cell.item}")
            return found

        cells = [cell for found in pool.map(check, operators) for cell in found]
    return Table(
        version=torch.version,
        torch=torch.file,
        devices=torch.devices,
        operators=tuple(operators),
        items=tuple(items),
        cells=tuple(apply(cells, explanations, torch.version, torch.devices)),
        explanations=tuple(unknown(explanations, plan.names, every)),
        seconds=time.monotonic() - started,
    )


@dataclass
class Workers:
    """How workers are started.

    python: the interpreter that has the torch. job: what every job has. timeout: seconds a cell.
    """

    python: Path
    scratch: Path
    job: Job
    timeout: float
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def torch(self) -> Torch:
        """What the torch says of itself."""
        found = self._run(self.job)
        if found.torch is None:
            raise VerificationError(
                "this torch cannot be checked: the worker ended before it began",
                where=str(self.python),
                why=found.ending,
                next="see that `import torch` works in that environment",
            )
        return found.torch

    def task(self, name: str) -> object:
        """Do something for all operators at once; a worker that dies makes it unavailable."""
        found = self._run(replace(self.job, task=name))
        return found.result or {"unavailable": f"it failed: {found.ending}"}

    def cells(self, wanted: Sequence[Wanted], prepared: Prepared) -> Iterator[Cell]:
        """Check cells. A worker that dies is followed by another, which goes on after its cell."""
        remaining = list(wanted)
        while remaining:
            found = self._run(replace(self.job, cells=remaining, prepared=prepared))
            yield from found.cells
            remaining = remaining[len(found.cells) :]
            if found.unfinished:
                yield self._alone(found.unfinished, prepared, found.ending)
                remaining = remaining[1:]
            elif remaining:
                yield from (
                    Cell(*cell, GAP, f"no check began: {found.ending}") for cell in remaining
                )
                return

    def _alone(self, cell: Wanted, prepared: Prepared, ending: str) -> Cell:
        """The cell that a worker died in, by itself: the fault may have been an earlier cell's."""
        found = self._run(replace(self.job, cells=[cell], prepared=prepared))
        if not found.cells:
            return Cell(*cell, GAP, found.ending)
        (alone,) = found.cells
        return alone.as_state(
            GAP, f"{alone.why or 'full'} by itself, but after the operator's others {ending}"
        )

    def _run(self, job: Job) -> Run:
        place = self.scratch / f"worker-{next(self.numbers)}"
        place.mkdir(parents=True, exist_ok=True)
        results, log, path = place / "results.jsonl", place / "log.txt", place / "job.json"
        results.write_bytes(b"")
        files.write_json(path, asdict(replace(job, results=str(results))))
        status, late = self._wait(place, results, log, path)
        ending = self._ending(status, late, log.read_text(encoding="utf-8", errors="replace"))
        return _read(results.read_text("utf-8"), ending)

    def _wait(self, place: Path, results: Path, log: Path, job: Path) -> tuple[int, bool]:
        """The exit status, and whether a cell took too long."""
        late = False
        command: list[str | Path] = [self.python, "-c", _BOOT, _LIB, job]
        with (
            log.open("wb") as sink,
            process.started(
                command, cwd=place, env=self._environment(place), stdout=sink
            ) as running,
        ):
            while running.poll() is None:
                time.sleep(_POLL)
                written = results.stat()
                limit = self.timeout if written.st_size else max(self.timeout, _START)
                if not late and time.time() - written.st_mtime > limit:
                    late = True
                    running.send_signal(signal.SIGTERM)
        return running.returncode, late

    def _environment(self, place: Path) -> dict[str, str]:
        """The user's, with nothing kept between runs and programs of the environment at hand."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        return process.clean_environment(
            {
                "PATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONFAULTHANDLER": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
                "TORCH_EXTENSIONS_DIR": str(place / "extensions"),
                "MAX_JOBS": os.environ.get("MAX_JOBS", "1"),
            }
        )

    def _ending(self, status: int, late: bool, log: str) -> str:
        if late:
            return f"it did not finish within {self.timeout:.0f} s"
        if status > _SIGNALLED:
            return f"ended by {_signal_name(status - _SIGNALLED)}"
        return f"ended with status {status}: {log.strip()}" if status else ""


def _read(text: str, ending: str) -> Run:
    """The events that a worker wrote."""
    torch, cells, begun, result = None, list[Cell](), list[Wanted](), None
    for line in text.splitlines():
        event = json.loads(line)
        kind = event.pop("event")
        if kind == "torch":
            torch = serde.load(Torch, event)
        elif kind == "begin":
            begun.append((event["operator"], event["item"]))
        elif kind == "end":
            cells.append(serde.load(Cell, event))
        else:
            result = event["result"]
    unfinished = begun[len(cells)] if len(begun) > len(cells) else None
    return Run(torch, tuple(cells), unfinished, result, ending)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
