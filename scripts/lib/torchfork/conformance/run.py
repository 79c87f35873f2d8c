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
from ..util import files, memo, process
from .checks.worker import EVENT, Job
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


@dataclass
class Run:
    """What one worker said, and how it ended: '' for well."""

    torch: Torch | None = None
    cells: list[Cell] = field(default_factory=list)
    begun: Wanted | None = None  # the cell that it died in
    result: object = None  # of its task
    ending: str = ""


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
    done, total = itertools.count(1), len(operators) * len(items)

    def seen(cell: Cell) -> None:
        progress(next(done), total, f"{cell.operator}: {cell.item}")

    with ThreadPoolExecutor(jobs) as pool:
        progress(0, total, ", ".join(tasks))
        prepared = dict(zip(tasks, pool.map(workers.task, tasks), strict=True))
        wanted = ([(operator, item) for item in items] for operator in operators)
        found = list(pool.map(lambda cells: workers.cells(cells, prepared, seen), wanted))
    cells = itertools.chain.from_iterable(found)
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
    """How workers are started: python has the torch, and job is what every one of them has."""

    python: Path
    scratch: Path
    job: Job
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

    def cells(
        self, wanted: Sequence[Wanted], prepared: Prepared,
        seen: Callable[[Cell], None] = lambda cell: None,
    ) -> list[Cell]:  # fmt: skip
        """Check cells. A worker that dies is followed by another, which goes on after its cell."""
        cells: list[Cell] = []
        while remaining := wanted[len(cells) :]:
            found = self._run(replace(self.job, cells=remaining, prepared=prepared), seen)
            cells += found.cells
            if found.begun:
                cells.append(self._alone(found.begun, prepared, found.ending))
                seen(cells[-1])
            else:
                why = f"no check began: {found.ending}"
                cells += (Cell(*cell, GAP, why) for cell in wanted[len(cells) :])
        return cells

    def _alone(self, cell: Wanted, prepared: Prepared, ending: str) -> Cell:
        """The cell that a worker died in, by itself: the fault may have been an earlier cell's."""
        found = self._run(replace(self.job, cells=[cell], prepared=prepared))
        if not found.cells:
            return Cell(*cell, GAP, found.ending)
        (alone,) = found.cells
        return alone.as_state(
            GAP, f"{alone.why or 'full'} by itself, but after the operator's others {ending}"
        )

    def _run(self, job: Job, seen: Callable[[Cell], None] = lambda cell: None) -> Run:
        place = self.scratch / f"worker-{next(self.numbers)}"
        place.mkdir(parents=True, exist_ok=True)
        files.write_json(place / "job.json", asdict(job))
        found, log = Run(), list[str]()

        def see(line: str) -> None:
            mark, event, text = line.partition(EVENT)
            if mark or not event:
                log.append(line)
                return
            said = json.loads(text)
            match said.pop("event"):
                case "torch":
                    found.torch = memo.load(Torch, said)
                case "begin":
                    found.begun = (said["operator"], said["item"])
                case "end":
                    found.begun = None
                    found.cells.append(memo.load(Cell, said))
                    seen(found.cells[-1])
                case _:
                    found.result = said["result"]

        command: list[str | Path] = [self.python, "-c", _BOOT, _LIB, place / "job.json"]
        status = process.stream(command, see, cwd=place, env=self._environment(place))
        found.ending = self._ending(status, "".join(log))
        return found

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

    def _ending(self, status: int, log: str) -> str:
        number = status - _SIGNALLED
        if number == signal.SIGALRM:
            return f"it did not finish within {self.job.timeout:.0f} s"
        if number > 0:
            known = {one.value: f" ({one.name})" for one in signal.Signals}
            return f"ended by signal {number}{known.get(number, '')}"
        return f"ended with status {status}: {log.strip()}" if status else ""
