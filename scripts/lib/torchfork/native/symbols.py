"""Compares what the YAML declares, what objects define and what the base's libraries export."""

from __future__ import annotations

import gzip
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..additions.load import Additions
from ..errors import KernelError, combined
from ..upstream.base import Base
from ..upstream.binaries import is_macho, macho_exports
from ..util import files, process
from .compile_steps import ADDITIONS_COPY, CompileStep, source_path

# libc++ and libstdc++, and 64-bit integers on macOS and Linux.
_EQUIVALENTS = (("std::__1::", "std::"), ("std::__cxx11::", "std::"), ("[abi:cxx11]", ""),
                ("std::__exception_ptr::", "std::"), ("long long", "long"))  # fmt: skip
# Where the author of a view defines how to undo it.
INVERSES = "at::functionalization::FunctionalInverses::"
# Upstream's own C++: what additions can call.
NAMESPACES = ("at::", "torch::", "c10::")


@dataclass
class Symbols:
    """Mangled names that objects define for others, and that they need from others."""

    defined: set[str] = field(default_factory=set)
    undefined: set[str] = field(default_factory=set)
    # Of the defined, what each file that uses it defines for itself: inline functions, templates.
    inlines: set[str] = field(default_factory=set)

    @property
    def strong(self) -> set[str]:
        """What only one object of a program may define."""
        return self.defined - self.inlines


@dataclass(frozen=True)
class Exports:
    """What the libraries of a base export."""

    names: frozenset[str]  # mangled
    # Of a base for another system, where names are mangled otherwise (64-bit integers are another
    # type, libc++ has a namespace of its own), what the names mean, as normal_signature has it.
    signatures: frozenset[str] = frozenset()

    def __contains__(self, symbol: tuple[str, str]) -> bool:
        """Whether a symbol, mangled and demangled, is among them."""
        mangled, text = symbol
        return mangled in self.names or (
            bool(self.signatures) and normal_signature(text) in self.signatures
        )


def read_objects(build: Path, steps: Sequence[CompileStep]) -> dict[CompileStep, Symbols]:
    """The external symbols of each object, by nm."""
    found = {step: Symbols() for step in steps}
    by_path = {str(build / step.object): symbols for step, symbols in found.items()}
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


def read_exports(base: Base) -> Exports:
    """What the base's libraries export."""
    libraries = base_libraries(base)
    names = exported(libraries)
    if not any(is_macho(path) for path in libraries):
        return Exports(frozenset(names))
    texts = demangle(name for name in names if name.startswith("_Z")).values()
    upstreams = {normal_signature(text) for text in texts if text.startswith(NAMESPACES[:2])}
    return Exports(frozenset(names), frozenset(upstreams))


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


def base_libraries(base: Base) -> list[Path]:
    """The base's libraries that a graft may call into."""
    return sorted(
        path for pattern in ("*.so*", "*.dylib") for path in (base.torch / "lib").glob(pattern)
    )


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Mangled names and what they mean."""
    ordered = sorted(names)
    if not ordered:
        return {}
    text = process.run(["c++filt"], input_text="\n".join(ordered) + "\n").stdout
    return dict(zip(ordered, text.splitlines(), strict=True))


def normal_signature(text: str) -> str:
    """A demangled name without what differs between systems, C++ libraries and processors.

    How many kernels a dispatch stub is given depends on the capabilities that the processor has.
    """
    for theirs, ours in _EQUIVALENTS:
        text = text.replace(theirs, ours)
    return re.sub(r"(\bDispatchStubImpl::\w+)\(.*\)", r"\1", text)


def signatures_file(base_identity: str, work: Path) -> Path:
    """Where the signatures that a base exports are kept, by which releases can be compared."""
    key = files.sha256_text(base_identity, Path(__file__).read_text("utf-8"))
    return work / "exports" / f"{key[:32]}.txt.gz"


def keep_signatures(base: Base, work: Path) -> None:
    """Read a base's exports once and keep their signatures."""
    path = signatures_file(base.identity, work)
    if path.is_file():
        return
    texts = demangle(exported(base_libraries(base))).values()
    lines = "\n".join(
        sorted({normal_signature(text) for text in texts if text.startswith(NAMESPACES)})
    )
    files.write_bytes(path, gzip.compress(lines.encode(), mtime=0))


def kept_signatures(base_identity: str, work: Path) -> frozenset[str] | None:
    """The signatures of a base, or None where nobody has read them yet."""
    path = signatures_file(base_identity, work)
    if not path.is_file():
        return None
    return frozenset(gzip.decompress(path.read_bytes()).decode().split("\n"))


