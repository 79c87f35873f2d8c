"""The trial reports what only the generation of sources refuses, each at its entry."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions import merge
from torchfork.codegen import client, templates
from torchfork.errors import AdditionsError, DerivativeError, ForkError

GOOD = """\
- func: swing(Tensor self) -> Tensor
  dispatch:
    CPU: swing_cpu
  autogen: swing.out
"""
BOOLS = "- func: swing_bools(Tensor self, bool[2] masks) -> Tensor\n"
FOUR = "- func: swing_four(Tensor self, bool[4] masks) -> Tensor\n"
TWICE = """\
- func: swing_twice(Tensor self) -> (Tensor, Tensor)
  dispatch:
    CPU: swing_twice
"""
FORMULA = """\
- name: swing(Tensor self) -> Tensor
  self: grad * 2
  result: auto_linear
"""
MIXED = "- name: swing_twice(Tensor self) -> (Tensor, Tensor)\n  self: grad + grads[1]\n"
Refused = list[tuple[type[ForkError], int]]


@pytest.fixture(scope="module")
def home() -> Path:
    found = importlib.util.find_spec("torchgen")
    if found is None or found.origin is None:
        pytest.skip("needs the torchgen of an installed torch (any release)")
    return Path(found.origin).parents[1]


@pytest.fixture(scope="module")
def refused(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Refused]:
    """Tries additions on an installed torchgen; the errors with the lines they name, by line."""
    root = tmp_path_factory.mktemp("trial")
    installed = merge.MergedTree(home, {})
    schemas = client.list_operators(home, root).schemas

    def tried(native: str, derivatives: str) -> Refused:
        additions = sample.write(root / "additions", native, derivatives)
        tree = merge.prepare(installed, additions, root / "tree")
        manifest = client.describe(tree, additions, schemas, root)
        errors: list[ForkError] = []
        try:
            client.try_sources(tree, additions, manifest, root)
        except ForkError as error:
            errors = [error, *error.also]
        assert not list(root.glob(".trial*")), "something was kept"
        found = [(type(error), int(error.where.rpartition(":")[2])) for error in errors]
        return sorted(found, key=itemgetter(1))

    return tried


def test_dispatch_keys_are_those_that_have_kernels(home: Path, tmp_path: Path) -> None:
    """The enumeration has others, which the generator refuses: an operator may be called dense."""
    keys = client.list_operators(home, tmp_path).dispatch_keys
    assert {"CPU", "CUDA", "Meta", "SparseCPU", "CompositeExplicitAutograd"} <= keys
    assert not {"Dense", "Named", "Autograd", "Undefined"} & keys


@pytest.mark.parametrize("formula", ["", FORMULA])
def test_what_the_generator_takes_is_not_refused(
    refused: Callable[[str, str], Refused], formula: str
) -> None:
    assert refused(GOOD + TWICE, formula) == []


def test_everything_that_the_generator_refuses_is_named_in_one_run(
    refused: Callable[[str, str], Refused],
) -> None:
    found = refused(BOOLS + GOOD + FOUR + TWICE, FORMULA)
    assert found == [(AdditionsError, 1), (AdditionsError, 6)]
    found = refused(BOOLS + GOOD + TWICE, FORMULA + MIXED)
    assert found == [(AdditionsError, 1), (DerivativeError, 4)]
    # A forward formula without a tangent is refused when the declaration is being generated.
    found = refused(TWICE + GOOD, FORMULA.replace("auto_linear", "self_p * 2"))
    assert found == [(DerivativeError, 1)]


def test_a_generator_that_patches_change_makes_every_header_anew(
    home: Path, tmp_path: Path
) -> None:
    """Without them only headers of the added names are made, the others being the base's."""
    name = "torchgen/packaged/ATen/templates/Function.h"
    patched = {name: (home / name).read_text() + "// patched\n"}
    installed, additions = merge.MergedTree(home, {}), sample.write(tmp_path / "a", GOOD, "")
    tree = replace(merge.prepare(installed, additions, tmp_path / "tree"), patched=patched)
    merge.apply_edits(installed, tree, {}, ())
    schemas = client.list_operators(home, tmp_path).schemas
    manifest = client.describe(tree, additions, schemas, tmp_path)
    templates.make_autograd_templates(tree.packaged / "autograd/templates", tmp_path / "templates")
    out = tmp_path / "out"
    client.generate(tree, additions, manifest, tmp_path / "templates", out, tmp_path)
    for operator in ("swing", "relu"):
        assert (out / f"all/ATen/ops/{operator}.h").read_text().endswith("// patched\n")


@pytest.mark.parametrize(
    ("declared", "autogen"),
    [
        ("spun(Tensor self) -> Tensor", "spun.outt"),
        ("spun(Tensor self) -> Tensor", "spun.out, spun.of_out"),
        ("spun(Tensor self) -> (Tensor, Tensor)", "spun_.out"),
        ("spun_.of(Tensor(a!) self, Tensor x) -> Tensor(a!)", "spun.of, spun.out"),
        ("spun(Tensor self, Tensor(a!) x) -> Tensor", "spun_, spun.out"),
    ],
)
def test_what_autogen_names_and_the_generator_does_not_make_is_refused(
    home: Path, tmp_path: Path, declared: str, autogen: str
) -> None:
    native = f"- func: {declared}\n  dispatch:\n    CompositeExplicitAutograd: k\n"
    additions = sample.write(tmp_path / "a", f"{native}  autogen: {autogen}\n", "")
    tree = merge.prepare(merge.MergedTree(home, {}), additions, tmp_path / "tree")
    schemas = client.list_operators(home, tmp_path).schemas
    with pytest.raises(AdditionsError, match="makes no 'spun") as caught:
        client.describe(tree, additions, schemas, tmp_path)
    assert caught.value.where.endswith(":4") and "spun" in caught.value.why
