"""The compilation of tier (d): all files and checks, nothing that only a finished wheel needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import files, toolchain
from ..bases.base import Base
from ..errors import ToolkitMismatchError, ToolMissingError
from ..stages import symbols
from ..stages.symbols import Symbols
from ..toolchain import Toolchain
from ..units import Generated, Layout, Unit

# Objects that nobody runs: names and types are checked, nothing is optimised.
_FLAGS = {"-O3": "-O0", "-O2": "-O0"}
_PRELUDE = "prelude/shared.h"
_VECTORS = "prelude/vectors.h"
# Headers that more than this part of the files include are worth it. Measured on 2.13.0: with those
# of half a file's neighbours 0.3 GB that save 2.5 s of 4 to 8 s a file and cost 9 s once; with all
# that two files share 0.6 GB, which take as long to read as they save.
_SHARED_BY = 1 / 4
_UNDEFINED = ("#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS", "#undef TORCH_ASSERT_NO_OPERATORS")
# What several generated files define, each for itself.
_ALONE = re.compile(
    r"^(?:\s*struct structured_|\w+ (?:resize_out|check_inplace|create_out)\()", re.MULTILINE
)
_BINDING = re.compile(r"^static PyObject ?\* ?THPVariable_", re.MULTILINE)
# Objects that the tool's own text adds to several files.
_RENAMED = ("torchfork_initializer", "torchfork_methods", "torchfork_table")
# What has ccache take precompiled headers, as its manual asks for.
_CCACHE = "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ccache"


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
    if found.launcher == "ccache":
        found = replace(found, launcher=_CCACHE)
    return found if env.get("MAX_JOBS") else replace(found, jobs=jobs)


def lighten(
    base: Base,
    all_units: Sequence[Unit],
    chosen: Sequence[Generated],
    layout: Layout,
    *,
    united: bool,
) -> tuple[list[Unit], list[str]]:
    """The objects with the flags of a check, and the headers to precompile for them.

    united: compile several files as one where that can only fail, never pass what fails alone.
    """
    prelude = write_prelude(layout.sources, layout.build, [item.name for item in chosen])
    objects = units(all_units, prelude, write_vectors(base, layout.build))
    if united:
        objects = unite(objects, layout.build)
    return objects, [prelude] if prelude else []


def units(all_units: Sequence[Unit], prelude: str, vectors: str = "") -> list[Unit]:
    """The objects with the flags of a check.

    vectors: a header for the vector kernels, as write_vectors has it.

    Only generated files are given the prelude. What a person wrote must find its own includes: a
    header that upstream no longer includes from another one is what breaks kernels most often.
    """
    checked = []
    for unit in all_units:
        flags = tuple(_FLAGS.get(flag, flag) for flag in unit.flags)
        if prelude and unit.rule == "cxx" and unit.object.startswith("generated/"):
            flags += ("-include", prelude)
        if vectors and any(flag.startswith("-mavx") for flag in flags):
            flags += ("-include", vectors)
        checked.append(replace(unit, flags=flags))
    return checked


def unite(all_units: Sequence[Unit], build: Path) -> list[Unit]:
    """The units with those in one that parse the same headers.

    These are generated files, which include what the generator says, and kernels for vectors, whose
    own includes are tried by their DEFAULT objects. Structured kernels and the helpers of
    registrations have the same names in several generated files, which therefore stay alone.
    """
    groups: dict[tuple[str, bool, tuple[str, ...]], list[Unit]] = {}
    for unit in all_units:
        kind = _united_as(unit, build)
        if kind:
            groups.setdefault((kind, unit.python, unit.flags), []).append(unit)
    gone: set[Unit] = set()
    made: list[Unit] = []
    for (kind, python, flags), members in groups.items():
        if len(members) > 1:
            name = f"united/{kind}{len(made)}.cpp"
            lines = [_included(unit, number) for number, unit in enumerate(members)]
            files.write_if_changed(build / name, "".join(lines))
            made.append(Unit(name, f"{name}.o", "cxx", flags, python, members[0].ours))
            gone.update(members)
    return [*(unit for unit in all_units if unit not in gone), *made]


def _included(unit: Unit, number: int) -> str:
    """A member of a united file; what each of them defines under one name gets one of its own."""
    before = "".join(f"#define {name} {name}_{number}\n" for name in _RENAMED)
    after = "\n".join([*_UNDEFINED, *(f"#undef {name}" for name in _RENAMED)])
    return f'{before}#include "../{unit.source}"\n{after}\n'


def _united_as(unit: Unit, build: Path) -> str:
    """What kind of unit may be compiled with others of its kind; '' for none."""
    if unit.rule != "cxx":
        return ""
    if unit.ours:
        return "vectors" if any(flag.startswith("-mavx") for flag in unit.flags) else ""
    folder, name = unit.object.split("/")[:2], Path(unit.source).name
    if folder[0] != "generated":
        return ""
    text = (build / unit.source).read_text(encoding="utf-8")
    if unit.python:
        # Functions and methods have bindings of the same names.
        alone = _BINDING.search(text) and not name.startswith("python_torch_functions")
        return "" if alone else "python"
    return "" if _ALONE.search(text) else folder[1]


def write_prelude(sources: Path, build: Path, names: Sequence[str]) -> str:
    """A header of what several generated files include; its path from the build directory.

    Four fifths of a generated file's compilation is upstream's headers, and most are the same ones.
    '' where there is nothing to share.
    """
    counted: dict[str, int] = {}
    for name in names:
        text = (sources / name).read_text(encoding="utf-8")
        for include in dict.fromkeys(_unconditional_includes(text)):
            counted[include] = counted.get(include, 0) + 1
    shared = [include for include, count in counted.items() if count > _SHARED_BY * len(names)]
    # Python's header defines macros of the C library and has to come before it.
    shared.sort(key=lambda include: "Python.h" not in include)
    if not shared:
        return ""
    # Some of upstream's headers define what others of them refuse to be included after.
    lines = [line for include in shared for line in (include, *_UNDEFINED)]
    files.write_if_changed(build / _PRELUDE, "\n".join(["#pragma once", *lines, ""]))
    return _PRELUDE


def remove_precompiled(build: Path, preludes: Iterable[str]) -> None:
    """Delete the precompiled headers: half a GB for each release, made again in seconds."""
    for prelude in preludes:
        (build / f"{prelude}.gch").unlink(missing_ok=True)


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


def _unconditional_includes(text: str) -> Iterator[str]:
    """The #include lines outside every #if; operators' own headers differ from file to file."""
    depth = 0
    for line in text.splitlines():
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif not depth and re.match(r"\s*#\s*include\s", line) and "ATen/ops/" not in line:
            yield line.strip()


def needed_signatures(objects: Iterable[Symbols]) -> list[str]:
    """What the objects need of upstream's libraries, as signatures."""
    everything = list(objects)
    defined = {name for found in everything for name in found.defined}
    needed = {name for found in everything for name in found.undefined} - defined
    texts = (symbols.normal_signature(text) for text in symbols.demangle(needed).values())
    return sorted(text for text in texts if text.startswith(("at::", "torch::", "c10::")))
