#!/usr/bin/env python3
"""Time depthwise_conv2d_ext on CUDA against conv2d(groups=C) at its best and the copy floor.

Every figure of a run is taken on one device in one run: median of CUDA-event times, L2 flushed
before each repeat by reading other memory, so that it holds nothing that a call must first write
back (--dirty: by writing, as do_bench does it), cuDNN warmed up with benchmark=True and TF32 off.
The opponent of a row is the fastest of {cuDNN, native kernels} x {NCHW, channels_last}; the summary
also compares within each of the two. The floor is the bytes that a pass must move over the
bandwidth of a device-to-device copy measured in the same run.

Of a single image that is mostly the launch, so rows of latency have the device's time too: from the
start of a call's first kernel to the end of its last, by the profiler, cold, and a call's part of a
CUDA graph of many, each of operands of its own that have left the L2. An empty kernel stands beside
them.

    python benchmarks/depthwise_cuda.py --json result.json            # on a wheel with the operator
    python benchmarks/depthwise_cuda.py --library path.so             # operators dw::fwd, dw::bwd
    python benchmarks/depthwise_cuda.py --random 1 --rows 300         # shapes drawn from a seed
    python benchmarks/plot_depthwise.py result.json plots/            # draw a result
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from depthwise_calls import (
    DTYPES,
    LAYOUTS,
    Tensors,
    bytes_moved,
    geometric_mean,
    operands,
    operators,
    opponent,
    ours,
    parser,
    selected,
    standing,
)
from device_time import Clock, copy_bandwidth
from shapes import CUDA_LIMITS, CUDA_SUITE, Row

GRAPH_BYTES = 128 << 20  # of the operands of a graph's calls, a few times an L2
LATENCY = "latency"


def contenders(
    row: Row, layouts: dict[str, list[Tensors]], which: str, options: argparse.Namespace, ops: Any
) -> Iterator[tuple[str, list[Callable[[], Any]]]]:
    """Names and calls, one for each set of operands; to be made before the next are asked for."""
    for layout, sets in layouts.items():
        yield f"ours {layout}", [ours(row, t, which, ops) for t in sets]
        if options.ours_only:
            continue
        for backend, enabled in (("cudnn", True), ("native", False)):
            if backend == "native" and layout == "nhwc":
                continue  # the native kernels take NCHW; conv2d would copy first
            with torch.backends.cudnn.flags(enabled=enabled, benchmark=True, allow_tf32=False):
                yield f"{backend} {layout}", [opponent(row, t, which) for t in sets]


def measure_row(
    row: Row, dtype: str, clock: Clock, bandwidth: float, options: argparse.Namespace, ops: Any
) -> Iterable[dict[str, Any]]:
    """One result for each pass: times of every contender in microseconds."""
    layouts = {name: [operands(row, DTYPES[dtype], f, "cuda")] for name, f in LAYOUTS.items()}
    for which in options.passes:
        calls = contenders(row, layouts, which, options, ops)
        times = {name: clock.median_us(call) for name, (call,) in calls}
        floor = bytes_moved(layouts["nchw"][0], which) / bandwidth * 1e6
        yield {"row": row.name, "dtype": dtype, "pass": which, "floor": floor, "times": times}


def latency_row(
    row: Row, dtype: str, clock: Clock, options: argparse.Namespace, ops: Any
) -> Iterable[dict[str, Any]]:
    """One result for each pass: times of every contender on the device in microseconds."""
    layouts: dict[str, list[Tensors]] = {}
    for name, layout in LAYOUTS.items():
        make = functools.partial(operands, row, DTYPES[dtype], layout, "cuda")
        first = make()
        sets = max(16, min(512, GRAPH_BYTES // bytes_moved(first, "forward")))
        layouts[name] = [first, *(make() for _ in range(sets - 1))]
    for which in options.passes:
        kernels: dict[str, float] = {}
        graphs: dict[str, float] = {}
        for name, calls in contenders(row, layouts, which, options, ops):
            kernels[name] = clock.kernels_us(calls[0])
            graphs[name] = clock.graph_us(calls)
        yield {"row": row.name, "dtype": dtype, "pass": which, "kernels": kernels, "graph": graphs}


def latency_line(result: dict[str, Any]) -> str:
    """One row of the table of latencies."""
    figures = []
    for how in ("kernels", "graph"):
        times = result[how]
        figures += [times["ours nchw"], times["ours nhwc"]]
        figures.append(min((t for n, t in times.items() if "ours" not in n), default=math.nan))
    return f"{result['row']:26} {result['dtype']} {result['pass']:8} " + " ".join(
        f"{figure:7.2f}" for figure in figures
    )


def measure_latency(
    suite: list[Row], clock: Clock, options: argparse.Namespace, ops: Any
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The times of an empty kernel, and of the rows of latency, on the device; prints a table."""
    rows = [row for row in suite if row.name.startswith(LATENCY)]
    if not rows:
        return {}, []

    def nothing() -> None:
        torch.cuda._sleep(0)

    empty = {
        "events": clock.median_us(nothing),
        "kernels": clock.kernels_us(nothing),
        "graph": clock.graph_us([nothing] * 512),
    }
    print("an empty kernel, microseconds:", json.dumps({k: round(v, 2) for k, v in empty.items()}))
    print("microseconds on the device: ours nchw, ours nhwc, opponent's best; the same in a graph")
    results = []
    for row in rows:
        for dtype in options.dtypes:
            for result in latency_row(row, dtype, clock, options, ops):
                results.append(result)
                print(latency_line(result), flush=True)
    return empty, results


