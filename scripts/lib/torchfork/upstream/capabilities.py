"""The CPU capabilities that native/cpu is compiled for: those that the base's dispatcher knows.

A DispatchStub passes one function for each capability, in an order that macros of the build decide
(ATen/native/DispatchStub.h); an object that was compiled with other macros calls a function that
libtorch does not have, or has another enumeration of capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BaseRefusedError
from .base import Base, read_text, search

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


def find(base: Base, machine: str) -> Capabilities:
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
    repeated = search(base.library("torch_cpu"), _CHOOSER)
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
            "FLAGS in scripts/lib/torchfork/upstream/capabilities.py",
        )
    macros = sorted(set(re.findall(r"HAVE_(?:SVE|ARM)\w*_CPU_DEFINITION", text)))
    return Capabilities(names, tuple(macros))
