"""NaN and infinity at every position of every operand reach what they belong to, and no more."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from depthwise_cases import FORMATS, Case, make_inputs
from numerics import FLOATS, Array, exact_array
from numerics_depthwise import Operands, ours, output_size
from numerics_depthwise import reference as depthwise_reference
from numerics_lltm import gradients
from numerics_lltm import op as lltm_cell
from numerics_lltm import reference as lltm_reference
from torch import Tensor

VALUES = [math.nan, math.inf, -math.inf]
# Fewer and more columns than a vector, borders on every side, strides, gaps, several filters.
CASES = [
    Case(1, 2, 1, (3, 4), (3, 3), padding=(1, 1)),
    Case(2, 1, 1, (2, 19), (3, 5), padding=(1, 2)),
    Case(1, 2, 2, (5, 3), (2, 3), stride=(2, 1), padding=(1, 2)),
    Case(1, 17, 1, (2, 3), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(1, 2, 1, (3, 5), (2, 3), padding=(3, 4), dilation=(2, 3)),
    Case(1, 1, 1, (4, 3), (7, 5), padding=(3, 2)),
    Case(1, 1, 1, (7, 7), (5, 5), padding=(2, 2)),  # the CPU's planes of 7 x 7
    Case(1, 4, 1, (1, 19), (1, 4), padding=(0, 3)),  # sequences: all gradients at once, and apart
    Case(1, 4, 1, (2, 9), (1, 10), padding=(0, 5)),
    Case(1, 4, 1, (11, 1), (3, 1), padding=(2, 0), dilation=(2, 1)),
]


def classes(values: Array) -> Array:
    """0 for a finite number, else NaN, plus or minus infinity."""
    return np.where(np.isnan(values), 2.0, np.where(np.isinf(values), np.sign(values), 0.0))


def assert_same_classes(actual: Tensor, expected: Array, where: object) -> None:
    """NaN where NaN is expected, and each infinity where it is."""
    found = classes(exact_array(actual).astype(np.float64))
    assert np.array_equal(found, classes(expected.astype(np.float64))), where


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_depthwise_conv2d_ext(
    case: Case, memory_format: torch.memory_format, value: float, device: str
) -> None:
    """Input, weight, bias and gradient, each element in turn; the dtypes take turns too."""
    inputs = make_inputs(case, device=device, memory_format=memory_format)
    grad = torch.randn(case.batch, case.channels * case.multiplier, *output_size(case))
    grad = grad.to(inputs.input).contiguous(memory_format=memory_format)
    of_dtype = [Operands(*(t.to(d) for t in (*inputs, grad))) for d in FLOATS]
    turn = 0
    for field in Operands._fields:
        for position in np.ndindex(*getattr(of_dtype[0], field).shape):
            turn += 1
            given = of_dtype[turn % len(FLOATS)]
            spoilt = getattr(given, field)
            kept = spoilt[position].clone()
            spoilt[position] = value
            with np.errstate(invalid="ignore"):
                expected = depthwise_reference(case, *map(exact_array, given))
            for result, reference in zip(ours(case, given), expected, strict=True):
                assert_same_classes(result, reference, (field, position, given.input.dtype))
            spoilt[position] = kept


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sigmoid_ext_and_axpy_ext(dtype: torch.dtype, value: float, device: str) -> None:
    """Each lane by itself, in whole vectors and in what is left of them."""
    count = 75
    x, y = torch.randn(2, count, device=device).to(dtype)
    ends = {math.inf: 1.0, -math.inf: 0.0}
    for position in range(count):
        a = x.clone()
        a[position] = value
        for strided in (a, torch.stack([a, a], 1)[:, 0]):
            s = torch.sigmoid_ext(strided)
            expected = torch.sigmoid_ext(x)
            expected[position] = ends.get(value, math.nan)
            assert torch.equal(s.nan_to_num(-1), expected.nan_to_num(-1)), position
            backward = torch.ops.aten.sigmoid_ext_backward(strided, expected)
            assert backward.isnan().nonzero().flatten().tolist() == (
                [position] if math.isnan(value) or value in ends else []
            )
            for sums in (torch.axpy_ext(strided, y), torch.axpy_ext(y, strided)):
                assert not sums[position].isfinite()
                assert int(sums.isfinite().sum()) == count - 1


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_lltm_cell(dtype: torch.dtype, value: float, device: str) -> None:
    """Each element of each argument and of both gradients: NaN where the reference has NaN."""
    batch, features, state = 2, 3, 5
    shapes = [(batch, features), (3 * state, features + state), (3 * state,), (batch, state),
              (batch, state), (batch, state), (batch, state)]  # fmt: skip
    # small: at the end of an activation 1 - tanh² is 0 in one type and not in another
    tensors = [(torch.randn(s, device=device) / 4).to(dtype) for s in shapes]
    for spoilt in tensors:
        for position in np.ndindex(*spoilt.shape):
            kept = spoilt[position].clone()
            spoilt[position] = value
            mine = gradients(lltm_cell, tensors[:5], tensors[5:])
            arrays = list(map(exact_array, tensors))
            with np.errstate(invalid="ignore", over="ignore"):
                expected, _ = lltm_reference(arrays[:5], arrays[5:])
            for result, reference in zip(mine, expected, strict=True):
                assert np.array_equal(
                    np.isnan(exact_array(result).astype(np.float64)),
                    np.isnan(reference.astype(np.float64)),
                ), position
            spoilt[position] = kept


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gdh_keeps_every_bit_of_a_nan(dtype: torch.dtype, device: str) -> None:
    """Its sign and its payload."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    info = torch.iinfo(integer)
    bits = torch.randint(info.min, info.max, (40, 50), dtype=torch.int64).to(integer)
    bits[::3] |= torch.tensor([math.nan], dtype=dtype).view(integer)
    x = bits.to(device).view(dtype)
    for actual in (torch.gdh(x.mT), torch.gdh_copy(x.mT)):
        assert torch.equal(actual.view(integer), x.view(integer).mT.reshape(-1))
