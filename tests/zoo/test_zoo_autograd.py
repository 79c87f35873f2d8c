"""The zoo's derivative formulas, first and second order, forward and backward, real and complex."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.testing import assert_close
from zoo_cases import COMPLEX, DIFFERENTIABLE, IMPLICIT, Case, maker, on_tensors, tensors_of

by_case = pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case.id)


def problem(case: Case, dtype: torch.dtype) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A function of tensors to differentiate, and where."""
    args = case.args(maker(dtype, requires_grad=True))
    flat = on_tensors(case.call, args)

    def differentiable(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t for t in flat(*tensors) if t.is_floating_point() or t.is_complex())

    return differentiable, tuple(tensors_of(args))


@by_case
def test_gradients_backward_and_forward(case: Case) -> None:
    assert gradcheck(*problem(case, torch.float64), check_forward_ad=case.forward_ad)


@by_case
def test_second_derivatives(case: Case) -> None:
    assert gradgradcheck(*problem(case, torch.float64))


@pytest.mark.parametrize("case", COMPLEX, ids=lambda case: case.id)
def test_complex_gradients(case: Case) -> None:
    function, inputs = problem(case, torch.complex128)
    assert gradcheck(function, inputs, check_forward_ad=case.forward_ad)
    assert gradgradcheck(function, inputs)


@by_case
def test_node_has_the_name_that_the_code_generator_gives(case: Case) -> None:
    if case.name not in IMPLICIT:
        outputs = tensors_of(case.call(*case.args(maker(requires_grad=True))))
        # a view's copying variant shares the view's formula and says so at the end of the name
        view, copy = (case.name.removesuffix("_copy"), case.name.endswith("_copy"))
        words = "".join(word.capitalize() for word in view.split("_"))
        number = "1" if case.overload == "zoo" else "0"
        expected = f"{words}Backward{number}{'_copy' if copy else ''}"
        assert outputs[0].grad_fn.name() == expected


def test_real_input_of_a_complex_result_gets_a_real_gradient() -> None:
    x = maker()(3).requires_grad_()
    z = maker(torch.complex128)(3).requires_grad_()
    for result in (torch.zoo_phase(x), torch.zoo_blend(x, z), torch.zoo_muladd(z, x, x)):
        (grad,) = torch.autograd.grad(result.abs().sum(), x)
        assert grad.dtype == torch.float64
    assert gradcheck(torch.zoo_blend, (x, z), check_forward_ad=True)


def test_complex_input_of_a_real_result_gets_a_complex_gradient() -> None:
    z = maker(torch.complex128)(3).requires_grad_()
    (grad,) = torch.autograd.grad(torch.zoo_abs2(z).sum(), z)
    assert_close(grad, 2 * z.detach())


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_two_results_alone_can_be_differentiated(used: int) -> None:
    make = maker(requires_grad=True)
    a, b = make(3), make(3)
    assert gradcheck(lambda a, b: torch.zoo_sum_diff(a, b)[used], (a, b))
    assert gradcheck(lambda a: torch.zoo_moments(a)[used], (a,))
    assert gradgradcheck(lambda a: torch.zoo_moments(a)[used], (a,))
    assert gradcheck(lambda a: torch.zoo_powers(a, 2)[used], (a,))
    assert gradcheck(lambda a: torch.zoo_halves(a)[used], (a,))


def test_missing_optional_tensors_get_no_gradient_and_do_no_harm() -> None:
    x = maker(requires_grad=True)(3)
    for arguments in ((x,), (x, None), (x, None, None)):
        (grad,) = torch.autograd.grad(torch.zoo_scale_shift(*arguments).sum(), x)
        assert_close(grad, torch.ones_like(x))


def test_output_mask_spares_what_nobody_asks_for() -> None:
    make = maker()
    a, b = make(3, 2), make(4, 2)
    grad = torch.ones(3, 4, dtype=torch.float64)
    backward = torch.ops.aten.zoo_gram_backward
    for mask in ([True, False], [False, True], [True, True]):
        results = backward(grad, a, b, mask)
        assert [r is not None for r in results] == mask
    for leaf in (a, b):
        leaf.requires_grad_()
        assert gradcheck(torch.zoo_gram, (a, b))
        leaf.requires_grad_(False)


