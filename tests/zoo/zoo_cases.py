"""The zoo's operators that take tensors and give tensors: how to call each, and what to expect."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

Make = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One operator and one call of it.

    args makes the arguments from a maker of tensors; reference computes the same with upstream's
    operators. What an operator cannot do is said here, so that a new kind is tested for everything
    unless somebody writes down why not.
    """

    name: str
    args: Callable[[Make], tuple[Any, ...]]
    reference: Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    home: str = ""  # where below torch the function is: '' for torch itself, '_C._nn', …
    overload: str = "default"
    function: bool = True
    method: bool = False
    out: str = ""  # overload name of the out= variant
    differentiable: bool = True
    forward_ad: bool = True
    complex: bool = False
    dynamic: bool = True  # upstream's operators that it is made of take symbolic shapes
    note: str = ""  # tells two cases of one operator apart

    @property
    def id(self) -> str:
        overload = "" if self.overload == "default" else f".{self.overload}"
        return f"{self.name}{overload}{'-' + self.note if self.note else ''}"

    @property
    def function_path(self) -> str:
        return ".".join(part for part in (self.home, self.name) if part)

    @property
    def python_function(self) -> Callable[..., Any]:
        """torch.<name>, or the builtin of a python_module."""
        found: Callable[..., Any] = operator.attrgetter(self.function_path)(torch)
        return found

    @property
    def python_method(self) -> Any:
        return getattr(torch.Tensor, self.name)

    @property
    def call(self) -> Callable[..., Any]:
        """The operator as a user calls it: the function, or the method where there is none."""
        target = self.python_function if self.function else self.python_method
        return functools.partial(target, **self.kwargs)

    @property
    def aten(self) -> Any:
        return getattr(getattr(torch.ops.aten, self.name), self.overload)

    def expected(self, *args: Any) -> Any:
        return self.reference(*args, **self.kwargs)


