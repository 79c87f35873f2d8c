"""The cache: where it is, and that `clean` deletes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from killing import every_kill

from torchfork.errors import BusyError, UsageError
from torchfork.util import cache, files


def made(root: Path) -> Path:
    return cache.directory({"TORCHFORK_CACHE": str(root)})


def test_a_cache_that_was_made_here_is_removed_and_links_in_it_are_not_followed(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "thesis.tex").write_text("years")
    root = made(tmp_path / "cache")
    (root / "wheels").mkdir()
    (root / "wheels" / "a.whl").write_bytes(b"x" * 1000)
    (root / "link").symlink_to(kept)
    assert cache.remove(root) >= 1000
    assert not root.exists() and (kept / "thesis.tex").read_text() == "years"


def test_a_removal_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "cache"

    def fill(allowed: int = 0) -> None:
        for name in ("a", "b/c"):
            (made(root) / name).mkdir(parents=True, exist_ok=True)
            (root / name / "file").touch()

    def finish(allowed: int) -> None:
        cache.remove(made(root))
        assert not root.exists()
        fill()

    fill()
    assert every_kill(lambda: cache.remove(made(root)), tmp_path, finish) > 5


@pytest.mark.parametrize("tag", [None, "Signature: of another program\n", b"\xff\xfe"])
def test_a_directory_that_was_there_before_is_refused(
    tmp_path: Path, tag: str | bytes | None
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years")
    if tag is not None:
        (home / cache.TAG).write_bytes(tag if isinstance(tag, bytes) else tag.encode())
    with pytest.raises(UsageError, match="not made by torchfork"):
        cache.remove(made(home))
    assert (home / "thesis.tex").read_text() == "years"


def test_a_link_to_a_cache_is_refused(tmp_path: Path) -> None:
    root = made(tmp_path / "cache")
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(UsageError):
        cache.remove(tmp_path / "link")
    assert (root / cache.TAG).is_file()


def test_a_cache_in_use_stays(tmp_path: Path) -> None:
    root = made(tmp_path / "cache")
    (root / "locks").mkdir()
    with (
        files.lock(root / "locks" / "fetch.lock", "fetching", print, 0),
        pytest.raises(BusyError),
    ):
        cache.remove(root)
    assert root.is_dir()
