"""Reads what compilers print: the errors of a failed build, each at its place in our files."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ..additions.load import Additions
from ..additions.yaml_file import Entry
from ..errors import CompileError, ForkError, combined
from ..util.files import DISK_FULL, output_error
from .compile_steps import ADDITIONS_COPY

# GCC and Clang: 'x.cpp:3:5: error: …', 'x.cpp:3: fatal error: …'; nvcc: 'x.cu(3): error: …'
_ERROR = re.compile(
    r"^(?P<file>\S[^:(\n]*)(?::(?P<line>\d+):(?:\d+:)?|\((?P<cuda>\d+)\):)"
    r" (?:[a-z]+ )?error(?: [#\w-]+)?: (?P<message>.*)",
    re.MULTILINE,
)
_CMAKE = re.compile(
    r"^CMake Error at (?P<file>[^:\n]+):(?P<line>\d+)(?P<cuda>)(?P<message>.*)", re.MULTILINE
)
_KILLED = re.compile(
    r"Killed signal terminated program|fatal error: Killed|^(?:.*: )?Killed$"
    r"|signal terminated program cc1|subcommand killed|Cannot allocate memory"
    r"|out of memory allocating",
    re.MULTILINE,
)
# What ninja prints of other objects meanwhile.
_STATUS = re.compile(r"^\[\d+/\d+\] .*\n", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
_LINES = 15  # of one error that are shown
_FILES = 10  # with errors that are shown
# What a first line of an error means in a kernel; upstream's own includes are one by one.
_NOTES = {
    r"(?:cannot convert|could not convert|invalid initialization)(?=.*\bTensor\b)"
    r"(?=.*'(?:const )?(?:float|double|int|long int|scalar_t|opmath_t)')":
        "in at::native a plain floor(x) or exp(x) is at::floor; write std::floor(x)",
    r"no match for 'operator[^']*' \(operand types? .*\bat::Tensor\b":
        "tensors' operators are in <ATen/TensorOperators.h>",
    r"'(\w+)' is not a member of 'at'": r"an operator of at is in <ATen/ops/\1.h>",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnostic:
    """The first error of a file, and how many errors the file has."""

    text: str  # the compiler's lines
    file: str = ""  # as the compiler names it, '' where the output names none
    line: int = 0
    before: str = ""  # what was printed for the same object before: the function, the includes
    count: int = 1
    out_of_memory: bool = False

    @property
    def place(self) -> str:
        """'file:line', '' where unknown."""
        return f"{self.file}:{self.line}" if self.file else ""


# Where the user finds what a diagnostic is about: 'file:line' of a file of theirs, '' for none.
Locate = Callable[[Diagnostic], str]


def read(output: str) -> list[Diagnostic]:
    """The errors in a failed build's output, one a file; its end where no line is an error.

    Where a program was killed for lack of memory, that alone.
    """
    output = _COLOUR.sub("", output)
    if "FAILED: " in output:
        output = _STATUS.sub("", output)
    parts = re.split(r"^(?=FAILED: )", output, flags=re.MULTILINE)[1:]
    for part in parts or [output]:
        if killed := _KILLED.search(part):
            start = part.rfind("\n", 0, killed.start()) + 1
            return [Diagnostic(_lines(part[start:], 4), out_of_memory=True)]
    errors = [error for part in parts for error in _errors(part)] or list(_errors(output))
    if errors:
        return _by_file(errors)
    if parts:
        return [Diagnostic(_lines(parts[0]))]
    return [Diagnostic("\n".join(output.rstrip().splitlines()[-_LINES:]))]


def _errors(part: str) -> Iterator[Diagnostic]:
    """Every error in the output of one object."""
    found = sorted(
        [*_ERROR.finditer(part), *_CMAKE.finditer(part)], key=lambda match: match.start()
    )
    for match, following in zip_longest(found, found[1:]):
        text = part[match.start() : following.start() if following else None]
        yield Diagnostic(
            _lines(text), match["file"], int(match["line"] or match["cuda"]),
            part[: match.start()],
        )  # fmt: skip


def _by_file(errors: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The first error of each file with their number; a kernel compiled twice counts once."""
    different: dict[tuple[str, int, str], Diagnostic] = {}
    for error in errors:
        different.setdefault((error.file, error.line, error.text.partition("\n")[0]), error)
    first: dict[str, Diagnostic] = {}
    for error in different.values():
        known = first.get(error.file)
        first[error.file] = replace(known, count=known.count + 1) if known else error
    return list(first.values())


def _lines(text: str, count: int = _LINES) -> str:
    """The first lines, long ones cut: a compiler's command has thousands of letters."""
    return "\n".join(line[:400] for line in text.strip("\n").splitlines()[:count])


