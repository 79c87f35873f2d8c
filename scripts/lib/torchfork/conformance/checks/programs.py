"""A call of an operator as a small Python program of a user's, and whether two give the same.

A program, a function and a module, takes the sample's tensors one by one and gives all that the
operator gives. An argument that the operator writes to is copied before, so that a program never
changes what it is given.
"""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .bench import failing, require
from .operators import Operator
from .samples import Sample, tensors_of

_COUNT = itertools.count()
_DIRECTORY: list[Path] = []  # where the programs of this process are written

TEMPLATE = """\
import torch


def program({parameters}):
{body}


class Module(torch.nn.Module):
    def forward(self, {parameters}):
{inner}
"""


@dataclass(frozen=True)
class Program:
    """A user's program and the tensors to call it with."""

    call: Callable[..., Any]
    module: Callable[[], Any]
    tensors: list[Any]
    text: str

    def results(self, *tensors: Any) -> list[Any]:
        """What it gives, as a list of tensors and numbers; undefined results are left out."""
        return flat(self.call(*(tensors or self.tensors)))

    def flat_call(self, *tensors: Any) -> tuple[Any, ...]:
        """The program with its tensor results as a tuple."""
        return tuple(tensors_of(self.call(*tensors)))


def write_to(directory: Path) -> None:
    """Say where programs are written."""
    _DIRECTORY[:] = [directory]
    directory.mkdir(parents=True, exist_ok=True)
    sys.path.append(str(directory))


def flat(tree: Any) -> list[Any]:
    """The leaves of a result without those that are None."""
    return [leaf for leaf in pytree.tree_leaves(tree) if leaf is not None]


def make(op: Operator, sample: Sample, *, call: str | None = None) -> Program:
    """The program of one sample.

    call: what is called, 'torch.ops.aten.f'; by default what a user would write.
    """
    text, tensors = source(op, sample, call)
    name = f"citizen_{op.id.replace('.', '_')}_{next(_COUNT)}"
    path = _DIRECTORY[0] / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # pickle and TorchScript look a program up by its module
    spec.loader.exec_module(made)
    linecache.checkcache(str(path))
    return Program(made.program, made.Module, tensors, text)


def expression(op: Operator) -> str:
    """What a user calls: the function, or the operator in torch.ops."""
    if op.entry.python_function:
        return f"torch.{op.home}{op.name}"
    return f"torch.ops.aten.{op.id}"


def source(op: Operator, sample: Sample, call: str | None = None) -> tuple[str, list[Any]]:
    """The program's text, and the tensors that it takes."""
    names = (f"t{k}" for k in itertools.count())
    tensors = sample.tensors()
    positional = [literal(value, names) for value in sample.args]
    named = [f"{key}={literal(value, names)}" for key, value in sample.kwargs.items()]
    lines, kept = [], []
    for place in op.written:
        if place < len(positional):
            lines.append(f"m{place} = {positional[place]}.clone()")
            positional[place] = f"m{place}"
            kept.append(f"m{place}")
    method = call is None and not op.entry.python_function and op.entry.python_method
    if method:
        made = f"{positional[0]}.{op.name}({', '.join([*positional[1:], *named])})"
    else:
        made = f"{call or expression(op)}({', '.join([*positional, *named])})"
    returned = [r for r in op.schema.returns if r.alias_info is None or not r.alias_info.is_write]
    if kept and not op.schema.returns:
        lines += [made, f"return {', '.join(kept)}"]
    elif kept and returned:
        lines += [f"result = {made}", f"return result, {', '.join(kept)}"]
    elif op.entry.structseq and not kept:
        # By names: graphs that are saved know no torch.return_types.
        names_out = ", ".join(f"r{k}" for k in range(len(op.schema.returns)))
        lines += [f"{names_out} = {made}", f"return {names_out}"]
    else:
        lines.append(f"return {made}")
    parameters = ", ".join(f"t{k}: torch.Tensor" for k in range(len(tensors)))
    body, inner = ("\n".join(" " * width + line for line in lines) for width in (4, 8))
    text = TEMPLATE.format(parameters=parameters, body=body, inner=inner)
    return text.replace("self, )", "self)"), tensors


def literal(value: Any, names: Iterator[str]) -> str:
    """A value as Python source; each tensor is the next of the parameters."""
    if isinstance(value, torch.Tensor):
        return next(names)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(v, names) for v in value) + "]"
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
    return repr(value)


def same(actual: Any, expected: Any, what: str, *, tolerance: float | None = None) -> None:
    """Raise CheckFailed where results differ in number, kind or values.

    tolerance: absolute and relative, 0 for bit for bit; by default those of torch.testing.
    """
    with failing(what):
        torch.testing.assert_close(
            flat(actual), flat(expected), rtol=tolerance, atol=tolerance, equal_nan=True,
            check_device=False,
        )  # fmt: skip


def near(actual: Any, expected: Any, tolerance: float, what: str) -> None:
    """Raise CheckFailed where a number is off by more than a part of the largest one, or of 1."""
    for a, b in zip(flat(actual), flat(expected), strict=True):
        if isinstance(b, torch.Tensor) and b.is_floating_point() and b.numel():
            error = float((a.double() - b.double()).abs().max())
            scale = max(1.0, float(b.double().abs().max()))
            require(error <= tolerance * scale, f"{what}: off by {error:.3g}")


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
