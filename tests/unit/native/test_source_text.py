"""Sources read as text: what is refused before a compiler runs, each at its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay

from torchfork.additions import ranges
from torchfork.errors import CollisionError, CompileError, ForkError, KernelError
from torchfork.native import source_text

KERNEL = """\
#include <ATen/ops/swing_native.h>
namespace at::native {
Tensor swing_cpu(const Tensor& self) {}
std::tuple<Tensor, Tensor> sway(const Tensor& self, int64_t n) {}
}
"""
HEADER = """\
TORCH_API void shown(const Tensor& t);
void hidden(const Tensor& t);
void elsewhere(const Tensor& t);
inline void own_body(const Tensor& t) {
  caller.called(t);
}
"""


def refused(root: Path, text: str, native: str = sample.NATIVE, **sources: str) -> list[ForkError]:
    """What is refused of a source beside the kernels, on a base with two headers."""
    headers = {"ATen/Present.h": "", "ATen/native/Private.h": HEADER,
               "ATen/native/Inline.h": "inline void elsewhere(const Tensor& t) {}\n"}  # fmt: skip
    lay(sample.base(root / "base").include, headers)
    additions = sample.write(
        root / "a", native, native__Swing_cpp=KERNEL, native__Text_cpp=text, **sources
    )
    exported = ["_ZN2at6native5shownERKNS_6TensorE", "_ZN2at6native8borrowedERKNS_6TensorE"]
    return source_text.objections(additions, sample.base(root / "base"), lambda: exported)


@pytest.mark.parametrize(
    "text",
    [
        "#include <ATen/Present.h>\n#include <ATen/ops/swing_ops.h>\n#include <vector>\n",
        '#include <ATen/native/Mine.h>\n#include "Mine.h"\n#include <ATen/FunctionalInverses.h>\n',
        "#if __has_include(<ATen/Gone.h>)\n#include <ATen/Gone.h>\n#endif\n",
        "#ifndef AT_PER_OPERATOR_HEADERS\n#include <ATen/Gone.h>\n#endif\n",
        "// #include <ATen/Gone.h>\n",
    ],
)
def test_headers_that_are_there_or_may_be_left_out_pass(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text, native__Mine_h="") == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n#include <ATen/native/Gone.h>\n", 2),
        ("#ifdef X\n#else\n#endif\n #  include <c10/Gone.h>\n", 4),
        ("#ifndef AT_PER_OPERATOR_HEADERS\n#else\n#include <ATen/ops/gone.h>\n#endif\n", 3),
        ("#include <torch/csrc/Gone.h>\n", 1),
        ('#include "Present.h"\n#include "ATen/Present.h"\n#include "stdint.h"\n', 1),
    ],
)
def test_a_header_that_the_base_lacks_is_named(tmp_path: Path, text: str, line: int) -> None:
    (error,) = refused(tmp_path, text)
    assert error.exit_code == CompileError.exit_code
    assert error.where == f"{tmp_path}/a/aten_src/native/Text.cpp:{line}"


def test_every_kernel_that_no_source_mentions_is_named_at_its_declaration(tmp_path: Path) -> None:
    native = """\
- func: swing(Tensor self) -> Tensor
  dispatch:
    CPU: swing_cpu
    Meta: swing_meta
    MPS: swing_mps
- func: sway(Tensor self) -> (Tensor, Tensor)
  dispatch:
    CPU: borrowed
    CUDA: sway_cuda
- func: swing_copy(Tensor self) -> Tensor
  dispatch:
    CompositeExplicitAutogradNonFunctional: swing_copy
  tags: view_copy
- func: spin(Tensor self) -> Tensor
  dispatch:
    CPU: spin_cpu
