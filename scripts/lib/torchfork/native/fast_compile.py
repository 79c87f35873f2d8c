"""The compilation of a check (tier d): all files and checks, nothing that only a wheel needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import ToolkitMismatchError, ToolMissingError
from ..upstream.base import Base
from ..util import files
from . import toolchain
from .compile_steps import CompileStep
from .toolchain import Toolchain

# Objects that nobody runs: names and types are checked, nothing is optimised.
_FLAGS = {"-O3": "-O0", "-O2": "-O0"}
_VECTORS = "prelude/vectors.h"
_UNDEFINED = "#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS\n#undef TORCH_ASSERT_NO_OPERATORS\n"
# What generated files define under one name, each for itself: structured kernels, helpers of
# registrations, bindings, and the objects that the tooling's own text adds.
_OWN = re.compile(
    r"^(?:struct (structured_\w+)|static PyObject ?\* ?(THPVariable_\w+)\("
    r"|\S.* (create_out|resize_out|check_inplace|maybe_create_proxy)\("
    r"|static .*\b(torchfork_initializer|torchfork_methods|torchfork_table)\b)",
    re.MULTILINE,
)


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
        if step.object.startswith("support/"):
            flags += ("-w",)  # as generated files, which they may be compiled with
        checked.append(replace(step, flags=flags))
    return checked


def unite(steps: Sequence[CompileStep], build: Path) -> list[CompileStep]:
    """The steps with those in one file that parse the same headers: most of their compilation.

    These are generated files, which include what the generator says, after the support files and
    the bindings to Python last; and kernels for vectors, whose own includes are tested by their
    DEFAULT objects. What else a person wrote is compiled alone and must find its own includes: a
    header that upstream no longer includes from another one is what breaks kernels most often.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[CompileStep]] = {}
    for step in steps:
        if kind := _united_as(step):
            groups.setdefault((kind, step.flags), []).append(step)
    united = {key: members for key, members in groups.items() if len(members) > 1}
    alone = [step for step in steps if step not in {s for m in united.values() for s in m}]
    made: list[CompileStep] = []
    for (kind, _), members in united.items():
        name = f"united/{kind}{len(made)}.cpp"
        members.sort(key=lambda step: (step.python, not step.object.startswith("support/")))
        texts = [_member(step, number, build) for number, step in enumerate(members)]
        files.write_if_changed(build / name, "".join(texts))
        made.append(replace(members[0], source=name, object=f"{name}.o"))
    return [*alone, *made]


def _united_as(step: CompileStep) -> str:
    """What kind of file a step may be united with; '' for none."""
    if step.rule != "cxx":
        return ""
    if step.ours:
        return "vectors" if any(flag.startswith("-mavx") for flag in step.flags) else ""
    if not step.object.startswith(("generated/", "support/")) or "portability" in step.object:
        return ""
    return "generated"


def _member(step: CompileStep, number: int, build: Path) -> str:
    """One file's text in a united one."""
    if not step.object.startswith("generated/"):
        return f'#include "../{step.source}"\n{_UNDEFINED}'
    text = _renamed((build / step.source).read_text(encoding="utf-8"), number)
    return f'#line 1 "{step.source}"\n{text}\n{_UNDEFINED}'


def _renamed(text: str, number: int) -> str:
    """A generated text in which what it defines for itself has a name of its own."""
    names = {name for found in _OWN.findall(text) for name in found if name}
    if not names:
        return text
    # Not those with a namespace before them: a structured kernel's class may have the name of ours.
    return re.sub(rf"(?<![:\w])({'|'.join(sorted(names))})\b", rf"\1_{number}", text)


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
