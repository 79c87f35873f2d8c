#!/usr/bin/env python3
"""Measure a CUDA device and print Table.cuh's rows of depthwise_conv2d_ext for it.

A row names a kernel and the calls that it takes, from a least work on (elements a multiprocessor).
For each row this makes calls that meet its other conditions, from little work to much, and times
each with the row's kernel and without it, which leaves the call to a later row. Printed is the row
with the least work from which its kernel is never slower (by more than --noise), or commented out
where there is none; behind it stands how often as fast the kernel is there. Median of CUDA-event
times, L2 flushed, both kinds of runs on one device one after the other.

    python benchmarks/depthwise_table.py                        # on a wheel with the operator
    python benchmarks/depthwise_table.py --library path.so      # operators dw::fwd, dw::bwd
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from depthwise_calls import DTYPES, LAYOUTS, geometric_mean, operands, operators, ours
from device_time import Clock
from shapes import Pair, Row

TABLE = Path(__file__).parents[1] / "aten_src/native/cuda/depthwise_conv2d_ext/Table.cuh"
WORKS = (1, 2, 4, 8, 16, 32, 64)
WORK_UNIT = 1024  # elements a multiprocessor
CHANNELS = 64
WINDOWS: Sequence[Pair] = ((3, 3), (5, 5), (7, 7), (9, 8), (13, 13), (1, 4), (31, 1))
SIDES = (14, 56)
# Each set of Table.cuh by the benchmarks' names; the calls of a row take one member for each axis.
PASSES = {"kForward": "forward", "kData": "forward", "kGradInput": "dgrad",
          "kGradWeight": "wgrad", "kWeights": "wgrad", "kAllGradients": "backward"}  # fmt: skip
ORDERS = {"kPlanes": ["nchw"], "kPixels": ["nhwc"], "kBoth": ["nchw", "nhwc"]}
TYPES = {"kFloat32": ["fp32"], "kSixteen": ["bf16"]}
STEPS = {"kUnit": (1, 1), "kStride1": (1, 1), "kDilated": (1, 2), "kTwo": (2, 1),
         "kAnySteps": (1, 1), "kOtherSteps": (3, 1)}  # stride, dilation  # fmt: skip
FIELDS = re.compile(r", (?![^{]*\})")


@dataclass(frozen=True)
class TableRow:
    """A row of the table: its columns as they are written."""

    columns: tuple[str, ...]

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.columns[0].strip('"')

    @property
    def text(self) -> str:
        """The row as it is written."""
        return "{" + ", ".join(self.columns) + "},"

    def with_work(self, least: int) -> TableRow:
        """The row with another least work."""
        work = "kAny" if least == WORKS[0] else f"{{{least}, kNoLimit}}"
        return TableRow((*self.columns[:7], work, *self.columns[8:]))

    def takes(self, window: Pair) -> bool:
        """Whether its column of taps holds this window."""
        bounds = re.findall(r"\w+", self.columns[6])
        least, most = bounds if len(bounds) == 2 else ("0", "kNoLimit")
        taps = window[0] * window[1]
        return int(least) <= taps and (most == "kNoLimit" or taps <= int(most))


@dataclass(frozen=True)
class Call:
    """One call that a row of the table may take."""

    row: int
    work: int
    which: str
    order: str
    dtype: str
    size: tuple[int, int, int, int]
    window: Pair
    stride: int
    dilation: int
    multiplier: int

    def shape(self) -> Row:
        """The shape, padded to keep the size at stride 1."""
        height, width = (self.dilation * (k - 1) // 2 for k in self.window)
        padding, steps, dilations = (
            (height, width), (self.stride, self.stride), (self.dilation, self.dilation)
        )  # fmt: skip
        return Row(
            f"row {self.row}", self.size, self.window, steps, padding, dilations, self.multiplier
        )


def table() -> list[TableRow]:
    """The rows of Table.cuh."""
    lines = re.findall(r"^    \{(\".*)\},$", TABLE.read_text(), re.MULTILINE)
    return [TableRow(tuple(FIELDS.split(line))) for line in lines]


def calls_of(number: int, row: TableRow, multiprocessors: int) -> Iterator[Call]:
    """Calls of every work that meet a row's other conditions."""
    which = PASSES[row.columns[1]]
    multiplier = 2 if row.columns[5] == "kSeveral" else 1
    stride, dilation = STEPS[row.columns[4].split(" | ")[0]]
    axes = product(
        WORKS,
        ORDERS[row.columns[2]],
        TYPES.get(row.columns[3], ["fp32", "bf16"]),
        (window for window in WINDOWS if row.takes(window)),
        SIDES,
    )
    for work, order, dtype, window, side in axes:
        height = 1 if window[0] == 1 else side * side if window[1] == 1 else side
        width = side * side // height
        outputs = CHANNELS if which == "dgrad" else CHANNELS * multiplier // stride**2
        batch = work * WORK_UNIT * multiprocessors // (side * side * outputs)
        if batch:
            size = batch, CHANNELS, height, width
            yield Call(
                number, work, which, order, dtype, size, window, stride, dilation, multiplier
            )


