"""What the text of the sources tells before they are compiled: each at its line.

A compiler would say the same minutes later, one file at a time, and the linker would name no line.
Only what is sure is refused: text in conditional blocks and names that macros make are let pass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..additions import paths
from ..additions.formulas import FROM_SOURCE, after_parameters, declared_without_body
from ..additions.load import Additions
from ..additions.yaml_file import Entry, words
from ..errors import CollisionError, CompileError, ForkError, KernelError
from ..upstream.base import Base
from ..util import process
from .compile_steps import SUPPORT
from .toolchain import find_cxx

# Upstream's own headers, and what torchgen makes that wheels leave out.
_UPSTREAM = ("ATen/", "c10/", "torch/", "caffe2/")
_GENERATED = re.compile(r"ATen/(ViewMetaClasses|FunctionalInverses|UnboxingFunctions|ops/.*)\.h")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|else|elif|endif)\b(.*)$")
# The one condition that is known: it is defined in every graft.
_PER_OPERATOR = {
    ("ifndef", "AT_PER_OPERATOR_HEADERS"): False,
    ("ifdef", "AT_PER_OPERATOR_HEADERS"): True,
}
_CALL = re.compile(r"(?<![\w.])(?<!->)(?:(?:at::)?native::|(?<!::))([A-Za-z_]\w*)(?=\s*\()")
_META = re.compile(
    r"TORCH_(?:PRECOMPUTE_)?META_FUNC2?\s*\(\s*(\w+)\s*(?:,\s*(\w+)\s*)?\)"
    r"|\bstructured_(\w+)::meta\b"
)
_HEADERS = frozenset({".h", ".cuh"})
_NOT_COMPILED = _HEADERS | {".cc", ".cxx", ".c++", ".C", ".CPP", ".c", ".hpp", ".inc"}
# Types that kernels' signatures are made of: one of these in place of another makes another
# signature, while any other word may be an alias of the right one.
_WORDS = """
const Tensor Scalar SymInt int64_t int32_t int double float bool string string_view ScalarType
Layout Device MemoryFormat Generator Dimname ArrayRef OptionalArrayRef OptionalTensorRef optional
vector array tuple List void
"""
_TYPES = frozenset(_WORDS.split())
_ALIASES = {
    "IntArrayRef": "ArrayRef<int64_t>", "OptionalIntArrayRef": "OptionalArrayRef<int64_t>",
    "SymIntArrayRef": "ArrayRef<SymInt>", "OptionalSymIntArrayRef": "OptionalArrayRef<SymInt>",
    "TensorList": "ArrayRef<Tensor>", "DimnameList": "ArrayRef<Dimname>",
}  # fmt: skip
_OF_SCHEMA = {"int": "int64_t", "float": "double"}
# What may have braces that open or close nothing, or make a definition.
_ODD = re.compile(r"#[ \t]*define[ \t]+\w+(?:\(|[ \t]+\S)|R\"|'[{}]'")
_LIBRARY = re.compile(
    r"^[ \t]*(TORCH_LIBRARY(?:_IMPL|_FRAGMENT)?|PYBIND11_MODULE)\(\s*(\w+)", re.MULTILINE
)
# Or what "#if 0" leaves out, without a condition of its own.
_COMMENT_OR_STRING = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\""
    r"|^[ \t]*#[ \t]*if[ \t]+0\b(?:(?!\n[ \t]*#[ \t]*(?:if|el|endif)).)*\n[ \t]*#[ \t]*endif",
    re.DOTALL | re.MULTILINE,
)
# Backends that no graft compiles: select leaves their registrations out.
_NOT_BUILT = re.compile(r"MPS|XPU|MTIA|HIP|VE|IPU|HPU|Vulkan|PrivateUse1")


@dataclass(frozen=True)
class Mention:
    """A place where a source has the name of a kernel.

    objection: why it is no definition of the kernel; '' where it may be one.
    parameters: their text where it is one for sure.
    """

    where: str
    objection: str = ""
    parameters: str | None = None


@dataclass(frozen=True)
class Source:
    """A source file of the additions."""

    path: Path

    @cached_property
    def text(self) -> str:
        """As it is."""
        return self.path.read_text(encoding="utf-8", errors="replace")

    @cached_property
    def code(self) -> str:
        """Without comments and what is between quotes; every line where it was."""
        return _COMMENT_OR_STRING.sub(_blank, self.text)

    def mentions(self, name: str, entry: Entry) -> Iterator[Mention]:
        """Each place with the name of an entry's kernel."""
        if name not in self.code:
            return
        word = rf"(TORCH_IMPL_FUNC\s*\(\s*|::)?\b(structured_)?{re.escape(name)}\b(\s*\()?"
        for found in re.finditer(word, self.code):
            before, structured, opened = found.groups()
            if opened and not before and not structured and self.is_plain:
                yield self._judged(found, entry)
            else:
                macro = before not in {None, "::"}
                objection = self.outside("at::native", found.start()) if macro else ""
                yield Mention(self.at(found.start()), objection)

    @cached_property
    def is_plain(self) -> bool:
        """Whether braces alone say which namespace a line is in."""
        conditions = filter(None, map(_CONDITION.match, self.code.splitlines()))
        known = ((c[1], c[2].strip()) in _PER_OPERATOR or c[1] in {"else", "endif"}
                 for c in conditions)  # fmt: skip
        return not _ODD.search(self.code) and all(known)

    def _judged(self, found: re.Match[str], entry: Entry) -> Mention:
        """The mention of a name that an opened parenthesis follows."""
        where, (end, body) = self.at(found.start()), after_parameters(self.code, found.end())
        parameters = self.code[found.end() : end - 1]
        objection = self._objection(found, parameters, body, entry)
        if body != "{" or objection:
            return Mention(where, objection)
        return Mention(where, parameters=", ".join(_types(parameters)))

    def _objection(self, name: re.Match[str], parameters: str, body: str, entry: Entry) -> str:
        """Why the function of a name, with these parameters and this body, is not the kernel."""
        inside, start = self._inside(name.start())
        if "" in inside or body == ";":
            return "it is no definition"
        if body != "{":
            return ""
        if wrong := self.outside("at::native", name.start()):
            return wrong
        if entry.structured:
            return "the kernel of a structured operator is TORCH_IMPL_FUNC(…)"
        if self.path.parent.name == "cpu":
            return "files in native/cpu, for kernels of stubs, are compiled for each CPU capability"
        before = self.code[start : name.start()]
        if local := re.search(r"\b(static|inline|template)\b", before):
            return f"it is {local[1]}: no other file can call it"
        returned, wanted = _normal(_returned(before)), _result(entry.returns)
        if wanted and _is_sure(returned) and returned != wanted:
            return f"it returns {returned} where the schema makes it {wanted}"
        given, declared = _types(parameters), _expected(entry, "_symint" in name[0])
        if len(given) != len(declared):
            return f"it takes {len(given)} arguments, its schema {len(declared)}"
        for number, (one, other) in enumerate(zip(given, declared, strict=True), 1):
            if other and _is_sure(one) and one != other:
                return f"its argument {number} is {one} where the schema makes it {other}"
        return ""

    def outside(self, namespace: str, offset: int) -> str:
        """Why a place is surely not in a namespace, or ''."""
        inside = "::".join(self._inside(offset)[0])
        same = inside == namespace or not self.is_plain
        return "" if same else f"it is in namespace {inside or '::'}"

    def _inside(self, offset: int) -> tuple[list[str], int]:
        """The namespaces around a place ('' for else with braces); its declaration's start."""
        inside: list[str] = []
        start = 0
        for brace in re.finditer(r"(?:\bnamespace\s*([\w:]*)\s*)?\{|[;}]", self.code[:offset]):
            if brace[0].endswith("{"):
                named = brace[0].startswith("namespace")
                inside.append((brace[1] or "(anonymous)") if named else "")
            elif brace[0] == "}" and inside:
                inside.pop()
            start = brace.end()
        return inside, start

    def at(self, offset: int) -> str:
        """'file:line' of a place in the text."""
        return f"{self.path}:{self.text.count(chr(10), 0, offset) + 1}"


