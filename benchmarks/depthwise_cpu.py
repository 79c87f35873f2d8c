#!/usr/bin/env python3
"""Time depthwise_conv2d_ext on the CPU against conv2d(groups=C), in turns in one run.

Each figure is the median over rounds; in a round ours and the opponent, in both memory orders, are
called one after the other, every second time in the opposite order, so that whatever else the
machine does, and what the call before leaves in caches, meets all of them. Operands are allocated
several times, as the pages that they get make a difference: a figure is the median of the
allocations' medians. Operands stay in caches that hold them; results are allocated by each call, as
in a program. Of large tensors that includes page faults: --keep-pages has the C library keep freed
memory.

What ours reaches is also given as a fraction of two roofs, both measured in this run with as many
threads: "copy" is the bytes that the pass must move over the bandwidth of a copy out of all caches
(above 1 where the operands stay in one), "FMA" its multiply-adds of taps inside the image over the
rate of a matrix product. Roofs are the fastest of their repeats.

    python benchmarks/depthwise_cpu.py --json result.json --plot result.png
    python benchmarks/depthwise_cpu.py --rows 144@56 --dtypes fp32 --threads 1
    python benchmarks/depthwise_cpu.py --library path.so        # operators dw::fwd, dw::bwd
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import functools
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from depthwise_calls import (
    DTYPES,
    LAYOUTS,
    bytes_moved,
    operands,
    operators,
    opponent,
    ours,
    parser,
    selected,
    standing,
)
from shapes import CPU_LIMITS, CPU_SUITE, Row

MICROSECONDS = 1e6
COPY_BYTES = 256 << 20
# Of the operands of each figure. With one, two runs differ by up to a third.
ALLOCATIONS = 5
# Seconds from which on three rounds are enough: almost all is conv2d's.
SLOW_ROUND = 0.1
PRODUCT_SIZES = (512, 1024, 2048)
TYPES = {**DTYPES, "fp64": torch.float64}
# Rows that are timed in double too.
DOUBLE_ROWS = ("144@56 k3 n1", "240@28 k5 n1", "96@56 k7 n1")


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Of one call among several: of one thread its own, to which other work adds little."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    for _ in range(calls):
        call()
    return (clock() - begin) / calls


def in_turn(names: list[str], turn: int) -> list[str]:
    """Another order each turn, so that none begins where it ended the turn before.

    What follows itself finds its results' lines in the caches.
    """
    first = turn % len(names)
    order = names[first:] + names[:first]
    return order if turn % 2 == 0 else order[::-1]


def medians(
    contenders: Callable[[], dict[str, Callable[[], Any]]], budget: float
) -> dict[str, float]:
    """Median microseconds of each call, taken in turns for about `budget` seconds in all.

    `contenders` makes the calls, each time with new operands.
    """
    kept = [contenders()]
    first = {name: min(seconds(call, 1) for _ in range(2)) for name, call in kept[0].items()}
    # A turn lasts some 200 us at least, so that reading the clock costs nothing.
    turns = {name: max(1, round(2e-4 / max(t, 1e-7))) for name, t in first.items()}
    round_time = sum(first[name] * turns[name] for name in first)
    fewest = ALLOCATIONS if round_time < SLOW_ROUND else 3
    rounds = max(fewest, min(51, int(budget / round_time)))
    allocations = min(rounds, ALLOCATIONS)
    found: dict[str, list[float]] = {name: [] for name in first}
    for allocation in range(allocations):
        if allocation > 0:
            kept.append(contenders())  # beside the others, so that pages are not the same
            for call in kept[-1].values():
                call()
        times: dict[str, list[float]] = {name: [] for name in first}
        for turn in range(allocation, rounds, allocations):
            for name in in_turn(list(first), turn):
                times[name].append(seconds(kept[-1][name], turns[name]))
        for name in first:
            found[name].append(statistics.median(times[name]))
    return {name: statistics.median(t) * MICROSECONDS for name, t in found.items()}


def fastest(call: Callable[[], Any], budget: float) -> float:
    """Seconds of the fastest call within about `budget` seconds, of three at least."""
    times = [seconds(call, 1) for _ in range(3)]
    while sum(times) < budget:
        times.append(seconds(call, 1))
    return min(times)


def copy_bandwidth(budget: float) -> float:
    """Bytes read and written a second by a copy out of every cache."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / fastest(lambda: target.copy_(source), budget)


