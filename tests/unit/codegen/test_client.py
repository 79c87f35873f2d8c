"""The code generator's child process: its errors name a cause, and it ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchfork.codegen import client
from torchfork.errors import BaseRefusedError, InternalError

LIB = Path(client.__file__).resolve().parents[2]
SLEEPING = """
import os, pathlib, time
pathlib.Path("started").write_text(str(os.getpid()))
time.sleep(600)
"""


def torchgen(home: Path, gen: str) -> Path:
    """A torchgen whose module gen has this text."""
    (home / "torchgen").mkdir(parents=True)
    (home / "torchgen" / "__init__.py").write_text("")
    (home / "torchgen" / "gen.py").write_text(gen)
    return home


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.is_file() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def within(seconds: float, what: str, holds: object) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports a parent's death")
def test_the_generator_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    home, scratch = torchgen(tmp_path / "home", SLEEPING), tmp_path / "scratch"
    scratch.mkdir()
    program = (
        "import pathlib, sys; from torchfork.codegen import client; "
        "client.list_operators(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    parent = subprocess.Popen(
        # interrupts ignored, as a shell starts what it runs in the background
        [
            "sh",
            "-c",
            "trap '' INT; exec \"$@\"",
            "sh",
            sys.executable,
            "-c",
            program,
            str(home),
            str(scratch),
        ],
        env={**os.environ, "PYTHONPATH": str(LIB)},
    )
    started = scratch / "started"
    within(30, "the generator did not start", started.is_file)
    within(5, "no process id", lambda: started.read_text().isdigit())
    generator = int(started.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    within(10, "the generator outlived its parent", lambda: not runs(generator))


def test_a_torchgen_with_another_interface_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(BaseRefusedError) as caught:
        client.list_operators(torchgen(tmp_path / "home", "def main(argv): ..."), tmp_path)
    assert "torchgen.gen.parse_native_yaml does not exist" in caught.value.why
    assert "torchgen.gen.main(argv) is called with 0 arguments" in caught.value.why


def test_a_generator_that_dies_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    dying = "import os, sys; sys.stderr.write('out of luck'); sys.stderr.flush(); os._exit(3)"
    with pytest.raises(InternalError, match="status 3") as caught:
        client.list_operators(torchgen(tmp_path / "home", dying), tmp_path)
    assert "out of luck" in caught.value.why
