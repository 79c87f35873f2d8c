"""Inputs of an operator, and the same in other memory layouts and of other sizes.

They come from its samples file, its OpInfo, or calls that others make of it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .bench import CheckFailed
from .operators import Operator

Make = Callable[..., Any]
Layout = Callable[[Any], Any]
Place = tuple[int, int]  # the tensor, the dimension
_MOST = 6  # samples of one operator that are recorded


def tensors_of(tree: Any) -> list[Any]:
    """The tensors in arguments or a result, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Sample:
    """One call: positional arguments as the schema has them, and the keyword-only ones."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[Any]:
        """The tensors, in order, those in lists too."""
        return tensors_of((self.args, self.kwargs))

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The shape of each tensor."""
        return [tuple(tensor.shape) for tensor in self.tensors()]

    @property
    def contiguous(self) -> Sample:
        """The same call with tensors that are contiguous in memory of their own."""
        plain = torch.contiguous_format
        return self.mapped(lambda t: kept(t.detach().clone(memory_format=plain), t))

    def with_tensors(self, tensors: Iterable[Any]) -> Sample:
        """The same call with other tensors."""
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return Sample(args, kwargs)

    def mapped(self, function: Callable[[Any], Any]) -> Sample:
        """The same call with a function of each tensor."""
        return self.with_tensors([function(tensor) for tensor in self.tensors()])


@dataclass
class Source:
    """Where the operators' samples come from.

    file: the module of the samples file, if there is one; infos: OpInfos by the operator's name.
    operators: all of the plan's; of those with neither, calls by others are recorded.
    """

    file: ModuleType | None
    infos: dict[str, Any]
    operators: Sequence[Operator]
    recordings: dict[tuple[str, Any], dict[Any, list[Any]]] = field(default_factory=dict)

    def origin(self, op: Operator) -> str:
        """'samples file', 'OpInfo' or 'recorded'."""
        if self.file is not None and hasattr(self.file, function_name(op)):
            return "samples file"
        return "OpInfo" if info_name(op) in self.infos else "recorded"

    def info(self, op: Operator) -> Any:
        """The OpInfo, or None."""
        return self.infos.get(info_name(op))

    def every(
        self, op: Operator, device: str, dtype: Any = torch.float32, requires_grad: bool = False
    ) -> list[Sample]:
        """All samples, made anew with the same numbers on each call."""
        torch.manual_seed(0)
        origin = self.origin(op)
        if origin == "samples file":
            make = maker(device, dtype, requires_grad)
            found = [_written(op, call) for call in getattr(self.file, function_name(op))(make)]
        elif origin == "OpInfo":
            made = self.info(op).sample_inputs(device, dtype, requires_grad=requires_grad)
            found = [normal(op, (call.input, *call.args), call.kwargs) for call in made]
        else:
            found = self._recorded(op, device, dtype, requires_grad)
        if not found:
            raise CheckFailed(
                f"no inputs: there is no OpInfo of it in op_db, no other operator calls it, and "
                f"samples.py has no {function_name(op)}()"
            )
        return found

    def typical(
        self, op: Operator, device: str, dtype: Any = torch.float32, *,
        requires_grad: bool = False, limit: int = 4,
    ) -> list[Sample]:  # fmt: skip
        """A few samples none of whose tensors is empty, those of most dimensions first."""
        found = self.every(op, device, dtype, requires_grad)
        whole = [s for s in found if all(t.numel() for t in s.tensors())] or found
        ranked = sorted(whole, key=lambda s: -sum(t.dim() for t in s.tensors()))
        return ranked[:limit]

    def defined(
        self, op: Operator, device: str, *, requires_grad: bool = False, limit: int = 4
    ) -> list[Sample]:
        """Typical samples that give every result, where there are any; an output mask may not."""
        found = self.typical(op, device, requires_grad=requires_grad, limit=100)
        count = len(op.schema.returns)
        full = [s for s in found if count < 2 or _results(op, s) == count]
        return (full or found)[:limit]

    def _recorded(self, op: Operator, device: str, dtype: Any, requires_grad: bool) -> list[Sample]:
        """Copies of what others called the operator with, recorded once a device and dtype."""
        key = (device, dtype)
        if key not in self.recordings:
            self.recordings[key] = self._record(device, dtype)
        found = []
        for args, kwargs in self.recordings[key].get(op.overload, []):
            sample = normal(op, args, kwargs).mapped(_kept)
            if requires_grad:
                for tensor in sample.tensors():
                    tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())
            found.append(sample)
        return found

    def _record(self, device: str, dtype: Any) -> dict[Any, list[Any]]:
        callers = [op for op in self.operators if self.origin(op) != "recorded"]
        recorder = Recorder(op.overload for op in self.operators if op not in callers)
        for op in callers:
            grad = dtype.is_floating_point and op.tensor_arguments
            for sample in self.every(op, device, dtype, requires_grad=grad):
                with recorder:
                    _run_and_differentiate(op, sample)
        return recorder.seen


