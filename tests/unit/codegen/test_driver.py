"""The trial reports what only the generation of sources refuses, each at its entry."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions import merge
from torchfork.codegen import client
from torchfork.errors import AdditionsError, DerivativeError, ForkError
from torchfork.util.files import Rooted

FOUND = importlib.util.find_spec("torchgen")
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="needs the torchgen of an installed torch (any release)"
)

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
def refused(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Refused]:
    """Tries additions on an installed torchgen; the errors, each with the line it names."""
    root = tmp_path_factory.mktemp("trial")
    assert FOUND is not None and FOUND.origin is not None

    class Installed(Rooted):
        root = Path(str(FOUND.origin)).parents[1]

    schemas = client.list_operators(Installed.root, root).schemas

    def tried(native: str, derivatives: str) -> Refused:
        additions = sample.write(root / "additions", native, derivatives)
        tree = merge.prepare(Installed(), additions, root / "tree")
        manifest = client.describe(tree, additions, schemas, root)
        errors: list[ForkError] = []
        try:
            client.try_sources(tree, additions, manifest, root)
        except ForkError as error:
            errors = [error, *error.also]
        assert not list(root.glob(".trial*")), "something was kept"
        return [(type(error), int(error.where.rpartition(":")[2])) for error in errors]

    return tried


def test_dispatch_keys_are_those_that_have_kernels(tmp_path: Path) -> None:
    """The enumeration has others, which the generator refuses: an operator may be called dense."""
    assert FOUND is not None and FOUND.origin is not None
    keys = client.list_operators(Path(FOUND.origin).parents[1], tmp_path).dispatch_keys
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
    assert sorted(line for _, line in found) == [1, 6]
    assert {kind for kind, _ in found} == {AdditionsError}
    found = refused(BOOLS + GOOD + TWICE, FORMULA + MIXED)
    assert set(found) == {(AdditionsError, 1), (DerivativeError, 4)} and len(found) == 2
