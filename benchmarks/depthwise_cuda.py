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
    python benchmarks/plot_depthwise.py result.json plots/            # draw a result
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from device_time import graph_us, kernels_us

FLUSH_BYTES = 384 << 20
GRAPH_BYTES = 128 << 20  # of the operands of a graph's calls, a few times an L2
COPY_BYTES = 1 << 30
MICROSECONDS = 1e3
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
LATENCY = "latency"
PASSES = ("forward", "dgrad", "wgrad", "backward")
MASKS = {
    "dgrad": [True, False, False],
    "wgrad": [False, True, True],
    "backward": [True, True, True],
}


@dataclass(frozen=True)
class Row:
    """One shape of the suite: [N, C, H, W], window, stride, padding, dilation, multiplier."""

    name: str
    size: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]
    dilation: int = 1
    multiplier: int = 1


def square(name: str, n: int, c: int, hw: int, k: int, s: int, p: int, **more: int) -> Row:
    """A row with a square image and window."""
    return Row(name, (n, c, hw, hw), (k, k), s, (p, p), **more)


SUITE = (
    square("mobilenet 32@112 k3", 128, 32, 112, 3, 1, 1),
    square("mobilenet 96@112 k3s2", 128, 96, 112, 3, 2, 1),
    square("mobilenet 144@56 k3", 128, 144, 56, 3, 1, 1),
    square("mobilenet 384@14 k3", 128, 384, 14, 3, 1, 1),
    square("mobilenet 960@7 k3", 128, 960, 7, 3, 1, 1),
    square("efficientnet 144@56 k5s2", 128, 144, 56, 5, 2, 2),
    square("efficientnet 240@28 k5", 128, 240, 28, 5, 1, 2),
    square("efficientnet 672@14 k5s2", 128, 672, 14, 5, 2, 2),
    square("efficientnet 1152@7 k5", 128, 1152, 7, 5, 1, 2),
    square("convnext 96@56 k7", 64, 96, 56, 7, 1, 3),
    square("convnext 192@28 k7", 64, 192, 28, 7, 1, 3),
    square("convnext 384@14 k7", 64, 384, 14, 7, 1, 3),
    square("convnext 768@7 k7", 64, 768, 7, 7, 1, 3),
    square("replk 128@56 k31", 64, 128, 56, 31, 1, 15),
    square("replk 256@28 k29", 64, 256, 28, 29, 1, 14),
    square("replk 512@14 k27", 64, 512, 14, 27, 1, 13),
    square("replk 1024@7 k13", 64, 1024, 7, 13, 1, 6),
    Row("slak 96@56 k51x5", (64, 96, 56, 56), (51, 5), 1, (25, 2)),
    square("xception 728@65 k3d2", 8, 728, 65, 3, 1, 2, dilation=2),
    square("van 64@56 k7d3", 64, 64, 56, 7, 1, 9, dilation=3),
    Row("image 64@1024x1008 k5", (8, 64, 1024, 1008), (5, 5), 1, (2, 2)),
    Row("sequence 3072@1x202 k1x3", (128, 3072, 1, 202), (1, 3), 1, (0, 0)),
    square("multiplier 2, 32@112 k3", 32, 32, 112, 3, 1, 1, multiplier=2),
    Row("odd 33@128x513 k3", (16, 33, 128, 513), (3, 3), 1, (1, 1)),
    square("latency 144@56 k3", 1, 144, 56, 3, 1, 1),
    square("latency 960@7 k3", 1, 960, 7, 3, 1, 1),
)


