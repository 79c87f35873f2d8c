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


def chosen(root: Path, *names: str, cuda: bool = False) -> set[str]:
    generated, sources = lay(root, dict.fromkeys(names, "ours"), dict.fromkeys(names, "nothing"))
    return {item.name for item in choose(generated, sources, cuda=cuda)}


def test_a_file_that_is_the_same_without_the_additions_is_not_compiled(tmp_path: Path) -> None:
    same, other, new = "ATen/RegisterCPU.cpp", "ATen/RegisterMeta.cpp", "ATen/New.cpp"
    generated, sources = lay(
        tmp_path, {same: "x", other: "ours", new: "ours"}, {same: "x", other: "none"}
    )
    got = choose(generated, sources, cuda=False)
    assert got == [Generated(new, False), Generated(other, False)]
    assert (sources / other).read_text() == "ours" and not (sources / same).exists()


def test_one_unsharded_file_stands_for_its_shards(tmp_path: Path) -> None:
    shards = [f"autograd/VariableType_{n}.cpp" for n in range(3)]
    got = chosen(tmp_path, *shards, "autograd/VariableTypeEverything.cpp", "ATen/Operators_4.cpp")
    assert got == {"autograd/VariableTypeEverything.cpp", "ATen/Operators_4.cpp"}


@pytest.mark.parametrize(
    "name",
    [
        "ATen/ATenOpList.cpp", "ATen/TensorMethods.cpp", "ATen/RegisterXPU.cpp",
        "ATen/RegisterSparseMPS.cpp", "autograd/python_enum_tag.cpp", "ATen/Functions.cpp",
        "aoti/c_shim_cpu.cpp", "ATen/RegisterCUDA.cpp", "ATen/UfuncCUDA_add.cu",
    ],
)  # fmt: skip
def test_files_for_other_builds_and_fixed_values_are_left_out(tmp_path: Path, name: str) -> None:
    assert chosen(tmp_path, name, "ATen/RegisterCPU.cpp") == {"ATen/RegisterCPU.cpp"}


def test_registrations_for_cuda_come_with_cuda(tmp_path: Path) -> None:
    names = {"ATen/RegisterCUDA.cpp", "ATen/RegisterSparseCUDA.cpp", "ATen/UfuncCUDA_add.cu"}
    assert chosen(tmp_path, *names, cuda=True) == names


def test_python_bindings_are_told_from_the_rest(tmp_path: Path) -> None:
    generated, sources = lay(
        tmp_path, {"autograd/python_nn_functions.cpp": "x", "autograd/Functions.cpp": "x"}, {}
    )
    got = {item.name: item.python for item in choose(generated, sources, cuda=False)}
    assert got == {"autograd/python_nn_functions.cpp": True, "autograd/Functions.cpp": False}


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
