"""What a long build prints: how far it is, and which of a thousand lines tells why it failed."""

from __future__ import annotations

import pytest

from torchfork.native.buildlog import Pace, telling


def test_the_pace_tells_steps_rate_and_the_time_that_is_left() -> None:
    pace = Pace()
    for step in range(1, 61):
        assert pace.see(f"[{step}/300] Building CXX object x.o\n", float(step * 2))
    assert pace.line == "60 of 300, 30 a minute, 8 min left"


def test_lines_that_are_no_steps_change_nothing() -> None:
    pace = Pace()
    assert not pace.see("-- Found [3/4] of it\n", 1.0)
    assert not pace.see("a [1/2] b\n", 2.0)
    assert pace.line == "0 of 0"


def test_the_rate_is_that_of_the_last_minutes_and_not_of_the_whole_build() -> None:
    pace = Pace()
    for step in range(1, 11):
        pace.see(f"[{step}/100] slow", step * 100.0)
    for step in range(11, 73):
        pace.see(f"[{step}/100] fast", 1000.0 + (step - 10) * 2.0)
    assert 29 < pace.rate < 31


def test_another_ninja_starts_the_count_anew() -> None:
    pace = Pace()
    pace.see("[5/6] Generating", 1.0)
    pace.see("[1/1600] Building", 2.0)
    assert pace.rate == 0 and pace.line.startswith("1 of 1600")


FAILED = """\
[12/1600] Building CXX object a.o
[13/1600] Building CXX object b.o
FAILED: caffe2/b.o
ccache /usr/bin/c++ -DX -c /tree/aten/b.cpp
In file included from /tree/aten/b.h:3,
                 from /tree/aten/b.cpp:1:
\x1b[01m\x1b[K/tree/aten/b.cpp:7:12:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kexpected ';'
    7 |   return x
[14/1600] Building CXX object c.o
FAILED: caffe2/c.o
/tree/aten/c.cpp:1:1: error: a later one
ninja: build stopped: subcommand failed.
"""


def test_the_first_error_of_the_first_failed_step_is_told() -> None:
    found = telling(FAILED)
    assert found.file == "/tree/aten/b.cpp:7"
    assert found.text.splitlines()[0] == "/tree/aten/b.cpp:7:12: error: expected ';'"
    assert not found.out_of_memory


@pytest.mark.parametrize(
    "line",
    [
        "c++: fatal error: Killed signal terminated program cc1plus",
        "virtual memory exhausted: Cannot allocate memory",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
        "Killed",
    ],
)
def test_a_killed_compiler_is_no_compile_error(line: str) -> None:
    found = telling(f"[1/2] Building\nFAILED: x.o\nc++ -c x.cpp\n{line}\nninja: stopped\n")
    assert found.out_of_memory and line in found.text


def test_a_warning_that_says_error_is_not_taken_for_one() -> None:
    text = (
        "x.cpp:3:1: warning: deprecated [-Werror=deprecated]\nFAILED: y.o\ny.cpp:1:2: error: no\n"
    )
    assert telling(text).file == "y.cpp:1"


def test_cmakes_own_error_is_told_with_its_place() -> None:
    text = "-- ok\nCMake Error at cmake/Dependencies.cmake:12 (message):\n  Cannot find sleef\n"
    found = telling(text)
    assert found.file == "cmake/Dependencies.cmake:12" and "Cannot find sleef" in found.text


def test_of_anything_else_the_end_is_told() -> None:
    text = "".join(f"line {n}\n" for n in range(100)) + "RuntimeError: no such option\n"
    assert telling(text).text.endswith("RuntimeError: no such option")
    assert "line 5\n" not in telling(text).text
