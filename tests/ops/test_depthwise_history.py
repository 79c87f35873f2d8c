"""What went wrong in upstream's convolutions once must not go wrong in depthwise_conv2d_ext.

Numbers are those of pytorch/pytorch's issues.
"""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from depthwise_cases import FORMATS, Case, Inputs, conv2d, gradients, make_inputs
from torch import Tensor

op = torch.depthwise_conv2d_ext
backward = torch.ops.aten.depthwise_conv2d_ext_backward
ALL = (True, True, True)
LARGE = os.environ.get("TORCHFORK_LARGE") == "1"
INT64_SCALE = [2**31, 2**32 - 1, 2**33 + 1, 2**62, 2**63 - 1]


def test_bias_gradient_of_bfloat16_does_not_saturate(device: str) -> None:
    """#68048: 1600 ones added in bfloat16 gave 256."""
    x = torch.randn(1, 2, 80, 80, device=device, dtype=torch.bfloat16)
    w = torch.randn(2, 1, 3, 3, device=device, dtype=torch.bfloat16)
    b = torch.zeros(2, device=device, dtype=torch.bfloat16, requires_grad=True)
    op(x, w, b, stride=2, padding=1).sum().backward()
    assert b.grad.tolist() == [1600.0, 1600.0]


@pytest.mark.parametrize("name", ["stride", "dilation"])
@pytest.mark.parametrize("where", ["here", "meta"])
def test_zero_is_refused_and_divides_nothing(name: str, where: str, device: str) -> None:
    """#27598: stride 0 ended the process with a division by zero."""
    place = device if where == "here" else "meta"
    x, w = torch.randn(1, 2, 5, 6, device=place), torch.randn(2, 1, 3, 3, device=place)
    for value in (0, (0, 1), (1, 0)):
        with pytest.raises(RuntimeError, match=rf"expected {name} to be positive.*0"):
            op(x, w, **{name: value})
        window = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
        window[name] = (value, value) if isinstance(value, int) else value
        with pytest.raises(RuntimeError, match=rf"_backward\(\): expected {name} to be positive"):
            backward(x, x, w, *window.values(), ALL)


@pytest.mark.parametrize("value", INT64_SCALE)
@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("where", ["here", "meta"])
def test_parameters_of_int64_scale_are_refused(
    name: str, value: int, where: str, device: str
) -> None:
    """#188959: indices computed from them overflowed and read outside of the tensor."""
    place = device if where == "here" else "meta"
    x, w = torch.randn(1, 2, 5, 6, device=place), torch.randn(2, 1, 1, 1, device=place)
    for pair in ((value, 1), (1, value)):
        with pytest.raises(
            RuntimeError, match=rf"expected {name} \w+ below 2\^31, but got {value}"
        ):
            op(x, w, **{name: pair})


