"""The compilation of a check: fewer flags, several files as one, and nothing hidden by that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay

from torchfork import errors
from torchfork.native import compile_steps, ninja, toolchain
from torchfork.native.compile_steps import CompileStep, group_in_check, group_in_wheel, unite
from torchfork.native.toolchain import Cuda, Toolchain
from torchfork.upstream.abi import DEFAULT_ONLY, BaseAbi
from torchfork.upstream.binaries import Elf

ABI = BaseAbi("c++17", True, "libgomp.so.1", "", True, False, Elf(), Elf())
TOOLS = Toolchain("g++", "ccache", 8, DEFAULT_ONLY, None, "the base is a CPU build")


def test_a_toolkit_that_does_not_fit_leaves_cuda_out_of_a_check_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = sample.base(tmp_path, cuda="12.4")

    def find(_: object, env: dict[str, str]) -> Toolchain:
        if env.get("USE_CUDA") == "0":
            return TOOLS
        raise errors.ToolkitMismatchError("the CUDA toolkit is 13.0")

    monkeypatch.setattr(toolchain, "find", find)
    found = toolchain.find_for_check(base, {}, 2)
    assert found.cuda is None and found.cuda_note == "the CUDA toolkit is 13.0"
    assert found.jobs == 2 and found.launcher == TOOLS.launcher


def test_a_check_compiles_cuda_for_one_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(Path("nvcc"), "13.0", (), ("-gencode=a", "-gencode=b"))
    monkeypatch.setattr(toolchain, "find", lambda *_: replace(TOOLS, cuda=cuda))
    base = sample.base(tmp_path, cuda="13.0")
    found = toolchain.find_for_check(base, {}, 2).cuda
    assert found is not None and found.gencode == ("-gencode=a",)


def test_vector_kernels_alone_are_given_the_missing_declarations(tmp_path: Path) -> None:
    plain = CompileStep("a", "generated/A.cpp.o", "cxx", ("-O1",), False, False)
    vector = CompileStep(
        "b", "additions/native/cpu/B.cpp.AVX2.o", "cxx", ("-O3", "-mavx2"), False, True
    )
    base = sample.base(tmp_path)
    lay(base.include, {
        "ATen/cpu/vec/vec256.h": "Sleef_expf8_u10(x); Sleef_sinf8_u10(x);",
        "sleef.h": "__m256 Sleef_sinf8_u10(__m256);",
    })  # fmt: skip
    checked = compile_steps.for_check(base, [plain, vector], tmp_path / "build")
    header = checked[1].flags[-1]
    assert checked[0].flags == ("-O0", f"-isystem{base.interpreter.include}")
    assert checked[1].flags == ("-O0", "-mavx2", "-include", header)
    text = (tmp_path / "build" / header).read_text()
    assert "Sleef_expf8_u10(" in text and "Sleef_sinf8" not in text


class Sources:
    """Source files with their steps, in a build directory."""

    def __init__(self, build: Path) -> None:
        self.build = build

    def step(
        self, name: str, text: str = "", *flags: str, ours: bool = False, python: bool = False
    ) -> CompileStep:
        (self.build / f"{name}.cpp").write_text(text)
        top = "additions/native/cpu" if ours else "generated/autograd"
        given = ("-O0", *flags)
        return CompileStep(f"{name}.cpp", f"{top}/{name}.o", "cxx", given, python, ours)


def test_only_what_hides_nothing_is_compiled_as_one(tmp_path: Path) -> None:
    step = Sources(tmp_path).step
    together = [step("Python", python=True), step("A"), step("B")]
    vectors = [step(f"K{n}", "", "-mavx2", ours=True) for n in range(2)]
    alone = [step("Kernel", ours=True), step("Other", ours=True)]
    alone.append(step("Wide", "", "-mavx512f", ours=True))
    found = unite([*together, *vectors, *alone], tmp_path, group_in_check)
    assert [s for s in found if not s.object.startswith("united/")] == alone
    generated, kernels = (s for s in found if s.object.startswith("united/"))
    assert (generated.ours, kernels.ours, kernels.flags) == (False, True, ("-O0", "-mavx2"))
    text = (tmp_path / generated.source).read_text()
    assert text.index('"A.cpp"') < text.index("#undef TORCH_ASSERT") < text.index('"B.cpp"')
    assert text.index('"B.cpp"') < text.index('"Python.cpp"')  # lends the others no header
    assert '#include "../K0.cpp"' in (tmp_path / kernels.source).read_text()


def test_what_a_check_compiles_with_the_bindings_finds_pythons_headers(tmp_path: Path) -> None:
    base, step = sample.base(tmp_path / "base"), Sources(tmp_path).step
    steps = [step("A"), step("Python", python=True), step("Kernel", ours=True)]
    checked = compile_steps.for_check(base, steps, tmp_path)
    found = unite(checked, tmp_path, group_in_check)
    assert [s.object for s in found] == ["united/generated0.cpp.o", steps[2].object]
    text = ninja.ninja_file(base, ABI, TOOLS, found)
    flags = [line for line in text.splitlines() if line.startswith("  flags =")]
    assert [str(base.interpreter.include) in line for line in flags] == [True, False]


def test_a_wheels_generated_files_are_two_and_others_stay_alone(tmp_path: Path) -> None:
    aten = [
        CompileStep(f"../{n}.cpp", f"generated/ATen/{n}.o", "cxx", ("-O1",), False, False)
        for n in "AB"
    ]
    python = [replace(s, object=s.object.replace("/ATen", "/autograd"), python=True) for s in aten]
    autograd = [replace(s, object=s.object.replace("/ATen", "/autograd")) for s in aten]
    mine = replace(aten[0], object="additions/native/cpu/A.AVX2.o", ours=True)
    cuda = replace(aten[0], object="generated/ATen/C.cu.o", rule="nvcc")
    for name in "AB":
        (tmp_path / f"{name}.cpp").touch()
    build = tmp_path / "build"  # nothing was compiled yet
    found = unite([mine, *aten, *python, *autograd, cuda], build, group_in_wheel)
    assert [step.object for step in found] == [
        "united/core0.cpp.o", "united/python0.cpp.o", mine.object, cuda.object,
    ]  # fmt: skip
    assert [step.python for step in found] == [False, True, False, False]


KERNEL = """\
void resize_out(const Tensor& out) {{}}
struct structured_swing_out final : public at::{space}::structured_swing_out {{}};
at::Tensor wrapper_{space}_swing() {{ structured_swing_out op; resize_out(op.out()); }}
"""
BINDING = """\
static PyObject * THPVariable_swing(PyObject* self) {{ return THPVariable_Wrap({how}); }}
static PyMethodDef torchfork_methods[] = {{ {{"swing", THPVariable_swing}} }};
"""


def test_what_files_define_under_one_name_gets_names_of_its_own(tmp_path: Path) -> None:
    step = Sources(tmp_path).step
    kernels = [step(f"Register{key}", KERNEL.format(space=key)) for key in ("CPU", "Meta")]
    bindings = [step(how, BINDING.format(how=how), python=True) for how in ("called", "bound")]
    (made,) = unite([*kernels, *bindings], tmp_path, group_in_check)
    text = (tmp_path / made.source).read_text()
    for number, space in enumerate(("CPU", "Meta")):
        own = f"structured_swing_out_{number}"
        assert f"struct {own} final : public at::{space}::structured_swing_out {{" in text
        assert f"{{ {own} op; resize_out_{number}(op.out()); }}" in text
        assert f"void resize_out_{number}(" in text
    for number, how in enumerate(("called", "bound"), start=2):
        own = f"THPVariable_swing_{number}"
        assert f"{own}(PyObject* self) {{ return THPVariable_Wrap({how}); }}" in text
        assert f'torchfork_methods_{number}[] = {{ {{"swing", {own}}} }};' in text