def _returned(before: str) -> str:
    """The type in the text before a function's name."""
    return re.sub(r"(?m)^[ \t]*#.*$|\b(TORCH_API|const)\b", "", before)


def _types(parameters: str) -> list[str]:
    """The types in a list of parameters, each as _normal has it."""
    parts: list[str] = []
    start = depth = 0
    for place, letter in enumerate(f"{parameters},"):
        depth += (letter in "<({[") - (letter in ">)}]")
        if letter == "," and not depth:
            parts.append(parameters[start:place])
            start = place + 1
    return [_normal(_unnamed(part.partition("=")[0])) for part in parts if part.strip()]


def _unnamed(parameter: str) -> str:
    """A parameter's type: it less its last word where what is before is a type."""
    before = re.sub(r"\w+\s*$", "", parameter)
    types = (_TYPES | _ALIASES.keys()) - {"const"}
    return before if types.intersection(re.findall(r"\w+", before)) else parameter


def _normal(text: str) -> str:
    """A C++ type in one spelling; the const of a value is no part of a signature."""
    text = re.sub(r"(::)?\b(at|c10|std)::|\[\[.*?\]\]", "", text)
    text = re.sub(r"\w+", lambda word: _ALIASES.get(word[0], word[0]), text)
    text = re.sub(r"\s*([<>,&*])\s*", r"\1", " ".join(text.split()))
    text = re.sub(r"^([^&*]*) const&$", r"const \1&", text)
    return text if text[-1:] in "&*" else text.removeprefix("const ")


