#!/usr/bin/env python3
"""What an overlay costs: at each start of the interpreter, and when torch is imported.

    benchmarks/overlay.py PYTHON [--rounds 50]

PYTHON is the interpreter of an environment with an overlay. Each round starts it with and without,
one after the other: at start with the overlay's .pth file and with that file renamed, at `import
torch` with TORCHFORK_OVERLAY=0 and without it. Prints the median of the differences in processor
time, which other programs on the machine disturb least, and between what it lies (the 95 % interval
of a median: a cost of which that has 0 is not seen).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

OVERLAY = """
import sys
print(*(f.torchfork_overlay for f in sys.meta_path if hasattr(f, "torchfork_overlay")))
print(next(m.__file__ for m in list(sys.modules.values()) if hasattr(m, "Waiting")))
"""


def seconds(python: str, program: str, **environment: str) -> float:
    """The processor time that a program takes, start of the interpreter included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-c", program], check=True, env={**os.environ, **environment})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    found = subprocess.run(
        [options.python, "-c", OVERLAY], capture_output=True, text=True, check=False
    )
    if found.returncode or not found.stdout.strip():
        sys.exit(f"{options.python} has no overlay that is active")
    package, file = found.stdout.split()
    pth = Path(file).parents[1] / f"{package}.pth"
    hidden = pth.with_suffix(".hidden")

    def start(active: bool) -> float:
        if active:
            return seconds(options.python, "pass")
        pth.rename(hidden)
        try:
            return seconds(options.python, "pass")
        finally:
            hidden.rename(pth)

    def torch(active: bool) -> float:
        return seconds(options.python, "import torch", TORCHFORK_OVERLAY="1" if active else "0")

    for title, run in (("start", start), ("import torch", torch)):
        run(True), run(False)  # what is compiled to .pyc, and the disk's cache
        taken: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * options.rounds):
            active = number % 4 in (0, 3)  # each is the first of its pair in turn
            taken[active].append(run(active))
        costs = sorted(1e3 * (a - b) for a, b in zip(taken[True], taken[False], strict=True))
        # of n draws, the number below the median has the deviation sqrt(n) / 2
        outside = max(0, int(len(costs) / 2 - 0.98 * len(costs) ** 0.5))
        whole = 1e3 * statistics.median(taken[False])
        print(
            f"{package}, {title}: {statistics.median(costs):+.2f} ms "
            f"({costs[outside]:+.2f} to {costs[-1 - outside]:+.2f}) on {whole:.1f} ms"
        )


if __name__ == "__main__":
    main()
