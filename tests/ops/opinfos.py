"""OpInfo entries of the additions, in the form of PyTorch's common_methods_invocations.op_db.

An OpInfo is what PyTorch's own operator tests are driven by: the dtypes that an operator takes,
samples, references, expected errors and which kinds of differentiation it has. test_opinfo.py
runs them through torch.testing._internal.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_dtype import all_types_and_complex_and, floating_types_and
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

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
]
