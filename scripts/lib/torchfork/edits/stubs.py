"""Type stubs of the additions, put into a wheel's own .pyi files.

A source build generates them itself, apart from those of python_module nn, whose function stubs
upstream keeps by hand (nn_stub, functional_stub). Operators of the other modules have none in
either build mode: upstream's torch.special and its like are untyped builtins too.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..codegen.model import Deprecated, Manifest, Operator
from ..errors import BaseRefusedError
from ..upstream.python_names import annotation_names, defines, definitions, has_all
from ..util.blocks import END_OF_FILE, Anchor, block, place, strip_blocks

STUB_TYPES = "torch.types"
BUILTINS = {"torch", *dir(builtins)}
# Where the names in generated signatures come from. Upstream's own signatures in these stubs use
# some of them, so the files import only those; importing a name twice does no harm. A name that
# is not here is one that a later release put among its other stub types (PySymType in 2.15).
SOURCES = {
    "torch": "contiguous_format Generator inf memory_format per_tensor_affine SymInt Tensor",
    "torch._prims_common": "DeviceLikeType",
    STUB_TYPES: "_bool _complex _device _dtype _float _int _layout _qscheme _size Number",
    "typing": "Any Dict List Literal Optional Sequence Tuple Union overload",
}


@dataclass(frozen=True)
class Signatures:
    """The added signatures of one name, and whether the base has nothing of that name."""

    hints: tuple[str, ...]
    new: bool

    def lines(self, *, overloaded: bool) -> list[str]:
        """The lines of the stub, each signature under its @overload where there are several."""
        lines: list[str] = []
        for hint in self.hints:
            lines += (["@overload"] if overloaded else []) + hint.split("\n")
        return lines


def stub_edits(read: Callable[[str], str | None], manifest: Manifest) -> dict[str, str]:
    """The stubs that change, by path relative to site-packages, with their new text.

    read: a file's present text, or None. Blocks of an earlier run are taken out first, and only
    files whose text differs from what `read` gave are in the answer.
    """
    changed: dict[str, str] = {}
    for path, edit in EDITS.items():
        present = read(path)
        if present is None:
            raise BaseRefusedError(
                "a type stub that every known release has is missing",
                where=path,
                why="the base is no complete torch",
                next="reinstall the wheel, or use an unmodified one",
            )
        text = edit(path, strip_blocks(present, path), manifest)
        if text != present:
            changed[path] = text
    return changed


def function_signatures(manifest: Manifest, module: str | None) -> dict[str, Signatures]:
    """Added functions of a python_module by name, deprecated signatures after the others."""
    functions = [op for op in manifest.operators if op.python_function]
    entries: list[Operator | Deprecated] = [*functions, *manifest.deprecated]
    wanted = [entry for entry in entries if entry.python_module == module]
    return _by_name(manifest, ((entry.name, entry.pyi_function) for entry in wanted))


def method_signatures(manifest: Manifest) -> dict[str, Signatures]:
    """Added Tensor methods by name; upstream has no stubs for deprecated ones."""
    methods = [op for op in manifest.operators if op.python_method]
    return _by_name(manifest, ((op.name, op.pyi_method) for op in methods))


def _by_name(
    manifest: Manifest, entries: Iterable[tuple[str, tuple[str, ...]]]
) -> dict[str, Signatures]:
    """Signatures by name, equal ones once."""
    old = {op.name for op in manifest.operators if not op.new_name}
    hints: dict[str, list[str]] = {}
    for name, lines in entries:
        hints.setdefault(name, []).extend(lines)
    return {
        name: Signatures(tuple(dict.fromkeys(lines)), name not in old)
        for name, lines in hints.items()
        if lines
    }


@dataclass(frozen=True)
class Scope:
    """A scope of a stub: its file, where new names go, and the class whose methods they are."""

    path: str
    anchor: Anchor
    class_name: str | None = None

    @property
    def indent(self) -> str:
        """The indentation of a definition in this scope."""
        return "" if self.class_name is None else "    "


def edit_stub(text: str, added: Mapping[str, Signatures], scope: Scope) -> str:
    """Upstream's stub (without blocks of ours) with the added signatures.

    A name that the base has and that its stub leaves out stays out: one overload alone would say
    that the others do not exist.
    """
    present = definitions(text, scope.class_name) if added else {}
    beside = {name: added[name] for name in sorted(added) if name in present}
    for line, inserted in sorted(_overloads(present, beside, scope.indent), reverse=True):
        lines = text.splitlines(keepends=True)
        text = "".join([*lines[:line], inserted, *lines[line:]])
    new = {name: added[name] for name in sorted(added) if name not in present and added[name].new}
    if not new:
        return text
    return place(text, scope.anchor, _new_names(text, new, scope), scope.path)


def _overloads(
    present: Mapping[str, list[ast.FunctionDef]], added: Mapping[str, Signatures], indent: str
) -> list[tuple[int, str]]:
    """(line, text) to insert so that names that are defined already gain their new overloads."""
    insertions = []
    for name, signatures in added.items():
        first, last = present[name][0], present[name][-1]
        if not first.decorator_list:
            insertions.append((first.lineno - 1, block(["@overload"], "#", indent)))
        hints = signatures.lines(overloaded=True)
        insertions.append((last.end_lineno or last.lineno, block(hints, "#", indent)))
    return insertions


def _new_names(text: str, new: Mapping[str, Signatures], scope: Scope) -> str:
    """The block of names that the stub has nothing of."""
    lines: list[str] = []
    for signatures in new.values():
        lines += signatures.lines(overloaded=len(signatures.hints) > 1)
    if scope.class_name is None and has_all(text):
        lines.append(f"__all__ += {list(new)!r}")
    return block(lines, "#", scope.indent)


def _end(what: str) -> Anchor:
    return Anchor(END_OF_FILE, "after", f"for the stubs of {what}")


def _functions(path: str, text: str, manifest: Manifest) -> str:
    added = function_signatures(manifest, None)
    return edit_stub(text, added, Scope(path, _end("torch's functions")))


def _methods(path: str, text: str, manifest: Manifest) -> str:
    anchor = Anchor(r"class TensorBase\b.*:", "after", "for the stubs of Tensor's methods")
    return edit_stub(text, method_signatures(manifest), Scope(path, anchor, "TensorBase"))


def _nn(path: str, text: str, manifest: Manifest) -> str:
    """The stub of torch._C._nn, which does not import every name that signatures use."""
    signatures = function_signatures(manifest, "nn")
    scope = Scope(path, _end("torch._C._nn"))
    edited = edit_stub(text, signatures, scope)
    if edited == text:
        return text
    needed = _imports([hint for added in signatures.values() for hint in added.hints])
    return place(edited, scope.anchor, block(needed, "#"), path)


def _functional(path: str, text: str, manifest: Manifest) -> str:
    lines = functional_stub(manifest, text)
    return place(text, _end("torch.nn.functional"), block(lines, "#"), path) if lines else text


def _return_types(path: str, text: str, manifest: Manifest) -> str:
    """The classes of named returns."""
    by_name = {op.structseq.name: op.structseq for op in manifest.operators if op.structseq}
    new = [by_name[name] for name in sorted(by_name) if not defines(text, name)]
    lines = [line for structseq in new for line in structseq.pyi.split("\n")]
    if new and has_all(text):
        lines.append(f"__all__ += {[structseq.name for structseq in new]!r}")
    return place(text, _end("torch.return_types"), block(lines, "#"), path) if lines else text


EDITS: dict[str, Callable[[str, str, Manifest], str]] = {
    "torch/_C/_VariableFunctions.pyi": _functions,
    "torch/_VF.pyi": _functions,
    "torch/_C/__init__.pyi": _methods,
    "torch/_C/_nn.pyi": _nn,
    "torch/nn/functional.pyi": _functional,
    "torch/return_types.pyi": _return_types,
}


def nn_stub(manifest: Manifest, upstream: str) -> list[str]:
    """Lines for the template of torch/_C/_nn.pyi: new names with the imports that they need."""
    signatures = function_signatures(manifest, "nn")
    new = [s for n, s in sorted(signatures.items()) if s.new and not defines(upstream, n)]
    lines = _imports([hint for added in new for hint in added.hints])
    for added in new:
        lines += added.lines(overloaded=len(added.hints) > 1)
    return lines


def functional_stub(manifest: Manifest, upstream: str) -> list[str]:
    """Lines for torch/nn/functional.pyi or its template: re-exports of new names."""
    names = [
        name
        for name, added in sorted(function_signatures(manifest, "nn").items())
        if added.new and not name.startswith("_") and not defines(upstream, name)
    ]
    lines = [f"from torch._C._nn import {name} as {name}" for name in names]
    if names and has_all(upstream):
        lines.append(f"__all__ += {names!r}")
    return lines


def _imports(hints: Sequence[str]) -> list[str]:
    """Import lines for every name that signatures use, and overload."""
    used = set[str]().union(*(annotation_names(hint) for hint in hints)) - BUILTINS
    sources = {module: names.split() for module, names in SOURCES.items()}
    known = {name for names in sources.values() for name in names}
    sources[STUB_TYPES] += sorted(used - known)
    lines = ["import torch"] if "torch" in used else []
    for module, names in sources.items():
        wanted = [name for name in names if name in used or (hints and name == "overload")]
        lines += [f"from {module} import {', '.join(wanted)}"] if wanted else []
    return lines
