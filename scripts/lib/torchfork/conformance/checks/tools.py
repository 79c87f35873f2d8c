"""What is around an operator: documents, type checkers, profiler, FLOP counter, pickle, CUDA."""

from __future__ import annotations

import copy
import doctest
import io
import json
import os
import pickle
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .bench import Bench, CheckFailed, NotApplicable, Unavailable, failing, message, require
from .operators import Operator
from .programs import differentiated, make, same, source
from .samples import Sample, Source


def check_docstring(op: Operator, device: str, bench: Bench) -> None:
    for target, what in ((op.function, "the function"), (op.method, "the method")):
        if target is None:
            continue
        shown = pydoc.render_doc(target, renderer=pydoc._PlainTextDoc())  # type: ignore[attr-defined]
        text = target.__doc__ or ""
        signature = re.match(rf"\s*{op.name}\((.*?)\) -> ", text, re.S)
        require(signature, f"help() of {what} shows {shown.strip()!r}, no signature")
        require(text.strip().splitlines()[0] in shown, f"help() does not show {what}'s docstring")
        if target is op.function:
            _arguments(op, signature[1] if signature else "", text)
        _examples(op, text)


def _arguments(op: Operator, signature: str, text: str) -> None:
    for argument in op.schema.arguments:
        name = "input" if argument.name == "self" else argument.name
        require(re.search(rf"\b{name}\b", signature), f"the signature lacks {name}: ({signature})")


def _examples(op: Operator, text: str) -> None:
    """The examples in a docstring hold."""
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    test = doctest.DocTestParser().get_doctest(text, names, op.id, None, None)
    output = io.StringIO()
    result = doctest.DocTestRunner().run(test, out=output.write)
    require(not result.failed, f"an example fails: {output.getvalue()}")


def type_checked_by(task: str) -> Any:
    def check(op: Operator, device: str, bench: Bench) -> None:
        complaint = bench.result(task, op)
        require(not complaint, str(complaint))

    return check


def check_page(op: Operator, device: str, bench: Bench) -> None:
    wanted = [f"torch.{op.name}"] if op.function is not None and not op.home else []
    if module := op.entry.python_module:
        wanted = [f"torch.{module}.{op.name.removeprefix(module + '_')}"]
    wanted += [f"torch.Tensor.{op.name}"] if op.method is not None else []
    missing = [name for name in wanted if name not in bench.documented]
    require(not missing, f"no page of the additions' documentation lists {', '.join(missing)}")
    for name in wanted:
        _resolves(name)


def _resolves(name: str) -> None:
    """As sphinx's autosummary finds what it writes about."""
    found: Any = torch
    with failing(f"the page lists {name}, which is not there"):
        for part in name.split(".")[1:]:
            found = getattr(found, part)


def check_errors(op: Operator, device: str, bench: Bench) -> None:
    """A wrong argument's error names operator, argument and type; error inputs match by regex."""
    sample = bench.source.typical(op, device, limit=1)[0]
    _wrong_type(op, sample)
    info = bench.source.info(op)
    if info is None or info.error_inputs_func is None:
        return
    for error in info.error_inputs(torch.device(device)):
        given = error.sample_input
        try:
            info(given.input, *given.args, **given.kwargs)
        except Exception as raised:
            kind = isinstance(raised, error.error_type)
            require(kind, f"a {type(raised).__name__} instead of {error.error_type.__name__}")
            matches = re.search(error.error_regex, str(raised), re.S)
            require(matches, f"{error.error_regex!r} is not in {str(raised)!r}")
        else:
            raise CheckFailed(f"takes what must be refused with {error.error_regex!r}")


def _wrong_type(op: Operator, sample: Sample) -> None:
    call = op.function or op.method or op.overload
    argument = op.schema.arguments[0]
    name = "input" if argument.name == "self" and op.function is not None else argument.name
    try:
        call(object(), *sample.args[1:], **sample.kwargs)
    except (TypeError, RuntimeError) as error:
        text = str(error)
        require(op.name in text, f"the operator is not named: {message(error)}")
        if op.function is not None:
            require(name in text, f"{name} is not named: {message(error)}")
        require(re.search("object|incompatible|Tensor", text), "the type is not named")
    else:
        raise CheckFailed(f"takes an object() for {argument.name}")


def _programs(operators: Sequence[Operator], samples: Source, folder: Path) -> dict[str, str]:
    """Programs that call every operator in each way: its id by the program's name.

    One is as in a sample, one is wrong: it has an argument that does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {}
    for number, op in enumerate(operators):
        ways = {"function": f"torch.{op.home}{op.name}"} if op.function is not None else {}
        ways |= {"method": f"torch.Tensor.{op.name}"} if op.method is not None else {}
        for way, call in ways.items():
            text, _ = source(op, samples.typical(op, "cpu", limit=1)[0], call)
            wrong = f"import torch\n\n{call}(no_such_argument=object())\n"
            for kind, program in (("right", text.partition("\n\n\nclass")[0]), ("wrong", wrong)):
                name = f"{kind}_{number}_{way}"
                (folder / f"{name}.py").write_text(program, encoding="utf-8")
                about[name] = op.id
    return about


def complaints(
    operators: Sequence[Operator], about: dict[str, str], found: dict[str, str]
) -> dict[str, Any]:
    """The first complaint about each operator, '' for none; found: a checker's, by program."""
    first = dict.fromkeys((op.id for op in operators), "")
    for name, op in about.items():
        passes = "" if name in found else "a call with an argument that does not exist passes"
        first[op] = first[op] or (passes if name.startswith("wrong") else found.get(name, ""))
    return {"operators": first}


