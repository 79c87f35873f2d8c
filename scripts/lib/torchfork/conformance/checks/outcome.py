"""How a check ends other than well: a gap, not applicable, or not to be run on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator


class CheckFailed(Exception):
    """The item does not hold; the message says how that was seen."""


class NotApplicable(Exception):
    """The item means nothing for this operator; the message says by what nature of it."""


class Unavailable(Exception):
    """This machine cannot tell: no GPU, no tool; the message says what is missing."""


@contextlib.contextmanager
def as_gap(telling: str = "{error}", lines: int = 4) -> Iterator[None]:
    """Any error but this module's own as a CheckFailed.

    telling: the message; {type} and {error} stand for the error's class and its first lines.
    """
    try:
        yield
    except (CheckFailed, NotApplicable, Unavailable):
        raise
    except Exception as error:
        told = telling.format(type=type(error).__name__, error=first_lines(error, lines))
        raise CheckFailed(told) from error


def first_lines(error: BaseException, count: int = 4) -> str:
    """The beginning of what an error says, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:count]) or type(error).__name__


def require_compiler() -> None:
    """Raise Unavailable where there is no C++ compiler, as CXX or g++."""
    if not shutil.which(os.environ.get("CXX", "g++")):
        raise Unavailable("no C++ compiler: install g++")


def require(condition: object, message: str) -> None:
    """Raise CheckFailed with a message unless the condition holds."""
    if not condition:
        raise CheckFailed(message)
