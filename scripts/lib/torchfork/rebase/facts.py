"""What of an upstream may matter to additions and changes from release to release."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..additions.load import Additions
from ..upstream.base import Base
from ..upstream.inventory import Upstream
from ..util import files

_INCLUDE = re.compile(
    r"#include\s*[<\"]ATen/ops/(\w+?)(?:_native|_ops|_meta|_compositeexplicit\w*)?\.h"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CALL = re.compile(r"\b(?:at::|at::native::|\.)?([A-Za-z_]\w*)\s*\(")


def gather(base: Base, additions: Additions, upstream: Upstream) -> dict[str, Any]:
    """Everything that `changes` compares, as JSON has it."""
    return {
        "operators": len(upstream.schemas),
        "tags": sorted(upstream.tags),
        "dispatch_keys": sorted(upstream.dispatch_keys),
        "touched": touched_schemas(additions, upstream),
        "templates": templates(base),
        "validations": validations(base),
    }


def touched_schemas(additions: Additions, upstream: Upstream) -> dict[str, str]:
    """The upstream operators that the sources and formulas of the additions call: name → schema."""
    called = set(_called_names(additions))
    found = {}
    for schema in upstream.schemas:
        name = schema.partition("(")[0]
        if name.partition(".")[0] in called:
            found[name] = schema
    return dict(sorted(found.items()))


def _called_names(additions: Additions) -> Iterator[str]:
    """Names of included operator headers, called in formulas, and shared with our overloads."""
    for path in additions.sources:
        yield from _INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace"))
    for entry in additions.derivatives.entries:
        for key, formula in entry.fields.items():
            if key != "name" and isinstance(formula, str):
                yield from _CALL.findall(formula)
    for entry in additions.native.entries:
        yield entry.name.partition(".")[0]


def templates(base: Base) -> dict[str, str]:
    """A digest of each codegen template: path below the packaged directory → first 16 digits."""
    found = {}
    for folder in (base.packaged / "ATen" / "templates", base.packaged / "autograd" / "templates"):
        for path in files.tree_files(folder):
            found[path.relative_to(base.packaged).as_posix()] = files.sha256_file(path)[:16]
    return found


def validations(base: Base) -> list[str]:
    """Every condition that the code generator refuses something for: 'file: assert …'."""
    folders = (base.root / "torchgen", base.packaged / "autograd")
    found: set[str] = set()
    for path in sorted({p for folder in folders for p in _generator_files(folder)}):
        name = path.relative_to(base.root).as_posix()
        found.update(f"{name}: {text}" for text in _refusals(path))
    return sorted(found)


def _generator_files(folder: Path) -> Iterable[Path]:
    skipped = {
        "executorch",
        "static_runtime",
        "operator_versions",
        "selective_build",
        "shape_functions",
    }
    return (
        path
        for path in files.tree_files(folder)
        if path.suffix == ".py" and not skipped & set(path.parts)
    )


def _refusals(path: Path) -> Iterator[str]:
    """The asserted conditions and raised messages of one file, without their line numbers."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:  # a file for a Python that is newer than ours
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"assert {ast.unparse(node.test)}"[:300]
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield f"raise {ast.unparse(node.exc)}"[:300]
