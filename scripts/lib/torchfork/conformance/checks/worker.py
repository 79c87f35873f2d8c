"""A process that checks cells one by one, and writes an event as each begins and ends.

The process that started it reads the events: where a cell began and did not end, the worker died.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .items import Bench, Item
    from .operators import Operator
    from .samples import Source


@dataclass(frozen=True)
class Job:
    """What a worker is to do.

    operators: the plan's; devices: none for all that there are.
    extras: a directory of packages that the environment may lack, the last on the path.
    cells: [operator, item] each; task: one for all operators at once ('mypy') instead of cells.
    prepared: what earlier tasks gave. results: the file for events, a line of JSON each.
    """

    operators: list[Any]
    samples: str
    documented: list[str]
    devices: list[str]
    extras: str
    scratch: str
    cells: Sequence[Sequence[str]] = ()
    task: str = ""
    prepared: Mapping[str, Any] = field(default_factory=dict)
    results: str = ""


def main(path: str) -> None:
    """Do the job in a JSON file."""
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    sys.path.append(job.extras)
    # CMake itself, before the program of its package, which a Python with that package runs.
    places = [Path(job.extras, "cmake", "data", "bin"), Path(job.extras, "bin")]
    os.environ["PATH"] = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])
    # Inductor compiles in this process, and keeps nothing that another run could find.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with Path(job.results).open("a", encoding="utf-8") as stream:

        def write(event: str, **values: Any) -> None:
            stream.write(json.dumps({"event": event, **values}) + "\n")
            stream.flush()

        _work(job, write)


def every_item() -> dict[str, Item]:
    """Every item by its title, in the order of the table."""
    from . import cpp, graphs, kernels, python_api, tools, transforms, variants

    families = (python_api, cpp, transforms, graphs, kernels, variants, tools)
    return {item.title: item for family in families for item in family.ITEMS}


def _work(job: Job, write: Callable[..., None]) -> None:
    import torch

    from . import operators, programs, samples
    from .items import Bench

    items = every_item()
    devices = job.devices or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    write("torch", version=torch.__version__, file=torch.__file__, devices=devices,
          items=[[item.title, item.task] for item in items.values()])  # fmt: skip
    scratch = Path(job.scratch)
    programs.write_to(scratch / f"programs-{os.getpid()}")
    by_id = {op.id: op for op in map(operators.from_plan, job.operators)}
    source = samples.source(Path(job.samples) if job.samples else None, list(by_id.values()))
    if job.task:
        result = _task(job, devices, list(by_id.values()), source, scratch)
        write("task", task=job.task, result=result)
        return
    bench = Bench(source, scratch, job.prepared, frozenset(job.documented))
    for name, title in job.cells:
        write("begin", operator=name, item=title)
        started = time.monotonic()
        state, why = _cell(by_id[name], items[title], devices, bench)
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
    chosen = devices if item.each_device else devices[:1]
    for device in chosen:
        state, why = _on_device(op, item, device, bench)
        if state == "gap":
            return state, f"{device}: {why}" if len(chosen) > 1 else why
        states[state] = why
    return next((s, states[s]) for s in ("full", "na", "unavailable") if s in states)


def _on_device(op: Operator, item: Item, device: str, bench: Bench) -> tuple[str, str]:
    import torch

    from .items import CheckFailed, NotApplicable, Unavailable, message

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
