"""Stubs of the additions: valid, complete, beside their siblings, and gone without a trace."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sample_manifest import MANIFEST, NOTHING, SAMPLE, operator, reader

from torchfork.codegen.model import Manifest, StructSeq
from torchfork.edits.stubs import stub_edits
from torchfork.errors import BaseRefusedError

FUNCTIONS = "torch/_C/_VariableFunctions.pyi"
METHODS = "torch/_C/__init__.pyi"
NN = "torch/_C/_nn.pyi"


@pytest.fixture(scope="module")
def edited() -> dict[str, str]:
    return stub_edits(reader(), MANIFEST)


def signatures(text: str, name: str) -> list[str]:
    """Every definition of a name with the decorators that it has, in order."""
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    return [
        " ".join([*(f"@{ast.unparse(d)}" for d in n.decorator_list), ast.unparse(n.args)])
        for n in found
        if n.name == name
    ]


def test_an_overload_of_an_existing_name_stands_beside_its_sibling(edited: dict[str, str]) -> None:
    assert signatures(edited[FUNCTIONS], "sinc") == [
        "@overload input: Tensor, *, out: Tensor | None=None",
        "@overload input: Tensor, mode: str",
    ]
    assert re.search(r'"""\n# torchfork:begin\n@overload\ndef sinc', edited[FUNCTIONS])
    assert signatures(edited[METHODS], "sinc") == ["@overload self", "@overload self, mode: str"]


def test_overloads_and_deprecated_signatures_follow_what_is_there(edited: dict[str, str]) -> None:
    found = signatures(edited[FUNCTIONS], "where")
    assert found[-1] == "@overload condition: Tensor, mode: str" and len(found) == 3
    assert all(one.count("@overload") == 1 for one in found)
    first, second = signatures(edited[FUNCTIONS], "gadd")
    assert "alpha: Number | _complex=2, out" in first
    assert second.startswith("@overload self: Tensor")
    assert "blocked" not in edited[FUNCTIONS], "a name that upstream's stubs leave out stays out"


def test_methods_are_put_into_tensorbase_only(edited: dict[str, str]) -> None:
    classes = {n.name: n for n in ast.parse(edited[METHODS]).body if isinstance(n, ast.ClassDef)}
    names = {n.name for n in classes["TensorBase"].body if isinstance(n, ast.FunctionDef)}
    assert names == {"gdh", "gadd", "gadd_", "gshout", "sinc"}
    assert len(classes["Later"].body) == 1


def test_new_functions_are_exported_by_star_import(edited: dict[str, str]) -> None:
    scope: dict[str, list[str]] = {}
    lines = [line for line in edited[FUNCTIONS].split("\n") if "__all__ +=" in line]
    exec("\n".join(["__all__ = []", *lines]), scope)
    assert {"gadd", "gdh", "gfull", "gpair"} <= set(scope["__all__"])
    assert {"sinc", "where", "gnn", "gshout"}.isdisjoint(scope["__all__"])


def test_every_stub_is_valid_python_and_a_second_run_changes_none(edited: dict[str, str]) -> None:
    names = {"torch/_VF.pyi", "torch/nn/functional.pyi", "torch/return_types.pyi"}
    assert set(edited) == {FUNCTIONS, METHODS, NN, *names}
    for path, text in edited.items():
        compile(text, path, "exec")
    again = reader(over=edited)
    assert stub_edits(again, MANIFEST) == {}
    assert stub_edits(again, NOTHING) == {path: reader()(path) for path in edited}


def test_a_named_tuple_is_not_defined_twice_and_a_base_without_stubs_is_refused(
    tmp_path: Path,
) -> None:
    structseq = StructSeq("max", ("a",), "class max(tuple[Tensor]): ...")
    entry = operator("max.g(Tensor self) -> Tensor", new_name=False, structseq=structseq)
    assert "torch/return_types.pyi" not in stub_edits(reader(), Manifest((entry,)))
    with pytest.raises(BaseRefusedError, match=re.escape(FUNCTIONS)):
        stub_edits(reader(tmp_path), MANIFEST)


PROGRAM = """\
import torch
import torch.nn.functional as F

x: torch.Tensor
reveal_type(torch.gdh(x))
reveal_type(x.gdh().gadd_(x))
reveal_type(torch.gadd(x, x, alpha=1, out=x))
reveal_type(torch.gadd(x, 2, x))
reveal_type(torch.gfull(1, 2))
reveal_type(torch.gpair(x).high)
reveal_type(torch.sinc(x, "mode"))
reveal_type(F.gnn(x, 0.5))
x.gshout(1)
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_reads_every_kind_of_stub_and_still_finds_a_wrong_call(
    edited: dict[str, str], tmp_path: Path
) -> None:
    tree = tmp_path / "site"
    shutil.copytree(SAMPLE, tree, ignore=shutil.ignore_patterns("*.py", "*.h", "*.in"))
    for path, text in edited.items():
        (tree / path).write_text(text, encoding="utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file=", "program.py"],
        cwd=tmp_path, env={"MYPYPATH": str(tree), "PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line for line in lines if "error" in line] == [
        'program.py:13: error: Too many arguments for "gshout" of "TensorBase"  [call-arg]'
    ], done.stdout
    assert sum("torch.Tensor" in line for line in lines) == 8, done.stdout
