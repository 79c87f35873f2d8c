"""The text of the ninja file that compiles a graft."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ..upstream.abi import BaseAbi
from ..upstream.base import Base
from .toolchain import Toolchain
from .units import CompileStep

OVERLAY_INCLUDE = "../overlay/torch/include"
API_INCLUDE = "torch/csrc/api/include"
STAND_INS = "../support/stand_ins"


def _quote(text: str) -> str:
    """A word of a shell command inside a ninja file."""
    return shlex.quote(text).replace("$", "$$")


def _path(path: Path | str) -> str:
    """A path in ninja's build lines."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def include_flags(base: Base) -> list[str]:
    """Our headers before the base's; the base's as system headers, whose warnings are not ours.

    Stand-ins for headers that a base includes and may not have come last.
    """
    ours = ["../include", OVERLAY_INCLUDE, "../private", f"{OVERLAY_INCLUDE}/{API_INCLUDE}"]
    system = [base.include, base.include / API_INCLUDE, STAND_INS]
    return [f"-I{f}" for f in ours] + [part for f in system for part in ("-isystem", str(f))]


def common_flags(base: Base, traits: BaseAbi, toolchain: Toolchain) -> list[str]:
    """Flags that every object shares: the base's ABI and upstream's own code generation flags."""
    defined = {"AT_PER_OPERATOR_HEADERS": "", "NDEBUG": "", "FMT_HEADER_ONLY": "1"}
    defined |= dict.fromkeys(toolchain.capabilities.definitions, "")
    if toolchain.cuda:
        defined["USE_CUDA"] = ""
    defined |= traits.definitions
    flags = [f"-D{key}={value}" if value else f"-D{key}" for key, value in defined.items()]
    return [f"-std={traits.cxx_standard}", *flags]


def _prefix_maps(base: Base) -> list[str]:
    """Paths as an in-tree build would see them: no trace of this machine in the objects."""
    maps = {
        str(base.root): ".",
        "../overlay": ".",
        "../private": "torch/include",
        "../include": "aten/src",
        "../": "",
    }
    # of several that match, GCC takes the last
    return [f"-ffile-prefix-map={old}={new}" for old, new in reversed(maps.items())]


HOST_FLAGS = ("-fPIC", "-fopenmp", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
              "-fno-math-errno", "-fno-trapping-math", "-fno-semantic-interposition")  # fmt: skip


def ninja_text(
    base: Base,
    traits: BaseAbi,
    toolchain: Toolchain,
    units: Sequence[CompileStep],
) -> str:
    """The build file."""
    shared = [*common_flags(base, traits, toolchain), *include_flags(base)]
    python = base.interpreter.include
    maps = _prefix_maps(base)
    cxx = [*HOST_FLAGS, *maps, *shared, f"-isystem{python}", "-I../support"]
    launcher = f"{toolchain.launcher} " if toolchain.launcher else ""
    cxx_command = " ".join([toolchain.cxx, *toolchain.tuning])
    lines = [
        "ninja_required_version = 1.8",
        "cxxflags = " + " ".join(map(_quote, cxx)),
        "rule cxx",
        f"  command = {launcher}{cxx_command} -MMD -MF $out.d $cxxflags $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $out",
    ]
    if toolchain.cuda:
        host = ",".join([*HOST_FLAGS, *maps])
        cuda_include = [p for f in toolchain.cuda.include for p in ("-isystem", str(f))]
        nvcc = [
            *shared, *cuda_include, *toolchain.cuda.gencode, "-Xcompiler", host,
            "--expt-relaxed-constexpr", "--expt-extended-lambda", "-w",
            "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
            "-D__CUDA_NO_HALF2_OPERATORS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
        ]  # fmt: skip
        lines += [
            "nvccflags = " + " ".join(map(_quote, nvcc)),
            "rule nvcc",
            f"  command = {launcher}{_quote(str(toolchain.cuda.nvcc))} -ccbin {toolchain.cxx} "
            "-MD -MF $out.d $nvccflags $flags -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "  description = $out",
        ]
        lines[1] += " " + " ".join(map(_quote, cuda_include))  # the generated CUDA registrations
    for unit in units:
        lines.append(f"build {_path(unit.object)}: {unit.rule} {_path(unit.source)}")
        lines.append("  flags = " + " ".join(map(_quote, unit.flags)))
    lines.append("build objects: phony " + " ".join(_path(unit.object) for unit in units))
    return "\n".join([*lines, "default objects", ""])
