"""What a check works with, and how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
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


Check = Callable[["Operator", str, Bench], None]
