"""What differs between releases is read off the base's files, whatever its version says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.errors import BaseRefusedError
from torchfork.upstream import abi
from torchfork.upstream.base import Base
from torchfork.util import process

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="makes shared libraries")

NEW = {
    "torch/share/cmake/Torch/TorchConfig.cmake": 'set(X "-D_GLIBCXX_USE_CXX11_ABI=1")\n',
    "torch/utils/cpp_extension.py": "flags = ['-std=c++20']\n",
    "torch/include/ATen/FunctionalTensorWrapper.h": (
        "std::vector<std::shared_ptr<functionalization::ViewMeta>> v;\n"
    ),
    "torch/include/torch/csrc/utils/disable_torch_function.h": (
        "bool consume_should_skip_torch_function();\n"
    ),
}
OLD = {
    "torch/share/cmake/Torch/TorchConfig.cmake": 'set(X "-D_GLIBCXX_USE_CXX11_ABI=0")\n',
    "torch/utils/cpp_extension.py": "flags = ['-std=c++17']\n",
    "torch/include/ATen/FunctionalTensorWrapper.h": "std::vector<ViewMeta> v;\n",
    "torch/include/torch/csrc/utils/disable_torch_function.h": "\n",
}
KEY = "__pybind11_internals_v4_gcc_libstdcpp_cxxabi1011__"


def library(path: Path, *flags: str | Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(f'const char* text = "{text}";\n')
    process.run(["gcc", "-shared", "-fPIC", source, "-o", path, *flags])
    source.unlink()
    return path


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small libraries in the places where traits are read."""
    lib = tmp_path_factory.mktemp("libraries") / "torch" / "lib"
    omp = library(lib / "libgomp-a34b3233.so.1", "-Wl,-soname,libgomp-a34b3233.so.1")
    cpu = library(lib / "libtorch_cpu.so", "-Wl,--no-as-needed", omp, "-Wl,-soname,libtorch_cpu.so")
    library(
        lib / "libtorch.so", "-Wl,--no-as-needed", cpu, "-Wl,-soname,libtorch.so",
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN",
    )  # fmt: skip
    library(lib / "libtorch_python.so", text=KEY)
    library(
        lib.parent / "_C.cpython-311-x86_64-linux-gnu.so",
        "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib",
    )
    return lib.parent


def base(tmp_path: Path, libraries: Path, texts: dict[str, str]) -> Base:
    made = sample.base(tmp_path)
    shutil.copytree(libraries, made.torch)
    for name, text in texts.items():
        (made.root / name).parent.mkdir(parents=True, exist_ok=True)
        (made.root / name).write_text(text)
    return made


def test_a_new_release_is_recognised_by_its_files(tmp_path: Path, libraries: Path) -> None:
    found = abi.detect(base(tmp_path, libraries, NEW))
    assert (found.cxx_standard, found.cxx11_abi) == ("c++20", True)
    assert found.shared_view_meta and found.skip_next
    assert found.openmp == "libgomp-a34b3233.so.1"
    assert found.pybind11_abi == "_cxxabi1011"


def test_an_old_release_is_recognised_by_its_files(tmp_path: Path, libraries: Path) -> None:
    found = abi.detect(base(tmp_path, libraries, OLD))
    assert (found.cxx_standard, found.cxx11_abi) == ("c++17", False)
    assert not found.shared_view_meta and not found.skip_next
    assert found.definitions["_GLIBCXX_USE_CXX11_ABI"] == "0"
    assert found.definitions["TORCHFORK_SKIP_NEXT"] == "0"


def test_the_two_kinds_of_search_path_are_kept_apart(tmp_path: Path, libraries: Path) -> None:
    """A library that is linked with the other kind does not find what a CUDA wheel needs."""
    found = abi.detect(base(tmp_path, libraries, NEW))
    assert (found.libtorch.rpath, found.libtorch.runpath) == ("", "$ORIGIN")
    assert (found.extension.rpath, found.extension.runpath) == ("$ORIGIN/lib", "")
    assert found.extension.search_path == "$ORIGIN/lib"
    assert found.libtorch.soname == "libtorch.so"
    assert "libtorch_cpu.so" in found.libtorch.needed


@pytest.mark.parametrize("missing", sorted(NEW))
def test_a_base_that_lacks_a_file_is_refused_by_its_name(
    tmp_path: Path, libraries: Path, missing: str
) -> None:
    made = base(tmp_path, libraries, NEW)
    (made.root / missing).unlink()
    with pytest.raises(BaseRefusedError, match="lacks a file") as caught:
        abi.detect(made)
    assert caught.value.where == str(made.root / missing)
