"""Compilers and toolkits: found as the user says, refused by name when they do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay, program

from torchfork.errors import ForkError, ToolkitMismatchError, ToolMissingError, UsageError
from torchfork.native import toolchain
from torchfork.upstream import abi
from torchfork.upstream.base import Base


def toolkit(home: Path, version: str) -> Path:
    """A CUDA home whose nvcc says a version."""
    program(
        home / "bin" / "nvcc",
        f'[ "$1" = --dryrun ] && echo "#$ TOP={home}" >&2 && exit 0\n'
        f'echo "Cuda compilation tools, release {version}, V{version}.48"',
    )
    lay(home / "include", dict.fromkeys(toolchain.CUDA_HEADERS, ""))
    return home


@pytest.fixture
def cuda_base(tmp_path: Path) -> Base:
    base = sample.base(tmp_path / "base", version="9.1.0+cu130", cuda="13.0")
    names = b"sm_75 sm_80 sm_90 sm_100 sm_120 compute_120"
    data = b"\0" * 50 + names + b"\0sm_75\0" + b"x" * 99
    lay(base.torch, {"lib/libtorch_python.so": data})
    return base


@pytest.fixture(autouse=True)
def nothing_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.parametrize(
    ("env", "error", "says"),
    [
        ({}, ToolMissingError, "no C++ compiler"),
        ({"CXX": "/no/g++-99"}, ToolMissingError, "'/no/g++-99' is not there"),
        ({"CXX": " "}, UsageError, "CXX is blank"),
    ],
)
def test_a_compiler_that_is_missing_is_named_and_not_replaced_by_another(
    tmp_path: Path, env: dict[str, str], error: type[ForkError], says: str
) -> None:
    if env:
        program(tmp_path / "bin" / "g++", "")
        assert toolchain.find_cxx({}) == "g++"
    with pytest.raises(error) as caught:
        toolchain.find_cxx(env)
    assert says in caught.value.what
    assert error is UsageError or "apt-get install g++" in caught.value.next


@pytest.mark.parametrize(
    ("launcher", "compiler", "says"),
    [
        ('exec "$@"', "exit 0", ""),
        ('exec "$@"', "case $* in *-std=c++20*) echo too old >&2; exit 1; esac", "too old"),
        ("echo no permission >&2; exit 1", "exit 0", "no permission"),
    ],
)
def test_a_compiler_that_compiles_nothing_is_refused_before_anything_is_made(
    tmp_path: Path, launcher: str, compiler: str, says: str
) -> None:
    cxx = str(program(tmp_path / "bin" / "g++", compiler))
    program(tmp_path / "bin" / "ccache", launcher)
    tools = toolchain.Toolchain(
        cxx, str(tmp_path / "bin" / "ccache"), 1, abi.DEFAULT_ONLY, None, ""
    )
    toolchain.require_working(replace(tools, launcher=""), "c++17")
    if says:
        with pytest.raises(ToolMissingError) as caught:
            toolchain.require_working(tools, "c++20")
        assert says in caught.value.why and cxx in caught.value.what
    else:
        toolchain.require_working(tools, "c++20")


def test_launchers_are_taken_as_cmake_users_name_them(tmp_path: Path) -> None:
    assert toolchain.find_launcher({}) == ""
    program(tmp_path / "bin" / "sccache", "")
    assert toolchain.find_launcher({}) == "sccache"
    program(tmp_path / "bin" / "ccache", "")
    assert toolchain.find_launcher({}) == "ccache"
    assert toolchain.find_launcher({"CMAKE_CXX_COMPILER_LAUNCHER": ""}) == ""


@pytest.mark.parametrize("listed", ["Hopper", "90", "8.0 +PTX", "8.0,x"])
def test_what_is_no_architecture_is_refused(listed: str) -> None:
    with pytest.raises(UsageError, match="no architecture"):
        toolchain.architecture_flags(listed)


@pytest.mark.parametrize("wanted", ["0", "-2", "two", "1.5", "²", "٣", "1" * 20, " "])
def test_max_jobs_must_be_a_number_of_jobs(wanted: str) -> None:
    with pytest.raises(UsageError, match="MAX_JOBS"):
        toolchain.job_count({"MAX_JOBS": wanted}, 1)


def test_jobs_follow_memory_unless_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.job_count({"MAX_JOBS": "64"}, 10**12) == 64
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    for gigabytes, jobs in ((1, 1), (4, 2), (1000, 64)):
        monkeypatch.setattr(toolchain, "available_memory", lambda g=gigabytes: g * 10**9)
        assert toolchain.job_count({}, toolchain.GRAFT_JOB_BYTES) == jobs


@pytest.mark.parametrize("word", ["0", "OFF", "no", "false"])
def test_use_cuda_off_leaves_cuda_out_and_says_so(cuda_base: Base, word: str) -> None:
    cuda, note = toolchain.find_cuda(cuda_base, {"USE_CUDA": word})
    assert cuda is None and "USE_CUDA=0" in note
    plain = sample.base(cuda_base.root / "cpu")
    assert toolchain.find_cuda(plain, {}) == (None, "the base is a CPU build")


def test_a_toolkit_of_the_bases_major_version_is_taken(cuda_base: Base, tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cu da 13.2", "13.2")
    headers = cuda_base.root / "nvidia" / "cu13" / "include"
    headers.mkdir(parents=True)
    cuda, note = toolchain.find_cuda(cuda_base, {"CUDA_HOME": str(home)})
    assert cuda is not None and note == ""
    assert (cuda.nvcc, cuda.version) == (home / "bin" / "nvcc", "13.2")
    assert cuda.include == (home / "include", headers)
    # the architectures of the base, the last one also as PTX
    assert cuda.gencode[0] == "-gencode=arch=compute_75,code=sm_75"
    assert cuda.gencode[-1] == "-gencode=arch=compute_120,code=compute_120"
    assert len(cuda.gencode) == 6


def test_a_minor_version_is_assembled_from_the_ptx_of_the_first_where_that_is_asked_for() -> None:
    flags = toolchain.architecture_flags("7.5 8.0 8.6 9.0a 9.0 12.0+PTX", shared=True)
    assert [flag.removeprefix("-gencode=arch=") for flag in flags] == [
        "compute_75,code=sm_75", "compute_80,code=sm_80", "compute_80,code=sm_86",
        "compute_90a,code=sm_90a", "compute_90,code=sm_90", "compute_120,code=sm_120",
        "compute_120,code=compute_120",
    ]  # fmt: skip
    assert toolchain.architecture_flags("8.6 8.0", shared=True) == (
        toolchain.architecture_flags("8.6 8.0")
    )


def test_the_users_architectures_win_and_develop_is_for_the_gpus_here(
    cuda_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"CUDA_HOME": str(toolkit(tmp_path / "c", "13.0"))}
    monkeypatch.setattr(toolchain, "visible_architectures", lambda: "8.6 9.0")
    cuda, _ = toolchain.find_cuda(cuda_base, env, visible=True)
    assert cuda is not None and cuda.chosen == "8.6 9.0 (the GPUs here)"
    assert cuda.gencode[0] == "-gencode=arch=compute_86,code=sm_86" and len(cuda.gencode) == 2
    wheel, _ = toolchain.find_cuda(cuda_base, env)
    assert wheel is not None and wheel.chosen.endswith("(those of the base)")
    monkeypatch.setattr(toolchain, "base_architectures", lambda base: "8.0 8.6")
    for more, second in (({}, "80"), ({"TORCH_CUDA_ARCH_LIST": "8.0 8.6"}, "86")):
        found, _ = toolchain.find_cuda(cuda_base, {**env, **more})
        assert found and found.gencode[1] == f"-gencode=arch=compute_{second},code=sm_86"
    named, _ = toolchain.find_cuda(
        cuda_base, {**env, "TORCH_CUDA_ARCH_LIST": "9.0a;10.0"}, visible=True
    )
    assert named is not None and named.chosen == "9.0a;10.0 (TORCH_CUDA_ARCH_LIST)"
    assert named.gencode == (
        "-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_100,code=sm_100",
    )  # fmt: skip


def test_a_machine_without_nvidia_smi_has_no_gpus_to_compile_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolchain.visible_architectures() == ""
    program(tmp_path / "nvidia-smi", "echo 9.0\necho 12.0\necho 9.0")
    assert toolchain.visible_architectures() == "9.0 12.0"


@pytest.mark.parametrize(
    ("there", "error", "code", "says"),
    [
        ("12.8", ToolkitMismatchError, 17, r"12\.8.*CUDA 13\.0"),
        ("", ToolMissingError, 16, "no CUDA compiler"),
    ],
)
def test_a_toolkit_that_does_not_fit_or_is_not_there_is_named_and_not_replaced(
    cuda_base: Base, tmp_path: Path, there: str, error: type[ForkError], code: int, says: str
) -> None:
    program(tmp_path / "bin" / "nvcc", "")
    home = toolkit(tmp_path / "cuda", there) if there else tmp_path / "gone"
    with pytest.raises(error, match=says) as caught:
        toolchain.find_cuda(cuda_base, {"CUDA_HOME": str(home)})
    assert caught.value.exit_code == code and caught.value.where == str(home / "bin" / "nvcc")
    assert "CUDA_HOME" in caught.value.next and "USE_CUDA=0" in caught.value.next


@pytest.mark.parametrize("name", toolchain.CUDA_HEADERS)
def test_a_partial_toolkit_is_refused_by_the_header_that_it_lacks(
    cuda_base: Base, tmp_path: Path, name: str
) -> None:
    """The packages beside torch may have it instead."""
    home = toolkit(tmp_path / "cuda", "13.0")
    (home / "include" / name).unlink()
    with pytest.raises(ToolMissingError, match=name) as caught:
        toolchain.find_cuda(cuda_base, {"CUDA_HOME": str(home)})
    assert "USE_CUDA=0" in caught.value.next
    packaged = cuda_base.root / "nvidia" / "some" / "include"
    packaged.mkdir(parents=True)
    (packaged / name).touch()
    assert toolchain.find_cuda(cuda_base, {"CUDA_HOME": str(home)})[0]
