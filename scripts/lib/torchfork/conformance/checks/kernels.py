"""What the kernels do with memory, dtypes and modes: layouts, empty, autocast, determinism."""

from __future__ import annotations

from typing import Any

import torch

from . import compare, needs, variations
from .bench import Bench, CheckFailed, Item, NotApplicable, failing, message, require
from .operators import Operator
from .programs import make
from .samples import Sample


def _laid_out(op: Operator, device: str, bench: Bench, names: dict[str, variations.Layout]) -> int:
    """Values and gradients of samples in other memory; how many differed in their strides."""
    laid = 0
    for sample in bench.source.every(op, device, requires_grad=op.differentiable):
        for name, layout in names.items():
            changed = sample.with_tensors([variations.kept(layout(t), t) for t in sample.tensors()])
            plain = changed.mapped(lambda t: variations.kept(variations.plain(t), t))
            moved = [a.stride() != b.stride() or a.storage_offset() for a, b in zip(
                changed.tensors(), plain.tensors(), strict=True)]  # fmt: skip
            laid += any(moved)
            if any(moved):
                _as_plain(op, changed, plain, name)
    return laid


def _as_plain(op: Operator, changed: Sample, plain: Sample, name: str) -> None:
    what = f"{name}, sizes {plain.sizes}"
    expected, theirs = compare.differentiated(op, plain)
    try:
        found, ours = compare.differentiated(op, changed)
    except RuntimeError as error:
        if op.written and "single memory location" in str(error):
            return  # what is written to may not be expanded
        raise CheckFailed(f"{what}: {message(error)}") from error
    compare.same(found, expected, what)
    compare.same(ours, theirs, f"gradients, {what}")


def _noncontiguous(op: Operator, device: str, bench: Bench) -> None:
    require(_laid_out(op, device, bench, variations.LAYOUTS), "no sample can be laid out otherwise")


def _channels_last(op: Operator, device: str, bench: Bench) -> None:
    if not _laid_out(op, device, bench, {"channels_last": variations.channels_last}):
        raise NotApplicable("none of its inputs has four dimensions with more than one channel")


def _empty(op: Operator, device: str, bench: Bench) -> None:
    """No elements: a result or an error, the same without data; and gradients where it runs."""
    taken = 0
    for sample in bench.source.typical(op, device, limit=2):
        own = ((s, True) for s in bench.source.every(op, device)
               if any(tensor.numel() == 0 for tensor in s.tensors()))  # fmt: skip
        # A list of sizes would have to say the same.
        others = [] if needs.takes_sizes(op) else variations.without_elements(op, sample)
        for changed, accepted in [*own, *others]:
            taken += accepted
            what = f"sizes {changed.sizes}"
            meta = variations.accepted(op, changed.mapped(lambda t: t.detach().to("meta")))
            if accepted and not op.data_dependent and op.tensor_results:
                require(meta, f"{what}: runs, and is refused on meta")
            if accepted and op.differentiable:
                _differentiate(op, changed, what)
    if not taken:
        raise NotApplicable("takes no empty input: every size of it must be positive")


def _differentiate(op: Operator, sample: Sample, what: str) -> None:
    given = sample.mapped(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    with failing(f"gradients, {what}"):
        _, grads = compare.differentiated(op, given)
    wanted = [t for t in given.tensors() if t.requires_grad]
    for tensor, grad in zip(wanted, grads, strict=bool(grads)):
        require(grad is None or grad.shape == tensor.shape, f"gradients, {what}: another shape")


def _autocast(op: Operator, device: str, bench: Bench) -> None:
    """float32, bfloat16 and both together run, and gradients come in the arguments' dtypes."""
    narrow = torch.bfloat16
    for sample in bench.source.typical(op, device, requires_grad=op.differentiable, limit=2):
        tensors = sample.tensors()
        mixed = [t if k % 2 else _cast(t, narrow) for k, t in enumerate(tensors)]
        for what, given in (("float32", tensors), ("mixed", mixed),
                            ("bfloat16", [_cast(t, narrow) for t in tensors])):  # fmt: skip
            changed = sample.with_tensors(given)
            with failing(what), torch.autocast(device, dtype=narrow):
                results, grads = compare.differentiated(op, changed)
            wanted = [t.dtype for t in given if t.requires_grad]
            found = [g.dtype if g is not None else d for g, d in zip(grads, wanted, strict=False)]
            require(found == wanted[: len(found)], f"{what}: gradients of {found}, not {wanted}")
            _near(op, sample, results, what)


def _near(op: Operator, sample: Sample, results: list[Any], what: str) -> None:
    """In the range of what the operator gives in float32, as far as bfloat16 goes."""
    expected = make(op, sample).results() if not op.random else []
    for a, b in zip(results, expected, strict=False):
        if isinstance(b, torch.Tensor) and b.is_floating_point() and b.numel():
            error = (a.float() - b.float()).abs().max()
            scale = b.float().abs().max().clamp(min=1)
            require(error <= 0.1 * scale, f"{what}: off by {float(error):.3g}")


def _cast(tensor: Any, dtype: Any) -> Any:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def _deterministic(op: Operator, device: str, bench: Bench) -> None:
    threads = torch.get_num_threads()
    before = torch.are_deterministic_algorithms_enabled()
    samples = bench.source.typical(op, device, requires_grad=op.differentiable, limit=3)
    try:
        torch.use_deterministic_algorithms(True)
        for sample in samples:
            first = _all(op, sample)
            for count in (1, threads, 2):
                torch.set_num_threads(count)
                compare.same(_all(op, sample), first, f"{count} threads", exact=True)
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)


def _all(op: Operator, sample: Sample) -> list[Any]:
    results, grads = compare.differentiated(op, sample)
    return [*results, *grads]


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
    for a, b in zip(_tuple(actual), _tuple(expected), strict=True):
        with failing(f"{dtype}, reference"):
            torch.testing.assert_close(
                a, b, equal_nan=True, **({"rtol": loose, "atol": loose} if loose else {})
            )


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


ITEMS = (
    Item("autocast", _autocast, (needs.a_python_name, needs.tensors_in, needs.tensors_out)),
    Item("channels_last", _channels_last, (needs.tensors_in, needs.tensors_out)),
    Item("non-contiguous inputs", _noncontiguous, (needs.tensors_in,)),
    Item("empty inputs", _empty, (needs.tensors_in,)),
    Item("deterministic mode", _deterministic, (needs.tensors_out,)),
    Item("dtypes", _runs, (needs.tensors_in,)),
    Item("OpInfo in op_db", _info, (needs.a_python_name, needs.an_overload_of_its_own)),
)
