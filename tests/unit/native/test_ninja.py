"""The build file: what is compiled how, by paths that any shell and ninja take."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import ninja
import pytest
import sample_additions as sample
from sample_files import lay, program

from torchfork.codegen.client import Generated
from torchfork.native.compile_steps import (
    SUPPORT,
    CompileStep,
    additions_steps,
    all_steps,
    group_in_wheel,
)
from torchfork.native.link import link_order, strip_flags
from torchfork.native.ninja import STAND_INS, common_flags, include_flags, ninja_file
from torchfork.native.toolchain import Cuda, Toolchain
from torchfork.upstream.abi import AVX, DEFAULT_ONLY, BaseAbi, Capabilities
from torchfork.upstream.binaries import Elf

ELF = Elf()
ABI = BaseAbi("c++20", True, "libgomp.so.1", "", True, False, ELF, ELF)
PLAIN = Toolchain("g++", "", 2, AVX, None, "")
CUDA = Cuda(Path("/cu da/bin/nvcc"), "13.0", (Path("/cu da/include"),), ("-gencode=x",))
SOURCES = {
    "native__Swing_cpp": "", "native__cpu__SwingKernel_cpp": "", "native__cuda__Swing_cu": "",
    "native__cuda__Blas_cpp": "", "functorch__Rules_cpp": "", "native__Swing_h": "",
}  # fmt: skip


def steps(tmp_path: Path, toolchain: Toolchain) -> dict[str, CompileStep]:
    additions = sample.write(tmp_path / "additions", **SOURCES)
    return {step.object: step for step in additions_steps(additions, toolchain)}


def test_vector_kernels_are_compiled_once_a_capability_and_the_rest_once(tmp_path: Path) -> None:
    made = steps(tmp_path, PLAIN)
    kernel = "additions/native/cpu/SwingKernel.cpp"
    assert set(made) == {
        "additions/native/Swing.cpp.o", "additions/functorch/Rules.cpp.o",
        f"{kernel}.DEFAULT.o", f"{kernel}.AVX2.o", f"{kernel}.AVX512.o",
    }  # fmt: skip
    plain = steps(tmp_path, replace(PLAIN, capabilities=DEFAULT_ONLY))
    assert [name for name in plain if "/cpu/" in name] == [f"{kernel}.DEFAULT.o"]
    assert "-mavx512f" in made[f"{kernel}.AVX512.o"].flags
    assert "-DCPU_CAPABILITY_AVX2" in made[f"{kernel}.AVX2.o"].flags
    assert not [flag for flag in made[f"{kernel}.DEFAULT.o"].flags if flag.startswith("-m")]


def test_loops_of_a_ufunc_are_compiled_as_vector_kernels_are_and_alone(tmp_path: Path) -> None:
    generated = [
        Generated(f"ATen/{name}", python=False)
        for name in ("UfuncCPU_sway.cpp", "UfuncCPUKernel_sway.cpp", "RegisterCPU.cpp")
    ]
    additions = sample.write(tmp_path / "additions")
    made = {s.object: s for s in all_steps(generated, additions, PLAIN) if "ATen/" in s.object}
    kernel = "generated/ATen/UfuncCPUKernel_sway.cpp"
    alone = [f"{kernel}.{name}.o" for name in AVX.names] + ["generated/ATen/UfuncCPU_sway.cpp.o"]
    assert set(made) == {*alone, "generated/ATen/RegisterCPU.cpp.o"}
    assert "-DCPU_CAPABILITY=AVX2" in made[f"{kernel}.AVX2.o"].flags
    assert not any(group_in_wheel(made[name]) for name in alone)


def test_a_capability_of_the_base_is_compiled_for_and_said_to_be_there(tmp_path: Path) -> None:
    """Else the additions call a dispatcher that libtorch does not have."""
    sve = Capabilities(("DEFAULT", "SVE256"), ("HAVE_SVE256_CPU_DEFINITION",))
    arm = replace(PLAIN, capabilities=sve)
    made = steps(tmp_path, arm)
    kernels = [unit for name, unit in made.items() if "/cpu/" in name]
    assert [unit.object.split(".")[-2] for unit in kernels] == ["DEFAULT", "SVE256"]
    assert {"-DCPU_CAPABILITY=SVE256", "-msve-vector-bits=256"} <= set(kernels[1].flags)
    flags = common_flags(sample.base(tmp_path / "base", version="9.1.0"), ABI, arm)
    assert "-DHAVE_SVE256_CPU_DEFINITION" in flags
    assert not [flag for flag in flags if "AVX" in flag]


def test_cuda_sources_are_compiled_with_a_toolkit_and_left_out_without(tmp_path: Path) -> None:
    assert not [name for name in steps(tmp_path, PLAIN) if "/cuda/" in name]
    made = steps(tmp_path, replace(PLAIN, cuda=CUDA))
    assert made["additions/native/cuda/Swing.cu.o"].rule == "nvcc"
    assert made["additions/native/cuda/Blas.cpp.o"].rule == "cxx"


def test_a_source_is_compiled_once_for_each_value_that_its_first_line_lists(tmp_path: Path) -> None:
    additions = sample.write(tmp_path / "additions", **SOURCES)
    path = additions.source_root / "native/cuda/Swing.cu"
    path.write_text("// One object for each SWING_TYPE: float, c10::Half\n", encoding="utf-8")
    made = {s.object: s.flags for s in additions_steps(additions, replace(PLAIN, cuda=CUDA))}
    swing = "additions/native/cuda/Swing.cu"
    assert made[f"{swing}.float.o"] == ("-O3", "-DSWING_TYPE=float")
    assert made[f"{swing}.Half.o"] == ("-O3", "-DSWING_TYPE=c10::Half")
    assert f"{swing}.o" not in made


def test_every_object_comes_once_and_in_a_fixed_order(tmp_path: Path) -> None:
    additions = sample.write(tmp_path / "additions", **SOURCES)
    generated = [Generated("ATen/B.cpp", False), Generated("autograd/python_A.cpp", True)]
    forth, back = (all_steps(g, additions, PLAIN) for g in (generated, generated[::-1]))
    assert forth == back
    names = [unit.object for unit in forth]
    kernels = [name for name in names if name.startswith("additions/native/cpu/")]
    assert names == [*sorted(set(kernels)), *sorted(set(names) - set(kernels))]
    assert {unit.object for unit in forth if unit.python} > {"generated/autograd/python_A.cpp.o"}


def test_no_processor_is_given_inline_functions_compiled_for_another(tmp_path: Path) -> None:
    additions = sample.write(tmp_path / "additions", **SOURCES)
    linked = [unit.object for unit in link_order(all_steps([], additions, PLAIN))]
    kernel = "additions/native/cpu/SwingKernel.cpp"
    assert linked[-2:] == [f"{kernel}.AVX2.o", f"{kernel}.AVX512.o"]
    assert f"{kernel}.DEFAULT.o" in linked


def test_no_path_of_the_machine_gets_into_an_object(tmp_path: Path) -> None:
    """Relative sources, and a prefix map for headers, whose place is the user's cache."""
    base = sample.base(tmp_path / "base")
    additions = sample.write(tmp_path / "additions", **SOURCES)
    made = all_steps([], additions, PLAIN)
    assert not [unit for unit in made if str(tmp_path) in unit.source + unit.object]
    text = ninja_file(base, ABI, PLAIN, made)
    assert f"-ffile-prefix-map={base.include}=./torch/include" in text


