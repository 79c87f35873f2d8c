"""Which dtypes the operator takes, and the OpInfo that says so."""

from __future__ import annotations

from typing import Any

import torch

from .bench import Bench, Item, a_python_name, an_overload_of_its_own, tensors_in
from .operators import Operator
from .outcome import CheckFailed, first_lines, require
from .programs import make
from .samples import Sample

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHERS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.complex64, torch.complex128,
)  # fmt: skip
# Of the largest number in the result; a cell of several roundings is some units off.
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4}


def _runs(op: Operator, device: str, bench: Bench) -> None:
    """A dtype is taken or refused in words; who has an OpInfo takes those that it lists."""
    info = bench.source.info(op)
    claimed = None if info is None else set(info.supported_dtypes(torch.device(device).type))
    for dtype in FLOATS + OTHERS:
        if claimed is None and dtype in OTHERS and bench.source.origin(op) == "recorded":
            continue  # what calls it is not differentiable in these
        complaint = _refused(op, device, dtype, bench)
        if claimed is not None:
            require(dtype in claimed or complaint, f"takes {dtype}, which its OpInfo does not list")
            require(dtype not in claimed or not complaint, f"{dtype}: {complaint}")
        elif dtype in (torch.float32, torch.float64):
            require(not complaint, f"{dtype}: {complaint}")
        if dtype in TOLERANCE and not complaint and not op.random:
            for sample in bench.source.typical(op, device, dtype, limit=3):
                _accurate(op, sample, dtype)


def _refused(op: Operator, device: str, dtype: Any, bench: Bench) -> str:
    """The operator's complaint about a dtype, or nothing."""
    try:
        samples = bench.source.typical(op, device, dtype, limit=3)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"no samples: {first_lines(error)}"
    for sample in samples:
        try:
            make(op, sample).results()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            return first_lines(error) or type(error).__name__
    return ""


def _accurate(op: Operator, sample: Sample, dtype: Any) -> None:
    """Close to what float64 gives on the same numbers."""
    exact = sample.mapped(lambda t: t.double() if t.dtype == dtype else t)
    try:
        expected = make(op, exact).results()
    except (RuntimeError, TypeError):
        return
    for a, b in zip(make(op, sample).results(), expected, strict=True):
        if isinstance(b, torch.Tensor) and b.is_floating_point() and b.numel():
            error = float((a.double() - b).abs().max())
            scale = max(1.0, float(b.abs().max()))
            require(error <= TOLERANCE[dtype] * scale, f"{dtype}: off by {error:.3g}")


def _info(op: Operator, device: str, bench: Bench) -> None:
    info = bench.source.info(op)
    require(info is not None, "op_db has none")
    own = info.op is op.function or info.method_variant is op.method
    require(own or op.function is None, f"its op is {info.op}")
    for dtype in sorted(info.supported_dtypes(torch.device(device).type), key=str):
        for sample in info.sample_inputs(device, dtype):
            _consistent(info, sample, dtype)
    outs = [entry for entry in op.variant("out") if not entry.generated]
    require(bool(outs) == bool(info.supports_out), f"says supports_out={info.supports_out}")
    require(
        info.supports_autograd == op.differentiable,
        f"says supports_autograd={info.supports_autograd}",
    )
    require(not op.forward or info.supports_forward_ad, "says that there is no forward mode")


def _consistent(info: Any, sample: Any, dtype: Any) -> None:
    """The operator and its reference agree on a sample, as test_ops.py asks."""
    actual = info(sample.input, *sample.args, **sample.kwargs)
    if info.ref is None or not callable(info.ref):
        return
    try:
        expected = info.ref(sample.input, *sample.args, **sample.kwargs)
    except (RuntimeError, TypeError):
        return  # a numpy reference is called otherwise
    if not isinstance(expected, (torch.Tensor, tuple, list)):
        return
    loose = {torch.float16: 5e-3, torch.bfloat16: 4e-2}.get(dtype)
    for a, b in zip(_tuple(actual), _tuple(expected), strict=True):
        try:
            torch.testing.assert_close(
                a, b, equal_nan=True, **({"rtol": loose, "atol": loose} if loose else {})
            )
        except AssertionError as difference:
            raise CheckFailed(f"{dtype}, reference: {first_lines(difference)}") from difference


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


ITEMS = (
    Item("dtypes", _runs, (tensors_in,)),
    Item("OpInfo in op_db", _info, (a_python_name, an_overload_of_its_own)),
)