"""
    text = '// spin_cpu\nconst char* name = "spin_cpu";\n'
    places = [(e.what.split("'")[1], e.where) for e in refused(tmp_path, text, native)]
    path = f"{tmp_path}/a/native_functions_additions.yaml"
    assert places == [("swing_meta", f"{path}:2"), ("spin_cpu", f"{path}:15")]
    # A macro that pastes names may define any of them.
    assert refused(tmp_path, "#define KERNEL(name) void name##_meta();\n", native) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("namespace at::native { KERNEL; }", ""),
        ("namespace at { namespace native { struct A { int b; }; KERNEL; } }", ""),
        ("namespace at::native { Tensor spin(int64_t); KERNEL; }", ""),
        ("Tensor at::native::spin(const Tensor& x, std::array<bool, 2> n) { return x; }", ""),
        ("#ifdef MINE\nnamespace at::native { static KERNEL; }\n#endif", ""),
        ("#define MADE(f) Tensor f(Tensor x)\nMADE(spin) { return x; }", ""),
        ("KERNEL;", "namespace ::"),
        ("#define NO_OPERATORS\nnamespace mine { KERNEL; }", "namespace mine"),
        ("namespace at::native { namespace { KERNEL; } }", "namespace at::native::(anonymous)"),
        ("namespace at::native { static KERNEL; }", "static"),
        ("namespace at::native { Tensor spin(const Tensor& x); }", "no definition"),
        (
            "namespace at::native { Tensor f(Tensor x) { return spin(x, {1, 1}); } }",
            "no definition",
        ),
        ("namespace at::native { Tensor spin(const Tensor& x) { return x; } }", "1 arguments"),
        ("namespace at::native { const at::Tensor& KERNEL; }", "returns Tensor& where"),
        ("namespace at::native { std::tuple<Tensor, Tensor> KERNEL; }", "returns tuple<"),
        ("namespace at::native {\n#pragma x\nat::Tensor  KERNEL; }", ""),
        ("namespace at::native { my_tensor KERNEL; }", ""),
        ("namespace at::native { inline  KERNEL; }", "it is inline"),
        ("namespace at::native { template <class>  KERNEL; }", "it is template"),
        ("#if 0\nnamespace at::native { KERNEL; }\n#endif", "no source"),
    ],
)
def test_what_has_the_name_of_a_kernel_and_defines_none_is_named_with_its_line(
    tmp_path: Path, text: str, why: str
) -> None:
    native = sample.NATIVE + SPIN
    kernel = "Tensor spin(const Tensor& x, std::array<bool, 2> n) { return x; }"

    def made(found: re.Match[str]) -> str:
        return f"{found[1]} {kernel[7:]}" if found[1] else f" {kernel}"

    errors = refused(tmp_path, "\n" + re.sub(r"(&|>|  |my_tensor )? ?KERNEL;", made, text), native)
    line = native.count("\n") - 1
    places = [f"{tmp_path}/a/native_functions_additions.yaml:{line}"]
    assert [e.where for e in errors] == places * bool(why)
    for error in errors:
        place = f"{tmp_path}/a/aten_src/native/Text.cpp:{2 + text.startswith('#')}: "
        assert why in error.why and (place in error.why or why == "no source")


@pytest.mark.parametrize(
    ("include", "header", "refuses"),
    [
        ("ATen/native/Private.h", "// mine\n", True),
        ("ATen/native/Private.h", HEADER, False),  # a copy
        ("ATen/native/Mine.h", "// mine\n", False),  # nobody includes it
    ],
)
def test_a_header_in_the_place_of_upstreams_is_refused(
    tmp_path: Path, include: str, header: str, refuses: bool
) -> None:
    sources = {"native__Private_h": header, "native__Mine_h": ""}
    errors = refused(tmp_path, f"#include <{include}>\n", **sources)
    place = f"{tmp_path}/a/aten_src/native/Private.h"
    assert [(type(e), e.where) for e in errors] == [(CollisionError, place)] * refuses


@pytest.mark.parametrize(
    ("declared", "right", "wrong"),
    [
        ("Tensor", "at::Tensor const &", "Tensor"),
        ("Tensor(a!)", "Tensor&", "const Tensor&"),
        ("Tensor?", "const c10::optional<Tensor>&", "std::optional<Tensor>"),
        ("Tensor[]", "ArrayRef<Tensor>", "const std::vector<Tensor>&"),
        ("Tensor?[]", "const c10::List<std::optional<Tensor>>&", "TensorList"),
        ("Scalar", "const Scalar&", "Scalar"),
        ("int", "const int64_t", "int"),
        ("int?", "[[maybe_unused]] ::std::optional<int64_t>", "std::optional<int>"),
        ("int[2]?", "OptionalIntArrayRef", "std::optional<IntArrayRef>"),
        ("float", "double", "float"),
        ("float[]?", "std::optional<ArrayRef<double>>", "ArrayRef<double>"),
        ("bool[2]", "std::array<bool, 2>", "std::array<bool, 3>"),
        ("str", "c10::string_view", "const std::string&"),
        ("SymInt", "int64_t", "c10::SymInt"),
        ("SymInt[]", "IntArrayRef", "SymIntArrayRef"),
        ("ScalarType?", "std::optional<at::ScalarType>", "ScalarType"),
        ("int", "index_t", "const bool"),  # what may be an alias of the right one passes
    ],
)
def test_a_kernel_has_the_types_that_its_schema_makes(
    tmp_path: Path, declared: str, right: str, wrong: str
) -> None:
    native = (
        sample.NATIVE + f"- func: spin({declared} x, int n) -> int\n  dispatch:\n    CPU: spin\n"
    )
    kernel = "namespace at::native { int64_t spin(TYPE x, int64_t /*n*/ = 1) { return 0; } }"
    assert refused(tmp_path, kernel.replace("TYPE", right), native) == []
    assert refused(tmp_path, kernel.replace("TYPE x", right), native) == []
    (error,) = refused(tmp_path, kernel.replace("TYPE", wrong), native)
    assert "argument 1 is" in error.why
    if "SymInt" in declared:
        native, kernel = (
            native.replace("CPU: spin", "CPU: spin_symint"),
            kernel.replace(" spin", " spin_symint"),
        )
        assert refused(tmp_path, kernel.replace("TYPE", wrong), native) == []


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ("namespace at::native {\nTensor spin(const Tensor& x) { return x; }\n}", 2),
        ("namespace at { namespace native {\n\nTensor spin(\n  const at::Tensor& x)\n{ } } }", 3),
        ("namespace at::native { Tensor spin(const Tensor &y) { return y; } }", 1),
        ("namespace at::native { Tensor spin(const Tensor& x); }", 0),
        ("namespace at::native { Tensor spin(ArrayRef<Tensor> x) { return x[0]; } }", 0),
        ("#ifdef A\nTensor at::native::spin(const Tensor& x) { return x; }\n#endif", 0),
        ("namespace at::native { static Tensor spin(const Tensor& x) { return x; } }", 0),
    ],
)  # fmt: skip
def test_a_kernel_that_two_files_define_is_named_once_with_both_places(
    tmp_path: Path, other: str, line: int
) -> None:
    native = sample.NATIVE + "".join(
        f"- func: spin{name}(Tensor x) -> Tensor\n  dispatch:\n    CPU, Meta: spin\n"
        for name in ("", "_twice")
    )
    text = "\nnamespace at::native { Tensor spin(const Tensor& x) { return x; } }"
    errors = refused(tmp_path, text, native, native__Zoo_cpp=other)
    place = f"{tmp_path}/a/aten_src/native"
    assert [(e.where, e.why.rpartition(" ")[2]) for e in errors] == (
        [(f"{place}/Text.cpp:2", f"{place}/Zoo.cpp:{line}")] if line else []
    )


def test_a_source_that_is_not_compiled_defines_no_kernel(tmp_path: Path) -> None:
    native = sample.NATIVE + "- func: spin(Tensor x) -> Tensor\n  dispatch:\n    CPU: spin\n"
    text = "namespace at::native { Tensor spin(const Tensor& x) { return x; } }"
    (error,) = refused(tmp_path, "", native, native__Spin_cc=text)
    assert f"{tmp_path}/a/aten_src/native/Spin.cc" in error.why
    (error,) = refused(tmp_path / "h", "", native, native__Spin_h=text)
    assert f"{tmp_path}/h/a/aten_src/native/Spin.h: no source includes it" in error.why
    include = "#include <ATen/native/Spin.h>\n"
    assert refused(tmp_path / "i", include, native, native__Spin_h=text) == []


def test_a_source_that_a_range_leaves_out_is_named(tmp_path: Path) -> None:
    native = sample.NATIVE.replace("  variants: function, method\n", '  torch: "<9"\n')
    whole = sample.write(tmp_path / "a", native, native__Both_cpp=KERNEL)
    additions = ranges.for_release(whole, "9.1.0")
    (error,) = source_text.objections(additions, sample.base(tmp_path / "base"), list)
    assert "'sway'" in error.what and "Both.cpp: left out" in error.why


SPIN = """\
- func: spin(Tensor x, bool[2] n) -> Tensor
  dispatch:
    CPU: spin
