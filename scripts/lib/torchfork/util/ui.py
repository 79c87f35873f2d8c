"""What a user sees while a command runs: named steps with progress and seconds."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich import progress as bars
from rich.console import Console

# Control characters but newline and tab, and those that change the direction of text: in a path or
# a name they could move the cursor, or make it look like another.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text for a terminal: control characters as Python would escape them."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


@dataclass
class Step:
    """A step under way; its owner says what came out of it and how far it is."""

    name: str
    _progress: bars.Progress
    _task: bars.TaskID
    outcome: str = ""

    def advance(self, done: int, total: int, what: str = "") -> None:
        """Show `done` of `total`, and what is being worked on."""
        self._progress.update(self._task, completed=done, total=total or None, what=printable(what))

    def show(self, what: str) -> None:
        """Show what is being worked on, of a step whose length is not known."""
        self.advance(0, 0, what)

    def say(self, outcome: str) -> None:
        """Set the text that stands beside the step's name when it is done."""
        self.outcome = outcome


class Ui:
    """Prints steps to stderr; stdout stays free for results that scripts read."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(
            stderr=True, highlight=False, soft_wrap=True, emoji=False, quiet=quiet
        )
        self._count = 0

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """A named step: shown while it runs, then one line with its outcome and seconds."""
        self._count += 1
        label = f"{self._count:>2}. {name}"
        started = time.monotonic()
        progress = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn(label),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.fields[what]}"),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(compact=True),  # empty where the length is not known
            speed_estimate_period=120.0,
            console=self.console,
            transient=True,
            disable=self.console.quiet or not self.console.is_terminal,
        )
        with progress:
            step = Step(name, progress, progress.add_task(name, total=None, what=""))
            try:
                yield step
            except BaseException:
                progress.stop()
                self._line(label, "failed", time.monotonic() - started, "red")
                raise
        self._line(label, step.outcome, time.monotonic() - started, "green")

    def _line(self, label: str, outcome: str, seconds: float, colour: str) -> None:
        self.console.print(f"[{colour}]{label:<34}[/]{seconds:>7.1f} s  ", end="")
        self.console.print(printable(outcome), markup=False)

    def note(self, text: str) -> None:
        """A line of information."""
        self.console.print(printable(text), markup=False)

    def warn(self, text: str) -> None:
        """A line that the user should not miss."""
        self.console.print(f"note: {printable(text)}", style="yellow", markup=False)

    def result(self, text: str) -> None:
        """A result on stdout."""
        sys.stdout.write(text + "\n")


class LogHandler(logging.Handler):
    """Shows what is logged: which run is waited for, and each program that is run (with -v)."""

    def __init__(self, ui: Ui) -> None:
        super().__init__()
        self._ui = ui

    def emit(self, record: logging.LogRecord) -> None:
        show = self._ui.warn if record.levelno >= logging.WARNING else self._ui.note
        show(record.getMessage())
