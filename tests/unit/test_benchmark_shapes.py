"""Shapes that benchmarks draw from a seed: within what they promise, and the same each time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load_shapes() -> ModuleType:
    """benchmarks/shapes.py by its path: the directory is on nobody's module path."""
    path = Path(__file__).parents[2] / "benchmarks/shapes.py"
    spec = importlib.util.spec_from_file_location("benchmark_shapes", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


shapes = load_shapes()
LIMITS = [shapes.CUDA_LIMITS, shapes.CPU_LIMITS]


@pytest.mark.parametrize("limits", LIMITS, ids=["cuda", "cpu"])
def test_rows_drawn_are_within_their_ranges(limits: object) -> None:
    for row in shapes.drawn(7, 300, limits):
        n, c, h, w = row.size
        assert 1 <= n <= limits.batch  # type: ignore[attr-defined]
        assert 1 <= c <= 4096
        assert all(1 <= side <= 1024 for side in (h, w))
        assert all(1 <= k <= 31 for k in row.kernel)
        assert all(s <= 4 or s == k for s, k in zip(row.stride, row.kernel, strict=True))
        assert all(1 <= d <= 8 for d in row.dilation)
        assert 1 <= row.multiplier <= 3
        least, most = limits.elements  # type: ignore[attr-defined]
        assert min(row.output) >= 1
        assert least <= min(row.elements)
        assert max(row.elements) <= most


def test_rows_drawn_have_every_kind_of_window() -> None:
    rows = shapes.drawn(7, 300, shapes.CUDA_LIMITS)
    kinds = {
        "1 x k": lambda r: r.kernel[0] == 1 < r.kernel[1],
        "k x 1": lambda r: r.kernel[1] == 1 < r.kernel[0],
        "even": lambda r: r.kernel[0] % 2 == 0 and r.kernel[1] % 2 == 0,
        "stride of the window": lambda r: r.stride == r.kernel and max(r.kernel) > 4,
        "dilated": lambda r: max(r.dilation) > 1,
        "several outputs of a channel": lambda r: r.multiplier == 3,
        "causal": lambda r: r.padding[1] == r.dilation[1] * (r.kernel[1] - 1) > 0,
    }
    for kind, matches in kinds.items():
        assert sum(map(matches, rows)) >= 3, kind


def test_a_seed_always_draws_the_same_rows() -> None:
    rows = shapes.drawn(7, 20, shapes.CUDA_LIMITS)
    assert rows == shapes.drawn(7, 40, shapes.CUDA_LIMITS)[:20]
    assert rows != shapes.drawn(8, 20, shapes.CUDA_LIMITS)
    assert len({row.name for row in rows}) == len(rows)


def test_sizes_of_the_output_are_a_convolutions_and_taps_outside_are_no_work() -> None:
    row = shapes.Row("", (2, 3, 10, 20), (3, 4), (2, 1), (1, 0), (1, 2), 2)
    assert row.output == (5, 14)
    assert row.elements == (2 * 3 * 10 * 20, 2 * 6 * 5 * 14)
    row = shapes.square("", 1, 1, 3, 3, 1, 1)
    assert (row.useful_flop("forward"), row.useful_flop("backward")) == (2 * 7 * 7, 4 * 7 * 7)
