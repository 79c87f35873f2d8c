"""Times of sigmoid_ext, axpy_ext and lltm_cell beside upstream's operators.

Paired: in each round every contender runs for some milliseconds, one after the other, the order
turning from round to round; a ratio is the median over the rounds of the ratio within a round, so
that what slows the machine down for a while slows all of them. The element-wise operators write
into tensors that are there already: no allocation, no page faults. "of copy" is the time of
Tensor.copy_ times the traffic (two tensors for sigmoid_ext, three for axpy_ext and the backward)
over the operator's time; 1 is the speed of copy.

On CUDA a round has one call of each contender, timed by events, the L2 flushed before it.

lltm_cell, on the CPU, against the walkthrough's Python cell, eager and through torch.compile;
lltm.py has it on CUDA.

    python benchmarks/pointwise.py --json result.json         # on a wheel with the operators
    python benchmarks/pointwise.py --device cuda
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
from device_time import Clock
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16,
          "bf16": torch.bfloat16}  # fmt: skip
# Elements: in the first-level cache, in the second, in the third, in memory.
SIZES = (2_000, 100_000, 1_000_000, 16_000_000)
# On CUDA: a launch, what the L2 could hold, and memory.
CUDA_SIZES = (2_000, 4_000_000, 64_000_000, 256_000_000)
# batch, features, state
CELLS = ((1, 32, 128), (16, 32, 128), (64, 128, 256), (64, 256, 512))
BURST = 0.004  # seconds
Call = Callable[[], Any]
Times = dict[str, list[float]]


def repetitions(call: Call) -> int:
    """How many calls make a burst."""
    for _ in range(3):
        call()
    begin = time.perf_counter()
    call()
    return max(1, int(BURST / (time.perf_counter() - begin)))


def paired(calls: dict[str, Call], rounds: int, once: Callable[[str], float]) -> Times:
    """once(name), the seconds of a call, for each contender in each round, in turning order."""
    names = list(calls)
    times: Times = {name: [] for name in names}
    for round_number in range(rounds):
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(once(name))
    return times


def paired_on_cpu(calls: dict[str, Call], rounds: int) -> Times:
    """By bursts of calls."""
    counts = {name: repetitions(call) for name, call in calls.items()}

    def once(name: str) -> float:
        call, count = calls[name], counts[name]
        call()  # its operands are in the cache as far as they fit
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count

    return paired(calls, rounds, once)


def paired_on_cuda(calls: dict[str, Call], rounds: int) -> Times:
    """By device time."""
    clock = Clock(budget_ms=0)
    for call in calls.values():
        call()
    return paired(calls, rounds, lambda name: clock.once(calls[name]) * 1e-3)


def ratio(times: Times, over: str, under: str) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def pointwise(
    name: str, count: int, dtype: torch.dtype, device: str
) -> tuple[dict[str, Call], int]:
    """Ours, upstream's and a copy on the same operands; how many tensors the operator touches."""
    x, y, out = (torch.randn(count, device=device).to(dtype) for _ in range(3))
    aten = torch.ops.aten
    s = torch.sigmoid(y)
    pairs: dict[str, tuple[Call, Call, int]] = {
        "sigmoid_ext": (
            lambda: torch.sigmoid_ext(x, out=out),
            lambda: torch.sigmoid(x, out=out),
            2,
        ),
        "sigmoid_ext_backward": (
            lambda: aten.sigmoid_ext_backward.grad_input(x, s, grad_input=out),
            lambda: aten.sigmoid_backward.grad_input(x, s, grad_input=out),
            3,
        ),
        "axpy_ext": (
            lambda: torch.axpy_ext(x, y, out=out),
            lambda: torch.add(y, x, alpha=2, out=out),
            3,
        ),
    }
    ours, theirs, traffic = pairs[name]
    return {"ours": ours, "upstream": theirs, "copy": lambda: out.copy_(x)}, traffic