def needed_signatures(objects: Iterable[Symbols]) -> list[str]:
    """What the objects need of upstream's libraries, as signatures."""
    everything = list(objects)
    defined = {name for found in everything for name in found.defined}
    needed = {name for found in everything for name in found.undefined} - defined
    texts = (normal_signature(text) for text in demangle(needed).values())
    return sorted(text for text in texts if text.startswith(NAMESPACES))


def check(additions: Additions, objects: Mapping[CompileStep, Symbols], exports: Exports) -> int:
    """Refuse kernels that are missing, of another signature, declared nowhere or defined twice.

    Gives the number of kernels that generated code calls and the additions define. Raises
    KernelError, with all that is wrong in its message.
    """
    defined = {name for symbols in objects.values() for name in symbols.defined}
    needed = {name for symbols in objects.values() for name in symbols.undefined}
    ours = {name for step, symbols in objects.items() if step.ours for name in symbols.defined}
    names = demangle((needed - defined - exports.names) | ours)
    errors = [
        *_missing_kernels(names, needed - defined, additions, objects, exports),
        *_exported_twice(names, additions, objects, exports),
        *_defined_twice(names, additions, objects),
        *_undeclared(names, additions, objects, needed),
    ]
    if errors:
        raise combined(errors)
    generated = [symbols for step, symbols in objects.items() if not step.ours]
    return len({name for symbols in generated for name in symbols.undefined} & ours)


def _plain(name: str) -> str:
    """'hypot' of 'at::native::hypot(at::Tensor const&)'; of a structured kernel, its class."""
    head = name.split("(", 1)[0]
    parts = head.split("::")
    return parts[-2] if parts[-1] in {"impl", "meta"} else parts[-1]


def _missing_kernels(
    names: Mapping[str, str],
    missing: Collection[str],
    additions: Additions,
    objects: Mapping[CompileStep, Symbols],
    exports: Exports,
) -> Iterator[KernelError]:
    lost = {
        name: names[name]
        for name in missing
        if name in names
        and names[name].startswith(("at::", "torch::"))
        and (name, names[name]) not in exports
    }
    kernels = ("at::native::", "at::meta::", INVERSES)
    # Kernels first, and alone where there are any: other missing names often follow from one.
    chosen = {n: text for n, text in lost.items() if text.startswith(kernels)} or lost
    reported: set[str] = set()
    for mangled, signature in sorted(chosen.items(), key=lambda item: item[1]):
        if _plain(signature) not in reported:
            reported.add(_plain(signature))
            yield _missing(mangled, names, lost, additions, objects)


def _missing(
    mangled: str,
    names: Mapping[str, str],
    lost: Mapping[str, str],
    additions: Additions,
    objects: Mapping[CompileStep, Symbols],
) -> KernelError:
    signature = names[mangled]
    plain = _plain(signature)
    ours = {name for step, symbols in objects.items() if step.ours for name in symbols.defined}
    near = sorted(names[n] for n in ours if _plain(names[n]) == plain and n not in lost)
    needed_by = sorted(step.object for step, s in objects.items() if mangled in s.undefined)
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


def _declaration(plain: str, additions: Additions) -> str:
    """The line of the YAML file that a kernel's name stands on."""
    base_name = plain.removeprefix("structured_").removesuffix("_symint")
    if base_name.endswith("_inverse"):  # of a view, which names no kernel for it
        view = additions.native_entry(base_name.removesuffix("_inverse"))
        return view.where() if view else ""
    for entry in additions.native.entries:
        if {plain, base_name} & set(entry.kernels.values()):
            return entry.where("dispatch")
    for entry in additions.native.entries:
        if base_name in {entry.name.replace(".", "_"), entry.name.split(".")[0]}:
            return entry.where()
    return ""


# What stands for a dispatch stub: the object, and what REGISTER_DISPATCH defines for a capability.
_STUB = re.compile(r"DispatchStub<.*?(\w+?)(?:_DECLARE_DISPATCH_type)?>::\w+$")
_OF_CLASS = re.compile(r"^(?:vtable|typeinfo|typeinfo name|VTT) for (?:.*::)?(\w+)(?:<.*>)?$")


def _identifier(text: str) -> str:
    """The word of the source that a demangled symbol was made of."""
    found = _STUB.search(text) or _OF_CLASS.match(text)
    return found[1] if found else re.sub(r"<.*", "", _plain(text)) or text


def _place(step: CompileStep, identifier: str, additions: Additions) -> str:
    """'file:line' of a symbol in the source of an object: where code names it at a line's start."""
    path = source_path(step, additions)
    word = rf"\b{re.escape(identifier)}\b"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for pattern in (rf"^[^\s#/].*{word}", word):
        for number, line in enumerate(lines, 1):
            if re.search(pattern, line):
                return f"{path}:{number}"
    return str(path)


