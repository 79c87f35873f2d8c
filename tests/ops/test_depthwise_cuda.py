"""depthwise_conv2d_ext as a citizen of CUDA: graphs, streams, devices, the same bits each time."""

from __future__ import annotations

import os

import pytest
import torch
from depthwise_cases import Case, Inputs, make_inputs
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

# Kernels differ by window, layout, type and size: one case for each family.
CASES = [
    Case(2, 40, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(90, 251, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(51, 109, 1, (14, 14), (5, 5), padding=(2, 2)),
    Case(3, 90, 1, (65, 65), (3, 3), padding=(2, 2), dilation=(2, 2)),
    Case(2, 60, 1, (112, 112), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(2, 30, 1, (56, 56), (7, 7), padding=(3, 3)),
    Case(3, 6, 1, (28, 28), (29, 29), padding=(14, 14)),
    Case(2, 8, 2, (30, 30), (3, 3), padding=(1, 1)),
    Case(2, 8, 1, (20, 20), (4, 4), stride=(3, 3)),
    Case(2, 64, 1, (1, 2049), (1, 4), padding=(0, 3)),
    Case(2, 64, 1, (1, 500), (1, 31), padding=(0, 15)),
    Case(3, 12, 1, (2, 33), (9, 6), padding=(4, 3)),  # with taps that meet padding alone
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FORMATS = [torch.contiguous_format, torch.channels_last]
REPEATS = int(os.environ.get("TORCHFORK_REPEATS", "30"))
op = torch.depthwise_conv2d_ext
backward = torch.ops.aten.depthwise_conv2d_ext_backward


def operands(
    case: Case, dtype: torch.dtype, memory_format: torch.memory_format
) -> tuple[Inputs, Tensor]:
    """Fresh inputs and a gradient of the output."""
    inputs = make_inputs(case, device="cuda", dtype=dtype, memory_format=memory_format)
    return inputs, torch.randn_like(op(*inputs, *case.window))


def results(case: Case, inputs: Inputs, grad: Tensor) -> list[Tensor]:
    """Output, all gradients in one call, and each in a call of its own."""
    found = [op(*inputs, *case.window)]
    for mask in ((True, True, True), (True, False, False), (False, True, True)):
        gradients = backward(grad, inputs.input, inputs.weight, *case.window, mask)
        found += [g for g, wanted in zip(gradients, mask, strict=True) if wanted]
    return found


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    """Bit for bit, also on another device."""
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.cpu(), theirs.cpu())


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_repeats_are_equal_bit_for_bit(
    case: Case, dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    inputs, grad = operands(case, dtype, memory_format)
    expected = results(case, inputs, grad)
    different = torch.zeros((), dtype=torch.long, device="cuda")
    for _ in range(REPEATS):
        for mine, theirs in zip(results(case, inputs, grad), expected, strict=True):
            different += (mine != theirs).sum()
    assert int(different) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_captured_graph_replays_on_new_values(case: Case, dtype: torch.dtype) -> None:
    inputs, grad = operands(case, dtype, torch.contiguous_format)
    results(case, inputs, grad)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results(case, inputs, grad)
    inputs.input.normal_()
    grad.normal_()
    graph.replay()
    assert_same_bits(captured, results(case, inputs, grad))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_work_goes_to_the_current_stream(case: Case) -> None:
    """Behind work of that stream that the default stream knows nothing about."""
    inputs, grad = operands(case, torch.float32, torch.contiguous_format)
    fresh, fresh_grad = torch.randn_like(inputs.input), torch.randn_like(grad)
    expected = results(case, inputs._replace(input=fresh), fresh_grad)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        inputs.input.copy_(fresh)
        grad.copy_(fresh_grad)
        found = results(case, inputs, grad)
    side.synchronize()
    assert_same_bits(found, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_another_device_than_the_current_computes_the_same(case: Case, dtype: torch.dtype) -> None:
    inputs, grad = operands(case, dtype, torch.contiguous_format)
    expected = results(case, inputs, grad)
    assert torch.cuda.current_device() == 0
    moved = Inputs(*(None if t is None else t.to("cuda:1") for t in inputs))
    found = results(case, moved, grad.to("cuda:1"))
    assert all(t.device == torch.device("cuda:1") for t in found)
    assert torch.cuda.current_device() == 0
    assert_same_bits(found, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_operands_of_two_devices_are_refused() -> None:
    inputs, grad = operands(CASES[0], torch.float32, torch.contiguous_format)
    window = CASES[0].window
    with pytest.raises(RuntimeError, match="same device"):
        op(inputs.input, inputs.weight.to("cuda:1"), inputs.bias, *window)
    with pytest.raises(RuntimeError, match="same device"):
        backward(grad.to("cuda:1"), inputs.input, inputs.weight, *window, (True, True, True))
