"""Errors: each says what to do next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from torchfork import errors

PACKAGE = Path(errors.__file__).parent
# Those without a cure of their class: each must bring its own.
WITHOUT_CURE = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.ForkError) and not kind.cure
}
LATER = {"diagnostics.py"}  # says it when it knows which of several errors is shown last


def silent() -> Iterator[str]:
    """Each place that makes an error and leaves its `next` out."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or path.name in LATER:
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in WITHOUT_CURE and not {k.arg for k in node.keywords} & {"next", None}:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_every_error_says_what_to_do_next() -> None:
    assert "UsageError" in WITHOUT_CURE and "PatchError" not in WITHOUT_CURE
    assert list(silent()) == []


def test_an_error_that_does_not_say_gets_the_cure_of_its_class() -> None:
    assert errors.PatchError("a").next == errors.PatchError.cure
    assert errors.PatchError("a", next="b").next == "b"