def test_united_files_leave_half_of_the_jobs_to_what_takes_less_memory(tmp_path: Path) -> None:
    plain = CompileStep("a.cpp", "additions/a.o", "cxx", (), False, True)
    united = replace(plain, object="united/core0.cpp.o", ours=False)
    base = sample.base(tmp_path)
    for jobs, at_once in ((1, 1), (2, 1), (16, 8)):
        text = ninja_file(base, ABI, replace(PLAIN, jobs=jobs), [united, plain])
        assert f"pool united\n  depth = {at_once}\n" in text
        assert text.count("  pool = united\n") == 1


def test_the_bases_abi_decides_the_flags(tmp_path: Path) -> None:
    base = sample.base(tmp_path)
    old = replace(ABI, cxx_standard="c++17", cxx11_abi=False, pybind11_abi="_cxxabi1011")
    flags = common_flags(base, old, PLAIN)
    assert "-std=c++17" in flags and "-D_GLIBCXX_USE_CXX11_ABI=0" in flags
    assert '-DPYBIND11_BUILD_ABI="_cxxabi1011"' in flags
    assert "-DUSE_CUDA" not in flags and "-DUSE_CUDA" in common_flags(
        base, old, replace(PLAIN, cuda=CUDA)
    )


def test_the_bases_own_headers_come_before_the_stand_ins(tmp_path: Path) -> None:
    """A stand-in in front of the real header would hide what others call."""
    flags = include_flags(sample.base(tmp_path))
    places = [flag for flag in flags if not flag.startswith("-isystem")]
    assert places[-1] == STAND_INS
    assert (SUPPORT / Path(STAND_INS).name).is_dir()


