"""Which generated files are compiled, adapted; which operators the generator does not bind."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_manifest
from sample_files import lay as lay_files
from sample_manifest import method

from torchfork.codegen.client import Generated, adapt, choose
from torchfork.codegen.model import Manifest


def lay(root: Path, added: dict[str, str], none: dict[str, str]) -> tuple[Path, Path]:
    for name, files in (("added", added), ("none", none)):
        lay_files(root / "generated" / name, files)
    return root / "generated", root / "sources"


def test_a_file_that_is_the_same_without_the_additions_is_not_compiled(tmp_path: Path) -> None:
    same, other, new = "ATen/RegisterCPU.cpp", "ATen/RegisterMeta.cpp", "ATen/New.cpp"
    bindings = "autograd/python_nn_functions.cpp"
    generated, sources = lay(
        tmp_path, {same: "x", other: "ours", new: "ours", bindings: "x"}, {same: "x", other: "none"}
    )
    got = choose(generated, sources, cuda=False)
    assert got == [Generated(new, False), Generated(other, False), Generated(bindings, True)]
    assert (sources / other).read_text() == "ours" and not (sources / same).exists()


CPU, WHOLE = "ATen/RegisterCPU.cpp", "autograd/VariableTypeEverything.cpp"
CUDA = ("ATen/RegisterCUDA.cpp", "ATen/RegisterSparseCUDA.cpp", "ATen/UfuncCUDA_add.cu")
OTHERS = (
    "ATen/ATenOpList.cpp", "ATen/TensorMethods.cpp", "ATen/RegisterXPU.cpp",
    "ATen/RegisterSparseMPS.cpp", "autograd/python_enum_tag.cpp", "ATen/Functions.cpp",
    "aoti/c_shim_cpu.cpp", *CUDA,
)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "left_out", "cuda"),
    [
        *(((CPU,), (name,), False) for name in OTHERS),
        (CUDA, (), True),
        # one unsharded file stands for its shards
        ((WHOLE, "ATen/Operators_4.cpp"), ("autograd/VariableType_0.cpp",), False),
        (("autograd/Functions.cpp",), ("ATen/Functions.cpp",), False),
    ],
)
def test_files_for_other_builds_fixed_values_and_shards_are_left_out(
    tmp_path: Path, names: tuple[str, ...], left_out: tuple[str, ...], cuda: bool
) -> None:
    every = (*names, *left_out)
    generated, sources = lay(tmp_path, dict.fromkeys(every, "ours"), dict.fromkeys(every, "none"))
    assert {item.name for item in choose(generated, sources, cuda=cuda)} == set(names)


def test_unchanged_files_keep_their_time_and_files_of_an_earlier_choice_go(tmp_path: Path) -> None:
    generated, sources = lay(tmp_path, {"ATen/A.cpp": "a", "ATen/B.cpp": "b"}, {})
    choose(generated, sources, cuda=False)
    before = (sources / "ATen" / "A.cpp").stat().st_mtime_ns
    (generated / "added" / "ATen" / "B.cpp").unlink()
    choose(generated, sources, cuda=False)
    assert (sources / "ATen" / "A.cpp").stat().st_mtime_ns == before
    assert not (sources / "ATen" / "B.cpp").exists()


def test_a_second_library_extends_the_namespace_and_does_not_define_it_again() -> None:
    text = 'TORCH_LIBRARY(aten, m) {\n  m.def("get_gradients(int x) -> int");\n  m.def("a");\n}\n'
    assert adapt("RegisterSchema", text) == 'TORCH_LIBRARY_FRAGMENT(aten, m) {\n  m.def("a");\n}\n'
    impl = "TORCH_LIBRARY_IMPL(aten, CPU, m) {}"
    assert adapt("RegisterSchema", impl) == impl and adapt("RegisterCPU", text) == text


def test_operators_that_upstreams_generator_binds_nowhere_are_named() -> None:
    absent = {"python_function": False}
    operators = [
        sample_manifest.operator("swing(Tensor self) -> Tensor"),
        sample_manifest.operator("range_of(Tensor self) -> Tensor", **absent),
        sample_manifest.operator("sway(Tensor self) -> Tensor", **absent, **method("sway")),
        sample_manifest.operator("swing_backward(Tensor self) -> Tensor", **absent),
        sample_manifest.operator("_swing(Tensor self) -> Tensor", **absent),
    ]
    assert Manifest(tuple(operators)).unbound == ["range_of"]
