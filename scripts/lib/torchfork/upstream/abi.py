"""What code for a base must be compiled and linked with, read off the base's own files.

Not from its version number, so that a nightly or a patched build is handled as what it is.

CPU capabilities: a DispatchStub passes one function for each of them, in an order that macros of
the build decide (ATen/native/DispatchStub.h); an object that was compiled with other macros calls a
function that libtorch does not have, or has another enumeration of capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BaseRefusedError
from .base import Base, read_text
from .binaries import Elf, read_elf, search

_PYBIND11_KEY = rb"__pybind11_internals_v\d+_gcc_libstdcpp(_cxxabi\d+)__"


@dataclass(frozen=True)
class BaseAbi:
    """How code for this base must be compiled and linked."""

    cxx_standard: str  # 'c++17' up to 2.8 or so, 'c++20' later
    cxx11_abi: bool  # false in PyPI's CUDA wheels up to 2.6
    openmp: str  # the runtime that libtorch_cpu loads: 'libgomp.so.1', 'libgomp-a34b3233.so.1'
    pybind11_abi: str  # the build ABI in the key under which pybind11 shares types; '' without
    shared_view_meta: bool  # a functional view's description is a shared_ptr (2.9 on)
    skip_next: bool  # has_torch_function asks for a "skip once" flag (2.12 on)
    libtorch: Elf
    extension: Elf

    @property
    def definitions(self) -> dict[str, str]:
        """Preprocessor definitions that say so."""
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


def detect(base: Base) -> BaseAbi:
    """Read them off a base. Raises BaseRefusedError where a file it needs is missing."""
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
        pybind11_abi=next(search(base.library("torch_python"), _PYBIND11_KEY), b"").decode(),
        shared_view_meta="std::shared_ptr<functionalization::ViewMeta>" in functional,
        skip_next="consume_should_skip_torch_function" in overrides,
        libtorch=read_elf(base.library("torch")),
        extension=read_elf(base.root / base.extension),
    )


# What upstream's cmake/Codegen.cmake compiles native/cpu with, one object a capability.
FLAGS: Mapping[str, tuple[str, ...]] = {
    "DEFAULT": (),
    "AVX2": ("-mavx2", "-mfma", "-mf16c", "-mno-avx256-split-unaligned-load",
             "-mno-avx256-split-unaligned-store"),
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
    "SVE128": ("-march=armv8-a+sve+bf16",),
    "SVE256": ("-march=armv8-a+sve+bf16", "-D__ARM_FEATURE_BF16", "-DCPU_CAPABILITY_SVE",
               "-msve-vector-bits=256"),
}  # fmt: skip
X86 = frozenset({"x86_64", "amd64"})
ARM = frozenset({"aarch64", "arm64"})
STUB_HEADER = "ATen/native/DispatchStub.h"
# at::native::DispatchStubImpl::get_call_ptr(c10::DeviceType, void*, …): S4_ repeats the void*
_CHOOSER = rb"_ZN2at6native16DispatchStubImpl12get_call_ptrEN3c1010DeviceTypeEPv((?:S4_)*)\0"


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of a build, and the macros that say so."""

    names: tuple[str, ...]  # "DEFAULT" first
    definitions: tuple[str, ...]  # 'HAVE_AVX2_CPU_DEFINITION'


DEFAULT_ONLY = Capabilities(("DEFAULT",), ())
AVX = Capabilities(
    ("DEFAULT", "AVX2", "AVX512"), ("HAVE_AVX2_CPU_DEFINITION", "HAVE_AVX512_CPU_DEFINITION")
)


def find_capabilities(base: Base, machine: str) -> Capabilities:
    """The capabilities of this base on a machine, as platform.machine() calls it.

    On Arm they differ between releases (SVE256 up to 2.10, SVE128 as well later, none in a build
    without SVE), so they are read from the base. Raises BaseRefusedError where its header and its
    library do not agree, or where it has a capability of which the flags are not known.
    """
    if machine.lower() in X86:
        return AVX
    if machine.lower() not in ARM:
        return DEFAULT_ONLY
    header = base.include / STUB_HEADER
    text = read_text(header)
    names = ("DEFAULT", *re.findall(r"static TORCH_API FnPtr (SVE\w*);", text))
    repeated = next(search(base.library("torch_cpu"), _CHOOSER), b"")
    passed = 1 + len(repeated) // len(b"S4_")
    if passed == 1:
        return DEFAULT_ONLY
    if passed != len(names) or not FLAGS.keys() >= set(names):
        raise BaseRefusedError(
            f"the kernels of native/cpu cannot be compiled for this torch: it chooses among "
            f"{passed} versions of each",
            where=str(header),
            why=f"its header names {', '.join(names)}; flags are known for {', '.join(FLAGS)}",
            next="add the capability's flags, as upstream's cmake/Codegen.cmake has them, to "
            "FLAGS in scripts/lib/torchfork/upstream/abi.py",
        )
    macros = sorted(set(re.findall(r"HAVE_(?:SVE|ARM)\w*_CPU_DEFINITION", text)))
    return Capabilities(names, tuple(macros))
