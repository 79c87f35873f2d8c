"""Reads what a build of a whole tree prints: how far it is, and the telling part of a failure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_ERROR = re.compile(
    r"^(?P<file>\S[^:\n]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: ", re.MULTILINE
)
_CMAKE = re.compile(r"^CMake Error at (?P<file>[^:\n]+):(?P<line>\d+)", re.MULTILINE)
_KILLED = re.compile(
    r"Killed signal terminated program|fatal error: Killed|^Killed$|signal terminated program cc1"
    r"|subcommand killed|Cannot allocate memory|out of memory allocating",
    re.MULTILINE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
WINDOW = 120.0  # seconds over which the rate is taken


@dataclass
class Pace:
    """Steps done, and how fast: the rate of the last two minutes tells the time that is left."""

    done: int = 0
    total: int = 0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def see(self, line: str, now: float) -> bool:
        """Take one line of ninja's; whether it says how far the build is. now: seconds."""
        found = _STEP.match(line)
        if not found:
            return False
        done, total = int(found[1]), int(found[2])
        if done < self.done or total != self.total:
            self._seen.clear()  # another ninja, or a run of its own that CMake started
        self.done, self.total = done, total
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        return True

    @property
    def rate(self) -> float:
        """Steps a minute; 0 while it cannot be told."""
        if len(self._seen) < 2:
            return 0.0
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return 60 * (last - first) / (end - start) if end > start else 0.0

    @property
    def line(self) -> str:
        """'812 of 1604, 24 a minute, 33 min left'."""
        text = f"{self.done} of {self.total}"
        if self.rate > 0:
            left = (self.total - self.done) / self.rate
            text += f", {self.rate:.0f} a minute, {left:.0f} min left"
        return text


@dataclass(frozen=True)
class Diagnostic:
    """The first thing that went wrong in a build."""

    text: str
    file: str = ""  # of the error, with its line: 'x.cpp:12'
    out_of_memory: bool = False


def telling(output: str) -> Diagnostic:
    """What a failed build's output says of its first failure; its end where nothing is found."""
    output = _COLOUR.sub("", output)
    failed = output.find("\nFAILED: ")
    part = output[failed:] if failed >= 0 else output
    if killed := _KILLED.search(part):
        start = part.rfind("\n", 0, killed.start()) + 1
        return Diagnostic(_lines(part, start, 4), out_of_memory=True)
    found = _ERROR.search(part) or _CMAKE.search(part) or _ERROR.search(output)
    if found:
        source = part if found.string is part else output
        return Diagnostic(_lines(source, found.start(), 15), f"{found['file']}:{found['line']}")
    if failed >= 0:
        return Diagnostic(_lines(part, 1, 15))
    return Diagnostic("\n".join(output.rstrip().splitlines()[-15:]))


def _lines(text: str, start: int, count: int) -> str:
    """Lines from a place on, the long ones cut: a compiler's command has thousands of letters."""
    return "\n".join(line[:400] for line in text[start:].lstrip("\n").splitlines()[:count])
