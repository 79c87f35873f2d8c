"""A CMake project finds torch with find_package(Torch), builds and runs a program on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from subject import Subject, tool

PROJECT = Path(__file__).with_name("consumer_cmake")


@pytest.fixture(scope="module", params=["wheel", "overlay"])
def consumer(request: pytest.FixtureRequest) -> Subject:
    """The full wheel, and an official torch with the overlay of the same additions."""
    found: Subject = request.getfixturevalue(
        "subject" if request.param == "wheel" else "with_overlay"
    )
    return found


@pytest.fixture(scope="module")
def program(consumer: Subject, foreign_place: Path) -> Path:
    """The executable, built in a directory with an awkward name."""
    build = foreign_place / consumer.python.parents[1].name / "cmake"
    prefix = consumer.ask("import json, torch; print(json.dumps(torch.utils.cmake_prefix_path))")
    public = tuple(map(int, consumer.wheel.version.partition("+")[0].split(".")[:2]))
    consumer.run([
        tool("cmake"), "-S", PROJECT, "-B", build, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
        # Upstream's headers ask for C++20 from 2.12 on.
        f"-DCONSUMER_STANDARD={20 if public >= (2, 12) else 17}",
    ])  # fmt: skip
    consumer.run([tool("cmake"), "--build", build, "--parallel", "1"])
    return build / "consumer"


def test_the_program_links_and_its_results_are_right(consumer: Subject, program: Path) -> None:
    said = consumer.run([program]).stdout
    assert "FAILS" not in said
    assert len(re.findall("^holds: ", said, re.MULTILINE)) == 8


def test_the_program_runs_on_the_libraries_of_the_wheel(consumer: Subject, program: Path) -> None:
    """The stub's replacement has to be loaded although nothing but our operators asks for it."""
    loaded = consumer.run(["ldd", program]).stdout
    used = [line.split()[2] for line in loaded.splitlines() if "libtorch.so" in line]
    assert [consumer.library] == list(map(Path, used))
    assert "not found" not in loaded
