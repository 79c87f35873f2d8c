"""Our sources compile in the oldest C++ that a release wants, not only in the default's."""

from __future__ import annotations

from pathlib import Path

import pytest
from subject import PROJECT, Subject

from torchfork.native import toolchain
from torchfork.native.compile_steps import SUPPORT

OLDEST = "c++17"  # torch 2.6 to 2.10 at least
# Of CUDA, whose headers lie beside the toolkit, nothing.
SOURCES = [s for s in sorted((PROJECT / "aten_src").rglob("*.cpp")) if "cuda" not in s.parts]
FLAGS = ["-DAT_PER_OPERATOR_HEADERS", "-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_source_compiles_in_the_oldest_standard(
    source: Path, subject: Subject, tmp_path: Path
) -> None:
    """C++20 finds a template by its arguments that is declared only later; C++17 does not."""
    (tmp_path / "ATen").symlink_to(PROJECT / "aten_src")
    include = subject.site / "torch" / "include"
    compiler = toolchain.find_cxx(subject.environment())
    # Wheels from 2.8 on lack a header that upstream's own <ATen/functorch/...> include.
    absent: list[str | Path] = ["-isystem", SUPPORT / "stand_ins"]
    subject.run([
        *compiler.split(), "-fsyntax-only", f"-std={OLDEST}", "-w", "-fopenmp", *FLAGS,
        "-I", tmp_path, "-isystem", include, "-isystem", include / "torch/csrc/api/include",
        *absent, tmp_path / "ATen" / source.relative_to(PROJECT / "aten_src"),
    ])  # fmt: skip
