"""gdh, sigmoid_ext and axpy_ext: generated cases, references in NumPy, and what must hold."""

from __future__ import annotations

from collections.abc import Callable

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
    threads,
    unit,
    values,
)
from torch import Tensor

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
# Around vectors of 8, 16, 32 and 64 elements, twice a vector, primes; 0-d and empty.
LENGTHS = [7, 0, 1, 2, 3, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65, 97, 127, 128, 129, 257]
# Threads divide from 32,768 elements on; the odd ones end inside a vector.
LONG = [32_768, 40_009, 65_537, 100_003]


def choose_shape(choose: Choose) -> tuple[int, ...]:
    """Of none to four dimensions."""
    rank = choose([1, 2, 0, 3, 4])
    if choose(range(60)) == 0:
        return (choose(LONG),)
    if rank == 0:
        return ()
    rest = [choose([2, 1, 3, 5, 0] if choose(range(8)) == 0 else [2, 1, 3, 5]) for _ in range(rank)]
    return (*rest[1:], choose(LENGTHS))


def both_thread_counts(choose: Choose, call: Callable[[], Tensor]) -> Tensor:
    """The result, which must have the same bits with one thread and with several."""
    with threads(1):
        first = call()
    with threads(choose([2, 3, 5])):
        assert torch.equal(call(), first), "other bits with other threads or in another run"
    return first


def check_gdh(choose: Choose, device: str, tally: Tally) -> None:
    """gdh and gdh_copy: every bit in C order, a view where strides allow; the gradient's shape."""
    dtype = choose([*FLOATS, *INTEGERS, *COMPLEX, torch.bool])
    shape = choose_shape(choose)
    plain = values(choose, choose(["normal", "integers"]), shape, torch.float64).to(dtype)
    layout = choose([*LAYOUTS, "expanded"])
    x = plain.unsqueeze(0).expand(3, *shape) if layout == "expanded" else laid_out(plain, layout)
    x = x.to(device) if device != "cpu" else x
    flat, copy = torch.gdh(x), torch.gdh_copy(x)
    expected = x.cpu().contiguous().view(-1)
    for actual in (flat, copy, x.gdh()):
        # of one element or none a view keeps whatever stride there was
        assert actual.dtype == dtype and actual.dim() == 1 and actual.is_contiguous()
        assert torch.equal(actual.cpu(), expected)
    assert (flat.data_ptr() == x.data_ptr()) == (x.is_contiguous() or not x.numel())
    assert not x.numel() or copy.data_ptr() != x.data_ptr()
    if dtype.is_floating_point or dtype.is_complex:
        leaf = x.detach().requires_grad_()
        grad = torch.randn(expected.shape).to(device=device, dtype=dtype)
        for function in (torch.gdh, torch.gdh_copy):
            (actual,) = torch.autograd.grad(function(leaf), leaf, grad)
            assert torch.equal(actual, grad.view(x.shape))


