"""The manifest has the stubs, and what lists need of overloads; kinds are for the zoo to assert."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from sample_manifest import reader

from torchfork.codegen.manifest import build_manifest, load_binding_generator
from torchfork.codegen.model import Manifest, Operator
from torchfork.edits.lists import edit_lists
from torchfork.errors import BaseRefusedError

FOUND = importlib.util.find_spec("torchgen")
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="needs the torchgen of an installed torch (any release)"
)

ADDED = """
- func: gsoft(Tensor self, Tensor other, *, Scalar alpha=2) -> Tensor
  structured_delegate: gsoft.out
  variants: function, method
- func: gsoft_(Tensor(a!) self, Tensor other, *, Scalar alpha=2) -> Tensor(a!)
  structured_delegate: gsoft.out
  variants: method
- func: gsoft.out(Tensor self, Tensor other, *, Scalar alpha=2, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU: gsoft_out
- func: gview(Tensor x, Tensor(a) self, int[] sizes) -> Tensor(a)
  variants: function
  dispatch:
    CompositeExplicitAutograd: gview
- func: gravel(Tensor(a) self) -> Tensor(a)
  variants: function, method
- func: gfull(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
  dispatch:
    CompositeExplicitAutograd: gfull
  autogen: gfull.out
- func: gpair(Tensor self, int reduction=Mean, bool[2] mask=[True,False]) -> (Tensor low, Tensor high)
  dispatch:
    CPU: gpair
"""  # noqa: E501

DEPRECATED = [
    {"name": "gsoft(Tensor self, Scalar alpha, Tensor other) -> Tensor",
     "aten": "gsoft(self, other, alpha)"},
    {"name": "gsoft_(Tensor(a!) self, Scalar alpha, Tensor other) -> Tensor(a!)",
     "aten": "gsoft_(self, other, alpha)"},
]  # fmt: skip


def packaged() -> Path:
    assert FOUND is not None and FOUND.origin is not None
    return Path(FOUND.origin).parent / "packaged"


def described(
    directory: Path, added_yaml: str, differentiable: set[str], deprecated: list[dict[str, str]]
) -> Manifest:
    """The manifest of added entries on a base that has sinc, where and copy_.

    differentiable: the qualified names of the entries that have a formula.
    """
    from torchgen.gen import parse_native_yaml

    native = packaged() / "ATen" / "native"
    whole = yaml.safe_load((native / "native_functions.yaml").read_text(encoding="utf-8"))
    base = [entry for entry in whole if entry["func"].startswith(("sinc", "where", "copy_("))]
    functions = {}
    for name, entries in {"base": base, "merged": base + yaml.safe_load(added_yaml)}.items():
        path = directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(entries), encoding="utf-8")
        functions[name] = parse_native_yaml(str(path), str(native / "tags.yaml")).native_functions
    known = {str(f.func) for f in functions["base"]}
    added = [f for f in functions["merged"] if str(f.func) not in known]
    formulas = [str(f.func) for f in added if str(f.func.name) in differentiable]
    return build_manifest(added, functions["merged"], formulas, deprecated, packaged())


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return described(tmp_path_factory.mktemp("yaml"), ADDED, {"gsoft"}, DEPRECATED)


@pytest.fixture(scope="module")
def ops(manifest: Manifest) -> dict[str, Operator]:
    return {op.qualified: op for op in manifest.operators}


def parameters(hints: Iterable[str]) -> list[str]:
    functions = [ast.parse(hint).body[0] for hint in hints]
    return [
        " ".join(a.arg for a in [*f.args.args, *f.args.kwonlyargs])
        for f in functions
        if isinstance(f, ast.FunctionDef)
    ]


def test_stubs_merge_out_into_the_functional_one_alone(ops: dict[str, Operator]) -> None:
    assert parameters(ops["gsoft"].pyi_function) == ["input other alpha out"]
    assert parameters(ops["gsoft"].pyi_method) == ["self other alpha"]
    assert ops["gsoft.out"].pyi_function == ops["gsoft.out"].pyi_method == ()
    listed, one_by_one = ops["gfull"].pyi_function
    assert "*size" in one_by_one and "*size" not in listed
    function = ast.parse(ops["gpair"].pyi_function[0]).body[0]
    assert isinstance(function, ast.FunctionDef), "defaults are Python's"
    assert [ast.unparse(d) for d in function.args.defaults] == ["1", "(True, False)"]


def test_named_returns_have_their_type(ops: dict[str, Operator]) -> None:
    structseq = ops["gpair"].structseq
    assert structseq is not None
    assert (structseq.name, structseq.fields) == ("gpair", ("low", "high"))
    assert structseq.pyi.startswith("class gpair(tuple[Tensor, Tensor]):")
    assert "torch.return_types.gpair" in ops["gpair"].pyi_function[0]


def test_deprecated_signatures_are_listed_with_upstreams_stubs(manifest: Manifest) -> None:
    function, inplace = manifest.deprecated
    assert (function.name, inplace.name) == ("gsoft", "gsoft_")
    assert parameters(function.pyi_function) == ["self alpha other"]
    assert inplace.pyi_function == ()  # a method only, and upstream has no stubs for those


def test_lists_hooked_after_the_manifest_are_not_read_from_before(
    manifest: Manifest, tmp_path: Path
) -> None:
    """The manifest imports upstream's generators; a later import must see the hooked lists."""
    shutil.copytree(packaged() / "autograd", tmp_path / "autograd")

    def read(path: str) -> str | None:
        file = tmp_path / path.removeprefix("torchgen/packaged/")
        return file.read_text(encoding="utf-8") if path.startswith("torchgen/packaged") else None

    listed = [op for op in manifest.operators if op.view_of]
    views = Manifest(
        tuple(replace(op, python_function=False, python_method=False) for op in listed)
    )
    before = set(sys.modules)
    load_binding_generator(tmp_path)
    imported = set(sys.modules) - before
    assert not [name for name in imported if name.startswith(("autograd", "torchgen.packaged"))]
    for path, text in edit_lists(read, views, "graft", ()).items():
        (tmp_path / path.removeprefix("torchgen/packaged/")).write_text(text, encoding="utf-8")
    load_binding_generator(tmp_path)
    siblings = sys.modules["_torchfork_packaged_autograd.gen_inplace_or_view_type"]
    assert siblings.VIEW_FUNCTIONS["gview"] == "self"
    assert "gravel" in siblings.RETURNS_VIEWS_OF_INPUT
    with pytest.raises(BaseRefusedError, match="binding generator"):
        load_binding_generator(tmp_path / "nowhere")


FUNCTION = "- func: {} -> Tensor\n  variants: function, method\n  dispatch: {{CPU: g}}\n"
INPLACE = "- func: {} -> Tensor(a!)\n  variants: function, method\n  dispatch: {{CPU: g_}}\n"
OVERRIDES = "torch/overrides.py"
SHAPES = {
    "named overloads only": (
        FUNCTION.format("gs.Tensor(Tensor self, Tensor other)")
        + FUNCTION.format("gs.Scalar(Tensor self, Scalar other)")
        + INPLACE.format("gs_.Tensor(Tensor(a!) self, Tensor other)"),
        ["torch.gs", "torch.gs_", "Tensor.gs", "Tensor.gs_"],
    ),
    "a default overload and a named one": (
        FUNCTION.format("gs(Tensor self)") + FUNCTION.format("gs.Scalar(Tensor self, Scalar n)"),
        ["torch.gs", "Tensor.gs"],
    ),
    "in-place only": (
        INPLACE.format("gs_(Tensor(a!) self)") + "  autogen: gs, gs.out\n",
        ["torch.gs_", "Tensor.gs_"],
    ),
    "in-place only, named": (
        INPLACE.format("gs_.Tensor(Tensor(a!) self, Tensor other)")
        + "  autogen: gs.Tensor, gs.Tensor_out\n",
        ["torch.gs_", "Tensor.gs_"],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_list_has_the_operator_whatever_its_overloads(shape: str, tmp_path: Path) -> None:
    added, bound = SHAPES[shape]
    declared = {entry["func"].partition("(")[0] for entry in yaml.safe_load(added)}
    manifest = described(tmp_path, added, declared, [])
    assert {op.qualified for op in manifest.operators if op.differentiable} >= declared
    texts = edit_lists(reader(), manifest, "graft", ())
    blocks = {
        path: re.findall(r"# torchfork:begin\n(.*?)# torchfork:end", text, re.DOTALL)[0]
        for path, text in texts.items()
    }
    assert '"gs",' in blocks["torchgen/packaged/autograd/gen_variable_type.py"]
    overrides = [line.split(":")[0].strip() for line in blocks[OVERRIDES].splitlines()]
    assert [name for name in overrides if name] == bound
    in_graph = re.findall(r'"([\w.]+)"', blocks["torch/_dynamo/trace_rules.py"])
    assert in_graph == [name for name in bound if name.startswith("torch.")]


def test_an_operator_that_is_out_only_is_refused_by_its_name(tmp_path: Path) -> None:
    added = "- func: gs.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)\n  dispatch: {CPU: g}\n"
    with pytest.raises(AssertionError, match=r"any other variants.*gs\.out"):
        described(tmp_path, added, set(), [])


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("gs", {"gs", "gs_"}),  # a functional operator's formula serves its in-place variant
        ("gs_", {"gs_"}),  # not the other way round: torchgen has no rule for that
    ],
)
def test_a_formula_is_for_the_variants_that_torchgen_gives_it_to(
    formula: str, expected: set[str], tmp_path: Path
) -> None:
    added = (
        FUNCTION.format("gs(Tensor self)")
        + INPLACE.format("gs_(Tensor(a!) self)")
        + "- func: gs.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)\n  dispatch: {CPU: g}\n"
    )
    manifest = described(tmp_path, added, {formula}, [])
    assert {op.qualified for op in manifest.operators if op.differentiable} == expected
