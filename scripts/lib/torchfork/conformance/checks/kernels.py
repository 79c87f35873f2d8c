"""What the kernels do with memory, dtypes and modes: layouts, empty, autocast, determinism."""

from __future__ import annotations

from typing import Any

import torch

from .bench import Bench, CheckFailed, NotApplicable, failing, message, require, takes_sizes
from .operators import Operator
from .programs import differentiated, make, near, same
from .samples import LAYOUTS, Layout, Sample, accepted, channels_last, kept, without_elements

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHERS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.complex64, torch.complex128,
)  # fmt: skip
# Of the largest number in the result; a cell of several roundings is some units off.
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4}


def _laid_out(op: Operator, device: str, bench: Bench, names: dict[str, Layout]) -> int:
    """Values and gradients of samples in other memory; how many differed in their strides."""
    laid = 0
    for sample in bench.source.every(op, device, requires_grad=op.differentiable):
        for name, layout in names.items():
            changed = sample.with_tensors([kept(layout(t), t) for t in sample.tensors()])
            contiguous = changed.contiguous
            moved = [a.stride() != b.stride() or a.storage_offset() for a, b in zip(
                changed.tensors(), contiguous.tensors(), strict=True)]  # fmt: skip
            laid += any(moved)
            if any(moved):
                _as_plain(op, changed, contiguous, name)
    return laid


def _as_plain(op: Operator, changed: Sample, plain: Sample, name: str) -> None:
    what = f"{name}, sizes {plain.sizes}"
    expected, theirs = differentiated(op, plain)
    try:
        found, ours = differentiated(op, changed)
    except RuntimeError as error:
        if op.written and "single memory location" in str(error):
            return  # what is written to may not be expanded
        raise CheckFailed(f"{what}: {message(error)}") from error
    same(found, expected, what)
    same(ours, theirs, f"gradients, {what}")


def check_noncontiguous(op: Operator, device: str, bench: Bench) -> None:
    require(_laid_out(op, device, bench, LAYOUTS), "no sample can be laid out otherwise")


def check_channels_last(op: Operator, device: str, bench: Bench) -> None:
    if not _laid_out(op, device, bench, {"channels_last": channels_last}):
        raise NotApplicable("none of its inputs has four dimensions with more than one channel")


def check_empty(op: Operator, device: str, bench: Bench) -> None:
    """No elements: a result or an error, the same without data; and gradients where it runs."""
    taken = 0
    for sample in bench.source.typical(op, device, limit=2):
        own = ((s, True) for s in bench.source.every(op, device)
               if any(tensor.numel() == 0 for tensor in s.tensors()))  # fmt: skip
        # A list of sizes would have to say the same.
        others = [] if takes_sizes(op) else without_elements(op, sample)
        for changed, runs in [*own, *others]:
            taken += runs
            what = f"sizes {changed.sizes}"
            meta = accepted(op, changed.mapped(lambda t: t.detach().to("meta")))
            if runs and not op.data_dependent and op.tensor_results:
                require(meta, f"{what}: runs, and is refused on meta")
            if runs and op.differentiable:
                _differentiate(op, changed, what)
    if not taken:
        raise NotApplicable("takes no empty input: every size of it must be positive")


def _differentiate(op: Operator, sample: Sample, what: str) -> None:
    given = sample.mapped(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    with failing(f"gradients, {what}"):
        _, grads = differentiated(op, given)
    wanted = [t for t in given.tensors() if t.requires_grad]
    for tensor, grad in zip(wanted, grads, strict=bool(grads)):
        require(grad is None or grad.shape == tensor.shape, f"gradients, {what}: another shape")


def check_autocast(op: Operator, device: str, bench: Bench) -> None:
    """float32, bfloat16 and both together run, and gradients come in the arguments' dtypes."""
    narrow = torch.bfloat16
    for sample in bench.source.typical(op, device, requires_grad=op.differentiable, limit=2):
        tensors = sample.tensors()
        mixed = [t if k % 2 else _cast(t, narrow) for k, t in enumerate(tensors)]
        for what, given in (("float32", tensors), ("mixed", mixed),
                            ("bfloat16", [_cast(t, narrow) for t in tensors])):  # fmt: skip
            changed = sample.with_tensors(given)
            with failing(what), torch.autocast(device, dtype=narrow):
                results, grads = differentiated(op, changed)
            wanted = [t.dtype for t in given if t.requires_grad]
            found = [g.dtype if g is not None else d for g, d in zip(grads, wanted, strict=False)]
            require(found == wanted[: len(found)], f"{what}: gradients of {found}, not {wanted}")
            if not op.random:
                near(results, make(op, sample).results(), TOLERANCE[narrow], what)


def _cast(tensor: Any, dtype: Any) -> Any:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def check_deterministic(op: Operator, device: str, bench: Bench) -> None:
    threads = torch.get_num_threads()
    before = torch.are_deterministic_algorithms_enabled()
    samples = bench.source.typical(op, device, requires_grad=op.differentiable, limit=3)
    try:
        torch.use_deterministic_algorithms(True)
        for sample in samples:
            first = _all(op, sample)
            for count in (1, threads, 2):
                torch.set_num_threads(count)
                same(_all(op, sample), first, f"{count} threads", tolerance=0)
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)


def _all(op: Operator, sample: Sample) -> list[Any]:
    results, grads = differentiated(op, sample)
    return [*results, *grads]


def check_runs(op: Operator, device: str, bench: Bench) -> None:
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
        return f"no samples: {message(error)}"
    for sample in samples:
        try:
            make(op, sample).results()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            return message(error)
    return ""


def _accurate(op: Operator, sample: Sample, dtype: Any) -> None:
    """Close to what float64 gives on the same numbers."""
    exact = sample.mapped(lambda t: t.double() if t.dtype == dtype else t)
    try:
        expected = make(op, exact).results()
    except (RuntimeError, TypeError):
        return
    near(make(op, sample).results(), expected, TOLERANCE[dtype], str(dtype))


def check_info(op: Operator, device: str, bench: Bench) -> None:
    info = bench.source.info(op)
    require(info is not None, "op_db has none")
    own = info.op is op.function or info.method_variant is op.method
    require(own or op.function is None, f"its op is {info.op}")
    for dtype in sorted(info.supported_dtypes(torch.device(device).type), key=str):
        for sample in info.sample_inputs(device, dtype):
            _consistent(info, sample, dtype)
    outs = [entry for entry in op.variant("out") if not entry.generated]
    require(bool(outs) == bool(info.supports_out), f"says supports_out={info.supports_out}")
    autograd = info.supports_autograd
    require(autograd == op.differentiable, f"says supports_autograd={autograd}")
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
    same(actual, expected, f"{dtype}, reference", tolerance=loose)
