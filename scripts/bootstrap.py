"""Set up the tools' own environment: once for each interpreter and each state of requirements.txt.

Called by scripts/torchfork with the interpreter that the user chose; needs nothing but the standard
library. What is set up counts from the moment when its copy of the requirements is there, which is
written last: a set-up that was killed is begun again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

REQUIREMENTS = Path(__file__).resolve().with_name("requirements.txt")
TOOL_MISSING, CANNOT_WRITE = 16, 30  # as in torchfork.errors
_REQUIREMENT = re.compile(r'([\w.-]+)==(\S+?)(?:; python_version < "(\d+)\.(\d+)")?\s*(?:#.*)?')


def main(tools: Path, pointer: Path, python: str) -> None:
    """Make the environment where it is missing, and write down for the launcher where it is."""
    try:
        with _lock(tools):
            environment = tools / environment_name(python)
            runner = environment / "bin" / "python"
            marker = runner.with_name("requirements.txt")
            if _read(marker) != _read(REQUIREMENTS) or not runner.exists():
                _make(environment, runner, python)
                _write(marker, _read(REQUIREMENTS))
            _write(pointer, f"{python}\n{runner.relative_to(tools)}\n")
    except OSError as error:
        _fail(
            "cannot set up the tools here",
            f"{error.filename or tools}: {error.strerror or error}",
            "make the project directory writable, or free some space, and run again",
            CANNOT_WRITE,
        )


def environment_name(python: str) -> str:
    """One directory for each interpreter, version and set of requirements."""
    state = "\n".join([python, sys.version, sys.prefix, _read(REQUIREMENTS)])
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}"
    return f"{tag}-{hashlib.sha256(state.encode()).hexdigest()[:12]}"


def _make(environment: Path, runner: Path, python: str) -> None:
    sys.stderr.write("setting up the tools (once; some seconds) …\n")
    shutil.rmtree(environment, ignore_errors=True)
    try:
        _run([_base(), "-m", "venv", str(environment)])
        # --no-compile: an import compiles the modules that are needed, few of them.
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-input"]
        install += ["--no-compile", "-r"]
        _run([str(runner), "-m", "pip", *install, str(REQUIREMENTS)])
    except subprocess.CalledProcessError as error:
        reason = _reason(error)
        shutil.rmtree(environment, ignore_errors=True)
        missing = _not_importable()
        if missing:
            _fail_set_up(reason, missing)
        _use_what_is_there(runner, python, reason)


def _base() -> str:
    """The interpreter's own file: when an upgrade takes it away, the environment's link breaks
    and the set-up is done again; a link through /usr/bin/python3 would lead to another version."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _run(command: list[str]) -> None:
    """Run with the user's pip settings, but for those that would install elsewhere."""
    drop = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH", "PYTHONHOME"}
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    environment["PIP_USER"] = "0"
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


def _reason(error: subprocess.CalledProcessError) -> str:
    lines = (error.stdout + error.stderr).strip().splitlines()
    telling = [line for line in lines if not line.startswith("WARNING: Location")]
    return "\n".join(telling[-6:])


def _not_importable() -> list[str]:
    """Requirements that the chosen interpreter itself does not have, at whatever version."""
    missing = []
    for line in _read(REQUIREMENTS).splitlines():
        match = _REQUIREMENT.fullmatch(line.strip())
        if not match:
            continue
        name, _, major, minor = match.groups()
        if major and sys.version_info >= (int(major), int(minor)):
            continue
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


def _use_what_is_there(runner: Path, python: str, reason: str) -> None:
    """Without an index, the interpreter that has all the modules serves as its own environment."""
    runner.parent.mkdir(parents=True)
    runner.write_text(f'#!/bin/sh\nexec {_quoted(python)} "$@"\n', encoding="utf-8")
    runner.chmod(0o755)
    last = reason.splitlines()[-1] if reason else "no reason given"
    sys.stderr.write(
        f"note: pip could not set up the tools ({last});\n"
        f"      using the modules of {python} in whatever versions they are.\n"
        f"      Remove {runner.parent.parent} to try again.\n"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fail_set_up(reason: str, missing: list[str]) -> NoReturn:
    if "ensurepip" in reason or "No module named venv" in reason:
        minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
        _fail(
            "this Python cannot make virtual environments: its venv or ensurepip module is missing",
            reason,
            f"apt-get install python{minor}-venv (Debian, Ubuntu), or set TORCHFORK_PYTHON to "
            "another Python",
        )
    _fail(
        "cannot install the tools' requirements",
        f"{reason}\nand this interpreter lacks {', '.join(missing)}",
        "check pip's settings (pip config list) and the network, then run again",
    )


def _fail(what: str, why: str, what_next: str, code: int = TOOL_MISSING) -> NoReturn:
    for label, text in (("error:", what), ("why:", why), ("next:", what_next)):
        lines = text.strip().splitlines() or [""]
        sys.stderr.write("".join(f"{head:<7}{line}\n" for head, line in _labelled(label, lines)))
    sys.exit(code)


def _labelled(label: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(label if not index else "", line) for index, line in enumerate(lines)]


@contextlib.contextmanager
def _lock(tools: Path) -> Iterator[None]:
    tools.mkdir(parents=True, exist_ok=True)
    with (tools / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("waiting for another run that is setting up the tools …\n")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
