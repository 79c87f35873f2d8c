"""axpy_ext: values, promotion, alpha, broadcasting, strides, variants, derivatives."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import make_tensor

op = torch.axpy_ext
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX]
SHAPES = [
    ((), ()),
    ((0,), (0,)),
    ((1,), (5,)),
    ((33,), (33,)),
    ((4, 1), (1, 35)),
    ((3, 4, 5), (5,)),
    ((2, 0), (1,)),
    ((), (2, 3)),
]


def add(x: Tensor, y: Tensor, alpha: object = 2) -> Tensor:
    """Upstream's operator that says the same."""
    return torch.add(y, x, alpha=alpha)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_those_of_add(
    dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...], device: str
) -> None:
    """Broadcasting included; integers wrap as theirs do."""
    x, y = (make_tensor(shape, dtype=dtype, device=device) for shape in shapes)
    torch.testing.assert_close(op(x, y), add(x, y))
    torch.testing.assert_close(op(x, y, alpha=1), add(x, y, 1))


def test_default_is_the_walkthroughs() -> None:
    """z = 2x + y."""
    x, y = torch.tensor([1.0, -3.0]), torch.tensor([0.5, 4.0])
    assert op(x, y).tolist() == [2.5, -2.0]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("length", [1, 15, 64, 131])