def fresh_args(op: Operator, sample: Sample) -> list[Any]:
    """The positional arguments, with copies of those that the operator writes to."""
    return [a.clone() if k in op.written else a for k, a in enumerate(sample.args)]


def invoke(op: Operator, sample: Sample, function: Any = None, **more: Any) -> Any:
    """What the operator gives, or another function that is called as it is."""
    seeded = op.seeded(function or op.overload)
    return seeded(*fresh_args(op, sample), **sample.kwargs, **more)


def _results(op: Operator, sample: Sample) -> int:
    """How many results of a call are not undefined."""
    return sum(leaf is not None for leaf in pytree.tree_leaves(invoke(op, sample)))


def function_name(op: Operator) -> str:
    """The operator's function in a samples file: 'hypot_zoo' for hypot.zoo."""
    return op.id.replace(".", "_")


def info_name(op: Operator) -> str:
    """The name by which an OpInfo knows it; an overload of upstream's operator has none."""
    return op.id if op.entry.new_base_name else f"{op.id} (overload)"


def source(path: Path | None, operators: Sequence[Operator]) -> Source:
    """Where samples come from; path: the samples file, if there is one."""
    return Source(None if path is None else _load_file(path), load_infos(), operators)


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("citizenship_samples", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_infos() -> dict[str, Any]:
    """The OpInfos of op_db by operator name, without their python_module's prefix."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Any] = {}
    for info in op_db:
        if not info.variant_test_name:
            found.setdefault(info.aten_name or info.name, info)
    return found


def maker(device: str, dtype: Any, requires_grad: bool) -> Make:
    """make(*shape): a tensor of numbers none of which is near zero; make(*shape, dtype=…)."""

    def make(*shape: int, dtype: Any = dtype, low: float = 0.25, high: float = 1.25) -> Any:
        # On the CPU, so that every device gets the same numbers.
        values = torch.rand(shape, dtype=torch.float64) * (high - low) + low
        if low > 0:
            values = torch.where(torch.rand(shape) < 0.5, -values, values)
        if not (dtype.is_floating_point or dtype.is_complex):
            values = (values * 4).round()
        tensor = values.to(dtype).to(device)
        differentiable = tensor.is_floating_point() or tensor.is_complex()
        return tensor.requires_grad_(requires_grad and differentiable)

    return make


def _written(op: Operator, call: Any) -> Sample:
    """A call as a samples file yields it: one argument or several, a dict of named ones last."""
    given = call if isinstance(call, tuple) else (call,)
    named = bool(given) and isinstance(given[-1], dict)
    return normal(op, given[:-1] if named else given, given[-1] if named else {})


def normal(op: Operator, args: Iterable[Any], kwargs: dict[str, Any]) -> Sample:
    """A call as the dispatcher takes it: by position where the schema says so, whole lists."""
    given, named = list(args), dict(kwargs)
    schema = op.schema.arguments
    if "input" in named and all(a.name != "input" for a in schema):
        named["self"] = named.pop("input")
    positional = [a for a in schema if not a.kwarg_only]
    for argument in positional[len(given) :]:
        if argument.name not in named:
            break
        given.append(named.pop(argument.name))
    given = [_whole(value, argument) for value, argument in zip(given, positional, strict=False)]
    by_name = {argument.name: argument for argument in schema}
    named = {key: _whole(value, by_name[key]) for key, value in named.items()}
    return Sample(tuple(given), named)


def _whole(value: Any, argument: Any) -> Any:
    """One number where the schema has int[N]: the list that Python's binding makes of it."""
    if isinstance(value, int) and not isinstance(value, bool) and argument.N:
        return [value] * argument.N
    return list(value) if isinstance(value, (tuple, torch.Size)) else value


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


def _run_and_differentiate(op: Operator, sample: Sample) -> None:
    """Forward, backward and double backward, as far as they go: other checks report what fails."""
    try:
        result = op.overload(*fresh_args(op, sample), **sample.kwargs)
        for _ in range(2):
            tensors = [t for t in sample.tensors() if t.requires_grad]
            outputs = [t for t in tensors_of(result) if t.requires_grad]
            if not tensors or not outputs:
                return
            # Not a constant: what it is multiplied with must be differentiated, too.
            grads = [torch.rand_like(t).requires_grad_() for t in outputs]
            result = torch.autograd.grad(
                outputs, tensors, grads, create_graph=True, allow_unused=True
            )
    except (RuntimeError, NotImplementedError, TypeError):
        return


def transposed(tensor: Any) -> Any:
    """Dimensions in reverse order in memory."""
    if tensor.dim() < 2:
        return strided(tensor)
    order = list(range(tensor.dim()))[::-1]
    return tensor.detach().permute(order).contiguous().permute(order)


def strided(tensor: Any) -> Any:
    """Every second element of a larger tensor, from the second on."""
    if tensor.dim() == 0:
        return offset(tensor)
    shape = [*tensor.shape[:-1], 2 * tensor.shape[-1] + 1]
    larger = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    view = larger[..., 1::2]
    view.copy_(tensor.detach())
    return view


def offset(tensor: Any) -> Any:
    """Contiguous, but not at the beginning of its storage, nor aligned."""
    larger = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype, device=tensor.device)
    view = larger[3:].view(tensor.shape)
    view.copy_(tensor.detach())
    return view


