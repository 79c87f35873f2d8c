"""The paths of an additions directory: each a regular file or a directory, within limits.

A path that exists and cannot be read must never count as absent: a formula would silently go.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import AdditionsError, ForkError
from ..util import files

MAX_FILE_BYTES = 32_000_000  # of a source file or a patch


def is_file(path: Path, root: Path) -> bool:
    """Whether there is a regular file; False where there is nothing.

    root: the additions directory, which links must not lead out of.
    Raises AdditionsError for anything else that has this name.
    """
    mode = _mode(path, root)
    if mode is not None and not stat.S_ISREG(mode):
        raise _not_a(path, "file", mode)
    return mode is not None


def is_directory(path: Path, root: Path) -> bool:
    """Whether there is a directory; False where there is nothing. Raises as is_file does."""
    mode = _mode(path, root)
    if mode is not None and not stat.S_ISDIR(mode):
        raise _not_a(path, "directory", mode)
    return mode is not None


def tree(folder: Path, root: Path) -> list[Path]:
    """Every file below a folder of the additions, sorted; links inside root are followed.

    Hidden files and those of editors are left out, as files.tree_files does. Empty where there is
    no folder. Raises AdditionsError naming the first path that is neither file nor directory.
    """
    if not is_directory(folder, root):
        return []
    return sorted(_walk(folder, root, (os.path.realpath(folder),)))


def _walk(folder: Path, root: Path, above: tuple[str, ...]) -> Iterator[Path]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from error
    for path in (folder / name for name in names if not files.is_leftover(name)):
        mode = _mode(path, root)
        if mode is None:
            continue  # removed while we looked
        if stat.S_ISREG(mode):
            yield path
        elif not stat.S_ISDIR(mode):
            raise _not_a(path, "file or directory", mode)
        elif (real := os.path.realpath(path)) in above:
            raise _refused(path, "the link leads to a directory that contains it")
        else:
            yield from _walk(path, root, (*above, real))


def read(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file of at most `limit` bytes."""
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def read_text(
    path: Path, limit: int = MAX_FILE_BYTES, refused: type[ForkError] = AdditionsError
) -> str:
    """The text of a regular file, as `read` gets it, without a byte order mark.

    Raises `refused` where it is not UTF-8.
    """
    data = read(path, limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refused(
            f"'{path.name}' is not UTF-8 text",
            where=f"{path}:{line}",
            why=f"byte {data[error.start]:#04x}: {error.reason}",
            next="save the file as UTF-8",
        ) from error


def check_sizes(found: list[Path]) -> None:
    """Raise AdditionsError for a file that no source and no patch can be as large as."""
    for path in found:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _too_large(path, MAX_FILE_BYTES)


def _mode(path: Path, root: Path) -> int | None:
    """The file mode of a path, or of what its link leads to; None where there is nothing."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode):
            return mode
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise _refused(path, f"the link leads nowhere: {path.readlink()}") from None
        return None
    except NotADirectoryError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(os.path.realpath(root)):
        raise _refused(path, f"the link leads out of the additions: {target}")
    return mode


def _not_a(path: Path, expected: str, mode: int) -> AdditionsError:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFREG: "a file"}
    kind = kinds.get(stat.S_IFMT(mode), "a device, a pipe or a socket")
    return _refused(path, f"it is {kind}, and a {expected} belongs here")


def _refused(path: Path, why: str) -> AdditionsError:
    return AdditionsError(
        f"'{path.name}' of the additions cannot be read",
        where=str(path),
        why=why,
        next="put the file itself there, or remove the path",
    )


def _unreadable(path: Path, error: OSError) -> AdditionsError:
    return _refused(path, error.strerror or str(error))


def _too_large(path: Path, limit: int) -> AdditionsError:
    return AdditionsError(
        f"'{path.name}' is too large",
        where=str(path),
        why=f"it has more than {limit / 1e6:.0f} MB",
        next="name another file; no source, patch or YAML file of PyTorch's is near this size",
    )