def failure(output: str, log: Path, jobs: int | str, locate: Locate) -> ForkError:
    """What a failed build's output says, as an error with one part for each file of ours.

    log: where all of the output is. jobs: how many compilers ran at once.
    """
    if DISK_FULL in output:
        return output_error(log.parent, OSError(errno.ENOSPC, DISK_FULL))
    found = read(output)
    if found[0].out_of_memory:
        return CompileError(
            "the compiler was killed: out of memory",
            where=str(log),
            why=f"{jobs} ran at once\n{found[0].text}",
            next="run the same command again with MAX_JOBS=1; what is compiled is kept",
        )
    located = [(locate(diagnostic), diagnostic) for diagnostic in found]
    located.sort(key=lambda pair: not pair[0])  # ours first: others may follow from them
    errors = [_error(where, diagnostic, log) for where, diagnostic in located[:_FILES]]
    more = f"; {len(located) - _FILES} more files have errors" if len(located) > _FILES else ""
    errors[
        0
    ].next = (
        f"correct it and run the same command again; everything else is kept. Full log: {log}{more}"
    )
    return combined(errors)


def _error(where: str, diagnostic: Diagnostic, log: Path) -> CompileError:
    what = "a file does not compile" if diagnostic.file else "the build failed"
    if re.search(r"derivatives\w*\.yaml:\d+$", where):
        what = "a derivative formula does not compile"
    why = diagnostic.text
    if diagnostic.count > 1:
        plural = "s" * (diagnostic.count > 2)
        why += f"\nand {diagnostic.count - 1} more error{plural} in this file"
    for pattern, note in _NOTES.items() if diagnostic.file else ():
        if found := re.search(pattern, diagnostic.text.partition("\n")[0]):
            why += f"\nnote: {found.expand(note)}"
    return CompileError(what, where=where or diagnostic.place or str(log), why=why)


def in_additions(additions: Additions) -> Locate:
    """Finds the file of the additions that an error of a graft comes from."""
    copied = re.compile(rf"(?:^|[\s'\"(]){re.escape(ADDITIONS_COPY)}/([^:(\n]+?)[:(](\d+)", re.M)

    def locate(diagnostic: Diagnostic) -> str:
        if diagnostic.file.startswith(f"{ADDITIONS_COPY}/"):
            relative = diagnostic.file.removeprefix(f"{ADDITIONS_COPY}/")
            return f"{additions.source_root / relative}:{diagnostic.line}"
        if formula := formula_of(diagnostic.before, diagnostic.text, additions):
            return formula
        # In a header of the base's: the template that we instantiate, the include that leads there.
        for text in (diagnostic.text, diagnostic.before):
            if places := copied.findall(text):
                relative, line = places[-1]
                return f"{additions.source_root / relative}:{line}"
        return ""

    return locate


# The autograd node or the function of VariableType in which GCC says that it is.
_NODE = re.compile(r"\b(\w+)Backward\d+(?:::|_apply_functional)")
_FUNCTION = re.compile(r"VariableType::(?:\{anonymous\}|\(anonymous namespace\))::(\w+)\(")
_QUOTED = re.compile(r"['`‘]([^'’]+)['’]")
# Words that stand in most formulas and tell none from another.
_COMMON = frozenset({"grad", "grads", "self", "at", "const", "Tensor", "result"})


def formula_of(before: str, error: str, additions: Additions) -> str:
    """'file:line' of the formula that an error in generated code comes from, '' where unknown.

    before: what the compiler said before the error, which names the function it is in.
    """
    contexts = [(m.end(), m[1]) for p in (_NODE, _FUNCTION) for m in p.finditer(before + error)]
    for _, name in sorted(contexts, reverse=True):
        for entry in additions.derivatives.entries:
            if _plain(entry.name.partition(".")[0]) == _plain(name):
                return entry.where(_field(entry, error))
    return ""


def _plain(name: str) -> str:
    """A name without the case and the underscores by which node and operator differ."""
    return name.replace("_", "").lower()


def _field(entry: Entry, error: str) -> str:
    """The field whose formula has the words that the error quotes; '' for none of them."""
    first = error.partition("\n")[0]
    quoted = {word for quote in _QUOTED.findall(first) for word in _words(quote)}
    for field, formula in entry.fields.items():
        if field != "name" and isinstance(formula, str) and quoted & set(_words(formula)):
            return field
    return ""


def _words(text: str) -> list[str]:
    return [name for name in re.findall(r"[A-Za-z_]\w*", text) if name not in _COMMON]