def best(result: dict[str, Any], who: str, layout: str = "") -> float:
    """The least time of ours or of the opponent, in any layout or in one."""
    times = result["times"].items()
    mine = who == "ours"
    return min(
        (t for name, t in times if name.startswith("ours") == mine and name.endswith(layout)),
        default=math.nan,
    )


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    times = result["times"]
    fractions = [result["floor"] / times[f"ours {layout}"] for layout in LAYOUTS]
    ratios = [best(result, "opponent") / times[f"ours {layout}"] for layout in LAYOUTS]
    return (
        f"{result['row']:26} {result['dtype']} {result['pass']:8} {result['floor']:7.1f}"
        f" {times['ours nchw']:8.1f} {times['ours nhwc']:8.1f} {best(result, 'opponent'):9.1f}"
        f"   {fractions[0]:5.2f} {fractions[1]:5.2f}   {ratios[0]:6.2f} {ratios[1]:6.2f}"
    )


def summary(results: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Where each pass stands, in the better layout of each and in the same; see standing()."""
    lines = ["opponent / ours, geometric mean"]
    worst = 4 if options.random is None else 10
    for which in options.passes:
        mine = {f"{r['row']} {r['dtype']}": r for r in results if r["pass"] == which}
        fraction = geometric_mean(r["floor"] / best(r, "ours") for r in mine.values())
        ratios = {name: best(r, "opponent") / best(r, "ours") for name, r in mine.items()}
        lines.append(f"{which:8} {standing(ratios, worst)}; copy fraction {fraction:.2f}")
        for layout in LAYOUTS:
            same = {
                name: best(r, "opponent", layout) / best(r, "ours", layout)
                for name, r in mine.items()
            }
            strict = geometric_mean(
                best(r, "opponent") / best(r, "ours", layout) for r in mine.values()
            )
            lines.append(
                f"{'':8} both in {layout} {standing(same, worst)};"
                f" ours in it against the opponent's best {strict:.2f}"
            )
    return "\n".join(lines)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__, DTYPES)
    options.add_argument("--dirty", action="store_true", help="flush the L2 by writing")
    options.add_argument("--budget-ms", type=float, default=20.0, help="device time for one median")
    return options.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measure the rows, print the table, write the JSON."""
    options = parse(arguments)
    ops = operators(options.library)
    torch.backends.cuda.matmul.allow_tf32 = False
    clock = Clock(options.budget_ms, dirty=options.dirty)
    bandwidth = copy_bandwidth(clock)
    head: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "copy_TB_per_s": bandwidth / 1e12,
        "flush": "write" if options.dirty else "read",
    }
    results: list[dict[str, Any]] = []

    def write(more: dict[str, Any]) -> None:
        if options.json:
            options.json.write_text(json.dumps({**head, **more, "results": results}, indent=1))

    print(json.dumps(head))
    print("microseconds: floor, ours nchw, ours nhwc, opponent's best; fraction of copy; ratio")
    rows = selected(options, CUDA_SUITE, CUDA_LIMITS)
    end = time.monotonic() + options.seconds
    measured = 0
    for row, dtypes in rows:
        if time.monotonic() > end:
            break
        measured += 1
        for dtype in dtypes:
            for result in measure_row(row, dtype, clock, bandwidth, options, ops):
                results.append(result)
                print(line(result), flush=True)
            write({})
    print(f"{measured} of {len(rows)} rows measured")
    print(summary(results, options))
    if options.random is None and measured == len(rows):
        empty, latency = measure_latency([row for row, _ in rows], clock, options, ops)
        write({"empty_kernel": empty, "latency": latency})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
