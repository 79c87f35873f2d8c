"""Signatures of the manifest, gathered by the name that Python sees."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.model import Deprecated, Manifest, Operator
from .edit import Signatures


def function_signatures(manifest: Manifest, module: str | None) -> dict[str, Signatures]:
    """Added functions of a python_module, deprecated signatures after the others."""
    functions = [op for op in manifest.operators if op.python_function]
    entries: list[Operator | Deprecated] = [*functions, *manifest.deprecated]
    wanted = [e for e in entries if e.python_module == module]
    return _gather(manifest, [(e.name, e.pyi_function) for e in wanted])


def method_signatures(manifest: Manifest) -> dict[str, Signatures]:
    """Added Tensor methods; upstream has no stubs for deprecated ones."""
    wanted = [op for op in manifest.operators if op.python_method]
    return _gather(manifest, [(op.name, op.pyi_method) for op in wanted])


def _gather(
    manifest: Manifest, hints_by_name: Sequence[tuple[str, tuple[str, ...]]]
) -> dict[str, Signatures]:
    """Signatures by name, equal ones once."""
    old = {op.name for op in manifest.operators if not op.new_name}
    hints: dict[str, list[str]] = {}
    for name, lines in hints_by_name:
        hints.setdefault(name, []).extend(lines)
    return {
        name: Signatures(tuple(dict.fromkeys(found)), name not in old)
        for name, found in hints.items()
        if found
    }
