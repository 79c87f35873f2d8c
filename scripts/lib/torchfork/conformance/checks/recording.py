"""Inputs of operators that nobody calls by hand: seen while others run and are differentiated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .operators import Operator
from .samples import Sample, Source, fresh_args, normal

_MOST = 6  # samples of one operator


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Keeps a copy of the arguments of every call of some operators."""

    def __init__(self, wanted: Iterable[Any]) -> None:
        super().__init__()
        self.seen: dict[Any, list[Any]] = {overload: [] for overload in wanted}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.seen and len(self.seen[func]) < _MOST:
            self.seen[func].append(pytree.tree_map(_kept, (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _kept(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


class Recordings:
    """Samples of operators out of the others' calls, recorded once for each device and dtype."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self.operators = list(operators)
        self.source: Source | None = None
        self.known: dict[tuple[str, Any], dict[Any, list[Any]]] = {}

    def samples(self, op: Operator, device: str, dtype: Any, requires_grad: bool) -> list[Sample]:
        """Copies of what the operator was called with; none where nobody called it."""
        key = (device, dtype)
        if key not in self.known:
            self.known[key] = self._record(device, dtype)
        found = []
        for args, kwargs in self.known[key].get(op.overload, []):
            sample = normal(op, args, kwargs).mapped(_kept)
            if requires_grad:
                for tensor in sample.tensors():
                    tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())
            found.append(sample)
        return found

    def _record(self, device: str, dtype: Any) -> dict[Any, list[Any]]:
        assert self.source is not None
        callers = [op for op in self.operators if self.source.origin(op) != "recorded"]
        called = [op.overload for op in self.operators if op not in callers]
        recorder = Recorder(called)
        for op in callers:
            grad = dtype.is_floating_point and op.tensor_arguments
            for sample in self.source.every(op, device, dtype, requires_grad=grad):
                with recorder:
                    _run_and_differentiate(op, sample)
        return recorder.seen


def _run_and_differentiate(op: Operator, sample: Sample) -> None:
    """Forward, backward and double backward, as far as they go: a gap of op is not told here."""
    try:
        result = op.overload(*fresh_args(op, sample), **sample.kwargs)
        for _ in range(2):
            tensors = [t for t in sample.tensors() if t.requires_grad]
            outputs = [t for t in pytree.tree_leaves(result)
                       if isinstance(t, torch.Tensor) and t.requires_grad]  # fmt: skip
            if not tensors or not outputs:
                return
            # Not a constant: what it is multiplied with must be differentiated, too.
            grads = [torch.rand_like(t).requires_grad_() for t in outputs]
            result = torch.autograd.grad(
                outputs, tensors, grads, create_graph=True, allow_unused=True
            )
    except (RuntimeError, NotImplementedError, TypeError):
        return
