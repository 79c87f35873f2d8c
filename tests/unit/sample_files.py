"""Files, programs and repositories that tests write and serve, and programs in this Python."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

# git's own settings of whoever runs the tests must not count.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
}  # fmt: skip


def lay(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """A directory with these files; it."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def program(path: Path, body: str) -> Path:
    lay(path.parent, {path.name: f"#!/bin/sh\n{body}\n"})
    path.chmod(0o755)
    return path


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below a directory but git's own, with its bytes."""
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {n: p.read_bytes() for n, p in sorted(files.items()) if not n.startswith(".git/")}


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **GIT}
    )
    return done.stdout.strip()


def commit_all(root: Path, message: str) -> str:
    """Make a directory a repository, if it is none, and commit all of it; the commit."""
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")


def started(text: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A program in this Python, with the modules that this one has."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path}, text=True, **options,
    )  # fmt: skip


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(directory: Path, handler: type[Quiet]) -> Iterator[str]:
    """The address of a server on this machine, which no proxy of the user's stands before."""
    answer = partial(handler, directory=str(directory))
    direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with (
        patch.dict(os.environ, direct),
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), answer) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def eventually(holds: Callable[[], Any], seconds: float = 30) -> Any:
    """What `holds` gives as soon as that is true, or at the end."""
    deadline = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
