"""Compilation by ninja: the build file of a graft, its run, and how far that is."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from ninja import BIN_DIR, ninja_syntax

from ..additions.load import Additions
from ..upstream.abi import BaseAbi
from ..upstream.base import Base
from ..util import files, process
from . import diagnostics
from .compile_steps import ADDITIONS_COPY, REDUCED_INCLUDE, UNITED, CompileStep
from .toolchain import Cuda, Toolchain

# Steps done, steps in all, and what is compiled.
Progress = Callable[[int, int, str], None]
_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")

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
    cxx = [*host, *shared, "-I../support"]
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
    writer.pool(UNITED, max(1, toolchain.jobs // 2))
    # Only these change where the same directory is used for another Python.
    python = f"-isystem{base.interpreter.include}"
    for step in steps:
        flags = " ".join(map(_quote, [*step.flags, python] if step.python else step.flags))
        pool = UNITED if step.object.startswith(f"{UNITED}/") else None
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
        f"{launcher}{program} -MF $out.d $flags ${name}flags -c $in -o $out",
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
        str(base.include): "./torch/include",
        "../overlay": ".",
        "../private": "torch/include",
        REDUCED_INCLUDE: "torch/include",
        "../include": "aten/src",
        "../": "",
    }
    # of several that match, GCC takes the last
    return [f"-ffile-prefix-map={old}={new}" for old, new in reversed(maps.items())]


def read_step(line: str) -> tuple[int, int, str] | None:
    """Of a line that ninja prints: steps done, steps in all, and what this one does."""
    found = _STEP.match(line)
    return (int(found[1]), int(found[2]), found[3]) if found else None


def compile_all(
    build_file: str, build: Path, toolchain: Toolchain, additions: Additions, progress: Progress
) -> int:
    """Run ninja; the number of objects that were compiled.

    What can be compiled is, beside what cannot. Raises CompileError with the first error of each
    file, OutputError where the disk is full.
    """
    build.mkdir(parents=True, exist_ok=True)
    files.write_if_changed(build / "build.ninja", build_file)
    command = [str(Path(BIN_DIR, "ninja")), "-C", str(build), f"-j{toolchain.jobs}", "-k0"]
    environment = process.clean_environment({"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"})
    compiled, lines = 0, []

    def see(line: str) -> None:
        nonlocal compiled
        lines.append(line)
        if step := read_step(line):
            compiled, total, name = step
            progress(compiled, total, Path(name).name)

    status = process.stream(command, see, env=environment)
    log, output = build / "compile.log", "".join(lines)
    log.write_text(output, encoding="utf-8")
    if status:
        locate = diagnostics.in_additions(additions)
        error = diagnostics.failure(output, log, toolchain.jobs, locate)
        for part in (error, *error.also):
            part.why = part.why.replace(ADDITIONS_COPY, str(additions.source_root))
        raise error
    return compiled
