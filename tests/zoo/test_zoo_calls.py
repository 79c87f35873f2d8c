"""Every operator of the zoo, called in every way that a native operator can be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode, get_testing_overrides
from torch.testing import assert_close
from zoo_cases import CASES, DIFFERENTIABLE, IMPLICIT, Case, maker, on_tensors, tensors_of

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
by_differentiable = pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case.id)


def close(actual: Any, expected: Any) -> None:
    """Compare the tensors of two results, whatever they are packed in."""
    assert_close(tensors_of(actual), tensors_of(expected))


def gradients(call: Callable[..., Any], case: Case) -> list[torch.Tensor | None]:
    """Gradients of the sum of all differentiable results, for every tensor argument."""
    args = case.args(maker(requires_grad=True))
    outputs = [out for out in tensors_of(call(*args)) if out.requires_grad]
    total = sum((out * out.conj()).real.sum() for out in outputs)
    return list(torch.autograd.grad(total, tensors_of(args), allow_unused=True))


@by_case
def test_values_equal_the_same_in_upstream_operators(case: Case) -> None:
    close(case.call(*case.args(maker())), case.expected(*case.args(maker())))


@by_case
def test_torch_ops_gives_what_the_python_function_gives(case: Case) -> None:
    args = case.args(maker())
    close(case.aten(*args, **case.kwargs), case.expected(*args))


@by_case
def test_function_and_method_are_bound_as_the_schema_says(case: Case) -> None:
    holder, _, name = case.function_path.rpartition(".")
    home = torch if not holder else eval(f"torch.{holder}")
    assert hasattr(home, name) == case.function
    assert hasattr(torch.Tensor, name) == case.method
    if case.method:
        self, *rest = case.args(maker())
        close(getattr(self, name)(*rest, **case.kwargs), case.expected(self, *rest))


@by_case
def test_builtin_is_a_builtin_like_upstreams(case: Case) -> None:
    if case.function:
        assert type(case.python_function) is type(torch.ravel)
        assert case.python_function.__name__ == case.name
    if case.method:
        assert type(case.python_method) is type(torch.Tensor.ravel)


@pytest.mark.parametrize("case", [c for c in CASES if c.out], ids=lambda case: case.id)
def test_out_variant_writes_into_what_it_is_given(case: Case) -> None:
    args = case.args(maker())
    expected = tensors_of(case.expected(*args))
    variant = getattr(getattr(torch.ops.aten, case.name), case.out)
    outs = [torch.empty(0, dtype=e.dtype) for e in expected]
    names = [a.name for a in variant._schema.arguments if a.is_out]
    returned = variant(*args, **case.kwargs, **dict(zip(names, outs, strict=True)))
    close(outs, expected)
    assert [r is o for r, o in zip(tensors_of(returned), outs, strict=True)] == [True] * len(outs)


@by_case
def test_compiles_without_a_graph_break(case: Case) -> None:
    args = case.args(maker())
    compiled = torch.compile(lambda *a: case.call(*a), fullgraph=True, backend="aot_eager")
    close(compiled(*args), case.expected(*args))


@by_differentiable
def test_compiled_backward_equals_the_eager_one(case: Case) -> None:
    compiled = torch.compile(lambda *a: case.call(*a), fullgraph=True, backend="aot_eager")
    close(gradients(compiled, case), gradients(case.expected, case))


@by_case
def test_dynamo_puts_the_operator_itself_into_the_graph(case: Case) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(lambda *a: case.call(*a), fullgraph=True, backend=keep)(*case.args(maker()))
    targets = {node.target for node in graphs[0].graph.nodes}
    assert targets & {case.name, case.python_function if case.function else case.name}


class Recorder(TorchFunctionMode):
    """Remembers which functions were called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Tagged(torch.Tensor):
    """A subclass that remembers what it was passed to."""

    seen: list[Any]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@by_case
def test_torch_function_mode_sees_function_and_method(case: Case) -> None:
    args = case.args(maker())
    if case.function:
        with Recorder() as mode:
            case.call(*args)
        assert mode.seen[0] is case.python_function
    if case.method:
        with Recorder() as mode:
            getattr(args[0], case.name)(*args[1:], **case.kwargs)
        assert mode.seen[0] is case.python_method


