"""Python source, stubs and headers read without running them: torch is not imported.

The attributes that a torch's modules have are what an added operator of the same name would
overwrite; with what namespace at has, its functions would clash.
"""

from __future__ import annotations

import ast
import re
import symtable
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..util.blocks import strip_blocks

Read = Callable[[str], str | None]

TENSOR, AT = "Tensor", "at"
# Where upstream binds operators -> the files that hold the names of that place.
HOMES = {
    "torch": ("torch/__init__.py", "torch/_C/_VariableFunctions.pyi"),
    "nn": ("torch/nn/functional.py", "torch/_C/_nn.pyi"),
    "special": ("torch/special/__init__.py",),
    "linalg": ("torch/linalg/__init__.py",),
    "fft": ("torch/fft/__init__.py",),
    "nested": ("torch/nested/__init__.py",),
    "sparse": ("torch/sparse/__init__.py",),
}
# The headers that list the types of elements; torch.uint1 and its like are registered from C++.
SCALAR_TYPES = tuple(
    f"{root}{place}/core/ScalarType.h"
    for root in ("torch/include/", "")
    for place in ("torch/headeronly", "c10")
)
TENSOR_BASE = tuple(f"{root}/ATen/core/TensorBase.h" for root in ("torch/include", "aten/src"))
# Registered from C++ as well, and in no stub: an enumeration and a submodule of torch._C.
UNLISTED = frozenset({"bit", "cpp"})
# What the interpreter gives every module and every class.
IMPLICIT = frozenset(
    {*dir(object), *dir(types.ModuleType("m")), "__annotations__", "__builtins__", "__cached__",
     "__dict__", "__file__", "__path__", "__weakref__"}
)  # fmt: skip
_PARSER = threading.Lock()
_DEEPEST = 4  # star imports followed one from another
_PRIVATE_STRING = re.compile(rb"[\0\"](_[a-z]\w*)(?=[\0\"])")
_TYPING_ONLY = re.compile(r"^( *)if (?:typing\.)?TYPE_CHECKING:\n(?:\1 .*\n|\n)*", re.MULTILINE)
_ALL = re.compile(r"^__all__\b[^=\n]*=(.*?)(?=^[\w@#]|\Z)", re.MULTILINE | re.DOTALL)
_STUB_NAME = re.compile(r"^(?:async )?(?:def|class) (\w+)|^(\w+) *[:=]", re.MULTILINE)
# Comments and strings, namespaces, functions at the beginning of a line, and braces.
_SCOPES = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|\bnamespace\s+([\w:]+)\s*\{"
    r"|^[A-Za-z][\w:<>,&* ]*[ &*](\w+)\(|[{}]",
    re.DOTALL | re.MULTILINE,
)


def parse(text: str) -> ast.Module:
    """ast.parse for several threads: CPython 3.11's fails at random where two run at once."""
    with _PARSER:
        return ast.parse(text)


def defines(text: str, name: str) -> bool:
    """Whether a module's, a stub's or a stub template's text defines or imports a name."""
    escaped = re.escape(name)
    patterns = (
        rf"(?:async )?(?:def|class) {escaped}\b",
        rf"{escaped} *(?::[^=\n]*)?=",
        rf"from \S+ import (?:.*, *)?{escaped}(?:,|$| *#)",
        rf"(?:from \S+ import .*|    )\w+ as {escaped}(?:,|$| *#)",
    )
    return re.search(rf"^(?:{'|'.join(patterns)})", text, re.MULTILINE) is not None


def has_all(text: str) -> bool:
    """Whether the text keeps an __all__."""
    return re.search(r"^__all__\b", text, re.MULTILINE) is not None


