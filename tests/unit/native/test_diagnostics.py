"""What compilers print becomes errors at lines of the user's files."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions import load
from torchfork.errors import CompileError, ForkError, OutputError
from torchfork.native import diagnostics
from torchfork.native.compile_steps import ADDITIONS_COPY
from torchfork.native.diagnostics import formula_of

DERIVATIVES = """\
- name: zoo_two(Tensor self, Tensor other) -> Tensor
  self: grad * helper_of_self(other)
  other: grad * helper_of_other(self)
  result: helper_of_forward(self_t, other_t)

- name: zoo_two_more_(Tensor(a!) self) -> Tensor(a!)
  self: zeros_like(grad)
"""
NODE = (
    "Functions.cpp: In member function 'virtual variable_list "
    "torch::autograd::generated::{name}Backward0::apply(variable_list&&)':\n"
)
FORWARD = (
    "VariableType.cpp: In function 'at::Tensor "
    "torch::autograd::VariableType::{anonymous}::zoo_two(c10::DispatchKeySet, const Tensor&)':\n"
)
TWO_FAILED = """\
[12/1600] Building CXX object a.o
[13/1600] Building CXX object b.o
FAILED: [code=1] caffe2/b.o
ccache /usr/bin/c++ -DX -c /tree/aten/b.cpp
In file included from /tree/aten/b.h:3,
                 from /tree/aten/b.cpp:1:
