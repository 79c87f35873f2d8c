"""Reading Python source and stub text without running it."""

from __future__ import annotations

import ast
import re

from ..upstream.python_names import parse


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