def expanded(tensor: Any) -> Any:
    """One row, all others being the same memory (the values are other ones)."""
    if tensor.dim() == 0 or not tensor.shape[0]:
        return tensor.detach()
    return tensor.detach()[:1].contiguous().expand(tensor.shape)


def channels_last(tensor: Any) -> Any:
    """Channels last where there are four dimensions."""
    if tensor.dim() != 4:
        return tensor.detach()
    return tensor.detach().clone(memory_format=torch.channels_last)


LAYOUTS: dict[str, Layout] = {
    "transposed": transposed, "strided": strided, "offset": offset, "expanded": expanded,
}  # fmt: skip


def kept(laid: Any, original: Any) -> Any:
    """A laid out tensor as a leaf with the original's requires_grad."""
    return laid.detach().requires_grad_(original.requires_grad)


def variations(op: Operator, sample: Sample) -> list[Sample]:
    """Calls with one size larger, in one tensor or wherever the same number stands."""
    found = []
    ones = _ones(op, sample)
    for step in (3, 5):
        for places in _choices(sample):
            changed = _resized(sample, places, step)
            # A size of one is another graph: it broadcasts.
            if accepted(op, changed) and _ones(op, changed) == ones:
                found.append(changed)
    return found


def _ones(op: Operator, sample: Sample) -> list[list[int]]:
    """The dimensions of size 0 and 1 of each result."""
    results = tensors_of(invoke(op, sample))
    return [[d for d, size in enumerate(t.shape) if size < 2] for t in results]


def without_elements(op: Operator, sample: Sample) -> Iterator[tuple[Sample, bool]]:
    """Calls with one size zero, and whether the operator takes them."""
    for places in _choices(sample):
        changed = _resized(sample, places, None)
        yield changed, accepted(op, changed)


def _choices(sample: Sample) -> list[list[Place]]:
    """Each dimension by itself, then the dimensions that have one size in common."""
    shapes = [tuple(tensor.shape) for tensor in sample.tensors()]
    single = [[(k, d)] for k, shape in enumerate(shapes) for d, n in enumerate(shape) if n > 1]
    by_size: dict[int, list[Place]] = {}
    for ((k, d),) in single:
        by_size.setdefault(shapes[k][d], []).append((k, d))
    shared = [places for places in by_size.values() if len(places) > 1]
    # Those of one number in every pair of tensors: a filter's size may be that of a channel.
    pairs = [
        [a, b] for places in shared if len(places) > 2
        for i, a in enumerate(places) for b in places[i + 1 :] if a[0] != b[0]
    ]  # fmt: skip
    return single + shared + pairs


def _resized(sample: Sample, places: list[Place], step: int | None) -> Sample:
    """The call with some sizes changed: by a step, or to zero; lists of sizes follow."""
    tensors = sample.tensors()
    shapes = [list(tensor.shape) for tensor in tensors]
    for k, d in places:
        shapes[k][d] = 0 if step is None else shapes[k][d] + step
    made = [_like(t, shape) if shape != list(t.shape) else t
            for t, shape in zip(tensors, shapes, strict=True)]  # fmt: skip
    changed = sample.with_tensors(made)
    # A list of numbers that was a changed tensor's shape, in rank and all but size, follows it.
    follow = {str(list(tensors[k].shape)): shapes[k] for k, _ in places}
    args = (list(follow.get(str(a), a)) if isinstance(a, list) else a for a in changed.args)
    return Sample(tuple(args), changed.kwargs)


def _like(tensor: Any, shape: list[int]) -> Any:
    """A tensor of another shape with values of the same range."""
    count = math.prod(shape)
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    values = flat.repeat(count // flat.numel() + 1)[:count].reshape(shape)
    return values.contiguous().requires_grad_(tensor.requires_grad)


def accepted(op: Operator, sample: Sample) -> bool:
    """Whether a call ends without one of the errors by which an operator refuses arguments."""
    try:
        invoke(op, sample)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return False
    return True
