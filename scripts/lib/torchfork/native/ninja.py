"""The ninja file that compiles a graft."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence
from pathlib import Path

from ninja import ninja_syntax

from ..upstream.abi import BaseAbi
from ..upstream.base import Base
from . import unity
from .compile_steps import CompileStep
from .toolchain import Cuda, Toolchain

OVERLAY_INCLUDE = "../overlay/torch/include"
API_INCLUDE = "torch/csrc/api/include"
STAND_INS = "../support/stand_ins"

HOST_FLAGS = ("-fPIC", "-fopenmp", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
              "-fno-math-errno", "-fno-trapping-math", "-fno-semantic-interposition")  # fmt: skip
# As upstream compiles its own kernels.
NVCC_FLAGS = ("--expt-relaxed-constexpr", "--expt-extended-lambda", "-w",
              "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
              "-D__CUDA_NO_HALF2_OPERATORS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__")  # fmt: skip


def ninja_file(base: Base, abi: BaseAbi, toolchain: Toolchain, steps: Sequence[CompileStep]) -> str:
    """The text of the build file."""
    text = io.StringIO()
    # ninja's stub file takes the stream for a str.
    writer = ninja_syntax.Writer(text, width=1_000_000)  # type: ignore[arg-type]
    writer.variable("ninja_required_version", "1.8")
    shared = [*common_flags(base, abi, toolchain), *include_flags(base)]
    host = [*HOST_FLAGS, *_prefix_maps(base)]
    cxx = [*host, *shared, f"-isystem{base.interpreter.include}", "-I../support"]
    if toolchain.cuda:
        cxx += _cuda_include(toolchain.cuda)  # for the generated CUDA registrations
    _rule(writer, toolchain, "cxx", f"{' '.join([toolchain.cxx, *toolchain.tuning])} -MMD", cxx)
    if toolchain.cuda:
        nvcc = [
            *shared, *_cuda_include(toolchain.cuda), *toolchain.cuda.gencode,
            "-Xcompiler", ",".join(host), *NVCC_FLAGS,
        ]  # fmt: skip
        program = f"{_quote(str(toolchain.cuda.nvcc))} -ccbin {toolchain.cxx} -MD"
        _rule(writer, toolchain, "nvcc", program, nvcc)
    # Compilers of united files take the most memory; beside them something else is always left.
    writer.pool(unity.FOLDER, max(1, toolchain.jobs // 2))
    for step in steps:
        flags = " ".join(map(_quote, step.flags))
        pool = unity.FOLDER if step.object.startswith(f"{unity.FOLDER}/") else None
        writer.build(
            [_dollars(step.object)], step.rule, [_dollars(step.source)],
            variables={"flags": flags}, pool=pool,
        )  # fmt: skip
    writer.build(["objects"], "phony", [_dollars(step.object) for step in steps])
    writer.default(["objects"])
    return text.getvalue()


def _rule(
    writer: ninja_syntax.Writer, toolchain: Toolchain, name: str, program: str, flags: list[str]
) -> None:
    launcher = f"{toolchain.launcher} " if toolchain.launcher else ""
    writer.variable(f"{name}flags", " ".join(map(_quote, flags)))
    writer.rule(
        name,
        f"{launcher}{program} -MF $out.d ${name}flags $flags -c $in -o $out",
        description="$out",
        depfile="$out.d",
        deps="gcc",
    )


def _quote(text: str) -> str:
    """A word of a shell command inside a ninja file."""
    return _dollars(shlex.quote(text))


def _dollars(text: str) -> str:
    """A text in which ninja sees no variable; spaces and colons are the writer's to escape."""
    return text.replace("$", "$$")


def include_flags(base: Base) -> list[str]:
    """Our headers before the base's; the base's as system headers, whose warnings are not ours.

    Stand-ins for headers that a base includes and may not have come last.
    """
    ours = ["../include", OVERLAY_INCLUDE, "../private", f"{OVERLAY_INCLUDE}/{API_INCLUDE}"]
    system = [base.include, base.include / API_INCLUDE, Path(STAND_INS)]
    return [f"-I{f}" for f in ours] + [part for f in system for part in ("-isystem", str(f))]


def _cuda_include(cuda: Cuda) -> list[str]:
    return [part for folder in cuda.include for part in ("-isystem", str(folder))]


def common_flags(base: Base, abi: BaseAbi, toolchain: Toolchain) -> list[str]:
    """Flags that every object shares: the base's ABI and upstream's own code generation flags."""
    defined = {"AT_PER_OPERATOR_HEADERS": "", "NDEBUG": "", "FMT_HEADER_ONLY": "1"}
    defined |= dict.fromkeys(toolchain.capabilities.definitions, "")
    if toolchain.cuda:
        defined["USE_CUDA"] = ""
    defined |= abi.definitions
    flags = [f"-D{key}={value}" if value else f"-D{key}" for key, value in defined.items()]
    return [f"-std={abi.cxx_standard}", *flags]


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
