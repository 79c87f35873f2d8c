"""lltm_cell: generated cases, a reference in NumPy with gradients by hand, and what must hold."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
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
    values,
)
from numerics_pointwise import sigmoid_exact
from torch import Tensor

op = torch.lltm_cell
RESULTS = ["new_h", "new_cell", "gates", "grad_input", "grad_weight", "grad_bias", "grad_old_h",
           "grad_old_cell"]  # fmt: skip
# Rows around blocks of 64, hidden units around segments of 128 and vectors.
BATCHES = [3, 0, 1, 2, 7, 16, 63, 64, 65]
FEATURES = [5, 0, 1, 2, 16, 31, 33]
STATES = [7, 0, 1, 2, 8, 15, 16, 17, 31, 33, 65]
SEGMENTS = [127, 128, 129]  # hidden units that a CPU kernel takes at a time


def walkthrough(x: Tensor, w: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The cell of separate operators: what upstream has."""
    gates = torch.nn.functional.linear(torch.cat([h, x], 1), w, b)
    i, o, candidate = gates.chunk(3, 1)
    cell = c + torch.nn.functional.elu(candidate) * torch.sigmoid(i)
    return torch.tanh(cell) * torch.sigmoid(o), cell, gates


# Last places by which a correct computation may miss a unit: sigmoid, elu and tanh are right to one
# last place, not to half of one, and a gradient is made of what the results' roundings became.
FORWARD, BACKWARD = 2.0, 4.0


def reference(tensors: list[Array], grads: list[Array]) -> tuple[list[Array], list[Array]]:
    """Results and gradients by hand; with each the sums of its terms' absolute values.

    A result's terms are also those of the sums that it is a function of, times its slope in them.
    """
    x, w, b, h, c = tensors
    state = h.shape[1]
    joined = np.concatenate([h, x], 1)
    gates = joined @ w.T + b
    i, o = sigmoid_exact(gates[:, :state]), sigmoid_exact(gates[:, state : 2 * state])
    z = gates[:, 2 * state :]
    elu = np.where(z > 0, z, np.expm1(np.minimum(z, 0)))
    slope = np.where(z > 0, 1, np.exp(np.minimum(z, 0)))
    cell = c + elu * i
    t = np.tanh(cell)
    gate_terms = np.abs(joined) @ np.abs(w).T + np.abs(b)
    slopes = np.concatenate([i * (1 - i), o * (1 - o), slope], 1)
    i_terms, o_terms, elu_terms = np.split(slopes * gate_terms, 3, 1)
    cell_terms = np.abs(c) + np.abs(elu * i) + i * elu_terms + np.abs(elu) * i_terms
    h_terms = np.abs(t * o) + o * (1 - t * t) * cell_terms + np.abs(t) * o_terms
    dh, dc = grads
    # what a gradient of the cell is made of, exactly and by its terms' sizes
    through = dc + dh * o * (1 - t * t)
    through_terms = np.abs(dc) + np.abs(dh * o * (1 - t * t))

    def of_gates(through: Array) -> Array:
        parts = [through * elu * i * (1 - i), dh * t * o * (1 - o), through * i * slope]
        return np.concatenate(parts, 1)

    dgates, sizes = of_gates(through), np.abs(of_gates(through_terms))
    djoined, terms = dgates @ w, sizes @ np.abs(w)
    results = [t * o, cell, gates, djoined[:, state:], dgates.T @ joined, dgates.sum(0),
               djoined[:, :state], through]  # fmt: skip
    magnitudes = [h_terms, cell_terms, gate_terms, terms[:, state:],
                  sizes.T @ np.abs(joined), sizes.sum(0), terms[:, :state],
                  through_terms]  # fmt: skip
    return results, magnitudes


def gradients(function: object, tensors: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Results and gradients of all five arguments."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    results = function(*leaves)  # type: ignore[operator]
    return [*results, *torch.autograd.grad(results[:2], leaves, grads)]


def units(dtype: torch.dtype, magnitude: Array, scale: float) -> Array:
    """Half last places of the largest sum of terms, times scale."""
    largest = float(np.abs(magnitude).max(initial=0))
    eps, smallest = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
    return np.full(magnitude.shape, eps / 2 * largest * scale + smallest)


def check(choose: Choose, device: str, tally: Tally) -> None:
    """One case: error, masks, run to run."""
    batch, features, state = choose(BATCHES), choose(FEATURES), choose(STATES)
    if choose(range(20)) == 0:
        batch, features, state = choose([1, 2, 3]), choose([0, 1, 5]), choose(SEGMENTS)
    dtype = choose(FLOATS)
    shapes = [(batch, features), (3 * state, features + state), (3 * state,), (batch, state),
              (batch, state)]  # fmt: skip
    spread = choose([1.0, 0.3]) / max(features + state, 1) ** 0.5
    here = [values(choose, "normal", s, torch.float64) for s in shapes]
    here[1] = here[1] * spread
    here = [laid_out(t.to(dtype), choose(LAYOUTS)) for t in here]
    grads = [laid_out(values(choose, "normal", s, dtype), choose(LAYOUTS)) for s in shapes[3:]]
    tensors, given = ([t.to(device) for t in ts] for ts in (here, grads))
    with threads(1):
        mine, other = (gradients(cell, tensors, given) for cell in (op, walkthrough))
        assert same_bits(gradients(op, tensors, given), mine), "other bits in another run"
        check_mask(choose, tensors, given, mine)
    exact = reference([exact_array(t) for t in here], [exact_array(t) for t in grads])
    for name, result, upstream, value, sums in zip(RESULTS, mine, other, *exact, strict=True):
        # the gates are sums, whose roundings go into everything that is made of them
        terms = features + state + (batch if name in ("grad_weight", "grad_bias") else 2 * state)
        scale = BACKWARD if name.startswith("grad_") else FORWARD
        tally.compare(name, result, upstream, value, units(dtype, sums, scale), terms)


def check_mask(
    choose: Choose, tensors: list[Tensor], grads: list[Tensor], results: list[Tensor]
) -> None:
    """A gradient does not depend on which others are asked for."""
    mask = choose(list(product((True, False), repeat=5)))
    x, w, _, h, _ = tensors
    _, cell, gates = (t.detach() for t in results[:3])
    some = torch.ops.aten.lltm_cell_backward(*grads, None, x, w, h, cell, gates, mask)
    wanted = [t if keep else None for t, keep in zip(results[3:], mask, strict=True)]
    assert same_bits(some, wanted), "another mask, other bits"
