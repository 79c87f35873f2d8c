"""The checks before the code generator: each refuses one thing, by its line, with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions import validate
from torchfork.errors import (
    AdditionsError,
    CollisionError,
    DerivativeError,
    ForkError,
    KernelError,
    NeedsSourceLaneError,
)
from torchfork.upstream.base import Upstream

UPSTREAM = Upstream(
    (
        "relu(Tensor self) -> Tensor",
        "norm.dim(Tensor self, int[1] dim, *, bool keepdim=False) -> Tensor",
        "split(Tensor(a -> *) self, int n) -> Tensor(a)[]",
    ),
    frozenset({"core", "pointwise"}),
    frozenset({"CPU", "CUDA", "Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd"}),
)
COMPOSITE = "- func: swing(Tensor self) -> Tensor\n"


def checked(root: Path, native: str, derivatives: str = "", **sources: str) -> None:
    validate.check(sample.write(root, native, derivatives, **sources), UPSTREAM, "9.1.0")


def test_additions_that_are_fine_pass(tmp_path: Path) -> None:
    checked(tmp_path, sample.NATIVE, sample.DERIVATIVES)


def test_a_new_overload_of_an_upstream_name_passes(tmp_path: Path) -> None:
    checked(tmp_path, "- func: norm.mine(Tensor self, str dim) -> Tensor\n")


REFUSALS = [
    ("- func: relu(Tensor  self)->Tensor", 1, CollisionError, "exists in torch 9.1.0"),
    ("- func: relu(Tensor self, int n) -> Tensor", 1, NeedsSourceLaneError, "would change"),
    ("- func: a(Tensor x) -> Tensor\n  variants: method", 2, AdditionsError, "'Tensor self'"),
    ("- func: a(Tensor? self) -> Tensor\n  variants: method", 2, AdditionsError, "'Tensor self'"),
    ("- func: a(Tensor self) -> Tensor\n  tags: brand_new", 2, NeedsSourceLaneError, "brand_new"),
    ("- func: a() -> Tensor\n  tags: [core, other]", 2, NeedsSourceLaneError, "'other'"),
    ("- func: a() -> Tensor\n  dispatch:\n    CPU, Abacus: a", 2, NeedsSourceLaneError, "Abacus"),
    ("- func: a() -> Tensor\n  dispatch: a", 2, AdditionsError, "not a mapping"),
]


@pytest.mark.parametrize(("native", "line", "kind", "says"), REFUSALS)
def test_a_declaration_that_the_base_cannot_take_is_refused(
    tmp_path: Path, native: str, line: int, kind: type[ForkError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        checked(tmp_path, native + "\n")
    assert caught.value.where.endswith(f"native_functions_additions.yaml:{line}")
    assert caught.value.next
    if kind is NeedsSourceLaneError:
        assert "--from-source" in caught.value.next and caught.value.why


FORMULAS = [
    ("- name: relu(Tensor self) -> Tensor\n  self: grad", 1, NeedsSourceLaneError, "would change"),
    ("- name: nobody(Tensor self) -> Tensor\n  self: grad", 1, DerivativeError, "nowhere"),
    ("- name: swing(Tensor x) -> Tensor\n  x: grad", 1, DerivativeError, "differently"),
    (sample.DERIVATIVES + "  other: grad", 3, DerivativeError, "names 'other'"),
    (sample.DERIVATIVES + "  self, other: grad", 3, DerivativeError, "names 'other'"),
]


@pytest.mark.parametrize(("formulas", "line", "kind", "says"), FORMULAS)
def test_a_formula_that_fits_no_declaration_is_refused(
    tmp_path: Path, formulas: str, line: int, kind: type[ForkError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        checked(tmp_path, sample.NATIVE, formulas + "\n")
    assert caught.value.where.endswith(f"derivatives_additions.yaml:{line}")


def test_results_may_be_named_in_formulas_as_the_schema_names_them(tmp_path: Path) -> None:
    schema = "sway.more(Tensor self, int n=1) -> (Tensor left, Tensor right)"
    checked(
        tmp_path, sample.NATIVE, f"- name: {schema}\n  self: grad\n  left, right: auto_linear\n"
    )
    with pytest.raises(DerivativeError, match="names 'result0'"):
        checked(tmp_path, sample.NATIVE, f"- name: {schema}\n  result0: self_t\n")
    checked(tmp_path, sample.NATIVE, sample.DERIVATIVES + "  result: auto_linear\n")


def test_a_formula_of_a_composite_would_never_run_and_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DerivativeError, match="made of operators") as caught:
        checked(tmp_path, COMPOSITE, sample.DERIVATIVES)
    assert "CompositeExplicitAutograd" in caught.value.next


def test_a_registration_for_an_operator_that_nobody_declares_is_refused(tmp_path: Path) -> None:
    rule = 'TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {{\n  m.impl("{}", f);\n}}\n'
    for fine in ("relu", "swing", "aten::swing", "swing.out"):
        checked(tmp_path / fine, sample.NATIVE, functorch__Rule_cpp=rule.format(fine))
    with pytest.raises(KernelError, match="'aten::swung'") as caught:
        checked(tmp_path, sample.NATIVE, functorch__Rule_cpp="\n" + rule.format("swung"))
    assert caught.value.where.endswith("aten_src/functorch/Rule.cpp:3")
