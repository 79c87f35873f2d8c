"""Which object files a graft consists of, which sources are compiled as one, and their copies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..additions import paths
from ..additions.formulas import formulas_of
from ..additions.load import Additions
from ..codegen.build_dir import BuildDir
from ..codegen.client import Generated
from ..upstream.abi import FLAGS
from ..upstream.base import Base
from ..util import files
from .toolchain import Toolchain

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# Compilers run in BuildDir.build and are given these relative paths: objects hold no trace of where
# they were built, and a compiler cache finds them again in another directory.
ADDITIONS_COPY = "../include/ATen"
REDUCED_INCLUDE = "../reduced"
CORE_SUPPORT = ("core.cpp", "portability.cpp")
# Definitions of what upstream's FunctionsManual.h declares and no library exports.
HELPERS = "functions_manual.cpp"
PYTHON_SUPPORT = ("portability.cpp", "python.cpp")
# Of objects that nobody runs: names and types are checked, nothing is optimised.
_CHECKED = {"-O3": "-O0", "-O1": "-O0"}
_VECTORS = "prelude/vectors.h"
# Several sources are compiled as one there: most of the time goes into parsing the same headers.
UNITED = "united"

# The first line of a source that is compiled once for each value of a macro, so that no object
# takes minutes. Without the macro, as a source build compiles it, one object has all.
_OBJECTS = re.compile(r"// One object for each (\w+): (.+)")

_UNDEFINED = "#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS\n#undef TORCH_ASSERT_NO_OPERATORS\n"
# What generated files define under one name, each for itself: structured kernels, helpers of
# registrations, bindings, and the objects that the tooling's own text adds.
_OWN = re.compile(
    r"^(?:struct (structured_\w+)|static PyObject ?\* ?(THPVariable_\w+)\("
    r"|\S.* (create_out|resize_out|check_inplace|maybe_create_proxy)\("
    r"|static .*\b(torchfork_initializer|torchfork_methods|torchfork_table)\b)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class CompileStep:
    """One object file: what it is made of and how."""

    source: str  # relative to the build directory
    object: str  # relative to the build directory
    rule: str  # cxx or nvcc
    flags: tuple[str, ...]
    python: bool  # linked into torch/_C
    ours: bool  # from the additions, not generated


def all_steps(
    generated: Sequence[Generated], additions: Additions, toolchain: Toolchain
) -> list[CompileStep]:
    """Every object of the graft, in a fixed order: vector kernels, which take longest, first."""
    # Support files too: they are compiled with generated ones. Dispatch and bindings are as fast by
    # -O1 as by -O2, which takes a fifth more time to compile; the loops of a ufunc are not.
    unwarned = ("-O1", "-w", f"-I{REDUCED_INCLUDE}")
    steps = [
        CompileStep(
            f"../sources/{item.name}",
            f"generated/{item.name}{suffix}.o",
            "nvcc" if item.name.endswith(".cu") else "cxx",
            (*unwarned, *flags),
            item.python,
            False,
        )
        for item in generated
        for suffix, flags in (
            _each_capability(toolchain, "-O3") if "UfuncCPUKernel_" in item.name else [("", ())]
        )
    ]
    steps += additions_steps(additions, toolchain)
    helpers = (HELPERS,) if _calls_helpers(additions) else ()
    for part, names, python in (
        ("core", (*CORE_SUPPORT, *helpers), False),
        ("python", PYTHON_SUPPORT, True),
    ):
        steps += [
            CompileStep(
                f"../support/{name}", f"support/{part}/{name}.o", "cxx", unwarned, python, False
            )
            for name in names
        ]
    kernels = "additions/native/cpu/"
    return sorted(steps, key=lambda step: (not step.object.startswith(kernels), step.object))


def provided_helpers() -> frozenset[str]:
    """The helpers of upstream's FunctionsManual.h that a graft brings where they are called."""
    text = (SUPPORT / HELPERS).read_text(encoding="utf-8").partition("} // namespace\n")[2]
    return frozenset(re.findall(r"^(?:\w\S* )*(\w+)\(", text, re.MULTILINE))


def _calls_helpers(additions: Additions) -> bool:
    """Whether a formula or a source that includes upstream's header calls one of them."""
    entries = additions.derivatives.entries
    texts = [formula for entry in entries for _, formula in formulas_of(entry)]
    sources = (path.read_text("utf-8", errors="replace") for path in additions.sources)
    texts += [text for text in sources if "autograd/FunctionsManual.h" in text]
    called = {name for text in texts for name in re.findall(r"(\w+)\s*\(", text)}
    return bool(called & provided_helpers())


def additions_steps(additions: Additions, toolchain: Toolchain) -> Iterator[CompileStep]:
    """The objects of aten_src: native/cpu once a capability, cuda only with a toolkit.

    A source may say that it is compiled once for each value of a macro, see _OBJECTS.
    """
    for path in additions.sources:
        if path.suffix not in {".cpp", ".cu"}:
            continue
        relative = path.relative_to(additions.source_root)
        rule = "nvcc" if path.suffix == ".cu" else "cxx"
        if (rule == "nvcc" or "cuda" in relative.parts) and not toolchain.cuda:
            continue
        for suffix, flags in _variants(path, relative, toolchain):
            yield CompileStep(
                source=f"{ADDITIONS_COPY}/{relative.as_posix()}",
                object=f"additions/{relative.as_posix()}{suffix}.o",
                rule=rule,
                flags=("-O3", *flags),
                python=False,
                ours=True,
            )


