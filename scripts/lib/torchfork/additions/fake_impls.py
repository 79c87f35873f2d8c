"""Rules for fake tensors: functions that go to the end of torch/_subclasses/fake_impls.py.

An operator whose result's size depends on data has no Meta kernel that could give its shape.
Upstream writes a rule in Python for each such operator of its own, under `@register_op_impl(...)`;
the additions' fake_impls_additions.py has the same form.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdditionsError, CollisionError
from . import paths

FILE = "fake_impls_additions.py"
_OPERATOR = re.compile(r"\baten\.(\w+)")


@dataclass(frozen=True)
class Rule:
    """A function of the file, the lines it has, and the operators that it is registered for."""

    first: int
    last: int
    operators: frozenset[str]  # without overloads


def read(root: Path) -> str:
    """The text of the file; '' where there is none. Raises AdditionsError where it is no Python."""
    path = root / FILE
    if not paths.is_file(path, root):
        return ""
    try:
        text = paths.read(path).decode("utf-8")
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise AdditionsError(
            "the rules for fake tensors are not Python",
            where=f"{path}:{getattr(error, 'lineno', None) or 1}",
            why=str(error),
            next="correct the line",
        ) from error
    return text


def rules(text: str) -> Iterator[Rule]:
    """The functions of the file that are registered for operators."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            names = {n for d in node.decorator_list for n in _OPERATOR.findall(ast.unparse(d))}
            first = min(decorator.lineno for decorator in node.decorator_list)
            yield Rule(first, node.end_lineno or node.lineno, frozenset(names))


def has_rule(text: str, operator: str) -> bool:
    """Whether there is a rule for an operator, given by its name with or without overload."""
    return any(operator.partition(".")[0] in rule.operators for rule in rules(text))


def without(text: str, operators: Collection[str]) -> str:
    """The text less the rules for operators that a release does not get; lines stay in place."""
    lines = text.splitlines(keepends=True)
    for rule in rules(text):
        if rule.operators & set(operators):
            lines[rule.first - 1 : rule.last] = ["\n"] * (rule.last - rule.first + 1)
    return "".join(lines)


def objections(
    root: Path, text: str, ours: Collection[str], upstream: Collection[str]
) -> Iterator[AdditionsError | CollisionError]:
    """Rules whose operators are not the additions' own: importing torch would fail there.

    ours, upstream: names of operators without overloads.
    """
    for rule in rules(text):
        for name in sorted(rule.operators - set(ours)):
            where = f"{root / FILE}:{rule.first}"
            if name in upstream:
                yield CollisionError(
                    f"a rule for fake tensors of '{name}', which is upstream's",
                    where=where,
                    why="upstream has a rule or a Meta kernel of its own for it",
                    next="delete it, or change upstream's by a patch in patches/",
                )
            else:
                yield AdditionsError(
                    f"a rule for fake tensors of '{name}', which is declared nowhere",
                    where=where,
                    next="declare the operator, or correct the name",
                )
