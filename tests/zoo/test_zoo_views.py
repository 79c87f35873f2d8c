"""Views of the zoo: aliasing, version counters, autograd through them, and functionalization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

VIEWS = {
    "zoo_skip": lambda x: torch.zoo_skip(x, 2),
    "zoo_halves": lambda x: torch.zoo_halves(x)[1],
    "zoo_columns": lambda x: torch.zoo_columns(x),
}
by_view = pytest.mark.parametrize("name", VIEWS)


def base_tensor(requires_grad: bool = False) -> torch.Tensor:
    """A tensor that is no view itself."""
    values = torch.arange(12, dtype=torch.float64).reshape(3, 4).clone()
    return values.requires_grad_(requires_grad)


@by_view
def test_result_is_a_view_of_its_input(name: str) -> None:
    base = base_tensor()
    view = VIEWS[name](base)
    assert view._is_view()
    assert view._base is base
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


@by_view
def test_writing_to_the_view_changes_the_base_and_both_versions(name: str) -> None:
    base = base_tensor()
    view = VIEWS[name](base)
    before = base.clone()
    view.add_(100)
    assert base._version == view._version == 1
    assert (base - before).sum() == 100 * view.numel()


def test_writing_to_the_base_after_a_view_was_saved_is_noticed() -> None:
    base = base_tensor(requires_grad=True).clone()
    product = torch.zoo_skip(base).square().sum()
    base.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("name", ["zoo_skip", "zoo_columns"])
def test_in_place_on_the_view_sends_gradients_through_the_base(name: str) -> None:
    leaf = base_tensor(requires_grad=True)
    base = leaf.clone()
    VIEWS[name](base).mul_(3)
    (grad,) = torch.autograd.grad(base.sum(), leaf)
    expected = torch.ones(3, 4, dtype=torch.float64)
    VIEWS[name](expected).mul_(3)
    assert_close(grad, expected)


def test_in_place_on_one_of_several_views_is_refused_when_gradients_flow() -> None:
    base = base_tensor(requires_grad=True).clone()
    half = torch.zoo_halves(base)[0]
    with pytest.raises(RuntimeError, match="returns multiple views"):
        half.mul_(2)


def test_writing_to_a_view_taken_without_grad_is_refused() -> None:
    leaf = base_tensor(requires_grad=True)
    with torch.no_grad():
        view = torch.zoo_skip(leaf)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        view.add_(1)


@by_view
def test_view_can_be_replayed_on_another_base(name: str) -> None:
    base = base_tensor()
    other = base + 50
    replayed = VIEWS[name](base)._view_func(other)
    assert replayed._base is other
    assert_close(replayed, VIEWS[name](other))


def test_view_of_a_view_has_the_first_base() -> None:
    base = base_tensor()
    assert torch.zoo_skip(base[1:])._base is base
    assert torch.zoo_skip(base)[1:]._base is base


def test_copying_variants_share_nothing() -> None:
    base = base_tensor()
    copies = [torch.zoo_skip_copy(base), *torch.zoo_halves_copy(base)]
    for copy in copies:
        assert not copy._is_view()
        copy.zero_()
    assert_close(base, base_tensor())


def test_a_view_in_place_is_the_tensor_itself() -> None:
    base = base_tensor()
    view = base.clone()
    storage = view.data_ptr()
    assert view.zoo_skip_(2) is view
    assert view.data_ptr() == storage
    assert_close(view, torch.zoo_skip(base, 2))


def mutates_skip(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    torch.zoo_skip(y, 2).add_(1)
    return y


def skips_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.zoo_skip_(2)
    y.add_(1)
    return y


def mutates_half(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    torch.zoo_halves(y)[1].mul_(2)
    return y


def mutates_columns(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    torch.zoo_columns(y)[0].zero_()
    return y


def mutates_base(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    first, second = torch.zoo_halves(y, 1)
    skipped = torch.zoo_skip(y)
    y.add_(1)
    return first + second + skipped


MUTATIONS = [mutates_skip, skips_in_place, mutates_half, mutates_columns, mutates_base]


@pytest.mark.parametrize("function", MUTATIONS)
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_functionalization_replays_mutations_of_views(function: Any, remove: str) -> None:
    x = base_tensor()
    functional = torch.func.functionalize(function, remove=remove)
    assert_close(functional(x), function(x))
    graph = make_fx(functional)(x)
    assert not [n for n in graph.graph.nodes if "_." in str(n.target).removeprefix("aten.")]


def test_functionalization_uses_the_copying_operator_in_place_of_the_view() -> None:
    functional = torch.func.functionalize(mutates_skip, remove="mutations_and_views")
    targets = {node.target for node in make_fx(functional)(base_tensor()).graph.nodes}
    assert torch.ops.aten.zoo_skip_copy.default in targets
    assert torch.ops.aten.zoo_skip.default not in targets


@pytest.mark.parametrize("function", MUTATIONS)
def test_compiles_with_mutation_through_a_view(function: Any) -> None:
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_close(compiled(base_tensor()), function(base_tensor()))


@pytest.mark.parametrize("function", [mutates_skip, skips_in_place, mutates_columns])
def test_compiled_mutation_through_a_view_has_the_right_gradient(function: Any) -> None:
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = base_tensor(requires_grad=True)
    compiled_grad = torch.autograd.grad(compiled(x).square().sum(), x)
    assert_close(compiled_grad, torch.autograd.grad(function(x).square().sum(), x))


def test_compiled_function_returns_a_view_of_its_input() -> None:
    compiled = torch.compile(torch.zoo_skip, fullgraph=True, backend="aot_eager")
    x = base_tensor()
    view = compiled(x)
    assert view._base is x
    view.zero_()
    assert x.sum() == x[:, 1::2].sum()


def test_symbolic_step_sizes_compile_for_every_shape() -> None:
    compiled = torch.compile(mutates_skip, fullgraph=True, backend="aot_eager", dynamic=True)
    for width in (4, 5, 6):
        x = torch.rand(3, width)
        assert_close(compiled(x), mutates_skip(x))
