"""OpInfo entries of operators that come with additions to ATen: op_db has them at its end.

An OpInfo is what PyTorch's own operator tests are driven by: the dtypes that an operator takes,
samples, references, expected errors and which kinds of differentiation it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import tol, toleranceOverride
from torch.testing._internal.common_dtype import (
    all_types_and,
    all_types_and_complex_and,
    floating_types_and,
)
from torch.testing._internal.opinfo.core import DecorateInfo, ErrorInput, OpInfo, SampleInput

Shape = tuple[int, ...]
# Input, multiplier, kernel, and the keyword arguments.
CONVOLUTIONS: list[tuple[Shape, int, Shape, dict[str, object]]] = [
    ((2, 3, 5, 4), 1, (3, 2), {}),
    ((2, 2, 4, 5), 2, (3, 3), {"stride": (2, 1), "padding": 1}),
    ((1, 4, 3, 6), 1, (2, 5), {"stride": 2, "padding": (1, 2), "dilation": (2, 1)}),
    ((2, 1, 1, 3), 3, (3, 3), {"padding": (1, 1)}),
    ((3, 4, 5), 1, (2, 2), {"dilation": 2}),
    ((0, 2, 4, 3), 1, (2, 2), {}),
]


def sample_inputs_gdh(
    op_info: OpInfo,
    device: torch.device,
    dtype: torch.dtype,
    requires_grad: bool,
    **kwargs: object,
) -> Iterator[SampleInput]:
    """From 0-d and empty to 4-d, contiguous and not."""
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    for shape in ((), (0,), (5,), (2, 3), (2, 0, 3), (2, 3, 1, 4)):
        yield SampleInput(make(shape))
    yield SampleInput(make((3, 4), noncontiguous=True))


def error_inputs_gdh(
    op_info: OpInfo, device: torch.device, **kwargs: object
) -> Iterator[ErrorInput]:
    """A layout without strides."""
    sparse = torch.ones(2, 3, device=device).to_sparse()
    yield ErrorInput(
        SampleInput(sparse), error_type=NotImplementedError, error_regex=r"gdh\w*\(\): expected"
    )


def sample_inputs_depthwise_conv2d_ext(
    op_info: OpInfo,
    device: torch.device,
    dtype: torch.dtype,
    requires_grad: bool,
    **kwargs: object,
) -> Iterator[SampleInput]:
    """With and without bias, in both memory formats."""
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    for shape, multiplier, kernel, options in CONVOLUTIONS:
        outputs = shape[-3] * multiplier
        weight = make((outputs, 1, *kernel))
        yield SampleInput(make(shape), args=(weight,), kwargs=dict(options))
        yield SampleInput(make(shape), args=(weight, make((outputs,))), kwargs=dict(options))
    x = make((2, 3, 5, 4)).detach().contiguous(memory_format=torch.channels_last)
    yield SampleInput(
        x.requires_grad_(requires_grad), args=(make((3, 1, 3, 2)),), kwargs={"padding": 1}
    )


def error_inputs_depthwise_conv2d_ext(
    op_info: OpInfo, device: torch.device, **kwargs: object
) -> Iterator[ErrorInput]:
    """One input for each check."""
    make = partial(torch.ones, device=device)
    x, w = make(1, 2, 4, 5), make(2, 1, 3, 3)
    for sample, message in [
        (SampleInput(make(4, 5), args=(w,)), "expected input to be"),
        (SampleInput(x, args=(make(2, 3, 3),)), "expected weight to be"),
        (SampleInput(x, args=(make(3, 1, 3, 3),)), "positive multiple of the input's 2 channels"),
        (SampleInput(x, args=(w, make(3))), "expected bias to be"),
        (SampleInput(x, args=(w,), kwargs={"stride": 0}), "expected stride to be positive"),
        (SampleInput(x, args=(w,), kwargs={"padding": -1}), "expected padding not to be negative"),
        (SampleInput(x, args=(w,), kwargs={"dilation": 0}), "expected dilation to be positive"),
        (SampleInput(x, args=(w,), kwargs={"dilation": 2}), "expected the kernel to fit"),
        (SampleInput(x.int(), args=(w.int(),)), "expected input to be float"),
        (SampleInput(x, args=(w.double(),)), "expected weight to have the input's dtype"),
    ]:
        yield ErrorInput(sample, error_type=RuntimeError, error_regex=message)


def reference_depthwise_conv2d_ext(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
) -> torch.Tensor:
    """conv2d with one group a channel, in float64."""
    exact = torch.nn.functional.conv2d(
        x.double(),
        w.double(),
        None if b is None else b.double(),
        stride,
        padding,
        dilation,
        groups=x.shape[-3],
    )
    return exact.to(x.dtype)


def sample_inputs_sigmoid_ext(
    op_info: OpInfo,
    device: torch.device,
    dtype: torch.dtype,
    requires_grad: bool,
    **kwargs: object,
) -> Iterator[SampleInput]:
    """From 0-d and empty to more than a vector, both ends, contiguous and not."""
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    for shape in ((), (0,), (3,), (4, 17), (2, 1, 3, 5)):
        yield SampleInput(make(shape))
    yield SampleInput(make((3, 5), noncontiguous=True))


def error_inputs_sigmoid_ext(
    op_info: OpInfo, device: torch.device, **kwargs: object
) -> Iterator[ErrorInput]:
    """Complex numbers."""
    complex_input = torch.ones(3, dtype=torch.cfloat, device=device)
    yield ErrorInput(
        SampleInput(complex_input),
        error_type=RuntimeError,
        error_regex=r"sigmoid_ext\(\): expected self to be float.*ComplexFloat",
    )


def sample_inputs_axpy_ext(
    op_info: OpInfo,
    device: torch.device,
    dtype: torch.dtype,
    requires_grad: bool,
    **kwargs: object,
) -> Iterator[SampleInput]:
    """Broadcasting both ways, with alpha and without."""
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    shapes: list[tuple[Shape, Shape]] = [
        ((), ()), ((5,), (5,)), ((3, 1), (4,)), ((2, 3, 5), (3, 1)), ((), (2, 3)), ((0, 2), (2,)),
    ]  # fmt: skip
    for left, right in shapes:
        yield SampleInput(make(left), args=(make(right),))
    alpha = 3 if not dtype.is_floating_point and not dtype.is_complex else -0.5
    yield SampleInput(
        make((4, 3)),
        args=(make((4, 3), noncontiguous=True),),
        kwargs={"alpha": True if dtype == torch.bool else alpha},
    )


def error_inputs_axpy_ext(
    op_info: OpInfo, device: torch.device, **kwargs: object
) -> Iterator[ErrorInput]:
    """One input for each check of alpha, and shapes that do not broadcast."""
    make = partial(torch.ones, device=device)
    integers = make(3, dtype=torch.int32)
    for sample, message in [
        (SampleInput(make(3), args=(make(4),)), "size of tensor a"),
        (SampleInput(integers, args=(integers,), kwargs={"alpha": 0.5}), "alpha to be an integer"),
        (SampleInput(make(3), args=(make(3),), kwargs={"alpha": 1j}), "alpha to be real"),
        (SampleInput(make(3), args=(make(3),), kwargs={"alpha": True}), "alpha not to be a bool"),
        (SampleInput(integers, args=(integers,), kwargs={"alpha": 2**40}), "alpha to be in the"),
    ]:
        yield ErrorInput(sample, error_type=RuntimeError, error_regex=message)


def reference_axpy_ext(x: torch.Tensor, y: torch.Tensor, *, alpha: complex = 2) -> torch.Tensor:
    """add, whose alpha belongs to its second operand."""
    return torch.add(y, x, alpha=alpha)


def sample_inputs_lltm_cell(
    op_info: OpInfo,
    device: torch.device,
    dtype: torch.dtype,
    requires_grad: bool,
    **kwargs: object,
) -> Iterator[SampleInput]:
    """One element, a few, no rows, no features."""
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    make = partial(make, low=-1, high=1)
    for batch, features, state in ((1, 1, 1), (2, 3, 4), (3, 2, 5), (0, 2, 3), (2, 0, 3)):
        yield SampleInput(
            make((batch, features)),
            args=(
                make((3 * state, features + state)),
                make((3 * state,)),
                make((batch, state)),
                make((batch, state)),
            ),
        )


def error_inputs_lltm_cell(
    op_info: OpInfo, device: torch.device, **kwargs: object
) -> Iterator[ErrorInput]:
    """One input for each check."""
    make = partial(torch.ones, device=device)
    x, w, b, h = make(2, 3), make(12, 7), make(12), make(2, 4)
    for sample, message in [
        (SampleInput(make(3), args=(w, b, h, h)), "expected input to have 2 dimensions"),
        (SampleInput(x, args=(make(12, 6), b, h, h)), "expected weight to be of size"),
        (SampleInput(x, args=(w, make(4), h, h)), "expected bias to be of size"),
        (SampleInput(x, args=(w, b, make(3, 4), h)), "expected old_h to be of size"),
        (SampleInput(x, args=(w, b, h, make(2, 3))), "expected old_cell to be of size"),
        (SampleInput(x.int(), args=(w, b, h, h)), "expected input to be float"),
        (SampleInput(x, args=(w.double(), b, h, h)), "expected weight to have the input's dtype"),
    ]:
        yield ErrorInput(sample, error_type=RuntimeError, error_regex=message)


def reference_lltm_cell(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The cell of separate operators, in float64."""
    exact = [t.double() for t in (x, w, b, h, c)]
    gates = torch.nn.functional.linear(torch.cat([exact[3], exact[0]], 1), exact[1], exact[2])
    i, o, candidate = gates.chunk(3, 1)
    cell = exact[4] + torch.nn.functional.elu(candidate) * torch.sigmoid(i)
    hidden = torch.tanh(cell) * torch.sigmoid(o)
    return tuple(t.to(x.dtype) for t in (hidden, cell, gates))