class Clock:
    """Median device time of a call in microseconds, the L2 flushed before each."""

    def __init__(self, budget_ms: float, *, dirty: bool = False) -> None:
        self._others = torch.zeros(FLUSH_BYTES // 4096, 1024, device="cuda")
        self._sums = torch.empty(self._others.size(0), device="cuda")
        self._dirty = dirty
        self._budget_ms = budget_ms

    def flush(self) -> None:
        """Fill the L2 with other memory, by one kernel."""
        if self._dirty:
            self._others.zero_()
        else:
            torch.sum(self._others, 1, out=self._sums)

    def once(self, call: Callable[[], Any]) -> float:
        """One cold call, in milliseconds."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def median_us(self, call: Callable[[], Any]) -> float:
        """The median over as many repeats as the budget allows, between 3 and 15."""
        call()
        first = self.once(call)
        repeats = max(3, min(15, int(self._budget_ms / max(first, 1e-3))))
        return statistics.median(self.once(call) for _ in range(repeats)) * MICROSECONDS

    def kernels_us(self, call: Callable[[], Any]) -> float:
        """The median time of a call's kernels by the profiler, the L2 flushed before each."""
        return kernels_us(self.flush, call)

    def graph_us(self, calls: list[Callable[[], Any]]) -> float:
        """The time of a graph of these calls, divided by their number."""
        return graph_us(self.once, calls)


def copy_bandwidth(clock: Clock) -> float:
    """Bytes read and written a second by a device-to-device copy."""
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / (clock.median_us(lambda: target.copy_(source)) * 1e-6)


@dataclass(frozen=True)
class Tensors:
    """The operands of one row in one dtype and layout."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    grad_output: torch.Tensor


def operands(
    row: Row, dtype: torch.dtype, layout: torch.memory_format, device: str = "cuda"
) -> Tensors:
    """Fresh random operands."""
    n, c, h, w = row.size
    out = [
        (length + 2 * pad - row.dilation * (k - 1) - 1) // row.stride + 1
        for length, pad, k in zip((h, w), row.padding, row.kernel, strict=True)
    ]
    make = {"device": device, "dtype": dtype}
    channels = c * row.multiplier
    return Tensors(
        torch.randn(n, c, h, w, **make).contiguous(memory_format=layout),
        torch.randn(channels, 1, *row.kernel, **make),
        torch.randn(channels, **make),
        torch.randn(n, channels, *out, **make).contiguous(memory_format=layout),
    )


def ours(row: Row, t: Tensors, which: str, ops: tuple[Any, Any]) -> Callable[[], Any]:
    """The operator's call for one pass."""
    window = [row.stride] * 2, list(row.padding), [row.dilation] * 2
    if which == "forward":
        return lambda: ops[0](t.input, t.weight, t.bias, *window)
    return lambda: ops[1](t.grad_output, t.input, t.weight, *window, MASKS[which])


def opponent(row: Row, t: Tensors, which: str) -> Callable[[], Any]:
    """conv2d's call for the same pass."""
    window = [row.stride] * 2, list(row.padding), [row.dilation] * 2
    groups = row.size[1]
    if which == "forward":
        return lambda: torch.nn.functional.conv2d(t.input, t.weight, t.bias, *window, groups)
    bias_sizes = [t.weight.size(0)]
    return lambda: torch.ops.aten.convolution_backward(
        t.grad_output, t.input, t.weight, bias_sizes, *window, False, [0, 0], groups, MASKS[which]
    )


def bytes_moved(t: Tensors, which: str) -> int:
    """What a pass must at least read and write, the weight left out."""
    x = t.input.numel() * t.input.element_size()
    y = t.grad_output.numel() * t.grad_output.element_size()
    return int(2 * x + y if which == "backward" else x + y)


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
    layouts = {name: [operands(row, DTYPES[dtype], f)] for name, f in LAYOUTS.items()}
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
        first = operands(row, DTYPES[dtype], layout)
        sets = max(16, min(512, GRAPH_BYTES // bytes_moved(first, "forward")))
        layouts[name] = [first, *(operands(row, DTYPES[dtype], layout) for _ in range(sets - 1))]
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


def chosen(options: argparse.Namespace) -> list[Row]:
    """The rows of the suite that were asked for."""
    return [row for row in SUITE if (options.rows or "") in row.name]


def measure_latency(
    clock: Clock, options: argparse.Namespace, ops: Any
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The times of an empty kernel, and of the rows of latency, on the device; prints a table."""
    rows = [row for row in chosen(options) if row.name.startswith(LATENCY)]
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


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean logarithm."""
    logs = [math.log(v) for v in values if not math.isnan(v)]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


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


def worst(ratios: dict[str, float]) -> str:
    """The rows with the least."""
    named = sorted((ratio, name) for name, ratio in ratios.items())
    return "worst: " + "; ".join(f"{ratio:.2f} {name}" for ratio, name in named[:4])


def summary(results: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Geometric means and worst rows by pass, in the better layout of each and in the same."""
    lines = []
    for which in options.passes:
        mine = {f"{r['row']} {r['dtype']}": r for r in results if r["pass"] == which}
        ratios = {name: best(r, "opponent") / best(r, "ours") for name, r in mine.items()}
        fraction = geometric_mean(r["floor"] / best(r, "ours") for r in mine.values())
        lines.append(
            f"{which:8} copy fraction {fraction:.2f}, opponent / ours"
            f" {geometric_mean(ratios.values()):.2f}, {worst(ratios)}"
        )
        for layout in LAYOUTS:
            same = {
                name: best(r, "opponent", layout) / best(r, "ours", layout)
                for name, r in mine.items()
            }
            strict = geometric_mean(
                best(r, "opponent") / best(r, "ours", layout) for r in mine.values()
            )
            lines.append(
                f"{'':8} both in {layout} {geometric_mean(same.values()):.2f}, {worst(same)};"
                f" ours in it against the opponent's best {strict:.2f}"
            )
    return "\n".join(lines)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--library", help="a library that defines dw::fwd and dw::bwd")
    parser.add_argument("--json", type=Path, help="write every time here, after every row")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--rows", help="only rows whose name contains this")
    parser.add_argument("--ours-only", action="store_true", help="leave the opponent out")
    parser.add_argument("--dirty", action="store_true", help="flush the L2 by writing")
    parser.add_argument("--budget-ms", type=float, default=20.0, help="device time for one median")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measure the suite, print the table, write the JSON."""
    options = parse(arguments)
    if options.library:
        torch.ops.load_library(options.library)
        ops = (torch.ops.dw.fwd, torch.ops.dw.bwd)
    else:
        aten = torch.ops.aten
        ops = (aten.depthwise_conv2d_ext.default, aten.depthwise_conv2d_ext_backward.default)
    torch.backends.cuda.matmul.allow_tf32 = False
    clock = Clock(options.budget_ms, dirty=options.dirty)
    bandwidth = copy_bandwidth(clock)
    head = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "copy_TB_per_s": bandwidth / 1e12,
        "flush": "write" if options.dirty else "read",
    }
    print(json.dumps(head))
    print("microseconds: floor, ours nchw, ours nhwc, opponent's best; fraction of copy; ratio")
    results: list[dict[str, Any]] = []
    for row in chosen(options):
        for dtype in options.dtypes:
            for result in measure_row(row, dtype, clock, bandwidth, options, ops):
                results.append(result)
                print(line(result), flush=True)
            if options.json:
                options.json.write_text(json.dumps({**head, "results": results}, indent=1))
    print(summary(results, options))
    empty, latency = measure_latency(clock, options, ops)
    if options.json:
        head |= {"empty_kernel": empty, "latency": latency}
        options.json.write_text(json.dumps({**head, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
