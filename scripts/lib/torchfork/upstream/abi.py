"""What differs between releases, read off the base at hand; the one place that knows of it.

Each trait is detected from a file of the base, not from its version number, so that a nightly or a
patched build is handled as what it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from .base import Base, read_text, search


@dataclass(frozen=True)
class Elf:
    """What a shared library says of itself in its dynamic section."""

    needed: tuple[str, ...]
    soname: str
    rpath: str  # DT_RPATH, which also serves the libraries that this one loads
    runpath: str  # DT_RUNPATH, which serves this one only

    @property
    def search_path(self) -> str:
        """Where the loader looks, whichever of the two forms is used."""
        return self.rpath or self.runpath


def read_elf(path: Path) -> Elf:
    """Read a shared library's dynamic section; nothing of one that is no ELF file."""
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return Elf((), "", "", "")
        section = ELFFile(stream).get_section_by_name(".dynamic")
        if not isinstance(section, DynamicSection):
            return Elf((), "", "", "")
        tags = list(section.iter_tags())
        return Elf(
            needed=tuple(t.needed for t in tags if t.entry.d_tag == "DT_NEEDED"),
            soname=next((t.soname for t in tags if t.entry.d_tag == "DT_SONAME"), ""),
            rpath=next((t.rpath for t in tags if t.entry.d_tag == "DT_RPATH"), ""),
            runpath=next((t.runpath for t in tags if t.entry.d_tag == "DT_RUNPATH"), ""),
        )


@dataclass(frozen=True)
class BaseAbi:
    """How code for this base must be compiled and linked."""

    cxx_standard: str  # 'c++17' up to 2.8 or so, 'c++20' later
    cxx11_abi: bool  # false in PyPI's CUDA wheels up to 2.6
    openmp: (
        str  # the OpenMP runtime that libtorch_cpu loads: 'libgomp.so.1', 'libgomp-a34b3233.so.1'
    )
    pybind11_abi: str  # the build ABI in pybind11's internals key; '' where pybind11 has none
    shared_view_meta: bool  # a functional view's description is a shared_ptr (2.9 on)
    skip_next: bool  # has_torch_function asks for a "skip once" flag (2.12 on)
    libtorch: Elf
    extension: Elf

    @property
    def definitions(self) -> dict[str, str]:
        """Preprocessor definitions that the traits ask for."""
        defined = {
            "_GLIBCXX_USE_CXX11_ABI": str(int(self.cxx11_abi)),
            "TORCHFORK_SHARED_VIEW_META": str(int(self.shared_view_meta)),
            "TORCHFORK_SKIP_NEXT": str(int(self.skip_next)),
        }
        if self.pybind11_abi:
            defined["PYBIND11_BUILD_ABI"] = f'"{self.pybind11_abi}"'
        return defined


def _first(pattern: str, text: str, fallback: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else fallback


def _pybind11_abi(library: Path) -> str:
    """The ABI part of the key under which pybind11 shares its types between modules."""
    pattern = rb"__pybind11_internals_v\d+_gcc_libstdcpp(_cxxabi\d+)__"
    return search(library, pattern).decode()


def detect(base: Base) -> BaseAbi:
    """Read the traits of a base. Raises BaseRefusedError where a file it needs is missing."""
    cmake = read_text(base.torch / "share" / "cmake" / "Torch" / "TorchConfig.cmake")
    extension_builder = read_text(base.torch / "utils" / "cpp_extension.py")
    functional = read_text(base.include / "ATen" / "FunctionalTensorWrapper.h")
    overrides = read_text(base.include / "torch" / "csrc" / "utils" / "disable_torch_function.h")
    needed_by_cpu = read_elf(base.library("torch_cpu")).needed
    openmp = [name for name in needed_by_cpu if re.match(r"lib(g|i)?omp", name)]
    return BaseAbi(
        cxx_standard=_first(r"-std=(c\+\+\d+)", extension_builder, "c++20"),
        cxx11_abi=_first(r"_GLIBCXX_USE_CXX11_ABI=(\d)", cmake, "1") == "1",
        openmp=openmp[0] if openmp else "",
        pybind11_abi=_pybind11_abi(base.library("torch_python")),
        shared_view_meta="std::shared_ptr<functionalization::ViewMeta>" in functional,
        skip_next="consume_should_skip_torch_function" in overrides,
        libtorch=read_elf(base.library("torch")),
        extension=read_elf(base.root / base.extension),
    )
