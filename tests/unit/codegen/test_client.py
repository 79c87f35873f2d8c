"""The code generator's child process: its errors name a cause, and it ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sample_files import eventually, lay, runs

from torchfork.codegen import client
from torchfork.errors import BaseRefusedError, ForkError, InternalError, KilledError, OutputError
from torchfork.util import files, process

LIB = Path(client.__file__).resolve().parents[2]
SLEEPING = """
import os, pathlib, time
pathlib.Path("started").write_text(str(os.getpid()))
time.sleep(600)
"""


def torchgen(home: Path, gen: str) -> Path:
    """A torchgen whose module gen has this text."""
    return lay(home, {"torchgen/__init__.py": "", "torchgen/gen.py": gen})


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports a parent's death")
def test_the_generator_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    home, scratch = torchgen(tmp_path / "home", SLEEPING), tmp_path / "scratch"
    scratch.mkdir()
    program = (
        "import pathlib, sys; from torchfork.codegen import client; "
        "client.list_operators(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    # interrupts ignored, as a shell starts what it runs in the background
    shell = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    parent = subprocess.Popen(
        [*shell, sys.executable, "-c", program, str(home), str(scratch)],
        env={**os.environ, "PYTHONPATH": str(LIB)},
    )
    place = scratch / "started"
    assert eventually(lambda: place.is_file() and place.read_text().isdigit()), "it did not start"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: not runs(int(place.read_text()))), "it outlived its parent"


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


@pytest.mark.parametrize(
    ("dying", "becomes"),
    [
        (f"raise OSError(28, {files.DISK_FULL!r})", OutputError),
        ("import os; os.kill(os.getpid(), 9)", KilledError),
        ("raise MemoryError", KilledError),
    ],
)
@pytest.mark.parametrize("child", [False, True])
def test_what_the_machine_refuses_is_no_fault_of_the_additions(
    tmp_path: Path, dying: str, becomes: type[ForkError], child: bool
) -> None:
    """The generator may end, or a process that it started."""
    body = "import __main__\n__main__._fork_all([end])" if child else "end()"
    home = torchgen(tmp_path / "home", f"def end():\n    {dying}\n{body}\n")
    with pytest.raises(becomes):
        client.run_driver(home, {"task": "describe", "packaged": str(home)}, tmp_path)


def test_only_a_generator_without_memory_asks_for_memory(tmp_path: Path) -> None:
    for number, asks in ((9, True), (11, False)):
        end = f"import os, __main__\n__main__._fork_all([lambda: os.kill(os.getpid(), {number})])"
        home = torchgen(tmp_path / f"home{number}", end)
        with pytest.raises(KilledError, match=f"status -{number}") as caught:
            client.run_driver(home, {"task": "describe", "packaged": str(home)}, tmp_path)
        assert ("memory" in caught.value.next) == asks


def test_nor_is_what_the_trial_reports_of_a_process_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str | Path], **_options: object) -> process.Outcome:
        killed = {"type": "Killed", "message": "the generator ended with -9"}
        files.write_json(Path(command[-1]), {"refused": [killed]})
        return process.Outcome((), 0, "", "")

    monkeypatch.setattr(process, "run", run)
    with pytest.raises(KilledError):
        client.run_driver(tmp_path, {"task": "trial"}, tmp_path)