def test_the_largest_stride_and_dilation_are_taken(device: str) -> None:
    """Below the limit nothing overflows: one output, or one tap beside the padding."""
    x, w = torch.randn(1, 2, 5, 6, device=device), torch.randn(2, 1, 1, 1, device=device)
    assert torch.equal(op(x, w, stride=2**31 - 1), (x * w.view(1, 2, 1, 1))[..., :1, :1])
    assert torch.equal(op(x, w, dilation=2**31 - 1), x * w.view(1, 2, 1, 1))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("size", [(5, 7), (1, 7), (5, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_ambiguous_layouts(
    batch: int, size: tuple[int, int], channels_last: bool, device: str
) -> None:
    """One channel, or one pixel, is of both memory formats: strides say neither."""
    case = Case(batch, 1, 1, size, (3, 3), padding=(1, 1))
    inputs = make_inputs(case, device=device)
    if channels_last:
        x = torch.empty_strided(
            inputs.input.shape, (size[0] * size[1], 1, size[1], 1), dtype=torch.float64
        ).to(device)
        inputs = inputs._replace(input=x.copy_(inputs.input))
    grad = torch.randn_like(op(*inputs, *case.window))
    torch.testing.assert_close(op(*inputs, *case.window), conv2d(case, inputs))
    mine = backward(grad, inputs.input, inputs.weight, *case.window, ALL)
    for actual, expected in zip(mine, gradients(case, inputs, grad), strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_weight_of_any_strides(memory_format: torch.memory_format, device: str) -> None:
    """Transposed, flipped and cut out of a larger one; its gradient is dense."""
    case = Case(2, 3, 2, (6, 7), (3, 3), padding=(1, 1))
    inputs = make_inputs(case, device=device, memory_format=memory_format)
    plain = inputs.weight
    larger = torch.nn.functional.pad(plain, (1, 2, 3, 1, 0, 1))
    variants: list[Tensor] = [
        plain.mT.contiguous().mT,
        plain.contiguous(memory_format=torch.channels_last),
        larger[:, :1, 3:6, 1:4],
        plain[:1].expand(6, 1, 3, 3),
    ]
    for w in variants:
        given = Inputs(inputs.input, w, inputs.bias)
        torch.testing.assert_close(op(*given, *case.window), conv2d(case, given))
        grad = torch.randn_like(op(*given, *case.window))
        for actual, expected in zip(
            backward(grad, given.input, w, *case.window, ALL),
            gradients(case, given, grad),
            strict=True,
        ):
            torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("count", [0, 3, 4])
def test_lists_of_another_length_are_refused(name: str, count: int, device: str) -> None:
    """Three numbers were read as two by some backends, and an empty list as none."""
    x, w = torch.randn(1, 2, 5, 6, device=device), torch.randn(2, 1, 3, 3, device=device)
    with pytest.raises((RuntimeError, TypeError), match=r"depthwise_conv2d_ext\(\)") as caught:
        op(x, w, **{name: [1] * count})
    assert name in str(caught.value)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_an_empty_batch_has_gradients(memory_format: torch.memory_format, device: str) -> None:
    """Zeros for the parameters, nothing for the input."""
    x = torch.randn(0, 3, 5, 6, device=device).contiguous(memory_format=memory_format)
    x.requires_grad_()
    w = torch.randn(3, 1, 3, 3, device=device, requires_grad=True)
    b = torch.randn(3, device=device, requires_grad=True)
    op(x, w, b, padding=1).sum().backward()
    assert x.grad.shape == x.shape
    assert not w.grad.any()
    assert not b.grad.any()


@pytest.mark.skipif(not LARGE, reason="needs 18 GB and minutes: TORCHFORK_LARGE=1")
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_half_precision_beyond_2_to_the_31_elements(
    memory_format: torch.memory_format, device: str
) -> None:
    """#152816: positions beyond 32 bits. The far end is as if it were a tensor by itself."""
    shape = (2, 64, 4100, 4100)
    assert shape[0] * shape[1] * shape[2] * shape[3] > 2**31

    def far(end: Tensor, rows: slice) -> Tensor:
        whole = torch.empty(shape, dtype=torch.half, device=device, memory_format=memory_format)
        whole.zero_()
        whole[1:, :, rows] = end
        return whole

    w = torch.randn(64, 1, 3, 3, dtype=torch.half, device=device)
    tail = torch.randn(1, 64, 5, 4100, dtype=torch.half, device=device)
    x = far(tail, slice(-5, None))
    y = op(x, w, padding=1)
    # Sizes within 32 bits may go another way, where sums have another order: one last place.
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    close(y[1:, :, -4:-1], op(tail, w, padding=(0, 1)))
    assert not y[0].any()
    del y
    grad = torch.randn(1, 64, 3, 4100, dtype=torch.half, device=device)
    expected = backward(grad, tail, w, (1, 1), (0, 1), (1, 1), ALL)
    gradients = backward(far(grad, slice(-4, -1)), x, w, (1, 1), (1, 1), (1, 1), ALL)
    close(gradients[0][1:, :, -5:], expected[0])
    assert not gradients[0][0].any()
    for found, one in zip(gradients[1:], expected[1:], strict=True):
        close(found, one, atol=1e-2)  # sums of 12,300