\x1b[01m\x1b[K/tree/aten/b.cpp:7:12:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kexpected ';'
    7 |   return x
/tree/aten/b.cpp:9:1: error: another one
[14/1600] Building CXX object c.o
FAILED: caffe2/c.o
/tree/aten/c.cpp:1:1: fatal error: no such header
ninja: build stopped: subcommand failed.
"""


@pytest.fixture
def loaded(tmp_path: Path) -> load.Additions:
    return sample.write(tmp_path / "additions", "", DERIVATIVES, native__Swing_cpp="")


def failure(output: str, additions: load.Additions) -> ForkError:
    locate = diagnostics.in_additions(additions)
    return diagnostics.failure(output, Path("/b/compile.log"), 4, locate)


def test_the_first_error_of_each_file_is_shown_with_how_many_there_are() -> None:
    first, second = diagnostics.read(TWO_FAILED)
    assert (first.place, first.count) == ("/tree/aten/b.cpp:7", 2)
    assert first.text == "/tree/aten/b.cpp:7:12: error: expected ';'\n    7 |   return x"
    assert (second.place, second.count) == ("/tree/aten/c.cpp:1", 1)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('/a b/Swing.cu(12): error: identifier "x" is undefined', "/a b/Swing.cu:12"),
        ("x.cu(3): error #20: no", "x.cu:3"),
        ("x.cpp:3:1: fatal error: no.h: No such file", "x.cpp:3"),
        ("CMake Error at cmake/Dependencies.cmake:12 (message):\n  no sleef",
         "cmake/Dependencies.cmake:12"),
        ("x.cpp:3:1: warning: deprecated [-Werror=deprecated]", ""),
    ],
)  # fmt: skip
def test_errors_of_every_tool_are_understood(line: str, place: str) -> None:
    assert diagnostics.read(f"-- ok\n{line}\n")[0].place == place


def test_a_kernel_that_fails_twice_counts_once_and_without_an_error_the_end_is_shown() -> None:
    one = "FAILED: k.{}.o\nk.cpp:3:1: error: no\n"
    (found,) = diagnostics.read(one.format("AVX2") + one.format("AVX512"))
    assert found.count == 1
    text = "".join(f"line {n}\n" for n in range(100)) + "RuntimeError: no such option\n"
    (found,) = diagnostics.read(text)
    assert found.text.endswith("RuntimeError: no such option") and "line 5\n" not in found.text


@pytest.mark.parametrize(
    "line",
    [
        "c++: fatal error: Killed signal terminated program cc1plus",
        "virtual memory exhausted: Cannot allocate memory",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
        "Killed",
        "x.sh: line 1: Killed",
    ],
)
def test_a_killed_compiler_is_no_fault_of_the_kernel(line: str, loaded: load.Additions) -> None:
    error = failure(f"[1/2] x\nFAILED: x.o\nc++ -c x.cpp\n{line}\nninja: stopped\n", loaded)
    assert "out of memory" in error.what and line in error.why and "4 ran at once" in error.why
    assert "MAX_JOBS=1" in error.next


def test_errors_of_our_files_come_first_and_name_them(loaded: load.Additions) -> None:
    """The base's header before them is where the compiler stood, not what is wrong."""
    swing = loaded.source_root / "native" / "Swing.cpp"
    copy = f"{ADDITIONS_COPY}/native/Swing.cpp"
    error = failure(
        "FAILED: a.o\n../sources/ATen/R.cpp:2:1: error: third\n"
        f"FAILED: b.o\nIn file included from {copy}:4:\n/base/T.h:9:1: error: second\n"
        f"FAILED: c.o\n{copy}:7:1: error: first\n",
        loaded,
    )
    assert isinstance(error, CompileError) and error.exit_code == 15
    places = [part.where for part in (error, *error.also)]
    assert places == [f"{swing}:4", f"{swing}:7", "../sources/ATen/R.cpp:2"]
    assert "Full log: /b/compile.log" in error.next


def test_a_full_disk_is_no_fault_of_the_kernel(loaded: load.Additions) -> None:
    full = failure("/tmp/c.s: fatal error: writing to x.o: No space left on device\n", loaded)
    assert isinstance(full, OutputError) and "disk is full" in full.what and full.where == "/b"


@pytest.mark.parametrize(
    ("error", "note"),
    [
        ("invalid initialization of reference of type 'const at::Tensor&' from expression of type "
         "'float'", "std::floor"),
        ("no match for 'operator*' (operand types are 'const at::Tensor' and 'const at::Tensor')",
         "<ATen/TensorOperators.h>"),
        ("'where' is not a member of 'at'", "<ATen/ops/where.h>"),
    ],
)  # fmt: skip
def test_what_kernels_commonly_lack_gets_a_hint(
    loaded: load.Additions, error: str, note: str
) -> None:
    place = f"{ADDITIONS_COPY}/native/Swing.cpp:7:1"
    assert note in failure(f"{place}: error: {error}\n", loaded).why.partition("\nnote: ")[2]


@pytest.mark.parametrize(
    ("before", "error", "line"),
    [
        (NODE.replace("{name}", "ZooTwo"), "'helper_of_other' was not declared", 3),
        (NODE.replace("{name}", "ZooTwo"), "'helper_of_self' was not declared", 2),
        (FORWARD, "no matching function for call to 'helper_of_forward(at::Tensor&)'", 4),
        (NODE.replace("{name}", "ZooTwo"), "something else", 1),
        (NODE.replace("{name}", "ZooTwoMore"), "'at::Tensor' has no member", 6),
        (NODE.replace("{name}", "ZooTwoMore") + NODE.replace("{name}", "ZooTwo"),
         "'helper_of_self' was", 2),
    ],
)  # fmt: skip
def test_an_error_in_generated_code_names_the_line_of_the_formula(
    loaded: load.Additions, before: str, error: str, line: int
) -> None:
    where = f"{loaded.derivatives.path}:{line}"
    assert formula_of(before, error, loaded) == where
    shown = failure(f"FAILED: F.o\n{before}../sources/F.cpp:1:1: error: {error}\n", loaded)
    assert shown.where == where and "formula" in shown.what
    kernel = "Zoo.cpp: In function 'at::Tensor at::native::zoo_two(const Tensor&)':\n"
    assert formula_of(kernel, "'x' was not declared", loaded) == ""
