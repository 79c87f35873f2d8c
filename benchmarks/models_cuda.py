#!/usr/bin/env python3
"""Time a training step of whole models, their depthwise convolutions converted, against stock.

bfloat16 autocast, random weights and images, SGD; a step is forward, loss, backward, update. Both
models of a pair take their turns in one run on one device, in both memory formats; each figure is
the median of the steps' CUDA-event times, cuDNN warmed up with benchmark=True. timm has the models;
the last is a stack of the large windows of RepLKNet-31B made here. models_cpu.py times CPUs.

    python -m pip install -r scripts/requirements-models.txt   # into an environment with the wheel
    python benchmarks/models_cuda.py --json result.json
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from real_models import CLASSES, IMAGE, pairs, ratios, timm_model, training, write
from torch import Tensor, nn

# timm's name and the batch.
TIMM = (("mobilenetv2_100", 128), ("efficientnet_b0", 128), ("convnext_tiny", 64))
LARGE_BATCH = 32
# Channels, window and blocks of a stage of RepLKNet-31B; a third of its blocks in the third.
LARGE_STAGES = ((128, 31, 2), (256, 29, 2), (512, 27, 6), (1024, 13, 2))


class LargeBlock(nn.Module):  # type: ignore[misc]  # torch is not seen
    """A residual block around one depthwise convolution of a large window."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, window, padding=window // 2, groups=channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x plus what the block makes of it."""
        return x + self.body(x)


def large_windows() -> nn.Module:
    """Stages of LargeBlocks, each at half the resolution of the one before, from a quarter on."""
    layers: list[nn.Module] = []
    before = 3
    for channels, window, blocks in LARGE_STAGES:
        step = 4 if before == 3 else 2
        layers.append(nn.Conv2d(before, channels, step, step))
        layers += [LargeBlock(channels, window) for _ in range(blocks)]
        before = channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES)]
    return nn.Sequential(*layers, *head)


def median_ms(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Device time of each step in milliseconds, in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    for _ in range(repeats):
        for name, step in steps.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main(arguments: list[str]) -> int:
    """Time every model, print a line each, write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write every time here")
    parser.add_argument("--repeats", type=int, default=10, help="steps of each model")
    options = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    models: list[tuple[str, int, Callable[[], nn.Module]]] = [
        (n, b, functools.partial(timm_model, n)) for n, b in TIMM
    ]
    models.append(("large windows", LARGE_BATCH, large_windows))
    results = []
    for name, batch, make in models:
        images = torch.randn(batch, 3, IMAGE, IMAGE, device="cuda")
        steps = pairs(make(), images, functools.partial(training, autocast=torch.bfloat16))
        times = median_ms(steps, options.repeats)
        results.append({"model": name, "batch": batch, "milliseconds": times})
        told = "  ".join(f"{who} {ms:.1f}" for who, ms in times.items())
        print(f"{name:18} {batch:4}  {told}  {ratios(times)['best']:.2f}", flush=True)
    write(options.json, head, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