def definitions(text: str, class_name: str | None) -> dict[str, list[ast.FunctionDef]]:
    """Functions of a stub by name: those at top level, or the methods of one class."""
    body: list[ast.stmt] = parse(text).body
    if class_name is not None:
        classes = [n for n in body if isinstance(n, ast.ClassDef) and n.name == class_name]
        body = [node for found in classes for node in found.body]
    functions: dict[str, list[ast.FunctionDef]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
    return functions


def annotation_names(hint: str) -> set[str]:
    """Every bare name that a stub line uses in its annotations and defaults."""
    return {node.id for node in ast.walk(parse(hint)) if isinstance(node, ast.Name)}


def attributes(
    read: Read, root: Path, compiled: Iterable[Path], include: Path
) -> dict[str, frozenset[str]]:
    """The names by home: a key of HOMES, TENSOR for attributes of torch.Tensor, or AT.

    read: the text of a file of site-packages or of a source tree, None where it has none.
    root: that directory. compiled: what binds names from C++, libraries or sources.
    include: the directory that has ATen's headers.
    """
    found = {
        home: IMPLICIT | _of_files(read, files) | submodules_of(root / Path(files[0]).parent)
        for home, files in HOMES.items()
    }
    overrides = _text(read, "torch/overrides.py") or ""
    found["torch"] |= {*re.findall(r"\btorch\.(\w+)\b(?!\.)", overrides)}
    found["torch"] |= {name for path in compiled for name in private_strings(path)}
    headers = "".join(read(path) or "" for path in SCALAR_TYPES)
    types = re.findall(r"\b_\([^,()]+, (\w+)\) /\* \d", headers)
    found["torch"] |= {*UNLISTED, *map(str.lower, types)}
    # C++ members, which a method of the name in the derived class would hide.
    base = "".join(read(path) or "" for path in TENSOR_BASE)
    members = re.findall(r"^  \w[^\n(=;]*?\b(\w+)\(", base, re.MULTILINE)
    found[TENSOR] = frozenset(members).union(
        {*_of_tensor(read), *IMPLICIT, *re.findall(r"\bTensor\.(\w+)", overrides)}
    )
    found[AT] = _in_at(include)
    return found


def _in_at(include: Path) -> frozenset[str]:
    """The namespaces and functions directly in namespace at, by its headers' text; no operators."""
    found: set[str] = set()
    for header in (include / "ATen").rglob("*.h"):
        scopes: list[str] = []
        text = "" if header.parent.name == "ops" else header.read_text("utf-8", errors="replace")
        for token in _SCOPES.finditer(text):
            if token[0] == "}":
                scopes = scopes[:-1]
            elif token[2] and scopes == ["at"]:
                found.add(token[2])
            elif token[1] or token[0] == "{":
                scopes.append(token[1] or "{")
                if token[1] and (names := "::".join(scopes).split("::"))[0] == "at" != names[-1]:
                    found.add(names[1])
    return frozenset(found)


def private_strings(file: Path) -> set[str]:
    """The strings of a library or a C++ source that may be private names of Python's.

    Methods of torch and of torch._C that C++ binds under such names are in no stub.
    """
    return {name.decode() for name in _PRIVATE_STRING.findall(file.read_bytes())}


def submodules_of(package: Path) -> set[str]:
    """The names of the modules and packages in a package's directory."""
    modules = {path.stem for path in package.glob("*.py")}
    return modules | {path.parent.name for path in package.glob("*/__init__.py")}


def _symbols(text: str) -> symtable.SymbolTable | None:
    """A module's symbols; None of a text that is for another Python than this one."""
    try:
        with _PARSER:
            return symtable.symtable(text, "", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bound(table: symtable.SymbolTable | None) -> set[str]:
    """The names that a module's or a class's own statements bind."""
    symbols = table.get_symbols() if table else []
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}


def _of_files(read: Read, files: Iterable[str]) -> set[str]:
    return {name for file in files for name in _of_file(read, file, _DEEPEST)}


def _of_file(read: Read, file: str, depth: int) -> set[str]:
    text = _text(read, file)
    if text is None or not depth:
        return set()
    return _of_stub(text) if file.endswith(".pyi") else _of_module(text, read, depth)


def _text(read: Read, file: str) -> str | None:
    """A file's text, or its template's in a source tree, where stubs are still to be generated."""
    text = read(file)
    if text is None and file.endswith(".pyi"):
        text = read(f"{file}.in")
    return None if text is None else strip_blocks(text, file)


def _of_stub(text: str) -> set[str]:
    return {match[1] or match[2] for match in _STUB_NAME.finditer(text)}


def _of_module(text: str, read: Read, depth: int) -> set[str]:
    text = _TYPING_ONLY.sub(r"\1if 0:\n\1    pass\n", text)
    table = _symbols(text)
    if table is None:
        return set()
    module = parse(text)
    submodules = re.findall(r"^ *from \.(\w+)", text, re.MULTILINE)
    names = {*_bound(table), *_listed(text), *_computed(module), *submodules}
    for star in re.findall(r"^ *from (\w[\w.]*) import \*", text, re.MULTILINE):
        names |= _of_star_import(star.replace(".", "/"), read, depth)
    return names - _deleted(module)


def _deleted(node: ast.AST) -> set[str]:
    """The names that a module's own statements delete, and not those in functions and classes."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
        return set()
    if isinstance(node, ast.Delete):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set[str]().union(*map(_deleted, ast.iter_child_nodes(node)))


def _computed(module: ast.Module) -> Iterator[str]:
    """The names that loops over strings make by f"_sym_{name}"."""
    for loop in [node for node in ast.walk(module) if isinstance(node, ast.For)]:
        words = [node.value for node in ast.walk(loop.iter) if isinstance(node, ast.Constant)]
        for node in ast.walk(loop):
            if isinstance(node, ast.JoinedStr):
                heads = [part for part in node.values[:1] if isinstance(part, ast.Constant)]
                yield from (f"{head.value!s}{word!s}" for head in heads for word in words)


def _of_star_import(module: str, read: Read, depth: int) -> set[str]:
    names: set[str] = set()
    for file in (f"{module}.py", f"{module}/__init__.py", f"{module}/__init__.pyi"):
        listed = _listed(_text(read, file) or "") if file.endswith(".py") else set()
        names |= listed or {n for n in _of_file(read, file, depth - 1) if not n.startswith("_")}
    return names


def _listed(text: str) -> set[str]:
    """The strings of a module's __all__."""
    return {name for block in _ALL.findall(text) for name in re.findall(r"[\"'](\w+)[\"']", block)}


def _of_tensor(read: Read) -> set[str]:
    names: set[str] = set()
    stub = re.search(
        r"^class TensorBase\b.*?:\n(.*?)(?=^\S|\Z)",
        _text(read, "torch/_C/__init__.pyi") or "",
        re.MULTILINE | re.DOTALL,
    )
    if stub:
        names |= set(re.findall(r"^    (?:def )?(\w+)(?=[(:]| *=)", stub[1], re.MULTILINE))
    module = _symbols(_text(read, "torch/_tensor.py") or "")
    classes = {table.get_name(): table for table in (module.get_children() if module else ())}
    names |= _bound(classes.get("Tensor"))
    docs = _text(read, "torch/_tensor_docs.py") or ""
    return names | set(re.findall(r"^add_docstr_all\(\s*\"(\w+)\"", docs, re.MULTILINE))
