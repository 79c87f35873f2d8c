"""Declared kernels against defined symbols, before any linker runs (invariant 5)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions.load import Additions
from torchfork.errors import KernelError
from torchfork.native import symbols
from torchfork.native.compile_steps import ADDITIONS_COPY, CompileStep
from torchfork.native.symbols import Exports, Symbols
from torchfork.util import process

GENERATED = CompileStep(
    "../sources/ATen/RegisterCPU.cpp", "generated/RegisterCPU.o", "cxx", (), False, False
)
OURS = CompileStep(
    f"{ADDITIONS_COPY}/native/Swing.cpp", "additions/Swing.o", "cxx", (), False, True
)
# What GCC makes of at::native::swing_cpu(at::Tensor const&), and with one more argument.
KERNEL = "_ZN2at6native9swing_cpuERKNS_6TensorE"
OTHER = "_ZN2at6native9swing_cpuERKNS_6TensorEl"
HIDDEN = "_ZN2at6native13hidden_helperERKNS_6TensorE"
HELPER = "_ZN5torch8internal6helperEv"
INVERSE = "_ZN2at17functionalization18FunctionalInverses13swing_inverseERKNS_6TensorE"


@pytest.fixture
def additions(tmp_path: Path) -> Additions:
    return sample.write(tmp_path / "additions", native__Swing_cpp="", native__Swing_h="")


def checked(
    additions: Additions,
    wanted: set[str],
    defined: set[str],
    *exports: str,
    inlines: frozenset[str] = frozenset(),
) -> int:
    objects = {GENERATED: Symbols(set(), wanted), OURS: Symbols(defined, set(), set(inlines))}
    return symbols.check(additions, objects, Exports(frozenset(exports)))


@pytest.mark.parametrize(
    ("defined", "exports", "inlines", "header", "count"),
    [
        ({KERNEL}, (), set(), "", 1),
        (set(), (KERNEL,), set(), "", 0),  # one that upstream exports may be used
        ({KERNEL, HIDDEN}, (), {HIDDEN}, "", 1),  # an inline function of a header
        ({KERNEL, HIDDEN}, (HIDDEN,), {HIDDEN}, "", 1),  # ... also where the base has it too
        ({KERNEL, HIDDEN}, (), set(), "Tensor hidden_helper(const Tensor& self);\n", 1),
    ],
)  # fmt: skip
def test_kernels_that_fit_are_counted(
    additions: Additions, defined: set[str], exports: tuple[str, ...], inlines: set[str],
    header: str, count: int,
) -> None:  # fmt: skip
    (additions.source_root / "native" / "Swing.h").write_text(header)
    assert checked(additions, {KERNEL}, defined, *exports, inlines=frozenset(inlines)) == count


@pytest.mark.parametrize(
    ("wanted", "defined", "what", "parts"),
    [
        ({KERNEL}, set(), "'swing_cpu' is declared and defined nowhere",
         ["native_functions_additions.yaml:4\n",
          "expected: at::native::swing_cpu(at::Tensor const&)"]),
        ({KERNEL, HELPER}, set(), "'swing_cpu'", []),  # kernels come before what follows from them
        ({INVERSE}, set(), "'swing_inverse' is declared and defined nowhere",  # of a view
         ["native_functions_additions.yaml:2\n"]),
        ({KERNEL}, {OTHER}, "another signature",
         ["declared: at::native::swing_cpu(at::Tensor const&)\n",
          "defined:  at::native::swing_cpu(at::Tensor const&, long)"]),
        ({HELPER}, set(), "no library exports it", ["TORCH_API", "--from-source"]),
        ({KERNEL}, {KERNEL, HIDDEN}, "no operator is declared for it",
         ["aten_src/native/Swing.cpp\n"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_its_line(
    additions: Additions, wanted: set[str], defined: set[str], what: str, parts: list[str]
) -> None:
    with pytest.raises(KernelError, match=what) as caught:
        checked(additions, wanted, defined)
    assert caught.value.exit_code == 14
    assert all(part in f"{caught.value}\n" for part in parts)


# A kernel copied from upstream with its stub, REGISTER_DISPATCH's definition and a class.
STUB = "_ZN2at6native12nothing_stubE"
REGISTERED = "_ZN2at6native12DispatchStubIPFvvENS0_34nothing_stub_DECLARE_DISPATCH_typeEE7DEFAULTE"
VTABLE = "_ZTVN2at6native7NothingE"
COPIED = """\
// nothing_stub as upstream has it
DEFINE_DISPATCH(nothing_stub);
namespace at::native { Tensor swing_cpu(const Tensor& self) { return nothing_stub(self); } }
struct Nothing { virtual ~Nothing(); };
REGISTER_DISPATCH(nothing_stub, &kernel)
"""


@pytest.mark.parametrize(
    ("symbol", "word", "line"),
    [
        (STUB, "nothing_stub", 2),
        (REGISTERED, "nothing_stub", 2),
        (VTABLE, "Nothing", 4),
        (KERNEL, "swing_cpu", 3),
    ],
)
def test_a_symbol_that_the_base_has_too_is_refused_with_its_line_and_a_free_name(
    additions: Additions, symbol: str, word: str, line: int
) -> None:
    """Else the loader takes one for both: upstream's operators would run ours, or ours theirs."""
    source = additions.source_root / "native" / "Swing.cpp"
    source.write_text(COPIED)
    with pytest.raises(KernelError, match=f"'{word}' is defined here") as caught:
        checked(additions, {KERNEL}, {KERNEL, symbol}, symbol)
    assert caught.value.where == f"{source}:{line}"
    assert f"'swing_{word}'" in caught.value.next and caught.value.kind == "symbol of upstream"


