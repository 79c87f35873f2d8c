"""Each benchmark of the operators runs to its end and tells a time for all that it says it takes.

Of the smallest rows and budgets: the figures themselves mean nothing here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PASSES = {"forward", "dgrad", "wgrad", "backward"}
LAYOUTS = {"ours nchw", "ours nhwc"}
RUNS = {
    "cpu": [
        "depthwise_cpu.py --rows 960@7 --dtypes fp32 fp64 --threads 1 --budget 0.001",
        "depthwise_cpu.py --random 1 --rows 2 --threads 1 --budget 0.001",
        "pointwise.py --dtypes fp32 --threads 1 --rounds 1 --no-compile --only pointwise",
    ],
    "cuda": [
        "depthwise_cuda.py --rows 960@7 --dtypes fp16 --budget-ms 0.1",
        "depthwise_cuda.py --random 1 --rows 2 --budget-ms 0.1",
        "pointwise.py --device cuda --dtypes fp32 --rounds 1 --no-compile --only pointwise",
        "lltm.py --dtypes fp32 --sizes 1 --calls 2 --repeats 1 --no-compile",
    ],
}


def times(value: Any) -> Iterable[float]:
    """Every number in a result."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from times(inner)
    elif isinstance(value, float):
        yield value


@pytest.mark.unsanitized("it times calls in other processes")
def test_a_benchmark_runs_to_its_end(device: str, tmp_path: Path) -> None:
    for script, *arguments in map(str.split, RUNS[device]):
        written = tmp_path / f"{script}.json"
        command: list[str | Path] = [
            sys.executable,
            BENCHMARKS / script,
            *arguments,
            "--json",
            written,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        results = json.loads(written.read_text())["results"]
        assert results, script
        for result in results:
            found = list(times(result))
            assert found, result
            assert min(found) > 0, result
        if script.startswith("depthwise"):
            assert {result["pass"] for result in results} == PASSES
            assert all(result["times"].keys() > LAYOUTS for result in results)