def _is_sure(text: str) -> bool:
    """Whether a type is made of known ones alone."""
    return set(re.findall(r"[A-Za-z_]\w*", text)) <= _TYPES


def _expected(entry: Entry, symint: bool) -> list[str]:
    """The types of the kernel's parameters, '' for one that is not known."""
    mutable = re.findall(r"\(\w+!\)\S* (\w+)", entry.parameters)
    if entry.fields.get("use_const_ref_for_mutable_tensors"):
        mutable = []
    return [_cpp(t, symint, name in mutable) for name, t in entry.types.items()]


def _cpp(declared: str, symint: bool, mutable: bool = False) -> str:
    """What a kernel takes for a type of the schema's, as _normal has it."""
    found = re.fullmatch(r"(\w+)(\?)?(?:(\[)(\d*)\])?(\?)?", declared)
    if not found:
        return ""
    base, inner, is_list, size, optional = found.groups()
    name = "string_view" if base == "str" else _value(base, symint)  # as an argument alone
    if inner and is_list:
        return "const List<optional<Tensor>>&" if base == "Tensor" and not optional else ""
    if base == "bool" and is_list:
        return f"array<bool,{size}>" if size and not optional else ""
    if is_list and optional and base in {"int", "SymInt"}:
        return f"OptionalArrayRef<{name}>"
    text = f"ArrayRef<{name}>" if is_list else name
    text = f"optional<{text}>" if inner or optional else text
    if base in {"Tensor", "Scalar"} and not is_list:
        return f"{text}&" if mutable else f"const {text}&"
    return text if _is_sure(text) else ""


def _value(base: str, symint: bool) -> str:
    if base == "SymInt":
        return "SymInt" if symint else "int64_t"
    return _OF_SCHEMA.get(base, base)


def _result(returns: str) -> str:
    """What a kernel returns, as _normal has it; '' where it is not known."""
    values = []
    for part in (returns[1:-1] if returns.startswith("(") else returns).split(","):
        text = re.sub(r"\(.*?\)", "", re.sub(r"\(\w+!\)", "&", "".join(part.split()[:1])))
        text = re.sub(r"^\w+", lambda word: _value(word[0], symint=True), text)
        values.append(re.sub(r"^(.*)\[\]$", r"vector<\1>", text))
    text = f"tuple<{','.join(values)}>" if len(values) > 1 else values[0] or "void"
    return text if _is_sure(text) and not re.search(r"[?[]", text) else ""


def _blank(found: re.Match[str]) -> str:
    """A comment as white space; a string's quotes stay."""
    inside = re.sub(r"[^\n]", " ", found[0])
    return f'"{inside[1:-1]}"' if found[0].startswith('"') else inside


