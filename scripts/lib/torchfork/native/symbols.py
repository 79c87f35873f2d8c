"""Compares the kernels that the YAML declares with the symbols that the objects define."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..additions.load import Additions
from ..errors import KernelError
from ..upstream.base import Base
from ..upstream.binaries import is_macho, macho_exports
from ..util import process
from .units import CompileStep, source_path

# libc++ and libstdc++, and 64-bit integers on macOS and Linux.
_SPELLINGS = (("std::__1::", "std::"), ("std::__cxx11::", "std::"), ("[abi:cxx11]", ""),
              ("std::__exception_ptr::", "std::"), ("long long", "long"))  # fmt: skip
# Where the author of a view defines how to undo it.
INVERSES = "at::functionalization::FunctionalInverses::"


@dataclass
class Symbols:
    """Mangled names that objects define for others, and that they need from others."""

    defined: set[str] = field(default_factory=set)
    undefined: set[str] = field(default_factory=set)
    # Of the defined, what each file that uses it defines for itself: inline functions, templates.
    inlines: set[str] = field(default_factory=set)


def read_objects(build: Path, units: Sequence[CompileStep]) -> dict[CompileStep, Symbols]:
    """The external symbols of each object, by nm."""
    found = {unit: Symbols() for unit in units}
    by_path = {str(build / unit.object): symbols for unit, symbols in found.items()}
    text = process.run(["nm", "-P", "-A", "-g", *by_path]).stdout
    for line in text.splitlines():
        path, _, rest = line.rpartition(": ")
        name, kind, *_ = rest.split()
        symbols = by_path[path]
        if kind in "Uwv":
            if kind == "U":
                symbols.undefined.add(name)
        else:
            symbols.defined.add(name)
            if kind in "WVu":
                symbols.inlines.add(name)
    return found


def exported(libraries: Iterable[Path]) -> set[str]:
    """The names that shared libraries export."""
    names: set[str] = set()
    for library in libraries:
        if is_macho(library):
            names |= macho_exports(library)
            continue
        text = process.run(["nm", "-P", "-D", "--defined-only", library]).stdout
        names |= {line.split("@", 1)[0].split(" ", 1)[0] for line in text.splitlines()}
    return names


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Mangled names and what they say."""
    ordered = sorted(names)
    if not ordered:
        return {}
    text = process.run(["c++filt"], input_text="\n".join(ordered) + "\n").stdout
    return dict(zip(ordered, text.splitlines(), strict=True))


def base_libraries(base: Base) -> list[Path]:
    """The base's libraries that a graft may call into."""
    return sorted(
        path for pattern in ("*.so*", "*.dylib") for path in (base.torch / "lib").glob(pattern)
    )


def foreign_signatures(base: Base, exports: Iterable[str]) -> set[str]:
    """What the exports of a base for another system say, in terms that all systems share.

    Names are mangled otherwise there (64-bit integers are another type, libc++'s types lie in a
    namespace of their own), so what is compared is what they say. Empty for a base of this system.
    """
    if not any(is_macho(path) for path in base_libraries(base)):
        return set()
    texts = demangle(name for name in exports if name.startswith("_Z")).values()
    return {normal_signature(text) for text in texts if text.startswith(("at::", "torch::"))}


def normal_signature(text: str) -> str:
    """A demangled name without what differs between systems, C++ libraries and processors.

    How many kernels a dispatch stub is given depends on the capabilities that the processor has.
    """
    for theirs, ours in _SPELLINGS:
        text = text.replace(theirs, ours)
    return re.sub(r"(\bDispatchStubImpl::\w+)\(.*\)", r"\1", text)


def check(
    base: Base,
    additions: Additions,
    objects: dict[CompileStep, Symbols],
    base_exports: set[str],
    signatures: Collection[str] = frozenset(),
) -> int:
    """Refuse kernels that are missing, of another signature, or declared nowhere.

    signatures: what a base for another system exports, as foreign_signatures has it.
    Gives the number of kernels that generated code calls and the additions define.
    """
    defined = {name for symbols in objects.values() for name in symbols.defined}
    generated = [s for unit, s in objects.items() if not unit.ours]
    wanted = {name for symbols in generated for name in symbols.undefined}
    everybody = {name for symbols in objects.values() for name in symbols.undefined}
    missing = everybody - defined - base_exports
    names = demangle(missing | _ours(objects))
    lost = {
        name: names[name]
        for name in missing
        if names[name].startswith(("at::", "torch::"))
        and normal_signature(names[name]) not in signatures
    }
    if lost:
        raise _missing(lost, names, additions, objects)
    _refuse_undeclared(names, additions, objects, everybody)
    return len(wanted & _ours(objects))


