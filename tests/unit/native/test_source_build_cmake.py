"""source_build.cmake on a small project: levels, groups, and what keeps a file out of its group."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sample_files import lay

PROJECT = Path(__file__).resolve().parents[3]
SUPPORT = PROJECT / "scripts" / "lib" / "torchfork" / "support" / "source_build.cmake"

FILES = {
    "CMakeLists.txt": """
        cmake_minimum_required(VERSION 3.18)
        project(Torch CXX)
        set(CMAKE_CXX_FLAGS_RELEASE "-O3")
        add_subdirectory(caffe2)
    """,
    "caffe2/CMakeLists.txt": """
        foreach(name a b)
          set_source_files_properties(${CMAKE_BINARY_DIR}/kernels/${name}.cpp.AVX2.cpp
            PROPERTIES COMPILE_FLAGS "-mavx2")
          list(APPEND kernels ${CMAKE_BINARY_DIR}/kernels/${name}.cpp.AVX2.cpp)
        endforeach()
        set(passes ${PROJECT_SOURCE_DIR}/torch/csrc/jit/passes)
        set_source_files_properties(${passes}/odd.cpp PROPERTIES COMPILE_FLAGS -DODD)
        set_property(SOURCE ${PROJECT_SOURCE_DIR}/aten/one.cpp PROPERTY COMPILE_DEFINITIONS ONE=1)
        add_library(torch_cpu SHARED ${kernels} ../aten/one.cpp ../aten/two.cpp
          ${PROJECT_SOURCE_DIR}/caffe2/../torch/csrc/jit/passes/x.cpp ${passes}/y.cpp
          ${passes}/odd.cpp ../torch/csrc/autograd/generated/VariableType.cpp)
    """,
    "aten/one.cpp": "int one() { return ONE; }",
    "aten/two.cpp": "int two() { return 2; }",
    "torch/csrc/jit/passes/x.cpp": "static int kept = 1;\nint x() { return kept; }",
    "torch/csrc/jit/passes/y.cpp": "int y() { return kept; }",
    "torch/csrc/jit/passes/odd.cpp": "int odd() { return 3; }",
    "torch/csrc/autograd/generated/VariableType.cpp": "int v() { return 4; }",
    "build/kernels/a.cpp.AVX2.cpp": "#ifndef __AVX2__\n#error\n#endif\nint a() { return 5; }",
    "build/kernels/b.cpp.AVX2.cpp": "int b() { return 6; }",
    "groups.txt": (
        "# target and files\n"
        "torch_cpu build/kernels/a.cpp.AVX2.cpp build/kernels/b.cpp.AVX2.cpp\n"
        "torch_cpu torch/csrc/jit/passes/x.cpp torch/csrc/jit/passes/y.cpp"
        " torch/csrc/jit/passes/odd.cpp torch/csrc/jit/passes/not_built.cpp\n"
        "torch_cpu aten/one.cpp aten/two.cpp\n"
        "no_such_target aten/one.cpp aten/two.cpp\n"
    ),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's directory; its library has been linked."""
    tools = Path(sys.executable).parent  # the environment of the tests has both
    tree = tmp_path_factory.mktemp("tree")
    lay(tree, {name: text + "\n" for name, text in FILES.items()})
    build = tree / "build"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        "CMAKE_MAKE_PROGRAM": tools / "ninja",
        "CMAKE_PROJECT_Torch_INCLUDE": SUPPORT,
        "CMAKE_TORCHFORK_GENERATED": "-O1",
        "CMAKE_TORCHFORK_GLUE": "-Og",
        "CMAKE_TORCHFORK_UNITY": tree / "groups.txt",
    }
    given = [f"-D{name}={value}" for name, value in settings.items()]
    cmake = str(tools / "cmake")
    subprocess.run([cmake, "-S", tree, "-B", build, "-G", "Ninja", *given], check=True)
    subprocess.run([cmake, "--build", build], check=True)
    return tree


@pytest.fixture(scope="module")
def compiled(built: Path) -> dict[str, str]:
    """The command of each compiled file, by its name."""
    commands = json.loads((built / "build" / "compile_commands.json").read_text())
    return {
        Path(entry["file"]).resolve().relative_to(built).as_posix(): entry["command"]
        for entry in commands
    }


@pytest.fixture(scope="module")
def order(built: Path) -> list[str]:
    """Files in the order in which their objects are linked."""
    rules = (built / "build" / "build.ninja").read_text().replace("$\n", " ")
    link = re.search(r"^build \S*libtorch_cpu\.so: \S+ (.*)$", rules, re.MULTILINE)
    assert link
    return [Path(word).name.split(".")[0] for word in link[1].split() if word.endswith(".o")]


def test_members_compile_as_one_and_a_file_with_other_flags_alone(compiled: dict[str, str]) -> None:
    assert "build/kernels/a.cpp.AVX2.cpp" not in compiled
    assert "-mavx2" in compiled["build/torchfork/unity1.cpp"]
    assert "-DODD" in compiled["torch/csrc/jit/passes/odd.cpp"]
    assert "-DODD" not in compiled["build/torchfork/unity2.cpp"]
    assert "torch/csrc/jit/passes/x.cpp" not in compiled and "aten/two.cpp" in compiled


def test_a_group_is_linked_where_its_first_member_was(order: list[str]) -> None:
    assert order == ["unity1", "one", "two", "unity2", "odd", "VariableType"]


def test_levels_come_last_and_reach_the_groups(compiled: dict[str, str]) -> None:
    def level(name: str) -> str:
        return [word for word in compiled[name].split() if word.startswith("-O")][-1]

    assert level("torch/csrc/autograd/generated/VariableType.cpp") == "-O1"
    assert level("build/torchfork/unity2.cpp") == "-Og"
    assert level("build/torchfork/unity1.cpp") == "-O3"
