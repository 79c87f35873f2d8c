"""Runs a command and its descendants as one group that ends with whoever started it.

A build starts make programs that start compilers. When torchfork is killed they must end too, or
they would continue to write objects beside those of the next run. Linux signals a direct child when
its parent dies; this program is that child, and signals everything below it. Run as a script:
nothing of torchfork is imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
_GRACE = 20.0  # seconds that programs get to end by themselves
NOT_FOUND = 127  # as a shell has it


def main(command: list[str]) -> int:
    """Run the command; its exit status, or 128 and the signal that ended it."""
    parent = os.getppid()
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)
    if os.getppid() != parent:
        return 1  # it was gone before we asked for the signal
    ended: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        if not ended:
            ended.append(number)
            _signal_group(signal.SIGINT)  # ninja then deletes what is half-written

    # Before the command starts: what is handled here has its default action there, also where a
    # shell started us in the background, with interrupts ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        running = subprocess.Popen(command)
    except FileNotFoundError:
        return NOT_FOUND
    if ended:
        _signal_group(signal.SIGINT)
    deadline = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = running.wait(timeout=0.2)
            break
        if ended and deadline is None:
            deadline = time.monotonic() + _GRACE
        if deadline is not None and time.monotonic() > deadline:
            os.killpg(0, signal.SIGKILL)
    # What is left: it ignores interrupts where a shell started us in the background, and lives on
    # where the command died without its own programs.
    _signal_group(signal.SIGTERM)
    if ended:
        return 128 + ended[0]
    return status if status >= 0 else 128 - status


def _signal_group(number: signal.Signals) -> None:
    """Send a signal to everybody else of the group."""
    kept = signal.signal(number, signal.SIG_IGN)
    os.killpg(0, number)
    signal.signal(number, kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