op_db: list[OpInfo] = [
    OpInfo(
        "gdh",
        op=torch.gdh,
        ref=torch.ravel,
        dtypes=all_types_and_complex_and(torch.bool, torch.half, torch.bfloat16),
        sample_inputs_func=sample_inputs_gdh,
        error_inputs_func=error_inputs_gdh,
        supports_out=False,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
    ),
    OpInfo(
        "gdh_copy",
        op=torch.gdh_copy,
        ref=torch.ravel,
        dtypes=all_types_and_complex_and(torch.bool, torch.half, torch.bfloat16),
        sample_inputs_func=sample_inputs_gdh,
        error_inputs_func=error_inputs_gdh,
        method_variant=None,
        supports_out=False,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
    ),
    OpInfo(
        "depthwise_conv2d_ext",
        op=torch.depthwise_conv2d_ext,
        ref=reference_depthwise_conv2d_ext,
        dtypes=floating_types_and(torch.half, torch.bfloat16),
        sample_inputs_func=sample_inputs_depthwise_conv2d_ext,
        error_inputs_func=error_inputs_depthwise_conv2d_ext,
        supports_out=False,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        gradcheck_nondet_tol=0.0,
    ),
    OpInfo(
        "sigmoid_ext",
        op=torch.sigmoid_ext,
        ref=torch.sigmoid,
        dtypes=all_types_and(torch.bool, torch.half, torch.bfloat16),
        sample_inputs_func=sample_inputs_sigmoid_ext,
        error_inputs_func=error_inputs_sigmoid_ext,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        gradcheck_nondet_tol=0.0,
    ),
    OpInfo(
        "axpy_ext",
        op=torch.axpy_ext,
        ref=reference_axpy_ext,
        dtypes=all_types_and_complex_and(torch.bool, torch.half, torch.bfloat16),
        sample_inputs_func=sample_inputs_axpy_ext,
        error_inputs_func=error_inputs_axpy_ext,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        gradcheck_nondet_tol=0.0,
    ),
    OpInfo(
        "lltm_cell",
        op=torch.lltm_cell,
        ref=reference_lltm_cell,
        dtypes=floating_types_and(torch.half, torch.bfloat16),
        sample_inputs_func=sample_inputs_lltm_cell,
        error_inputs_func=error_inputs_lltm_cell,
        supports_out=False,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        gradcheck_nondet_tol=0.0,
        decorators=(
            # The states are computed from gates that were rounded to the dtype and may cancel: a
            # unit in the last place of a gate between 2 and 4.
            DecorateInfo(
                toleranceOverride(
                    {
                        torch.half: tol(atol=2e-3, rtol=1e-3),
                        torch.bfloat16: tol(atol=1.6e-2, rtol=1.6e-2),
                    }
                )
            ),
        ),
    ),
]
