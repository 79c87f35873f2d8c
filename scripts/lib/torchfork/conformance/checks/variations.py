"""The same call with other memory layouts, and with other sizes that the operator accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .operators import Operator
from .programs import tensors_of
from .samples import Sample, invoke

Layout = Callable[[Any], Any]


def transposed(tensor: Any) -> Any:
    """Dimensions in reverse order in memory."""
    if tensor.dim() < 2:
        return strided(tensor)
    order = list(range(tensor.dim()))[::-1]
    return tensor.detach().permute(order).contiguous().permute(order)


def strided(tensor: Any) -> Any:
    """Every second element of a larger tensor, from the second on."""
    if tensor.dim() == 0:
        return offset(tensor)
    shape = [*tensor.shape[:-1], 2 * tensor.shape[-1] + 1]
    larger = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    view = larger[..., 1::2]
    view.copy_(tensor.detach())
    return view


def offset(tensor: Any) -> Any:
    """Contiguous, but not at the beginning of its storage, nor aligned."""
    larger = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype, device=tensor.device)
    view = larger[3:].view(tensor.shape)
    view.copy_(tensor.detach())
    return view


def expanded(tensor: Any) -> Any:
    """One row, all others being the same memory (the values are other ones)."""
    if tensor.dim() == 0 or not tensor.shape[0]:
        return tensor.detach()
    return tensor.detach()[:1].contiguous().expand(tensor.shape)


def channels_last(tensor: Any) -> Any:
    """Channels last where there are four dimensions."""
    if tensor.dim() != 4:
        return tensor.detach()
    return tensor.detach().clone(memory_format=torch.channels_last)


LAYOUTS: dict[str, Layout] = {
    "transposed": transposed, "strided": strided, "offset": offset, "expanded": expanded,
}  # fmt: skip


def plain(tensor: Any) -> Any:
    """The same values, contiguous, in memory of their own."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def kept(laid: Any, original: Any) -> Any:
    """A laid out tensor as a leaf with the original's requires_grad."""
    return laid.detach().requires_grad_(original.requires_grad)


Place = tuple[int, int]  # the tensor, the dimension


def variations(op: Operator, sample: Sample, steps: tuple[int, ...] = (3, 5)) -> list[Sample]:
    """Calls with one size larger, in one tensor or wherever the same number stands."""
    found = []
    ones = _ones(op, sample)
    for step in steps:
        for places in _choices(sample):
            changed = _resized(sample, places, step)
            # A size of one is another graph: it broadcasts.
            if accepted(op, changed) and _ones(op, changed) == ones:
                found.append(changed)
    return found


def _ones(op: Operator, sample: Sample) -> list[list[int]]:
    """The dimensions of size 0 and 1 of each result."""
    results = tensors_of(invoke(op, sample))
    return [[d for d, size in enumerate(t.shape) if size < 2] for t in results]


def without_elements(op: Operator, sample: Sample) -> Iterator[tuple[Sample, bool]]:
    """Calls with one size zero, and whether the operator takes them."""
    for places in _choices(sample):
        changed = _resized(sample, places, None)
        yield changed, accepted(op, changed)


def _choices(sample: Sample) -> list[list[Place]]:
    """Each dimension by itself, then the dimensions that have one size in common."""
    shapes = [tuple(tensor.shape) for tensor in sample.tensors()]
    single = [[(k, d)] for k, shape in enumerate(shapes) for d, n in enumerate(shape) if n > 1]
    by_size: dict[int, list[Place]] = {}
    for ((k, d),) in single:
        by_size.setdefault(shapes[k][d], []).append((k, d))
    shared = [places for places in by_size.values() if len(places) > 1]
    # Those of one number in every pair of tensors: a filter's size may be that of a channel.
    pairs = [
        [a, b] for places in shared if len(places) > 2
        for i, a in enumerate(places) for b in places[i + 1 :] if a[0] != b[0]
    ]  # fmt: skip
    return single + shared + pairs


def _resized(sample: Sample, places: list[Place], step: int | None) -> Sample:
    """The call with some sizes changed: by a step, or to zero; lists of sizes follow."""
    tensors = sample.tensors()
    shapes = [list(tensor.shape) for tensor in tensors]
    olds = {k: list(shape) for k, shape in enumerate(shapes)}
    for k, d in places:
        shapes[k][d] = 0 if step is None else shapes[k][d] + step
    made = [_like(t, shape) if shape != list(t.shape) else t
            for t, shape in zip(tensors, shapes, strict=True)]  # fmt: skip
    return _with_lists(sample.with_tensors(made), olds, shapes, {k for k, _ in places})


def _with_lists(
    sample: Sample, olds: dict[int, list[int]], shapes: list[list[int]], changed: set[int]
) -> Sample:
    """A list of numbers that was a changed tensor's shape, in rank and all but size, follows it."""
    args = list(sample.args)
    for place, value in enumerate(args):
        if isinstance(value, list) and value and all(type(v) is int for v in value):
            for k in changed:
                if value == olds[k]:
                    args[place] = list(shapes[k])
    return Sample(tuple(args), sample.kwargs)


def _like(tensor: Any, shape: list[int]) -> Any:
    """A tensor of another shape with values of the same range."""
    count = math.prod(shape)
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    values = flat.repeat(count // flat.numel() + 1)[:count].reshape(shape)
    return values.contiguous().requires_grad_(tensor.requires_grad)


def accepted(op: Operator, sample: Sample) -> bool:
    """Whether a call ends without one of the errors by which an operator refuses arguments."""
    try:
        invoke(op, sample)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return False
    return True
