"""Where downloads and unpacked bases are kept between runs, for all checkouts of one user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import BusyError, ForkError, UsageError
from . import files

# A file that says of a directory that it can be made again, and by whom; backups leave such
# directories out. The first line is that of the Cache Directory Tagging Specification.
TAG = "CACHEDIR.TAG"
TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# made by torchfork\n"


def directory(environment: Mapping[str, str] | None = None) -> Path:
    """TORCHFORK_CACHE, else torchfork/ in XDG_CACHE_HOME, else in ~/.cache.

    A directory that is not there yet is made, with a tag that `clean` asks for.
    """
    env = os.environ if environment is None else environment
    try:
        found = _named(env)
    except RuntimeError as error:
        raise UsageError(
            "the home directory of this user is not known",
            why=str(error),
            next="set HOME, or TORCHFORK_CACHE=DIR",
        ) from error
    if not found.exists():
        # What cannot be made here is reported where something is to be written into it.
        with contextlib.suppress(OSError, ForkError), files.scratch_directory(found) as made:
            files.write_text(made / TAG, TAG_TEXT)
            made.chmod(0o755)
            made.rename(found)  # never without its tag
    return found


def _named(env: Mapping[str, str]) -> Path:
    if chosen := env.get("TORCHFORK_CACHE"):
        return Path(chosen).expanduser().absolute()
    home = env.get("XDG_CACHE_HOME") or ""
    # The XDG specification: a relative path is to be ignored.
    parent = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return parent / "torchfork"


def remove(root: Path) -> int:
    """Delete what is in a cache that torchfork made; the bytes that were freed.

    The directory stays, with its tag: a run that waits for this one goes on in a cache.
    Raises UsageError for any other directory, BusyError while a run uses it.
    """
    if root.is_symlink() or not _is_ours(root):
        raise UsageError(
            "this directory was not made by torchfork, so it is not deleted",
            where=str(root),
            why=f"it is a link, or its {TAG} is missing or of another program",
            next="delete it by hand, or set TORCHFORK_CACHE to the cache that is meant",
        )
    with contextlib.ExitStack() as held:
        for path in sorted(root.rglob("*.lock")):
            try:
                held.enter_context(files.lock(path, "removing it", timeout=0))
            except BusyError:
                raise BusyError(
                    "another run uses the cache",
                    where=str(path),
                    next="wait for it, or stop it, and run the same command again",
                ) from None
        freed = sum(p.lstat().st_size for p in root.rglob("*") if not p.is_dir())
        for path in root.iterdir():
            if path.name != TAG:
                files.remove(path)  # a link is not followed
    return freed


def _is_ours(root: Path) -> bool:
    """Whether it has the tag."""
    try:
        return (root / TAG).read_text(encoding="utf-8") == TAG_TEXT
    except (OSError, ValueError):
        return False
