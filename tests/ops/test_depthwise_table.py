"""depthwise_conv2d_ext on CUDA: a call for each row of the table that chooses its kernels.

The calls are in the order of the table's rows. They run in processes of their own, since what
chooses a kernel reads its environment once: DEPTHWISE_CONV2D_EXT_LOG prints the row of each call,
DEPTHWISE_CONV2D_EXT_KERNELS forces or forbids kernels, DEPTHWISE_CONV2D_EXT_DEVICE pretends less.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from depthwise_cases import Case, assert_within, conv2d, gradients, make_inputs

HERE = Path(__file__)
TABLE = HERE.parents[2] / "aten_src/native/cuda/depthwise_conv2d_ext/Table.cuh"
# Bounds of the work are in elements a multiprocessor; the calls below are for so many of them.
MULTIPROCESSORS = 132
FP32, BF16 = torch.float32, torch.bfloat16
PLANES, PIXELS = torch.contiguous_format, torch.channels_last
FORWARD = (False, False, False)
INPUT, WEIGHT, ALL = (True, False, False), (False, True, True), (True, True, True)


class Call(NamedTuple):
    """One call and the kernel that the row at its place in the table names."""

    kernel: str
    dtype: torch.dtype
    order: torch.memory_format
    wanted: tuple[bool, bool, bool]  # gradients; none: the forward
    case: Case


CALLS = [
    Call("boxes", FP32, PIXELS, FORWARD, Case(16, 16, 1, (70, 72), (3, 3), (1, 1), (1, 1))),
    Call("boxes", BF16, PIXELS, FORWARD, Case(7, 80, 1, (61, 67), (3, 3), (1, 1), (1, 1))),
    Call("boxes", FP32, PIXELS, FORWARD, Case(2, 20, 1, (7, 7), (5, 5), (1, 1), (1, 3))),
    Call("boxes", BF16, PIXELS, ALL, Case(1, 48, 1, (7, 7), (5, 5), (1, 1), (2, 2))),
    Call("boxes", BF16, PIXELS, WEIGHT, Case(1, 88, 1, (112, 112), (3, 3), (1, 1), (1, 1))),
    Call("boxes", FP32, PIXELS, WEIGHT, Case(17, 40, 1, (20, 21), (7, 7), (1, 1), (3, 3))),
    Call("sequence", BF16, PIXELS, FORWARD, Case(3, 8, 1, (1, 301), (1, 4), (1, 1), (0, 3))),
    Call("sequence", FP32, PIXELS, ALL, Case(3, 8, 1, (1, 301), (1, 4), (1, 1), (0, 3))),
    Call("by_planes", BF16, PIXELS, FORWARD, Case(9, 100, 1, (36, 36), (7, 7), (1, 1), (3, 3))),
    Call("by_planes", BF16, PIXELS, FORWARD, Case(3, 8, 1, (7, 7), (13, 13), (1, 1), (6, 6))),
    Call("by_planes", FP32, PIXELS, WEIGHT, Case(3, 8, 2, (7, 7), (3, 3), (1, 1), (1, 1))),
    Call("by_planes", BF16, PIXELS, WEIGHT, Case(3, 8, 3, (9, 7), (5, 5), (2, 2), (2, 2))),
    Call("by_planes", BF16, PIXELS, WEIGHT, Case(3, 8, 1, (7, 7), (13, 13), (1, 1), (6, 6))),
    Call("sequence", BF16, PLANES, FORWARD, Case(3, 7, 1, (301, 1), (31, 1), (1, 1), (15, 0))),
    Call("sequence", BF16, PLANES, WEIGHT, Case(3, 7, 1, (301, 1), (31, 1), (1, 1), (15, 0))),
    Call("plane_gemm", BF16, PLANES, FORWARD, Case(70, 8, 1, (14, 13), (5, 5), (2, 2), (2, 2))),
    Call("plane_gemm", BF16, PLANES, INPUT, Case(8, 24, 1, (15, 5), (3, 3), (1, 1), (1, 1))),
    Call("plane_gemm", FP32, PLANES, INPUT, Case(33, 8, 1, (7, 7), (13, 13), (1, 1), (6, 6))),
    Call("plane_gemm", FP32, PLANES, INPUT, Case(33, 8, 1, (7, 9), (6, 5), (1, 1), (2, 2))),
    Call("plane_gemm", BF16, PLANES, ALL, Case(9, 8, 1, (7, 7), (7, 7), (1, 1), (3, 3))),
    Call("plane_gemm", FP32, PLANES, ALL, Case(9, 6, 1, (14, 14), (27, 27), (1, 1), (13, 13))),
    Call("plane_gemm", FP32, PLANES, ALL, Case(9, 6, 1, (7, 9), (5, 5), (1, 1), (2, 2))),
    Call("plane_gemm", FP32, PLANES, WEIGHT, Case(40, 12, 1, (6, 10), (7, 7), (2, 2), (3, 3))),
    Call("bands", BF16, PLANES, FORWARD, Case(3, 8, 1, (7, 7), (13, 13), (1, 1), (6, 6))),
    Call("patches", BF16, PLANES, FORWARD, Case(2, 3, 1, (7, 14), (3, 3), (1, 1), (1, 1))),
    Call("march", BF16, PIXELS, FORWARD, Case(3, 7, 1, (20, 15), (3, 3), (1, 1), (2, 2), (2, 2))),
    Call("tiles", BF16, PLANES, WEIGHT, Case(2, 3, 1, (23, 29), (7, 7), (1, 1), (9, 9), (3, 3))),
    Call("march", BF16, PLANES, WEIGHT, Case(2, 3, 1, (2, 5), (3, 3), (1, 1), (1, 1))),
    Call("tiles", FP32, PLANES, WEIGHT, Case(3, 8, 1, (9, 31), (9, 8), (1, 1), (4, 4))),
    Call("generic", BF16, PLANES, FORWARD, Case(2, 6, 1, (5, 6), (5, 5), (4, 3), (7, 6), (2, 2))),
    Call("generic", BF16, PLANES, WEIGHT, Case(2, 6, 1, (5, 6), (5, 5), (4, 3), (7, 6), (2, 2))),
]


def rows() -> list[list[str]]:
    """The columns of the table's rows, as they are written."""
    lines = re.findall(r"^    \{(\".*)\},$", TABLE.read_text(), re.MULTILINE)
    return [re.split(r", (?![^{]*\})", line) for line in lines]


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    """Makes every call in a process of its own and checks the results against float64."""
    return subprocess.run(
        [sys.executable, str(HERE)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def make(call: Call) -> None:
    """One call and its results against float64."""
    inputs = make_inputs(call.case, device="cuda", dtype=call.dtype, memory_format=call.order)
    exact = inputs.cast(device="cpu", dtype=torch.float64)
    magnitude = type(exact)(*(None if t is None else t.abs() for t in exact))
    if call.wanted == FORWARD:
        output = torch.depthwise_conv2d_ext(*inputs, *call.case.window)
        terms = call.case.kernel[0] * call.case.kernel[1]
        assert_within(output, conv2d(call.case, exact), conv2d(call.case, magnitude), terms)
        return
    shape = conv2d(call.case, exact).shape
    grad = torch.randn(shape, device="cuda", dtype=inputs.input.dtype)
    grad = grad.contiguous(memory_format=call.order)
    found = torch.ops.aten.depthwise_conv2d_ext_backward(
        grad, inputs.input, inputs.weight, *call.case.window, call.wanted
    )
    expected = gradients(call.case, exact, grad)
    sizes = gradients(call.case, magnitude, grad.abs())
    window = call.case.kernel[0] * call.case.kernel[1] * call.case.multiplier
    terms = grad.numel() // grad.shape[1]
    for mine, theirs, size, count in zip(
        found, expected, sizes, (window, terms, terms), strict=True
    ):
        if mine is not None and mine.numel():
            assert_within(mine, theirs, size, count)


def test_each_row_has_a_call_of_its_kernel() -> None:
    assert [row[0].strip('"') for row in rows()] == [call.kernel for call in CALLS]


def test_the_benchmark_has_calls_for_each_row_and_keeps_those_that_it_cannot_judge() -> None:
    code = (
        "import depthwise_table as d; rows = d.table(); "
        "print([any(d.calls_of(i, row, 132)) for i, row in enumerate(rows[:-2])].count(False)); "
        "calls = list(d.calls_of(0, rows[0], 132)); "
        "slow = [(c, 2.0 if c.work > 4 else 0.5) for c in calls]; "
        "print(d.judged(rows[0], slow, 0.03), d.judged(rows[0], [(calls[-1], 0.5)], 0.03), "
        "d.judged(rows[0], [], 0.03), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=HERE.parents[2] / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
    )
    every, since, never, unknown = done.stdout.splitlines()
    assert every == "0"
    assert since.lstrip().startswith('{"boxes"') and "{8, kNoLimit}" in since
    assert never.lstrip().startswith('// slower here: {"boxes"')
    assert unknown.lstrip().startswith("{" + ", ".join(rows()[0]) + "},")


def test_no_row_is_there_twice() -> None:
    assert len({tuple(row) for row in rows()}) == len(rows())


def test_the_last_rows_take_whatever_is_left() -> None:
    for row, passes in zip(rows()[-2:], ("kData", "kGradWeight"), strict=True):
        assert row[0] == '"generic"'
        assert row[1:9] == [
            passes, "kBoth", "kAll", "kAnySteps", "kAnyOutputs", "kAny", "kAny", "0"
        ]  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestOnTheDevice:
    def test_each_call_is_right_and_reaches_its_row(self) -> None:
        properties = torch.cuda.get_device_properties(0)
        if properties.multi_processor_count < MULTIPROCESSORS:
            pytest.skip(f"the calls are for {MULTIPROCESSORS} multiprocessors")
        done = run(
            DEPTHWISE_CONV2D_EXT_LOG="1",
            DEPTHWISE_CONV2D_EXT_DEVICE=f"multiprocessors={MULTIPROCESSORS}",
        )
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        log = re.split(r"^call \d+$", done.stderr, flags=re.MULTILINE)[1:]
        missed = [
            f"row {number}: {row[0]} {row[1]}"
            for number, (row, text) in enumerate(zip(rows(), log, strict=True))
            if int(row[8]) <= properties.major and f", row {number}\n" not in text
        ]
        assert not missed

    def test_taps_that_meet_padding_alone_choose_no_kernel(self) -> None:
        """Of a window of 9 x 31 on one row of the image, 1 x 31 are left."""
        code = (
            "import torch; x = torch.randn(3, 7, 1, 301, device='cuda'); "
            "torch.depthwise_conv2d_ext(x, x.new_ones(7, 1, 9, 31), None, 1, (4, 15), 1)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "DEPTHWISE_CONV2D_EXT_LOG": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.findall(r"ext: (\w+), row", done.stderr) == ["sequence"]

    def test_a_smaller_device_has_a_kernel_for_each_call(self) -> None:
        small = "capability=8,multiprocessors=68,shared=101376"
        done = run(DEPTHWISE_CONV2D_EXT_DEVICE=small)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]

    @pytest.mark.parametrize("kernels", ["march", "-march", "-boxes,-bands,-patches"])
    def test_calls_are_right_without_some_kernels(self, kernels: str) -> None:
        done = run(DEPTHWISE_CONV2D_EXT_KERNELS=kernels, DEPTHWISE_CONV2D_EXT_LOG="1")
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        taken = set(re.findall(r"ext: (\w+), row", done.stderr))
        forbidden = {name[1:] for name in kernels.split(",") if name.startswith("-")}
        assert not taken & forbidden if forbidden else taken == {kernels, "generic"}


if __name__ == "__main__":
    torch.manual_seed(0)
    for number, call in enumerate(CALLS):
        print(f"call {number}", file=sys.stderr, flush=True)
        make(call)
        torch.cuda.synchronize()
