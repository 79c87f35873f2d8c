"""What the depthwise benchmarks have in common: operands, calls, and where their ratios stand."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from shapes import Limits, Row, drawn

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
PASSES = ("forward", "dgrad", "wgrad", "backward")
MASKS = {
    "dgrad": [True, False, False],
    "wgrad": [False, True, True],
    "backward": [True, True, True],
}
BEHIND = 0.97  # less than 1 by what two runs differ


@dataclass(frozen=True)
class Tensors:
    """The operands of one row in one dtype and layout."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    grad_output: torch.Tensor


def operands(row: Row, dtype: torch.dtype, layout: torch.memory_format, device: str) -> Tensors:
    """Fresh random operands."""
    n, c, h, w = row.size
    make = {"device": device, "dtype": dtype}
    channels = c * row.multiplier
    return Tensors(
        torch.randn(n, c, h, w, **make).contiguous(memory_format=layout),
        torch.randn(channels, 1, *row.kernel, **make),
        torch.randn(channels, **make),
        torch.randn(n, channels, *row.output, **make).contiguous(memory_format=layout),
    )


def operators(library: str | None) -> tuple[Any, Any]:
    """Forward and backward: dw::fwd and dw::bwd of a library, or those of the installed wheel."""
    if library:
        torch.ops.load_library(library)
        return torch.ops.dw.fwd, torch.ops.dw.bwd
    aten = torch.ops.aten
    return aten.depthwise_conv2d_ext.default, aten.depthwise_conv2d_ext_backward.default


def ours(row: Row, t: Tensors, which: str, ops: tuple[Any, Any]) -> Callable[[], Any]:
    """The operator's call for one pass."""
    window = list(row.stride), list(row.padding), list(row.dilation)
    if which == "forward":
        return lambda: ops[0](t.input, t.weight, t.bias, *window)
    return lambda: ops[1](t.grad_output, t.input, t.weight, *window, MASKS[which])


def opponent(row: Row, t: Tensors, which: str) -> Callable[[], Any]:
    """conv2d's call for the same pass."""
    window = list(row.stride), list(row.padding), list(row.dilation)
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


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean logarithm."""
    logs = [math.log(v) for v in values if not math.isnan(v)]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def standing(ratios: Mapping[str, float], worst: int = 4) -> str:
    """The geometric mean of opponent / ours by row, the share behind, and the least rows."""
    if not ratios:
        return "nothing measured"
    behind = sum(ratio < BEHIND for ratio in ratios.values())
    least = sorted((ratio, name) for name, ratio in ratios.items())[:worst]
    return (
        f"{geometric_mean(ratios.values()):.2f}, behind {behind} of {len(ratios)}"
        f" ({behind / len(ratios):.1%}), worst: "
        + "; ".join(f"{ratio:.2f} {name}" for ratio, name in least)
    )


def parser(description: str | None, dtypes: Iterable[str]) -> argparse.ArgumentParser:
    """The options of both benchmarks."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    dtypes = list(dtypes)
    made.add_argument("--library", help="a library that defines dw::fwd and dw::bwd")
    made.add_argument("--json", type=Path, help="write everything here, after every row")
    made.add_argument("--dtypes", nargs="+", default=dtypes, choices=dtypes)
    made.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    made.add_argument("--ours-only", action="store_true", help="leave the opponent out")
    made.add_argument("--random", type=int, metavar="SEED", help="rows drawn from this seed")
    made.add_argument(
        "--rows", nargs="+",
        help="rows whose name contains one of these; with --random how many are drawn",
    )  # fmt: skip
    made.add_argument("--seconds", type=float, default=math.inf, help="begin no row after these")
    return made


def selected(
    options: argparse.Namespace, suite: Iterable[Row], limits: Limits
) -> list[tuple[Row, Sequence[str]]]:
    """The rows asked for and their types: the suite's have all, those drawn take turns."""
    dtypes = options.dtypes
    if options.random is not None:
        rows = drawn(options.random, int((options.rows or ["300"])[0]), limits)
        return [(row, [dtypes[i % len(dtypes)]]) for i, row in enumerate(rows)]
    wanted = options.rows or [""]
    return [(row, dtypes) for row in suite if any(text in row.name for text in wanted)]
