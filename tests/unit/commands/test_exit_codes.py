"""Every class of error has an exit code, which docs/exit-codes.md lists; each says what is next."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchfork import cli, errors

PAGE = Path(__file__).resolve().parents[3] / "docs" / "exit-codes.md"
CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.ForkError)
]


def test_no_two_classes_share_an_exit_code() -> None:
    codes = [kind.exit_code for kind in CLASSES]
    assert len(CLASSES) > 15 and len(set(codes)) == len(codes)
    # what shells and the command line itself use
    assert not {0, cli.INTERRUPTED} & set(codes) and max(codes) < 126
    assert set(rows()) <= {*codes, 0, cli.INTERRUPTED}, "the page has one that does not exist"


def rows() -> dict[int, str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [re.match(r"\|\s*`?(\d+)`?\s*\|(.+)\|\s*$", line) for line in lines]
    return {int(match[1]): match[2] for match in found if match}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_page_has_every_exit_code_and_its_cure(kind: type[errors.ForkError]) -> None:
    row = rows().get(kind.exit_code)
    assert row is not None, f"{PAGE.name} lacks {kind.exit_code} ({kind.__name__})"
    meaning, _, cure = (cell.strip() for cell in row.rpartition("|"))
    assert kind.__name__ in meaning and len(meaning) > 30 and len(cure) > 5, row


def test_a_message_labels_its_parts_and_leaves_out_the_empty_ones() -> None:
    error = errors.KernelError("it is gone", where="a.cpp:3", next="look\nharder")
    assert error.render() == "error: it is gone\nwhere: a.cpp:3\nnext:  look\n       harder"


def test_several_errors_are_one_message_and_keep_the_first_ones_exit_code() -> None:
    two = errors.combined([errors.DerivativeError("no formula"), errors.UsageError("no option")])
    both = errors.combined([errors.KernelError("it is gone"), two])
    assert both.render() == "error: it is gone\n\nerror: no formula\n\nerror: no option"
    assert both.exit_code == errors.KernelError.exit_code


PACKAGE = Path(errors.__file__).parent
# Those without a cure of their class: each must bring its own.
WITHOUT_CURE = {kind.__name__ for kind in CLASSES if not kind.cure}
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
