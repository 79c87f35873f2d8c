"""What the seeded sweeps share: budget, choices, units, tallies.

Errors are counted in units of rounding. A unit is half a last place of the result, plus half a last
place, in the type that sums are kept in, of the sum of the terms' absolute values: what one
correctly rounded operation at each of the two places may cost.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]  # one of a sequence's elements
Array = np.ndarray[Any, Any]

# Cases of each sweep. The default takes seconds; 20,000 is the full
# count.
CASES = int(os.environ.get("TORCHFORK_CASES", "150"))
SEED = int(os.environ.get("TORCHFORK_SEED", "1"))
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# Two implementations that round each product alike differ by luck: this much in the mean over a
# sweep, and more where the sweep is short.
LUCK = 1.02 if CASES >= 2000 else 1.5
# Units above which upstream's result is wrong rather than rounded, and no measure of ours. The
# convolution of torch 2.13.0 returns, now and then, what was in memory: bfloat16 on the CPU, image
# 23x8, kernel 9x3, stride 2x3, padding 2x2, dilation 2x5, 9 channels, multiplier 2, transposed.
NO_ROUNDING = 1e4


def seeded(name: str) -> Choose:
    """Choices of a sweep, the same in each run; another TORCHFORK_SEED gives others."""
    return random.Random(f"{name} {SEED}").choice


def exact_array(tensor: Tensor) -> Array:
    """The values in the type that references compute in: wider than any dtype under test."""
    values = tensor.detach().cpu()
    if values.dtype == torch.complex64:
        return values.to(torch.complex128).numpy()
    if values.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return values.double().numpy()
    if values.dtype == torch.float64:
        return values.numpy().astype(np.longdouble)
    if values.dtype == torch.complex128:
        return values.numpy().astype(np.clongdouble)
    return values.numpy()


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """What sums of a dtype are kept in: float32 for 16 bits."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def unit(dtype: torch.dtype, exact: Array, magnitude: Array) -> Array:
    """One unit of rounding for each element."""
    own, wide = torch.finfo(dtype), torch.finfo(arithmetic(dtype))
    smallest = own.smallest_normal * own.eps
    return own.eps / 2 * np.abs(exact) + wide.eps / 2 * magnitude + smallest


@dataclass
class Errors:
    """Squared errors of one kind of result, in units, of ours and of upstream's."""

    ours: float = 0.0
    theirs: float = 0.0
    elements: int = 0
    worst: float = 0.0
    larger: int = 0  # cases whose largest error is above upstream's
    cases: int = 0


@dataclass
class Tally:
    """The errors of many cases by kind of result and dtype."""

    errors: dict[tuple[str, torch.dtype], Errors] = field(
        default_factory=lambda: defaultdict(Errors)
    )

    def compare(
        self,
        what: str,
        ours: Tensor,
        theirs: Tensor | None,
        exact: Array,
        units: Array,
        terms: int,
    ) -> None:
        """Note one result; fail where its error is above upstream's and above luck too.

        theirs: upstream's result on the same input, None where upstream refuses it; then, as where
            it is wrong, luck alone says how large our error may be.
        terms: how many roundings there are one after the other. As often up as down, they add up
            to the square root of their number: that much no correct computation is sure to beat.
        """
        assert ours.shape == exact.shape
        if not exact.size:
            return
        mine = np.abs(exact_array(ours) - exact) / units
        other = mine if theirs is None else np.abs(exact_array(theirs) - exact) / units
        largest, allowed = float(mine.max()), float(other.max())
        if theirs is None or not allowed < NO_ROUNDING:
            other, allowed = mine, 0.0
        noted = self.errors[what, ours.dtype]
        noted.ours += float(np.square(mine).sum())
        noted.theirs += float(np.square(other).sum())
        noted.elements += mine.size
        noted.worst = max(noted.worst, largest)
        noted.larger += largest > allowed
        noted.cases += 1
        assert np.isfinite(largest), f"{what}: not finite"
        assert largest <= max(allowed, 1 + terms**0.5), (
            f"{what} of {terms} terms: largest error {largest:.3f} units, upstream's {allowed:.3f}"
        )

    def assert_not_above_upstream(self) -> None:
        """In the mean square over all cases, for each kind of result and dtype."""
        worse = [
            line
            for line, e in zip(self.lines(), self.errors.values(), strict=True)
            if e.ours > LUCK**2 * e.theirs
        ]
        assert not worse, "\n".join(worse)

    def lines(self) -> Iterator[str]:
        """One a kind of result: root mean squares in units, the largest, how many cases."""
        for (what, dtype), e in self.errors.items():
            mine, other = ((s / e.elements) ** 0.5 for s in (e.ours, e.theirs))
            yield (
                f"{what} {str(dtype).removeprefix('torch.')}: {mine:.4f} units, upstream "
                f"{other:.4f}, largest {e.worst:.2f}, {e.larger} of {e.cases} cases above upstream"
            )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch.set_num_threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


LAYOUTS = ["contiguous", "transposed", "permuted", "sliced", "offset"]


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values behind other strides."""
    if tensor.dim() < 2 and layout in ("transposed", "permuted"):
        layout = "sliced"
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    if layout == "permuted":
        order = tuple(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    if layout == "sliced":
        return torch.stack([tensor, tensor], -1)[..., 0]
    if layout == "offset":
        flat = torch.cat([tensor.reshape(-1)[:1], tensor.reshape(-1)])
        return flat[flat.numel() - tensor.numel() :].view(tensor.shape)
    return tensor


def values(choose: Choose, kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """CPU tensor of a seed that is chosen: 'normal', 'positive' or 'integers' (-3 … 3)."""
    generator = torch.Generator().manual_seed(choose(range(2**31)))
    if kind == "integers":
        return torch.randint(-3, 4, tuple(shape), generator=generator).to(dtype)
    drawn = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    return (drawn.abs() if kind == "positive" else drawn).to(dtype)


def same_bits(mine: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    """Equal bit for bit, absent where the other is."""
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(mine, other, strict=True)
    )
