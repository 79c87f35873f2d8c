"""What the kernels do with memory, dtypes and modes: layouts, empty, autocast, determinism."""

from __future__ import annotations

from typing import Any

import torch

from . import compare, layouts, sizes
from .bench import Bench, Item, a_python_name, takes_sizes, tensors_in, tensors_out
from .operators import Operator
from .outcome import CheckFailed, NotApplicable, first_lines, require
from .programs import make
from .samples import Sample


def _laid_out(op: Operator, device: str, bench: Bench, names: dict[str, layouts.Layout]) -> int:
    """Values and gradients of samples in other memory; how many differed in their strides."""
    laid = 0
    for sample in bench.source.every(op, device, requires_grad=op.differentiable):
        for name, layout in names.items():
            changed = sample.with_tensors([layouts.kept(layout(t), t) for t in sample.tensors()])
            plain = changed.mapped(lambda t: layouts.kept(layouts.plain(t), t))
            moved = [a.stride() != b.stride() or a.storage_offset() for a, b in zip(
                changed.tensors(), plain.tensors(), strict=True)]  # fmt: skip
            laid += any(moved)
            if any(moved):
                _as_plain(op, changed, plain, name)
    return laid


def _as_plain(op: Operator, changed: Sample, plain: Sample, name: str) -> None:
    what = f"{name}, sizes {[tuple(t.shape) for t in plain.tensors()]}"
    expected, theirs = compare.gradients(compare.seeded(op, make(op, plain).call), plain.tensors())
    try:
        found, ours = compare.gradients(
            compare.seeded(op, make(op, changed).call), changed.tensors()
        )
    except RuntimeError as error:
        if op.written and "single memory location" in str(error):
            return  # what is written to may not be expanded
        raise CheckFailed(f"{what}: {first_lines(error)}") from error
    compare.same(found, expected, what)
    compare.same(ours, theirs, f"gradients, {what}")


def _noncontiguous(op: Operator, device: str, bench: Bench) -> None:
    require(_laid_out(op, device, bench, layouts.LAYOUTS), "no sample can be laid out otherwise")


def _channels_last(op: Operator, device: str, bench: Bench) -> None:
    if not _laid_out(op, device, bench, {"channels_last": layouts.channels_last}):
        raise NotApplicable("none of its inputs has four dimensions with more than one channel")


def _empty(op: Operator, device: str, bench: Bench) -> None:
    """No elements: a result or an error, the same without data; and gradients where it runs."""
    taken = 0
    for sample in bench.source.typical(op, device, limit=2):
        own = ((s, True) for s in bench.source.every(op, device) if _is_empty(s))
        # A list of sizes would have to say the same.
        others = [] if takes_sizes(op) else sizes.without_elements(op, sample)
        for changed, accepted in [*own, *others]:
            taken += accepted
            what = f"sizes {[tuple(t.shape) for t in changed.tensors()]}"
            meta = _on_meta(op, changed)
            if accepted and not op.data_dependent and op.tensor_results:
                require(meta, f"{what}: runs, and is refused on meta")
            if accepted and op.differentiable:
                _differentiate(op, changed, what)
    if not taken:
        raise NotApplicable("takes no empty input: every size of it must be positive")


def _is_empty(sample: Sample) -> bool:
    return any(tensor.numel() == 0 for tensor in sample.tensors())


def _on_meta(op: Operator, sample: Sample) -> bool:
    return sizes.accepted(op, sample.mapped(lambda t: t.detach().to("meta")))


def _differentiate(op: Operator, sample: Sample, what: str) -> None:
    given = sample.mapped(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    program = make(op, given)
    try:
        _, grads = compare.gradients(compare.seeded(op, program.call), program.tensors)
    except RuntimeError as error:
        raise CheckFailed(f"gradients, {what}: {first_lines(error)}") from error
    wanted = [t for t in program.tensors if t.requires_grad]
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
            call = compare.seeded(op, make(op, changed).call)
            try:
                with torch.autocast(device, dtype=narrow):
                    results, grads = compare.gradients(call, given)
            except (RuntimeError, TypeError) as error:
                raise CheckFailed(f"{what}: {first_lines(error)}") from error
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
            call = compare.seeded(op, make(op, sample).call)
            first = _all(call, sample)
            for count in (1, threads, 2):
                torch.set_num_threads(count)
                compare.same(_all(call, sample), first, f"{count} threads", exact=True)
    except RuntimeError as error:
        raise CheckFailed(first_lines(error)) from error
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)


def _all(call: Any, sample: Sample) -> list[Any]:
    results, grads = compare.gradients(call, sample.tensors())
    return [*results, *grads]


ITEMS = (
    Item("autocast", _autocast, (a_python_name, tensors_in, tensors_out)),
    Item("channels_last", _channels_last, (tensors_in, tensors_out)),
    Item("non-contiguous inputs", _noncontiguous, (tensors_in,)),
    Item("empty inputs", _empty, (tensors_in,)),
    Item("deterministic mode", _deterministic, (tensors_out,)),
)
