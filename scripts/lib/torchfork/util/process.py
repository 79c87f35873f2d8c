"""The one place that runs other programs."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ForkError, ToolMissingError
from . import supervise

# Each command as it can be pasted into a shell; `-v` shows them.
_log = logging.getLogger(__name__)

Command = Sequence[str | Path]


@dataclass(frozen=True)
class Outcome:
    """What a finished program left: exit status, stdout and stderr (merged where it was logged)."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def command(self) -> str:
        """The command line, to be pasted into a shell."""
        return shlex.join(self.argv)


class ProcessError(ForkError):
    """A program that failed where no caller had a more specific error for it."""

    def __init__(self, outcome: Outcome) -> None:
        last_lines = "\n".join((outcome.stdout + outcome.stderr).strip().splitlines()[-20:])
        super().__init__(
            f"a command failed with exit status {outcome.returncode}",
            where=outcome.command,
            why=last_lines,
        )
        self.outcome = outcome


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's environment without what would lead a child to this interpreter's modules."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__"}
    }
    environment.update(extra or {})
    return environment


def run(
    argv: Command,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    input_text: str | None = None,
    timeout: float | None = None,
    supervised: bool = False,
) -> Outcome:
    """Run a program, capture its output, and raise ProcessError with the end of it on failure.

    env holds additions to the clean environment; its values win.
    supervised: the program and its descendants end when this process is killed. For what runs
        longer than a moment; it costs the start of one interpreter.
    """
    command = tuple(str(part) for part in argv)
    _log_command(command, cwd)
    try:
        running = subprocess.Popen(
            _supervising(command) if supervised else command,
            cwd=cwd, env=clean_environment(env), text=True, errors="replace",
            stdin=subprocess.DEVNULL if input_text is None else subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise _missing(command) from error
    with running:
        try:
            stdout, stderr = running.communicate(input_text, timeout)
        except BaseException as error:
            # A supervisor ends what is below it; killed, it could not.
            running.send_signal(signal.SIGTERM if supervised else signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ForkError(
                    f"a command did not finish within {timeout:.0f} s",
                    where=shlex.join(command),
                    next="run it by hand to see where it stops",
                ) from error
            raise
    if supervised and running.returncode == supervise.NOT_FOUND:
        raise _missing(command)
    outcome = Outcome(command, running.returncode, stdout, stderr)
    if check and outcome.returncode:
        raise ProcessError(outcome)
    return outcome


def stream(
    argv: Command,
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str],
) -> int:
    """Run a supervised program, hand on each line that it prints, and return its exit status.

    env: the whole environment, usually made by clean_environment.
    """
    command = tuple(str(part) for part in argv)
    _log_command(command, cwd)
    with subprocess.Popen(
        _supervising(command), cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as running:  # fmt: skip
        assert running.stdout is not None
        try:
            for line in running.stdout:
                on_line(line)
        except BaseException:
            running.send_signal(signal.SIGINT)
            raise
    return running.returncode


def _supervising(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", supervise.__file__, *command]


def _missing(command: Sequence[str]) -> ToolMissingError:
    return ToolMissingError(
        f"cannot run '{command[0]}': no such program",
        where=shlex.join(command),
        next="install it, or put its directory on PATH",
    )


def _log_command(command: Sequence[str], cwd: Path | None) -> None:
    if _log.isEnabledFor(logging.INFO):
        place = f"cd {shlex.quote(str(cwd))} && " if cwd else ""
        _log.info("+ %s%s", place, shlex.join(command))
