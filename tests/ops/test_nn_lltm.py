"""nn.LLTMCell and F.lltm_cell against the walkthrough's formulas."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional


def walkthrough(cell: nn.Module, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The cell as the walkthrough's Python code has it."""
    gates = functional.linear(torch.cat([h, x], 1), cell.weight, cell.bias)
    i, o, candidate = gates.chunk(3, 1)
    new_c = c + functional.elu(candidate) * torch.sigmoid(i)
    return torch.tanh(new_c) * torch.sigmoid(o), new_c


def sample(device: str = "cpu") -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    cell = nn.LLTMCell(5, 7, device=device, dtype=torch.double)
    x, h, c = (torch.randn(3, n, device=device, dtype=torch.double) for n in (5, 7, 7))
    return cell, x, h, c


def test_it_computes_the_walkthroughs_cell_and_its_gradients(device: str) -> None:
    cell, x, h, c = sample(device)
    leaves = [t.requires_grad_() for t in (x, h, c)]
    found, expected = cell(x, (h, c)), walkthrough(cell, x, h, c)
    torch.testing.assert_close(found, expected)
    wanted = [*leaves, cell.weight, cell.bias]
    grads = [
        torch.autograd.grad(outputs, wanted, [torch.cos(o.detach()) for o in outputs])
        for outputs in (found, expected)
    ]
    torch.testing.assert_close(*grads)


def test_without_a_batch_and_without_a_state() -> None:
    cell, x, h, c = sample()
    one = cell(x[0], (h[0], c[0]))
    assert one[0].shape == one[1].shape == (7,)
    torch.testing.assert_close(one, tuple(t[0] for t in cell(x, (h, c))))
    zeros = torch.zeros_like(h)
    torch.testing.assert_close(cell(x), cell(x, (zeros, zeros)))
    torch.testing.assert_close(cell(x[0]), cell(x[0], (zeros[0], zeros[0])))


def test_parameters_are_those_of_the_walkthrough() -> None:
    cell = nn.LLTMCell(50, 64)
    assert {n: tuple(p.shape) for n, p in cell.named_parameters()} == {
        "weight": (192, 114), "bias": (192,),
    }  # fmt: skip
    bound = 1 / math.sqrt(64)
    for parameter in cell.parameters():
        assert parameter.abs().max() <= bound and parameter.abs().max() > 0.9 * bound
    assert repr(cell) == "LLTMCell(50, 64)"
    assert nn.LLTMCell(3, 0).weight.shape == (0, 3)
    assert nn.LLTMCell(3, 2, device="meta").weight.is_meta


def test_copies_pickles_scripts_and_compiled_cells_compute_the_same() -> None:
    torch._dynamo.reset()  # what other tests compiled counts towards a limit
    cell, x, h, c = sample()
    expected = cell(x, (h, c))
    for other in (
        copy.deepcopy(cell),
        pickle.loads(pickle.dumps(cell)),
        torch.jit.script(cell),
        torch.compile(cell, fullgraph=True, backend="aot_eager"),
        torch.export.export(cell, (x, (h, c))).module(),
    ):
        torch.testing.assert_close(other(x, (h, c)), expected)


def test_wrong_ranks_are_refused() -> None:
    cell, x, h, c = sample()
    with pytest.raises(ValueError, match="1D or 2D, got 3D"):
        cell(x[None])
    with pytest.raises(ValueError, match="Expected hx to be 2D as input is, got 1D and 2D"):
        cell(x, (h[0], c))


def test_the_functional_gives_the_two_results_that_a_caller_wants() -> None:
    cell, x, h, c = sample()
    found = functional.lltm_cell(x, cell.weight, cell.bias, h, c)
    assert isinstance(found, tuple) and len(found) == 2
    torch.testing.assert_close(found, cell(x, (h, c)))