def _exported_twice(
    names: Mapping[str, str],
    additions: Additions,
    objects: Mapping[CompileStep, Symbols],
    exports: Exports,
) -> Iterator[KernelError]:
    """What upstream has too: the loader takes one of the two for both, without a word.

    Also helpers of its FunctionsManual.h, which libtorch hides and the graft's own objects define.
    """
    brought = {
        name for step, symbols in objects.items() if not (step.ours or step.python)
        for name in symbols.strong
    }  # fmt: skip
    reported: set[tuple[str, str]] = set()
    for step, symbols in sorted(objects.items(), key=lambda item: item[0].object):
        # Of a file that is compiled once a capability, DEFAULT stands alone also in a check.
        for mangled in sorted(symbols.strong) if step.source.startswith(ADDITIONS_COPY) else ():
            if mangled not in brought and (mangled, names[mangled]) not in exports:
                continue
            word = _identifier(names[mangled])
            if (step.source, word) in reported:
                continue
            reported.add((step.source, word))
            yield KernelError(
                f"'{word}' is defined here, and upstream's libraries define it too",
                where=_place(step, word, additions),
                why=f"both define {names[mangled]}\none of the two would be called in place of "
                "the other, in upstream's operators as in yours, or the linker refuses them",
                next=f"rename it, for example to '{_free_name(word, step, additions)}', or put a "
                "function that only this file calls into an anonymous namespace",
                kind="symbol of upstream",
            )


def _free_name(word: str, step: CompileStep, additions: Additions) -> str:
    """A name that says whose it is: the operator's that the file is about, before the word."""
    text = source_path(step, additions).read_text(encoding="utf-8", errors="replace")
    operators = [entry.name.partition(".")[0] for entry in additions.native.entries]
    own = next((name for name in operators if re.search(rf"{name}(?![a-z0-9])", text)), "")
    return f"{own or (operators or ['my'])[0]}_{word}"


def _defined_twice(
    names: Mapping[str, str], additions: Additions, objects: Mapping[CompileStep, Symbols]
) -> Iterator[KernelError]:
    """What two objects of ours define: the linker would refuse it, and name neither source."""
    first: dict[str, CompileStep] = {}
    reported: set[tuple[str, str]] = set()
    for step, symbols in sorted(objects.items(), key=lambda item: item[0].object):
        for mangled in sorted(symbols.strong) if step.ours else ():
            other = first.setdefault(mangled, step)
            word = _identifier(names[mangled])
            if other is step or (other.source, word) in reported:
                continue
            reported.add((other.source, word))
            where = _place(other, word, additions)
            # One file, or several files of one capability that a check compiles as one.
            if other.source == step.source or not step.source.startswith(ADDITIONS_COPY):
                yield KernelError(
                    f"'{names[mangled]}' is defined once for each CPU capability",
                    where=where,
                    why="files in native/cpu are compiled once for each capability (DEFAULT, AVX2, "
                    "…), and their objects are linked into one library",
                    next="put the kernel into an anonymous namespace and register it with "
                    "REGISTER_DISPATCH(stub, &kernel), or move the file to native/",
                )
            else:
                yield KernelError(
                    f"'{names[mangled]}' is defined in two files",
                    where=where,
                    why=f"the other one: {_place(step, word, additions)}",
                    next="delete or rename one of the two, or put each into an anonymous namespace",
                )


def _undeclared(
    names: Mapping[str, str],
    additions: Additions,
    objects: Mapping[CompileStep, Symbols],
    needed: Collection[str],
) -> Iterator[KernelError]:
    """A function in at::native that nobody calls and no header declares is a forgotten entry.

    An inline one is a header's, upstream's too, which unoptimised objects keep.
    """
    headers = "\n".join(path.read_text(encoding="utf-8") for path in additions.headers)
    reported: set[str] = set()
    for step, symbols in sorted(objects.items(), key=lambda item: item[0].object):
        for mangled in (
            sorted(symbols.strong - set(needed)) if step.source.startswith(ADDITIONS_COPY) else ()
        ):
            found = re.match(r"^at::native::(\w+)\(", names.get(mangled, ""))
            if not found or mangled in reported or re.search(rf"\b{found[1]}\b", headers):
                continue
            reported.add(mangled)
            yield KernelError(
                f"'{names[mangled]}' is defined and no operator is declared for it",
                where=str(source_path(step, additions)),
                why=f"no entry of {additions.native.path.name} leads to it, no other file "
                "calls it, and no header of the additions declares it",
                next="declare its operator, or make a helper static (anonymous namespace)",
            )