def _ours(objects: dict[CompileStep, Symbols]) -> set[str]:
    return {name for unit, symbols in objects.items() if unit.ours for name in symbols.defined}


def _plain(name: str) -> str:
    """'hypot' of 'at::native::hypot(at::Tensor const&)'; of a structured kernel, its class."""
    head = name.split("(", 1)[0]
    parts = head.split("::")
    return parts[-2] if parts[-1] in {"impl", "meta"} else parts[-1]


def _missing(
    lost: dict[str, str],
    names: dict[str, str],
    additions: Additions,
    objects: dict[CompileStep, Symbols],
) -> KernelError:
    mangled, signature = sorted(lost.items(), key=lambda item: _rank(item[1]))[0]
    plain = _plain(signature)
    near = sorted(names[n] for n in _ours(objects) if _plain(names[n]) == plain and n not in lost)
    needed_by = sorted(unit.object for unit, s in objects.items() if mangled in s.undefined)
    where = _declaration(plain, additions) or ", ".join(needed_by)
    if not signature.startswith(("at::native::", "at::meta::", INVERSES)):
        return KernelError(
            f"'{signature}' is called and no library exports it",
            where=", ".join(needed_by),
            why="the base's libraries keep it to themselves (it is not TORCH_API), so a graft "
            "cannot call it",
            next="call a public at:: function, define a helper of your own, or build from source "
            "(--from-source)",
            kind="symbol hidden",
        )
    if near:
        return KernelError(
            f"the kernel '{plain}' has another signature than its schema asks for",
            where=where,
            why=f"declared: {signature}\ndefined:  " + "\n          ".join(near),
            next="change the kernel to the declared signature (or the schema)",
        )
    return KernelError(
        f"the kernel '{plain}' is declared and defined nowhere",
        where=where,
        why=f"expected: {signature}\nlooked in: {additions.source_root}",
        next="define it in aten_src/native, in the namespace that is expected, or correct the name "
        "under 'dispatch:'",
    )


def _rank(signature: str) -> tuple[bool, str]:
    """Kernels first: other missing names often follow from one."""
    return (not signature.startswith("at::native::"), signature)


def _declaration(plain: str, additions: Additions) -> str:
    """The line of the YAML file that a kernel's name stands on."""
    base_name = plain.removeprefix("structured_").removesuffix("_symint")
    if base_name.endswith("_inverse"):  # of a view, which names no kernel for it
        view = additions.native_entry(base_name.removesuffix("_inverse"))
        return view.where() if view else ""
    for entry in additions.native.entries:
        dispatch = entry.fields.get("dispatch") or {}
        kernels = set(map(str, dispatch.values())) if isinstance(dispatch, dict) else set()
        if {plain, base_name} & kernels:
            return entry.where("dispatch")
    for entry in additions.native.entries:
        if base_name in {entry.name.replace(".", "_"), entry.name.split(".")[0]}:
            return entry.where()
    return ""


def _refuse_undeclared(
    names: dict[str, str],
    additions: Additions,
    objects: dict[CompileStep, Symbols],
    everybody: set[str],
) -> None:
    """A function in at::native that nobody calls and no header declares is a forgotten entry.

    An inline one is a header's, upstream's too, which unoptimised objects keep.
    """
    headers = "\n".join(path.read_text(encoding="utf-8") for path in additions.headers)
    for unit, symbols in sorted(objects.items(), key=lambda item: item[0].object):
        forgotten = symbols.defined - symbols.inlines - everybody if unit.ours else ()
        for mangled in sorted(forgotten):
            found = re.match(r"^at::native::(\w+)\(", names.get(mangled, ""))
            if found and not re.search(rf"\b{found[1]}\b", headers):
                raise KernelError(
                    f"'{names[mangled]}' is defined and no operator is declared for it",
                    where=str(source_path(unit, additions)),
                    why=f"no entry of {additions.native.path.name} leads to it, no other file "
                    "calls it, and no header of the additions declares it",
                    next="declare its operator, or make a helper static (anonymous namespace)",
                )