def test_integers_are_exact_modulo_their_width(
    dtype: torch.dtype, length: int, device: str
) -> None:
    """Overflow wraps, for negative alpha too, in vectors and in what is left of them."""
    info = torch.iinfo(dtype)
    x = torch.randint(info.min // 2, info.max // 2, (length,), device=device).to(dtype)
    y = torch.randint(info.min // 2, info.max // 2, (length,), device=device).to(dtype)
    for alpha in (-3, 0, 1, 5, 127):
        expected = [(alpha * a + b - info.min) % 2**info.bits + info.min
                    for a, b in zip(x.tolist(), y.tolist(), strict=True)]  # fmt: skip
        assert op(x, y, alpha=alpha).tolist() == expected
        assert op(x[::2], y[::2], alpha=alpha).tolist() == expected[::2]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtypes", list(product(DTYPES, repeat=2)), ids=str)
def test_promotion_is_that_of_add(dtypes: tuple[torch.dtype, torch.dtype], device: str) -> None:
    """Of dimensioned and of 0-d operands. A result type without a sum has no axpy_ext either."""
    x = make_tensor((3,), dtype=dtypes[0], device=device, low=0, high=4)
    y = make_tensor((3,), dtype=dtypes[1], device=device, low=0, high=4)
    for a, b in ((x, y), (x, y[0]), (x[0], y)):
        if torch.result_type(a, b) in (*DTYPES, torch.complex32):
            torch.testing.assert_close(op(a, b), add(a, b))
        else:  # BComplex32, which 2.14 declares
            with pytest.raises(NotImplementedError):
                torch.add(a, b)
            with pytest.raises(RuntimeError, match=r"axpy_ext.*no kernel for the result"):
                op(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_types_round_once(dtype: torch.dtype, device: str) -> None:
    """alpha and the sum are float's."""
    x, y = torch.randn(1001, device=device).to(dtype), torch.randn(1001, device=device).to(dtype)
    exact = 0.3 * x.double() + y.double()
    error = (op(x, y, alpha=0.3).double() - exact).abs().max()
    assert error <= (add(x, y, 0.3).double() - exact).abs().max()
    assert error <= 0.51 * torch.finfo(dtype).eps * 8


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32_computes_in_complex64(device: str) -> None:
    """As torch.add, which takes it too."""
    x, y = torch.randn(2, 37, dtype=torch.complex64, device=device).to(torch.complex32)
    expected = (0.3j * x.to(torch.complex64) + y.to(torch.complex64)).to(torch.complex32)
    actual = op(x, y, alpha=0.3j)
    assert actual.dtype == torch.complex32
    difference = torch.view_as_real(actual.to(torch.complex64) - expected.to(torch.complex64))
    assert difference.abs().max() < 4e-3


@pytest.mark.parametrize("where", ["here", "meta"])
@pytest.mark.parametrize(
    ("dtype", "alpha", "message"),
    [
        (torch.float32, True, "expected alpha not to be a bool"),
        (torch.int64, True, "expected alpha not to be a bool"),
        (torch.int32, 1.5, "expected alpha to be an integer .*1.5.*Int"),
        (torch.bool, 0.5, "expected alpha to be an integer"),
        (torch.float32, 1j, "expected alpha to be real"),
        (torch.uint8, 256, "expected alpha to be in the range .*256.*Byte"),
        (torch.int16, 2**15, "expected alpha to be in the range"),
        (torch.float32, 1e39, "expected alpha to be in the range"),
        (torch.complex64, 1e39j, "expected alpha to be in the range"),
    ],
    ids=str,
)
def test_alpha_is_checked_as_add_checks_it(
    dtype: torch.dtype, alpha: object, message: str, where: str, device: str
) -> None:
    """Add refuses it as well, and our refusal names operator, argument, value, dtype."""
    x = torch.ones(2, dtype=dtype, device=device)
    with pytest.raises(RuntimeError):
        add(x, x, alpha)
    y = x.to("meta") if where == "meta" else x
    with pytest.raises(RuntimeError, match=rf"axpy_ext\(\): {message}"):
        op(y, y, alpha=alpha)
    with pytest.raises(RuntimeError, match=rf"axpy_ext\(\): {message}"):
        y.axpy_ext_(y, alpha=alpha)


@pytest.mark.parametrize(
    ("dtype", "alpha"),
    [
        (torch.bool, True),
        (torch.bool, False),
        (torch.bool, 2),
        (torch.uint8, -1),
        (torch.uint8, 255),
        (torch.int8, -128),
        (torch.int64, -(2**63)),
        (torch.float16, 6e4),
        (torch.float32, float("inf")),
        (torch.float64, 1e300),
        (torch.complex64, 1 + 2j),
        (torch.complex128, 3),
    ],
    ids=str,
)
def test_alpha_at_its_limits_is_taken(dtype: torch.dtype, alpha: object, device: str) -> None:
    """Whatever add takes."""
    x = make_tensor((19,), dtype=dtype, device=device)
    y = make_tensor((19,), dtype=dtype, device=device)
    torch.testing.assert_close(op(x, y, alpha=alpha), add(x, y, alpha), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_change_no_bit(dtype: torch.dtype, device: str) -> None:
    """Contiguous, transposed, sliced, repeated; strides of the result as add's."""
    x = make_tensor((6, 35), dtype=dtype, device=device)
    y = make_tensor((6, 35), dtype=dtype, device=device)
    expected = op(x, y)
    layouts = (
        lambda t: t,
        lambda t: t.mT.contiguous().mT,
        lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
    )
    for a, b in product(layouts, repeat=2):
        assert torch.equal(op(a(x), b(y)), expected)
        assert op(a(x), b(y)).stride() == torch.add(a(x), b(y)).stride()
    row = x[:1].expand(6, 35)
    assert torch.equal(op(row, y), op(row.contiguous(), y))
    single = y[0, 0].expand(6, 35)
    assert torch.equal(op(x, single), op(x, single.contiguous()))
    assert torch.equal(op(single, x), op(single.contiguous(), x))


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    """Where the threads' shares end falls inside vectors."""
    x, y = torch.randn(2, 100_003).to(dtype)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            results.append(op(x, y, alpha=0.3))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_variants_agree(dtype: torch.dtype, device: str) -> None:
    """Function, method, in-place on either side, out."""
    x = make_tensor((5, 7), dtype=dtype, device=device)
    y = make_tensor((7,), dtype=dtype, device=device)
    z = op(x, y, alpha=3)
    assert torch.equal(x.axpy_ext(y, alpha=3), z)
    a = x.clone()
    assert a.axpy_ext_(y, alpha=3) is a
    assert torch.equal(a, z)
    out = torch.empty_like(x)
    assert op(x, y, alpha=3, out=out) is out
    assert torch.equal(out, z)
    b = torch.stack([y] * 5)
    assert torch.equal(op(x, b, alpha=3, out=b), z)
    c = x.clone()
    assert torch.equal(c.axpy_ext_(c), op(x, x))


def test_bad_operands_are_refused(device: str) -> None:
    """Shapes, results of a lower kind, outputs that overlap, other devices."""
    x = torch.randn(6, device=device)
    with pytest.raises(RuntimeError, match="size of tensor a"):
        op(x, torch.randn(5, device=device))
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(6, dtype=torch.int32, device=device).axpy_ext_(x)
    with pytest.raises(RuntimeError, match="single memory location"):
        op(x[:-1], x[:-1], out=x[1:])
    with pytest.raises(RuntimeError, match="device"):
        op(x, torch.randn(6, device="meta"))
    with pytest.raises(RuntimeError, match=r"broadcast|expand"):
        x.axpy_ext_(torch.randn(2, 6, device=device))


def test_zero_dim_tensors_of_the_cpu_are_taken(device: str) -> None:
    """On either side."""
    x, scalar = torch.randn(5, device=device), torch.tensor(3.0)
    torch.testing.assert_close(op(x, scalar), 2 * x + 3)
    torch.testing.assert_close(op(scalar, x), 6 + x)


@pytest.mark.parametrize("alpha", [2, -0.5, 1, 1 + 2j])
def test_gradients_of_every_order_and_mode(alpha: complex, device: str) -> None:
    """Broadcast operands; a real operand of a complex result gets a real gradient."""
    kind = torch.complex128 if isinstance(alpha, complex) else torch.float64
    x = torch.randn(3, 1, dtype=kind, device=device, requires_grad=True)
    y = torch.randn(4, dtype=kind, device=device, requires_grad=True)

    def call(x: Tensor, y: Tensor) -> Tensor:
        return op(x, y, alpha=alpha)

    assert gradcheck(call, (x, y), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(call, (x, y), check_fwd_over_rev=True)
    if kind == torch.complex128:
        real = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
        assert gradcheck(call, (x, real), check_forward_ad=True)
        assert gradcheck(call, (real, y), check_forward_ad=True)


def test_gradients_of_promoted_operands_have_their_dtypes(device: str) -> None:
    """Each in its own; in-place too."""
    x = torch.randn(3, device=device, requires_grad=True)
    y = torch.randn(3, dtype=torch.float64, device=device, requires_grad=True)
    op(x, y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (torch.float32, torch.float64)
    assert x.grad.tolist() == [2, 2, 2]
    z = y.detach().clone().requires_grad_()
    (z * 1).axpy_ext_(x.detach(), alpha=5).sum().backward()
    assert z.grad.tolist() == [5, 5, 5]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_and_scripts() -> None:
    """One graph, dynamic shapes, broadcasting and in-place included."""
    x, y = torch.randn(4, 6), torch.randn(6)

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.axpy_ext(x, y, alpha=3).axpy_ext_(y)

    expected = function(x, y)
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        torch.testing.assert_close(compiled(x, y), expected)
        torch.testing.assert_close(compiled(x[:3], y), expected[:3])
    scripted = torch.jit.script(function)
    assert "aten::axpy_ext" in str(scripted.graph)
    torch.testing.assert_close(scripted(x, y), expected)
