"""Operators over TensorIterator, which refuses symbolic shapes, traced with symbolic shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from zoo_cases import maker

Function = Callable[[Tensor, Tensor, Tensor], Tensor]

# Structured functional, in-place and out=, and an unstructured one with a Meta kernel of its own.
OPERATORS: dict[str, Function] = {
    "zoo_softclip": lambda x, y, z: torch.zoo_softclip(x, 2),
    "zoo_softclip_": lambda x, y, z: x.clone().zoo_softclip_(2),
    "zoo_softclip.out": lambda x, y, z: torch.zoo_softclip(x, 2, out=torch.empty_like(x)),
    "zoo_blend": lambda x, y, z: torch.zoo_blend(x, y, alpha=3),
    "zoo_blend-wrapped": lambda x, y, z: torch.zoo_blend(torch.zoo_blend(x, y), z.sum()),
    "zoo_blend_": lambda x, y, z: x.clone().zoo_blend_(y, alpha=3),
    "zoo_blend.out": lambda x, y, z: torch.zoo_blend(x, y, out=torch.empty_like(x)),
    "zoo_muladd": lambda x, y, z: torch.zoo_muladd(x, y, z),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "permuted": lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
    "expanded": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "sliced": lambda x: x.repeat(1, 2, 1, 1)[:, ::2],
    "channels_last_batch_of_one": lambda x: x[:1].to(memory_format=torch.channels_last),
}

by_operator = pytest.mark.parametrize("function", OPERATORS.values(), ids=OPERATORS)


@by_operator
def test_one_graph_serves_every_shape(function: Function) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    make = maker()
    for n, c, h, w in ((2, 3, 4, 5), (3, 4, 5, 7), (5, 2, 6, 4)):
        args = make(n, c, h, w), make(c, 1, w), make(w)
        torch.testing.assert_close(compiled(*args), function(*args))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["zoo_softclip", "zoo_softclip_", "zoo_blend", "zoo_muladd"])
def test_gradients_of_one_graph_for_every_shape(name: str) -> None:
    compiled = torch.compile(OPERATORS[name], backend="aot_eager", fullgraph=True, dynamic=True)
    make = maker(requires_grad=True)
    for n, c, h, w in ((2, 3, 4, 5), (3, 4, 5, 7)):
        args = make(n, c, h, w), make(c, 1, w), make(w)
        found = [
            torch.autograd.grad(f(*args).square().sum(), args, allow_unused=True)
            for f in (compiled, OPERATORS[name])
        ]
        torch.testing.assert_close(*found)


@by_operator
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("other", [(4, 1, 6), (6,), (3, 4, 5, 6), ()], ids=str)
def test_results_are_laid_out_like_real_ones(
    function: Function, layout: Callable[[Tensor], Tensor], other: tuple[int, ...]
) -> None:
    make = maker()
    x = layout(make(3, 4, 5, 6))
    y = make(*other)[: x.size(0)] if len(other) == 4 else make(*other)
    z = y.half() if y.dim() == 1 else y
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        fake = function(*(mode.from_tensor(t, static_shapes=False) for t in (x, y, z)))
    real = function(x, y, z)
    assert not all(isinstance(size, int) for size in fake.shape)
    assert (tuple(map(int, fake.shape)), fake.dtype) == (real.shape, real.dtype)
    assert tuple(map(int, fake.stride())) == real.stride()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: torch.zoo_blend(x, y), "must match the size"),
        (lambda x, y: x[0].clone().zoo_blend_(x), "doesn't match the broadcast shape"),
        (lambda x, y: x.long().zoo_blend_(x), "can't be cast"),
    ],
    ids=["not broadcastable", "in place", "type"],
)
def test_what_real_tensors_refuse_is_refused(call: Any, message: str) -> None:
    make = maker()
    x, y = make(4, 6), make(4, 5)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        fakes = [mode.from_tensor(t, static_shapes=False) for t in (x, y)]
        with pytest.raises(Exception, match=message):
            call(*fakes)
    with pytest.raises(RuntimeError, match=message):
        call(x, y)


def test_export_keeps_a_dynamic_dimension() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zoo_muladd(torch.zoo_softclip(x, 2), x, x)

    make = maker()
    batch = torch.export.Dim("batch")
    exported = torch.export.export(Module(), (make(4, 3),), dynamic_shapes={"x": {0: batch}})
    for n in (2, 7):
        x = make(n, 3)
        torch.testing.assert_close(exported.module()(x), Module()(x))
