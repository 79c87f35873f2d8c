"""Processes that SIGKILL ends at one of the changes that they make to files.

In a test, in a fork: `was_killed(start(action, directory, allowed))`. A whole program, as a script:

    python killing.py REPORT ALLOWED SECONDS -m torchfork build …
"""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

_CHANGES = frozenset(
    f"os.{name}"
    for name in ("rename", "link", "symlink", "remove", "mkdir", "rmdir", "chmod", "utime")
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _changed(event: str, arguments: tuple[object, ...]) -> Iterator[str]:
    """The paths that an event of sys.addaudithook is about to change."""
    if event == "open":
        flags = arguments[2]
        named = arguments[:1] if isinstance(flags, int) and flags & _WRITING else ()
        directory = None
    elif event in _CHANGES:
        named, directory = arguments[:2], arguments[-1]
    else:
        return
    for name in named:
        if isinstance(name, str | bytes | os.PathLike):
            path = os.fsdecode(name)
            if isinstance(directory, int) and directory > 0:
                path = str(Path(f"/proc/self/fd/{directory}").resolve() / path)
            yield path


def arm(allowed: int, below: str = "", seconds: float = 0, report: Path | None = None) -> None:
    """Let this process change files below a directory `allowed` times, and die before the next.

    seconds: how much later it dies, meanwhile going on, or waiting for the programs it started.
    report: gets the number of changes, should it live to its end.
    """
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        starts = event == "subprocess.Popen" and not below
        if not starts and not any(path.startswith(below) for path in _changed(event, arguments)):
            return
        if count == allowed:
            if not seconds:
                os.kill(os.getpid(), signal.SIGKILL)
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        count += 1

    sys.addaudithook(hook)
    if report:
        import atexit

        atexit.register(lambda: report.write_text(str(count)))


def start(action: Callable[[], object], below: Path, allowed: int) -> int:
    """Fork a process that does this and is killed at a change; its number."""
    child = os.fork()
    if child:
        return child
    try:
        arm(allowed, str(below))
        action()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def was_killed(child: int) -> bool:
    """Wait for a process; whether it was killed, and did not come to its end. No other end is."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def every_kill(action: Callable[[], object], below: Path, after: Callable[[int], None]) -> int:
    """Kill `action` at its first change, at its second, and so on; how many changes it makes."""
    for allowed in itertools.count():
        if not was_killed(start(action, below, allowed)):
            return allowed
        after(allowed)
    raise AssertionError


if __name__ == "__main__":
    report, allowed, seconds, _, module = sys.argv[1:6]
    sys.argv[:] = sys.argv[5:]
    arm(int(allowed), seconds=float(seconds), report=Path(report))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
