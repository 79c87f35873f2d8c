"""The patches as commits on a new branch of somebody's clone; its working tree is left alone."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...errors import StateError, UsageError
from ...util.process import run
from . import exporting, scratch
from .diff import MODE, Diff
from .outcome import Report
from .planning import read
from .series import Entry
from .tree import encode


def export(report: Report, tree: Path, branch: str) -> int:
    """Make the branch from HEAD, a commit for each patch that applies; how many there are.

    report: of planning.plan on the tree, without conflicts. Authors are those of the patches; of
        folders the user's own.
    Raises UsageError for no git tree or a branch that is there, StateError for uncommitted edits.
    """
    _require_clean(tree)
    if not _git(tree, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}", check=False)[1]:
        raise UsageError(
            f"the branch '{branch}' is there already",
            where=str(tree), next=f"name another one, or: git branch -D {branch}",
        )  # fmt: skip
    if _git(tree, "check-ref-format", "--branch", branch, check=False)[1]:
        raise UsageError(f"'{branch}' is no name for a branch", where=str(tree))
    commit = _git(tree, "rev-parse", "HEAD")[0]
    made = [outcome for outcome in report.outcomes if outcome.texts]
    with tempfile.TemporaryDirectory(prefix="torchfork-export-") as name:
        index = {"GIT_INDEX_FILE": str(Path(name) / "index")}
        _git(tree, "read-tree", commit, env=index)
        for outcome in made:
            _stage(tree, outcome.texts, Path(name) / "blob", index)
            commit = _commit(tree, outcome.entry, commit, index)
    _git(tree, "update-ref", f"refs/heads/{branch}", commit, "")
    return len(made)


def _require_clean(tree: Path) -> None:
    told, failed = _git(tree, "status", "--porcelain", "--untracked-files=no", check=False)
    if failed:
        raise UsageError("this is no git tree", where=str(tree), next="name a clone of PyTorch")
    if told:
        raise StateError(
            "the tree has uncommitted edits",
            where=str(tree), why=told, next="commit them, or scripts/torchfork unapply",
        )  # fmt: skip


def _stage(
    tree: Path, texts: Mapping[str, str | None], blob: Path, index: Mapping[str, str]
) -> None:
    for name, text in texts.items():
        if text is None:
            _git(tree, "rm", "--quiet", "--cached", "--", name, env=index)
            continue
        blob.write_bytes(encode(text))
        found = _git(tree, "hash-object", "-w", "--no-filters", str(blob))[0]
        _git(tree, "update-index", "--add", "--cacheinfo", f"{MODE},{found},{name}", env=index)


def _commit(tree: Path, entry: Entry, parent: str, index: Mapping[str, str]) -> str:
    change = read(entry)
    env = dict(index)
    if isinstance(change, Diff):
        name, _, mail = change.author.rpartition(" <")
        author = scratch.identity(name, mail.removesuffix(">"), change.date)
        env.update({key: value for key, value in author.items() if "AUTHOR" in key})
    written = _git(tree, "write-tree", env=env)[0]
    message = exporting.message(change.header, entry.name)
    return _git(tree, "commit-tree", written, "-p", parent, "-m", message, env=env)[0]


def _git(
    tree: Path, *arguments: str, env: Mapping[str, str] | None = None, check: bool = True
) -> tuple[str, bool]:
    """What git says in the user's tree, with the user's settings; and whether it failed."""
    done = run(["git", "-C", str(tree), *arguments], env=env, check=check)
    return done.stdout.strip(), bool(done.returncode)
