"""Three-way merges: upstream's change and a patch's, from the file that both began with."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import exact, scratch
from .diff import ZERO, FileDiff
from .tree import Tree

_SIDES = re.compile(
    r"^<{7} [^\n]*\n(?P<theirs>.*?)^\|{7} [^\n]*\n.*?^={7}\n(?P<ours>.*?)^>{7} ", re.M | re.S
)


@dataclass(frozen=True)
class Merge:
    """The outcome of a merge.

    texts: files that the merge changes; None where it conflicts.
    file, theirs, ours: the first conflict: upstream's lines and the patch's.
    renamed: upstream's new names of files that the patch knows by another.
    marked: the files as git leaves them after a conflict, both sides between marks.
    """

    texts: Mapping[str, str | None] | None
    renamed: Mapping[str, str]
    file: str = ""
    theirs: str = ""
    ours: str = ""
    marked: Mapping[str, str | None] = field(default_factory=dict)


def merge(tree: Tree, files: Sequence[FileDiff], ancestors: Iterable[Tree]) -> Merge | None:
    """Merge a patch into a tree; None where no ancestor has the files that it was made from."""
    origin = next((a for a in ancestors if _is_origin(a, files)), None)
    if origin is None:
        return None
    before = {file.path: origin.read(file.path) for file in files if file.kind != "add"}
    after = exact.forward(origin, files)
    if isinstance(after, exact.Misfit):
        return None
    now = {file.path: tree.read(file.path) for file in files}
    now.update(_moved_here(tree, origin, [n for n in before if now[n] is None]))
    with tempfile.TemporaryDirectory(prefix="torchfork-merge-") as name:
        return _merge(Path(name), before, now, after)


def _is_origin(tree: Tree, files: Sequence[FileDiff]) -> bool:
    """Whether a tree has the very files that a patch was made from."""
    for file in files:
        text = tree.read(file.path)
        if (ZERO if text is None else exact.blob_id(text)) != file.before_id:
            return False
    return True


def _moved_here(tree: Tree, origin: Tree, gone: Sequence[str]) -> dict[str, str | None]:
    """The files that upstream has gained, among which git looks for those that are gone."""
    if not gone:
        return {}
    suffixes = {Path(name).suffix for name in gone}
    known = set(origin.names())
    fresh = [n for n in tree.names() if n not in known and Path(n).suffix in suffixes]
    return {name: tree.read(name) for name in fresh}


def _merge(
    repository: Path, before: Mapping[str, str | None], now: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> Merge:  # fmt: skip
    scratch.create(repository)
    scratch.put(repository, before)
    start = scratch.commit(repository, "origin")
    scratch.put(repository, after)
    patched = scratch.commit(repository, "patch")
    scratch.git(repository, "checkout", "--quiet", "-f", "--detach", start)
    scratch.put(repository, dict.fromkeys(before) | dict(now))
    upstream = scratch.commit(repository, "upstream")
    done = scratch.git(repository, "merge", "--no-commit", "--no-ff", patched, check=False)
    renamed = _renamed(repository, start, upstream)
    found = _conflict(repository, renamed) if done.returncode else None
    scratch.git(repository, "add", "--all", "--force", ".")
    changed = scratch.git(
        repository, "diff", "--cached", "--name-only", "--no-renames", "-z", upstream
    ).stdout
    texts = {
        name: scratch.get(repository, name) for name in sorted(filter(None, changed.split("\0")))
    }
    return replace(found, marked=texts) if found else Merge(texts, renamed)


def _renamed(repository: Path, start: str, upstream: str) -> dict[str, str]:
    told = scratch.git(
        repository, "diff", "-M", "--diff-filter=R", "--name-status", "-z", start, upstream
    ).stdout.split("\0")
    return {told[i + 1]: told[i + 2] for i in range(0, len(told) - 2, 3)}


def _conflict(repository: Path, renamed: Mapping[str, str]) -> Merge:
    """What git could not merge, by the first file of it."""
    names = scratch.git(repository, "diff", "--name-only", "--diff-filter=U", "-z").stdout
    name = min(filter(None, names.split("\0")), default="")
    text = scratch.get(repository, name) if name else None
    found = _SIDES.search(text or "")
    if found is None:  # one side deleted the file or both added it
        return Merge(None, renamed, name)
    return Merge(None, renamed, name, found["theirs"], found["ours"])
