"""A process that checks cells one by one, and prints an event as each begins and ends.

The process that started it reads the events: where a cell began and did not end, the worker died.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Bench
    from .items import Item
    from .operators import Operator
    from .samples import Source


# Begins a line that is an event, in JSON (RFC 7464); all others are what checks print.
EVENT = "\x1e"
_START = 900.0  # seconds that a worker may take to import torch and its OpInfos, on a busy machine


@dataclass(frozen=True)
class Job:
    """What a worker is to do.

    operators: the plan's; devices: none for all that there are.
    extras: a directory of packages that the environment may lack, the last on the path.
    cells: [operator, item] each; task: one for all operators at once ('mypy') instead of cells.
    prepared: what earlier tasks gave. timeout: seconds for a task or a cell.
    """

    operators: list[Any]
    samples: str
    documented: list[str]
    devices: list[str]
    extras: str
    scratch: str
    timeout: float
    cells: Sequence[Sequence[str]] = ()
    task: str = ""
    prepared: Mapping[str, Any] = field(default_factory=dict)


def main(path: str) -> None:
    """Do the job in a JSON file."""
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    sys.path.append(job.extras)
    # CMake itself, before the program of its package, which a Python with that package runs.
    places = [Path(job.extras, "cmake", "data", "bin"), Path(job.extras, "bin")]
    os.environ["PATH"] = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])
    # Inductor compiles in this process, and keeps nothing that another run could find.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    _work(job)


def write(event: str, **values: Any) -> None:
    """Print an event, in a line of its own whatever was printed before."""
    sys.stdout.flush()
    sys.stdout.write(f"\n{EVENT}{json.dumps({'event': event, **values})}\n")
    sys.stdout.flush()


def end_after(seconds: float) -> None:
    """Have SIGALRM end this process, whatever it is doing then."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _work(job: Job) -> None:
    end_after(max(job.timeout, _START))
    import torch

    from . import operators, programs, samples
    from .bench import Bench
    from .items import BY_TITLE

    devices = job.devices or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    write("torch", version=torch.__version__, file=torch.__file__, devices=devices,
          items=[[item.title, item.task] for item in BY_TITLE.values()])  # fmt: skip
    scratch = Path(job.scratch)
    programs.write_to(scratch / f"programs-{os.getpid()}")
    by_id = {op.id: op for op in map(operators.from_plan, job.operators)}
    source = samples.source(Path(job.samples) if job.samples else None, list(by_id.values()))
    if job.task:
        end_after(job.timeout)
        result = _task(job, devices, list(by_id.values()), source, scratch)
        write("task", task=job.task, result=result)
        return
    bench = Bench(source, scratch, job.prepared, frozenset(job.documented))
    for name, title in job.cells:
        write("begin", operator=name, item=title)
        end_after(job.timeout)
        started = time.monotonic()
        state, why = _cell(by_id[name], BY_TITLE[title], devices, bench)
        seconds = round(time.monotonic() - started, 2)
        write("end", operator=name, item=title, state=state, why=why, seconds=seconds)


def _task(
    job: Job, devices: Sequence[str], every: Sequence[Operator], source: Source, scratch: Path
) -> Any:
    from . import cpp, graphs, tools

    if job.task == "packages":
        return graphs.packages(devices, scratch)
    if job.task in ("extension", "cmake"):
        return getattr(cpp, job.task)(every, scratch)
    return getattr(tools, job.task)(every, source, scratch, job.extras)


def _cell(op: Operator, item: Item, devices: Sequence[str], bench: Bench) -> tuple[str, str]:
    """'full', 'gap', 'na' or 'unavailable', and why; full on one device counts without a gap."""
    states: dict[str, str] = {}
    chosen = devices[:1] if item.once else devices
    for device in chosen:
        state, why = _on_device(op, item, device, bench)
        if state == "gap":
            return state, f"{device}: {why}" if len(chosen) > 1 else why
        states[state] = why
    return next((s, states[s]) for s in ("full", "na", "unavailable") if s in states)


def _on_device(op: Operator, item: Item, device: str, bench: Bench) -> tuple[str, str]:
    import torch

    from .bench import CheckFailed, NotApplicable, Unavailable, message

    torch.manual_seed(0)
    try:
        item.run(op, device, bench)
        return "full", ""
    except NotApplicable as reason:
        return "na", str(reason)
    except Unavailable as reason:
        return "unavailable", str(reason)
    except CheckFailed as gap:
        return "gap", str(gap)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return "gap", f"{message(error)}\n({place})"
