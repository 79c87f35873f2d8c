"""How a check ends other than well: a gap, not applicable, or not to be run on this machine."""

from __future__ import annotations


class Gap(Exception):
    """The item does not hold; the message says how that was seen."""


class NotApplicable(Exception):
    """The item means nothing for this operator; the message says by what nature of it."""


class Unavailable(Exception):
    """This machine cannot tell: no GPU, no tool; the message says what is missing."""


def require(condition: object, message: str) -> None:
    """Raise Gap with a message unless the condition holds."""
    if not condition:
        raise Gap(message)
