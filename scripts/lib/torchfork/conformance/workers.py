"""Runs torchfork.conformance.checks.worker in the interpreter under test, and outlives it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import VerificationError
from ..util import files, process, supervise
from .table import GAP, Cell

_LIB = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from torchfork.conformance.checks.worker import main; main(sys.argv[2])"
)
_SIGNALLED = 128  # a program that a signal N ended gives 128 + N, through supervise
_POLL = 0.2
_START = 900.0  # seconds that a worker may take to import torch, on a machine that is busy

Events = list[dict[str, Any]]


@dataclass
class Workers:
    """How workers are started.

    python: the interpreter that has the torch; extras: packages that are lent to it.
    job: what every job has; timeout: seconds that one cell may take.
    """

    python: Path
    extras: Path
    scratch: Path
    job: dict[str, Any]
    timeout: float
    numbers: Any = field(default_factory=itertools.count)

    def survey(self) -> dict[str, Any]:
        """What the torch says of itself: version, file, devices, items with their tasks."""
        events, ended = self._run({})
        if not events:
            raise VerificationError(
                "this torch cannot be checked: the worker ended before it began",
                where=str(self.python),
                why=ended,
                next="see that `import torch` works in that environment",
            )
        return events[0]

    def task(self, name: str) -> dict[str, Any]:
        """Do something for all operators at once; a worker that dies makes it unavailable."""
        events, ended = self._run({"task": name})
        told = [event["told"] for event in events if event["event"] == "task"]
        found: dict[str, Any] = told[0] if told else {"unavailable": f"it failed: {ended}"}
        return found

    def cells(
        self, wanted: Sequence[tuple[str, str]], prepared: dict[str, Any],
        progress: Callable[[Cell], None],
    ) -> list[Cell]:  # fmt: skip
        """Check cells. A worker that dies is followed by another, which goes on after its cell."""
        found: list[Cell] = []

        def add(cells: Sequence[Cell]) -> None:
            for cell in cells:
                found.append(cell)
                progress(cell)

        remaining = list(wanted)
        while remaining:
            ended, begun, why = self._cells(remaining, prepared)
            add(ended)
            remaining = remaining[len(ended) :]
            if begun is None and remaining:
                add([Cell(o, i, GAP, f"no check was begun: {why}") for o, i in remaining])
                break
            if begun is not None:
                add([self._alone(begun, prepared, why)])
                remaining = remaining[1:]
        return found

    def _alone(self, cell: tuple[str, str], prepared: dict[str, Any], why: str) -> Cell:
        """The cell that a worker died in, by itself: the fault may have been an earlier cell's."""
        ended, _, again = self._cells([cell], prepared)
        if ended:
            return ended[0].as_state(
                GAP, f"{ended[0].why or 'full'} by itself, but after the operator's others {why}"
            )
        return Cell(*cell, GAP, again)

    def _cells(
        self, wanted: Sequence[tuple[str, str]], prepared: dict[str, Any]
    ) -> tuple[list[Cell], tuple[str, str] | None, str]:
        """Finished cells, the one that was begun and not finished, and how the worker ended."""
        events, why = self._run({"cells": [list(pair) for pair in wanted], "prepared": prepared})
        ended = [
            Cell(e["operator"], e["item"], e["state"], e["why"], e["seconds"])
            for e in events
            if e["event"] == "end"
        ]
        begun = [e for e in events if e["event"] == "begin"]
        open_one = begun[len(ended)] if len(begun) > len(ended) else None
        return ended, (open_one["operator"], open_one["item"]) if open_one else None, why

    def _run(self, changes: dict[str, Any]) -> tuple[Events, str]:
        """One worker: what it wrote down, and how it ended ('' for well)."""
        place = self.scratch / f"worker-{next(self.numbers)}"
        place.mkdir(parents=True, exist_ok=True)
        results, log, job = place / "results.jsonl", place / "log.txt", place / "job.json"
        results.unlink(missing_ok=True)
        results.touch()
        plain = {"cells": [], "task": "", "prepared": {}}
        files.write_json(job, {**plain, **self.job, **changes, "results": str(results)})
        status, late = self._wait(place, results, log, job)
        text = log.read_text(encoding="utf-8", errors="replace")
        events = [json.loads(line) for line in results.read_text("utf-8").splitlines() if line]
        return events, self._ending(status, late, text)

    def _wait(self, place: Path, results: Path, log: Path, job: Path) -> tuple[int, bool]:
        command = [sys.executable, "-I", supervise.__file__, self.python, "-c", _BOOT, _LIB, job]
        late = False
        with log.open("wb") as sink:
            running = subprocess.Popen(
                [str(part) for part in command], cwd=place, env=self._environment(place),
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                while running.poll() is None:
                    time.sleep(_POLL)
                    written = results.stat()
                    limit = self.timeout if written.st_size else max(self.timeout, _START)
                    if not late and time.time() - written.st_mtime > limit:
                        late = True
                        running.send_signal(signal.SIGTERM)
            except BaseException:
                running.send_signal(signal.SIGINT)
                running.wait()
                raise
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
        if status == 0:
            return ""
        last = [line.strip() for line in log.strip().splitlines() if line.strip()]
        if status > _SIGNALLED:
            return f"ended by {_name(status - _SIGNALLED)}"
        return f"ended with status {status}: {' '.join(last[-2:])[-300:]}"


def _name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
