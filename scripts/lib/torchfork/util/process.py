"""The one place that runs other programs."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ForkError, ToolMissingError


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
    """A program that failed where nobody had a better word for it."""

    def __init__(self, outcome: Outcome) -> None:
        telling = "\n".join((outcome.stdout + outcome.stderr).strip().splitlines()[-20:])
        super().__init__(
            f"a command failed with exit status {outcome.returncode}",
            where=outcome.command,
            why=telling,
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
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    input_text: str | None = None,
    timeout: float | None = None,
) -> Outcome:
    """Run a program, capture its output, and raise ProcessError with the end of it on failure.

    env holds additions to the clean environment; its values win.
    """
    command = tuple(str(part) for part in argv)
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=clean_environment(env),
            input=input_text,
            stdin=subprocess.DEVNULL if input_text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
    except FileNotFoundError as error:
        raise ToolMissingError(
            f"cannot run '{command[0]}': no such program", where=shlex.join(command)
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ForkError(
            f"a command did not finish within {timeout:.0f} s", where=shlex.join(command)
        ) from error
    outcome = Outcome(command, done.returncode, done.stdout, done.stderr)
    if check and outcome.returncode:
        raise ProcessError(outcome)
    return outcome
