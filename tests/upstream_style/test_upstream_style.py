"""Operators written as upstream's are: results, gradients, fake tensors, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing import assert_close


def real(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64).mul(0.8).add(0.1).requires_grad_()


def complex_(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex128).requires_grad_()


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "smoothstep": (lambda x: x.smoothstep(), lambda: [real(2, 3)]),
    "mix.Tensor": (torch.mix, lambda: [real(2, 3), real(3), real(2, 1)]),
    "mix.Tensor complex": (torch.mix, lambda: [complex_(3), complex_(3), complex_(3)]),
    "mix.Scalar": (lambda x, y: x.mix(y, 0.3), lambda: [real(2, 3), real(3)]),
    "mix.Scalar complex": (lambda x, y: x.mix(y, 0.3j), lambda: [complex_(3), complex_(3)]),
    "decay_": (lambda x: x.clone().decay_(0.5), lambda: [real(3)]),
    "adjacent_sum": (lambda x: x.adjacent_sum(0), lambda: [real(4, 2)]),
    "extent": (lambda x: x.extent(1), lambda: [real(2, 3)]),
    "rms": (lambda x: x.rms(1, True), lambda: [real(2, 3)]),
    "rms of all": (torch.rms, lambda: [real(2, 3)]),
    "runner_up": (lambda x: x.runner_up(1).values, lambda: [real(2, 3)]),
    "every_other": (lambda x: x.every_other(1), lambda: [real(2, 5)]),
    "cat_scaled": (lambda x, y: torch.cat_scaled([x, y], alpha=2), lambda: [real(2), real(3)]),
}
by_call = pytest.mark.parametrize("name", CALLS)


@by_call
def test_first_and_second_derivatives(name: str) -> None:
    call, inputs = CALLS[name]
    assert gradcheck(call, inputs(), check_forward_ad=True)
    assert gradgradcheck(call, inputs())


@by_call
def test_compiled_results_are_the_eager_ones(name: str) -> None:
    torch._dynamo.reset()
    call, make = CALLS[name]
    inputs = make()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert_close(compiled(*inputs), call(*inputs))


def test_results() -> None:
    x = torch.tensor([[0.2, 0.9, -1.0], [4.0, 3.0, 0.5]])
    assert_close(x.smoothstep(), x.clamp(0, 1).pow(2) * (3 - 2 * x.clamp(0, 1)))
    assert_close(torch.mix(x, -x, 0.25), -0.5 * x)
    assert_close(x.adjacent_sum(), x[:, 1:] + x[:, :-1])
    assert_close(x.extent(0), x.amax(0) - x.amin(0))
    assert_close(x.rms(), x.square().mean().sqrt())
    values, indices = x.runner_up(1)
    assert_close(values, torch.tensor([0.2, 3.0]))
    assert indices.tolist() == [0, 1]
    assert_close(torch.cat_scaled([x, x], 1, alpha=3), 3 * torch.cat([x, x], 1))
    y = x.clone()
    y.every_other(1).zero_()
    assert y[:, ::2].eq(0).all() and y[:, 1].equal(x[:, 1])
    out = torch.empty(0)
    assert torch.mix(x, x, 0.5, out=out) is out and out.equal(x)
    assert x.clone().mix_(-x, 1.0).equal(x)


def test_the_backport_is_there_with_its_public_name() -> None:
    a = torch.randn(3, 3, dtype=torch.float64)
    a = a @ a.mT + torch.eye(3, dtype=torch.float64)
    root = torch.linalg.matrix_sqrth(a)
    assert_close(root @ root, a)


BOXES = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3], [5, 5, 9, 9], [5, 5, 9, 8.9]])
SCORES = torch.tensor([0.5, 0.9, 0.1, 0.2])


def test_box_keep_keeps_the_best_of_those_that_overlap() -> None:
    assert torch.box_keep(BOXES, SCORES, 0.5).tolist() == [1, 3]
    assert torch.box_keep(BOXES, SCORES, 1.0).tolist() == [1, 0, 3, 2]


def test_a_fake_box_keep_has_a_size_of_its_own_within_the_boxes() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        kept = torch.box_keep(mode.from_tensor(BOXES), mode.from_tensor(SCORES), 0.5)
        assert kept.dtype is torch.int64 and kept.dim() == 1
        assert isinstance(kept.shape[0], torch.SymInt)
    with FakeTensorMode() as mode, pytest.raises(DynamicOutputShapeException):
        torch.box_keep(mode.from_tensor(BOXES), mode.from_tensor(SCORES), 0.5)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_box_keep_is_compiled_into_one_graph(backend: str) -> None:
    torch._dynamo.reset()

    def best(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return boxes[torch.box_keep(boxes, scores, 0.5)] * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(best, fullgraph=True, backend=backend)
        assert_close(compiled(BOXES, SCORES), best(BOXES, SCORES))
        assert_close(compiled(BOXES[:2], SCORES[:2]), best(BOXES[:2], SCORES[:2]))


def test_box_keep_is_exported() -> None:
    class Best(torch.nn.Module):
        def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return torch.box_keep(boxes, scores, 0.5)

    program = torch.export.export(Best(), (BOXES, SCORES))
    assert program.module()(BOXES, SCORES).tolist() == [1, 3]
