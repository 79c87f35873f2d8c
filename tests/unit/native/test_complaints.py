"""A compiler's complaint about generated code is traced to the formula it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchfork.additions import load
from torchfork.native.complaints import formula_of

DERIVATIVES = """\
- name: zoo_two(Tensor self, Tensor other) -> Tensor
  self: grad * helper_of_self(other)
  other: grad * helper_of_other(self)
  result: helper_of_forward(self_t, other_t)

- name: zoo_two_more_(Tensor(a!) self) -> Tensor(a!)
  self: zeros_like(grad)
"""
NODE = (
    "Functions.cpp: In member function 'virtual variable_list "
    "torch::autograd::generated::{name}Backward0::apply(variable_list&&)':\n"
)
FORWARD = (
    "VariableType.cpp: In function 'at::Tensor "
    "torch::autograd::VariableType::{anonymous}::zoo_two(c10::DispatchKeySet, const Tensor&)':\n"
)


@pytest.fixture
def loaded(tmp_path: Path) -> load.Additions:
    (tmp_path / load.NATIVE).write_text("", encoding="utf-8")
    (tmp_path / load.DERIVATIVES).write_text(DERIVATIVES, encoding="utf-8")
    return load.load(tmp_path)


@pytest.mark.parametrize(
    ("before", "error", "line"),
    [
        (NODE.replace("{name}", "ZooTwo"), "'helper_of_other' was not declared", 3),
        (NODE.replace("{name}", "ZooTwo"), "'helper_of_self' was not declared", 2),
        (FORWARD, "no matching function for call to 'helper_of_forward(at::Tensor&)'", 4),
        (NODE.replace("{name}", "ZooTwo"), "something else", 1),
        (NODE.replace("{name}", "ZooTwoMore"), "'at::Tensor' has no member", 6),
    ],
)
def test_error_names_the_line_of_the_formula(
    loaded: load.Additions, before: str, error: str, line: int
) -> None:
    assert formula_of(before, error, loaded) == f"{loaded.derivatives.path}:{line}"


def test_the_last_function_named_before_the_error_is_the_one(loaded: load.Additions) -> None:
    before = NODE.replace("{name}", "ZooTwoMore") + NODE.replace("{name}", "ZooTwo")
    assert formula_of(before, "'helper_of_self' was", loaded).endswith(":2")


def test_error_in_a_kernel_has_no_formula(loaded: load.Additions) -> None:
    before = "Zoo.cpp: In function 'at::Tensor at::native::zoo_two(const Tensor&)':\n"
    assert formula_of(before, "'x' was not declared", loaded) == ""