def product_rate(dtype: torch.dtype, budget: float) -> float:
    """Multiply-adds a second of the fastest of some matrix products and a dense convolution.

    MKL's products take half of what processors that are not Intel's can; oneDNN, which has the
    convolutions of float32 and bfloat16, goes by what the processor has. Windows of 5 x 5: of
    smaller ones not each product may be computed.
    """
    calls = []
    for size in PRODUCT_SIZES:
        a, b = torch.ones(2, size, size, dtype=dtype)
        out = torch.empty(size, size, dtype=dtype)
        calls.append((size**3, functools.partial(torch.mm, a, b, out=out)))
    if dtype in (torch.float32, torch.bfloat16):
        channels, side, kernel = 128, 28, 5
        image = torch.ones(1, channels, side, side, dtype=dtype)
        weight = torch.ones(channels, channels, kernel, kernel, dtype=dtype)
        count = channels**2 * kernel**2 * side**2
        calls.append((count, functools.partial(torch.conv2d, image, weight, padding=kernel // 2)))
    return max(count / fastest(call, budget) for count, call in calls)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = (
            (index / name).read_text().strip() for name in ("type", "level", "size")
        )
        if kind != "Instruction":
            caches[f"L{level}"] = size
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "caches": caches,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2),
    }


def measure_row(
    row: Row, dtype: str, options: argparse.Namespace, ops: Any
) -> Iterable[dict[str, Any]]:
    """One result for each pass: microseconds of ours and of the opponent in both orders."""
    layouts = {name: operands(row, TYPES[dtype], layout, "cpu") for name, layout in LAYOUTS.items()}
    for which in options.passes:

        def contenders(which: str = which) -> dict[str, Callable[[], Any]]:
            new = copy.deepcopy(layouts)
            calls = {f"ours {name}": ours(row, t, which, ops) for name, t in new.items()}
            if not options.ours_only:
                calls |= {f"conv2d {name}": opponent(row, t, which) for name, t in new.items()}
            return calls

        yield {
            "row": row.name,
            "dtype": dtype,
            "pass": which,
            "bytes": bytes_moved(layouts["nchw"], which),
            "multiply_adds": row.useful_flop(which) // 2,
            "times": medians(contenders, options.budget),
        }


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """The opponent's time over ours: in the same order, and the opponent's better order."""
    times = result["times"]
    found = {}
    for layout in LAYOUTS:
        mine = times[f"ours {layout}"]
        theirs = {name: times.get(f"conv2d {name}", math.nan) for name in LAYOUTS}
        found[f"{layout} same"] = theirs[layout] / mine
        found[f"{layout} best"] = min(theirs.values()) / mine
    return found


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    times, found = result["times"], ratios(result)
    columns = [f"{result['row']:27} {result['dtype']} {result['threads']:2} {result['pass']:8}"]
    for layout in LAYOUTS:
        mine = times[f"ours {layout}"]
        columns.append(
            f"{mine:9.1f} {times.get(f'conv2d {layout}', math.nan):9.1f}"
            f" {found[f'{layout} same']:6.2f} {found[f'{layout} best']:6.2f}"
            f" {result['bytes'] / mine * 1e6 / result['bandwidth']:5.2f}"
            f" {result['multiply_adds'] / mine * 1e6 / result['product_rate']:5.2f}"
        )
    return "  ".join(columns)


def summary(results: list[dict[str, Any]], *, random: bool) -> str:
    """Where ours stands by threads, dtype (together where rows were drawn), pass and order."""
    lines = ["threads, type, pass, order of both: conv2d / ours, geometric mean"]
    worst = 10 if random else 4
    groups: dict[tuple[int, str, str], dict[str, dict[str, Any]]] = {}
    for result in results:
        dtype = "all" if random else result["dtype"]
        group = groups.setdefault((result["threads"], dtype, result["pass"]), {})
        group[f"{result['row']} {result['dtype']}"] = result
    for (threads, dtype, which), group in groups.items():
        for kind in ("nchw same", "nhwc same", "nchw best", "nhwc best"):
            found = standing({name: ratios(r)[kind] for name, r in group.items()}, worst)
            lines.append(f"{threads:2} {dtype} {which:8} {kind} {found}")
    return "\n".join(lines)


def plot(results: list[dict[str, Any]], path: Path, title: str) -> None:
    """Multiply-adds a second over multiply-adds a byte: both roofs, our points and conv2d's."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        sys.exit("--plot needs matplotlib: python -m pip install matplotlib")
    settings = sorted({(r["threads"], r["dtype"]) for r in results})
    figure, axes = pyplot.subplots(
        1, len(settings), figsize=(6 * len(settings), 5), squeeze=False, sharey=True
    )
    for axis, (threads, dtype) in zip(axes[0], settings, strict=True):
        mine = [r for r in results if (r["threads"], r["dtype"]) == (threads, dtype)]
        x = [r["multiply_adds"] / r["bytes"] for r in mine]
        for who, marker in (("conv2d", "x"), ("ours", "o")):
            for layout, color in zip(LAYOUTS, ("tab:blue", "tab:orange"), strict=True):
                y = [r["multiply_adds"] / r["times"].get(f"{who} {layout}", math.nan) / 1e3
                     for r in mine]  # fmt: skip
                axis.scatter(x, y, marker=marker, s=18, c=color, label=f"{who} {layout}")
        span = [min(x) / 1.5, max(x) * 1.5]
        bandwidth, rate = mine[0]["bandwidth"], mine[0]["product_rate"]
        roof = sorted({*span, rate / bandwidth})
        axis.plot(roof, [min(rate, v * bandwidth) / 1e9 for v in roof], "k-", lw=1)
        axis.set(xscale="log", yscale="log", title=f"{dtype}, {threads} threads")
        axis.set(xlabel="multiply-adds a byte", ylabel="10⁹ multiply-adds a second")
        axis.legend(fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def keep_pages() -> None:
    """Have the C library reuse freed memory rather than return it to the system."""
    m_mmap_threshold, m_trim_threshold = -3, -1
    library = ctypes.CDLL(None)
    for option in (m_mmap_threshold, m_trim_threshold):
        if library.mallopt(option, (1 << 31) - 1) != 1 and option == m_trim_threshold:
            print("--keep-pages has no effect here", file=sys.stderr)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__, TYPES)
    options.add_argument("--plot", type=Path, help="draw the roofline here (needs matplotlib)")
    options.add_argument("--threads", nargs="+", type=int, help="default: 1 and all cores")
    options.add_argument("--keep-pages", action="store_true", help="no page faults of results")
    options.add_argument("--budget", type=float, default=0.3, help="seconds for one line")
    return options.parse_args(arguments)


def has_type(row: Row, dtype: str) -> bool:
    """Whether the row is to be timed in this type."""
    return dtype != "fp64" or any(text in row.name for text in DOUBLE_ROWS)


def main(arguments: list[str]) -> int:
    """Measure the rows, print the table, write the JSON and the plot."""
    options = parse(arguments)
    if options.keep_pages:
        keep_pages()
    ops = operators(options.library)
    head = machine()
    print(json.dumps(head))
    print("NCHW, NHWC: us of ours, conv2d; conv2d / ours by its same, better order; copy, FMA")
    results: list[dict[str, Any]] = []
    rows = selected(options, CPU_SUITE, CPU_LIMITS)
    end = time.monotonic() + options.seconds
    for threads in options.threads or sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        bandwidth = copy_bandwidth(options.budget)
        # 16-bit types are computed with in fp32.
        rates = {d: product_rate(torch.float64 if d == "fp64" else torch.float32, options.budget)
                 for d in {"fp32", *options.dtypes} & {"fp32", "fp64"}}  # fmt: skip
        print(f"{threads} threads: copy {bandwidth / 1e9:.1f} GB/s, 10⁹ multiply-adds/s of a"
              f" product: { {d: round(rate / 1e9, 1) for d, rate in rates.items()} }")  # fmt: skip
        measured = 0
        for row, dtypes in rows:
            if time.monotonic() > end:
                break
            measured += 1
            for dtype in dtypes:
                if options.random is None and not has_type(row, dtype):
                    continue
                for result in measure_row(row, dtype, options, ops):
                    rate = rates[dtype if dtype == "fp64" else "fp32"]
                    roofs = {"threads": threads, "bandwidth": bandwidth, "product_rate": rate}
                    results.append({**result, **roofs})
                    print(line(results[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps({**head, "results": results}, indent=1))
        print(f"{measured} of {len(rows)} rows measured")
    print(summary(results, random=options.random is not None))
    if options.plot:
        plot(results, options.plot, f"{head['processor']}, torch {head['torch']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
