"""Docstrings are there, say what the signature is, and their examples hold."""

from __future__ import annotations

import doctest
import re
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


def test_upstreams_docstrings_are_still_there() -> None:
    assert "ravel(input) -> Tensor" in torch.ravel.__doc__
    assert "torch.ravel" in torch.Tensor.ravel.__doc__
