"""Rules for fake tensors: functions that go to the end of torch/_subclasses/fake_impls.py.

An operator whose result's size depends on data has no Meta kernel that could give its shape.
Upstream writes a rule in Python for each such operator of its own, under `@register_op_impl(...)`;
the additions' fake_impls_additions.py has the same form.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdditionsError, CollisionError
from . import paths

FILE = "fake_impls_additions.py"
_OPERATOR = re.compile(r"\baten\.(\w+(?:\.\w+)?)")


@dataclass(frozen=True)
class Rule:
    """A function of the file, the lines it has, and the operators that it is registered for."""

    first: int
    last: int
    operators: frozenset[str]  # as the YAML names them: 'nms', 'nms.out'


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
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            names = {name.removesuffix(".default") for name in _OPERATOR.findall(decorators)}
            first = min(decorator.lineno for decorator in node.decorator_list)
            yield Rule(first, node.end_lineno or node.lineno, frozenset(names))


def with_packets(functions: Iterable[str]) -> set[str]:
    """The names of functions, and of the packets (operators) whose overloads they are."""
    return {part for name in functions for part in (name, name.partition(".")[0])}


def has_rule(text: str, operator: str) -> bool:
    """Whether there is a rule for an operator, given by its name with overload."""
    return any(operator in rule.operators for rule in rules(text))


def without(text: str, operators: Collection[str]) -> str:
    """The text less each rule with an operator that a release does not get; lines stay in place.

    operators: as `with_packets` names them.
    """
    lines = text.splitlines(keepends=True)
    for rule in rules(text):
        if rule.operators & set(operators):
            lines[rule.first - 1 : rule.last] = ["\n"] * (rule.last - rule.first + 1)
    return "".join(lines)


def objections(
    root: Path, text: str, ours: Collection[str], upstream: Collection[str]
) -> Iterator[AdditionsError | CollisionError]:
    """Rules whose operators are not the additions' own: importing torch would fail there.

    ours, upstream: names of operators with overloads.
    """
    for rule in rules(text):
        for name in sorted(rule.operators - with_packets(ours)):
            where = f"{root / FILE}:{rule.first}"
            if name in with_packets(upstream):
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
