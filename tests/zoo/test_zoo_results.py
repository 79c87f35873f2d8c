"""What the zoo's operators return beside one tensor: tuples, structs, lists, numbers, nothing."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from zoo_cases import maker


def test_named_results_are_a_struct_sequence() -> None:
    x = maker()(3, 4)
    result = torch.zoo_moments(x, 0)
    assert type(result) is torch.return_types.zoo_moments
    assert result.mean is result[0] and result.second is result[1]
    assert (type(result).n_fields, result.__class__.__module__) == (2, "torch.return_types")
    assert repr(result).startswith("torch.return_types.zoo_moments(\nmean=tensor(")
    assert type(x.zoo_moments(0)) is type(result)
    assert type(torch.zoo_peak(x)) is torch.return_types.zoo_peak


def test_struct_sequence_is_a_pytree_and_pickles() -> None:
    result = torch.zoo_moments(maker()(3, 4))
    leaves, spec = pytree.tree_flatten(result)
    assert len(leaves) == 2
    rebuilt = pytree.tree_unflatten([leaf + 1 for leaf in leaves], spec)
    assert type(rebuilt) is torch.return_types.zoo_moments
    assert_close(rebuilt.mean, result.mean + 1)
    assert type(pickle.loads(pickle.dumps(result))) is type(result)


def test_struct_sequence_survives_compile() -> None:
    compiled = torch.compile(
        lambda x: torch.zoo_moments(x, keepdim=True), fullgraph=True, backend="aot_eager"
    )
    x = maker()(3, 4)
    result = compiled(x)
    assert type(result) is torch.return_types.zoo_moments
    assert_close(tuple(result), tuple(torch.zoo_moments(x, keepdim=True)))


def test_named_results_take_a_tuple_for_out() -> None:
    x = maker()(3, 4)
    mean, second = torch.empty(0, dtype=x.dtype), torch.empty(0, dtype=x.dtype)
    result = torch.zoo_moments(x, out=(mean, second))
    assert type(result) is torch.return_types.zoo_moments_out
    assert result.mean is mean
    assert_close((mean, second), tuple(torch.zoo_moments(x)))


def test_list_with_missing_tensors_through_torch_ops() -> None:
    x = maker()(3)
    assert_close(torch.ops.aten.zoo_add_present(x, [None, x, None]), x + x)
    assert_close(torch.ops.aten.zoo_add_present(x, [None]), x)
    with pytest.raises(TypeError, match="expected Tensor as element 0"):
        torch.zoo_add_present(x, [None])


def test_unnamed_results_are_a_tuple_and_lists_of_tensors_too() -> None:
    x = maker()(4)
    assert type(torch.zoo_sum_diff(x, x)) is tuple
    assert type(torch.zoo_powers(x, 2)) in (tuple, list)
    assert type(torch.zoo_halves(x)) is type(torch.split(x, 2))


def test_numbers() -> None:
    x = torch.tensor([1.0, 2, 4])
    assert (type(torch.zoo_count_above(x, 1.5)), x.zoo_count_above(1.5)) == (int, 2)
    assert (torch.zoo_is_sorted(x), x.flip(0).zoo_is_sorted()) == (True, False)
    assert (type(torch.zoo_spread(x)), x.zoo_spread()) == (float, 3.0)


def test_a_scalar_is_a_tensor_of_no_dimension_as_upstreams_bindings_make_it() -> None:
    first = torch.tensor([1.5, 2]).zoo_first()
    assert (first.dim(), first.item()) == (0, 1.5)
    assert torch.zoo_first(torch.tensor([1 + 2j])).item() == 1 + 2j
    assert torch.ops.aten.zoo_first(torch.tensor([3, 4])) == 3


def test_type_is_a_dtype() -> None:
    tensors = [torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.float16)]
    assert torch.zoo_common_type(tensors) is torch.float16


def test_nothing_is_none_and_its_check_names_the_argument() -> None:
    assert torch.zoo_require_rank(torch.ones(2, 2), 2) is None
    with pytest.raises(RuntimeError, match="zoo_require_rank: mask must have 3 dimensions, got 2"):
        torch.zoo_require_rank(torch.ones(2, 2), 3, name="mask")


@pytest.mark.parametrize(
    "name", ["zoo_count_above", "zoo_is_sorted", "zoo_spread", "zoo_first", "zoo_nonnegative"]
)
def test_data_dependent_results_break_the_graph_and_are_right(name: str) -> None:
    x = torch.tensor([1.0, 2, 4])
    compiled = torch.compile(lambda x: getattr(torch, name)(x * 2), backend="aot_eager")
    assert_close(torch.as_tensor(compiled(x)), torch.as_tensor(getattr(torch, name)(x * 2)))


@pytest.mark.parametrize("name", ["zoo_count_above", "zoo_is_sorted", "zoo_spread", "zoo_first"])
def test_numbers_of_meta_tensors_are_refused(name: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)meta"):
        getattr(torch, name)(torch.empty(3, device="meta"))


def test_numbers_can_be_overridden_by_a_subclass() -> None:
    class Fixed(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return (
                41
                if func is torch.zoo_count_above
                else super().__torch_function__(func, types, args, kwargs or {})
            )

    assert torch.zoo_count_above(torch.ones(3).as_subclass(Fixed)) == 41


def test_dtype_by_keyword_only() -> None:
    x = torch.ones(3, dtype=torch.int32)
    assert torch.zoo_total(x).dtype == torch.int64
    assert torch.zoo_total(x, dtype=torch.float64).dtype == torch.float64
    with pytest.raises(TypeError):
        torch.zoo_total(x, torch.float64)


def test_dtype_by_keyword_keeps_the_gradients_type() -> None:
    x = torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad(torch.zoo_total(x, dtype=torch.float64), x)
    assert grad.dtype == torch.float32


def test_masked_gradients_of_none_compile() -> None:
    make = maker()
    a, b = make(3, 2).requires_grad_(), make(4, 2)
    compiled = torch.compile(torch.zoo_gram, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad((a @ b.mH).sum(), a)
    (grad,) = torch.autograd.grad(compiled(a, b).sum(), a)
    assert_close(grad, expected)
