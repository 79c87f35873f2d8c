"""depthwise_conv2d_ext: generated cases, a reference of its own in NumPy, and what must hold."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from depthwise_cases import Case, Pair
from numerics import (
    FLOATS,
    LAYOUTS,
    Array,
    Choose,
    Tally,
    exact_array,
    laid_out,
    same_bits,
    threads,
    unit,
    values,
)
from torch import Tensor

op = torch.depthwise_conv2d_ext
backward = torch.ops.aten.depthwise_conv2d_ext_backward
ALL = (True, True, True)
# Around the tiles of the kernels (rows, vectors of 8, 16 and 32, channel blocks), primes between.
HEIGHTS = [5, 1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17, 23]
WIDTHS = [7, 1, 2, 3, 5, 8, 9, 13, 14, 15, 16, 17, 19, 29, 31, 32, 33, 47, 48, 49, 63, 64, 65]
CHANNELS = [3, 1, 2, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]
KERNELS = [3, 1, 2, 4, 5, 6, 7, 8, 9, 11]
OTHERS: dict[int, list[int]] = {n: [m for m in KERNELS if m != n] for n in KERNELS}
WORK = 40_000  # multiply-adds of a forward: a case takes some milliseconds


class Reach(NamedTuple):
    """Which outputs a tap contributes to, and the inputs that they read."""

    outputs: slice
    inputs: slice


def reach(size: int, outputs: int, offset: int, stride: int) -> Reach:
    """For a tap at `offset` from an output's first input; nothing of the padding."""
    first = max(0, -(offset // stride))
    last = min(outputs - 1, (size - 1 - offset) // stride)
    if last < first:
        return Reach(slice(0, 0), slice(0, 0))
    begin = first * stride + offset
    return Reach(slice(first, last + 1), slice(begin, last * stride + offset + 1, stride))


def output_size(case: Case) -> Pair:
    """Height and width of the output."""
    height, width = (
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, k, t, p, d in zip(
            case.size, case.kernel, case.stride, case.padding, case.dilation, strict=True
        )
    )
    return height, width


def taps(case: Case) -> list[tuple[int, int, Reach, Reach]]:
    """Each tap with its rows and columns, those wholly in the padding left out."""
    rows, columns = (
        [
            reach(
                case.size[d],
                output_size(case)[d],
                i * case.dilation[d] - case.padding[d],
                case.stride[d],
            )
            for i in range(case.kernel[d])
        ]
        for d in (0, 1)
    )
    return [
        (i, j, row, column)
        for (i, row), (j, column) in product(enumerate(rows), enumerate(columns))
        if row.outputs.stop and column.outputs.stop
    ]


class Results(NamedTuple):
    """Output and gradients."""

    output: Array
    grad_input: Array
    grad_weight: Array
    grad_bias: Array


def reference(case: Case, x: Array, w: Array, b: Array | None, grad: Array) -> Results:
    """The sum over the taps inside the image: what is in the padding is no term."""
    channels, multiplier = case.channels, case.multiplier
    height, width = output_size(case)
    shape = (case.batch, channels, multiplier, height, width)
    y = np.zeros(shape, x.dtype)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    w5, dw5 = (t.reshape(channels, multiplier, *case.kernel) for t in (w, dw))
    dy = grad.reshape(shape)
    for i, j, row, column in taps(case):
        outputs = (..., row.outputs, column.outputs)
        inputs = (..., row.inputs, column.inputs)
        weight = w5[None, :, :, i, j, None, None]
        image, part = x[inputs][:, :, None], dy[outputs]
        y[outputs] += image * weight
        dx[inputs] += (part * weight).sum(2)
        dw5[:, :, i, j] += (part * image).sum((0, 3, 4))
    if b is not None:
        y += b.reshape(channels, multiplier, 1, 1)
    return Results(y.reshape(grad.shape), dx, dw, grad.sum((0, 2, 3)))


def choose_case(choose: Choose) -> Case:
    """Windows as models have them, or height and width different in everything."""
    height = choose(HEIGHTS)
    width = choose([n for n in WIDTHS if n != height])
    channels, multiplier = choose(CHANNELS), choose([1, 1, 1, 2, 3])
    kernel: Pair
    if choose([True, False]):
        side, step = choose([3, 5, 7]), choose([1, 2])
        spread = choose([1, 1, 2])
        kernel, stride, dilation = (side, side), (step, step), (spread, spread)
        padding = choose([(side // 2 * spread,) * 2, (0, 0), (side, 1)])
    else:
        side = choose(KERNELS)
        kernel = (side, choose(OTHERS[side]))
        stride = choose([(1, 2), (2, 1), (3, 1), (1, 5), (2, 3), (9, 7)])
        dilation = choose([(1, 2), (2, 1), (1, 1), (3, 2), (2, 5)])
        padding = choose([(0, 1), (1, 0), (2, 1), (3, 4), (7, 5), (12, 13)])
    batch = choose([1, 2, 3, 5])
    rare = choose(range(40))
    if rare == 0:
        batch = 0
    elif rare == 1:
        height = 0
    case = Case(batch, channels, multiplier, (height, width), kernel, stride, padding, dilation,
                bias=choose([True, False]))  # fmt: skip
    return affordable(fitting(case))


def fitting(case: Case) -> Case:
    """With as much padding as the kernel needs to fit."""
    padding = tuple(
        max(p, (d * (k - 1) + 1 - s + 1) // 2)
        for s, k, p, d in zip(case.size, case.kernel, case.padding, case.dilation, strict=True)
    )
    return Case(case.batch, case.channels, case.multiplier, case.size, case.kernel, case.stride,
                (padding[0], padding[1]), case.dilation, case.bias)  # fmt: skip


def affordable(case: Case) -> Case:
    """With fewer images, then fewer channels, until it is small enough."""
    height, width = output_size(case)
    each = height * width * case.kernel[0] * case.kernel[1] * case.multiplier
    channels = min(case.channels, max(1, WORK // max(each, 1)))
    batch = min(case.batch, max(1, WORK // max(each * channels, 1)))
    return Case(batch, channels, case.multiplier, case.size, case.kernel, case.stride,
                case.padding, case.dilation, case.bias)  # fmt: skip


class Operands(NamedTuple):
    """The tensors of a forward and a backward."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    grad: Tensor


def choose_operands(choose: Choose, case: Case, dtype: torch.dtype, kind: str) -> Operands:
    """Of any strides; the gradient also as sum().backward() brings it."""
    outputs = case.channels * case.multiplier
    x = values(choose, kind, (case.batch, case.channels, *case.size), dtype)
    w = values(choose, kind, (outputs, 1, *case.kernel), dtype)
    b = values(choose, kind, (outputs,), dtype) if case.bias else None
    if choose(range(6)) == 0:
        grad = values(choose, kind, (outputs, 1, 1), dtype)
        grad = grad.expand(case.batch, outputs, *output_size(case))
    else:
        grad = values(choose, kind, (case.batch, outputs, *output_size(case)), dtype)
        grad = in_some_format(choose, grad)
    return Operands(in_some_format(choose, x), laid_out(w, choose(LAYOUTS)), b, grad)


def in_some_format(choose: Choose, tensor: Tensor) -> Tensor:
    """Mostly one of the two memory formats."""
    layout = choose(["channels last", "contiguous", "channels last", "contiguous", *LAYOUTS])
    if layout == "channels last":
        return tensor.contiguous(memory_format=torch.channels_last)
    return laid_out(tensor, layout)


def ours(case: Case, t: Operands, mask: tuple[bool, ...] = ALL) -> list[Tensor | None]:
    """The output and the gradients that the mask asks for."""
    y = op(t.input, t.weight, t.bias, *case.window)
    return [y, *backward(t.grad, t.input, t.weight, *case.window, mask)]


def of_padding_alone(case: Case, dimension: int) -> bool:
    """Whether a row or a column of the output has no tap inside the image."""
    outputs = output_size(case)[dimension]
    seen: set[int] = set()
    for i in range(case.kernel[dimension]):
        offset = i * case.dilation[dimension] - case.padding[dimension]
        found = reach(case.size[dimension], outputs, offset, case.stride[dimension]).outputs
        seen.update(range(found.start, found.stop))
    return len(seen) < outputs


def upstream_ends_the_process(case: Case, dtype: torch.dtype) -> bool:
    """Whether an output is of padding alone, in 16 bits.

    torch 2.13.0's convolution reads address 0 on the CPU for some of these: float16, image 7x1,
    kernel 9x1, stride 2x3, padding 9x5, dilation 3x2; bfloat16, image 1x33, kernel 2x3, stride 3x1,
    padding 2x0, dilation 3x2, where the taps step over the image.
    """
    return dtype in (torch.float16, torch.bfloat16) and any(
        of_padding_alone(case, dimension) for dimension in (0, 1)
    )


def theirs(case: Case, t: Operands) -> list[Tensor] | list[None]:
    """The same by upstream's convolution; it refuses images without rows."""
    if 0 in case.size or upstream_ends_the_process(case, t.input.dtype):
        return [None] * 4
    x, w = t.input, t.weight
    y = torch.conv2d(x, w, t.bias, *case.window, groups=case.channels)
    rest = torch.ops.aten.convolution_backward(
        t.grad, x, w, [w.shape[0]], *case.window, False, [0, 0], case.channels, ALL
    )
    return [y, *rest]


def check(choose: Choose, device: str, tally: Tally) -> None:
    """One case: error, exact integers, masks, run to run, threads."""
    case = choose_case(choose)
    dtype = choose(FLOATS)
    kind = choose(["normal", "positive", "integers"])
    here = choose_operands(choose, case, dtype, kind)
    operands = Operands(*(t if t is None else on_device(t, device) for t in here))
    with threads(1):
        mine, other = ours(case, operands), theirs(case, operands)
    check_values(case, here, mine, other, kind, tally)
    mask = choose(list(product((True, False), repeat=3)))
    with threads(choose([2, 3, 5])):
        again = ours(case, operands, mask)
    wanted = [mine[0], *(t if keep else None for t, keep in zip(mine[1:], mask, strict=True))]
    assert same_bits(again, wanted), "other bits with other threads or another mask"


def on_device(tensor: Tensor, device: str) -> Tensor:
    """With the strides that it has, expanded ones included."""
    if device == tensor.device.type:
        return tensor
    storage = torch.tensor([], dtype=tensor.dtype, device=device)
    storage.set_(tensor.untyped_storage().to(device=device))
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def check_values(
    case: Case,
    t: Operands,
    mine: list[Tensor | None],
    other: list[Tensor] | list[None],
    kind: str,
    tally: Tally,
) -> None:
    """Integers are exact; else no error above upstream's and a unit."""
    arrays: list[Any] = [
        None if v is None else exact_array(v) for v in (t.input, t.weight, t.bias, t.grad)
    ]
    exact = reference(case, *arrays)
    if kind == "integers":
        for name, result, value in zip(Results._fields, mine, exact, strict=True):
            rounded = torch.from_numpy(value.astype(np.float64)).to(t.input.dtype)
            assert torch.equal(result.cpu(), rounded), f"{name}: integers are not exact"
        return
    absolute_values: list[Any] = [None if a is None else np.abs(a) for a in arrays]
    magnitude = reference(case, *absolute_values)
    taps, pixels = math.prod(case.kernel), case.batch * math.prod(output_size(case))
    terms = (taps, taps * case.multiplier, pixels, pixels)
    for name, result, upstream, value, absolute, count in zip(
        Results._fields, mine, other, exact, magnitude, terms, strict=True
    ):
        units = unit(t.input.dtype, value, absolute)
        tally.compare(name, result, upstream, value, units, count)
