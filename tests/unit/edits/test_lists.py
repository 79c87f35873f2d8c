"""Each list that upstream keeps by hand names the additions, and nothing else of a file changes."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sample_manifest import MANIFEST, NOTHING, OPERATORS, operator, reader, source_reader

from torchfork.codegen.model import Manifest, Operator
from torchfork.edits.lists import edit_lists, edit_parser_lists
from torchfork.errors import AdditionsError, BaseRefusedError

HEADERS = ("ATen/native/GFormulas.h",)
VIEWS = "torchgen/packaged/autograd/gen_inplace_or_view_type.py"
COMPLEX = "torchgen/packaged/autograd/gen_variable_type.py"
MANUAL = "torch/include/torch/csrc/autograd/FunctionsManual.h"
INIT = "torch/csrc/autograd/init.cpp"
OUTLESS = "torchgen/native_function_generation.py"


class Fake:
    """Stands for torch: any attribute is its own dotted path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getattr__(self, name: str) -> Fake:
        return Fake(f"{self.path}.{name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fake) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


@pytest.fixture(scope="module")
def edited() -> dict[str, str]:
    return edit_lists(reader(), MANIFEST, "graft", HEADERS)


@pytest.fixture
def run(edited: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run an edited sample file with a torch of names only; give its globals."""
    fake: Any = Fake("torch")
    core = ModuleType("torch._C")
    core.__getattr__ = lambda name: Fake(f"torch._C.{name}")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch._C", core)

    def execute(path: str) -> dict[str, Any]:
        scope: dict[str, Any] = {"__name__": "sample"}
        exec(compile(edited[path], path, "exec"), scope)
        return scope

    return execute


def paths(found: Any) -> set[str]:
    return {item.path for item in found}


def test_autograd_treats_added_views_as_views_and_those_that_follow_from_them(run: Any) -> None:
    scope = run(VIEWS)
    assert scope["VIEW_FUNCTIONS"] == {
        "gdh": "self", "gview": "self", "alias": "self", "values": "self",
    }  # fmt: skip
    assert {"gdh", "gview", "chunk"} <= scope["RETURNS_VIEWS_OF_INPUT"]


def test_complex_gradients_of_additions_and_copies_of_views_are_not_refused(run: Any) -> None:
    added = run(COMPLEX)["GRADIENT_IMPLEMENTED_FOR_COMPLEX"] - {"sinc", "where"}
    assert added == {"gadd", "gdh_copy", "gview", "special_g"}
    view = operator(
        "gpart(Tensor(a) self) -> Tensor(a)", kind="view", view_of="self", differentiable=True
    )
    operators = (view, operator("gpart_copy(Tensor self) -> Tensor"), operator("gsum_copy() -> ()"))
    changed = edit_lists(reader(), Manifest(operators), "graft", ())[COMPLEX]
    assert '"gpart_copy",' in changed and '"gsum_copy",' not in changed


def test_torchgen_parses_an_operator_without_tensors(run: Any, edited: dict[str, str]) -> None:
    added = run(OUTLESS)["FUNCTIONAL_OPS_THAT_CANNOT_GET_AN_OUT_VARIANT"]
    assert added == ["gcheck", "equal"]
    # before there is a manifest, too; an out variant that returns nothing is not listed
    schemas = [op.schema for op in OPERATORS]
    assert edit_parser_lists(reader(), schemas) == {OUTLESS: edited[OUTLESS]}
    schema = "g.out(Tensor[] self, *, Tensor(a!)[] out) -> ()"
    changed = edit_parser_lists(reader(), [schema, "gint.x(Tensor self) -> int"])
    assert changed.keys() == {OUTLESS}
    assert '"g.out"' not in changed[OUTLESS] and '"gint.x"' in changed[OUTLESS]


def test_torch_function_overrides_have_the_signatures_of_the_additions(run: Any) -> None:
    overrides = {
        key.path: value
        for key, value in run("torch/overrides.py")["get_testing_overrides"]().items()
    }
    expected = {
        "torch.gadd": "(input, other, *, alpha=2, out=None)",
        "torch.gdh": "(input)",
        "torch._C._nn.gnn": "(input, p=0.5)",
        "torch._C._special.special_g": "(input)",
        "torch.Tensor.gadd_": "(self, other, *, alpha=2)",
        "torch.Tensor.gshout": "(self)",
    }
    found = {name: str(inspect.signature(overrides[name])) for name in expected}
    assert found == expected
    pair = inspect.signature(overrides["torch.gpair"])
    assert pair.parameters["f"].default == Fake("torch.contiguous_format")
    # names that upstream overrides keep upstream's signature
    assert str(inspect.signature(overrides["torch.sinc"])) == "(input, out=None)"
    assert "torch.Tensor.sinc" not in overrides


def test_functions_without_tensors_are_listed_as_out_of_reach_of_torch_function(run: Any) -> None:
    scope = run("torch/overrides.py")
    assert paths(scope["get_ignored_functions"]()) == {
        "torch.gfull", "torch.typename", "torch.zeros",
    }  # fmt: skip
    assert Fake("torch.gfull") not in scope["get_testing_overrides"]()


def test_dynamo_puts_every_added_function_into_the_graph(run: Any, edited: dict[str, str]) -> None:
    assert edited["torch/_dynamo/trace_rules.py"].count('"torch.sinc"') == 1
    scope = run("torch/_dynamo/trace_rules.py")
    table = scope["torch_c_binding_in_graph_functions"]
    assert {"torch.gadd", "torch.gdh", "torch.gfull", "torch._C._nn.gnn", "torch.where",
            "torch._C._special.special_g", "torch._C._fft.fft_g"} <= set(table)  # fmt: skip
    assert {"torch.gadd_", "torch.gshout", "torch.gadd_backward"}.isdisjoint(table)
    assert set(table.values()) == {scope["TorchInGraphFunctionVariable"]}


def test_factories_get_default_devices_and_checks_stay_in_compiled_graphs(run: Any) -> None:
    assert paths(run("torch/utils/_device.py")["_device_constructors"]()) == {
        "torch.empty", "torch.gfull", "torch.zeros",
    }  # fmt: skip
    assert paths(run("torch/fx/node.py")["_side_effectful_functions"]) == {
        "torch._assert", "torch.ops.aten.gcheck.default",
    }  # fmt: skip


class Overload:
    def __init__(self, name: str, packet: Packet) -> None:
        self.full, self.overloadpacket = name, packet

    def name(self) -> str:
        return self.full


class Packet:
    def __init__(self, *names: str) -> None:
        self.overloads = [Overload(name, self) for name in names]


def test_an_added_overload_is_not_handed_to_upstreams_code_for_its_siblings(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = Packet("aten::sinc", "aten::sinc.mode")
    register = run("torch/_decomp/__init__.py")["_add_op_to_registry"]
    registry: dict[str, int] = {}
    register(registry, packet, 1)
    assert registry == {"aten::sinc": 1}
    register(registry, packet.overloads[1], 2)  # one that is named itself
    assert registry == {"aten::sinc": 1, "aten::sinc.mode": 2}

    fake = ModuleType("torch")
    fake._ops = type("_ops", (), {"OpOverload": Overload})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    expand = run("torch/_inductor/lowering.py")["get_overloads"]
    assert expand([packet]) == [packet, packet.overloads[0]]
    assert expand([packet.overloads[1]]) == [packet.overloads[1]]

    # a default overload beside upstream's named ones, too
    added = operator("argmax(Tensor self) -> Tensor", new_name=False)
    changed = edit_lists(reader(), Manifest((added,)), "graft", ())
    assert '"aten::argmax",' in changed["torch/_decomp/__init__.py"]


def test_operators_of_a_module_have_public_names(run: Any, edited: dict[str, str]) -> None:
    assert edited["torch/special/__init__.py"].count("present = ") == 1, "it has that one"
    special = run("torch/special/__init__.py")
    assert special["g"] == Fake("torch._C._special.special_g")
    assert special["__all__"] == ["present", "g"]
    assert "private" not in str(sorted(special))
    assert run("torch/nn/functional.py")["gnn"] == Fake("torch._C._nn.gnn")
    linalg = run("torch/linalg/__init__.py")
    assert linalg["g"] == Fake("torch._C._linalg.linalg_g") and "__all__" not in linalg


@pytest.mark.parametrize("mode", ["graft", "source"])
def test_a_second_run_changes_nothing_and_upstream_comes_back_byte_for_byte(mode: Any) -> None:
    make = reader if mode == "graft" else source_reader
    first = edit_lists(make(), MANIFEST, mode, HEADERS)
    again = make(over=first)
    assert first and edit_lists(again, MANIFEST, mode, HEADERS) == {}
    restored = edit_lists(again, NOTHING, mode, ())
    assert restored == {path: make()(path) for path in first}


def test_both_build_modes_put_the_same_text_into_the_same_lists(edited: dict[str, str]) -> None:
    assert edited[MANUAL].endswith(
        "} // namespace torch::autograd::generated::details\n"
        "// torchfork:begin\n#include <ATen/native/GFormulas.h>\n// torchfork:end\n"
    )
    source = edit_lists(source_reader(), MANIFEST, "source", HEADERS)
    moved = {VIEWS: "tools/autograd/gen_inplace_or_view_type.py",
             COMPLEX: "tools/autograd/gen_variable_type.py",
             MANUAL: "torch/csrc/autograd/FunctionsManual.h"}  # fmt: skip
    assert {path: source[moved.get(path, path)] for path in edited} == edited
    templates = set(source) - {moved.get(path, path) for path in edited}
    assert templates == {"torch/_C/_nn.pyi.in", "torch/nn/functional.pyi.in", INIT}
    assert '#include "torch/csrc/autograd/additions/python_symbolic_meta.cpp"' in source[INIT]
    assert "def gnn(input: Tensor, p: _float = 0.5) -> Tensor: ..." in source["torch/_C/_nn.pyi.in"]
    assert "from torch._C._nn import gnn as gnn" in source["torch/nn/functional.pyi.in"]


def test_additions_with_nothing_for_a_list_leave_its_file_alone() -> None:
    changed = edit_lists(reader(), Manifest((OPERATORS[1],)), "graft", ())
    assert set(changed) == {COMPLEX, "torch/overrides.py", "torch/_dynamo/trace_rules.py"}


@pytest.mark.parametrize("lines", [0, 2])
def test_a_missing_or_doubled_place_is_refused_by_file_line_and_purpose(lines: int) -> None:
    text = reader()(VIEWS) or ""
    changed = re.sub(r"^VIEW_FUNCTIONS = \{$", "VIEW_FUNCTIONS = {\n" * lines, text, flags=re.M)
    with pytest.raises(BaseRefusedError) as caught:
        edit_lists(reader(over={VIEWS: changed}), MANIFEST, "graft", ())
    message = caught.value.render()
    assert VIEWS in message and "VIEW_FUNCTIONS" in message and f"{lines} lines" in message


def test_a_file_that_cannot_be_edited_and_restored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseRefusedError, match=re.escape(OUTLESS)):
        edit_lists(reader(tmp_path), MANIFEST, "graft", ())
    assert edit_lists(reader(tmp_path), NOTHING, "graft", ()) == {}
    with pytest.raises(BaseRefusedError, match="no newline"):
        edit_lists(reader(over={"torch/nn/functional.py": "import torch"}), MANIFEST, "graft", ())


@pytest.mark.parametrize(
    "other",
    [
        operator("gview.copying(Tensor self, int n) -> Tensor"),
        operator("gview(Tensor(a) self) -> Tensor(a)", view_of="self", new_base_name=False),
    ],
)
def test_a_view_that_shares_its_name_with_no_view_is_refused(other: Operator) -> None:
    view = operator("gview.view(Tensor(a) self) -> Tensor(a)", view_of="self", kind="view")
    operators = [view, other] if other.view_of is None else [other]
    with pytest.raises(AdditionsError, match="gview"):
        edit_lists(reader(), Manifest(tuple(operators)), "graft", ())


def test_views_with_several_results_are_listed_where_torchgen_asks_for_them() -> None:
    path = "torchgen/gen_functionalization_type.py"
    table = "SINGLE_OUTPUT_VIEW_REPLAY: dict[str, str] = {\n}\n"
    several = operator(
        "gparts.dim(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]", kind="view", view_of="self"
    )
    manifest = Manifest((*MANIFEST.operators, several))

    def changed(text: str | None) -> dict[str, str]:
        def read(wanted: str) -> str | None:
            return text if wanted == path else reader()(wanted)

        return edit_lists(read, manifest, "graft", ())

    scope: dict[str, Any] = {}
    exec(changed(table)[path], scope)
    assert scope["SINGLE_OUTPUT_VIEW_REPLAY"] == {"gparts.dim": None}
    assert path not in changed("# a release without the table\n")
    assert path not in changed(None)