def objections(
    additions: Additions, base: Base, exported: Callable[[], Collection[str]]
) -> list[ForkError]:
    """Every objection to the sources that are compiled for this base.

    exported: the mangled names that the base's libraries export; slow, so asked only when needed.
    """
    sources = [
        Source(path)
        for path in additions.sources
        if base.cuda is not None
        or not ({"cuda"} & set(path.parts) or path.suffix in {".cu", ".cuh"})
    ]
    errors: list[ForkError] = [*foreign_registrations(additions)]
    errors += _headers_of_upstream(sources, additions, base)
    errors += (e for source in sources for e in _missing_includes(source, additions, base))
    if not any("##" in source.code for source in sources):  # a macro may make any name
        errors += _missing_kernels(sources, additions, base, exported)
        errors += _stubs_without_kernels([Source(path) for path in additions.sources], exported)
    errors += _hidden_calls(sources, additions, base, exported)
    return errors


def foreign_registrations(additions: Additions) -> Iterator[KernelError]:
    """Registrations that code from an extension still has: of another library than ATen."""
    for source in map(Source, additions.sources):
        for found in _LIBRARY.finditer(source.code):
            form, library = found.groups()
            if library == "aten" and form != "TORCH_LIBRARY":
                continue
            yield KernelError(
                f"{form}({library}, …) is left over from an extension",
                where=source.at(found.start(2)),
                why="the operators of these additions belong to the library 'aten': the YAML "
                "declares, registers and binds them; two owners of one library abort the import",
                next=f"delete it; declare each operator in {additions.native.path.name}, with its "
                "kernels under 'dispatch:'",
                kind="foreign library",
            )


def _headers_of_upstream(
    sources: Collection[Source], additions: Additions, base: Base
) -> Iterator[CollisionError]:
    """Headers with the path of one of upstream's, which would be read in its place.

    One that nobody includes is a backport's, for releases without it.
    """
    included = {name for source in sources for name in _INCLUDE.findall(source.text)}
    for path in additions.headers:
        name = f"ATen/{path.relative_to(additions.source_root).as_posix()}"
        theirs = base.include / name
        if name in included and theirs.is_file() and theirs.read_bytes() != path.read_bytes():
            yield CollisionError(
                f"the header {name} is one of torch {base.version}'s",
                where=str(path),
                why="upstream's own headers and whoever includes them would get yours",
                next="give it another name",
                kind="name taken upstream",
            )


def _missing_includes(source: Source, additions: Additions, base: Base) -> Iterator[CompileError]:
    """Includes of upstream's headers that this release or this wheel does not have."""
    roots = (
        base.include, base.include / "torch/csrc/api/include", SUPPORT / "stand_ins",
    )  # fmt: skip
    if not (base.include / "ATen").is_dir():
        return
    for offset, name, quoted in _unconditional_includes(source.text):
        if _GENERATED.fullmatch(name) and _is_made(name, additions):
            continue
        own = additions.source_root / name.removeprefix("ATen/")
        if own.is_file() or any((root / name).is_file() for root in roots):
            continue
        if not name.startswith(_UPSTREAM):
            if quoted and "cuda" not in str(source.path) and not _is_known(name, source):
                yield CompileError(
                    f'the header "{name}" is nowhere',
                    where=source.at(offset),
                    why="it is not beside the file, and neither PyTorch nor the compiler has it",
                    next="copy it into aten_src as well, or correct the name",
                )
            continue
        of_operator = name.startswith("ATen/ops/")
        yield CompileError(
            f"the header {name} is not in torch {base.version}",
            where=source.at(offset),
            why="neither the release nor the additions declare an operator of this name"
            if of_operator
            else "the wheel has no such file: this release may have moved or dropped it, or "
            "upstream does not install it",
            next=f"declare it in {additions.native.path.name}, or correct the name"
            if of_operator
            else "include what the release has, behind __has_include where releases differ, or "
            f"write what you need in a header of yours; or build from source: {FROM_SOURCE}",
            kind="header gone",
        )


def _is_made(name: str, additions: Additions) -> bool:
    """Whether the generator makes a header that the wheel may lack: our operators' among them."""
    if not name.startswith("ATen/ops/"):
        return True
    stem = Path(name).stem
    names = {name.partition(".")[0].rstrip("_") for name in additions.native.functions}
    return any(stem == own or stem.startswith(f"{own}_") for own in names)


