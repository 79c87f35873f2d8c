"""What a base's code must be compiled and linked with is read off its files, not its version."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay

from torchfork.errors import BaseRefusedError
from torchfork.upstream import abi, binaries
from torchfork.upstream.abi import AVX, DEFAULT_ONLY, Capabilities, find_capabilities
from torchfork.upstream.base import Base
from torchfork.util import process

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="makes shared libraries")

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
    lay(made.root, texts)
    return made


@needs_gcc
def test_a_release_is_recognised_by_its_files(tmp_path: Path, libraries: Path) -> None:
    new = abi.detect(base(tmp_path / "new", libraries, NEW))
    assert (new.cxx_standard, new.cxx11_abi) == ("c++20", True)
    assert new.shared_view_meta and new.skip_next
    assert new.openmp == "libgomp-a34b3233.so.1"
    assert new.pybind11_abi == "_cxxabi1011"
    # A library that is linked with the other kind of search path lacks what a CUDA wheel needs.
    assert (new.libtorch.rpath, new.libtorch.runpath) == ("", "$ORIGIN")
    assert (new.extension.rpath, new.extension.runpath) == ("$ORIGIN/lib", "")
    assert new.extension.search_path == "$ORIGIN/lib"
    assert "libtorch_cpu.so" in new.libtorch.needed
    old = abi.detect(base(tmp_path / "old", libraries, OLD))
    assert (old.cxx_standard, old.cxx11_abi) == ("c++17", False)
    assert not old.shared_view_meta and not old.skip_next
    assert old.definitions["_GLIBCXX_USE_CXX11_ABI"] == "0"
    assert old.definitions["TORCHFORK_SKIP_NEXT"] == "0"


@needs_gcc
@pytest.mark.parametrize("missing", sorted(NEW))
def test_a_base_that_lacks_a_file_is_refused(tmp_path: Path, libraries: Path, missing: str) -> None:
    made = base(tmp_path, libraries, NEW)
    (made.root / missing).unlink()
    with pytest.raises(BaseRefusedError, match="lacks a file") as caught:
        abi.detect(made)
    assert caught.value.where == str(made.root / missing)


# What native/cpu is compiled for

OLD_ARM = """#if defined(HAVE_SVE256_CPU_DEFINITION) && defined(HAVE_ARM_BF16_CPU_DEFINITION)
  static TORCH_API FnPtr DEFAULT;
  static TORCH_API FnPtr AVX2;
  static TORCH_API FnPtr SVE256;
"""
NEW_ARM = """#ifdef HAVE_SVE_CPU_DEFINITION
  static TORCH_API FnPtr DEFAULT;
  static TORCH_API FnPtr SVE128;
  static TORCH_API FnPtr SVE256;
"""
CHOOSER = b"_ZN2at6native16DispatchStubImpl12get_call_ptrEN3c1010DeviceTypeEPv"


def a_base(tmp_path: Path, header: str, functions: int) -> Base:
    """A base whose dispatcher chooses among so many functions."""
    base = sample.base(tmp_path / "base", version="9.1.0+cpu")
    lay(base.include, {"ATen/native/DispatchStub.h": header})
    other = CHOOSER.replace(b"12get_call_ptr", b"16try_get_call_ptr") + b"S4_" * 7
    mine = CHOOSER + b"S4_" * (functions - 1)
    data = b"\0".join([b"\x7fELF", other, mine, b"end"])
    lay(base.torch_cpu.parent, {base.torch_cpu.name: data})
    return base


def test_other_processors_have_what_they_have_whatever_the_base_says(tmp_path: Path) -> None:
    """Its wheels need not be there: a check compiles with other machines' headers, too."""
    for machine in ("x86_64", "AMD64"):
        assert find_capabilities(sample.base(tmp_path / machine, version="9.1.0"), machine) == AVX
    assert find_capabilities(a_base(tmp_path, NEW_ARM, 3), "riscv64") == DEFAULT_ONLY


@pytest.mark.parametrize(
    ("header", "functions", "found"),
    [
        (OLD_ARM, 2, Capabilities(
            ("DEFAULT", "SVE256"), ("HAVE_ARM_BF16_CPU_DEFINITION", "HAVE_SVE256_CPU_DEFINITION")
        )),
        (NEW_ARM, 3,
         Capabilities(("DEFAULT", "SVE128", "SVE256"), ("HAVE_SVE_CPU_DEFINITION",))),
        (NEW_ARM, 1, DEFAULT_ONLY),  # built without SVE, as macOS's
    ],
)  # fmt: skip
def test_arm_has_what_the_base_was_built_with(
    tmp_path: Path, header: str, functions: int, found: Capabilities
) -> None:
    assert find_capabilities(a_base(tmp_path, header, functions), "aarch64") == found


@pytest.mark.parametrize(
    ("header", "functions"),
    [(NEW_ARM, 2), (NEW_ARM + "  static TORCH_API FnPtr SVE512;\n", 4)],
    ids=["header and library differ", "unknown"],
)
def test_other_capabilities_are_refused(tmp_path: Path, header: str, functions: int) -> None:
    with pytest.raises(BaseRefusedError) as refused:
        find_capabilities(a_base(tmp_path, header, functions), "aarch64")
    assert f"among {functions} versions" in str(refused.value)
    assert "DispatchStub.h" in str(refused.value.where)
    assert "abi.py" in str(refused.value.next)
    with pytest.raises(BaseRefusedError, match="lacks a file"):
        find_capabilities(sample.base(tmp_path / "none", version="9.1.0"), "aarch64")


def test_exported_names_are_read_from_a_macos_library(tmp_path: Path) -> None:
    names = [("__ZN2at3addEv", 0x0F), ("__ZN2at4hereEv", 0x1F), ("__ZN2at4lostEv", 0x01)]
    table, text = b"", b"\0"
    for name, kind in names:
        table += struct.pack("<IBBHQ", len(text), kind, 1, 0, 8)
        text += name.encode() + b"\0"
    start = 32 + 24
    command = struct.pack("<IIIIII", 2, 24, start, len(names), start + len(table), len(text))
    header = b"\xcf\xfa\xed\xfe" + struct.pack("<IIIIIII", 0, 0, 6, 1, len(command), 0, 0)
    library = tmp_path / "lib.dylib"
    library.write_bytes(header + command + table + text)
    assert binaries.is_macho(library)
    assert binaries.macho_exports(library) == {"_ZN2at3addEv"}