@by_case
def test_torch_function_of_a_subclass_sees_the_call_and_keeps_its_type(case: Case) -> None:
    Tagged.seen = []
    args = case.args(maker())
    flat = on_tensors(case.call, args)
    results = flat(*(t.as_subclass(Tagged) for t in tensors_of(args)))
    assert (case.python_function if case.function else case.python_method) in Tagged.seen
    assert {type(r) for r in results} == {Tagged}
    close([r.as_subclass(torch.Tensor) for r in results], case.expected(*args))


@by_case
def test_overrides_knows_the_signature(case: Case) -> None:
    known = get_testing_overrides()
    args = case.args(maker())
    for bound, present in ((case.function, "function"), (case.method, "method")):
        if bound:
            target = case.python_function if present == "function" else case.python_method
            assert target in known
            if case.overload == "default":  # upstream's entry for its own name stays as it is
                inspect.signature(known[target]).bind(*args, **case.kwargs)


@by_case
def test_opcheck(case: Case) -> None:
    """Truth about aliases and mutation, autograd registration, fake tensors, AOT dispatch."""
    args = case.args(maker(requires_grad=case.differentiable))
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    tests += ["test_aot_dispatch_dynamic" if case.dynamic else "test_aot_dispatch_static"]
    torch.library.opcheck(case.aten, args, case.kwargs, test_utils=tests)


@by_case
def test_functionalization_keeps_the_value(case: Case) -> None:
    args = case.args(maker())
    flat = on_tensors(case.call, args)
    for remove in ("mutations", "mutations_and_views"):
        functional = torch.func.functionalize(lambda *t: flat(*t), remove=remove)
        close(functional(*tensors_of(args)), case.expected(*args))


@by_case
def test_meta_tensors_give_the_shape_strides_and_type_of_the_real_result(case: Case) -> None:
    args = case.args(maker())
    real = tensors_of(case.call(*args))
    meta = on_tensors(case.call, args)(*(t.to("meta") for t in tensors_of(args)))
    for m, r in zip(meta, real, strict=True):
        assert (m.device.type, m.shape, m.stride(), m.dtype) == (
            "meta", r.shape, r.stride(), r.dtype,
        )  # fmt: skip


def script_function(x: torch.Tensor) -> torch.Tensor:
    return torch.zoo_blend(torch.zoo_softclip(x, 2), x, alpha=3)


def script_method(x: torch.Tensor) -> torch.Tensor:
    return x.zoo_shout().zoo_window_sum(2, 0)


def script_list(x: torch.Tensor) -> list[torch.Tensor]:
    return torch.zoo_neighbour_sums(x.zoo_powers(3))


def script_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.zoo_skip(2).add_(1)
    return y


def script_module(x: torch.Tensor) -> torch.Tensor:
    return torch._C._nn.zoo_nn_scaled(torch._C._special.zoo_special_cube(x), 2)


def script_overload(x: torch.Tensor) -> torch.Tensor:
    return torch.hypot(x, x, scale=3) + torch.hypot(x, x)


def script_optional(x: torch.Tensor) -> torch.Tensor:
    return torch.zoo_scale_shift(x, None, x)


def script_string(x: torch.Tensor) -> torch.Tensor:
    return torch.zoo_pool(x, mode="sum")


def script_tuple(x: torch.Tensor) -> torch.Tensor:
    mean, second = torch.zoo_moments(x, 0)
    return mean + second


def script_number(x: torch.Tensor) -> int:
    return torch.zoo_count_above(x, 0.5)


@pytest.mark.parametrize(
    "function",
    [
        script_function, script_method, script_list, script_view, script_module, script_overload,
        script_optional, script_string, script_tuple, script_number,
    ],
)  # fmt: skip
def test_torchscript_compiles_and_survives_saving(function: Any, tmp_path: Any) -> None:
    x = maker()(6)
    scripted = torch.jit.script(function)
    path = str(tmp_path / "scripted.pt")
    torch.jit.save(scripted, path)
    for compiled in (scripted, torch.jit.load(path)):
        expected = function(x)
        if isinstance(expected, int):
            assert compiled(x) == expected
        else:
            close(compiled(x), expected)


@by_case
def test_torch_dispatch_sees_the_operator_unless_it_is_made_of_others(case: Case) -> None:
    args = case.args(maker())
    graph = make_fx(on_tensors(case.call, args))(*tensors_of(args))
    close(graph(*tensors_of(args)), case.expected(*args))
    seen = case.aten in {node.target for node in graph.graph.nodes}
    assert seen == (case.name not in IMPLICIT)