def maker(dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> Make:
    """A maker of tensors with the same numbers on every run, none of them near zero."""
    generator = torch.Generator().manual_seed(20)

    def make(*shape: int) -> torch.Tensor:
        values = torch.rand(shape, dtype=dtype, generator=generator) + 0.25
        signs = torch.rand(shape, generator=generator) < 0.5
        return torch.where(signs, -values, values).requires_grad_(requires_grad)

    return make


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def on_tensors(call: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """`call` as a function of the tensors in args alone, giving a tuple of tensors."""
    leaves, spec = pytree.tree_flatten(args)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return tuple(tensors_of(call(*pytree.tree_unflatten(filled, spec))))

    return flat


def _gate(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    left, right = x.chunk(2, dim)
    return left * right.sigmoid()


def _halves(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    middle = (x.shape[dim] + 1) // 2
    return [x.narrow(dim, 0, middle), x.narrow(dim, middle, x.shape[dim] - middle)]


def _pool(x: torch.Tensor, mode: str = "mean") -> torch.Tensor:
    return {"mean": torch.mean, "sum": torch.sum, "norm": torch.norm}[mode](x)


def _with_last(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:-1], row.expand_as(x[-1:])])


def _skip(x: torch.Tensor, step: int = 2) -> torch.Tensor:
    return x[..., ::step]


def _scale_shift(
    x: torch.Tensor, scale: torch.Tensor | None = None, shift: torch.Tensor | None = None
) -> torch.Tensor:
    return (x if scale is None else x * scale) + (0 if shift is None else shift)


def _adjust(x: torch.Tensor, scales: Any, shifts: Any = None, **options: Any) -> torch.Tensor:
    for _ in range(options.get("repeat") or 1):
        for i, scale in enumerate(scales):
            x = x * scale + (shifts[i] if shifts else 0)
    x = x.clamp(min=options.get("floor"))
    return -x if options.get("negate") else x


def _moments(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    return x.mean(dim, keepdim), x.square().mean(dim, keepdim)


def _fft_takes_symbolic_shapes() -> bool:
    """Not in 2.6."""
    try:
        make_fx(torch.fft.fft, tracing_mode="symbolic")(torch.ones(3, 4))
    except UnsupportedOperatorException:
        return False
    return True


CASES = (
    Case(
        "zoo_softclip",
        lambda make: (make(3, 4), 2),
        lambda x, limit: limit * torch.tanh(x / limit),
        method=True,
        out="out",
    ),
    Case(
        "zoo_blend",
        lambda make: (make(3, 1), make(4)),
        lambda a, b, alpha: alpha * a * b,
        kwargs={"alpha": 3},
        method=True,
        out="out",
        complex=True,
    ),
    Case(
        "zoo_window_sum",
        lambda make: (make(2, 5, 3), 2, 1),
        lambda x, size, dim: x.unfold(dim, size, 1).sum(-1),
        method=True,
        out="out",
        complex=True,
    ),
    Case(
        "zoo_muladd",
        lambda make: (make(3, 1), make(4), make(3, 4)),
        lambda a, b, c: a * b + c,
        method=True,
        out="out",
        complex=True,
    ),
    Case(
        "zoo_center",
        lambda make: (make(3, 4), 0),
        lambda x, dim: x - x.mean(dim, keepdim=True),
        method=True,
        complex=True,
    ),
    Case(
        "zoo_scale_shift",
        lambda make: (make(3, 4), make(4), make(4)),
        _scale_shift,
        out="out",
        complex=True,
        note="all",
    ),
    Case(
        "zoo_scale_shift",
        lambda make: (make(3, 4), None, make(4)),
        _scale_shift,
        out="out",
        complex=True,
        note="without-scale",
    ),
    Case("zoo_scale_shift", lambda make: (make(3, 4),), _scale_shift, out="out", note="alone"),
    Case(
        "zoo_with_last",
        lambda make: (make(3, 4), make(4)),
        _with_last,
        method=True,
        out="out",
        complex=True,
    ),
    Case("zoo_skip", lambda make: (make(3, 5), 2), _skip, method=True, complex=True),
    Case("zoo_skip_copy", lambda make: (make(3, 5), 2), _skip, out="out", complex=True),
    Case("zoo_halves", lambda make: (make(5, 2),), _halves, method=True, complex=True),
    Case("zoo_halves_copy", lambda make: (make(2, 5), 1), _halves, complex=True),
    Case("zoo_columns", lambda make: (make(2, 3),), torch.t, method=True, complex=True),
    Case(
        "zoo_stack_mean",
        lambda make: ([make(3), make(3), make(3)],),
        lambda tensors: torch.stack(tensors).mean(0),
        out="out",
        complex=True,
    ),
    Case(
        "zoo_powers",
        lambda make: (make(3), 3),
        lambda x, count: [x ** (i + 1) for i in range(count)],
        method=True,
        complex=True,
    ),
    Case(
        "zoo_neighbour_sums",
        lambda make: ([make(3), make(3), make(3)],),
        lambda tensors: [tensors[0] + tensors[1], tensors[1] + tensors[2]],
        complex=True,
    ),
    Case(
        "zoo_add_present",
        # Python's argument parser takes no None in a list; torch.ops does
        lambda make: (make(3), [make(3), make(3)]),
        lambda x, others: x + others[0] + others[1],
        method=True,
        complex=True,
    ),
    Case(
        "zoo_sum_diff",
        lambda make: (make(3, 1), make(4)),
        lambda a, b: (a + b, a - b),
        method=True,
        out="out",
        complex=True,
    ),
    Case("zoo_moments", lambda make: (make(3, 4), 0), _moments, method=True, out="out"),
    Case(
        "zoo_peak",
        lambda make: (make(3, 4), 1),
        lambda x, dim: tuple(x.max(dim)),
        method=True,
    ),
    Case(
        "zoo_gram",
        lambda make: (make(3, 2), make(4, 2)),
        lambda a, b: a @ b.mH,
        out="out",
        complex=True,
    ),
    Case("zoo_pool", lambda make: (make(3, 4),), _pool, method=True, out="out", complex=True),
    Case(
        "zoo_pool",
        lambda make: (make(3, 4),),
        _pool,
        kwargs={"mode": "norm"},
        method=True,
        out="out",
        note="norm",
    ),
    Case(
        "zoo_tile",
        lambda make: (make(2, 3), 2),
        lambda x, pattern: x.repeat(pattern, pattern),
        method=True,
        complex=True,
    ),
    Case(
        "zoo_shift",
        lambda make: (make(2, 3), 1),
        lambda x, by: x.roll(by, -1),
        method=True,
        out="out",
        complex=True,
    ),
    Case(
        "zoo_total",
        lambda make: (make(2, 3),),
        lambda x, dtype=None: x.sum(dtype=dtype),
        method=True,
        out="out",
        complex=True,
    ),
    Case(
        "zoo_adjust",
        lambda make: (make(2, 3), [2, 0.5], [0.25, 1.0]),
        _adjust,
        kwargs={"repeat": 2, "floor": -100.0, "negate": True},
    ),
    Case("zoo_shout", lambda make: (make(3),), lambda x: x + x, function=False, method=True),
    Case("zoo_nn_gate", lambda make: (make(3, 4),), _gate, home="_C._nn"),
    Case(
        "zoo_nn_scaled",
        lambda make: (make(3), 5),
        lambda x, factor: x * factor,
        home="_C._nn",
        out="out",
        complex=True,
    ),
    Case(
        "zoo_special_cube",
        lambda make: (make(3),),
        lambda x: x**3,
        home="_C._special",
        out="out",
        complex=True,
    ),
    Case(
        "zoo_linalg_trace",
        lambda make: (make(2, 3, 3),),
        lambda x: x.diagonal(0, -2, -1).sum(-1),
        home="_C._linalg",
        complex=True,
    ),
    Case(
        "zoo_fft_energy",
        lambda make: (make(2, 4),),
        lambda x: torch.fft.fft(x).abs().square().sum(-1),
        home="_C._fft",
        dynamic=_fft_takes_symbolic_shapes(),
    ),
    Case(
        "hypot",
        lambda make: (make(3), make(3)),
        lambda a, b, scale: (a.square() + b.square()).sqrt() * scale,
        kwargs={"scale": 3},
        overload="zoo",
        method=True,
        out="zoo_out",
    ),
    Case(
        "aminmax",
        lambda make: (make(3), make(3)),
        lambda a, b: (torch.minimum(a, b), torch.maximum(a, b)),
        overload="zoo",
        method=True,
        differentiable=False,
    ),
    Case(
        "zoo_phase",
        lambda make: (make(3),),
        lambda x: torch.polar(torch.ones_like(x), x),
        method=True,
        out="out",
    ),
    Case(
        "zoo_abs2",
        lambda make: (make(3),),
        lambda x: x.abs().square(),
        method=True,
        out="out",
        complex=True,
    ),
)

DIFFERENTIABLE = tuple(case for case in CASES if case.differentiable)
COMPLEX = tuple(case for case in CASES if case.complex)
IMPLICIT = frozenset(  # CompositeImplicitAutograd: autograd sees what they are made of
    {
        "zoo_center", "zoo_columns", "zoo_neighbour_sums", "zoo_add_present", "zoo_tile",
        "zoo_adjust", "zoo_shout", "zoo_nn_gate", "zoo_linalg_trace", "zoo_fft_energy",
    }
)  # fmt: skip
