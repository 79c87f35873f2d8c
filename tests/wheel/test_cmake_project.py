"""A CMake project finds the wheel with find_package(Torch), builds and runs a program on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from subject import Subject, tool

PROJECT = Path(__file__).with_name("consumer_cmake")


@pytest.fixture(scope="module")
def program(subject: Subject, foreign_place: Path) -> Path:
    """The executable, built in a directory with an awkward name."""
    build = foreign_place / "cmake"
    prefix = subject.ask("import json, torch; print(json.dumps(torch.utils.cmake_prefix_path))")
    public = tuple(map(int, subject.wheel.version.partition("+")[0].split(".")[:2]))
    subject.run([
        tool("cmake"), "-S", PROJECT, "-B", build, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
        # Upstream's headers ask for C++20 from 2.12 on.
        f"-DCONSUMER_STANDARD={20 if public >= (2, 12) else 17}",
    ])  # fmt: skip
    subject.run([tool("cmake"), "--build", build, "--parallel", "1"])
    return build / "consumer"


def test_the_program_links_and_its_results_are_right(subject: Subject, program: Path) -> None:
    said = subject.run([program]).stdout
    assert "FAILS" not in said
    assert len(re.findall("^holds: ", said, re.MULTILINE)) == 8


def test_the_program_runs_on_the_libraries_of_the_wheel(subject: Subject, program: Path) -> None:
    """The stub's replacement has to be loaded although nothing but our operators asks for it."""
    loaded = subject.run(["ldd", program]).stdout
    assert str(subject.site / "torch" / "lib" / "libtorch.so") in loaded
    assert "not found" not in loaded
