#!/usr/bin/env python3
"""Draw a result of depthwise_cuda.py: bars against the opponent and a roofline, as SVG.

    python benchmarks/plot_depthwise.py result.json plots/

writes for each pass of the result bars-PASS.svg, opponent's best time / our best time for every row
and dtype on a logarithmic axis, and roofline-PASS.svg, useful FLOP/s over FLOP per byte of our best
time: taps inside the image only, and the bytes that the pass must move (the floor of the result).
The roof is the copy bandwidth of the same run and --peak.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from depthwise_calls import PASSES
from depthwise_cuda import best
from shapes import CUDA_SUITE

H200_PEAK_TFLOPS = 66.9  # fp32 outside the tensor cores, by the data sheet
COLORS = {"fp32": "#4477aa", "fp16": "#ee6677", "bf16": "#228833"}
Result = dict[str, Any]


class Svg:
    """Elements of one drawing, in pixels."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'font-family="sans-serif" font-size="11"><title>{escape(title)}</title>'
            f'<rect width="100%" height="100%" fill="white"/>'
        )
        self._parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str = "#bbbbbb") -> None:
        """A line from one point to another."""
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'
        )

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """A line of text; `anchor` says which of its ends is at x."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def bar(self, x: float, y: float, width: float, height: float, color: str, tip: str) -> None:
        """A filled rectangle with a text that shows under the pointer."""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{color}"><title>{escape(tip)}</title></rect>'
        )

    def dot(self, x: float, y: float, color: str, tip: str) -> None:
        """A point with a text that shows under the pointer."""
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}" fill-opacity="0.75">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def legend(self, x: float, y: float, dtypes: Iterable[str]) -> None:
        """The colours of the dtypes, side by side."""
        for i, dtype in enumerate(dtypes):
            self.bar(x + 60 * i, y - 9, 10, 10, COLORS[dtype], dtype)
            self.text(x + 60 * i + 14, y, dtype)

    def write(self, path: Path) -> None:
        """Write the drawing."""
        path.write_text("\n".join([self._head, *self._parts, "</svg>\n"]), encoding="utf-8")


class LogAxis:
    """Values from `low` to `high` on pixels from `begin` to `end`, and ticks at 1, 2 and 5."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._high = math.log10(low), math.log10(high)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """The pixel of a value."""
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """The round values inside."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        values = (m * 10.0**d for d in decades for m in (1, 2, 5))
        return [v for v in values if self._low <= math.log10(v) <= self._high]


def bars(results: Sequence[Result], title: str) -> Svg:
    """A group of bars for every row, from 1 to the ratio, to the left where ours is slower."""
    dtypes = [d for d in COLORS if any(r["dtype"] == d for r in results)]
    rows = list(dict.fromkeys(r["row"] for r in results))
    ratios = {(r["row"], r["dtype"]): best(r, "opponent") / best(r, "ours") for r in results}
    step, label, width = 8 * len(dtypes) + 6, 190, 620
    bottom = 50 + step * len(rows)
    low, high = min(0.8, *ratios.values()), max(2.0, *ratios.values())
    axis = LogAxis(low / 1.1, high * 1.1, label, label + width)
    svg = Svg(label + width + 20, bottom + 30, title)
    svg.text(10, 18, title)
    svg.legend(label, 36, dtypes)
    for tick in axis.ticks():
        svg.line(axis.at(tick), 44, axis.at(tick), bottom, "#444444" if tick == 1 else "#dddddd")
        svg.text(axis.at(tick), bottom + 14, f"{tick:g}", "middle")
    for i, row in enumerate(rows):
        top = 50 + step * i
        svg.text(label - 6, top + step / 2 + 2, row, "end")
        for j, dtype in enumerate(dtypes):
            if (row, dtype) in ratios:
                ratio = ratios[row, dtype]
                left, right = sorted((axis.at(1), axis.at(ratio)))
                tip = f"{row} {dtype}: {ratio:.2f}"
                svg.bar(left, top + 8 * j, max(right - left, 0.5), 7, COLORS[dtype], tip)
    return svg


def roofline(results: Sequence[Result], bandwidth: float, peak: float, title: str) -> Svg:
    """A point for every row and dtype under min(bandwidth * intensity, peak), in FLOP/s."""
    shapes = {row.name: row for row in CUDA_SUITE}
    points = []
    for r in results:
        flop = shapes[r["row"]].useful_flop(r["pass"])
        moved = r["floor"] * 1e-6 * bandwidth
        points.append((flop / moved, flop / (best(r, "ours") * 1e-6), r))
    lowest, highest = min(p[0] for p in points), max(p[0] for p in points)
    left, right, top, bottom = 70.0, 660.0, 40.0, 430.0
    x = LogAxis(lowest / 1.5, max(highest, 2 * peak / bandwidth) * 1.5, left, right)
    slowest, fastest = min(p[1] for p in points), max(p[1] for p in points)
    y = LogAxis(slowest / 1.5, 2 * max(peak, fastest), bottom, top)
    svg = Svg(right + 20, bottom + 50, title)
    svg.text(10, 18, title)
    svg.legend(left, 36, [d for d in COLORS if any(r["dtype"] == d for r in results)])
    for tick in x.ticks():
        svg.line(x.at(tick), top, x.at(tick), bottom, "#eeeeee")
        svg.text(x.at(tick), bottom + 14, f"{tick:g}", "middle")
    for tick in y.ticks():
        svg.line(left, y.at(tick), right, y.at(tick), "#eeeeee")
        svg.text(left - 6, y.at(tick) + 4, f"{tick / 1e12:g}", "end")
    ridge, first = peak / bandwidth, lowest / 1.5
    begin = max(first, slowest / 1.5 / bandwidth)
    svg.line(x.at(begin), y.at(begin * bandwidth), x.at(ridge), y.at(peak), "#444444")
    svg.line(x.at(ridge), y.at(peak), right, y.at(peak), "#444444")
    svg.text((left + right) / 2, bottom + 36, "useful FLOP per byte that must move", "middle")
    svg.text(left + 6, top + 12, "TFLOP/s")
    for intensity, rate, r in points:
        tip = f"{r['row']} {r['dtype']}: {rate / 1e12:.2f} TFLOP/s, {best(r, 'ours'):.1f} us"
        svg.dot(x.at(intensity), y.at(rate), COLORS[r["dtype"]], tip)
    return svg


def main(arguments: list[str]) -> int:
    """Draw every pass of a result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("result", type=Path, help="what depthwise_cuda.py --json wrote")
    parser.add_argument("directory", type=Path, help="where the drawings go; made when missing")
    parser.add_argument("--peak", type=float, default=H200_PEAK_TFLOPS, help="the roof, in TFLOP/s")
    options = parser.parse_args(arguments)
    result = json.loads(options.result.read_text(encoding="utf-8"))
    bandwidth = result["copy_TB_per_s"] * 1e12
    where = f"{result['device']}, torch {result['torch']}"
    options.directory.mkdir(parents=True, exist_ok=True)
    for which in PASSES:
        mine = [r for r in result["results"] if r["pass"] == which]
        if not mine:
            continue
        paired = [r for r in mine if not math.isnan(best(r, "opponent"))]
        if paired:
            title = f"{which}: opponent's best time / ours ({where})"
            bars(paired, title).write(options.directory / f"bars-{which}.svg")
        title = f"{which}: roofline, copy {bandwidth / 1e12:.2f} TB/s ({where})"
        drawing = roofline(mine, bandwidth, options.peak * 1e12, title)
        drawing.write(options.directory / f"roofline-{which}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
