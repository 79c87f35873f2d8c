"""What people and tools read: docstrings, pages, error messages, and stubs by type checkers."""

from __future__ import annotations

import doctest
import io
import json
import os
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import needs
from .bench import Bench, CheckFailed, Item, failing, message, require
from .operators import Operator
from .programs import source
from .samples import Sample, Source


def _docstring(op: Operator, device: str, bench: Bench) -> None:
    for target, what in ((op.function, "the function"), (op.method, "the method")):
        if target is None:
            continue
        shown = pydoc.render_doc(target, renderer=pydoc._PlainTextDoc())  # type: ignore[attr-defined]
        text = target.__doc__ or ""
        signature = re.match(rf"\s*{op.name}\((.*?)\) -> ", text, re.S)
        require(signature, f"help() of {what} shows {shown.strip()[-80:]!r}, no signature")
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


def _type_checked(task: str) -> Any:
    def check(op: Operator, device: str, bench: Bench) -> None:
        complaint = bench.result(task, op)
        require(not complaint, str(complaint))

    return check


def _page(op: Operator, device: str, bench: Bench) -> None:
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


def _errors(op: Operator, device: str, bench: Bench) -> None:
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


_NUMBER = re.compile(r"^.*?program\.py:(\d+): error: (.*)$")


def program(operators: Sequence[Operator], samples: Source) -> tuple[str, dict[int, str], set[int]]:
    """A program, the operator that each of its lines is about, and the lines that are wrong."""
    lines = ["import torch", ""]
    about: dict[int, str] = {}
    wrong: set[int] = set()
    for number, op in enumerate(operators):
        for way, text in _calls(op, samples):
            lines += ["", f"def f{number}_{way}({text[0]}) -> object:"]
            for line in text[1]:
                lines.append(f"    {line}")
                about[len(lines)] = op.id
            lines.append(f"    {text[2]}")
            about[len(lines)] = op.id
            wrong.add(len(lines))
            lines.append(f"    {text[3]}")
            about[len(lines)] = op.id
    return "\n".join(lines) + "\n", about, wrong


def _calls(op: Operator, samples: Source) -> list[tuple[str, tuple[str, list[str], str, str]]]:
    """For each way to call: parameters, lines before, a wrong call, the right one's return."""
    if not op.bound:
        return []
    sample: Sample = samples.typical(op, "cpu", limit=1)[0]
    found = []
    if op.function is not None:
        name = f"torch.{op.home}{op.name}"
        found.append(("function", _told(op, sample, name, f"{name}(no_such_argument=object())")))
    if op.method is not None:
        text = _told(op, sample, f"torch.Tensor.{op.name}", f"t0.{op.name}(no_such_argument=0)")
        found.append(("method", text))
    return found


def _told(op: Operator, sample: Sample, call: str, wrong: str) -> tuple[str, list[str], str, str]:
    text, _ = source(op, sample, call)
    head, _, rest = text.partition("def program(")[2].partition("):\n")
    body = [line.strip() for line in rest.partition("\n\n\nclass")[0].strip().splitlines()]
    return head, body[:-1], wrong, body[-1]


def mypy(operators: Sequence[Operator], samples: Source, scratch: Path, extras: str) -> Any:
    """What mypy says of each operator."""
    file, about, wrong = _written(operators, samples, scratch / "mypy")
    command = [
        sys.executable, "-m", "mypy", "--python-executable", sys.executable, "--config-file", "",
        "--cache-dir", str(file.parent / "cache"), "--no-color-output", "--no-error-summary",
        "--follow-imports", "silent", str(file),
    ]  # fmt: skip
    environment = {**os.environ, **({"PYTHONPATH": extras} if extras else {})}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=file.parent, env=environment
    )
    found = [match for line in done.stdout.splitlines() if (match := _NUMBER.match(line))]
    # 1 is the verdict that something is wrong, and what Python gives where there is no mypy.
    if done.returncode not in (0, 1) or (done.returncode and not found):
        return {"unavailable": f"mypy cannot be run: {(done.stdout + done.stderr).strip()[-200:]}"}
    return _verdicts(operators, about, wrong, {int(m[1]): m[2] for m in found})


def pyright(operators: Sequence[Operator], samples: Source, scratch: Path, extras: str) -> Any:
    """What pyright says of each operator."""
    checker = shutil.which("pyright") or shutil.which("basedpyright")
    if checker is None:
        return {"unavailable": "pyright is not on the path"}
    file, about, wrong = _written(operators, samples, scratch / "pyright")
    # A project of its own: of one around it (a pyproject.toml above) this would be a hidden folder,
    # which pyright passes over without a word.
    settings = {"include": [file.name], "exclude": []}
    (file.parent / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [
        checker, "--outputjson", "--pythonpath", sys.executable, "--project", str(file.parent),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
    try:
        report = json.loads(done.stdout)
        diagnostics, analyzed = report["generalDiagnostics"], report["summary"]["filesAnalyzed"]
    except (ValueError, KeyError):
        return {"unavailable": f"pyright cannot be run: {done.stderr.strip()[-200:]}"}
    if not analyzed:
        return {"unavailable": f"pyright looked at no file: run it in {file.parent}"}
    found = {d["range"]["start"]["line"] + 1: d["message"] for d in diagnostics
             if d["severity"] == "error"}  # fmt: skip
    return _verdicts(operators, about, wrong, found)


def _written(
    operators: Sequence[Operator], samples: Source, directory: Path
) -> tuple[Path, dict[int, str], set[int]]:
    directory.mkdir(parents=True, exist_ok=True)
    text, about, wrong = program(operators, samples)
    file = directory / "program.py"
    file.write_text(text, encoding="utf-8")
    return file, about, wrong


def _verdicts(
    operators: Sequence[Operator], about: dict[int, str], wrong: set[int], found: dict[int, str]
) -> dict[str, Any]:
    """A complaint for each operator, '' for none."""
    complaints = dict.fromkeys((op.id for op in operators), "")
    for line, op in about.items():
        if line in wrong and line not in found:
            complaints[op] = complaints[op] or "a call with an argument that does not exist passes"
        elif line not in wrong and line in found:
            complaints[op] = complaints[op] or found[line]
    return {"operators": complaints}


ITEMS = (
    Item("docstring in help()", _docstring, (needs.a_torch_name,), each_device=False),
    Item("type stubs: mypy", _type_checked("mypy"), (needs.a_python_name,), False, "mypy"),
    Item("type stubs: pyright", _type_checked("pyright"), (needs.a_python_name,), False, "pyright"),
    Item("documentation page", _page, (needs.a_torch_name,), each_device=False),
    Item("error messages", _errors),
)
