"""The command line: exit codes, messages on stderr, results on stdout, never a bare traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_additions

import torchfork
from torchfork import cli
from torchfork.errors import KernelError
from torchfork.util import process

LIB = Path(torchfork.__file__).parents[1]
Raise = Callable[[BaseException], None]
Patch = pytest.MonkeyPatch


@pytest.fixture
def failing(monkeypatch: Patch) -> Raise:
    """Make `torchfork check` end in a given exception."""

    def arrange(error: BaseException) -> None:
        def run(*arguments: object) -> None:
            raise error

        monkeypatch.setattr("torchfork.commands.build.load_additions", run)

    return arrange


def test_an_error_ends_with_its_code_and_a_traceback_for_debug_alone(
    failing: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(KernelError("no such kernel", where="a.yaml:3", why="none", next="write it"))
    assert cli.main(["check"]) == 14
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "\nerror: no such kernel\nwhere: a.yaml:3\nwhy:   none\nnext:  write it\n"
    assert cli.main(["check", "--debug"]) == 14
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def of_the_system(number: int, file: str = "/some/file") -> OSError:
    return OSError(number, os.strerror(number), file)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (of_the_system(errno.ENOSPC), 30, "the disk is full"),
        (of_the_system(errno.EDQUOT), 30, "the disk is full"),
        (of_the_system(errno.EROFS), 30, "cannot write here"),
        (of_the_system(errno.EACCES), 30, "no permission for this file"),
        (of_the_system(errno.EPERM), 30, "no permission for this file"),
        (of_the_system(errno.ENAMETOOLONG, "x" * 5000), 2, f"where: {'x' * 200}\n"),
        (of_the_system(errno.ELOOP), 2, "where: /some/file\n"),
        (ZeroDivisionError("division by zero"), 70, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_no_code_anticipates_is_named_wherever_it_happens(
    failing: Raise, capsys: pytest.CaptureFixture[str], error: Exception, code: int, says: str
) -> None:
    """The disk's refusals, paths that cannot be, and faults of torchfork's own."""
    failing(error)
    assert cli.main(["check"]) == code
    err = capsys.readouterr().err
    assert says in err and "next:" in err and "Traceback" not in err
    if isinstance(error, OSError):
        assert f"where: {str(error.filename)[:200]}\n" in err and str(error.strerror) in err
    else:
        assert "where: test_cli.py:" in err and "--debug" in err


def test_an_interrupt_and_a_kill_end_as_shells_expect(
    failing: Raise, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(KeyboardInterrupt())
    assert cli.main(["check"]) == 130

    def killed(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("torchfork.commands.build.load_additions", killed)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main(["check"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err.count("the next run continues") == 2


FOR_SOURCE = "is about building from source\nnext:  add --from-source"
REFUSED = {
    "check --torch 2.13.0 --base installed": (2, "--torch and --base exclude each other"),
    "build --develop --torch 2.13.0": (2, "no other base can be named"),
    "build --develop --overlay": (2, "--develop and --overlay exclude each other"),
    "build --from-source --develop": (2, "--from-source and --develop exclude"),
    "build --from-source --undo": (2, "--from-source and --undo exclude"),
    "build --from-source --base installed": (2, "--from-source and --base exclude"),
    "build --from-source --overlay": (2, "--from-source and --overlay exclude"),
    "build --from-source --name x": (2, "--from-source and --name exclude"),
    "build --name x": (2, "add --overlay"),
    "build --overlay --name x!": (2, "overlay.toml"),
    "build --overlay --additions tests/zoo/additions": (2, "say --name NAME"),
    "build --source debian": (2, f"--source {FOR_SOURCE}"),
    "build --git-url x": (2, f"--git-url {FOR_SOURCE}"),
    "build --fresh": (2, f"--fresh {FOR_SOURCE}"),
    "build --until fetch": (2, f"--until {FOR_SOURCE}"),
    "check --torch 1.0.0": (20, "pinned are"),
    "build --from-source --source debian --torch 2.13.0": (20, "--source git"),
    "conformance --wheel a.whl --env python3": (2, "--wheel and --env exclude"),
    "conformance --wheel no.whl": (2, "there is no wheel no.whl"),
    "rebase": (2, "--onto VERSION"),
}


@pytest.mark.parametrize("command", REFUSED)
def test_options_that_make_no_sense_are_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    code, says = REFUSED[command]
    assert cli.main([*command.split(), "--work", str(tmp_path)]) == code
    err = capsys.readouterr().err
    assert says in err and "next:" in err


def test_a_base_that_no_overlay_is_for_is_refused_before_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    base = sample_additions.base(tmp_path / "base")
    monkeypatch.setattr("torchfork.commands.build.open_base", lambda *options: base)
    command = ["build", "--overlay", "--work", str(tmp_path / "work")]
    assert cli.main(command) == 2
    assert "made for Linux" in capsys.readouterr().err
    base.torch_cpu.parent.mkdir(parents=True)
    base.torch_cpu.touch()
    assert cli.main(command) == 2
    assert "beside an official wheel" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("build", "--number", "0"), ("build", "--number", "-1"), ("build", "--number", "one"),
        ("build", "--out", ""), ("rebase", "--jobs", "0"), ("conformance", "--jobs", "0"),
    ],
)  # fmt: skip
def test_a_number_below_one_and_an_empty_path_are_refused(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, option, value])
    assert caught.value.code == 2 and option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [("none", 2, "there is no such source"), ("file", 2, "neither tree nor tarball"),
     ("", 23, "not a tree of PyTorch's sources")],
)  # fmt: skip
def test_a_source_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Patch,
    source: str, code: int, says: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("TORCHFORK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("no tarball")
    given = ["--source", str(tmp_path / source), "--work", str(tmp_path / "work")]
    assert cli.main(["build", "--from-source", *given]) == code
    assert says in capsys.readouterr().err


def test_additions_that_are_none_are_refused_before_anything_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    monkeypatch.setenv("TORCHFORK_CACHE", str(tmp_path / "cache"))
    assert cli.main(["build", "--additions", str(tmp_path)]) == 10
    assert "--additions DIR" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_the_version_of_the_tooling_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"torchfork {torchfork.__version__}\n"


@pytest.mark.parametrize("flags", [[], ["-v"]])
def test_programs_are_shown_as_they_can_be_pasted_where_that_is_asked_for(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    def run(*arguments: object) -> None:
        process.run(["echo", "a b", "[red]", ":b:"])
        raise KernelError("no such kernel", next="write it")

    monkeypatch.setattr("torchfork.commands.build.load_additions", run)
    assert cli.main(["check", *flags]) == 14
    assert ("+ echo 'a b' '[red]' :b:\n" in capsys.readouterr().err) == bool(flags)


def test_control_characters_reach_the_terminal_escaped(
    failing: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(KernelError("no \x1b[31mred\x07 kernel\u202e", where="a\nb"))
    assert cli.main(["check"]) == 14
    err = capsys.readouterr().err
    assert "no \\x1b[31mred\\x07 kernel\\u202e" in err and "\x1b" not in err
    assert "where: a\n       b" in err


def run_cli(*arguments: str, shell: str = "", cwd: Path | None = None, **env: str) -> str:
    """The output and the exit code of the command line in a process of its own."""
    program = f'{shell} "{sys.executable}" -m torchfork "$@"; echo "exit code $?"'
    done = subprocess.run(
        ["bash", "-c", program, "bash", *arguments], cwd=cwd, text=True,
        env={**os.environ, "PYTHONPATH": str(LIB), **env}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout


def test_a_deleted_current_directory_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    said = run_cli("releases", shell=f"rmdir '{gone}';", cwd=gone)
    assert "the current directory was deleted" in said and "exit code 2" in said


def test_closed_streams_and_readers_that_leave_are_no_errors() -> None:
    assert run_cli("releases", shell="exec 3>&1;").count("2.13.0")
    program = f'"{sys.executable}" -m torchfork releases'
    for redirected in (">&-", "2>&-", ">&- 2>&-", "| head -n 1 | grep -q ."):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{program} {redirected}"], text=True,
            env={**os.environ, "PYTHONPATH": str(LIB)}, capture_output=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), redirected


def test_a_user_without_a_home_hears_what_to_set() -> None:
    said = run_cli("clean", "--cache", TORCHFORK_CACHE="~nosuchuser/cache")
    assert "the home directory of this user is not known" in said and "exit code 2" in said


@pytest.mark.parametrize("size", ["²", "9" * 5000, "wide", ""])
def test_a_terminal_size_that_is_no_number_is_no_error(
    failing: Raise, monkeypatch: Patch, size: str
) -> None:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, size)
    failing(KernelError("no such kernel", where="a.yaml:3", why="none", next="write it"))
    assert cli.main(["check"]) == KernelError.exit_code
