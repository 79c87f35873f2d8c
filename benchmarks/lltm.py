#!/usr/bin/env python3
"""Time lltm_cell against the same cell of separate operators, eager, in one C++ call and compiled.

Wall time of a call, as a program sees it that does not wait: many calls in a row, then one
synchronisation. Device time: the same calls in a CUDA graph, replayed. Each is the median of
several repeats. The contenders take their turns in one run on one device.

    eager     the walkthrough's Python cell: cat, linear, chunk, activations
    script    the same operators in one TorchScript call, without Python in between
    compiled  torch.compile of the Python cell (left out where there is no working compiler)
    ours      torch.lltm_cell

    python benchmarks/lltm.py --json result.json         # on a wheel with the operator
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MICROSECONDS = 1e6
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# batch, features, state: the walkthrough's, a wider one, what a product fills a device with.
SIZES = ((16, 32, 128), (64, 128, 256), (64, 256, 512), (256, 512, 1024), (1024, 1024, 2048))
Cell = Callable[..., Any]


def walkthrough(x: Tensor, w: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The cell as the walkthrough's Python code has it."""
    gates = torch.nn.functional.linear(torch.cat([h, x], 1), w, b)
    i, o, candidate = gates.chunk(3, 1)
    cell = c + torch.nn.functional.elu(candidate) * torch.sigmoid(i)
    return torch.tanh(cell) * torch.sigmoid(o), cell


def ours(x: Tensor, w: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The fused operator."""
    new_h, new_cell, _ = torch.lltm_cell(x, w, b, h, c)
    return new_h, new_cell


def operands(sizes: tuple[int, int, int], dtype: torch.dtype, grad: bool) -> list[Tensor]:
    """Fresh random operands: input, weight, bias, old_h, old_cell."""
    batch, features, state = sizes
    shapes = [
        (batch, features), (3 * state, features + state), (3 * state,), (batch, state),
        (batch, state),
    ]  # fmt: skip
    scale = (features + state) ** -0.5
    return [(torch.randn(s, device="cuda") * scale).to(dtype).requires_grad_(grad) for s in shapes]


def forward_call(cell: Cell, tensors: list[Tensor]) -> Callable[[], Any]:
    """The forward alone, without a graph of derivatives."""

    def call() -> Any:
        with torch.no_grad():
            return cell(*tensors)

    return call


def training_call(cell: Cell, tensors: list[Tensor]) -> Callable[[], Any]:
    """The forward and the gradients of all five arguments."""
    grads = [torch.randn_like(t) for t in tensors[3:]]
    return lambda: torch.autograd.grad(cell(*tensors), tensors, grads)


def wall_us(call: Callable[[], Any], calls: int, repeats: int) -> float:
    """Microseconds of a call among many."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / calls)
    return statistics.median(times) * MICROSECONDS


def device_us(call: Callable[[], Any], calls: int, repeats: int) -> float:
    """Microseconds of a call in a replayed graph of several."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return wall_us(graph.replay, 1, repeats) / calls


def contenders(compile_too: bool) -> dict[str, Cell]:
    """By name; the reference first."""
    cells: dict[str, Cell] = {"eager": walkthrough, "script": torch.jit.script(walkthrough)}
    if compile_too:
        cells["compiled"] = torch.compile(walkthrough)
    cells["ours"] = ours
    return cells


def measure(
    sizes: tuple[int, int, int], name: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One result for the forward and one for a training step."""
    results = []
    for which, make in (("forward", forward_call), ("training", training_call)):
        times: dict[str, float] = {}
        for who, cell in contenders(options.compiled).items():
            call = make(cell, operands(sizes, DTYPES[name], which == "training"))
            for _ in range(5):
                call()
            times[f"{who} wall"] = wall_us(call, options.calls, options.repeats)
            if which == "forward":
                times[f"{who} device"] = device_us(call, 20, options.repeats)
        results.append({"sizes": sizes, "dtype": name, "pass": which, "times": times})
        print(line(results[-1]), flush=True)
    return results


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    times = result["times"]
    parts = "  ".join(f"{name} {us:.1f}" for name, us in times.items())
    best = min(us for name, us in times.items() if name.endswith("wall") and "ours" not in name)
    ratio = best / times["ours wall"]
    sizes = "x".join(str(n) for n in result["sizes"])
    return f"{sizes:15} {result['dtype']} {result['pass']:8} {parts}  best other / ours {ratio:.2f}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write every time here")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="only the first so many")
    parser.add_argument("--calls", type=int, default=200, help="calls between synchronisations")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    options = parse(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps(head))
    print("microseconds a call; ratio of wall times")
    results: list[dict[str, Any]] = []
    for name in options.dtypes:
        for sizes in SIZES[: options.sizes]:
            results += measure(sizes, name, options)
    if options.json:
        options.json.write_text(json.dumps({**head, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
