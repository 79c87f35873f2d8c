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
from numerics import CASES, Choose, Tally, seeded

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
