"""Times of calls on a CUDA device, without what the host and events add to them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch

REPEATS = 15
FLUSH_BYTES = 384 << 20
COPY_BYTES = 1 << 30
MICROSECONDS = 1e3


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