# torch::autograd::generated::details::rad2deg_backward(at::Tensor const&)
MANUAL = "_ZN5torch8autograd9generated7details16rad2deg_backwardERKN2at6TensorE"


@pytest.mark.parametrize(("python", "refused"), [(False, True), (True, False)])
def test_a_helper_that_the_graft_brings_is_refused_where_the_linker_would_meet_it_twice(
    additions: Additions, python: bool, refused: bool
) -> None:
    source = additions.source_root / "native" / "Swing.cpp"
    source.write_text("\nTensor rad2deg_backward(const Tensor& grad) { return grad; }\n")
    brought = CompileStep("united/a0.cpp", "united/a0.cpp.o", "cxx", (), python, False)
    objects = {brought: Symbols({MANUAL}, set()), OURS: Symbols({MANUAL}, set())}
    if not refused:  # torch/_C is a library of its own
        assert symbols.check(additions, objects, Exports(frozenset())) == 0
        return
    with pytest.raises(KernelError, match="'rad2deg_backward' is defined here") as caught:
        symbols.check(additions, objects, Exports(frozenset()))
    assert caught.value.where == f"{source}:2" and caught.value.kind == "symbol of upstream"
    assert not caught.value.also


def test_a_base_for_another_system_is_compared_by_what_its_names_mean(additions: Additions) -> None:
    objects = {GENERATED: Symbols(set(), {OTHER}), OURS: Symbols({OTHER}, set())}
    apple = Exports(frozenset(), frozenset({"at::native::swing_cpu(at::Tensor const&, long)"}))
    with pytest.raises(KernelError, match="'swing_cpu' is defined here"):
        symbols.check(additions, objects, apple)


def test_all_that_is_wrong_is_said_in_one_run(additions: Additions) -> None:
    with pytest.raises(KernelError) as caught:
        checked(additions, {KERNEL}, {HIDDEN, STUB}, STUB)
    errors = [caught.value, *caught.value.also]
    assert [error.what.partition("'")[2].partition("'")[0] for error in errors] == [
        "swing_cpu", "nothing_stub", "at::native::hidden_helper(at::Tensor const&)",
    ]  # fmt: skip


def vectors(capability: str) -> CompileStep:
    name = "native/cpu/Swing.cpp"
    return CompileStep(f"{ADDITIONS_COPY}/{name}", f"{name}.{capability}.o", "cxx", (), False, True)


UNITED = CompileStep("united/vectors0.cpp", "united/vectors0.cpp.o", "cxx", (), False, True)


@pytest.mark.parametrize("others", [[vectors("AVX2"), vectors("AVX512")], [UNITED]])
def test_a_kernel_in_native_cpu_without_a_stub_is_named_with_its_cure(
    tmp_path: Path, others: list[CompileStep]
) -> None:
    """Also where a check compiles the kernels of one capability as one file."""
    text = "\nTensor swing_cpu(const Tensor& self) {}\n"
    additions = sample.write(tmp_path / "additions", native__cpu__Swing_cpp=text)
    objects = {step: Symbols({KERNEL}, set()) for step in (vectors("DEFAULT"), *others)}
    objects[GENERATED] = Symbols(set(), {KERNEL})
    with pytest.raises(KernelError, match="once for each CPU capability") as caught:
        symbols.check(additions, objects, Exports(frozenset()))
    assert caught.value.where == f"{additions.source_root / 'native' / 'cpu' / 'Swing.cpp'}:2"
    assert "REGISTER_DISPATCH" in caught.value.next and not caught.value.also


def test_a_function_in_two_files_names_both(tmp_path: Path) -> None:
    body = "namespace at::native {\nTensor swing_cpu(const Tensor& self) {}\n}\n"
    additions = sample.write(tmp_path / "a", native__Swing_cpp=body, native__Sway_cpp=body)
    sway = CompileStep(
        f"{ADDITIONS_COPY}/native/Sway.cpp", "additions/Sway.o", "cxx", (), False, True
    )
    objects = {OURS: Symbols({KERNEL}, set()), sway: Symbols({KERNEL}, set())}
    with pytest.raises(KernelError, match="defined in two files") as caught:
        symbols.check(
            additions, {GENERATED: Symbols(set(), {KERNEL}), **objects}, Exports(frozenset())
        )
    assert caught.value.where.endswith("native/Sway.cpp:2")
    assert "native/Swing.cpp:2" in caught.value.why


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
