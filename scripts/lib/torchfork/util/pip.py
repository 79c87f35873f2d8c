"""The user's pip: how it is run, what decides its choices, and what its failures mean."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from ..errors import DownloadError, ForkError, HashMismatchError, OutputError
from . import files, process

# Settings that change how pip talks or how long it waits, never what it finds.
_IRRELEVANT = frozenset(
    f"PIP_{name}"
    for name in ("CACHE_DIR", "DEFAULT_TIMEOUT", "DISABLE_PIP_VERSION_CHECK", "NO_COLOR",
                 "NO_INPUT", "PROGRESS_BAR", "QUIET", "RETRIES", "VERBOSE")
)  # fmt: skip

_CONSTRAINT = re.compile(r"The user requested \(constraint\) (\S.*)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ConnectTimeout"
    r"|Could not fetch URL|connection error|Network is unreachable|Failed to establish|ProxyError"
    r"|Connection refused|SSLError"
)
_BROKEN_OFF = re.compile(
    r"IncompleteRead|ConnectionResetError|ReadTimeoutError|Connection broken|incomplete-download"
    r"|Connection aborted|BadZipFile|has an invalid wheel|located at .* is invalid"
    r"|File is not a zip file"
)


def command(executable: Path) -> list[str | Path]:
    """How to run pip for an interpreter: its own, or else that of the tools."""
    own = process.run([executable, "-c", "import pip"], check=False, cwd=Path(os.sep))
    if own.returncode == 0:
        return [executable, "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", executable]


def settings_key(prefix: Path) -> str:
    """One hash over pip's environment variables and configuration files.

    prefix: the environment whose own pip.conf counts, beside the user's and the machine's.
    """
    parts = [
        f"{key}={value}"
        for key, value in sorted(os.environ.items())
        if key.startswith("PIP_") and key not in _IRRELEVANT
    ]
    parts += [text for path in _configuration_files(prefix) if (text := _read(path))]
    return files.sha256_text(*parts)


def _configuration_files(prefix: Path) -> list[Path]:
    """Where pip looks for its configuration, in its own order."""
    if os.environ.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 -- as pip does, which never fails
    system = os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)
    found = [Path(directory) / "pip" / "pip.conf" for directory in system if directory]
    found.append(Path("/etc/pip.conf"))
    if sys.platform == "darwin":
        found.append(Path("/Library/Application Support/pip/pip.conf"))
        found.append(home / "Library" / "Application Support" / "pip" / "pip.conf")
    found.append(home / ".pip" / "pip.conf")
    found.append(Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf")
    found.append(prefix / "pip.conf")
    if named := os.environ.get("PIP_CONFIG_FILE"):
        found.append(Path(named))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def download_error(
    outcome: process.Outcome, what: str, place: Path, alternative: str = ""
) -> ForkError:
    """What a failed download means.

    what: the thing that was to come, 'torch 2.13.0'; place: where it would have been kept;
    alternative: one more remedy, named last.
    """
    text = outcome.stdout + outcome.stderr
    errors = [line for line in text.splitlines() if line.startswith(("ERROR", "error"))]
    why = "\n".join((errors or text.strip().splitlines())[-4:])
    if "No space left on device" in text:
        return OutputError(
            f"the disk is full; nothing of {what} was kept",
            where=str(place),
            next="free some space, or put the cache elsewhere: TORCHFORK_CACHE=DIR",
        )
    if "DO NOT MATCH THE HASHES" in text:
        return HashMismatchError(
            f"pip refused {what}: not the bytes that its index lists",
            where=outcome.command,
            why=why,
            next="clear pip's cache (pip cache purge) and run the same command again",
        )
    if limit := _CONSTRAINT.search(text):
        return DownloadError(
            f"pip's settings rule out {what}: {limit[1]}",
            where=outcome.command,
            why="a constraint of pip's asks for another release: 'pip config list' names its file",
            next="lift the constraint, or for one command: PIP_CONSTRAINT=/dev/null COMMAND",
        )
    return DownloadError(
        _failure(text, what),
        where=outcome.command,
        why=why,
        next="check the network and pip's settings (pip config list), then run the same command "
        "again" + (f",\n{alternative}" if alternative else ""),
    )


def _failure(text: str, what: str) -> str:
    if _BROKEN_OFF.search(text):
        return f"the download of {what} broke off"
    if _NO_NETWORK.search(text):
        return f"cannot reach the package index to fetch {what}"
    return f"pip found no wheel of {what}"
