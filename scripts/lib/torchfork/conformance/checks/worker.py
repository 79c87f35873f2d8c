"""A process that checks cells one by one and writes down each as it begins and as it ends.

Whoever started it reads what it wrote: a cell that began and did not end is where the process was
when it died. Takes the path of its job, a JSON file; the keys are those that `Job` has.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """What a worker is to do.

    operators: the plan's; cells: [operator, item] each; task: something that is done for all
    operators at once ('mypy'), instead of cells.
    extras: a directory of packages that the target may lack, looked into last.
    results: where a line of JSON goes for each event.
    """

    operators: list[dict[str, Any]]
    cells: list[list[str]]
    task: str
    samples: str
    extras: str
    scratch: str
    documented: list[str]
    prepared: dict[str, Any]
    devices: list[str]
    results: str


def main(path: str) -> None:
    """Do a job."""
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    _borrow(job.extras)
    with Path(job.results).open("a", encoding="utf-8") as stream:

        def tell(**event: Any) -> None:
            stream.write(json.dumps(event) + "\n")
            stream.flush()

        _work(job, tell)


def _borrow(extras: str) -> None:
    """Packages and programs of the extras, after the target's own."""
    sys.path.append(extras)
    # CMake itself, before the program of its package, which a Python with that package runs.
    places = [Path(extras, "cmake", "data", "bin"), Path(extras, "bin")]
    os.environ["PATH"] = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])
    # Inductor compiles in this process, and keeps nothing that another run could find.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _work(job: Job, tell: Any) -> None:
    import torch

    from . import items, operators, programs, recording, samples
    from .bench import Bench

    devices = job.devices or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    tell(event="torch", version=torch.__version__, file=torch.__file__, devices=devices,
         items=[[item.title, item.task] for item in items.ITEMS.values()])  # fmt: skip
    scratch = Path(job.scratch)
    programs.write_to(scratch / f"programs-{os.getpid()}")
    every = [operators.from_plan(told) for told in job.operators]
    recordings = recording.Recordings(every)
    file = samples.load_file(Path(job.samples) if job.samples else None)
    source = samples.Source(file, samples.load_infos(), recordings.samples)
    recordings.source = source
    if job.task:
        tell(event="task", task=job.task, told=_task(job, devices, every, source, scratch))
        return
    bench = Bench(source, scratch, job.prepared, frozenset(job.documented))
    by_id = {op.id: op for op in every}
    for name, title in job.cells:
        tell(event="begin", operator=name, item=title)
        started = time.monotonic()
        state, why = _cell(by_id[name], items.ITEMS[title], devices, bench)
        seconds = round(time.monotonic() - started, 2)
        tell(event="end", operator=name, item=title, state=state, why=why, seconds=seconds)


def _task(
    job: Job, devices: Sequence[str], every: Sequence[Any], source: Any, scratch: Path
) -> Any:
    from . import compiling, native, typing_stubs

    if job.task == "packages":
        return compiling.packages(devices, scratch)
    if job.task in ("extension", "cmake"):
        return getattr(native, job.task)(every, scratch)
    return getattr(typing_stubs, job.task)(every, source, scratch, job.extras)


def _cell(op: Any, item: Any, devices: Sequence[str], bench: Any) -> tuple[str, str]:
    """'full', 'gap', 'na' or 'unavailable', and why. Full on one device counts if no other gaps."""
    states: dict[str, str] = {}
    for device in devices if item.each_device else devices[:1]:
        state, why = _on_device(op, item, device, bench)
        prefix = f"{device}: " if len(devices) > 1 and item.each_device else ""
        if state == "gap":
            return state, prefix + why
        states[state] = why
    for state in ("full", "na", "unavailable"):
        if state in states:
            return state, states[state]
    return "unavailable", "no device"


def _on_device(op: Any, item: Any, device: str, bench: Any) -> tuple[str, str]:
    import torch

    from .outcome import CheckFailed, NotApplicable, Unavailable

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
        lines = [line.strip() for line in str(error).splitlines() if line.strip()][:3]
        return "gap", f"{type(error).__name__}: {'; '.join(lines)} ({place})"
