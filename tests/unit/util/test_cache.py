"""The cache: where it is, and that `clean` deletes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from killing import every_kill
from sample_files import lay

from torchfork.errors import BusyError, UsageError
from torchfork.util import cache, files


def made(root: Path) -> Path:
    return cache.directory({"TORCHFORK_CACHE": str(root)})


def left(root: Path) -> list[str]:
    return [path.name for path in root.iterdir()]


def test_a_cache_made_here_is_removed_and_links_in_it_are_not_followed(tmp_path: Path) -> None:
    kept = lay(tmp_path / "kept", {"thesis.tex": "years"})
    root = made(tmp_path / "cache")
    lay(root, {"wheels/a.whl": b"x" * 1000})
    (root / "link").symlink_to(kept)
    assert cache.remove(root) >= 1000
    assert left(root) == [cache.TAG] and (kept / "thesis.tex").read_text() == "years"


def test_a_removal_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "cache"

    def fill(allowed: int = 0) -> None:
        for name in ("a", "b/c"):
            (made(root) / name).mkdir(parents=True, exist_ok=True)
            (root / name / "file").touch()

    def finish(allowed: int) -> None:
        cache.remove(made(root))
        assert left(root) == [cache.TAG]
        fill()

    fill()
    assert every_kill(lambda: cache.remove(made(root)), tmp_path, finish) > 4


@pytest.mark.parametrize("tag", [None, "Signature: of another program\n", b"\xff\xfe"])
def test_a_directory_of_others_is_refused(tmp_path: Path, tag: str | bytes | None) -> None:
    home = lay(tmp_path / "home", {"thesis.tex": "years"})
    if tag is not None:
        lay(home, {cache.TAG: tag})
    with pytest.raises(UsageError, match="not made by torchfork"):
        cache.remove(made(home))
    for none in (home / "thesis.tex", home / "thesis.tex" / "below", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="not made by torchfork"):
            cache.remove(none)
    assert (home / "thesis.tex").read_text() == "years"


def test_a_link_to_a_cache_and_a_cache_in_use_stay(tmp_path: Path) -> None:
    root = made(tmp_path / "cache")
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(UsageError):
        cache.remove(tmp_path / "link")
    lock = root / "locks" / "fetch.lock"
    with files.lock(lock, "fetching", 0), pytest.raises(BusyError):
        cache.remove(root)
    assert (root / cache.TAG).is_file()


def test_the_cache_lies_where_the_user_says(tmp_path: Path) -> None:
    home = Path.home() / ".cache" / "torchfork"
    for name, value, place in (
        ("TORCHFORK_CACHE", str(tmp_path), tmp_path),
        ("XDG_CACHE_HOME", str(tmp_path), tmp_path / "torchfork"),
        ("XDG_CACHE_HOME", "relative", home), ("OTHER", "", home),
    ):  # fmt: skip
        assert cache.directory({name: value}) == place
