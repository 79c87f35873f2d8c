"""An item of the list: what its check is given, how it ends, and when it applies."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .operators import Operator
    from .samples import Source


# What torch appends to an error where C++ raised it.
_BACKTRACE = re.compile(r"\n(Exception raised from |C\+\+ CapturedTraceback:).*", re.DOTALL)


class CheckFailed(Exception):
    """The item does not hold; the message says how that was seen."""


class NotApplicable(Exception):
    """The item does not apply to this operator; the message says why."""


class Unavailable(Exception):
    """This machine cannot run the check: no GPU, no tool; the message says what is missing."""


@contextlib.contextmanager
def failing(what: str = "") -> Iterator[None]:
    """Any error as a CheckFailed; what: its context, before the error's own text."""
    try:
        yield
    except (CheckFailed, NotApplicable, Unavailable):
        raise
    except Exception as error:
        raise CheckFailed(f"{what}: {message(error)}" if what else message(error)) from error


def message(error: BaseException) -> str:
    """The type of an error and all of its text, without C++ stack frames and empty lines."""
    text = _BACKTRACE.sub("", str(error))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join([f"{type(error).__name__}: {lines[0].lstrip()}", *lines[1:]] if lines else
                     [type(error).__name__])  # fmt: skip


def require_compiler() -> None:
    """Raise Unavailable where there is no C++ compiler, as CXX or g++."""
    if not shutil.which(os.environ.get("CXX", "g++")):
        raise Unavailable("no C++ compiler: install g++")


def require(condition: object, message: str) -> None:
    """Raise CheckFailed with a message unless the condition holds."""
    if not condition:
        raise CheckFailed(message)


Need = Callable[["Operator"], str]  # why an item does not apply, '' where it does


def need(holds: Callable[[Operator], object], why: str) -> Need:
    """An item applies where this holds, and does not for the reason given."""
    return lambda op: "" if holds(op) else why


a_function = need(lambda op: op.entry.python_function, "no Python function by its declaration")
a_method = need(lambda op: op.entry.python_method, "no method by its declaration")
a_python_name = need(lambda op: op.bound, "no Python name: upstream binds no operator of this name")
tensors_in = need(lambda op: op.tensor_arguments, "takes no tensor")
tensors_out = need(lambda op: op.tensor_results or op.written, "gives no tensor")
known_sizes = need(lambda op: not op.data_dependent, "its result depends on data (by its tag)")
an_overload_of_its_own = need(
    lambda op: op.entry.new_base_name, "a new overload of an operator of upstream's"
)
formula = need(lambda op: op.formula, "no derivative formula")


def a_torch_name(op: Operator) -> str:
    """Of the modules below torch._C some are public by another name."""
    if op.entry.python_module not in (None, "special", "linalg", "fft", "sparse", "nested"):
        return f"bound in torch._C._{op.entry.python_module} only, which is private"
    return a_python_name(op)


def a_formula(op: Operator) -> str:
    """The operator itself, and not what it is made of, is differentiated."""
    return "composite: differentiated as what it is made of" if op.implicit else formula(op)


def a_derivative(op: Operator) -> str:
    """A formula of its own, or those of what it is made of."""
    return tensors_in(op) or tensors_out(op) if op.implicit else formula(op)


def no_numbers(op: Operator) -> str:
    """Graphs are of tensors."""
    return tensors_out(op) or known_sizes(op)


def takes_sizes(op: Operator) -> bool:
    """Whether an argument is a list of sizes, of any length, which must fit its tensors."""
    return any(str(a.type) == "List[int]" and not a.N for a in op.schema.arguments)


@dataclass
class Bench:
    """What checks work with.

    prepared: results of the tasks that were done for all operators at once, by task.
    documented: the entries of the additions' documentation pages, by dotted name.
    """

    source: Source
    scratch: Path
    prepared: Mapping[str, Any]
    documented: frozenset[str]

    def result(self, task: str, op: Operator) -> Any:
        """What a task gave for an operator. Raises Unavailable where it could not be done."""
        found = self.prepared.get(task, {"unavailable": f"{task} was not run"})
        if "unavailable" in found:
            raise Unavailable(found["unavailable"])
        return found["operators"][op.id]


Check = Callable[["Operator", str, "Bench"], None]


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
        """Check one operator on one device; raises CheckFailed, NotApplicable or Unavailable."""
        for need in self.needs:
            if reason := need(op):
                raise NotApplicable(reason)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those that matter, a check looks for itself
            self.check(op, device, bench)
