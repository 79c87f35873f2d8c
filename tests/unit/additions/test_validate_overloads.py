"""Additions that the generator takes and that would go wrong later are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchfork.additions import load, validate
from torchfork.errors import CollisionError, DerivativeError, KernelError
from torchfork.upstream.base import Upstream

UPSTREAM = Upstream(
    (
        "hypot(Tensor self, Tensor other) -> Tensor",
        "hypot.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
    ),
    frozenset({"pointwise"}),
    frozenset({"CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"}),
)


def check(directory: Path, native: str, derivatives: str = "", source: str = "") -> None:
    (directory / load.NATIVE).write_text(native, encoding="utf-8")
    (directory / load.DERIVATIVES).write_text(derivatives, encoding="utf-8")
    (directory / "aten_src").mkdir()
    (directory / "aten_src" / "X.cpp").write_text(source, encoding="utf-8")
    validate.check(load.load(directory), UPSTREAM, "2.13.0")


@pytest.mark.parametrize(
    "schema",
    [
        "hypot.mine(Tensor self, Tensor other, Tensor third) -> Tensor",
        "hypot.mine(Tensor self, *, Tensor second, Tensor(a!) third) -> Tensor(a!)",
    ],
)
def test_overload_with_the_types_of_the_out_variant_is_refused(tmp_path: Path, schema: str) -> None:
    with pytest.raises(CollisionError, match=r"'hypot\.out'"):
        check(tmp_path, f"- func: {schema}\n")


@pytest.mark.parametrize(
    "schema",
    [
        "hypot.mine(Tensor self, Tensor other, *, Scalar scale) -> Tensor",
        "hypot.mine(Tensor self, Tensor other, int[2] size=[1, 1]) -> Tensor",
        "hypoty(Tensor self, Tensor other, Tensor third) -> Tensor",
        "several(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]",
    ],
)
def test_overload_with_types_of_its_own_is_taken(tmp_path: Path, schema: str) -> None:
    check(tmp_path, f"- func: {schema}\n  variants: function, method\n")


FORMULA = "- name: two(Tensor self) -> Tensor\n  self: grad * 2\n"


@pytest.mark.parametrize("dispatch", ["", "  dispatch:\n    CompositeImplicitAutograd: two\n"])
def test_formula_of_a_composite_is_refused(tmp_path: Path, dispatch: str) -> None:
    with pytest.raises(DerivativeError, match="autograd sees the operators inside"):
        check(tmp_path, f"- func: two(Tensor self) -> Tensor\n{dispatch}", FORMULA)


@pytest.mark.parametrize(
    "fields", ["  dispatch:\n    CPU: two\n", "  structured_delegate: two.out\n"]
)
def test_formula_of_an_operator_with_kernels_is_taken(tmp_path: Path, fields: str) -> None:
    check(tmp_path, f"- func: two(Tensor self) -> Tensor\n{fields}", FORMULA)


def test_forward_formulas_go_by_the_names_of_results(tmp_path: Path) -> None:
    schema = "two(Tensor self) -> (Tensor, Tensor)"
    native = f"- func: {schema}\n  dispatch:\n    CPU: two\n"
    check(tmp_path, native, f"- name: {schema}\n  self: grads[0]\n  result0: self_t\n")


def registration(name: str) -> str:
    return f'TORCH_LIBRARY_IMPL(aten, CPU, m) {{\n  m.impl("{name}", kernel);\n}}\n'


@pytest.mark.parametrize("name", ["two", "aten::two", "two.out", "hypot.out"])
def test_registration_of_a_declared_operator_is_taken(tmp_path: Path, name: str) -> None:
    native = "- func: two(Tensor self) -> Tensor\n  dispatch:\n    CPU: two\n  autogen: two.out\n"
    check(tmp_path, native, source=registration(name))


def test_registration_of_an_undeclared_operator_is_refused_with_its_line(tmp_path: Path) -> None:
    native = "- func: two(Tensor self) -> Tensor\n"
    with pytest.raises(KernelError, match=r"(?s)'aten::three'.*X\.cpp:3"):
        check(tmp_path, native, source="\n" + registration("three"))
    assert (tmp_path / "aten_src" / "X.cpp").exists()
