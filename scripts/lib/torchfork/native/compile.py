"""Has ninja compile what has changed, and shows how far it is."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import ninja

from ..additions.load import Additions
from ..util import process
from ..util.files import write_if_changed
from . import diagnostics
from .compile_steps import ADDITIONS_COPY
from .toolchain import Toolchain

# Steps done, steps in all, and what is compiled or how fast.
Progress = Callable[[int, int, str], None]
_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
WINDOW = 120.0  # seconds over which the rate is taken


@dataclass
class Pace:
    """Steps done and the rate of the last two minutes, which gives the time that is left."""

    done: int = 0
    total: int = 0
    steps: int = 0  # lines of ninja's so far
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def see(self, line: str, now: float) -> bool:
        """Take one line of the output; whether it says how far ninja is. now: seconds."""
        found = _STEP.match(line)
        if not found:
            return False
        done, total = int(found[1]), int(found[2])
        if done < self.done or total != self.total:
            self._seen.clear()  # another ninja, or a run of its own that CMake started
        self.done, self.total, self.steps = done, total, self.steps + 1
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        return True

    @property
    def rate(self) -> float:
        """Steps a minute; 0 where it is not known yet."""
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


def compile_all(
    build_file: str, build: Path, toolchain: Toolchain, additions: Additions, progress: Progress
) -> int:
    """Run ninja; the number of objects that were compiled.

    What can be compiled is, beside what cannot. Raises CompileError with the first error of each
    file, OutputError where the disk is full.
    """
    build.mkdir(parents=True, exist_ok=True)
    write_if_changed(build / "build.ninja", build_file)
    program = Path(ninja.BIN_DIR) / "ninja"
    command = [str(program), "-C", str(build), f"-j{toolchain.jobs}", "-k0"]
    environment = process.clean_environment({"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"})
    compiled, lines = 0, []

    def see(line: str) -> None:
        nonlocal compiled
        lines.append(line)
        if found := _STEP.match(line):
            compiled = int(found[1])
            progress(compiled, int(found[2]), Path(found[3]).name)

    status = process.stream(command, see, env=environment)
    log, output = build / "compile.log", "".join(lines)
    log.write_text(output, encoding="utf-8")
    if status:
        locate = diagnostics.in_additions(additions)
        error = diagnostics.failure(output, log, toolchain.jobs, locate)
        for part in (error, *error.also):
            part.why = part.why.replace(ADDITIONS_COPY, str(additions.source_root))
        raise error
    return compiled
