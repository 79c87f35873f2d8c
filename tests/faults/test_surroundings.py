"""Faults of the machine around a build: each with its exit code, its words, nothing half-written.

The command line runs as a user's would, on the official wheel (see conftest.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from command import PROJECT, SMALL, Command

from torchfork.util import cache

pytestmark = pytest.mark.wheel


@pytest.fixture
def path_without_compilers(tmp_path: Path) -> str:
    """A PATH with what a plain system has, but no compiler."""
    programs = tmp_path / "plain bin"
    programs.mkdir()
    for name in ("sh", "env", "cat", "ls", "nm", "c++filt"):
        found = shutil.which(name)
        assert found, name
        (programs / name).symlink_to(found)
    return str(programs)


def test_no_compiler_is_told_with_what_to_install(
    command: Command, path_without_compilers: str
) -> None:
    answer = command.run(PATH=path_without_compilers)
    answer.assert_error(16, "no C++ compiler", "apt-get install g++")
    assert not command.out.exists()


def test_checking_needs_no_compiler(command: Command, path_without_compilers: str) -> None:
    answer = command.run("check", PATH=path_without_compilers)
    assert answer.code == 0, answer.err


def official_wheel(base_option: tuple[str, ...]) -> Path:
    """The wheel file that a finished build was made from."""
    if base_option:
        return Path(base_option[1])
    found = sorted((cache.directory() / "wheels").glob("*/*.whl"), key=lambda p: p.stat().st_atime)
    return found[-1]


# -- disks -----------------------------------------------------------------------------------------


def small_disk(place: Path, megabytes: int) -> tuple[str, ...]:
    """What a command is started with so that `place` is a disk of its own, of this size."""
    place.mkdir()
    mount = f'mount -t tmpfs -o size={megabytes}m,mode=777 tmpfs "$0" && exec "$@"'
    prefix = ("unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(place))
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk (unshare --map-root-user)")
    return prefix


@pytest.mark.parametrize("megabytes", [1, 8, 16])
def test_a_full_disk_is_told_at_whatever_stage_it_is_full(command: Command, megabytes: int) -> None:
    """The generator's copy takes 5 MB, what it generates and the headers some 10 each."""
    prefix = small_disk(command.work, megabytes)
    answer = command.run(prefix=prefix)
    answer.assert_error(30, "the disk is full", "nothing was left half-written")
    assert not list(command.out.glob("*"))


