"""Times of calls on a CUDA device, without what the host and events add to them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch

REPEATS = 15


def spans_after(flush: float, kernels: Iterable[tuple[float, float]]) -> list[float]:
    """From the first begin to the last end of the kernels after each longer than `flush`."""
    spans: list[tuple[float, float]] = []
    flushed = False
    for begin, end in sorted(kernels):
        if end - begin > flush:
            flushed = True
        elif flushed:
            spans.append((begin, end))
            flushed = False
        elif spans:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
    return [end - begin for begin, end in spans]


def kernels_us(flush: Callable[[], Any], call: Callable[[], Any]) -> float:
    """The median microseconds from the begin of a call's first kernel to the end of its last.

    By the profiler. `flush` comes before each call, one kernel that takes more than twice as long
    as any of the call's.
    """
    call()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(REPEATS):
            flush()
            call()
        torch.cuda.synchronize()
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    longest = max(end - begin for begin, end in kernels)
    return statistics.median(spans_after(longest / 2, kernels))


def graph_us(
    once_ms: Callable[[Callable[[], Any]], float], calls: list[Callable[[], Any]]
) -> float:
    """The time in microseconds of a CUDA graph of these calls, divided by their number."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return statistics.median(once_ms(graph.replay) for _ in range(7)) * 1e3 / len(calls)
