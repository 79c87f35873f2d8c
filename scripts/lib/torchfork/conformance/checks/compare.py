"""Whether two results are the same, and what else there is to compare of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .bench import failing, require
from .operators import Operator
from .programs import flat, make
from .samples import Sample


def same(
    actual: Any, expected: Any, what: str, *, exact: bool = False, dtypes: bool = True
) -> None:
    """Raise CheckFailed where results differ in number, kind or values.

    exact: bit for bit; else with the tolerances of torch.testing.
    """
    mine, theirs = flat(actual), flat(expected)
    require(len(mine) == len(theirs), f"{what}: {len(mine)} results instead of {len(theirs)}")
    options: dict[str, Any] = {"rtol": 0, "atol": 0} if exact else {}
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        where = f"{what}, result {number}" if len(mine) > 1 else what
        if isinstance(b, torch.Tensor):
            require(isinstance(a, torch.Tensor), f"{where}: {type(a).__name__} is no tensor")
            with failing(where):
                torch.testing.assert_close(
                    a, b, equal_nan=True, check_dtype=dtypes, check_device=False, **options
                )
        elif isinstance(b, float) and not exact:
            require(abs(a - b) <= 1e-5 * max(1.0, abs(b)), f"{where}: {a} instead of {b}")
        else:
            require(a == b, f"{where}: {a!r} instead of {b!r}")


def same_layout(actual: Any, expected: Any, what: str) -> None:
    """Raise CheckFailed where shape, strides, dtype or device of results differ."""
    mine, theirs = flat(actual), flat(expected)
    require(len(mine) == len(theirs), f"{what}: {len(mine)} results instead of {len(theirs)}")
    for a, b in zip(mine, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            continue
        layout = [(tuple(map(int, t.shape)), strides(t), t.dtype) for t in (a, b)]
        require(layout[0] == layout[1], f"{what}: {layout[0]} instead of {layout[1]}")


def strides(tensor: Any) -> tuple[int, ...]:
    """The strides that mean something: those of sizes other than 1, none of an empty tensor."""
    if any(int(size) == 0 for size in tensor.shape):
        return ()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(int(stride) for size, stride in pairs if int(size) != 1)


def gradients(
    function: Callable[..., Any], tensors: Sequence[Any]
) -> tuple[list[Any], list[Any | None]]:
    """Results of a function and the gradients of its differentiable ones.

    The results are weighted with numbers that differ from one element to the next.
    """
    given = [leaf(tensor) for tensor in tensors]
    results = flat(function(*given))
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    wanted = [t for t in given if t.requires_grad]
    if not outputs or not wanted:
        return results, []
    weights = [weight(output) for output in outputs]
    return results, list(torch.autograd.grad(outputs, wanted, weights, allow_unused=True))


def differentiated(op: Operator, sample: Sample) -> tuple[list[Any], list[Any | None]]:
    """Results and gradients of an operator on a sample."""
    return gradients(op.seeded(make(op, sample).call), sample.tensors())


def leaf(tensor: Any) -> Any:
    """A leaf with the same values, strides and requires_grad."""
    if not tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_()


def weight(output: Any) -> Any:
    """A gradient for a result: the same on every call, and no two elements alike."""
    count = torch.arange(output.numel(), device=output.device, dtype=torch.float64)
    return (0.5 + count / (output.numel() + 1)).reshape(output.shape).to(output.dtype)