def _variants(
    path: Path, relative: Path, toolchain: Toolchain
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The suffix of each object of one source, and its flags."""
    if relative.parts[:2] == ("native", "cpu") and "cuda" not in relative.parts:
        yield from _each_capability(toolchain)
    elif found := _OBJECTS.match(path.read_text("utf-8", errors="replace")):
        for value in found[2].split(", "):
            yield f".{value.rpartition(':')[2]}", (f"-D{found[1]}={value}",)
    else:
        yield "", ()


def _each_capability(toolchain: Toolchain, *more: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The suffix and the flags of a vector kernel's objects."""
    for name in toolchain.capabilities.names:
        defined = (f"-DCPU_CAPABILITY={name}", f"-DCPU_CAPABILITY_{name}")
        yield f".{name}", (*more, *defined, *FLAGS[name])


def copy_sources(additions: Additions, layout: BuildDir) -> None:
    """Bring the sources of the additions and of the tooling into the build directory.

    ninja compares times, and a file's time says little of its contents: `cp -a`, `tar x` and `mv`
    put older files in place, a checkout newer ones. A copy is written only where its contents
    change, and so has a later time than every object that was made from the earlier contents.
    """
    ours = additions.source_root
    found = paths.tree(ours, additions.root)
    _copy(ours, found, layout.additions_include / "ATen")
    _copy(SUPPORT, files.tree_files(SUPPORT), layout.support)


def _copy(source: Path, found: Sequence[Path], target: Path) -> None:
    if target.is_symlink():  # as earlier versions had it
        target.unlink()
    wanted = {target / path.relative_to(source): path for path in found}
    for copy, path in wanted.items():
        files.write_if_changed(copy, path.read_bytes())
    for copy in files.tree_files(target):
        if copy not in wanted:
            copy.unlink()


def source_path(step: CompileStep, additions: Additions) -> Path:
    """Where the user finds the source of an object of the additions."""
    return additions.source_root / step.source.removeprefix(f"{ADDITIONS_COPY}/")


def for_check(base: Base, steps: Sequence[CompileStep], build: Path) -> list[CompileStep]:
    """The objects with the flags of a check."""
    vectors = write_vectors(base, build)
    checked = []
    for step in steps:
        flags = tuple(_CHECKED.get(flag, flag) for flag in step.flags)
        if step.rule == "cxx" and not step.ours:  # the bindings become a part of the same file
            flags += (f"-isystem{base.interpreter.include}",)
        if vectors and any(flag.startswith("-mavx") for flag in flags):
            flags += ("-include", vectors)
        checked.append(replace(step, flags=flags))
    return checked


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


def group_in_wheel(step: CompileStep) -> str:
    """The file that a generated or support source becomes a part of in a wheel; '' for none.

    What is linked into torch/_C stays apart. Those of a ufunc_inner_loop define again what the
    headers of others do.
    """
    if step.rule != "cxx" or step.ours or re.search(r"portability|/Ufunc", step.object):
        return ""
    return "python" if step.python else "core"


def group_in_check(step: CompileStep) -> str:
    """In a check: all generated files in one, and the kernels for vectors in one a capability.

    The kernels' own includes are tested by their DEFAULT objects. What else a person wrote is
    compiled alone and must find its own includes: a header that upstream no longer includes from
    another one is what breaks kernels most often.
    """
    if step.ours and step.rule == "cxx":
        return "vectors" if any(flag.startswith("-mavx") for flag in step.flags) else ""
    return "generated" if group_in_wheel(step) else ""


def unite(
    steps: Sequence[CompileStep], build: Path, group_of: Callable[[CompileStep], str]
) -> list[CompileStep]:
    """The steps with those of a group and the same flags in one file; these, the longest, first.

    group_of: names the file that a step is to be a part of; '' for what is compiled alone.
    In a file the support sources come first, and the bindings to Python, which lend the others no
    header, last.
    """
    build.mkdir(parents=True, exist_ok=True)  # sources are at paths that lead through it
    groups: dict[tuple[str, tuple[str, ...]], list[CompileStep]] = {}
    for step in steps:
        if group := group_of(step):
            groups.setdefault((group, step.flags), []).append(step)
    united = {key: members for key, members in groups.items() if len(members) > 1}
    alone = [step for step in steps if step not in {s for m in united.values() for s in m}]
    made: list[CompileStep] = []
    counts: Counter[str] = Counter()
    for (group, _), members in united.items():
        name = f"{UNITED}/{group}{counts[group]}.cpp"
        counts[group] += 1
        members.sort(key=lambda step: (step.python, not step.object.startswith("support/")))
        texts = [_member(step, number, build) for number, step in enumerate(members)]
        files.write_if_changed(build / name, "".join(texts))
        made.append(replace(members[0], source=name, object=f"{name}.o"))
    return [*made, *alone]


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
