"""The compilation of a check (tier d): all files and checks, nothing that only a wheel needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import ToolkitMismatchError, ToolMissingError
from ..upstream.base import Base
from ..util import files
from . import toolchain, unity
from .compile_steps import CompileStep
from .toolchain import Toolchain

# Objects that nobody runs: names and types are checked, nothing is optimised.
_FLAGS = {"-O3": "-O0", "-O2": "-O0"}
_VECTORS = "prelude/vectors.h"


def tools(base: Base, env: Mapping[str, str], jobs: int, *, final: bool) -> Toolchain:
    """The host's compilers, `jobs` at once unless the user says MAX_JOBS.

    A toolkit that a wheel could not be built with leaves CUDA out of a check, and the note says so;
    where it fits, a check compiles for one architecture.
    """
    try:
        found = toolchain.find(base, env)
    except (ToolkitMismatchError, ToolMissingError) as error:
        if final or base.cuda is None:
            raise
        found = replace(toolchain.find(base, {**env, "USE_CUDA": "0"}), cuda_note=error.what)
    if final:
        return found
    if found.cuda is not None:
        found = replace(found, cuda=replace(found.cuda, gencode=found.cuda.gencode[:1]))
    return found if env.get("MAX_JOBS") else replace(found, jobs=jobs)


def check_steps(base: Base, steps: Sequence[CompileStep], build: Path) -> list[CompileStep]:
    """The objects with the flags of a check."""
    vectors = write_vectors(base, build)
    checked = []
    for step in steps:
        flags = tuple(_FLAGS.get(flag, flag) for flag in step.flags)
        if vectors and any(flag.startswith("-mavx") for flag in flags):
            flags += ("-include", vectors)
        checked.append(replace(step, flags=flags))
    return checked


def unite(steps: Sequence[CompileStep], build: Path) -> list[CompileStep]:
    """The steps with all generated files in one, and the kernels for vectors in one a capability.

    The kernels' own includes are tested by their DEFAULT objects. What else a person wrote is
    compiled alone and must find its own includes: a header that upstream no longer includes from
    another one is what breaks kernels most often.
    """
    return unity.unite(steps, build, _united_as)


def _united_as(step: CompileStep) -> str:
    if step.ours and step.rule == "cxx":
        return "vectors" if any(flag.startswith("-mavx") for flag in step.flags) else ""
    return "generated" if unity.generated(step) else ""


def write_vectors(base: Base, build: Path) -> str:
    """A header that declares the vector functions which the base's sleef.h lacks; '' for none.

    A wheel carries the sleef.h of its own processor: in one for ARM the functions for AVX are
    missing, which ATen's vector headers, the same in every wheel, call. Nothing is linked here, so
    a declaration that takes any vector is enough to have the kernels compiled.
    """
    known = _words(base.include / "sleef.h")
    folder = base.include / "ATen" / "cpu" / "vec"
    called = {word for path in files.tree_files(folder) for word in _words(path)}
    missing = sorted(name for name in called - known if re.search(r"[fd](4|8|16)(_u\d+)?$", name))
    if not missing:
        return ""
    pair = "template <class T> struct TorchforkVectorPair { T x, y; };"
    lines = [f"template <class T, class... Rest> {_returned(n)} {n}(T, Rest...);" for n in missing]
    files.write_if_changed(build / _VECTORS, "\n".join(["#pragma once", pair, *lines, ""]))
    return _VECTORS


def _returned(name: str) -> str:
    """Sine and cosine come together; everything else gives a vector like its first argument."""
    return "TorchforkVectorPair<T>" if name.startswith("Sleef_sincos") else "T"


def _words(path: Path) -> set[str]:
    return set(re.findall(r"\bSleef_\w+", path.read_text("utf-8"))) if path.is_file() else set()
