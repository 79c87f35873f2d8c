"""Declared kernels against defined symbols, before any linker runs (invariant 5)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions.load import Additions
from torchfork.errors import KernelError
from torchfork.native import symbols
from torchfork.native.symbols import Symbols
from torchfork.native.units import ADDITIONS_LINK, CompileStep
from torchfork.util import process

GENERATED = CompileStep(
    "../sources/ATen/RegisterCPU.cpp", "generated/RegisterCPU.o", "cxx", (), False, False
)
OURS = CompileStep(
    f"{ADDITIONS_LINK}/native/Swing.cpp", "additions/Swing.o", "cxx", (), False, True
)
# What GCC makes of at::native::swing_cpu(at::Tensor const&), and with one more argument.
KERNEL = "_ZN2at6native9swing_cpuERKNS_6TensorE"
OTHER = "_ZN2at6native9swing_cpuERKNS_6TensorEl"
HIDDEN = "_ZN2at6native13hidden_helperERKNS_6TensorE"
HELPER = "_ZN5torch8internal6helperEv"


@pytest.fixture
def additions(tmp_path: Path) -> Additions:
    return sample.write(tmp_path / "additions", native__Swing_cpp="", native__Swing_h="")


def checked(
    tmp_path: Path,
    additions: Additions,
    wanted: set[str],
    defined: set[str],
    *exports: str,
    inlines: frozenset[str] = frozenset(),
) -> int:
    objects = {GENERATED: Symbols(set(), wanted), OURS: Symbols(defined, set(), set(inlines))}
    return symbols.check(sample.base(tmp_path / "base"), additions, objects, set(exports))


def test_kernels_that_fit_are_counted(tmp_path: Path, additions: Additions) -> None:
    assert checked(tmp_path, additions, {KERNEL}, {KERNEL}) == 1


def test_a_missing_kernel_is_named_with_the_line_that_declares_it(
    tmp_path: Path, additions: Additions
) -> None:
    with pytest.raises(KernelError, match="'swing_cpu' is declared and defined nowhere") as caught:
        checked(tmp_path, additions, {KERNEL}, set())
    assert caught.value.where.endswith("native_functions_additions.yaml:4")
    assert "expected: at::native::swing_cpu(at::Tensor const&)" in caught.value.why


def test_a_kernel_with_another_signature_shows_both(tmp_path: Path, additions: Additions) -> None:
    with pytest.raises(KernelError, match="another signature") as caught:
        checked(tmp_path, additions, {KERNEL}, {OTHER})
    assert "declared: at::native::swing_cpu(at::Tensor const&)\n" in caught.value.why
    assert "defined:  at::native::swing_cpu(at::Tensor const&, long)" in caught.value.why
    assert caught.value.exit_code == 14


def test_a_kernel_that_upstream_exports_may_be_used(tmp_path: Path, additions: Additions) -> None:
    assert checked(tmp_path, additions, {KERNEL}, set(), KERNEL) == 0


def test_what_the_base_keeps_to_itself_cannot_be_called(
    tmp_path: Path, additions: Additions
) -> None:
    with pytest.raises(KernelError, match="no library exports it") as caught:
        checked(tmp_path, additions, {HELPER}, set())
    assert "TORCH_API" in caught.value.why and "--from-source" in caught.value.next


def test_a_kernel_that_no_entry_leads_to_is_refused_by_its_file(
    tmp_path: Path, additions: Additions
) -> None:
    with pytest.raises(KernelError, match="no operator is declared for it") as caught:
        checked(tmp_path, additions, {KERNEL}, {KERNEL, HIDDEN})
    assert caught.value.where == str(additions.source_root / "native" / "Swing.cpp")


def test_an_inline_function_of_a_header_is_no_forgotten_kernel(
    tmp_path: Path, additions: Additions
) -> None:
    both = {KERNEL, HIDDEN}
    assert checked(tmp_path, additions, {KERNEL}, both, inlines=frozenset({HIDDEN})) == 1


def test_a_helper_that_a_header_declares_is_no_forgotten_kernel(
    tmp_path: Path, additions: Additions
) -> None:
    header = additions.source_root / "native" / "Swing.h"
    header.write_text("Tensor hidden_helper(const Tensor& self);\n")
    assert checked(tmp_path, additions, {KERNEL}, {KERNEL, HIDDEN}) == 1


def test_kernels_come_before_what_follows_from_them(tmp_path: Path, additions: Additions) -> None:
    with pytest.raises(KernelError, match="'swing_cpu'"):
        checked(tmp_path, additions, {KERNEL, HELPER}, set())


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
def test_real_objects_are_read_as_they_are_in_paths_with_spaces(tmp_path: Path) -> None:
    build = tmp_path / "ö b: x"
    source = build / "a.cpp"
    (build / "additions").mkdir(parents=True)
    source.write_text(
        "namespace at { struct Tensor; namespace native {\n"
        "void needed(const Tensor&); static void own() {} inline void everywhere() {}\n"
        "__attribute__((weak)) void weak(); namespace { void anonymous() {} }\n"
        "void swing_cpu(const Tensor& t) { needed(t); own(); anonymous(); everywhere();\n"
        "  if (weak) weak(); }\n"
        "} }\n"
    )
    process.run(["g++", "-c", source, "-o", build / OURS.object])
    found = symbols.read_objects(build, [OURS])[OURS]
    assert found.defined == {KERNEL, "_ZN2at6native10everywhereEv"}
    assert found.inlines == found.defined - {KERNEL}
    kernels = {name for name in found.undefined if name.startswith("_ZN2at")}
    assert kernels == {"_ZN2at6native6neededERKNS_6TensorE"}
    process.run(["g++", "-shared", "-fPIC", source, "-o", build / "lib.so"])
    assert KERNEL in symbols.exported([build / "lib.so"])
    assert symbols.demangle([KERNEL]) == {KERNEL: "at::native::swing_cpu(at::Tensor const&)"}
