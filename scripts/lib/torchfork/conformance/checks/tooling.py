"""Tools around a model: profiler, FLOP counter, pickling, copies, CUDA graphs, CUDA and CPU."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch

from . import compare, needs
from .bench import Bench, Item, NotApplicable, Unavailable, failing, require
from .operators import Operator
from .programs import make
from .samples import Sample


def _profiler(op: Operator, device: str, bench: Bench) -> None:
    program = make(op, bench.source.typical(op, device, limit=1)[0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        program.call(*program.tensors)
    names = {event.key for event in profile.key_averages()}
    require(f"aten::{op.name}" in names, f"the profile has {sorted(names)}")


def _flops(op: Operator, device: str, bench: Bench) -> None:
    """What its reference of upstream's operators counts, it counts."""
    from torch.utils.flop_counter import flop_registry

    formula = op.overload._overloadpacket in flop_registry
    info = bench.source.info(op)
    samples = bench.source.typical(op, device, limit=2)
    counted = [_count(make(op, sample).call, sample.tensors()) for sample in samples]
    expected = _info_counts(info, info.ref, device) if info is not None else []
    if any(expected):
        require(any(counted), f"counts nothing, and its reference {max(expected)}")
        own = _info_counts(info, info, device)
        require(own == expected, f"counts {own}, its reference {expected}")
    elif formula:
        require(all(counted), f"its formula gives {counted}")
    else:
        raise NotApplicable("no matrix product and no convolution: upstream counts no others")


def _count(call: Any, args: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call(*args)
    return int(counter.get_total_flops())


def _info_counts(info: Any, function: Any, device: str) -> list[int]:
    """What a function counts on the OpInfo's samples; nothing where it cannot be called so."""
    samples = info.sample_inputs(device, torch.float32)
    try:
        return [_count(lambda s=s: function(s.input, *s.args, **s.kwargs), ()) for s in samples]
    except (TypeError, RuntimeError, AttributeError):
        return []  # a reference in numpy


def _pickle(op: Operator, device: str, bench: Bench) -> None:
    program = make(op, bench.source.typical(op, device, limit=1)[0])
    module = program.module()
    expected = op.seeded(program.call)(*program.tensors)
    for what, clone in (
        ("a pickled module", pickle.loads(pickle.dumps(module))),
        ("a deep copy", copy.deepcopy(module)),
    ):
        actual = op.seeded(clone)(*program.tensors)
        compare.same(actual, expected, what, exact=True)
    if op.function is not None:
        with failing("pickle"):
            again = pickle.loads(pickle.dumps(op.function))
        require(again is op.function, "the pickled function comes back as another")


def _cuda_as_cpu(op: Operator, device: str, bench: Bench) -> None:
    if device != "cuda":
        raise Unavailable("no GPU on this machine")
    if op.random:
        raise NotApplicable("draws from another generator")
    for dtype in (torch.float32, torch.float64):
        for sample in bench.source.every(op, "cpu", dtype, requires_grad=op.formula):
            mine = compare.differentiated(op, _moved(sample))
            theirs = compare.differentiated(op, sample)
            what = f"{dtype}, sizes {sample.sizes}"
            for ours, expected in zip(mine, theirs, strict=True):
                on_cpu = [r.cpu() if isinstance(r, torch.Tensor) else r for r in ours]
                compare.same(on_cpu, expected, what)


def _moved(sample: Sample) -> Sample:
    def to_cuda(tensor: Any) -> Any:
        return tensor.detach().cuda().requires_grad_(tensor.requires_grad)

    kwargs = {k: torch.device("cuda") if isinstance(v, torch.device) else v
              for k, v in sample.kwargs.items()}  # fmt: skip
    if not sample.tensors():
        kwargs["device"] = torch.device("cuda")
    return Sample(sample.args, kwargs).mapped(to_cuda)


def _graphs(op: Operator, device: str, bench: Bench) -> None:
    """Captured once, replayed on other values."""
    if device != "cuda":
        raise Unavailable("no GPU on this machine")
    if op.random:
        raise NotApplicable("draws anew on each replay")
    sample = bench.source.typical(op, device, limit=1)[0]
    program = make(op, sample)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            program.results()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = program.results()
    for tensor in program.tensors:
        tensor.copy_(tensor.flatten().roll(1).reshape(tensor.shape))
    graph.replay()
    torch.cuda.synchronize()
    compare.same(results, program.results(), "a replay")


ITEMS = (
    Item("profiler name", _profiler),
    Item("FLOP counter", _flops, (needs.tensors_in,)),
    Item("pickle and deepcopy", _pickle, (needs.a_python_name,), each_device=False),
    Item("CUDA gives what CPU gives", _cuda_as_cpu, (needs.tensors_out,)),
    Item("CUDA graphs", _graphs, (needs.tensors_in, needs.tensors_out, needs.known_sizes)),
)
