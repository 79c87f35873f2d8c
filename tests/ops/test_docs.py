"""Docstrings are there, say what the signature is, and their examples hold."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

FUNCTIONS = ["gdh", "gdh_copy", "depthwise_conv2d_ext", "sigmoid_ext", "sigmoid_ext_", "axpy_ext",
             "lltm_cell"]  # fmt: skip
METHODS = ["gdh", "sigmoid_ext", "sigmoid_ext_", "axpy_ext", "axpy_ext_"]
PYTHON: list[Any] = [F.depthwise_conv2d_ext, F.lltm_cell, nn.DepthwiseConv2dExt,
                     nn.DepthwiseConv2dExt.from_conv2d, nn.LLTMCell,
                     nn.utils.convert_depthwise]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_documented_with_each_of_its_arguments(name: str) -> None:
    text = getattr(torch, name).__doc__
    schema = getattr(torch.ops.aten, name).default._schema
    signature = re.match(rf"\n{name}\((.*?)\) -> ", text)
    assert signature, text
    for argument in schema.arguments:
        known = "input" if argument.name == "self" else argument.name
        assert re.search(rf"\b{known}\b", signature[1]), known
        if not name.endswith(("_", "_copy")):
            assert re.search(rf"^    {known} \(", text, re.M), known


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_documented(name: str) -> None:
    text = getattr(torch.Tensor, name).__doc__
    assert text.startswith(f"\n{name}(")
    assert f":func:`torch.{name}`" in text or f":meth:`~Tensor.{name.rstrip('_')}`" in text


DOCUMENTED = [(name, getattr(torch, name)) for name in FUNCTIONS] + [
    (thing.__name__, thing) for thing in PYTHON
]


@pytest.mark.parametrize(("name", "thing"), DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_examples_hold(name: str, thing: Any) -> None:
    names = {"torch": torch, "nn": nn, "F": F}
    found = doctest.DocTestParser().get_doctest(thing.__doc__, names, name, None, None)
    assert doctest.DocTestRunner().run(found).failed == 0
    refers = re.search(r"See|[Ss]ame (operation )?as|In-place version of", thing.__doc__)
    assert found.examples or refers, "neither an example nor where there is one"


PAGE = Path(__file__).resolve().parents[2] / "docs" / "walkthroughs.md"


def test_examples_of_the_page_on_the_walkthroughs_hold() -> None:
    """As they stand there; each operator and module has one."""
    text = PAGE.read_text(encoding="utf-8")
    # a fence is no output that is expected
    found = doctest.DocTestParser().get_doctest(
        text.replace("```", ""), {}, PAGE.name, str(PAGE), 0
    )
    outcome = doctest.DocTestRunner().run(found)
    assert outcome.failed == 0 and outcome.attempted > 20
    code = "".join(example.source for example in found.examples)
    for name in [*METHODS[:1], *FUNCTIONS, "DepthwiseConv2dExt", "LLTMCell", "convert_depthwise"]:
        assert name in text
    for name in ("gdh", "axpy_ext", "sigmoid_ext", "depthwise_conv2d_ext", "lltm_cell"):
        assert f"{name}(" in code


def test_files_that_the_page_names_are_there() -> None:
    """A page that outlives a file misleads."""
    text = PAGE.read_text(encoding="utf-8")
    root = PAGE.parents[1]
    named = re.findall(r"`((?:aten_src|patches|scripts|tests|cpu|cuda)/[\w./*-]+)`", text)
    assert len(named) > 10
    for name in named:
        below = root / "aten_src" / "native" if name.startswith(("cpu/", "cuda/")) else root
        assert list(below.glob(name.rstrip("/"))), name


def test_upstreams_docstrings_are_still_there() -> None:
    assert "ravel(input) -> Tensor" in torch.ravel.__doc__
    assert "torch.ravel" in torch.Tensor.ravel.__doc__
