"""Applies a series to a directory: everything, or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import OutputError, UsageError
from ...util import files
from . import paths
from .outcome import Report
from .planning import plan
from .series import Lane, Series
from .tree import Tree, directory, encode


def apply(
    series: Series, root: Path, version: str, lane: Lane, ancestors: Sequence[Tree] = ()
) -> Report:
    """Plan a series on a directory and write what it changes; see planning.plan.

    Nothing is written unless every patch applies: PatchConflictError else. A failure while writing
    (a full disk) puts back what was written before it.
    """
    if not root.is_dir():
        raise UsageError("there is no such directory", where=str(root))
    report = plan(series, directory(root), version, lane, ancestors)
    report.require()
    write(root, report.texts)
    return report


def write(root: Path, texts: Mapping[str, str | None]) -> None:
    """Make files of a directory have these texts (None: go), all of them or none."""
    targets = {name: paths.inside(root, name) for name in texts}
    before = {n: (p.read_bytes() if p.is_file() else None) for n, p in targets.items()}
    done: list[str] = []
    try:
        for name, text in texts.items():
            done.append(name)
            _put(targets[name], None if text is None else encode(text))
    except BaseException:
        for name in reversed(done):
            with contextlib.suppress(OSError, OutputError):  # the one that failed was not written
                _put(targets[name], before[name])
        raise


def _put(path: Path, data: bytes | None) -> None:
    """One file by one rename, its mode kept."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    mode = path.stat().st_mode & 0o777 if path.is_file() else 0o644
    files.write_bytes(path, data, mode, durable=False)
