"""Signatures of the manifest, gathered by the name that Python sees."""

from __future__ import annotations

from typing import Any

from .edit import Signatures

Manifest = dict[str, Any]


def function_signatures(manifest: Manifest, module: str | None) -> dict[str, Signatures]:
    """Added functions of a python_module, deprecated signatures after the others."""
    entries = [op for op in manifest["operators"] if op["python_function"]]
    wanted = [e for e in [*entries, *manifest["deprecated"]] if e["python_module"] == module]
    return _gather(manifest, wanted, "pyi_function")


def method_signatures(manifest: Manifest) -> dict[str, Signatures]:
    """Added Tensor methods; upstream has no stubs for deprecated ones."""
    wanted = [op for op in manifest["operators"] if op["python_method"]]
    return _gather(manifest, wanted, "pyi_method")


def _gather(manifest: Manifest, entries: list[dict[str, Any]], key: str) -> dict[str, Signatures]:
    """Signatures by name, equal ones once."""
    old = {op["name"] for op in manifest["operators"] if not op["new_name"]}
    hints: dict[str, list[str]] = {}
    for entry in entries:
        hints.setdefault(entry["name"], []).extend(entry[key])
    return {
        name: Signatures(tuple(dict.fromkeys(lines)), name not in old)
        for name, lines in hints.items()
        if lines
    }
