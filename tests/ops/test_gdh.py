"""gdh: a view where strides allow, a copy otherwise, and honest about which."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

SHAPES = [(), (1,), (0,), (3,), (2, 3), (2, 0, 4), (2, 3, 4, 5), (1, 1, 1)]
ALL_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The tensor behind various strides."""
    return {
        "contiguous": x,
        "transposed": x.mT.contiguous().mT if x.dim() > 1 else x,
        "permuted": x.permute(tuple(reversed(range(x.dim())))),
        "sliced": torch.stack([x, x], dim=-1)[..., 0],
        "expanded": x.unsqueeze(0).expand(3, *x.shape),
        "offset": torch.cat([x.reshape(1, -1), x.reshape(1, -1)])[1].view(x.shape),
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_elements_come_in_c_order(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """As ravel gives them, for every layout, as function, method and copy."""
    x = torch.testing.make_tensor(shape, dtype=dtype, device=device)
    for name, given in layouts(x).items():
        expected = torch.ravel(given)
        for actual in (torch.gdh(given), given.gdh(), torch.gdh_copy(given)):
            assert torch.equal(actual, expected), name
            assert actual.dim() == 1
            assert actual.dtype == dtype
    assert x.gdh().shape == (max(x.numel(), 1) if not shape else x.numel(),)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contiguous_input_is_viewed_without_a_copy(shape: tuple[int, ...], device: str) -> None:
    """Same memory, known to autograd as a view, so that writes are seen both ways."""
    x = torch.zeros(shape, device=device)
    flat = x.gdh()
    assert flat.data_ptr() == x.data_ptr()
    assert flat._base is x
    flat.fill_(3)
    assert torch.equal(x, torch.full_like(x, 3))
    base = torch.zeros(2, 3, device=device, requires_grad=True) * 1
    version = base._version
    base.gdh().mul_(2)
    assert base._version == version + 1


def test_other_input_is_copied(device: str) -> None:
    """No view is claimed and none is made."""
    x = torch.randn(3, 4, device=device).t()
    flat = x.gdh()
    assert flat._base is None
    assert flat.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    flat.zero_()
    assert bool(x.any())


def test_gdh_copy_always_copies(device: str) -> None:
    """Also for contiguous input: its schema promises memory of its own."""
    x = torch.randn(3, 4, device=device)
    assert torch.gdh_copy(x).data_ptr() != x.data_ptr()
    out = torch.empty(0, device=device)
    assert torch.ops.aten.gdh_copy.out(x, out=out) is out
    assert torch.equal(out, x.flatten())


def test_conjugate_and_negative_views_keep_their_values(device: str) -> None:
    """Lazy conjugation and negation survive the view and the copy."""
    x = torch.randn(3, 4, device=device, dtype=torch.complex64)
    for given in (x.conj(), x.conj().t(), x.conj().imag, x.conj().imag.t()):
        assert torch.equal(given.gdh(), torch.ravel(given))
        assert torch.equal(torch.gdh_copy(given), torch.ravel(given))


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_work_as_with_ravel() -> None:
    """One of the layouts that ravel takes."""
    x = torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8)
    for given in (x, x.t()):
        assert torch.equal(given.gdh().int_repr(), given.ravel().int_repr())


@pytest.mark.filterwarnings("ignore")
def test_layouts_without_strides_are_refused_by_name(device: str) -> None:
    """Where ravel fails too; the message names gdh, self and the layout."""
    x = torch.randn(3, 4, device=device)
    refused = {
        "Sparse": x.to_sparse(),
        "SparseCsr": x.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([x, x[:1]]),
    }
    if device == "cpu" and torch.backends.mkldnn.is_available():
        refused["Mkldnn"] = x.to_mkldnn()
    for layout, given in refused.items():
        with pytest.raises(RuntimeError, match=rf"gdh\(\): expected self .*{layout}"):
            torch.gdh(given)


@pytest.mark.parametrize("name", list(layouts(torch.ones(1, 1))))
def test_gradient_has_the_shape_of_self(name: str, device: str) -> None:
    """The walkthrough's formula `self: grad` has it flat."""
    x = torch.randn(2, 3, 4, device=device, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(72, device=device, dtype=torch.float64)
    flat = layouts(x)[name].gdh()
    (actual,) = torch.autograd.grad(flat @ weights[: flat.numel()], x)
    flat = layouts(x)[name].ravel()
    (expected,) = torch.autograd.grad(flat @ weights[: flat.numel()], x)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("op", [torch.gdh, torch.gdh_copy, lambda x: x.mT.gdh()])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradcheck_first_and_second_order_both_modes(op: object, dtype: torch.dtype) -> None:
    """Reverse, forward, forward over reverse, batched; complex numbers too."""
    x = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    options = {"check_batched_grad": True}
    assert torch.autograd.gradcheck(
        op, x, check_forward_ad=True, check_batched_forward_grad=True, **options
    )
    assert torch.autograd.gradgradcheck(op, x, check_fwd_over_rev=True, **options)


def test_node_names_in_the_graph() -> None:
    """A view's node for contiguous input, the codegen'd node of the copy otherwise."""
    x = torch.randn(3, 4, requires_grad=True)
    assert x.gdh().grad_fn.name() == "ViewBackward0"
    assert x.t().gdh().grad_fn.name() == "GdhCopyBackward0"


def run_with_log_level(level: str | None) -> str:
    """What a fresh process writes to stderr for gdh of tensors with 0, 3 and 2 dimensions."""
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_CPP_LOG_LEVEL"}
    if level is not None:
        environment["TORCH_CPP_LOG_LEVEL"] = level
    program = (
        "import torch; torch.ones(()).gdh(); torch.ones(1, 2, 3).gdh(); torch.ones(4, 5).t().gdh()"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stderr


def test_logs_its_line_at_info_and_is_silent_by_default() -> None:
    """` gdh tensor shape <ndim>` on the c10 logger."""
    lines = [line for line in run_with_log_level("INFO").splitlines() if "gdh" in line]
    assert [line.split("]", 1)[1].strip() for line in lines] == [
        "gdh tensor shape 0",
        "gdh tensor shape 3",
        "gdh tensor shape 2",
    ]
    assert all("]  gdh tensor shape " in line for line in lines)
    assert "gdh" not in run_with_log_level(None)
    assert "gdh" not in run_with_log_level("WARNING")
