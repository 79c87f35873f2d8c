"""Programs: what is reported of them, and that they end with the run that started them."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sample_files import eventually, runs, started

from torchfork.errors import ForkError, ToolMissingError
from torchfork.util import process


@pytest.mark.parametrize("supervised", [False, True])
def test_output_comes_back_and_what_is_missing_or_too_slow_is_named(supervised: bool) -> None:
    program = "import sys; print(input()); print('b', file=sys.stderr); sys.exit(3)"
    outcome = process.run(
        [sys.executable, "-c", program], check=False, input_text="a", supervised=supervised
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, "a\n", "b\n")
    with pytest.raises(ToolMissingError, match="no-such-program"):
        process.run(["no-such-program", "x"], supervised=supervised)
    started = time.monotonic()
    with pytest.raises(ForkError, match="did not finish within"):
        process.run(["sleep", "60"], timeout=0.5, supervised=supervised)
    assert time.monotonic() - started < 30


def test_commands_are_logged_as_they_can_be_pasted(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "torchfork")
    process.run(["echo", "a b"], cwd=tmp_path)
    assert caplog.messages == [f"+ cd {tmp_path} && echo 'a b'"]


RUN = """
import signal, sys
# a test run in the background has interrupts ignored, and children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
from torchfork.util import process
script = "sleep 60 & echo $! > {place}; wait"
process.{call}
"""
CALLS = {
    "run": "run(['sh', '-c', script], supervised=True)",
    "stream": "stream(['sh', '-c', script], print, env=process.clean_environment())",
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the death of a parent")
@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_descendants_end_with_a_run_that_is_killed(tmp_path: Path, call: str, number: int) -> None:
    place = tmp_path / "pid"
    program = RUN.format(place=place, call=CALLS[call])
    running = started(program, stderr=subprocess.DEVNULL, start_new_session=True)
    grandchild = int(eventually(lambda: place.read_text().strip() if place.exists() else ""))
    running.send_signal(number)
    running.wait(20)
    assert eventually(lambda: not runs(grandchild))


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$"])
def test_what_a_program_leaves_running_ends_with_it(ending: str) -> None:
    """Else its output, which is read to the end, would not end."""
    script, started = f"sleep 60 & {ending}", time.monotonic()
    status = process.stream(["sh", "-c", script], print, env=process.clean_environment())
    assert status == (3 if ending == "exit 3" else 128 + signal.SIGKILL)
    assert time.monotonic() - started < 30
