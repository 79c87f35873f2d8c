"""Generated cases of every operator against wider references: no error above upstream's.

TORCHFORK_CASES says how many (tests/README.md); run with -s, the errors are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numerics_depthwise
import numerics_lltm
import numerics_pointwise
import pytest
import torch
from depthwise_cases import Case
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from numerics import CASES, SEED, Choose, Tally, seeded, values
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

Check = Callable[[Choose, str, Tally], None]
CHECKS: dict[str, Check] = {
    "gdh and gdh_copy": numerics_pointwise.check_gdh,
    "depthwise_conv2d_ext": numerics_depthwise.check,
    "sigmoid_ext": numerics_pointwise.check_sigmoid,
    "axpy_ext": numerics_pointwise.check_axpy,
    "lltm_cell": numerics_lltm.check,
}


@pytest.mark.parametrize("name", CHECKS)
def test_no_error_is_above_upstreams_in_a_seeded_sweep(name: str, device: str) -> None:
    """Each case alone, and all together in the mean square."""
    choose, tally = seeded(name), Tally()
    for number in range(CASES):
        noted: list[Any] = []
        try:
            CHECKS[name](noting(choose, noted), device, tally)
        except AssertionError as error:
            raise AssertionError(f"case {number}: {error}\nchosen: {noted}") from error
    print(f"\n{name} on {device}, {CASES} cases", *tally.lines(), sep="\n  ")
    tally.assert_not_above_upstream()


def noting(choose: Choose, noted: list[Any]) -> Choose:
    """The same choices, kept for the message of a failure."""

    def choice(options: Sequence[Any]) -> Any:
        noted.append(choose(options))
        return noted[-1]

    return choice


@pytest.mark.parametrize("name", CHECKS)
def test_no_generated_case_is_above_upstreams_error(name: str, device: str) -> None:
    """By hypothesis, which looks for other corners and shrinks what it finds."""

    @seed(SEED)
    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        CHECKS[name](lambda options: data.draw(st.sampled_from(options)), device, Tally())

    run()


# Gradients by differences, an element at a time: some hundred times as slow as a case above.
SMALL_CASES = max(5, CASES // 50)


def leaf(choose: Choose, shape: Sequence[int], device: str) -> Tensor:
    """Float64, to be differentiated by."""
    return values(choose, "normal", shape, torch.float64).to(device).requires_grad_()


def small_convolution(choose: Choose, device: str) -> tuple[Callable[..., Any], list[Tensor]]:
    """Sizes of one to four; kernels that hang over the image are padded."""
    size, kernel = (choose([3, 1, 2, 4]), choose([4, 2, 3])), (choose([2, 1, 3]), choose([1, 2]))
    case = Case(choose([1, 2]), choose([1, 2]), choose([1, 2]), size, kernel,
                choose([(1, 2), (2, 1), (3, 2)]), (0, 0), choose([(1, 2), (2, 1), (1, 1)]),
                choose([True, False]))  # fmt: skip
    case = numerics_depthwise.fitting(case)
    outputs = case.channels * case.multiplier
    tensors = [leaf(choose, (case.batch, case.channels, *size), device),
               leaf(choose, (outputs, 1, *kernel), device)]  # fmt: skip
    if case.bias:
        tensors.append(leaf(choose, (outputs,), device))

    def call(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return torch.depthwise_conv2d_ext(x, w, b, *case.window)

    return call, tensors


def small_cell(choose: Choose, device: str) -> tuple[Callable[..., Any], list[Tensor]]:
    """Up to two rows, features and hidden units."""
    b, f, s = choose([1, 2, 0]), choose([2, 1, 0]), choose([1, 2])
    shapes = [(b, f), (3 * s, f + s), (3 * s,), (b, s), (b, s)]
    return torch.lltm_cell, [leaf(choose, shape, device) for shape in shapes]


def small_pointwise(choose: Choose, device: str) -> tuple[Callable[..., Any], list[Tensor]]:
    """One of the three, broadcast and transposed."""
    shape = choose([(2, 3), (3,), (), (2, 1, 2)])
    kind = choose(["sigmoid", "axpy", "gdh"])
    if kind == "axpy":
        alpha = choose([2, -0.5])
        tensors = [leaf(choose, shape, device), leaf(choose, shape[-1:], device)]
        return lambda x, y: torch.axpy_ext(x, y, alpha=alpha), tensors
    function = torch.sigmoid_ext if kind == "sigmoid" else torch.gdh
    return lambda x: function(x.transpose(0, -1) if x.dim() else x), [leaf(choose, shape, device)]


@pytest.mark.parametrize("make", [small_convolution, small_cell, small_pointwise])
def test_derivatives_of_every_order_and_mode_by_differences(
    make: Callable[[Choose, str], tuple[Callable[..., Any], list[Tensor]]], device: str
) -> None:
    """Slow mode: each column of the Jacobian, reverse and forward, first and second order."""
    choose = seeded(make.__name__)
    for _ in range(SMALL_CASES):
        call, tensors = make(choose, device)
        assert gradcheck(call, tensors, check_forward_ad=True, nondet_tol=0.0)
        assert gradgradcheck(call, tensors, check_fwd_over_rev=True, nondet_tol=0.0)
