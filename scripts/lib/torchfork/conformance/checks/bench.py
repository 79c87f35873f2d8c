"""What every check is handed, and what it is: an item of the list."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .operators import Operator
from .outcome import NotApplicable
from .samples import Source

Need = Callable[[Operator], str]  # why an item means nothing for an operator, '' where it does


@dataclass
class Bench:
    """What checks work with.

    prepared: what was done for all operators at once: {'mypy': {operator: complaint}, …}.
    documented: the entries of the additions' documentation pages, by dotted name.
    """

    source: Source
    scratch: Path
    prepared: dict[str, Any]
    documented: frozenset[str]


Check = Callable[[Operator, str, Bench], None]


@dataclass(frozen=True)
class Item:
    """An item of the list.

    title: as the table has it; each_device: whether it is run on every device that there is.
    task: what must have been done before for all operators at once.
    """

    title: str
    check: Check
    needs: tuple[Need, ...] = ()
    each_device: bool = True
    task: str = ""

    def run(self, op: Operator, device: str, bench: Bench) -> None:
        """Check one operator on one device; raises what outcome.py has."""
        for need in self.needs:
            if reason := need(op):
                raise NotApplicable(reason)
        with quiet():
            self.check(op, device, bench)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings are not findings, but for those that a check looks for itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def a_function(op: Operator) -> str:
    return "" if op.entry.python_function else "no Python function by its declaration"


def a_method(op: Operator) -> str:
    return "" if op.entry.python_method else "no method by its declaration"


def a_python_name(op: Operator) -> str:
    return "" if op.bound else "no Python name: upstream binds no operator of this name"


def a_torch_name(op: Operator) -> str:
    if op.entry.python_module not in (None, "special", "linalg", "fft", "sparse", "nested"):
        return f"bound in torch._C._{op.entry.python_module} only, which is private"
    return a_python_name(op)


def tensors_in(op: Operator) -> str:
    return "" if op.tensor_arguments else "takes no tensor"


def tensors_out(op: Operator) -> str:
    return "" if op.tensor_results or op.written else "gives no tensor"


def a_formula(op: Operator) -> str:
    if op.implicit:
        return "composite: differentiated as what it is made of"
    return "" if op.gradients else "no derivative formula"


def a_derivative(op: Operator) -> str:
    if op.implicit:
        return tensors_in(op) or tensors_out(op)
    return "" if op.gradients else "no derivative formula"


def known_sizes(op: Operator) -> str:
    if op.data_dependent:
        return "its result depends on data (by its tag)"
    return ""


def no_numbers(op: Operator) -> str:
    """Graphs are of tensors."""
    return tensors_out(op) or known_sizes(op)


def takes_sizes(op: Operator) -> bool:
    """Whether it is told sizes as a list of any length, which must fit its tensors."""
    return any(str(a.type) == "List[int]" and not a.N for a in op.schema.arguments)


def an_overload_of_its_own(op: Operator) -> str:
    return "" if op.entry.new_base_name else "a new overload of an operator of upstream's"
