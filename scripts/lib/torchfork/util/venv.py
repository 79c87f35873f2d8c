"""The clean environment that a finished wheel is installed into.

It holds the wheel's dependencies and is kept: they do not change while one works on kernels, and
are some GB for a CUDA build. torch itself is installed anew each time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ToolMissingError
from ..upstream.base import Interpreter
from . import files, pip, process

Say = Callable[[str], None]


def install(
    wheel: Path,
    interpreter: Interpreter,
    requirements: Sequence[str],
    workdir: Path,
    neutral: Path,
    say: Say,
) -> Path:
    """Install a wheel and what it requires; return the environment's interpreter.

    neutral: an empty directory to run in, so that nothing there shadows what is installed.
    """
    key = files.sha256_text(str(interpreter.executable), interpreter.version, *requirements)
    root = workdir / f"venv-{interpreter.tag}-{key[:12]}"
    python, whole = root / "bin" / "python", root / ".whole"
    if whole.is_file() and python.exists():
        # Not whole again until pip is done: a killed installation is not built upon.
        whole.unlink()
        say("installing the wheel")
        # Not compiled to .pyc: an import does that for the few modules that it needs.
        again = ["--no-deps", "--force-reinstall", "--no-compile"]
        outcome = pip_run(python, neutral, "install", *again, str(wheel))
    else:
        say("making a clean environment")
        make_venv(root, interpreter, neutral, "to verify the wheel in")
        say("installing the wheel and its dependencies")
        outcome = pip_run(python, neutral, "install", "--no-compile", str(wheel))
    if outcome.returncode:
        raise pip.download_error(outcome, "the wheel's dependencies", root)
    files.write_text(whole, wheel.name + "\n")
    return python


def make_venv(root: Path, interpreter: Interpreter, neutral: Path, purpose: str) -> None:
    """Make a virtual environment anew. Raises ToolMissingError; purpose: 'to build in'."""
    shutil.rmtree(root, ignore_errors=True)
    command: list[str | Path] = [interpreter.executable, "-m", "venv", root]
    outcome = process.run(command, cwd=neutral, check=False)
    if outcome.returncode:
        minor = ".".join(interpreter.version.split(".")[:2])
        raise ToolMissingError(
            f"cannot make a virtual environment {purpose}",
            where=outcome.command,
            why="\n".join((outcome.stdout + outcome.stderr).strip().splitlines()[-4:]),
            next=f"apt-get install python{minor}-venv (Debian, Ubuntu)",
        )


def pip_run(python: Path, neutral: Path, *arguments: str) -> process.Outcome:
    """Run the environment's own pip; the caller looks at how it ended."""
    quiet = ["--disable-pip-version-check", "--no-input"]
    # The user's indexes count; settings that would install elsewhere do not (pip skips empty ones).
    environment = {"PIP_USER": "0", "PIP_TARGET": "", "PIP_PREFIX": "", "PIP_ROOT": ""}
    command: list[str | Path] = [python, "-m", "pip", *arguments, *quiet]
    return process.run(command, cwd=neutral, env=environment, check=False)