"""
STRUCTURED = """\
- func: spin.Tensor(Tensor x) -> Tensor
  structured_delegate: spin.Tensor_out
- func: spin_.Tensor(Tensor(a!) x) -> Tensor(a!)
  structured_delegate: spin.Tensor_out
- func: spin.Tensor_out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU: spin_out
"""


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("TORCH_META_FUNC2(spin, Tensor)(const Tensor& x) {}", False),
        ("TORCH_PRECOMPUTE_META_FUNC2(spin,Tensor)(const Tensor& x) {}", False),
        ("void structured_spin_Tensor::meta(const Tensor& x) {}", False),
        ("#define META(f) TORCH_META_FUNC2(f, Tensor)\nMETA(spin)(const Tensor& x) {}", False),
        ("TORCH_META_FUNC(spin)(const Tensor& x) {}", True),
        ("} namespace at::native {\nTORCH_META_FUNC2(spin, Tensor)(const Tensor& x) {}", True),
        ("// TORCH_META_FUNC2(spin, Tensor)", True),
    ],
)
def test_a_structured_operator_without_a_meta_function_is_named(
    tmp_path: Path, text: str, missing: bool
) -> None:
    text = f"namespace at::meta {{\n{text}\n}}\n"
    for kernel in ("TORCH_IMPL_FUNC(spin_out)(", "void structured_spin_out::impl("):
        text += f"namespace at::native {{ {kernel}const Tensor& x, const Tensor& out) {{}} }}"
    errors = refused(tmp_path, text, sample.NATIVE + STRUCTURED)
    line = sample.NATIVE.count("\n") + 6
    places = [f"{tmp_path}/a/native_functions_additions.yaml:{line}"]
    assert [e.where for e in errors] == places * missing
    assert all(isinstance(e, KernelError) and "spin_Tensor" in e.what for e in errors)


@pytest.mark.parametrize(
    ("registered", "missing"),
    [
        ("REGISTER_DISPATCH(spin_stub, &kernel)", False),
        ("ALSO_REGISTER_AVX512_DISPATCH( spin_stub, &kernel)", False),
        ("MY_MACRO(spin_stub)", False),
        ("REGISTER_DISPATCH(spin_other, &kernel)", True),
        ("// REGISTER_DISPATCH(spin_stub, &kernel)", True),
    ],
)
def test_a_stub_that_nobody_registers_a_kernel_for_is_named(
    tmp_path: Path, registered: str, missing: bool
) -> None:
    text = "namespace at::native {\nDEFINE_DISPATCH(spin_stub);\n}\n"
    errors = refused(tmp_path, text, native__cpu__Spin_cpp=registered)
    place = f"{tmp_path}/a/aten_src/native/Text.cpp:2"
    assert [e.where for e in errors] == [place] * missing


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("namespace at::meta { TORCH_IMPL_FUNC(spin_out)(const Tensor& x) {} }", "at::meta"),
        ("namespace at::native { Tensor& spin_out(Tensor& x) { return x; } }", "TORCH_IMPL_FUNC"),
    ],
)
def test_a_structured_kernel_is_a_structured_one_in_its_namespace(
    tmp_path: Path, kernel: str, why: str
) -> None:
    meta = "namespace at::meta { TORCH_META_FUNC2(spin, Tensor)(const Tensor& x) {} }\n"
    (error,) = refused(tmp_path, meta + kernel, sample.NATIVE + STRUCTURED)
    assert "Text.cpp:2: " in error.why and why in error.why


@pytest.mark.parametrize(
    ("call", "hidden"),
    [
        ("  hidden(self);", True),
        ("  at::native::hidden (self);", True),
        ("  native::hidden(self);", True),
        ("  // hidden(self);", False),
        ("  self.hidden(); mine::hidden(self);", False),
        ("  shown(self); elsewhere(self); own_body(self); called(self);", False),
        ("}\nvoid hidden(int) {", False),
    ],
)
def test_a_call_of_what_is_hidden_is_named(tmp_path: Path, call: str, hidden: bool) -> None:
    text = f"#include <ATen/native/Private.h>\nvoid f(const Tensor& self) {{\n{call}\n}}\n"
    errors = refused(tmp_path, text)
    assert [e.where for e in errors] == [f"{tmp_path}/a/aten_src/native/Text.cpp:3"] * hidden
    assert all(error.kind == "symbol hidden" for error in errors)
    # Without the header it is a function of somebody else's.
    assert refused(tmp_path, text.partition("\n")[2]) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("TORCH_LIBRARY(torchvision, m) {\n", [1]),
        ("// TORCH_LIBRARY(no, m)\n/*\nTORCH_LIBRARY_IMPL(no, CPU, m) */\n"
         "  TORCH_LIBRARY_IMPL(\n    torchvision, CPU, m) {\n"
         "TORCH_LIBRARY_FRAGMENT(mine, m) {\n", [5, 6]),
        ("TORCH_LIBRARY(aten, m) {\n", [1]),
        ("\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n", [2]),
        ("TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {\n", []),
    ],
)  # fmt: skip
def test_a_registration_left_over_from_an_extension_is_named_with_its_line(
    tmp_path: Path, text: str, lines: list[int]
) -> None:
    additions = sample.write(tmp_path / "additions", native__Swing_cpp=text)
    path = additions.source_root / "native" / "Swing.cpp"
    places = [error.where for error in source_text.foreign_registrations(additions)]
    assert places == [f"{path}:{line}" for line in lines]
