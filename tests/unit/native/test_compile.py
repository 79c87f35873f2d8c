"""Compilation by ninja: contents decide what is compiled, and every file with errors is named."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions.load import load
from torchfork.codegen import build_dir
from torchfork.codegen.build_dir import BuildDir
from torchfork.errors import CompileError
from torchfork.native import compile_steps, ninja
from torchfork.native.compile_steps import CompileStep
from torchfork.native.toolchain import Toolchain
from torchfork.upstream.abi import DEFAULT_ONLY, BaseAbi
from torchfork.upstream.base import Base
from torchfork.upstream.binaries import Elf

ELF = Elf()
ABI = BaseAbi("c++17", True, "libgomp.so.1", "", True, False, ELF, ELF)
TOOLS = Toolchain("g++", "", 2, DEFAULT_ONLY, None, "")


class Project:
    """Additions of two kernels and a header, compiled by ninja and a real compiler."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.header = "#pragma once\nconstexpr int rows = 1;\n"
        self.additions = sample.write(
            root / "additions",
            native__Swing_cpp="#include <ATen/native/Swing.h>\nint swing() { return rows; }\n",
            native__Sway_cpp="int sway() { return 2; }\n",
            native__Swing_h=self.header,
        )
        self.layout = BuildDir(root / "work")
        self.native = self.additions.source_root / "native"

    def compile(self, base: Base | None = None, *more: CompileStep) -> int:
        additions = load(self.additions.root)
        base = base or sample.base(self.root / "base")
        steps = [*compile_steps.additions_steps(additions, TOOLS), *more]
        text = ninja.ninja_file(base, ABI, TOOLS, steps)
        compile_steps.copy_sources(additions, self.layout)
        return ninja.compile_all(text, self.layout.build, TOOLS, additions, lambda *step: None)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    if not shutil.which("g++"):
        pytest.skip("needs a compiler")
    made = Project(tmp_path / "p")
    assert (made.compile(), made.compile()) == (2, 0)
    return made


@pytest.mark.parametrize("name", ["Swing.cpp", "Swing.h"])
def test_contents_and_not_times_decide_what_is_compiled(project: Project, name: str) -> None:
    """`cp -a`, `rsync -a`, `tar x` and `mv X.bak X` put older files in place, a checkout newer."""
    path, later = project.native / name, time.time() + 3600
    path.write_text(path.read_text() + "// edited\n")
    os.utime(path, (1_577_836_800, 1_577_836_800))
    assert (project.compile(), project.compile()) == (1, 0)
    for path in project.native.iterdir():
        path.write_text(path.read_text())
        os.utime(path, (later, later))
    assert project.compile() == 0


def test_an_edit_is_compiled_when_the_clock_was_ahead_before_it(project: Project) -> None:
    ahead = 36_000 * 10**9
    for path in filter(Path.is_file, project.layout.root.rglob("*")):
        later = path.stat().st_mtime_ns + ahead
        if path.name == ".ninja_log":
            rows = [line.split("\t") for line in path.read_text().splitlines()]
            shifted = [[*row[:2], str(int(row[2]) + ahead), *row[3:]] for row in rows[1:]]
            path.write_text("\n".join(map("\t".join, [rows[0], *shifted, []])))
        os.utime(path, ns=(later, later))
    (project.native / "Sway.cpp").write_text("int sway() { return 3; }\n")
    counts = []
    for _ in range(2):
        with build_dir.locked(project.layout):
            counts.append(project.compile())
    assert counts == [2, 0]


def test_for_another_python_of_a_release_the_bindings_alone_are_compiled(project: Project) -> None:
    """The release's wheels have their headers at one path; Python's own are each elsewhere."""
    bindings = CompileStep("../include/ATen/native/Sway.cpp", "b.o", "cxx", (), True, False)
    compiled = []
    for python in ("3.11", "3.14", "3.14", "3.11"):
        base = replace(sample.base(project.root / python), headers=project.root / "headers")
        compiled.append(project.compile(base, bindings))
    assert compiled == [3, 1, 0, 1]


def test_a_kernel_that_is_gone_is_not_compiled_and_a_header_is_missed(project: Project) -> None:
    (project.native / "Sway.cpp").rename(project.native / "Sign.cpp")
    assert project.compile() == 1
    assert not (project.layout.additions_include / "ATen" / "native" / "Sway.cpp").exists()
    (project.native / "Swing.h").unlink()
    with pytest.raises(CompileError, match=r"Swing\.h: No such file") as caught:
        project.compile()
    assert caught.value.where == f"{project.native / 'Swing.cpp'}:1"


def test_all_that_can_be_compiled_is_and_each_file_with_errors_is_named(project: Project) -> None:
    (project.native / "Sway.cpp").write_text("int sway() { return a; }\nint b() { return c; }\n")
    (project.native / "Swing.cpp").write_text("int swing() { return rows; }\n")
    (project.native / "Fine.cpp").write_text("int fine() { return 1; }\n")
    with pytest.raises(CompileError) as caught:
        project.compile()
    errors = sorted([caught.value, *caught.value.also], key=lambda error: error.where)
    assert [error.where for error in errors] == [
        f"{project.native / 'Sway.cpp'}:1", f"{project.native / 'Swing.cpp'}:1"
    ]  # fmt: skip
    assert "and 1 more error in this file" in errors[0].why
    assert (project.layout.build / "additions/native/Fine.cpp.o").is_file()


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("[60/300] Building CXX object x.o\n", (60, 300, "Building CXX object x.o")),
        ("-- Found [3/4] of it\n", None),
        ("a [1/2] b\n", None),
    ],
)
def test_a_step_is_a_line_that_begins_with_its_number(
    line: str, step: tuple[int, int, str] | None
) -> None:
    assert ninja.read_step(line) == step


@pytest.mark.parametrize(
    ("derivatives", "source", "compiled"),
    [
        ("self: grad * 2", "", False),
        ("self: handle_r_to_c (self.scalar_type(), grad)", "", True),
        ("self: my_handle_r_to_c(grad)", "", False),
        ("self: grad", "#include <torch/csrc/autograd/FunctionsManual.h>\nsum_backward(x);", True),
        ("self: grad", "sum_backward(x);", False),
    ],
)
def test_the_helpers_of_formulas_are_compiled_where_something_calls_one(
    tmp_path: Path, derivatives: str, source: str, compiled: bool
) -> None:
    formulas = f"- name: swing(Tensor self) -> Tensor\n  {derivatives}\n"
    additions = sample.write(tmp_path, sample.NATIVE, formulas, native__Swing_cpp=source)
    steps = compile_steps.all_steps([], additions, TOOLS)
    assert compiled == any(step.source.endswith(compile_steps.HELPERS) for step in steps)