def test_output_differentiability_marks_the_other_result() -> None:
    values, indices = torch.zoo_peak(maker(requires_grad=True)(3, 4))
    assert values.requires_grad
    assert not indices.requires_grad
    assert indices.dtype == torch.int64


def test_factory_like_an_input_is_not_differentiable() -> None:
    x = maker(requires_grad=True)(3)
    assert not torch.zoo_ramp_like(x).requires_grad
    assert torch.zoo_ramp_like(x, requires_grad=True).is_leaf


def test_formula_saves_the_result_and_in_place_change_of_it_is_noticed() -> None:
    x = maker(requires_grad=True)(3)
    y = torch.zoo_softclip(x)
    assert_close(y.grad_fn._saved_result, y.detach())
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_formula_saves_inputs_strings_numbers_and_lists() -> None:
    make = maker(requires_grad=True)
    x, y = make(3), make(3)
    assert torch.zoo_blend(x, y, alpha=3).grad_fn._saved_other is y
    assert torch.zoo_pool(x, mode="sum").grad_fn._saved_mode == "sum"
    assert torch.zoo_shift(x, 2).grad_fn._saved_by == 2
    assert torch.zoo_window_sum(x, 2).grad_fn._saved_self_sym_sizes == (3,)


def test_in_place_variants_are_differentiable() -> None:
    make = maker(requires_grad=True)
    x, y = make(3), make(3)
    assert gradcheck(lambda x: x.clone().zoo_softclip_(2), (x,), check_forward_ad=True)
    assert gradcheck(lambda x, y: x.clone().zoo_blend_(y, alpha=2), (x, y), check_forward_ad=True)
    assert gradgradcheck(lambda x, y: x.clone().zoo_blend_(y, alpha=2), (x, y))


def test_in_place_on_a_leaf_that_requires_grad_is_refused() -> None:
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        maker(requires_grad=True)(3).zoo_fill_ramp_()


def test_overwriting_in_place_cuts_the_gradient() -> None:
    x = maker(requires_grad=True)(3)
    y = (x * 2).zoo_fill_ramp_(2)
    assert_close(y.detach(), torch.tensor([0.0, 2, 4], dtype=torch.float64))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert_close(grad, torch.zeros_like(x))


def test_mutated_argument_gets_no_gradient_and_the_other_does() -> None:
    x = maker(requires_grad=True)(4, 3)
    running = torch.zeros(3, dtype=torch.float64)
    result = torch.zoo_running_mean(x, running, 0.5)
    assert_close(running, x.detach().mean(0) / 2)
    (grad,) = torch.autograd.grad(result.sum(), x)
    assert_close(grad, torch.ones_like(x))


def test_random_operator_is_differentiable_with_its_draw_held_fixed() -> None:
    def dither(x: torch.Tensor) -> torch.Tensor:
        return torch.zoo_dither(x, generator=torch.Generator().manual_seed(3)).square()

    assert gradcheck(dither, (maker(requires_grad=True)(3),), check_forward_ad=True)


def test_data_dependent_selection_is_differentiable() -> None:
    x = torch.tensor([1.0, -2, 3, -4, 5], dtype=torch.float64, requires_grad=True)
    assert gradcheck(torch.zoo_nonnegative, (x,), check_forward_ad=True)


def test_forward_mode_tangent_of_a_view_is_a_view_of_the_tangent() -> None:
    x, tangent = maker()(4), torch.ones(4, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        seen = forward_ad.unpack_dual(torch.zoo_skip(dual)).tangent
        assert seen._is_view() and seen._base is tangent


@pytest.mark.parametrize("order", ["jacrev", "jacfwd"])
def test_functorch_transforms_agree_with_autograd(order: str) -> None:
    x = maker()(3)
    transform = getattr(torch.func, order)
    expected = torch.autograd.functional.jacobian(torch.zoo_softclip, x)
    assert_close(transform(torch.zoo_softclip)(x), expected)
