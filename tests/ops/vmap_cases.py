"""What the vmap tests share: a loop to compare with, and every way to batch some arguments."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Dims = tuple[int | None, ...]
Results = tuple[Tensor | None, ...]


def every_in_dims(ranks: Sequence[int], limit: int | None = None, seed: int = 0) -> Iterator[Dims]:
    """Each combination of batch dimensions for tensors of these logical ranks, not all None.

    None, the first, the second and the last; `limit` of them, chosen at random, if there are more.
    """
    choices = [list(dict.fromkeys([None, 0, *([1] if r else []), -1])) for r in ranks]
    combinations = [c for c in itertools.product(*choices) if any(d is not None for d in c)]
    if limit is not None and len(combinations) > limit:
        combinations = random.Random(seed).sample(combinations, limit)
    yield from combinations


def batched(tensors: Sequence[Tensor], dims: Dims, batch: int) -> list[Tensor]:
    """Tensors of the same sizes with a batch dimension where dims says so, and other values."""
    made = []
    for tensor, dim in zip(tensors, dims, strict=True):
        if dim is None:
            made.append(tensor)
            continue
        stacked = torch.stack([tensor, *(tensor.flip(0) * -(k + 1) if tensor.dim() else tensor + k
                                         for k in range(1, batch))])[:batch]  # fmt: skip
        made.append(stacked.movedim(0, dim))
    return made


def as_tuple(results: Tensor | Sequence[Tensor | None]) -> Results:
    """One result or several alike."""
    return (results,) if isinstance(results, Tensor) else tuple(results)


def looped(function: Callable[..., Any], tensors: Sequence[Tensor], dims: Dims) -> Results:
    """What vmap means: the function of each element of the batch, stacked."""
    sizes = {t.shape[d] for t, d in zip(tensors, dims, strict=True) if d is not None}
    (batch,) = sizes
    each = []
    for k in range(batch):
        own = [t if d is None else t.select(d, k) for t, d in zip(tensors, dims, strict=True)]
        each.append(as_tuple(function(*own)))
    return tuple(
        None if column[0] is None else torch.stack(column) for column in zip(*each, strict=True)
    )


def assert_vmap_is_the_loop(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    dims: Dims,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Values, dtypes and shapes. Results that are None in the loop are left out of vmap's too."""
    expected = looped(function, tensors, dims)
    kept = [k for k, result in enumerate(expected) if result is not None]

    def chosen(*args: Tensor) -> tuple[Tensor, ...]:
        results = as_tuple(function(*args))
        assert [k for k, result in enumerate(results) if result is not None] == kept
        return tuple(results[k] for k in kept)

    actual = torch.vmap(chosen, in_dims=dims)(*tensors)
    for mine, k in zip(actual, kept, strict=True):
        assert mine is not None
        try:
            torch.testing.assert_close(mine, expected[k], rtol=rtol, atol=atol)
        except AssertionError as difference:
            raise AssertionError(f"result {k} of in_dims {dims}: {difference}") from difference


def cell_inputs(sizes: tuple[int, int, int], device: str, dtype: torch.dtype) -> list[Tensor]:
    """Input, weight, bias, old_h, old_cell of a cell with batch, features and state of sizes."""
    batch, features, state = sizes
    shapes = ((batch, features), (3 * state, features + state), (3 * state,), (batch, state))
    return [torch.randn(s, device=device, dtype=dtype) for s in (*shapes, shapes[-1])]
