"""A failed compilation: the telling lines, the user's file, and no noise; nothing runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions.load import Additions
from torchfork.errors import CompileError, OutputError
from torchfork.native import compile as stage
from torchfork.native.toolchain import Toolchain

TOOLS = Toolchain("g++", "", 2, True, None, "")
NOISE = """\
ninja: Entering directory `b'
[1/3] a.o
FAILED: [code=1] additions/native/Swing.cpp.o
g++ -MMD -c ../include/ATen/native/Swing.cpp -o additions/native/Swing.cpp.o
In file included from x.h:3,
                 from /a/native/Swing.cpp:1:
/a/native/Swing.cpp: In function ‘at::Tensor at::native::swing(const at::Tensor&)’:
/a/native/Swing.cpp:7:10: error: ‘nothing’ was not declared in this scope
    7 |   return nothing;
      |          ^~~~~~~
ninja: build stopped: subcommand failed.
"""


@pytest.fixture
def additions(tmp_path: Path) -> Additions:
    return sample.write(tmp_path / "additions", derivatives=sample.DERIVATIVES)


def test_the_first_error_is_shown_with_its_file_and_line(
    tmp_path: Path, additions: Additions
) -> None:
    error = stage.failure(NOISE, tmp_path / "compile.log", TOOLS, additions)
    assert isinstance(error, CompileError) and error.exit_code == 15
    assert error.where == "/a/native/Swing.cpp:7"
    assert error.why.startswith("/a/native/Swing.cpp:7:10: error: ‘nothing’")
    assert "ninja: Entering" not in error.why and "included from" not in error.why
    assert str(tmp_path / "compile.log") in error.next


def test_nvccs_form_of_an_error_is_understood(tmp_path: Path, additions: Additions) -> None:
    text = '/a/native/cuda/Swing.cu(12): error: identifier "x" is undefined\n'
    error = stage.failure(NOISE[:60] + "\n" + text, tmp_path / "l", TOOLS, additions)
    assert error.where == "/a/native/cuda/Swing.cu:12"


@pytest.mark.parametrize(
    "text", ["g++: fatal error: Killed signal terminated program cc1plus", "x.sh: line 1: Killed"]
)
def test_a_killed_compiler_is_told_as_too_little_memory(
    tmp_path: Path, additions: Additions, text: str
) -> None:
    error = stage.failure(text, tmp_path / "l", TOOLS, additions)
    assert "killed" in error.what and "MAX_JOBS=1" in error.next


def test_a_full_disk_is_no_fault_of_the_kernel(tmp_path: Path, additions: Additions) -> None:
    text = "/tmp/cc.s: fatal error: error writing to x.o: No space left on device\n"
    error = stage.failure(text, tmp_path / "build" / "compile.log", TOOLS, additions)
    assert isinstance(error, OutputError) and "disk is full" in error.what
    assert error.where == str(tmp_path / "build")


def test_output_without_any_error_line_still_says_something(
    tmp_path: Path, additions: Additions
) -> None:
    error = stage.failure("ninja: error: x\n", tmp_path / "compile.log", TOOLS, additions)
    assert "ninja: error" in error.why


def build_file(seconds: float) -> str:
    return (
        f"rule slow\n  command = touch $out.started && sleep {seconds} && touch $out\n"
        "build a.o: slow\ndefault a.o\n"
    )


def test_objects_are_counted_and_a_second_run_compiles_none(
    tmp_path: Path, additions: Additions
) -> None:
    seen: list[tuple[int, int, str]] = []

    def run() -> int:
        return stage.compile_all(
            build_file(0), tmp_path / "ö b", TOOLS, additions, lambda *told: seen.append(told)
        )

    assert (run(), run()) == (1, 0) and len(seen) == 1


RUN = """
import signal
import sys
from pathlib import Path
# a test run in the background has SIGINT ignored, and children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
import sample_additions as sample
from torchfork.native import compile as stage
from torchfork.native.toolchain import Toolchain
root = Path(sys.argv[2])
additions = sample.write(root / "additions")
tools = Toolchain("g++", "", 2, True, None, "")
stage.compile_all(sys.argv[3], root / "build", tools, additions, lambda *told: None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_compiler_runs_on_when_the_run_is_ended(tmp_path: Path, number: int) -> None:
    """It would write objects beside those of the next run."""
    if sys.platform != "linux" and number != signal.SIGINT:
        pytest.skip("only Linux tells a child that its parent was killed")
    here = str(Path(__file__).parents[1])
    running = subprocess.Popen(
        [sys.executable, "-c", RUN, here, str(tmp_path), build_file(1.5)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not (tmp_path / "build" / "a.o.started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(number)
    assert running.wait(20) != 0
    time.sleep(2)
    assert (tmp_path / "build" / "a.o.started").exists()
    assert not (tmp_path / "build" / "a.o").exists()


def test_the_support_sources_are_brought_with_their_folders(tmp_path: Path) -> None:
    (tmp_path / "from" / "stand_ins").mkdir(parents=True)
    (tmp_path / "from" / "a.cpp").write_text("a")
    (tmp_path / "from" / "stand_ins" / "b.hpp").write_text("b")
    stage.copy_support(tmp_path / "from", tmp_path / "to")
    assert sample.tree(tmp_path / "to") == {"a.cpp": b"a", "stand_ins/b.hpp": b"b"}
