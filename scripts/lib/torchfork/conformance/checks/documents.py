"""What people and tools read: docstrings, type stubs, documentation pages, error messages."""

from __future__ import annotations

import doctest
import io
import pydoc
import re
from typing import Any

import torch

from .bench import Bench, Item, a_python_name, a_torch_name
from .operators import Operator
from .outcome import CheckFailed, Unavailable, first_lines, require
from .samples import Sample


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
    told = io.StringIO()
    result = doctest.DocTestRunner().run(test, out=told.write)
    require(not result.failed, f"an example fails: {told.getvalue()[-200:]}")


def _prepared(name: str) -> Any:
    def check(op: Operator, device: str, bench: Bench) -> None:
        told = bench.prepared.get(name, {"unavailable": "it was not run"})
        if "unavailable" in told:
            raise Unavailable(told["unavailable"])
        complaint = told["operators"][op.id]
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
    try:
        for part in name.split(".")[1:]:
            found = getattr(found, part)
    except AttributeError as error:
        raise CheckFailed(f"the page lists {name}, which is not there") from error


def _errors(op: Operator, device: str, bench: Bench) -> None:
    """A wrong argument is told with operator, argument and type; error inputs by their words."""
    sample = bench.source.typical(op, device, limit=1)[0]
    _wrong_type(op, sample)
    info = bench.source.info(op)
    if info is None or info.error_inputs_func is None:
        return
    for error in info.error_inputs(torch.device(device)):
        given = error.sample_input
        try:
            info(given.input, *given.args, **given.kwargs)
        except Exception as said:
            kind = isinstance(said, error.error_type)
            require(kind, f"a {type(said).__name__} instead of {error.error_type.__name__}")
            matches = re.search(error.error_regex, str(said), re.S)
            require(matches, f"{error.error_regex!r} is not in {first_lines(said)!r}")
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
        require(op.name in text, f"the operator is not named: {first_lines(error)}")
        if op.function is not None:
            require(name in text, f"{name} is not named: {first_lines(error)}")
        require(re.search("object|incompatible|Tensor", text), "the type is not named")
    else:
        raise CheckFailed(f"takes an object() for {argument.name}")


ITEMS = (
    Item("docstring in help()", _docstring, (a_torch_name,), each_device=False),
    Item("type stubs: mypy", _prepared("mypy"), (a_python_name,), False, "mypy"),
    Item("type stubs: pyright", _prepared("pyright"), (a_python_name,), False, "pyright"),
    Item("documentation page", _page, (a_torch_name,), each_device=False),
    Item("error messages", _errors),
)
