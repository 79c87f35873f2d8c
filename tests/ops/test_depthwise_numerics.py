"""depthwise_conv2d_ext computes what conv2d(groups=C) is defined to, for every layout and dtype."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from itertools import product

import pytest
import torch
from depthwise_cases import (
    CORNERS,
    DTYPES,
    FORMATS,
    Case,
    Inputs,
    assert_within,
    conv2d,
    generated,
    gradients,
    make_inputs,
)
from torch import Tensor
from torch._prims_common import suggest_memory_format

op = torch.depthwise_conv2d_ext
backward = torch.ops.aten.depthwise_conv2d_ext_backward
ALL = (True, True, True)
SWEEP = CORNERS + generated(36, seed=1)


def magnitudes(case: Case, inputs: Inputs, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients with every term's absolute value, for the error bound."""
    absolute = Inputs(inputs.input.abs(), inputs.weight.abs(), None)
    return gradients(case, absolute, grad_output.abs())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SWEEP, ids=str)
def test_forward_and_backward_match_the_float64_reference(
    case: Case, dtype: torch.dtype, device: str
) -> None:
    """Within the a-priori bound, in both memory formats, in the input's suggested format."""
    for memory_format in FORMATS:
        inputs = make_inputs(case, device=device, dtype=dtype, memory_format=memory_format)
        exact = inputs.cast(device="cpu", dtype=torch.float64)
        absolute = Inputs(*(None if t is None else t.abs() for t in exact))
        y = op(*inputs, *case.window)
        expected = conv2d(case, exact)
        taps = math.prod(case.kernel)
        assert_within(y, expected, conv2d(case, absolute), taps)
        given = suggest_memory_format(inputs.input)
        assert y.stride() == torch.empty_like(expected, memory_format=given).stride()

        grad = torch.randn_like(expected).to(device=device, dtype=dtype)
        grad = grad.contiguous(memory_format=memory_format)
        results = backward(grad, inputs.input, inputs.weight, *case.window, ALL)
        pixels = case.batch * math.prod(expected.shape[2:])
        terms = (taps * case.multiplier, pixels, pixels)
        references = gradients(case, inputs, grad), magnitudes(case, inputs, grad)
        for actual, reference, magnitude, count in zip(results, *references, terms, strict=True):
            assert_within(actual, reference, magnitude, count)
            assert actual.dtype == dtype
        assert results[0].stride() == torch.empty_like(inputs.input, memory_format=given).stride()