def sigmoid_exact(x: Array) -> Array:
    """Without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def choose_arguments(choose: Choose) -> tuple[Tensor, Tensor]:
    """Arguments over a range that is chosen, up to where the result leaves 0 and 1; a gradient."""
    dtype, shape = choose(FLOATS), choose_shape(choose)
    scale = choose([1.0, 0.01, 8.0, 40.0, 300.0])
    x = (values(choose, "normal", shape, torch.float64) * scale).to(dtype)
    return laid_out(x, choose(LAYOUTS)), laid_out(
        values(choose, "normal", shape, dtype), choose(LAYOUTS)
    )


def check_sigmoid(choose: Choose, device: str, tally: Tally) -> None:
    """sigmoid_ext and sigmoid_ext_backward."""
    x, grad = choose_arguments(choose)
    dtype = x.dtype
    there = x.to(device)
    y = both_thread_counts(choose, lambda: torch.sigmoid_ext(there))
    exact = sigmoid_exact(exact_array(x))
    # exp and the quotient round once each in the type that is computed in; of numbers that are not
    # normal upstream's makes zeros, and test_sigmoid_ext.py says what ours are
    with threads(1):
        other = torch.sigmoid(there)
    units = unit(dtype, exact, 2 * exact) + torch.finfo(dtype).smallest_normal
    tally.compare("output", y, other, exact, units, terms=3)
    there = grad.to(device)
    backward = torch.ops.aten.sigmoid_ext_backward
    dx = both_thread_counts(choose, lambda: backward(there, y))
    upstream = torch.ops.aten.sigmoid_backward(there, y)
    wide = exact_array(y)
    exact = exact_array(grad) * (1 - wide) * wide
    # two products and a difference, whose rounding is relative to 1
    magnitude = 3 * np.abs(exact) + np.abs(exact_array(grad) * wide)
    tally.compare("grad_input", dx, upstream, exact, unit(dtype, exact, magnitude), terms=3)


def choose_alpha(choose: Choose, dtype: torch.dtype) -> complex:
    """What torch.add takes for the dtype."""
    if dtype == torch.bool:
        return choose([True, False])
    if dtype in INTEGERS:
        return choose([2, 1, 0, 3, 127] if dtype == torch.uint8 else [2, 1, 0, -1, 3, -127])
    real = choose([2, 1, 0, -1, 0.3, -0.5, 1e-3, 1000.0])
    return complex(real, choose([0, 1, -0.3])) if dtype.is_complex else real


def check_axpy(choose: Choose, device: str, tally: Tally) -> None:
    """axpy_ext: broadcast, any strides, all dtypes; integers modulo their width."""
    dtype = choose([*FLOATS, *FLOATS, *COMPLEX, *INTEGERS, torch.bool])
    shape = choose_shape(choose)
    kept = tuple(choose([n, n, 1]) for n in shape)
    shapes = choose([(shape, shape), (shape, kept), (kept, shape), (shape, shape[1:])])
    a, b = (operand(choose, s, dtype) for s in shapes)
    x, y = a.to(device), b.to(device)
    alpha = choose_alpha(choose, dtype)
    mine = both_thread_counts(choose, lambda: torch.axpy_ext(x, y, alpha=alpha))
    upstream = torch.add(y, x, alpha=alpha)
    if not (dtype.is_floating_point or dtype.is_complex):
        wrapped = torch.bool if dtype == torch.bool else torch.int64
        scaled = (a & bool(alpha)) if wrapped == torch.bool else a.long() * int(alpha.real)
        expected = (scaled | b if wrapped == torch.bool else scaled + b.long()).to(dtype)
        assert torch.equal(mine.cpu(), expected)
        assert torch.equal(mine, upstream)
        return
    wide = (exact_array(a), exact_array(b))
    factor = np.asarray(alpha).astype(wide[0].dtype)
    exact = factor * wide[0] + wide[1]
    # alpha itself is rounded to the type that is computed in, and a product of complex numbers is
    # four of real ones
    magnitude = (4 if dtype.is_complex else 2) * np.abs(factor) * np.abs(wide[0]) + np.abs(exact)
    units = unit(real_dtype(dtype), exact, magnitude)
    tally.compare("result", mine, upstream, exact, units, terms=2)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of the parts of a complex number."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def operand(choose: Choose, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Normal numbers; integers over all of their range."""
    if dtype == torch.bool:
        return laid_out(values(choose, "integers", shape, torch.int64) > 0, choose(LAYOUTS))
    if dtype in INTEGERS:
        info, generator = torch.iinfo(dtype), torch.Generator().manual_seed(choose(range(2**31)))
        drawn = torch.randint(info.min, info.max, shape, generator=generator, dtype=torch.int64)
        return laid_out(drawn.to(dtype), choose(LAYOUTS))
    drawn = values(choose, "normal", shape, torch.float64)
    if dtype.is_complex:
        drawn = torch.complex(drawn, values(choose, "normal", shape, torch.float64))
    return laid_out(drawn.to(dtype), choose(LAYOUTS))
