"""Files: whole or not at all, whatever ends the run that writes them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from sample_files import started

from torchfork.errors import BusyError, OutputError
from torchfork.util import files


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("error", "becomes", "says"),
    [
        (RuntimeError("unforeseen"), RuntimeError, "unforeseen"),
        (OSError(errno.ENOSPC, files.DISK_FULL), OutputError, "disk is full"),
    ],
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: Exception, becomes: type[Exception], says: str
) -> None:
    files.write_text(tmp_path / "x", "old")
    with pytest.raises(becomes, match=says), files.atomic_open(tmp_path / "x") as stream:
        stream.write(b"half")
        raise error
    assert (tmp_path / "x").read_text() == "old" and names(tmp_path) == ["x"]
    # shutil collects the errors of a tree into one without a number
    several = shutil.Error([("a", "b", f"[Errno 28] {files.DISK_FULL}")])
    assert "disk is full" in files.output_error(Path("t"), several).what


def test_what_a_killed_run_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    target = tmp_path / "torch-1+x [y].whl"
    (tmp_path / f".{target.name}.lock").touch()
    (tmp_path / f".{target.name}.original").write_text("the user's own")
    (tmp_path / f".{target.name}.torchfork-12345678").write_text("half")
    with files.atomic_open(target) as stream:
        stream.write(b"whole")
        files.write_text(target, "of another run")
        assert len(names(tmp_path)) == 4
    assert target.read_bytes() == b"whole"
    assert names(tmp_path) == [f".{target.name}.lock", f".{target.name}.original", target.name]


def test_a_directory_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "made"
    files.build_directory(target, lambda made: (made / "first").touch())
    files.build_directory(target, lambda made: (made / "second").touch())
    assert names(target) == ["second"] and names(tmp_path) == ["made"]

    def fill(made: Path) -> None:
        (made / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.build_directory(target, fill)
    assert names(target) == ["second"] and names(tmp_path) == ["made"]


@pytest.mark.parametrize(
    ("end", "becomes"), [(OSError, OutputError), (KeyboardInterrupt, KeyboardInterrupt)]
)
def test_the_old_directory_is_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: type[BaseException],
    becomes: type[BaseException],
) -> None:
    target, rename = tmp_path / "made", Path.rename
    files.build_directory(target, lambda made: (made / "old").touch())

    def failing(path: Path, to: Path) -> Path:
        if to == target and path.suffix != ".old":
            raise end
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(becomes):
        files.build_directory(target, lambda made: (made / "new").touch())
    assert names(target) == ["old"] and names(tmp_path) == ["made"]


def test_a_run_killed_while_it_deletes_the_old_directory_leaves_the_new_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note that says what a directory was made from may be the last file to be deleted."""
    target = tmp_path / "made"
    files.build_directory(target, lambda made: (made / "old").touch())

    def kill(path: Path, ignore_errors: bool = False) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        files.build_directory(target, lambda made: (made / "new").touch())
    assert names(target) == ["new"]


def test_leftovers_of_killed_runs_go_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / ".made.abc.old" / "deep").mkdir(parents=True)
    (tmp_path / ".note.json.xyz").touch()
    (tmp_path / "made").mkdir()
    (tmp_path / ".link").symlink_to(tmp_path / "made")
    files.remove_stale_temporaries(tmp_path)
    assert names(tmp_path) == ["made"]


def test_equal_contents_are_not_written_again_and_borders_of_texts_count(tmp_path: Path) -> None:
    assert files.write_if_changed(tmp_path / "x", "a")
    os.utime(tmp_path / "x", (1, 1))
    assert not files.write_if_changed(tmp_path / "x", "a")
    assert (tmp_path / "x").stat().st_mtime == 1
    assert files.write_if_changed(tmp_path / "x", "b")
    assert files.sha256_text("ab", "c") != files.sha256_text("a", "bc")
    assert files.sha256_text("\udcff") != files.sha256_text("\udcfe"), "not UTF-8"


HOLD = """
import sys, time
from pathlib import Path
from torchfork.util import files
with files.lock(Path(sys.argv[1]), "holding on", 1):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_names_the_holder_and_follows_when_that_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = tmp_path / "a.lock"
    holder = started(HOLD, guard, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        with pytest.raises(BusyError) as caught, files.lock(guard, "x", 0.2):
            raise AssertionError("both hold it")
        assert caplog.messages == [f"waiting for process {holder.pid} (holding on)"]
        assert caught.value.exit_code == 31 and str(holder.pid) in caught.value.what
        threading.Timer(0.3, holder.kill).start()
        with files.lock(guard, "x", 20):
            assert len(caplog.messages) == 2
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is deleted when the first lock is got, as by a run that removes the cache."""
    places, flock = list[Path](), fcntl.flock

    def got(handle: int, how: int) -> None:
        flock(handle, how)
        if places:
            path = places.pop()
            path.rmdir() if path.is_dir() else path.unlink()

    monkeypatch.setattr(fcntl, "flock", got)
    return places


def test_a_lock_whose_file_is_deleted_as_it_is_got_is_taken_anew(
    tmp_path: Path, deleted: list[Path]
) -> None:
    guard = tmp_path / "a.lock"
    deleted.append(guard)
    with files.lock(guard, "x"), pytest.raises(BusyError), files.lock(guard, "y", timeout=0):
        raise AssertionError("both hold it")


def test_a_lock_is_taken_anew_where_its_directory_is_deleted_meanwhile(tmp_path: Path) -> None:
    guard = tmp_path / "cache" / "a.lock"
    with files.lock(guard, "x"):
        threading.Timer(0.2, shutil.rmtree, [guard.parent]).start()
        with files.lock(guard, "y", timeout=20):
            assert guard.is_file()


def test_no_file_is_put_where_a_directory_was_that_is_deleted_as_it_is_locked(
    tmp_path: Path, deleted: list[Path]
) -> None:
    place = tmp_path / "torch"
    place.mkdir()
    deleted.append(place)
    with pytest.raises(FileNotFoundError), files.lock(place, "x"):
        raise AssertionError("it is gone")
    assert names(tmp_path) == []