MASKED = [Case(2, 9, 1, (6, 5), (3, 2), stride=(2, 1), padding=(1, 1))] + [
    Case(2, 17, 1, size, (side, side), (stride, stride), (side // 2, side // 2))
    for size, side, stride in product([(15, 33), (14, 32), (14, 14), (7, 7)], [3, 5, 7], [1, 2])
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("case", MASKED, ids=str)
def test_each_output_mask_gives_just_those_gradients(
    case: Case, multiplier: int, dtype: torch.dtype, device: str
) -> None:
    """A gradient of few elements does not depend on which others are asked for."""
    case = dataclasses.replace(case, multiplier=multiplier)
    for memory_format in FORMATS:
        x, w, _ = make_inputs(case, device=device, dtype=dtype, memory_format=memory_format)
        grad = torch.randn_like(op(x, w, None, *case.window))
        every = backward(grad, x, w, *case.window, ALL)
        for mask in product((True, False), repeat=3):
            for actual, full, wanted in zip(
                backward(grad, x, w, *case.window, mask), every, mask, strict=True
            ):
                assert (actual is not None) == wanted
                assert not wanted or torch.equal(actual, full)


def strided_variants(x: Tensor) -> dict[str, Tensor]:
    """The same values behind strides that no kernel would choose."""
    return {
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "batch innermost": x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "sliced": torch.stack([x, -x], dim=-1)[..., 0],
        "offset": torch.cat([x[:1], x])[1:],
        "channels sliced": torch.cat([x, x], 1).contiguous(memory_format=torch.channels_last)[
            :, : x.shape[1]
        ],
    }


@pytest.mark.parametrize("variant", list(strided_variants(torch.ones(1, 1, 1, 1))))
@pytest.mark.parametrize("multiplier", [1, 3])
def test_strides_do_not_change_values(variant: str, multiplier: int, device: str) -> None:
    """Input, weight and gradient may have any strides."""
    case = Case(2, 3, multiplier, (5, 7), (3, 2), padding=(1, 1))
    x, w, b = make_inputs(case, device=device)
    y = op(x, w, b, *case.window)
    grad = torch.randn_like(y)
    expected = backward(grad, x, w, *case.window, ALL)
    odd_x, odd_w, odd_grad = (strided_variants(t)[variant] for t in (x, w, grad))
    assert torch.equal(odd_x, x)
    odd_b = torch.stack([b, b], 1)[:, 0]
    torch.testing.assert_close(op(odd_x, odd_w, odd_b, *case.window), y)
    actual = backward(odd_grad, odd_x, odd_w, *case.window, ALL)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_expanded_input_and_gradient(memory_format: torch.memory_format, device: str) -> None:
    """Stride 0, as sum().backward() and broadcast inputs bring it."""
    case = Case(3, 4, 1, (5, 6), (3, 3), padding=(1, 1))
    _, w, b = make_inputs(case, device=device)
    x = torch.randn(1, 4, 5, 1, device=device, dtype=torch.float64).expand(3, 4, 5, 6)
    torch.testing.assert_close(op(x, w, b, *case.window), conv2d(case, Inputs(x, w, b)))
    x = torch.randn(3, 4, 5, 6, device=device, dtype=torch.float64)
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    w, b = w.requires_grad_(), b.requires_grad_()
    actual = torch.autograd.grad(op(x, w, b, *case.window).sum(), (x, w, b))
    expected = torch.autograd.grad(conv2d(case, Inputs(x, w, b)).sum(), (x, w, b))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_unbatched_input_is_a_batch_of_one(memory_format: torch.memory_format, device: str) -> None:
    """[C, H, W] in, [C·m, OH, OW] out, gradients in the given ranks."""
    case = Case(1, 3, 2, (5, 7), (3, 2), stride=(2, 1), padding=(1, 0))
    x, w, b = make_inputs(case, device=device, memory_format=memory_format)
    y = op(x[0], w, b, *case.window)
    assert torch.equal(y, op(x, w, b, *case.window)[0])
    assert y.shape == torch.nn.functional.conv2d(x[0], w, b, *case.window, groups=3).shape
    grad = torch.randn_like(y)
    one = backward(grad, x[0], w, *case.window, ALL)
    batch = backward(grad[None], x, w, *case.window, ALL)
    # Without a batch the memory order may be another, and with it the order of sums.
    close = partial(torch.testing.assert_close, rtol=1e-13, atol=1e-13)
    close(one[0], batch[0][0])
    close(one[1], batch[1])
    close(one[2], batch[2])


def test_one_number_means_both_dimensions(device: str) -> None:
    """As conv2d takes stride=2 or stride=[2]."""
    x, w, b = make_inputs(Case(1, 2, 1, (9, 7), (3, 3)), device=device)
    expected = op(x, w, b, (2, 2), (1, 1), (2, 2))
    assert torch.equal(op(x, w, b, 2, 1, 2), expected)
    assert torch.equal(op(x, w, b, [2], [1], [2]), expected)
    assert torch.equal(op(x, w, bias=b, stride=2, padding=1, dilation=2), expected)
    assert torch.equal(op(x, w), op(x, w, None, 1, 0, 1))


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_error_is_not_larger_than_upstreams(
    kernel: int, dtype: torch.dtype, memory_format: torch.memory_format, device: str
) -> None:
    """Root-mean-square error against float64, forward and every gradient."""
    case = Case(8, 12, 1, (29, 30), (kernel, kernel), padding=(kernel // 2, kernel // 2))
    inputs = make_inputs(case, device=device, dtype=dtype, memory_format=memory_format)
    inputs = Inputs(*(t.abs() for t in inputs if t is not None))
    expected = conv2d(case, inputs.cast(device="cpu", dtype=torch.float64))
    grad = torch.rand_like(expected).to(device=device, dtype=dtype)
    grad = grad.contiguous(memory_format=memory_format)
    exact = (expected, *gradients(case, inputs, grad))
    x, w, _ = inputs
    ours = (op(*inputs, *case.window), *backward(grad, x, w, *case.window, ALL))
    sizes, zero = [w.shape[0]], [0, 0]
    theirs = (
        conv2d(case, inputs),
        *torch.ops.aten.convolution_backward(
            grad, x, w, sizes, *case.window, False, zero, case.channels, ALL
        ),
    )

    def error(actual: Tensor, reference: Tensor) -> float:
        return (actual.to(device="cpu", dtype=torch.float64) - reference).norm().item()

    for name, mine, other, reference in zip(
        ("output", "grad_input", "grad_weight", "grad_bias"), ours, theirs, exact, strict=True
    ):
        # One part in a hundred for luck where both round the same way.
        assert error(mine, reference) <= 1.01 * error(other, reference), name


def test_long_sums_do_not_saturate_in_16_bits(device: str) -> None:
    """A bfloat16 running sum of ones stops at 256."""
    x = torch.ones(4, 2, 40, 50, device=device, dtype=torch.bfloat16)
    w = torch.ones(2, 1, 1, 1, device=device, dtype=torch.bfloat16)
    for memory_format in FORMATS:
        grad = torch.ones_like(x).contiguous(memory_format=memory_format)
        _, dw, db = backward(
            grad, x.contiguous(memory_format=memory_format), w, (1, 1), (0, 0), (1, 1), ALL
        )
        assert dw.flatten().tolist() == [8000.0, 8000.0]
        assert db.tolist() == [8000.0, 8000.0]