def measure(calls: list[Call], options: argparse.Namespace) -> list[float]:
    """Microseconds of each call in this process; with --log each is made once, and logs its row."""
    ops = operators(options.library)
    clock = Clock(options.budget_ms, dirty=False)
    times = []
    for number, call in enumerate(calls):
        tensors = operands(call.shape(), DTYPES[call.dtype], LAYOUTS[call.order], "cuda")
        run = ours(call.shape(), tensors, call.which, ops)
        if options.log:
            print(f"call {number}", file=sys.stderr, flush=True)
            run()
        else:
            times.append(clock.median_us(run))
    return times


def in_process(calls: list[Call], options: argparse.Namespace, **environment: str) -> str:
    """What a process of these calls prints; the choice of a kernel reads its environment once."""
    log = "DEPTHWISE_CONV2D_EXT_LOG" in environment
    command = [sys.executable, __file__, "--worker", "--budget-ms", str(options.budget_ms)]
    command += ["--library", options.library] if options.library else []
    done = subprocess.run(
        [*command, *(["--log"] if log else [])],
        env={**os.environ, **environment},
        input=json.dumps([asdict(call) for call in calls]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"depthwise_table: a process of calls failed\n{done.stderr[-2000:]}")
    return done.stderr if log else done.stdout


def least_work(ratios: dict[int, float], noise: float) -> int | None:
    """The least work from which no ratio is below 1 - noise; None if the most work's is."""
    least = None
    for work in sorted(ratios, reverse=True):
        if ratios[work] < 1 - noise:
            break
        least = work
    return least


def judged(row: TableRow, faster: list[tuple[Call, float]], noise: float) -> str:
    """The row as it should be on this device, and why."""
    if not faster:
        return f"    {row.text} // no call of this script reaches it"
    ratios = {
        work: geometric_mean(ratio for call, ratio in faster if call.work == work)
        for work in sorted({call.work for call, _ in faster})
    }
    seen = ", ".join(f"{work}: {ratio:.2f}" for work, ratio in ratios.items())
    least = least_work(ratios, noise)
    if least is None:
        return f"    // slower here: {row.text} // {seen}"
    return f"    {row.with_work(least).text} // {seen}"


def main(arguments: list[str]) -> int:
    """Measure the rows and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--library", help="a library that defines dw::fwd and dw::bwd")
    parser.add_argument("--budget-ms", type=float, default=2.0, help="device time for one median")
    parser.add_argument("--noise", type=float, default=0.03, help="slower by so much is level")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(measure([as_call(call) for call in json.load(sys.stdin)], options)))
        return 0

    properties = torch.cuda.get_device_properties(0)
    rows = table()
    last = len(rows) - 2  # the last two take whatever is left
    calls = [
        call
        for number, row in enumerate(rows[:last])
        if int(row.columns[8]) <= properties.major
        for call in calls_of(number, row, properties.multi_processor_count)
    ]
    log = in_process(calls, options, DEPTHWISE_CONV2D_EXT_LOG="1")
    logs = re.split(r"^call \d+$", log, flags=re.MULTILINE)[1:]
    reached = [c for c, text in zip(calls, logs, strict=True) if f", row {c.row}\n" in text]
    mine = dict(zip(reached, json.loads(in_process(reached, options)), strict=True))
    ratios: dict[int, list[tuple[Call, float]]] = {}
    for kernel in sorted({rows[call.row].kernel for call in reached}):
        some = [call for call in reached if rows[call.row].kernel == kernel]
        without = in_process(some, options, DEPTHWISE_CONV2D_EXT_KERNELS=f"-{kernel}")
        for call, time in zip(some, json.loads(without), strict=True):
            ratios.setdefault(call.row, []).append((call, time / mine[call]))
    print(f"// {properties.name}; behind a row: work: times as fast as without its kernel")
    for number, row in enumerate(rows[:last]):
        print(judged(row, ratios.get(number, []), options.noise))
    print("\n".join(f"    {row.text}" for row in rows[last:]))
    return 0


def as_call(values: dict[str, object]) -> Call:
    """A call from JSON, whose lists are tuples here."""
    return Call(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
