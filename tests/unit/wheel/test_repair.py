"""A source-built wheel is complete: libraries in it, no build paths, a true platform tag."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from torchfork.errors import ToolMissingError
from torchfork.upstream.binaries import read_elf
from torchfork.wheel import repair
from torchfork.wheel.repair import needed_glibc, raised_tag

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


def library(path: Path, *arguments: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-nostdlib", "-o", str(path), "-x", "c", "-", "-x", "none"]
    command += ["-Wl,--no-as-needed", *arguments]
    subprocess.run(command, input="int f(void){return 1;}", text=True, check=True)
    return path


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A wheel's contents: a library that needs its own, another directory's, and the system's."""
    deps, wheel = tmp_path / "deps", tmp_path / "unpacked"
    library(deps / "libdeep.so.2", "-Wl,-soname,libdeep.so.2")
    library(deps / "libmath.so.3", "-Wl,-soname,libmath.so.3", str(deps / "libdeep.so.2"))
    library(wheel / "torch/lib/libc10.so", "-Wl,-soname,libc10.so")
    library(
        wheel / "torch/lib/libtorch_cpu.so", "-Wl,--no-as-needed", str(deps / "libmath.so.3"),
        str(wheel / "torch/lib/libc10.so"), "-lc", "-Wl,--enable-new-dtags",
        f"-Wl,-rpath,$ORIGIN:{tmp_path}/build/lib:$ORIGIN/../x",
    )  # fmt: skip
    (wheel / "torch" / "x.py").write_text("x = 1\n")
    return wheel


def test_libraries_that_nobody_has_come_with_what_they_need(unpacked: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    added = repair.complete(unpacked, overlay, [tmp_path / "deps"], "gcc")
    assert added == ["libdeep.so.2", "libmath.so.3"]
    for name in added:
        placed = overlay / "torch/lib" / name
        assert placed.read_bytes() == (tmp_path / "deps" / name).read_bytes()
    assert not (overlay / "torch/lib/libc10.so").exists()
    (tmp_path / "deps" / "libdeep.so.2").unlink()
    with pytest.raises(ToolMissingError, match=r"libdeep\.so\.2"):
        repair.complete(unpacked, tmp_path / "again", [tmp_path / "deps"], "gcc")


def test_build_paths_go_and_what_is_relative_stays(unpacked: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    repair.complete(unpacked, overlay, [tmp_path / "deps"], "gcc")
    changed = overlay / "torch/lib/libtorch_cpu.so"
    assert read_elf(changed).runpath == "$ORIGIN:$ORIGIN/../x"
    assert str(tmp_path).encode() not in changed.read_bytes()
    assert read_elf(changed).needed == read_elf(unpacked / "torch/lib/libtorch_cpu.so").needed


def test_what_every_linux_has_and_what_nvidias_packages_bring_is_left_to_them() -> None:
    for pattern, theirs, ours in (
        (repair.SYSTEM, "libc.so.6 libstdc++.so.6 ld-linux-x86-64.so.2 libgcc_s.so.1 libm.so.6",
         "libgomp.so.1"),
        (repair.CUDA, "libcudart.so.12 libcublasLt.so.12 libnccl.so.2", "libcpuinfo.so.0"),
    ):  # fmt: skip
        assert all(map(pattern.fullmatch, theirs.split())) and not pattern.fullmatch(ours)


@pytest.mark.parametrize(
    ("platform", "needed", "raised"),
    [
        ("manylinux_2_28_x86_64", (2, 17), "manylinux_2_28_x86_64"),
        ("linux_x86_64", (2, 40), "linux_x86_64"),
        ("manylinux_2_28_x86_64", (2, 34), "manylinux_2_34_x86_64"),
        ("manylinux1_x86_64", (2, 14), "manylinux_2_14_x86_64"),
        ("manylinux2014_x86_64.manylinux_2_17_x86_64", (2, 28), "manylinux_2_28_x86_64"),
    ],
)
def test_a_tag_that_promises_too_much_is_raised_and_any_other_stays(
    platform: str, needed: tuple[int, int], raised: str
) -> None:
    assert raised_tag(f"cp311-cp311-{platform}", needed) == f"cp311-cp311-{raised}"


def test_the_newest_symbol_version_of_a_library_is_found(tmp_path: Path) -> None:
    source, library = tmp_path / "x.c", tmp_path / "x.so"
    source.write_text('#include <stdio.h>\nvoid f(void) { puts("x"); }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    assert (2, 0) < needed_glibc([library]) < (2, 99)
