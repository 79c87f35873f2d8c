"""C++ written against the wheel with torch.utils.cpp_extension calls the added operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from subject import Subject

pytestmark = pytest.mark.overlay

HERE = Path(__file__).with_name("consumer_cpp")


@pytest.fixture(scope="module")
def told(subject: Subject) -> dict[str, Any]:
    """What consumer_cpp/program.py found."""
    build = subject.neutral / "extensions"
    build.mkdir()
    done = subject.run([subject.python, HERE / "program.py", HERE, build], MAX_JOBS="1")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


@pytest.mark.parametrize("way", ["function", "method", "copy_out", "dispatcher"])
def test_gdh_is_called_from_an_extension(told: dict[str, Any], way: str) -> None:
    assert told[way] is True


def test_an_alias_stays_an_alias_through_an_extension(told: dict[str, Any]) -> None:
    assert told["alias"] is True


def test_the_dispatcher_knows_the_schemas(told: dict[str, Any]) -> None:
    assert told["schemas"] == [
        "aten::gdh(Tensor(a) self) -> Tensor(a)",
        "aten::depthwise_conv2d_ext.out(Tensor input, Tensor weight, Tensor? bias=None, "
        "SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], *, "
        "Tensor(a!) out) -> Tensor(a!)",
    ]


def test_torch_namespace_functions_record_the_autograd_node(told: dict[str, Any]) -> None:
    assert told["forward"] is True
    assert told["backward"] is True
    assert told["node"] == "DepthwiseConv2DExtBackward0"


def test_headers_of_the_additions_are_found_and_usable(told: dict[str, Any]) -> None:
    assert told["header"] == 12


def test_a_library_without_python_uses_headers_of_single_operators(told: dict[str, Any]) -> None:
    assert told["library"] is True
    assert told["library_backward"] is True
