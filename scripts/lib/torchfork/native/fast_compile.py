"""The compilation of tier (d): all files and checks, nothing that only a finished wheel needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..codegen.build_dir import BuildDir
from ..errors import ToolkitMismatchError, ToolMissingError
from ..upstream.base import Base
from ..util import files
from . import ninja, symbols, toolchain
from .including import Headers
from .symbols import Symbols
from .toolchain import Toolchain
from .units import CompileStep

# Objects that nobody runs: names and types are checked, nothing is optimised.
_FLAGS = {"-O3": "-O0", "-O2": "-O0"}
# What is compiled as one, in the order in which it is tried.
UNITED = ("all that may be", "what the generator made", "nothing")
_VECTORS = "prelude/vectors.h"
_UNDEFINED = "#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS\n#undef TORCH_ASSERT_NO_OPERATORS\n"
# What generated files define under one name, each for itself: structured kernels, helpers of
# registrations, bindings, and the objects that the tool's own text adds.
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


def lighten(
    base: Base, all_units: Sequence[CompileStep], layout: BuildDir, united: str
) -> list[CompileStep]:
    """The objects with the flags of a check.

    united: one of UNITED; several files as one, where that can only fail, never pass what fails
        alone.
    """
    objects = units(all_units, write_vectors(base, layout.build))
    if united == UNITED[2]:
        return objects
    if united == UNITED[1]:
        return unite(objects, layout.build)
    overlay = layout.overlay / "torch" / "include"
    folders = [layout.additions_include, overlay, layout.private, base.include]
    api = [folder / ninja.API_INCLUDE for folder in (overlay, base.include)]
    return unite(objects, layout.build, Headers([*folders, *api], layout.additions_include))


def units(all_units: Sequence[CompileStep], vectors: str = "") -> list[CompileStep]:
    """The objects with the flags of a check.

    vectors: a header for the vector kernels, as write_vectors has it.
    """
    checked = []
    for unit in all_units:
        flags = tuple(_FLAGS.get(flag, flag) for flag in unit.flags)
        if unit.object.startswith("support/"):
            flags += ("-w",)  # as generated files, which they may be compiled with
        if vectors and any(flag.startswith("-mavx") for flag in flags):
            flags += ("-include", vectors)
        checked.append(replace(unit, flags=flags))
    return checked


def unite(
    all_units: Sequence[CompileStep], build: Path, headers: Headers | None = None
) -> list[CompileStep]:
    """The units with those in one that parse the same headers, which is most of their compilation.

    These are generated files, which include what the generator says, after the support files, the
    bindings to Python last; and kernels for vectors, whose own includes are tried by their DEFAULT
    objects. What else a person wrote must find its own includes, for a header that upstream no
    longer includes from another one is what breaks kernels most often: it stands first, or after
    what cannot lend it a name. Without `headers` it stays alone.
    """
    build.mkdir(parents=True, exist_ok=True)  # sources are named from it, some with '..'
    groups: dict[tuple[str, tuple[str, ...]], list[CompileStep]] = {}
    for unit in all_units:
        if kind := _united_as(unit):
            groups.setdefault((kind, unit.flags), []).append(unit)
    found = [(kind, members) for (kind, _), members in groups.items()]
    if headers:
        found += [("own", members) for members in _companies(all_units, build, headers)]
    gone: set[CompileStep] = set()
    made: list[CompileStep] = []
    for kind, members in found:
        if len(members) > 1:
            name = f"united/{kind}{len(made)}.cpp"
            members.sort(key=lambda u: (u.python, not u.object.startswith("support/")))
            texts = [_member(unit, number, build) for number, unit in enumerate(members)]
            files.write_if_changed(build / name, "".join(texts))
            made.append(replace(members[0], source=name, object=f"{name}.o"))
            gone.update(members)
    return [*(unit for unit in all_units if unit not in gone), *made]


def _companies(
    all_units: Sequence[CompileStep], build: Path, headers: Headers
) -> list[list[CompileStep]]:
    """The additions' own files, each put after others that cannot lend it a name."""
    own = [unit for unit in all_units if unit.rule == "cxx" and unit.ours and not _united_as(unit)]
    sources = {unit: headers.source(build / unit.source) for unit in own}
    companies: list[list[CompileStep]] = []
    for unit in sorted(own, key=lambda unit: (len(sources[unit].reaches), unit.object)):
        for members in companies:
            before = [sources[member] for member in members]
            if unit.flags == members[0].flags and sources[unit].may_follow(before):
                members.append(unit)
                break
        else:
            companies.append([unit])
    return companies


def _united_as(unit: CompileStep) -> str:
    """What kind of unit may be compiled with others of its kind; '' for none."""
    if unit.rule != "cxx":
        return ""
    if unit.ours:
        return "vectors" if any(flag.startswith("-mavx") for flag in unit.flags) else ""
    if not unit.object.startswith(("generated/", "support/")) or "portability" in unit.object:
        return ""
    return "generated"


def _member(unit: CompileStep, number: int, build: Path) -> str:
    """One file's text in a united one."""
    if not unit.object.startswith("generated/"):
        return f'#include "../{unit.source}"\n{_UNDEFINED}'
    text = _renamed((build / unit.source).read_text(encoding="utf-8"), number)
    return f'#line 1 "{unit.source}"\n{text}\n{_UNDEFINED}'


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


def needed_signatures(objects: Iterable[Symbols]) -> list[str]:
    """What the objects need of upstream's libraries, as signatures."""
    everything = list(objects)
    defined = {name for found in everything for name in found.defined}
    needed = {name for found in everything for name in found.undefined} - defined
    texts = (symbols.normal_signature(text) for text in symbols.demangle(needed).values())
    return sorted(text for text in texts if text.startswith(("at::", "torch::", "c10::")))
