"""The compilation of a check: fewer flags, several files as one, and nothing hidden by that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork import errors
from torchfork.native import fast_compile
from torchfork.native.toolchain import Cuda, Toolchain
from torchfork.native.units import CompileStep

TOOLS = Toolchain("g++", "ccache", 8, True, None, "the base is a CPU build")


def test_a_toolkit_that_does_not_fit_leaves_cuda_out_of_a_check_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = sample.base(tmp_path, cuda="12.4")

    def find(_: object, env: dict[str, str]) -> Toolchain:
        if env.get("USE_CUDA") == "0":
            return TOOLS
        raise errors.ToolkitMismatchError("the CUDA toolkit is 13.0")

    monkeypatch.setattr(fast_compile.toolchain, "find", find)
    found = fast_compile.tools(base, {}, 2, final=False)
    assert found.cuda is None and found.cuda_note == "the CUDA toolkit is 13.0"
    assert found.jobs == 2 and found.launcher == TOOLS.launcher
    with pytest.raises(errors.ToolkitMismatchError):
        fast_compile.tools(base, {}, 2, final=True)


def test_a_check_compiles_cuda_for_one_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(Path("nvcc"), "13.0", (), ("-gencode=a", "-gencode=b"))
    monkeypatch.setattr(fast_compile.toolchain, "find", lambda *_: replace(TOOLS, cuda=cuda))
    base = sample.base(tmp_path, cuda="13.0")
    found = fast_compile.tools(base, {}, 2, final=False).cuda
    assert found is not None and found.gencode == ("-gencode=a",)
    whole = fast_compile.tools(base, {}, 2, final=True).cuda
    assert whole is not None and len(whole.gencode) == 2


def test_vector_kernels_alone_are_given_the_missing_declarations() -> None:
    plain = CompileStep("a", "generated/A.cpp.o", "cxx", ("-O2",), False, False)
    vector = CompileStep(
        "b", "additions/native/cpu/B.cpp.AVX2.o", "cxx", ("-O3", "-mavx2"), False, True
    )
    checked = fast_compile.units([plain, vector], "vectors.h")
    assert checked[0].flags == ("-O0",)
    assert checked[1].flags == ("-O0", "-mavx2", "-include", "vectors.h")


class Sources:
    """Source files with their units, in a build directory."""

    def __init__(self, build: Path) -> None:
        self.build = build

    def unit(
        self, name: str, text: str = "", *flags: str, ours: bool = False, python: bool = False
    ) -> CompileStep:
        (self.build / f"{name}.cpp").write_text(text)
        top = "additions/native/cpu" if ours else "generated/autograd"
        given = ("-O0", *flags)
        return CompileStep(f"{name}.cpp", f"{top}/{name}.o", "cxx", given, python, ours)


def test_only_what_hides_nothing_is_compiled_as_one(tmp_path: Path) -> None:
    unit = Sources(tmp_path).unit
    together = [unit("Python", python=True), unit("A"), unit("B")]
    vectors = [unit(f"K{n}", "", "-mavx2", ours=True) for n in range(2)]
    alone = [
        unit("Kernel", ours=True),
        unit("Other", ours=True),
        unit("Wide", "", "-mavx512f", ours=True),
    ]
    found = fast_compile.unite([*together, *vectors, *alone], tmp_path)
    assert [u for u in found if not u.object.startswith("united/")] == alone
    generated, kernels = (u for u in found if u.object.startswith("united/"))
    assert (generated.ours, kernels.ours, kernels.flags) == (False, True, ("-O0", "-mavx2"))
    text = (tmp_path / generated.source).read_text()
    assert text.index('"A.cpp"') < text.index("#undef TORCH_ASSERT") < text.index('"B.cpp"')
    assert text.index('"B.cpp"') < text.index('"Python.cpp"')  # lends the others no header
    assert '#include "../K0.cpp"' in (tmp_path / kernels.source).read_text()


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
    unit = Sources(tmp_path).unit
    kernels = [unit(f"Register{key}", KERNEL.format(space=key)) for key in ("CPU", "Meta")]
    bindings = [unit(how, BINDING.format(how=how), python=True) for how in ("called", "bound")]
    (made,) = fast_compile.unite([*kernels, *bindings], tmp_path)
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