@pytest.mark.parametrize(
    "name", ["plain", "mit Leer zeichen", "ö$x", "it's", 'a"b', "x:y", "a&b;c"]
)
def test_any_directory_name_reaches_the_compiler_as_it_is(tmp_path: Path, name: str) -> None:
    """ninja really runs; the compiler is a script that writes down what it was given."""
    place = tmp_path / name
    build = place / "build"
    script = 'for a; do last=$a; done\nprintf "%s\\n" "$@" > "$last"'
    compiler = program(tmp_path / "cxx", script)
    lay(build, {"s$o urce.cpp": ""})
    base = sample.base(place / "base")
    unit = CompileStep("s$o urce.cpp", "a b:$c.o", "cxx", ('-DTEXT="x y$z"',), True, False)
    text = ninja_file(base, ABI, replace(PLAIN, cxx=str(compiler)), [unit])
    (build / "build.ninja").write_text(text)
    done = subprocess.run(
        [Path(ninja.BIN_DIR) / "ninja", "-C", build], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    given = (build / "a b:$c.o").read_text().splitlines()
    assert given[given.index("-c") + 1] == "s$o urce.cpp"
    assert str(base.include) in given and '-DTEXT="x y$z"' in given
    assert f"-isystem{base.interpreter.include}" in given


def test_cuda_files_go_to_nvcc_with_the_same_host_compiler(tmp_path: Path) -> None:
    unit = CompileStep("k.cu", "k.o", "nvcc", (), False, True)
    tools = replace(PLAIN, cxx="g++-12", launcher="ccache", cuda=CUDA)
    text = ninja_file(sample.base(tmp_path), ABI, tools, [unit])
    assert "command = ccache '/cu da/bin/nvcc' -ccbin g++-12 " in text
    assert "-gencode=x" in text and "build k.o: nvcc k.cu" in text


@pytest.mark.parametrize(
    ("cxx", "kept"),
    [
        ("g++", False),
        ("g++ -g", True),
        ("ccache g++-13 -fsanitize=address -g1", True),
        ("g++ -ggdb3 -O0", True),
        ("g++ -gsplit-dwarf", True),
        ("g++ -g0", False),
        ("/opt/-g/g++ -march=native -fno-gnu-unique", False),
    ],
)
def test_symbols_stay_where_debug_information_was_asked_for(cxx: str, kept: bool) -> None:
    """Else they go: a wheel is no larger than it must be."""
    assert strip_flags(replace(PLAIN, cxx=cxx)) == ([] if kept else ["-Wl,-s"])