def walkthrough(x: Tensor, w: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The cell as the walkthrough's Python code has it."""
    gates = torch.nn.functional.linear(torch.cat([h, x], 1), w, b)
    i, o, candidate = gates.chunk(3, 1)
    cell = c + torch.nn.functional.elu(candidate) * torch.sigmoid(i)
    return torch.tanh(cell) * torch.sigmoid(o), cell


def cell_calls(sizes: tuple[int, int, int], training: bool, compiled: bool) -> dict[str, Call]:
    """The contenders of a forward, or of a forward with the gradients of all five arguments."""
    batch, features, state = sizes
    shapes = [(batch, features), (3 * state, features + state), (3 * state,), (batch, state),
              (batch, state)]  # fmt: skip
    scale = (features + state) ** -0.5
    tensors = [(torch.randn(s) * scale).requires_grad_(training) for s in shapes]
    grads = [torch.randn_like(t) for t in tensors[3:]]
    cells: dict[str, Callable[..., Any]] = {
        "ours": lambda *t: torch.lltm_cell(*t)[:2],
        "eager": walkthrough,
    }
    if compiled:
        cells["compiled"] = torch.compile(walkthrough)

    def forward(cell: Callable[..., Any]) -> Call:
        def call() -> Any:
            with torch.no_grad():
                return cell(*tensors)

        return call

    def step(cell: Callable[..., Any]) -> Call:
        return lambda: torch.autograd.grad(cell(*tensors), tensors, grads)

    return {name: (step if training else forward)(cell) for name, cell in cells.items()}


def measure_pointwise(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """One result for each operator, dtype and size."""
    results, on_cuda = [], options.device == "cuda"
    for name in ("sigmoid_ext", "sigmoid_ext_backward", "axpy_ext"):
        for dtype in options.dtypes:
            for count in CUDA_SIZES if on_cuda else SIZES:
                calls, traffic = pointwise(name, count, DTYPES[dtype], options.device)
                times = (paired_on_cuda if on_cuda else paired_on_cpu)(calls, options.rounds)
                result = {
                    "what": name,
                    "dtype": dtype,
                    "size": count,
                    "threads": threads,
                    "us": statistics.median(times["ours"]) * 1e6,
                    "upstream / ours": ratio(times, "upstream", "ours"),
                    "of copy": ratio(times, "copy", "ours") * traffic / 2,
                }
                print(line(result), flush=True)
                results.append(result)
    return results


def measure_cells(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """One result for each size of cell, forward and training."""
    results = []
    for sizes in CELLS:
        for training in (False, True):
            calls = cell_calls(sizes, training, options.compiled)
            times = paired_on_cpu(calls, options.rounds)
            result = {
                "what": "lltm_cell " + ("training" if training else "forward"),
                "dtype": "fp32",
                "size": "x".join(map(str, sizes)),
                "threads": threads,
                "us": statistics.median(times["ours"]) * 1e6,
                **{
                    f"{name} / ours": ratio(times, name, "ours") for name in calls if name != "ours"
                },
            }
            print(line(result), flush=True)
            results.append(result)
    return results


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    head = f"{result['what']:20} {result['dtype']} {result['size']!s:>12} {result['threads']} thr"
    ratios = "  ".join(f"{k} {v:.2f}" for k, v in result.items() if "ours" in k or "copy" in k)
    return f"{head} {result['us']:10.2f} us  {ratios}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, torch.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument("--only", choices=("pointwise", "lltm"))
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    options = parse(arguments)
    if options.device == "cuda":
        machine, options.threads, options.only = torch.cuda.get_device_name(), [1], "pointwise"
    else:
        machine = torch.backends.cpu.get_cpu_capability()
    head = {"torch": torch.__version__, "machine": machine}
    print(json.dumps(head))
    results: list[dict[str, Any]] = []
    for threads in dict.fromkeys(options.threads):
        torch.set_num_threads(threads)
        if options.only != "lltm":
            results += measure_pointwise(options, threads)
        if options.only != "pointwise":
            results += measure_cells(options, threads)
    if options.json:
        options.json.write_text(json.dumps({**head, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
