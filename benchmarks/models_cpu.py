#!/usr/bin/env python3
"""Time inference and a training step of whole models on the CPU, converted against stock.

Random weights and images of 224 pixels; a training step is forward, loss, backward and update by
SGD. Stock and converted in both memory orders take their turns in one run, and each figure is the
median over rounds, so that whatever else the machine does meets all four. The ratios are stock's
time over converted's: in NCHW, in channels-last, and each at its better order.

    python -m pip install -r scripts/requirements-models.txt   # into an environment with the wheel
    python benchmarks/models_cpu.py --threads 1 --json result.json
    python benchmarks/models_cpu.py --models convnext_tiny --what training --dtypes bf16
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from depthwise_calls import geometric_mean
from depthwise_cpu import machine, medians
from real_models import FORMATS, IMAGE, inference, pairs, ratios, timm_model, training, write

MODELS = ("mobilenetv2_100", "efficientnet_b0", "convnext_tiny")
RUNS = {"inference": inference, "training": training}
# What autocast computes in; fp32 is without it.
DTYPES = {"fp32": None, "bf16": torch.bfloat16}
RATIOS = (*FORMATS, "best")
WHO = ("stock", "converted")


def measure(model: str, what: str, batch: int, dtype: str, budget: float) -> dict[str, float]:
    """Milliseconds by who and memory order."""
    torch.manual_seed(0)
    images = torch.randn(batch, 3, IMAGE, IMAGE)
    run = functools.partial(RUNS[what], autocast=DTYPES[dtype])
    times = medians(lambda: pairs(timm_model(model), images, run), budget)
    return {name: microseconds / 1e3 for name, microseconds in times.items()}


def line(result: dict[str, Any]) -> str:
    """One row of the table."""
    times, found = result["milliseconds"], ratios(result["milliseconds"])
    parts = [f"{result['model']:16} {result['what']:9} {result['batch']:3} {result['dtype']}"]
    parts.append(f"{result['threads']:3}")
    parts += [f"{times[f'{who} {layout}']:10.1f}" for layout in FORMATS for who in WHO]
    return " ".join(parts + [f"{found[kind]:7.2f}" for kind in RATIOS])


HEAD = " ".join(
    [f"{'model':16} {'what':9} {'N':>3} type {'thr':>3}"]
    + [f"{who} {layout}" for layout in FORMATS for who in ("stock", "conv.")]
    + [f"{kind:>7}" for kind in RATIOS]
)


def mean_and_worst(kind: str, group: list[dict[str, float]]) -> str:
    """Of one ratio over models."""
    values = [found[kind] for found in group]
    return f"{kind} {geometric_mean(values):.2f} ({min(values):.2f})"


def summary(results: list[dict[str, Any]]) -> str:
    """The geometric mean of each ratio by what was run."""
    groups: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for result in results:
        key = (result["what"], result["dtype"], result["threads"])
        groups.setdefault(key, []).append(ratios(result["milliseconds"]))
    return "\n".join(
        f"{what} {dtype}, {threads} threads: stock / converted, geometric mean (worst) "
        + ", ".join(mean_and_worst(kind, group) for kind in RATIOS)
        for (what, dtype, threads), group in groups.items()
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write every time here, after every row")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names that timm knows")
    parser.add_argument("--what", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=DTYPES)
    parser.add_argument("--inference-batch", type=int, default=1)
    parser.add_argument("--training-batch", type=int, default=8)
    parser.add_argument("--threads", nargs="+", type=int, help="default: 1 and all cores")
    parser.add_argument("--budget", type=float, default=25, help="seconds for one row")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measure every model, print the table, write the JSON."""
    options = parse(arguments)
    batches = {"inference": options.inference_batch, "training": options.training_batch}
    head = machine()
    print(json.dumps(head))
    print(f"milliseconds; stock / converted\n{HEAD}")
    results: list[dict[str, Any]] = []
    for threads in options.threads or sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        for dtype in options.dtypes:
            for model in options.models:
                for what in options.what:
                    row = {"model": model, "what": what, "batch": batches[what], "dtype": dtype}
                    times = measure(model, what, batches[what], dtype, options.budget)
                    results.append({**row, "threads": threads, "milliseconds": times})
                    print(line(results[-1]), flush=True)
                    write(options.json, head, results)
    print(summary(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
