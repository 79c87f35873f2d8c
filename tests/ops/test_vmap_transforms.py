"""vmap of the operators inside and outside of torch.func's other transforms, and compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from depthwise_cases import Case, make_inputs
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from vmap_cases import batched, cell_inputs, every_in_dims

pytestmark = pytest.mark.usefixtures("no_vmap_fallback")


def walkthrough(x: Tensor, w: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The cell of separate operators."""
    i, o, candidate = torch.nn.functional.linear(torch.cat([h, x], 1), w, b).chunk(3, 1)
    new_cell = c + torch.nn.functional.elu(candidate) * torch.sigmoid(i)
    return torch.tanh(new_cell) * torch.sigmoid(o), new_cell


def both_of(new_h: Tensor, new_cell: Tensor) -> Tensor:
    """One result of two. Not by cat, whose own batch rule fixes the size of the batch."""
    return new_h * 2 + new_cell


def cell_states(*args: Tensor) -> Tensor:
    hidden, cell, _ = torch.lltm_cell(*args)  # Dynamo of 2.6 cannot slice named returns
    return both_of(hidden, cell)


X, W, B = make_inputs(Case(2, 3, 2, (4, 5), (2, 3)))
CELL = cell_inputs((2, 3, 4), "cpu", torch.float64)
PROGRAMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = {
    "depthwise_conv2d_ext": (
        lambda x, w, b: torch.depthwise_conv2d_ext(x, w, b, [2, 1], [1, 0]).tanh(),
        lambda x, w, b: torch.nn.functional.conv2d(x, w, b, (2, 1), (1, 0), groups=3).tanh(),
        [X, W, B],
    ),
    "sigmoid_ext": (
        lambda x: torch.sigmoid_ext(x) * x,
        lambda x: torch.sigmoid(x) * x,
        [torch.randn(3, 2).double()],
    ),
    "axpy_ext": (
        lambda x, y: torch.axpy_ext(x, y, alpha=-3).sin(),
        lambda x, y: torch.add(y, x, alpha=-3).sin(),
        [torch.randn(3, 2).double(), torch.randn(2).double()],
    ),
    "lltm_cell": (
        cell_states,
        lambda *args: both_of(*walkthrough(*args)),
        CELL,
    ),
}


def prepared(name: str, device: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor], list]:
    mine, reference, tensors = PROGRAMS[name]
    return mine, reference, [t.to(device) for t in tensors]


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_nested_vmap(name: str, device: str) -> None:
    """Two levels, each over arguments of its own."""
    mine, reference, tensors = prepared(name, device)
    count = len(tensors)
    ranks = [t.dim() for t in tensors]
    for seed, inner in enumerate(every_in_dims(ranks, 6, seed=1)):
        once = batched(tensors, inner, 2)
        for outer in every_in_dims([t.dim() for t in once], 4, seed=seed):
            twice = batched(once, outer, 3)
            torch.testing.assert_close(
                vmap(vmap(mine, inner), outer)(*twice), vmap(vmap(reference, inner), outer)(*twice)
            )
    assert count == len(tensors)


@pytest.mark.parametrize("name", list(PROGRAMS))
@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian], ids=lambda t: t.__name__)
def test_jacobians(name: str, transform: Callable[..., Callable[..., object]], device: str) -> None:
    """Of every argument, and of each element of a batch."""
    mine, reference, tensors = prepared(name, device)
    argnums = tuple(range(len(tensors)))

    def function(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return (lambda *args: f(*args).square().sum()) if transform is hessian else f

    actual = transform(function(mine), argnums)(*tensors)
    torch.testing.assert_close(actual, transform(function(reference), argnums)(*tensors))
    dims = (0,) + (None,) * (len(tensors) - 1)
    given = batched(tensors, dims, 2)
    torch.testing.assert_close(
        vmap(transform(function(mine), argnums), dims)(*given),
        vmap(transform(function(reference), argnums), dims)(*given),
    )


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_gradients_inside_and_outside(name: str, device: str) -> None:
    """vmap(grad), grad(vmap), vmap(grad(grad)), jvp and vjp of vmap."""
    mine, reference, tensors = prepared(name, device)
    argnums = tuple(range(len(tensors)))

    def first(f: Callable[..., Tensor], *args: Tensor) -> Tensor:
        return f(*args).square().sum()

    def second(f: Callable[..., Tensor], *args: Tensor) -> Tensor:
        found = grad(partial(first, f), argnums)(*args)
        return sum(g.square().sum() for g in found)

    for dims in every_in_dims([t.dim() for t in tensors], 5, seed=3):
        given = batched(tensors, dims, 2)
        tangents = tuple(torch.randn_like(t) for t in given)
        results = []
        for f in (mine, reference):
            mapped = vmap(f, dims)
            out, pullback = vjp(mapped, *given)
            results.append(
                (
                    vmap(grad(partial(first, f), argnums), dims)(*given),
                    vmap(grad(partial(second, f), argnums), dims)(*given),
                    grad(lambda *a, m=mapped: m(*a).square().sum(), argnums)(*given),
                    jvp(mapped, tuple(given), tangents),
                    pullback(torch.cos(out)),
                )
            )
        torch.testing.assert_close(*results)


def test_gradients_of_each_sample_of_a_model(device: str) -> None:
    """What per-sample gradients are for: a network with all of the operators."""

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = torch.nn.Parameter(torch.randn(3, 1, 3, 2))
            self.weight = torch.nn.Parameter(torch.randn(12, 3 + 4))
            self.bias = torch.nn.Parameter(torch.randn(12))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sigmoid_ext(torch.depthwise_conv2d_ext(x, self.kernel)).mean((-2, -1))
            zero = y.new_zeros(y.shape[0], 4)
            h, c, _ = torch.lltm_cell(y, self.weight, self.bias, zero, zero)
            return torch.axpy_ext(h, c).square().sum()

    model = Network().to(device).double()
    images = torch.randn(4, 3, 5, 6, device=device, dtype=torch.float64)
    parameters = {k: p.detach() for k, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(model, parameters, (image.unsqueeze(0),))

    found = vmap(grad(loss), (None, 0))(parameters, images)
    for k, image in enumerate(images):
        expected = torch.autograd.grad(model(image.unsqueeze(0)), list(model.parameters()))
        torch.testing.assert_close([g[k] for g in found.values()], list(expected))


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_compiles_with_symbolic_sizes(name: str, device: str) -> None:
    """vmap of the operator in a graph of dynamic shapes: one compilation for all sizes."""
    mine, _, tensors = prepared(name, device)
    compiles = 0

    def backend(graph: torch.fx.GraphModule, inputs: list) -> object:
        nonlocal compiles
        compiles += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    for dims in ((0,) * len(tensors), (0,) + (None,) * (len(tensors) - 1)):
        torch._dynamo.reset()
        compiles = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dynamo's own
            compiled = torch.compile(
                vmap(mine, dims), fullgraph=True, backend=backend, dynamic=True
            )
            for batch in (8, 10, 11):  # no other size of the inputs
                given = batched(tensors, dims, batch)
                torch.testing.assert_close(compiled(*given), vmap(mine, dims)(*given))
        assert compiles == 1
