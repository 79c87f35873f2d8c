"""Invariants 4 and 5: checks of the YAML precede any compiler, checks of kernels the link."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import SMALL, Command

pytestmark = pytest.mark.wheel


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, str]:
    """A compiler that writes down that it was called; and where."""
    log, script = tmp_path / "calls", tmp_path / "c++ compiler"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\nexit 1\n')
    script.chmod(0o755)
    link = tmp_path / "cxx"
    link.symlink_to(script)
    return log, str(link)


@pytest.mark.parametrize(
    ("native", "code"),
    [("- func: wt_a(Tensr self) -> Tensor\n", 10), ("- func: relu(Tensor self) -> Tensor\n", 11)],
    ids=["by the code generator", "before the code generator"],
)
def test_4_what_is_refused_never_reaches_the_compiler(
    command: Command, recorded: tuple[Path, str], native: str, code: int
) -> None:
    log, compiler = recorded
    answer = command.with_additions(native).run("build", CXX=compiler)
    answer.assert_error(code)
    assert "native_functions_additions.yaml:1" in answer.part("where")
    assert not log.exists() and not command.out.exists()


def test_4_the_recording_compiler_is_called_for_additions_that_are_fine(
    command: Command, recorded: tuple[Path, str]
) -> None:
    """Else the tests above would pass with a compiler that nobody ever calls."""
    log, compiler = recorded
    native = "- func: wt_a(Tensor self) -> Tensor\n"
    answer = command.with_additions(native).run(
        "build", CXX=compiler, CMAKE_CXX_COMPILER_LAUNCHER=""
    )
    answer.assert_error(16)
    assert log.exists() and not list(command.out.glob("*"))


def test_5_a_missing_kernel_is_told_before_the_linker_runs(
    base_option: tuple[str, ...], tmp_path: Path
) -> None:
    """The compiler works, but notes every link; the error names the line of the declaration."""
    log, script = tmp_path / "links", tmp_path / "cxx"
    # A compiler cache knows g++, but no script that differs in each run.
    compiler = f"{shutil.which('ccache') or ''} g++"
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" -shared "*) echo "$@" >> "{log}";; esac\n'
        f'exec {compiler} "$@"\n'
    )
    script.chmod(0o755)
    # Without 'dispatch:', so that no text names the kernel.
    command = Command(tmp_path, base_option, tmp_path / "additions")
    shutil.copytree(SMALL, command.additions)
    (source,) = command.additions.glob("aten_src/native/*.cpp")
    source.write_text("")
    answer = command.run("build", CXX=str(script), CMAKE_CXX_COMPILER_LAUNCHER="")
    answer.assert_error(14, "'wheel_test_step' is declared and defined nowhere")
    assert answer.part("where").endswith("native_functions_additions.yaml:3")
    assert not log.exists() and not list(command.out.glob("*"))