def _is_known(name: str, source: Source) -> bool:
    """Whether a header lies beside a source, or may be one of the compiler's."""
    if (source.path.parent / name).is_file():
        return True
    try:
        command: list[str | Path] = [*find_cxx(os.environ).split(), "-E", "-x", "c++", "-"]
        return not process.run(command, check=False, input_text=f'#include "{name}"\n').returncode
    except ForkError:
        return True  # the build will say what is wrong with the compiler


def _unconditional_includes(text: str) -> Iterator[tuple[int, str, bool]]:
    """The includes that every compiler sees, with their offsets, and whether quotes are around."""
    known: list[bool | None] = []  # of each open condition: whether it holds, None if unknown
    offset = 0
    for line in text.splitlines(keepends=True):
        if found := _CONDITION.match(line.rstrip()):
            word, condition = found[1], found[2].strip()
            if word in {"if", "ifdef", "ifndef"}:
                known.append(_PER_OPERATOR.get((word, condition)))
            elif known and word == "else":
                known[-1] = None if known[-1] is None else not known[-1]
            elif known and word == "elif":
                known[-1] = None
            elif known:
                known.pop()
        elif (include := _INCLUDE.match(line)) and all(known):
            yield offset, include[1], '"' in line
        offset += len(line)


def _missing_kernels(
    sources: Collection[Source],
    additions: Additions,
    base: Base,
    exported: Callable[[], Collection[str]],
) -> Iterator[KernelError]:
    """Kernels that an entry names and no source defines, and meta functions of structured ones."""
    metas: dict[str, str] = {}  # by the function's name, why it is no meta function
    for source in sources:
        for found in _META.finditer(source.code):
            outside = source.outside("at::meta", found.start())
            name = "_".join(filter(None, found.groups()))
            metas[name] = f"{source.at(found.start())}: {outside}" if outside else ""
    sure = all(source.is_plain for source in sources if "META_FUNC" in source.code)
    included = {Path(name).name for source in sources for name in _INCLUDE.findall(source.text)}
    compiled = [s for s in sources if s.path.suffix not in _HEADERS or s.path.name in included]
    defined: set[tuple[str, int]] = set()
    for entry in additions.native.entries:
        delegating = [e.name for e in additions.native.entries
                      if e.delegate == entry.name and "structured" in entry.fields]  # fmt: skip
        for name in delegating if sure else ():  # an in-place one has the functional one's
            meta = name.replace(".", "_")
            if "_." not in f"{name}." and metas.get(meta, "none"):
                wrong = [metas[meta]] if meta in metas else []
                yield _missing(entry, "structured", additions, f"TORCH_META_FUNC({meta})", wrong)
        dispatch = entry.fields.get("dispatch")
        for keys, kernel in dispatch.items() if isinstance(dispatch, dict) else ():
            name = str(kernel).rpartition("::")[2]
            built = [k for k in words(keys) if base.cuda is not None or "CUDA" not in k]
            if not [key for key in built if not _NOT_BUILT.search(key)]:
                continue
            mentions = [m for source in compiled for m in source.mentions(name, entry)]
            objections = [f"{m.where}: {m.objection}" for m in mentions if m.objection]
            if len(objections) < len(mentions):
                overload = (name, len(entry.types))
                if overload not in defined:
                    yield from _defined_twice(name, mentions)
                defined.add(overload)
            elif not _is_generated(entry) and not _is_exported(name, exported()):
                yield _missing(entry, "dispatch", additions, name, objections)


def _stubs_without_kernels(
    sources: Collection[Source], exported: Callable[[], Collection[str]]
) -> Iterator[KernelError]:
    """Dispatch stubs that nobody registers a kernel for: calls of them lack a symbol.

    One with the name of upstream's is refused for that, with the objects' other symbols.
    """
    for source in sources:
        for found in re.finditer(r"^DEFINE_DISPATCH\s*\(\s*(\w+)", source.code, re.MULTILINE):
            register = re.compile(rf"REGISTER\w*\s*\(\s*{found[1]}\b")
            registered = any(
                register.search(one.code)
                or (one.path.parent.name == "cpu" and found[1] in one.code)
                for one in sources
            )
            if not registered and not _is_exported(found[1], exported()):
                yield KernelError(
                    f"the stub '{found[1]}' has no kernel",
                    where=source.at(found.start(1)),
                    why="no source registers one for it",
                    next=f"write REGISTER_DISPATCH({found[1]}, &kernel) in a file of native/cpu",
                )


