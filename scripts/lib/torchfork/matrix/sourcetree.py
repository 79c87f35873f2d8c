"""A source tree of upstream's laid out as its wheel would be, as far as the code generator goes.

A release that does not exist yet has no wheel; its YAML, generator and Python files say already
whether the additions merge, whether every hook finds its place and whether all files generate.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .. import files, process
from ..bases.base import Base, Interpreter
from ..errors import BaseRefusedError, DownloadError

# Where a wheel has what a source tree has elsewhere.
_PACKAGED = "torchgen/packaged"
_NATIVE = "ATen/native"
MOVED = {
    f"aten/src/{_NATIVE}/native_functions.yaml": f"{_PACKAGED}/{_NATIVE}/native_functions.yaml",
    f"aten/src/{_NATIVE}/tags.yaml": f"{_PACKAGED}/{_NATIVE}/tags.yaml",
    "aten/src/ATen/templates": f"{_PACKAGED}/ATen/templates",
    "tools/autograd": f"{_PACKAGED}/autograd",
    "torch/csrc/autograd/FunctionsManual.h": "torch/include/torch/csrc/autograd/FunctionsManual.h",
    "torch/headeronly": "torch/include/torch/headeronly",
}
# Where both have the same; torch/ is needed for the lists that upstream keeps by hand.
SAME = ("torchgen", "torch", "version.txt")
_KEPT = re.compile(r"\.(py|pyi|in|yaml|h|cpp|cu|txt|bzl|bazel|ini)$")


def open_tree(tree: Path, interpreter: Interpreter, cache: Path) -> Base:
    """A directory with upstream's sources as a base for tiers (a) to (c)."""
    missing = [name for name in [*MOVED, *SAME] if not (tree / name).exists()]
    missing = [name for name in missing if name != "torch/headeronly"]  # 2.9 on
    if missing:
        raise BaseRefusedError(
            "this is not a source tree of PyTorch",
            where=str(tree),
            why="it lacks " + ", ".join(missing),
            next="give the top directory of a checkout, or a wheel file",
        )
    sources = _sources(tree)
    identity = files.fingerprint(sources, tree)
    root = cache / "trees" / identity
    if not root.is_dir():
        files.build_directory(root, lambda target: _lay_out(tree, sources, target))
    version = (tree / "version.txt").read_text(encoding="utf-8").strip()
    return Base(
        root=root,
        version=version,
        git_version=_commit(tree),
        cuda=None,
        dist_info="",
        wheel_tag="",
        wheel=None,
        identity=identity,
        interpreter=interpreter,
    )


def open_ref(ref: str, repository: str, interpreter: Interpreter, cache: Path) -> Base:
    """A branch, tag or commit of a git repository as a base for tiers (a) to (c)."""
    key = files.sha256_text(repository)[:16]
    tree = cache / "refs" / key
    with files.lock(cache / "locks" / f"ref-{key}.lock", f"fetching {ref}", lambda _: None, 3600.0):
        if not (tree / ".git").is_dir():
            tree.mkdir(parents=True, exist_ok=True)
            _git(tree, "init", "--quiet")
            _git(tree, "sparse-checkout", "set", "--no-cone", *_patterns())
        # Blobs come as they are needed: the history and the third of a GB that is not read stay.
        _git(tree, "fetch", "--quiet", "--depth=1", "--filter=blob:none", repository, ref)
        _git(tree, "config", "remote.origin.url", repository)
        _git(tree, "config", "remote.origin.promisor", "true")
        _git(tree, "config", "remote.origin.partialclonefilter", "blob:none")
        _git(tree, "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
        return open_tree(tree, interpreter, cache)


def _patterns() -> list[str]:
    return [f"/{name}" for name in [*MOVED, *SAME]]


def _git(tree: Path, *arguments: str) -> str:
    outcome = process.run(
        ["git", "-C", tree, *arguments], env={"GIT_TERMINAL_PROMPT": "0"}, check=False
    )
    if outcome.returncode:
        raise DownloadError(
            "git could not fetch upstream's sources",
            where=outcome.command,
            why="\n".join(outcome.stderr.strip().splitlines()[-5:]),
            next="check the ref and the network, or give a checkout of your own with --onto DIR",
        )
    return outcome.stdout.strip()


def _commit(tree: Path) -> str:
    told = process.run(["git", "-C", tree, "rev-parse", "HEAD"], check=False)
    return told.stdout.strip() if told.returncode == 0 else ""


def _sources(tree: Path) -> list[Path]:
    """Every text file that the layout takes, whatever else lies about."""
    found: set[Path] = set()
    for name in [*MOVED, *SAME]:
        place = tree / name
        found.update(files.tree_files(place) if place.is_dir() else [place])
    # What an earlier build copied into the generator's package is made anew from its sources.
    copied = tree / "torchgen" / "packaged"
    return sorted(
        path
        for path in found
        if path.is_file() and _KEPT.search(path.name) and not path.is_relative_to(copied)
    )


def _lay_out(tree: Path, sources: list[Path], target: Path) -> None:
    for path in sources:
        place = target / _as_in_wheel(path.relative_to(tree).as_posix())
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _as_in_wheel(relative: str) -> str:
    for source, wheel in MOVED.items():
        if relative == source or relative.startswith(f"{source}/"):
            return wheel + relative.removeprefix(source)
    return relative
