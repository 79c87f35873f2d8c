"""depthwise_conv2d_ext: derivatives of every order and mode, every mask, undefined gradients."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from depthwise_cases import FORMATS, Case, Inputs, conv2d, make_inputs
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

op = torch.depthwise_conv2d_ext
backward = torch.ops.aten.depthwise_conv2d_ext_backward
MASKS = [mask for mask in product((True, False), repeat=3) if any(mask)]
# Small enough for exact (slow-mode) checks, and each with something the others lack.
SMALL = [
    Case(2, 2, 1, (3, 4), (2, 3), padding=(1, 1)),
    Case(1, 2, 2, (4, 3), (2, 2), stride=(2, 1), padding=(0, 1)),
    Case(2, 1, 1, (5, 4), (2, 2), stride=(1, 2), dilation=(2, 1)),
    Case(1, 2, 1, (1, 2), (3, 3), padding=(2, 1), dilation=(1, 1), bias=False),
]


def leaves(case: Case, device: str, memory_format: torch.memory_format) -> list[Tensor]:
    """The present inputs, each requiring a gradient."""
    inputs = make_inputs(case, device=device, memory_format=memory_format)
    return [t.requires_grad_() for t in inputs if t is not None]


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradcheck_of_every_order_and_mode(
    case: Case, memory_format: torch.memory_format, device: str
) -> None:
    """Reverse, forward, reverse over reverse, forward over reverse."""
    tensors = leaves(case, device, memory_format)

    def call(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return op(x, w, b, *case.window)

    assert gradcheck(call, tensors, check_forward_ad=True, nondet_tol=0.0)
    assert gradgradcheck(call, tensors, check_fwd_over_rev=True, nondet_tol=0.0)


@pytest.mark.usefixtures("no_vmap_fallback")
def test_batched_gradients() -> None:
    """vmap over the backward, as is_grads_batched asks."""
    case = SMALL[1]
    tensors = leaves(case, "cpu", torch.contiguous_format)

    def call(*args: Tensor) -> Tensor:
        return op(*args, *case.window)

    assert gradcheck(
        call,
        tensors,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(call, tensors, check_batched_grad=True)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("multiplier", [1, 2])
def test_double_backward_with_every_mask(
    mask: tuple[bool, bool, bool], multiplier: int, device: str
) -> None:
    """The derivative of the backward itself, for whichever results it gives; third order too."""
    case = Case(2, 2, multiplier, (3, 4), (2, 3), stride=(1, 2), padding=(1, 1))
    x, w, _ = leaves(case, device, torch.contiguous_format)
    grad = torch.randn_like(op(x, w, None, *case.window)).requires_grad_()

    def call(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        results = backward(grad, x, w, *case.window, mask)
        return tuple(t for t in results if t is not None)

    assert gradcheck(call, (grad, x, w), check_forward_ad=True)
    assert gradgradcheck(call, (grad, x, w), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("used", MASKS, ids=str)
@pytest.mark.parametrize("needed", MASKS, ids=str)
def test_undefined_gradients_stand_for_zero(
    used: tuple[bool, bool, bool], needed: tuple[bool, bool, bool], device: str
) -> None:
    """Any subset of the first gradients used, for any subset of the inputs; as conv2d does."""
    case = Case(2, 2, 1, (4, 5), (2, 3), padding=(1, 0))
    x, w, _ = leaves(case, device, torch.contiguous_format)
    grad = torch.randn_like(op(x, w, None, *case.window)).requires_grad_()
    wanted = [t for t, need in zip((grad, x, w), needed, strict=True) if need]

    def second(results: tuple[Tensor, ...]) -> list[Tensor | None]:
        total = sum(t.square().sum() for t, use in zip(results, used, strict=True) if use)
        return list(torch.autograd.grad(total, wanted, allow_unused=True))

    actual = second(backward(grad, x, w, *case.window, (True, True, True)))
    expected = second(
        torch.ops.aten.convolution_backward(
            grad, x, w, [2], *case.window, False, [0, 0], 2, (True, True, True)
        )
    )
    for mine, other in zip(actual, expected, strict=True):
        zero = torch.zeros((), dtype=x.dtype, device=device)
        torch.testing.assert_close(
            zero.expand(1) if mine is None else mine.sum().reshape(1),
            zero.expand(1) if other is None else other.sum().reshape(1),
        )
        if mine is not None and other is not None:
            torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("frozen", MASKS[1:], ids=str)
def test_only_what_requires_a_gradient_gets_one(
    frozen: tuple[bool, bool, bool], device: str
) -> None:
    """Frozen inputs are skipped and the rest is as if nothing were frozen."""
    case = SMALL[0]
    given = make_inputs(case, device=device)
    tensors = [t.clone().requires_grad_(keep) for t, keep in zip(given, frozen, strict=True)]
    y = op(*tensors, *case.window)
    y.square().sum().backward()
    exact = [t.clone().requires_grad_() for t in given]
    conv2d(case, Inputs(*exact)).square().sum().backward()
    for mine, other, keep in zip(tensors, exact, frozen, strict=True):
        assert (mine.grad is not None) == keep
        if keep:
            torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("with_tangent", MASKS, ids=str)
def test_forward_mode_with_some_tangents(
    with_tangent: tuple[bool, bool, bool], device: str
) -> None:
    """The directional derivative of conv2d, for each subset of inputs that carry a tangent."""
    case = SMALL[0]
    primals = make_inputs(case, device=device)
    tangents = [torch.randn_like(t) for t in primals]
    with forward_ad.dual_level():
        duals = Inputs(
            *(
                forward_ad.make_dual(p, t) if use else p
                for p, t, use in zip(primals, tangents, with_tangent, strict=True)
            )
        )
        actual = forward_ad.unpack_dual(op(*duals, *case.window)).tangent
        expected = forward_ad.unpack_dual(conv2d(case, duals)).tangent
    torch.testing.assert_close(actual, expected)


def test_forward_mode_without_bias(device: str) -> None:
    """The tangent of an absent bias is absent too."""
    case = SMALL[3]
    x, w, _ = make_inputs(case, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.randn_like(x))
        actual = forward_ad.unpack_dual(op(dual, w, None, *case.window)).tangent
        expected = forward_ad.unpack_dual(conv2d(case, Inputs(dual, w, None))).tangent
    torch.testing.assert_close(actual, expected)


def test_unbatched_gradients(device: str) -> None:
    """[C, H, W] through every order."""
    x = torch.randn(2, 3, 4, device=device, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 1, 2, 2, device=device, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, w: op(x, w, None, 1, 1), (x, w), check_forward_ad=True)
    assert gradgradcheck(lambda x, w: op(x, w, None, 1, 1), (x, w), check_fwd_over_rev=True)


def test_empty_batch_gradients(device: str) -> None:
    """Zeros for the parameters, of their shapes; also second order."""
    x = torch.randn(0, 2, 3, 4, device=device, requires_grad=True)
    w = torch.randn(2, 1, 2, 2, device=device, requires_grad=True)
    (dw,) = torch.autograd.grad(op(x, w).sum(), w, create_graph=True)
    assert torch.equal(dw, torch.zeros_like(w))
    (dx,) = torch.autograd.grad(dw.sum(), x)
    assert dx.shape == x.shape


def test_node_names_are_the_code_generators() -> None:
    """Both operators have a node of their own in the graph."""
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    w = torch.randn(2, 1, 2, 2, requires_grad=True)
    y = op(x, w)
    assert y.grad_fn.name() == "DepthwiseConv2DExtBackward0"
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert dx.grad_fn.name() == "DepthwiseConv2DExtBackwardBackward0"


def test_inputs_changed_after_the_forward_are_noticed() -> None:
    """Saved tensors carry a version: no silently wrong gradient."""
    x = torch.randn(1, 2, 3, 4)
    w = torch.randn(2, 1, 2, 2, requires_grad=True)
    y = op(x, w)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