def _defined_twice(name: str, found: Collection[Mention]) -> Iterator[KernelError]:
    """Two definitions with the same parameters: others are overloads, of other entries."""
    first: dict[str, str] = {}
    for mention in found:
        if mention.parameters is None:
            continue
        where = first.setdefault(mention.parameters, mention.where)
        if where != mention.where:
            yield KernelError(
                f"the kernel '{name}' is defined twice",
                where=where,
                why=f"the other one: {mention.where}",
                next="delete or rename one of the two",
            )


def _missing(
    entry: Entry, field: str, additions: Additions, name: str, found: list[str]
) -> KernelError:
    others = [path for path in paths.tree(additions.source_root, additions.root)
              if (path.suffix in _NOT_COMPILED or path not in additions.sources)
              and name in Source(path).text]  # fmt: skip
    what = "is not defined as the entry has it" if found else "is declared and defined nowhere"
    found = found or [
        f"{path}: no source includes it" if path.suffix in _HEADERS
        else f"{path}: left out, with an operator for other releases whose _native.h it includes"
        if path.suffix in {".cpp", ".cu"}
        else f"{path}: no file ending in {path.suffix} is compiled"
        for path in others
    ]  # fmt: skip
    return KernelError(
        f"the kernel '{name}' {what}",
        where=entry.where(field),
        why="\n".join(found) or f"no source below {additions.source_root} has the word",
        next=f"{'correct' if found else 'define'} it in aten_src/native, in a .cpp or .cu file, in "
        f"namespace at::{'meta' if field == 'structured' else 'native'}, or correct the entry",
    )


def _is_generated(entry: Entry) -> bool:
    """Whether torchgen writes the kernel: the copying variant of a view."""
    return "view_copy" in words(entry.fields.get("tags", []))


def _is_exported(name: str, exported: Collection[str]) -> bool:
    part = f"6native{len(name)}{name}"
    return any(part in symbol for symbol in exported)


def _hidden_calls(
    sources: Collection[Source],
    additions: Additions,
    base: Base,
    exported: Callable[[], Collection[str]],
) -> Iterator[KernelError]:
    """Calls of functions that a private header of upstream's declares and no library exports."""
    own = "\n".join(
        line for source in sources for line in source.code.splitlines() if line[:1].strip()
    )
    for source in sources:
        included = [n for n in _INCLUDE.findall(source.text) if n.startswith("ATen/native/")]
        headers = [base.include / name for name in included if (base.include / name).is_file()]
        text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in headers)
        reported: set[str] = set()
        for found in _CALL.finditer(source.code) if text else ():
            name = found[1]
            if name in reported or name not in text or not _is_declared(name, text):
                continue
            reported.add(name)
            if re.search(rf"\b{name}\s*\(", own) and not found[0].startswith(("at::", "native::")):
                continue  # defined or declared at the start of a line of ours
            if _has_body(name, base) or _is_exported(name, exported()):
                continue
            yield KernelError(
                f"'at::native::{name}' is called and no library exports it",
                where=source.at(found.start(1)),
                why="a header of upstream's declares it for libtorch's own kernels (it is not "
                "TORCH_API), so a graft cannot call it",
                next="call the operator's public at:: function, or define what you need yourself; "
                f"or build from source: {FROM_SOURCE}",
                kind="symbol hidden",
            )


def _is_declared(name: str, header: str) -> bool:
    """Whether a header declares a function, in a line of its own namespace, and does not define it.

    A call within a function of the header's is indented.
    """
    declared = re.search(rf"^[A-Za-z][\w:<>,&* \t]*[\s&*>]{name}\s*\(", header, re.MULTILINE)
    return declared is not None and declared_without_body(header, name)


def _has_body(name: str, base: Base) -> bool:
    """Whether some header of upstream's kernels defines a function inline."""
    body = re.compile(rf"\b{name}\s*\([^;{{]*\)[^;{{]*\{{")
    headers = (base.include / "ATen" / "native").rglob("*.h")
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in headers)
    return any(name in text and body.search(text) for text in texts)