_ERROR = re.compile(r"^(\w+)\.py:\d+: error: (.*)$", re.MULTILINE)


def mypy(operators: Sequence[Operator], samples: Source, scratch: Path, extras: str) -> Any:
    """What mypy says of each operator."""
    folder = scratch / "mypy"
    about = _programs(operators, samples, folder)
    command = [
        sys.executable, "-m", "mypy", "--python-executable", sys.executable, "--config-file", "",
        "--cache-dir", "cache", "--no-color-output", "--no-error-summary", "--check-untyped-defs",
        "--follow-imports", "silent", ".",
    ]  # fmt: skip
    environment = {**os.environ, **({"PYTHONPATH": extras} if extras else {})}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    found = _ERROR.findall(done.stdout)
    # 1 is the verdict that something is wrong, and what Python gives where there is no mypy.
    if done.returncode not in (0, 1) or (done.returncode and not found):
        return {"unavailable": f"mypy cannot be run: {(done.stdout + done.stderr).strip()[-200:]}"}
    return complaints(operators, about, dict(reversed(found)))


def pyright(operators: Sequence[Operator], samples: Source, scratch: Path, extras: str) -> Any:
    """What pyright says of each operator."""
    checker = shutil.which("pyright") or shutil.which("basedpyright")
    if checker is None:
        return {"unavailable": "pyright is not on the path"}
    folder = scratch / "pyright"
    about = _programs(operators, samples, folder)
    # A project of its own: of one around it (a pyproject.toml above) this would be a hidden folder,
    # which pyright passes over without a word.
    settings = {"include": ["."], "exclude": []}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [
        checker, "--outputjson", "--pythonpath", sys.executable, "--project", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    try:
        report = json.loads(done.stdout)
        diagnostics, analyzed = report["generalDiagnostics"], report["summary"]["filesAnalyzed"]
    except (ValueError, KeyError):
        return {"unavailable": f"pyright cannot be run: {done.stderr.strip()[-200:]}"}
    if not analyzed:
        return {"unavailable": f"pyright looked at no file: run it in {folder}"}
    errors = (d for d in reversed(diagnostics) if d["severity"] == "error")
    return complaints(operators, about, {Path(d["file"]).stem: d["message"] for d in errors})


def check_profiler(op: Operator, device: str, bench: Bench) -> None:
    program = make(op, bench.source.typical(op, device, limit=1)[0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        program.call(*program.tensors)
    names = {event.key for event in profile.key_averages()}
    require(f"aten::{op.name}" in names, f"the profile has {sorted(names)}")


def check_flops(op: Operator, device: str, bench: Bench) -> None:
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


def check_pickle(op: Operator, device: str, bench: Bench) -> None:
    program = make(op, bench.source.typical(op, device, limit=1)[0])
    module = program.module()
    expected = op.seeded(program.call)(*program.tensors)
    for what, clone in (
        ("a pickled module", pickle.loads(pickle.dumps(module))),
        ("a deep copy", copy.deepcopy(module)),
    ):
        actual = op.seeded(clone)(*program.tensors)
        same(actual, expected, what, tolerance=0)
    if op.function is not None:
        with failing("pickle"):
            again = pickle.loads(pickle.dumps(op.function))
        require(again is op.function, "the pickled function comes back as another")


def check_cuda_as_cpu(op: Operator, device: str, bench: Bench) -> None:
    if device != "cuda":
        raise Unavailable("no GPU on this machine")
    if op.random:
        raise NotApplicable("draws from another generator")
    for dtype in (torch.float32, torch.float64):
        for sample in bench.source.every(op, "cpu", dtype, requires_grad=op.formula):
            mine = differentiated(op, _moved(sample))
            theirs = differentiated(op, sample)
            what = f"{dtype}, sizes {sample.sizes}"
            for ours, expected in zip(mine, theirs, strict=True):
                on_cpu = [r.cpu() if isinstance(r, torch.Tensor) else r for r in ours]
                same(on_cpu, expected, what)


def _moved(sample: Sample) -> Sample:
    def to_cuda(tensor: Any) -> Any:
        return tensor.detach().cuda().requires_grad_(tensor.requires_grad)

    kwargs = {k: torch.device("cuda") if isinstance(v, torch.device) else v
              for k, v in sample.kwargs.items()}  # fmt: skip
    if not sample.tensors():
        kwargs["device"] = torch.device("cuda")
    return Sample(sample.args, kwargs).mapped(to_cuda)


def check_graphs(op: Operator, device: str, bench: Bench) -> None:
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
    same(results, program.results(), "a replay")