def test_a_disk_that_the_wheel_does_not_fit_on_is_told_and_gets_no_half_wheel(
    finished: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    prefix = small_disk(out, 20)
    script = 'test -z "$(ls -A "$0")" || echo LEFT "$(ls -A "$0")"'
    whole = ("sh", "-c", f'"$@"; code=$?; sh -c \'{script}\' "$0"; exit $code', str(out))
    answer = finished.run("build", "--out", out, prefix=(*prefix, *whole))
    answer.assert_error(30, "the disk is full", str(out))
    assert "LEFT" not in answer.out


def test_a_work_directory_that_cannot_be_written_is_told(command: Command) -> None:
    command.work.write_text("no directory")
    answer = command.run("check")
    answer.assert_error(30, str(command.work))


# -- other runs ------------------------------------------------------------------------------------


def test_an_interrupted_build_ends_quietly_and_the_next_one_goes_on(command: Command) -> None:
    running = command.start()
    deadline = time.monotonic() + 300
    while not any(command.root.glob("work/*/build/build.ninja")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate()
    assert running.returncode == 130 and "interrupted" in err and "Traceback" not in err
    assert not list(command.out.glob("*"))
    assert command.run().wheel.is_file()


def test_of_two_runs_at_once_the_second_waits_and_names_the_first(finished: Command) -> None:
    """A lock that a living process holds, as a build does, longer than a run takes to meet it."""
    guard = finished.layout().with_name(finished.layout().name + ".lock")
    started = time.monotonic()
    finished.run()
    held_for = 2 + 2 * (time.monotonic() - started)
    hold = (
        "import sys, time\nfrom pathlib import Path\nfrom torchfork.util import files\n"
        "with files.lock(Path(sys.argv[1]), 'building', 1):\n"
        "    print('held', flush=True)\n    time.sleep(float(sys.argv[2]))\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(guard), str(held_for)], env=finished.env(),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    started = time.monotonic()
    answer = finished.run()
    holder.communicate()
    assert answer.code == 0 and time.monotonic() - started > held_for / 2
    assert f"process {holder.pid} (building)" in answer.err and "waiting" in answer.err


def test_two_runs_of_other_additions_do_not_wait_for_each_other(
    finished: Command, tmp_path: Path
) -> None:
    """Their locks were one once: the version's dots were taken for a file name's suffix."""
    other = Command(tmp_path, finished.base, tmp_path / "mine")
    shutil.copytree(SMALL, other.additions)
    assert other.run("check").code == 0
    locks = {p.name for c in (finished, other) for p in c.work.glob("*.lock")} - {"verify.lock"}
    assert len(locks) == 2
    assert all((c.layout().name + ".lock") in locks for c in (finished, other))


# -- places and users ------------------------------------------------------------------------------


def test_paths_with_blanks_quotes_and_other_letters_serve(
    finished: Command, tmp_path: Path
) -> None:
    root = tmp_path / "Größe & 'quote' $HOME 日本"
    root.mkdir()
    additions = root / "ad ditions"
    shutil.copytree(SMALL, additions)
    command = Command(root, finished.base, additions)
    wheel = command.run().wheel
    assert wheel.parent == command.out
    assert wheel.read_bytes() == finished.run().wheel.read_bytes()


def test_an_error_in_such_a_path_names_the_file_as_it_is(command: Command, tmp_path: Path) -> None:
    root = tmp_path / "Größe $x 日本"
    root.mkdir()
    broken = Command(root, command.base).with_additions("- func: [\n")
    answer = broken.run("check")
    answer.assert_error(10)
    assert answer.part("where").startswith(str(root / "additions"))


def python_for(prefix: tuple[str, ...], home: Path) -> str:
    """An environment of another user's with the modules of this one.

    Its interpreter must be one that others may run: one in somebody's home often is not.
    """
    for candidate in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}"):
        make = [*prefix, candidate, "-m", "venv", "--without-pip", str(home / "tools")]
        python = home / "tools" / "bin" / "python"
        tried: list[str | Path] = [
            *prefix,
            python,
            "-c",
            "import subprocess, sys; subprocess.run(sys.executable)",
        ]
        done = [
            subprocess.run(
                argv, cwd="/", capture_output=True, check=False, stdin=subprocess.DEVNULL
            )
            for argv in (make, tried)
        ]
        if not any(run.returncode for run in done):
            site = next((home / "tools").glob("lib/*/site-packages"))
            (site / "modules.pth").write_text(sysconfig.get_path("purelib") + "\n")
            return str(python)
        shutil.rmtree(home / "tools", ignore_errors=True)
    pytest.skip("no other user may run an interpreter of this version here")


def test_a_user_without_rights_builds_from_a_copy_and_is_told_where_she_may_not_write(
    finished: Command, tmp_path: Path, base_option: tuple[str, ...]
) -> None:
    """Run by root, as nobody; any other user is such a user already."""
    if os.getuid():
        pytest.skip("this user has no rights to give up: all the other tests are this one")
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv (util-linux)")
    home = tmp_path / "home"
    shutil.copytree(
        PROJECT / "scripts", home / "scripts", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(PROJECT / "ci", home / "ci")
    shutil.copytree(SMALL, home / "additions")
    official = official_wheel(base_option)
    wheel = Path(shutil.copy(official, home / official.name))
    for path in [home, *home.rglob("*")]:
        os.chown(path, 65534, 65534)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(parent.stat().st_mode | 0o755)
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    environment = {
        "HOME": str(home), "XDG_CACHE_HOME": "", "TORCHFORK_CACHE": str(home / "cache"),
        "PYTHONPATH": str(home / "scripts" / "lib"), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    python = python_for(prefix, home)
    command = Command(home, ("--base", str(wheel)), home / "additions", environment, python)
    answer = command.run("check", prefix=prefix)
    assert answer.code == 0, answer.err
    assert {path.stat().st_uid for path in command.work.rglob("*")} == {65534}
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    answer = command.run("build", "--work", private, prefix=prefix)
    answer.assert_error(30, str(private))
    assert not list(private.iterdir())
